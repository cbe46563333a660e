"""Figures and captions of the report."""
