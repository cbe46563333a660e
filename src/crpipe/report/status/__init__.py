"""The state of a campaign, read from its files."""
