"""crpipe: from raw simulation files in many range directories to a trained model."""

__version__ = "0.1.0"
