"""Validation inside training, the best checkpoint, and early stopping."""
