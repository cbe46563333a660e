"""Muon bundles that all have the same number of muons: a reader and a generator of a layout of fixed size."""

from dataclasses import dataclass, replace

from crpipe.events.layout import Layout
from crpipe.workloads.muons import MuonGan, MuonGanOptions
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.reading.parquet import Bundles

SIZE = 450
LAYOUT = replace(BUNDLES, fixed=SIZE)


@dataclass(frozen=True)
class FixedReader(Bundles):
    """The reader of bundles, with a size in its layout."""

    layout: Layout = LAYOUT


class FixedGanOptions(MuonGanOptions):
    """Those of the generator."""


class FixedGan(MuonGan):
    """A generator that predicts the right size, or another one."""

    predicted = SIZE

    def __init__(self, options: FixedGanOptions):
        super().__init__(options)

    def multiplicities(self, model, events, generator):
        return super().multiplicities(model, events, generator) * 0 + self.predicted
