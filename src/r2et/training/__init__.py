"""Training: one network by a method, or many small ones side by side."""
