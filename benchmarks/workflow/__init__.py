"""What workflow and head cost beside the work."""
