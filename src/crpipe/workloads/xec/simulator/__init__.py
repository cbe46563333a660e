"""A simulated detector, in the format of the real one."""
