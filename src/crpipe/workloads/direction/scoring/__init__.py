"""How good directions are, beside simple methods."""
