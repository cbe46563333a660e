"""Everything that a reader, a simulator or a workload of somebody else imports: what is here stays.

A name that is here keeps its meaning within a major version; what is imported from other modules of crpipe
may move. Nothing is loaded before it is used: a reader needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crpipe.author.reader import BaseReader as Reader
    from crpipe.author.workload import BaseWorkload as Workload
    from crpipe.campaign.simulators import Simulator
    from crpipe.core.errors import FormatError
    from crpipe.core.ranges import Range
    from crpipe.events.batch import Events, cut_lists
    from crpipe.events.expectations import Expectations
    from crpipe.events.layout import Field, Layout, Metric
    from crpipe.inference.onnx_graph import Graph
    from crpipe.report.figure_style import new_figure, note, save
    from crpipe.statistics.classifier import LabelledRows, auc, cross_fit
    from crpipe.statistics.groups import Statistic, mean, quantile, ratio
    from crpipe.statistics.ratios import Bins
    from crpipe.train.schedule import Schedule
    from crpipe.train.workload import OptimizerSpec, Phase, Throttle

_PLACES = {
    "author.reader": ("Reader",),
    "author.workload": ("Workload",),
    "campaign.simulators": ("Simulator",),
    "core.errors": ("FormatError",),
    "core.ranges": ("Range",),
    "events.batch": ("Events", "cut_lists"),
    "events.expectations": ("Expectations",),
    "events.layout": ("Field", "Layout", "Metric"),
    "inference.onnx_graph": ("Graph",),
    "report.figure_style": ("new_figure", "note", "save"),
    "statistics.classifier": ("LabelledRows", "auc", "cross_fit"),
    "statistics.groups": ("Statistic", "mean", "quantile", "ratio"),
    "statistics.ratios": ("Bins",),
    "train.schedule": ("Schedule",),
    "train.workload": ("OptimizerSpec", "Phase", "Throttle"),
}
_BASES = {"Reader": "BaseReader", "Workload": "BaseWorkload"}  # protocols of the engine have these names
_MODULE = {name: module for module, names in _PLACES.items() for name in names}
__all__ = [
    "Bins",
    "Events",
    "Expectations",
    "Field",
    "FormatError",
    "Graph",
    "LabelledRows",
    "Layout",
    "Metric",
    "OptimizerSpec",
    "Phase",
    "Range",
    "Reader",
    "Schedule",
    "Simulator",
    "Statistic",
    "Throttle",
    "Workload",
    "auc",
    "cross_fit",
    "cut_lists",
    "mean",
    "new_figure",
    "note",
    "quantile",
    "ratio",
    "save",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is used first."""
    if name not in _MODULE:
        raise AttributeError(f"crpipe.author has no {name}; it has {', '.join(__all__)}")
    return getattr(import_module(f"crpipe.{_MODULE[name]}"), _BASES.get(name, name))


def __dir__() -> list[str]:
    return list(__all__)
