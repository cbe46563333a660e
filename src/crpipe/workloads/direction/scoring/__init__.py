"""How good directions are, beside a line fit."""
