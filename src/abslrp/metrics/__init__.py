"""Scores of maps: one number per image, the same whatever else is scored beside it."""
