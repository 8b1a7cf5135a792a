"""Runs of whole recipes, and the tables made of their rows."""
