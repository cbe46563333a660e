"""crpipe: range directories of simulated muon bundles in, a trained generator of such bundles out."""

__version__ = "0.1.0"
