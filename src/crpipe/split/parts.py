"""Which part an event belongs to, by its group or file; the choice of a threshold by a quantile.

Out: a code for each event or file; the refusal of a group that occurs in two parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow.parquet as pq

from crpipe.campaign.duplicates import refuse_twins
from crpipe.campaign.raw_files import STAGED, RawFile, natural_key, read_manifest, read_ready
from crpipe.campaign.raw_proofs import check_present
from crpipe.campaign.records import ChosenThreshold
from crpipe.campaign.split_record import TABLE, SplitRecord
from crpipe.config.combinations import check_file_numbers
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, DataError, FormatError, ListingError
from crpipe.core.paths import DESTINATIONS, PARTS, Paths, roles_of
from crpipe.core.ranges import Range, in_interval
from crpipe.events.layout import MULTIPLICITY, SOURCE_FILE, SOURCE_ROW
from crpipe.split.hashing import share_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.readers import CheckedReader
    from crpipe.config.loading import Config
    from crpipe.core.text import Progress

# Indices in DESTINATIONS. The outliers of a part follow OUTLIER_OFFSET after the part itself.
TRAIN, VALIDATION, TEST = range(len(PARTS))
OUTLIER_OFFSET = len(PARTS)
REJECTED = DESTINATIONS.index("rejected")


@dataclass(frozen=True, slots=True)
class Parts:
    """The share of the groups of events that each held-out part gets, or the files that make it up.

    Files are patterns of names, file numbers, or intervals of file numbers. The number of a file is the
    first number of its range plus its place in the range, in the natural order of names (file2 before
    file10): the number in its name where source.uri has {number}, its place in the folder or list without
    range directories. In a range directory with more files than numbers, the rest has no number.
    """

    validation_fraction: float = 0.0
    test_fraction: float = 0.0
    validation_files: tuple[str | int, ...] = ()
    test_files: tuple[str | int, ...] = ()

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return what a configuration holds out.

        Raise ConfigError for a number of a held-out file that no file of the campaign has.
        """
        split = config.split
        if split.validation_files or split.test_files:
            check_file_numbers(split, config.ranges.first, config.last_file())
        return cls(split.validation_fraction, split.test_fraction, split.validation_files, split.test_files)

    @property
    def by_files(self) -> bool:
        """Return whether files decide, so that a group may occur in two parts."""
        return bool(self.validation_files or self.test_files)

    def of_files(self, files: Sequence[RawFile], name: str) -> dict[int, int]:
        """Return the part of each file of the range ``name`` that is held out whole, by ``RawFile.number``.

        Raise ConfigError for a file that both parts name.
        """
        if not self.by_files:
            return {}
        first, last = (whole := Range.parse(name)).first, whole.last
        by_file: dict[int, int] = {}
        for index, file in enumerate(sorted(files, key=lambda file: natural_key(file.path))):
            number = first + index if first + index <= last else None
            validation = _is_named(file.path, number, self.validation_files)
            if _is_named(file.path, number, self.test_files):
                if validation:
                    raise ConfigError(
                        f"split.validation_files and split.test_files both name {file.path} of {name}; "
                        "name it in one of them"
                    )
                by_file[file.number] = TEST
            elif validation:
                by_file[file.number] = VALIDATION
        return by_file

    def of_groups(self, columns: Iterable[NDArray[Any]], seed: int) -> NDArray[np.int8]:
        """Return the part of each event by the hash of its group's values, [N]."""
        share = share_of(columns, (self.validation_fraction, self.test_fraction), seed)
        return np.array([VALIDATION, TEST, TRAIN], np.int8)[share]


def _is_named(path: str, number: int | None, entries: Iterable[str | int]) -> bool:
    name = PurePosixPath(path).name
    for entry in entries:
        within = in_interval(number, entry)
        if within or (within is None and (fnmatchcase(path, str(entry)) or fnmatchcase(name, str(entry)))):
            return True
    return False


def refuse_groups_in_two_parts(campaign: Campaign, tables: Mapping[str, Path]) -> None:
    """Raise ConfigError naming one group of events that occurs in two parts, with both of its files.

    tables: the multiplicity table of each range to look at. Needed only where files decide: the hash sends
    all events of a group to the same part.
    """
    for name, table in tables.items():
        if not is_present(table):
            raise DataError(f"{table}: missing; run `crpipe split {name}` again")
    torn = _torn_group(tables, campaign.layout.group)
    if torn is None:
        return
    values = ", ".join(f"{name} {torn[name]}" for name in campaign.layout.group)
    places = [
        f"{_path(campaign.paths, torn[f'range{side}'], torn[f'{SOURCE_FILE}{side}'])} of "
        f"{torn[f'range{side}']} ({torn[f'destination{side}']})"
        for side in ("", "_right")
    ]
    raise ConfigError(
        f"split: the group of events {values} occurs in {places[0]} and in {places[1]}: the model would be "
        "judged on what it was trained on; give both files to the same part with split.validation_files or "
        "split.test_files, or hold out groups with split.validation_fraction or split.test_fraction"
    )


def refuse_unfit_ranges(campaign: Campaign, names: Sequence[str]) -> None:
    """Raise an error when some ranges must not be trained on together.

    ConfigError when a group of events is held out in one of them and trained on in another, DataError when
    two have a raw file of the same content.
    """
    config, paths = campaign.config, campaign.paths
    if Parts.of(config).by_files:
        refuse_groups_in_two_parts(campaign, {name: paths.multiplicity(name) for name in names})
    if config.ranges.duplicates == "refuse":
        refuse_twins(paths, names)


def _torn_group(tables: Mapping[str, Path], group: tuple[str, ...]) -> dict[str, Any] | None:
    import polars as pl  # noqa: PLC0415 - 0.1 s that only parts by files need

    names = [*group, "destination", "part", "range", SOURCE_FILE, SOURCE_ROW]
    parts = {role: part for part in PARTS for role in roles_of(part)}
    scans = [pl.scan_parquet(path).with_columns(range=pl.lit(name)) for name, path in tables.items()]
    part = pl.col("destination").replace_strict(parts, default=None, return_dtype=pl.String)
    events = pl.concat([scan.with_columns(part=part).select(names) for scan in scans])
    kept = events.filter(pl.col("part").is_not_null())
    # Only held-out events are held in memory, one for each group and part.
    held = kept.filter(pl.col("part") != PARTS[TRAIN]).unique(subset=[*group, "part"])
    torn = held.join(kept, on=list(group)).filter(pl.col("part") != pl.col("part_right"))
    rows = torn.head(1).collect(engine="streaming").to_dicts()
    return rows[0] if rows else None


def _path(paths: Paths, name: str, file: int) -> str:
    """Name a source file; its number where the list of raw files is gone."""
    for listing in (paths.staged(name), paths.manifest(name)):
        if is_present(listing):
            return read_manifest(listing)[file].path
    return f"file {file}"


# The multiplicity above which an event is an outlier: a fixed number, or a quantile of reference ranges.


def choose_threshold(campaign: Campaign, progress: Progress) -> None:
    """Write the threshold that the quantile ``split.quantile`` of the reference ranges' events do not exceed.

    Only the reference ranges are read. A threshold that was already chosen for the same quantile and ranges
    is kept, so that it outlives the raw files. Raise ConfigError without a quantile, or for a reference range
    of another campaign, ListingError when there are no events.
    """
    split, target = campaign.config.split, campaign.paths.threshold()
    if split.quantile is None:
        raise ConfigError(
            "split.quantile: not set; nothing to choose, the threshold is split.outlier_above "
            f"({split.outlier_above})"
        )
    names = tuple(str(Range.parse(text)) for text in split.reference_ranges) or campaign.ranges[:1]
    for name in names:
        if name not in campaign.ranges:
            raise ConfigError(f"split.reference_ranges: {name} is not a range of this campaign")
    chosen = ChosenThreshold.read_if_any(target)
    if chosen is not None and (chosen.quantile, chosen.ranges) == (split.quantile, names):
        progress.message(f"{target}: already chosen")
        return
    reader = campaign.reader.open()
    counts: dict[int, int] = {}
    for name in names:
        for multiplicities in _scan(campaign, name, reader, progress):
            add_counts(counts, multiplicities)
    total = sum(counts.values())
    if not total:
        raise ListingError(f"split.reference_ranges: {', '.join(names)} hold no events; name other ranges")
    cut = max(1, quantile_of(counts, split.quantile))
    ChosenThreshold(quantile=split.quantile, ranges=names, threshold=cut, events=total).write(target)


def add_counts(counts: dict[int, int], multiplicities: NDArray[Any]) -> None:
    """Add the events of each multiplicity to the counts: {multiplicity: events}."""
    for value, events in zip(*np.unique(multiplicities, return_counts=True), strict=True):
        counts[int(value)] = counts.get(int(value), 0) + int(events)


def quantile_of(counts: dict[int, int], quantile: float) -> int:
    """Find the smallest value that at least the share ``quantile`` of the counted events do not exceed.

    Example: of {1: 5, 7: 4, 90: 1}, the quantile 0.9 is 7.
    """
    values = np.array(sorted(counts), np.int64)
    ends = np.cumsum([counts[int(value)] for value in values])
    return int(values[np.searchsorted(ends, quantile * ends[-1])])


def _scan(
    campaign: Campaign, name: str, reader: CheckedReader, progress: Progress
) -> Iterator[NDArray[np.uint32]]:
    """Yield the multiplicities of all events of the files that can be read; a split range has a table."""
    paths, record = campaign.paths, SplitRecord.of(campaign.paths, name)
    if record.is_whole():
        yield pq.read_table(record.folder / TABLE, columns=[MULTIPLICITY])[MULTIPLICITY].to_numpy()
        return
    raw = paths.raw(name)
    files = [file for file in read_ready(paths, campaign.config.source, name) if file.state == STAGED]
    total = sum(file.size for file in files)
    done = 0
    for file in files:
        check_present(raw, file)
        try:
            blocks = [events.multiplicity for events in reader.rows(raw / file.ready.path)]
            yield np.concatenate([np.zeros(0, np.uint32), *blocks])
        except FormatError as error:
            if campaign.config.source.on_bad_file == "fail":
                raise
            progress.message(f"left out of the threshold: {error}")
        done += file.size
        progress.update(f"threshold {name}", done, total)
