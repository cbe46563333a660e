"""What a campaign will read, write and run, before it does."""
