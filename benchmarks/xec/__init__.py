"""Gammas in liquid xenon, beside xec-ml-wl."""
