"""Readers of raw muon bundle files."""
