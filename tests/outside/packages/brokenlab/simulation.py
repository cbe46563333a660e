"""Simulators that do not fit."""

from dataclasses import replace

from tilelab.layout import TILES
from tilelab.simulation import BeamTest


class OtherTiles(BeamTest):
    layout = replace(TILES, items=(replace(TILES.items[0], unit="V"), TILES.items[1]))


class FallsSilent(BeamTest):
    def write(self, name, file, seed, path):
        raise ZeroDivisionError("no beam")
