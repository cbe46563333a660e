"""Readers that are none."""

import numpy as np
from hitlab.layout import HITS
from hitlab.reading import HitFiles
from tilelab.reading import TileFiles

from crpipe.events.batch import Events


class NoRows:
    layout = HITS
    needs = ()

    def __init__(self, options):
        pass

    def totals(self, path, tables):
        return 0, 0


class Stumbles(HitFiles):
    def rows(self, path, tables):
        yield from super().rows(path, tables)
        raise KeyError("voltage")


class LosesTiles(TileFiles):
    """Gives the first event of a block without its last tile."""

    def rows(self, path, tables):
        for block in super().rows(path, tables):
            counts = block.multiplicity.copy()
            counts[0] -= 1
            yield Events(block.columns, counts, np.delete(block.items, counts[0], axis=0))
