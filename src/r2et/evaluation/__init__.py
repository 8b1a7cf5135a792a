"""Evaluation: what is measured of a model on the test part of a split."""
