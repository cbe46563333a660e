"""Directions of neutrinos, beside iceaggr and GraphNeT."""
