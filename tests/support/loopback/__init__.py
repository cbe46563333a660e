"""A Pelican federation on this machine."""
