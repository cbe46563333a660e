"""The base of all other packages: errors, files, leases, journals, ranges, paths."""
