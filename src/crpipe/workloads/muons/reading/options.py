"""Options of the readers of this package: none of them takes any."""
