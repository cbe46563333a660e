"""A campaign in Python: `crpipe.open`."""
