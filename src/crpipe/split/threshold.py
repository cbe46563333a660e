"""The multiplicity above which an event is an outlier: a fixed number, or a quantile of reference ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import ConfigError, DataError, FormatError, ListingError
from crpipe.core.files import read_json, write_json
from crpipe.core.ranges import Range
from crpipe.split.readers import open_reader
from crpipe.split.staged import STAGED, check_present, read_staged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress


def choose_threshold(config: Config, progress: Progress) -> None:
    """Write the threshold that ``split.quantile`` of the reference ranges' events do not exceed.

    Only the raw files of the reference ranges are read. A threshold that was already chosen for the same
    quantile and ranges is kept, so that it outlives the raw files. Raise ConfigError when no quantile is set.
    """
    if config.split.quantile is None:
        raise ConfigError(
            "split.quantile: not set; nothing to choose, the threshold is split.threshold "
            f"({config.split.threshold})"
        )
    path = config.paths().threshold()
    names = [str(each) for each in _reference_ranges(config)]
    chosen = {"quantile": config.split.quantile, "ranges": names}
    if path.exists() and chosen.items() <= read_json(path).items():
        progress.say(f"{path}: stands already")
        return
    multiplicity = np.concatenate([_scan(config, name, progress) for name in names])
    if not len(multiplicity):
        raise ListingError(f"split.reference_ranges: {', '.join(names)} hold no events; name other ranges")
    cut = np.quantile(multiplicity, config.split.quantile, method="inverted_cdf")
    write_json(path, chosen | {"threshold": max(1, int(cut)), "events": len(multiplicity)})


def threshold_of(config: Config) -> int:
    """Tell the threshold of this campaign; raise DataError when a quantile is set but not yet chosen."""
    if config.split.quantile is None:
        return config.split.threshold
    chosen: dict[str, Any] = read_json(config.paths().threshold())
    return int(chosen["threshold"])


def _reference_ranges(config: Config) -> list[Range]:
    campaign = config.all_ranges()
    wanted = [Range.parse(text) for text in config.split.reference_ranges] or [campaign[0]]
    for each in wanted:
        if each not in campaign:
            raise ConfigError(f"split.reference_ranges: {each} is not a range of this campaign")
    return wanted


def _scan(config: Config, name: str, progress: Progress) -> NDArray[np.uint32]:
    """Multiplicities of all events of a range that can be read, [N]."""
    reader = open_reader(config.source.reader, config.options("reader"))
    folder = config.paths().raw(name)
    files = [file for file in read_staged(config.paths().staged(name)) if file.state == STAGED]
    total = sum(file.size for file in files)
    found = [np.zeros(0, np.uint32)]
    done = 0
    for file in files:
        check_present(folder, file)
        found += _multiplicities(config, folder / file.path, reader, progress)
        done += file.size
        progress.advance(f"threshold {name}", done, total)
    return np.concatenate(found)


def _multiplicities(config: Config, path: Path, reader: Any, progress: Progress) -> list[NDArray[np.uint32]]:
    try:
        return [events.multiplicity for events in reader.rows(path, {})]
    except FormatError as error:
        if config.source.on_bad_file == "fail":
            raise
        progress.say(f"left out of the threshold: {error}")
        return []


_BYTES = 12  # one muon in a batch: three float32


_LEAST_SHARE = 0.5  # thresholds that would set aside more than this share of the muons are of no use


_MIB = 1 << 20


def suggest_threshold(config: Config) -> str:
    """Tabulate, from the histograms of the ranges split so far, thresholds against what each sets aside.

    ``batch mean`` and ``batch + 3 sd`` are the muons' memory in a batch of ``load.batch_events`` bulk events.
    Raise DataError when no range has been split yet.
    """
    edges, events = _histogram(config)
    middles = np.where(edges[:-1] == 0, 0.0, np.sqrt(edges[:-1] * (edges[1:] - 1.0)))
    muons = events * middles
    batch = config.load.batch_events
    rows: list[tuple[str, ...]] = [("threshold", "events aside", "muons aside", "batch mean", "batch + 3 sd")]
    for bin_end in range(1, len(edges)):
        kept = slice(0, bin_end)
        aside = muons[bin_end:].sum() / max(muons.sum(), 1)
        if not events[kept].sum() or aside > _LEAST_SHARE:
            continue
        weights = events[kept] / events[kept].sum()
        mean = float(weights @ middles[kept])
        spread = float(np.sqrt(weights @ (middles[kept] - mean) ** 2 * batch))
        size = [f"{count * _BYTES / _MIB:.1f} MiB" for count in (mean * batch, mean * batch + 3 * spread)]
        share = events[bin_end:].sum() / events.sum()
        rows.append((str(edges[bin_end] - 1), f"{share:.3%}", f"{aside:.1%}", *size))
        if not events[bin_end:].any():
            break
    return "\n".join([*_aligned(rows), f"batches of {batch} events (load.batch_events)"])


def _histogram(config: Config) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    tables = [config.paths().multiplicity(str(each)) for each in config.all_ranges()]
    found = [table.with_name(f"{table.stem}.histogram.json") for table in tables]
    histograms = [read_json(path) for path in found if path.exists()]
    if not histograms:
        raise DataError(
            f"{tables[0].parent}: no histogram yet; run `crpipe split` for at least one range first"
        )
    edges = np.array(histograms[0]["edges"], np.int64)
    return edges, np.sum([each["events"] for each in histograms], axis=0)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
