"""Looks at a source before a campaign runs, and writes nothing."""
