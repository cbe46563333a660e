"""Looks at raw files before a split: what they hold, and which threshold suits them."""
