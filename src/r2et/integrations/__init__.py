"""Other libraries' explanations and measures here, our explainers there; each loads when used."""
