"""Fresh events for an evaluation of simulated sources: one event of each of many new groups."""

from __future__ import annotations

import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.campaign.simulators import Simulator, named, open_simulator
from crpipe.core.causes import plugin_errors
from crpipe.core.errors import PluginError
from crpipe.core.files import disk_errors, make_folder
from crpipe.core.ranges import Range
from crpipe.core.text import counted
from crpipe.events.batch import Events, concatenate
from crpipe.events.layout import SOURCE_FILE, SOURCE_ROW, Layout
from crpipe.loading.loader import MOST_ITEMS
from crpipe.statistics.groups import group_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress

FRESH = "fresh"  # the part, and the range, of such events
_SEED = 0x66726573  # a campaign's own files have other seeds


def fresh_events(campaign: Campaign, ranges: Sequence[str], folder: Path, progress: Progress) -> Events:
    """Simulate evaluate.fresh_groups new groups, and return one event of each, whatever its size.

    ranges: whose files are simulated with another seed, where the simulator has no ``fresh``; in ``folder``,
    one after the other. Equal arguments give equal events. Raise PluginError for a simulator that fails.
    """
    config = campaign.config
    simulator = open_simulator(config.source.simulator, config.options("simulator"))
    groups, seed = config.evaluate.fresh_groups, config.seed + _SEED
    if hasattr(simulator, "fresh"):
        with plugin_errors(f"source.simulator: {named(simulator)}.fresh failed"):
            events = simulator.fresh(groups, seed)
        check_fresh(events, groups, campaign.layout, named(simulator))
    else:
        parts, count, items = [], 0, 0
        for part in _first_of_groups(campaign, simulator, (ranges, seed), folder):
            parts.append(part)
            count += len(part)
            items += int(part.multiplicity.sum())
            progress.update("simulate fresh groups", min(count, groups), groups)
            if count >= groups or items >= MOST_ITEMS:
                break
        events = concatenate(parts)
        events = events.part(0, min(groups, len(events)))
    ends = np.cumsum(events.multiplicity, dtype=np.int64)
    kept = min(len(events), max(1, int(np.searchsorted(ends, MOST_ITEMS, side="right"))))
    if kept < groups:
        progress.message(
            f"{counted(kept, 'fresh group')}, not {groups}: more than {MOST_ITEMS:,} items are not compared"
        )
    events = events.part(0, kept)
    number = np.arange(len(events), dtype=np.uint32)
    columns = {**events.columns, SOURCE_FILE: np.zeros_like(number), SOURCE_ROW: number}
    return Events(columns, events.multiplicity, events.items)


def check_fresh(events: Any, groups: int, layout: Layout, name: str) -> None:
    """Raise PluginError unless a simulator gave so many events with all columns."""
    names = {field.name for field in layout.events}
    if not isinstance(events, Events) or len(events) != groups or not names <= events.columns.keys():
        raise PluginError(
            f"source.simulator: {name}.fresh: expected {groups} events with the columns "
            f"{', '.join(sorted(names))}"
        )


def _first_of_groups(
    campaign: Campaign, simulator: Simulator, what: tuple[Sequence[str], int], folder: Path
) -> Iterator[Events]:
    """Simulate and read files without end; yield an event of each group, chosen by chance."""
    ranges, seed = what
    reader = campaign.reader.open()
    with disk_errors(folder):
        make_folder(folder)
    names = [Range.parse(each) for each in ranges]
    # one file of each range after the other: no range is the whole sample
    turns = zip_longest(*([(name, file) for file in simulator.files(name)] for name in names))
    files = [each for turn in turns for each in turn if each is not None]
    while True:
        rng, count = np.random.default_rng(seed), 0
        for name, file in files:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".fresh") as scratch:
                path = Path(scratch) / file
                with plugin_errors(f"{name}/{file}: {named(simulator)}.write failed"), disk_errors(path):
                    simulator.write(name, file, seed, path)
                blocks = list(reader.rows(path))
            if blocks:
                events = _one_of_each(concatenate(blocks), campaign.layout, rng)
                count += len(events)
                yield events
        if not count:
            raise PluginError(
                f"source.simulator: {named(simulator)}: expected events in its files, found none"
            )
        seed += 1


def _one_of_each(events: Events, layout: Layout, rng: np.random.Generator) -> Events:
    group = group_numbers([events.columns[name] for name in layout.group])
    order = rng.permutation(len(group))
    _, first = np.unique(group[order], return_index=True)
    return events.take(np.sort(order[first]))
