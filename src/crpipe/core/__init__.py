"""What every other package stands on: errors, files, leases, journals, ranges, paths."""
