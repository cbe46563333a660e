"""Pulses to directions: features, networks, losses."""
