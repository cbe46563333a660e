"""Muon bundles: raw files, loader, training, physics, verbs."""
