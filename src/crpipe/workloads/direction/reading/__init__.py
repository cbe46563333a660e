"""Readers of pulses: no torch here."""
