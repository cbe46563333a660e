"""A whole Pelican federation on this machine, to try things on and to test against."""
