"""A simulator that does not fit."""

from tilelab.simulation import BeamTest


class FallsSilent(BeamTest):
    def write(self, name, file, seed, path):
        raise ZeroDivisionError("no beam")
