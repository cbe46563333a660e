"""Looks at a source before a campaign runs, and at what was copied from it."""
