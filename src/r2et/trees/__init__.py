"""Tree ensembles: read as they are, explained leaf by leaf, judged exactly."""
