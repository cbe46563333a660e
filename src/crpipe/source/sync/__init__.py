"""A second copy of a run: sent once or again and again, and brought back."""
