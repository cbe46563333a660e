"""Copies from a federation on loopback."""
