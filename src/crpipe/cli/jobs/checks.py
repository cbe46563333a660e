"""What is compared before any job starts, as far as it needs neither torch nor the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.cli.jobs.campaign import simulated_tables
from crpipe.core.errors import ConfigError
from crpipe.events.histograms import check_binnings
from crpipe.source.simulated import open_simulator
from crpipe.split.readers import check_needs, open_reader
from crpipe.split.threshold import check_threshold

if TYPE_CHECKING:
    from crpipe.config.loading import Config
    from crpipe.events.layout import Layout


def check_data(config: Config) -> list[str]:
    """Compare reader, simulator, side tables, threshold and histograms.

    Give a phrase for each thing that was checked. Raise ConfigError with the module, what is missing, and an
    example.
    """
    reader = open_reader(config.source.reader, config.options("reader"))
    offered = simulated_tables(config)
    check_needs(config.source.reader, reader.needs, (*config.source.tables, *offered))
    if config.split.quantile is None:
        check_threshold(reader.layout, config.split.threshold)
    check_binnings(reader.layout, config.split.histograms)
    checked = [f"reader {config.source.reader}"]
    if config.simulates():
        simulator = open_simulator(config.source.simulator, config.options("simulator"))
        check_simulator(reader.layout, config.source.reader, simulator.layout, config.source.simulator)
        checked.append(f"simulator {config.source.simulator}")
    return checked


def check_simulator(layout: Layout, reader: str, simulated: Layout, simulator: str) -> None:
    """Raise ConfigError when the simulator does not make what the reader reads.

    Options of a reader may leave event columns out, narrow legal values, or group events otherwise.
    """
    own, other = _columns(layout), _columns(simulated)
    other["layout.events"] = [
        column for column in other["layout.events"] if column in own["layout.events"]
    ] or other["layout.events"]
    for name in own:
        if own[name] != other[name]:
            ours, theirs = _differing(own[name], other[name])
            raise ConfigError(
                f"source.simulator: {simulator} makes another layout than {reader} reads: {name} is {theirs} "
                f"and {ours}; name the reader of these files with source.reader, or another source.simulator"
            )


def _columns(layout: Layout) -> dict[str, Any]:
    """Give the columns of a layout without their legal values."""
    spelled = {
        f"layout.{kind}": [f"{field.name} {field.dtype} {field.unit}".rstrip() for field in fields]
        for kind, fields in (("events", layout.events), ("items", layout.items))
    }
    return {"layout.item": layout.item, "layout.fixed": layout.fixed, **spelled}


def _differing(own: Any, other: Any) -> tuple[str, str]:
    """Spell two values that differ; of two lists, what only one of them has."""
    if not isinstance(own, list):
        return repr(own), repr(other)
    ours, theirs = ([one for one in a if one not in b] for a, b in ((own, other), (other, own)))
    return ", ".join(ours) or repr(own), ", ".join(theirs) or repr(other)
