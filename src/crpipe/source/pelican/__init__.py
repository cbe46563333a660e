"""Raw files in a Pelican federation."""
