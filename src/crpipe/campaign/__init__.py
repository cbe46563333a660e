"""What a campaign is, its records, and the protocols of its plug-ins."""
