"""What ``crpipe plan`` sees of the source: listings, and one raw file through the configured reader."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.campaign.duplicates import ALLOW, Twins, find_twins
from crpipe.campaign.raw_files import Entry, count_listed, read_manifest
from crpipe.core.causes import is_present
from crpipe.core.errors import (
    ConfigError,
    FormatError,
    ListingError,
    PlaceError,
    PluginError,
    SourceError,
)
from crpipe.report.estimates import SourceLook
from crpipe.source.convert import convert_sample
from crpipe.source.preview import (
    Listings,
    PreviewDeadline,
    fetch_sample,
    find_same,
    is_remote,
    list_now,
    smallest,
    typical,
)
from crpipe.source.range_files import describe_files
from crpipe.source.suggestions import spread
from crpipe.source.uris import SourceOptions, host_and_path, scheme_of
from crpipe.split.preview import FileSample, read_sample

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.readers import ReaderChoice

_COMPARED = 200_000  # files in manifests that are compared with each other


def look_at_source(campaign: Campaign, *, offline: bool = False) -> SourceLook:
    """List what the source holds of the ranges without a manifest, and read one of their files."""
    config, paths = campaign.config, campaign.paths
    new = [name for name in config.all_ranges() if not is_present(paths.manifest(str(name)))]
    listings = list_now(config, new, offline=offline)
    missing = _missing_tables(campaign)
    listings.problems += missing
    readable = bool(listings.files) and not missing
    file = _read_one(campaign, listings, remote=is_remote(config, new)) if readable else None
    twins = find_twins(paths, campaign.ranges) or _same(campaign, listings)
    if twins is not None and config.ranges.duplicates == "refuse":
        listings.problems.append(f"{twins.describe()}; {twins.remedy()}")
    elif twins is not None:
        listings.warnings.append(f"{twins.describe()} ({ALLOW})")
    return SourceLook(
        listed={
            name: (len(entries), sum(entry.size or 0 for entry in entries))
            for name, entries in listings.files.items()
        },
        file=file,
        notes=tuple(listings.notes),
        warnings=tuple(listings.warnings),
        problems=tuple(listings.problems),
    )


def _missing_tables(campaign: Campaign) -> list[str]:
    """Describe side tables of this machine that were not copied yet, and are not where source.tables says."""
    config, deadline, problems = campaign.config, PreviewDeadline(), []
    tables = {} if config.simulates() else config.source.tables
    for name, uri in tables.items():
        if scheme_of(uri) == "file" and name not in campaign.reader.tables:
            try:
                describe_files(SourceOptions.of(config), [uri], [uri], f"source.tables.{name}", deadline)
            except ListingError as error:
                problems.append(str(error))
    return problems


def _same(campaign: Campaign, listings: Listings) -> Twins | None:
    """Find files of the same content among those listed now or before, as far as they are on this machine."""
    manifests = {name: campaign.paths.manifest(name) for name in campaign.ranges}
    before = {name: count_listed(path) for name, path in manifests.items() if is_present(path)}
    listed = dict(listings.files)
    if not campaign.config.simulates() and sum(before.values()) <= _COMPARED:
        listed |= {name: read_manifest(manifests[name]) for name in before}
    return find_same(listed)


def _read_one(campaign: Campaign, listings: Listings, *, remote: bool) -> FileSample | None:
    """Read one file; what is wrong with it becomes a problem, what keeps it away a note."""
    config = campaign.config
    choose = smallest if remote or config.source.convert else typical
    entry = choose(next(iter(listings.files.values())))
    if entry is None:
        listings.problems.append("the files of the first range are empty: 0 bytes; check source.uri")
        return None
    limit = config.split.outlier_above if config.split.quantile is None else None
    try:
        choice = _reader(campaign)
        if remote or config.source.convert:
            sample, illegal = _read_copy(campaign, choice, entry, limit)
        else:
            entries = [each for listed in listings.files.values() for each in listed]
            uris = dict.fromkeys(each.uri for each in (entry, *spread(entries)))
            sample, illegal = read_sample(choice, [Path(host_and_path(uri)[1]) for uri in uris], limit)
    except (FormatError, PluginError) as error:
        # One bad file may be set aside by the split; with `fail` it would end it.
        aside = config.source.on_bad_file == "quarantine"
        (listings.warnings if aside else listings.problems).append(str(error))
    except PlaceError as error:
        listings.problems.append(str(error))
    except (SourceError, ConfigError) as error:
        (listings.warnings if config.source.convert else listings.notes).append(f"no file was read: {error}")
    else:
        if illegal and config.split.on_bad_event == "reject":
            left_out = "such events are left out (split.on_bad_event: reject)"
            listings.warnings.append(f"{entry.uri}: {illegal}; {left_out}")
        elif illegal:
            listings.problems.append(
                f"{entry.uri}: {illegal}; the split would stop there: have the file made again, or leave "
                "such events out with split.on_bad_event: reject"
            )
        return replace(sample, name=entry.uri)
    return None


def _read_copy(
    campaign: Campaign, choice: ReaderChoice, entry: Entry, limit: int | None
) -> tuple[FileSample, str]:
    """Fetch a file, convert it where that is asked for, and read it; errors name the file in the source."""
    source = campaign.config.source
    with tempfile.TemporaryDirectory() as folder:
        copy = file = Path(folder) / Path(entry.path).name
        fetch_sample(campaign.config, entry, copy)  # a command may delete or change what it is given
        try:
            if source.convert:
                (output := Path(folder, ".converted")).mkdir()
                file = convert_sample(source, copy, output)
            sample, illegal = read_sample(choice, [file], limit)
        except (FormatError, PluginError, SourceError) as error:
            text = str(error).replace(str(file), entry.uri).replace(str(copy), entry.uri)
            raise type(error)(text) from error
        return (replace(sample, bytes=entry.size or 0) if source.convert else sample), illegal


def _reader(campaign: Campaign) -> ReaderChoice:
    """Return the reader with its side tables; local ones are read where they are until they are staged."""
    choice = campaign.reader
    needed = choice.needs()
    here = {
        name: Path(host_and_path(uri)[1])
        for name, uri in campaign.config.source.tables.items()
        if name in needed and scheme_of(uri) == "file"
    }
    return replace(choice, tables={**here, **choice.tables})
