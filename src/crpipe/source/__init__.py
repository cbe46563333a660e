"""Source: list and copy one range, verified; make synthetic ranges."""
