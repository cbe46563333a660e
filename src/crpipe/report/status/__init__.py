"""Status of a campaign: table, page, messages, and why jobs failed."""
