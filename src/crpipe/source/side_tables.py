"""Stage the side tables of ``source.tables`` once: verified, hashed, and refused when their content changes.

Out: a copy of each in results/tables/ and their record, tables.json, which appears when all are there.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import SIZE_ONLY, Entry
from crpipe.campaign.raw_proofs import written
from crpipe.campaign.records import SideTable, SideTables, read_tables
from crpipe.campaign.simulators import PREFIX, named, open_simulator, written_tables
from crpipe.core.causes import is_plain, is_present
from crpipe.core.errors import AccessError, ConfigError, ListingError
from crpipe.core.files import disk_errors, make_folder, publish, remove_tree, sha256
from crpipe.core.lease import lease
from crpipe.core.text import counted
from crpipe.source.checksum_lists import add_listed
from crpipe.source.copies import Copies, CopyRules, check_free_space, is_reserved
from crpipe.source.range_files import describe_files, entries_of
from crpipe.source.retries import Deadline
from crpipe.source.uris import (
    REMOTE,
    SYNTHETIC,
    WILDCARDS,
    RangeSource,
    SourceOptions,
    host_and_path,
    scheme_of,
    written_path,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.config.loading import Config
    from crpipe.core.paths import Paths
    from crpipe.core.text import Progress

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_COMPRESSED = {".gz", ".bz2", ".xz", ".zst"}


@dataclass(slots=True)
class _Table:
    """One table on its way: URI, size and time in the source, and where its content is once it is copied."""

    name: str
    uri: str
    copy: str  # name of the copy
    size: int
    mtime: str | None
    file: Path | None = None
    verified: str = "generated"
    entry: Entry | None = None  # None for a table that the simulator wrote

    def row(self, folder: Path, record: Path) -> SideTable:
        """Return what is recorded about it."""
        assert self.file is not None
        return SideTable(
            uri=self.uri,
            path=str((folder / self.copy).relative_to(record.parent)),
            size=self.size,
            sha256=sha256(self.file),
            mtime=self.mtime,
            verified=self.verified,
        )


def check_table_uris(uris: Mapping[str, str]) -> None:
    """Raise ConfigError for a name or a URI that cannot be a side table."""
    for name, uri in uris.items():
        key = f"source.tables.{name}"
        if not _NAME.fullmatch(name):
            raise ConfigError(f"source.tables: {name!r}: a name has letters, digits and _, a letter first")
        if uri.startswith(PREFIX):
            if uri != PREFIX:
                raise ConfigError(
                    f"{key}: {uri}: write synthetic:// alone; source.simulator writes the table"
                )
        elif (WILDCARDS | set("{}")) & set(written_path(uri, key)):
            raise ConfigError(f"{key}: {uri}: names one file; a pattern or a placeholder cannot be used here")


def check_tables(record: Path, uris: Mapping[str, str]) -> None:
    """Raise ConfigError when a side table on this machine changed after it was staged.

    Cheap: size and time are compared first, and contents only where the time differs. A remote table is
    compared when `crpipe tables` runs again.
    """
    for name, row in read_tables(record).items():
        uri = uris.get(name, "")
        if uri != row.uri or scheme_of(uri, f"source.tables.{name}") != "file":
            continue
        file = Path(host_and_path(uri)[1])
        if not is_plain(file):
            continue  # the verified copy is what jobs read
        status = file.stat()
        same_time = written(status).isoformat() == row.mtime
        if status.st_size != row.size or not (same_time or sha256(file) == row.sha256):
            raise _changed([uri], record)


def stage_tables(campaign: Campaign, progress: Progress) -> None:
    """Stage a verified copy of each side table, and record their hashes.

    Copies that are still what was recorded are kept. Raise ConfigError when the content under a URI is no
    longer what was recorded, ListingError or TransferError when a table is missing or cannot be read.
    """
    config, record = campaign.config, campaign.paths.tables()
    folder = campaign.paths.table_copies()
    check_table_uris(config.source.tables)
    with lease(folder, say=progress.message):
        before = read_tables(record)
        incoming = folder / ".incoming"
        tables = _simulated(config, incoming / "simulated", progress)
        tables += _look_up(config, {table.name for table in tables}, progress)
        recorded = {table.name: row for table in tables if (row := _row_of(before, table))}
        changed = [
            table.uri
            for table in tables
            if table.name in recorded and recorded[table.name].size != table.size
        ]
        if changed:
            raise _changed(changed, record)
        wanted = [table for table in tables if not _is_kept(campaign, recorded.get(table.name), table)]
        _copy(campaign, wanted, incoming / "copied", progress)
        rows = recorded | {table.name: table.row(folder, record) for table in wanted}
        _publish(campaign.paths, wanted, rows, recorded)
        if rows != before or not is_present(record):
            SideTables(rows=rows).write(record)
        remove_tree(incoming)
    kept = len(tables) - len(wanted)
    progress.message(f"tables: {counted(len(tables), 'file')}, {len(wanted)} staged, {kept} verified again")


def _simulated(config: Config, folder: Path, progress: Progress) -> list[_Table]:
    """Write the simulator's tables; they win over configured ones, because its files need them."""
    if not config.simulates():
        return []
    remove_tree(folder)
    simulator = open_simulator(config.source.simulator, config.options("simulator"))
    written = written_tables(simulator, folder)
    check_table_uris(dict.fromkeys(written, PREFIX))
    for name, uri in config.source.tables.items():
        if uri == PREFIX and name not in written:
            raise ConfigError(
                f"source.tables.{name}: {named(simulator)} writes no table of this name (only: "
                f"{', '.join(written) or 'none'}); name a file"
            )
        if uri != PREFIX and name in written:
            progress.message(f"tables: {name}: written by {named(simulator)}; {uri} is not used")
    return [
        _Table(name, f"{PREFIX}{name}", _copy_name(name, path.name), path.stat().st_size, None, path)
        for name, path in sorted(written.items())
    ]


def _look_up(config: Config, simulated: set[str], progress: Progress) -> list[_Table]:
    """Ask the sources for size and time of each table; raise ListingError for the first that is missing."""
    options = SourceOptions.of(config)
    deadline = Deadline(options.deadline_s, "staging of the side tables", progress.message)
    tables = []
    for name, uri in sorted(config.source.tables.items()):
        key = f"source.tables.{name}"
        if name in simulated:
            continue
        if scheme_of(uri, key) == SYNTHETIC:
            raise ConfigError(f"{key}: {uri}: the raw files are not simulated; name a file")
        copy = _copy_name(name, host_and_path(uri, key)[1])
        entry = replace(_entry_of(uri, key, options, deadline), path=copy)
        mtime = entry.mtime.isoformat() if entry.mtime else None
        tables.append(_Table(name, uri, copy, entry.size or 0, mtime, entry=entry))
    return tables


def _entry_of(uri: str, key: str, options: SourceOptions, deadline: Deadline) -> Entry:
    """Ask for size and time of one table; data servers name the time in listings only."""
    if scheme_of(uri, key) in REMOTE:
        host, path = host_and_path(uri, key)
        folder, _, file = path.rpartition("/")
        location = RangeSource(scheme_of(uri, key), host, folder or "/", file, key, f"correct {key}")
        with contextlib.suppress(ListingError, AccessError):  # a site may refuse listings alone
            for entry in entries_of(options, location, file.__eq__, deadline):
                return entry
    return describe_files(options, [uri], [uri], key, deadline)[0]


def _copy_name(name: str, path: str) -> str:
    """Name a copy: the table's name with the suffix of its file, ``geometry.csv.gz``."""
    suffixes = PurePosixPath(path).suffixes
    kept = suffixes[-2:] if suffixes and suffixes[-1] in _COMPRESSED else suffixes[-1:]
    copy = name + "".join(kept)
    return f"{copy}.table" if is_reserved(copy) else copy


def _row_of(rows: Mapping[str, SideTable], table: _Table) -> SideTable | None:
    """Find what was recorded for the same URI; None when there is nothing."""
    row = rows.get(table.name)
    return row if row is not None and row.uri == table.uri else None


def _is_kept(campaign: Campaign, row: SideTable | None, table: _Table) -> bool:
    """Return whether the copy has the recorded hash, and the source what was recorded about it."""
    if row is None or row.mtime != table.mtime:
        return False
    if row.verified == SIZE_ONLY and SourceOptions.of(campaign.config).requires_checksum(table.uri):
        return False
    copy = campaign.paths.results / row.path
    if not is_plain(copy) or sha256(copy) != row.sha256:
        return False
    return table.file is None or sha256(table.file) == row.sha256


def _copy(campaign: Campaign, wanted: Sequence[_Table], folder: Path, progress: Progress) -> None:
    """Copy tables into ``folder``, beside the copies that earlier jobs made."""
    entries = [table.entry for table in wanted if table.entry is not None]
    if not entries:
        return
    rules = CopyRules("tables", "restore it, or correct source.tables")
    with disk_errors(folder):
        make_folder(folder)
    options = SourceOptions.of(campaign.config)
    entries = add_listed(options, entries, "tables", progress)
    copies = Copies(folder, entries, options, rules, progress)
    check_free_space(campaign.paths.table_copies(), copies.needed, "tables")
    copies.run()
    for table in wanted:
        if table.entry is not None:
            table.file = folder / table.copy
            table.verified = copies.done[table.copy].verified


def _publish(
    paths: Paths, tables: Sequence[_Table], rows: Mapping[str, SideTable], recorded: Mapping[str, SideTable]
) -> None:
    """Move new copies to their places, unless one differs from what was recorded."""
    hashes = {name: row.sha256 for name, row in rows.items()}
    changed = [
        table.uri
        for table in tables
        if table.name in recorded and recorded[table.name].sha256 != hashes[table.name]
    ]
    if changed:
        raise _changed(changed, paths.tables())
    for table in tables:
        assert table.file is not None
        with disk_errors(paths.table_copies()):
            publish(table.file, paths.table_copies() / table.copy)


def _changed(uris: Sequence[str], record: Path) -> ConfigError:
    return ConfigError(
        f"{', '.join(uris)}: changed since {record} was written; restore the old file, or set `results` to a "
        f"new directory (now {record.parent})"
    )
