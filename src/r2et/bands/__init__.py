"""Bands: few edges for each number, where few people stand, in front of any model."""
