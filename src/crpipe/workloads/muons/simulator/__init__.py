"""The built-in simulation of muon bundles."""
