"""What ``crpipe plan`` sees of the source: listings, and one raw file through the configured reader."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.cli.jobs.data import configured_reader
from crpipe.cli.jobs.source import source_options
from crpipe.core.errors import ConfigError, ForeignError, FormatError, SourceError
from crpipe.report.plan.job import SeenFile, SourceLook
from crpipe.source.look.listings import LookJob, look
from crpipe.source.look.one_file import bring, smallest, typical
from crpipe.source.options import SourcePattern
from crpipe.source.uris import host_and_path, scheme_of
from crpipe.split.look.sample import FileSample, read_sample
from crpipe.split.readers import ReaderChoice, open_reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.config.loading import Config
    from crpipe.core.raw_files import Entry
    from crpipe.source.look.listings import Listings

_COUNTED = 8  # files whose events are counted
_ATTEMPTS = 2  # a person waits


def look_at_source(config: Config, *, offline: bool = False) -> SourceLook:
    """List what the source holds of the ranges without a manifest, and read one of their files."""
    source, paths = config.source, config.paths()
    job = LookJob(
        pattern=SourcePattern(source.uri, source.files),
        ranges=tuple(name for name in config.all_ranges() if not paths.manifest(str(name)).exists()),
        min_files=source.min_files,
        max_files=source.max_files,
        source=replace(source_options(config), attempts=_ATTEMPTS),
    )
    listings = look(job, offline=offline)
    file = _read_one(config, job, listings) if listings.found else None
    return SourceLook(
        listed={
            name: (len(entries), sum(entry.size or 0 for entry in entries))
            for name, entries in listings.found.items()
        },
        file=file,
        notes=tuple(listings.notes),
        warnings=tuple(listings.warnings),
        problems=tuple(listings.problems),
    )


def _read_one(config: Config, job: LookJob, listings: Listings) -> SeenFile | None:
    """Read one file; what is wrong with it becomes a problem, what keeps it away a note."""
    entries = [entry for found in listings.found.values() for entry in found]
    choose = smallest if job.is_remote else typical
    first = choose(next(iter(listings.found.values())))
    if first is None:
        listings.problems.append("the files of the first range are empty: 0 bytes; check source.uri")
        return None
    try:
        choice = _reader(config)
        if not job.is_remote:
            uris = dict.fromkeys(entry.uri for entry in (first, *_spread(entries)))
            files = [Path(host_and_path(uri)[1]) for uri in uris]
            return _seen(config, choice, first.uri, read_sample(choice, files))
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / Path(first.path).name
            bring(first, copy, job.source)
            return _sampled(config, choice, copy, first.uri)
    except (FormatError, ForeignError) as error:
        # One bad file may be set aside by the split; with `fail` it would end it.
        aside = config.source.on_bad_file == "quarantine"
        (listings.warnings if aside else listings.problems).append(str(error))
    except (SourceError, ConfigError) as error:
        listings.notes.append(f"no file was read: {error}")
    return None


def _sampled(config: Config, choice: ReaderChoice, copy: Path, uri: str) -> SeenFile:
    """Read a copy; an error names the file in the source."""
    try:
        return _seen(config, choice, uri, read_sample(choice, [copy]))
    except (FormatError, ForeignError) as error:
        raise type(error)(str(error).replace(str(copy), uri)) from error


def _spread(entries: Sequence[Entry]) -> list[Entry]:
    """Choose files evenly over all ranges, those of the first and last among them."""
    count = min(_COUNTED, len(entries))
    places = {round(place * (len(entries) - 1) / max(1, count - 1)) for place in range(count)}
    return [entries[place] for place in sorted(places)]


def _reader(config: Config) -> ReaderChoice:
    """Return the reader with its side tables; local ones are read where they are until they are staged."""
    choice = configured_reader(config)
    if choice is None:
        raise ConfigError("source.reader: not set")
    needed = open_reader(choice.name, choice.options).needs
    here = {
        name: Path(host_and_path(uri)[1])
        for name, uri in config.source.tables.items()
        if name in needed and scheme_of(uri) == "file"
    }
    return ReaderChoice(choice.name, choice.options, {**here, **choice.tables})


def _seen(config: Config, choice: ReaderChoice, uri: str, sample: FileSample) -> SeenFile:
    counts = sample.multiplicities
    limit = config.split.threshold if config.split.quantile is None else None
    below = float((counts <= limit).mean()) if limit is not None and len(counts) else 1.0
    return SeenFile(
        name=uri,
        reader=choice.name,
        columns=sample.columns,
        files=sample.files,
        bytes=sample.bytes,
        events=sample.events,
        items=sample.items,
        rows=len(counts),
        groups=sample.groups,
        doubt=sample.doubt,
        largest=int(counts[counts <= limit].max(initial=0)) if limit else int(counts.max(initial=0)),
        below=below,
    )
