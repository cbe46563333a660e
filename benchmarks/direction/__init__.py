"""Directions of neutrinos, beside iceaggr."""
