"""What is compared before any job starts, as far as it needs neither torch nor the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError
from crpipe.source.simulated import open_simulator
from crpipe.split.readers import open_reader
from crpipe.split.threshold import check_threshold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.config.loading import Config
    from crpipe.events.layout import Layout


def check_data(config: Config) -> list[str]:
    """Compare reader, simulator, side tables and threshold; give a phrase for each thing that was checked.

    Raise ConfigError with the module, what is missing, and an example.
    """
    reader = open_reader(config.source.reader, config.options("reader"))
    check_tables(config, f"source.reader: {config.source.reader}", reader.needs)
    if config.split.quantile is None:
        check_threshold(reader.layout, config.split.threshold)
    checked = [f"reader {config.source.reader}"]
    if config.simulates():
        simulator = open_simulator(config.source.simulator, config.options("simulator"))
        check_simulator(reader.layout, config.source.reader, simulator.layout, config.source.simulator)
        checked.append(f"simulator {config.source.simulator}")
    return checked


def check_tables(config: Config, name: str, needs: Sequence[str]) -> None:
    """Raise ConfigError when a side table is needed that source.tables does not name."""
    for needed in needs:
        if needed not in config.source.tables:
            known = ", ".join(config.source.tables) or "none"
            raise ConfigError(
                f"{name}: needs the side table {needed}, source.tables names {known}; add it, for example "
                f"source.tables: {{{needed}: /data/{needed}.csv}}"
            )


def check_simulator(layout: Layout, reader: str, simulated: Layout, simulator: str) -> None:
    """Raise ConfigError when the simulator does not make what the reader reads."""
    own, other = layout.identity(), simulated.identity()
    wrong = [
        f"  {name}: reader {own[name]!r}, simulator {other[name]!r}"
        for name in own
        if own[name] != other[name]
    ]
    if wrong:
        head = f"source.simulator: {simulator} makes another layout than {reader} reads:"
        advice = "name the reader of these files with source.reader, or another source.simulator"
        raise ConfigError("\n".join([head, *wrong, advice]))
