"""The multiplicity above which an event is an outlier: a fixed number, or a quantile of reference ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.data.read import find_reader
from crpipe.data.staged import STAGED, check_present, read_staged
from crpipe.errors import ConfigError, FormatError, ListingError
from crpipe.files import read_json, write_json
from crpipe.ranges import Range

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.config import Config
    from crpipe.progress import Progress


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
    reader = find_reader(config.source.reader)
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
        return [events.multiplicity for events in reader.rows(path)]
    except FormatError as error:
        if config.source.on_bad_file == "fail":
            raise
        progress.say(f"left out of the threshold: {error}")
        return []
