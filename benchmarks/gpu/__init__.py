"""The checklist for a GPU."""
