"""Copy one range next to the results: each file verified before its name appears, resumed after any crash."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from crpipe.core.errors import DiskError, SourceError, TransferError
from crpipe.core.files import GIB, free_bytes, tree_bytes, writing
from crpipe.core.lease import lease
from crpipe.core.raw_files import Entry, Proof, StagedFile, read_manifest, write_staged
from crpipe.source.flush import Flush, Steps
from crpipe.source.retries import Deadline, Transient, each, persist
from crpipe.source.sources import open_source
from crpipe.source.uris import host_and_path, scheme_of
from crpipe.source.verified import PART, Proofs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.progress import Progress
    from crpipe.core.ranges import Range
    from crpipe.source.sources import Source

RESERVE = 1 << 28  # bytes of the disk that copies never take: journals and manifests must still be written


def stage_range(config: Config, name: Range, progress: Progress) -> None:
    """Make a verified copy of every file in the range's manifest, then write the staged table.

    Copies that an earlier attempt verified are kept. Raise DiskError before the first byte when they cannot
    fit, LeaseError when another job stages the range, TransferError naming the file that cannot be copied
    (or, under ``source.on_bad_file: quarantine``, when too many cannot).
    """
    paths = config.paths()
    entries = read_manifest(paths.manifest(str(name)))
    folder = paths.raw(str(name))
    with lease(folder, wait_s=config.source.lease_wait_s, say=progress.say):
        proofs = Proofs(folder, require_checksum=config.source.require_checksum)
        proofs.begin(entries)
        kept = proofs.keep(entries)
        if kept:
            progress.say(f"{name}: {len(kept)} of {len(entries)} files are here already, verified again")
        _check_disk(config, name, sum(entry.size or 0 for entry in entries if entry.path not in kept))
        job = _Stage(config, name, progress, proofs, kept, entries)
        with proofs:
            asyncio.run(job.run())
        write_staged(paths.staged(str(name)), job.files())
    progress.say(job.summary())


def _check_disk(config: Config, name: Range, needed: int) -> None:
    """Raise DiskError when ``needed`` bytes do not fit on the disk or into the budget of raw copies."""
    staged = config.paths().raw(str(name)).parent
    free = free_bytes(staged) - RESERVE
    if needed > max(free, 0):
        raise DiskError(
            f"range {name}: {needed / GIB:.2f} GiB needed below {staged}, {max(free, 0) / GIB:.2f} GiB free; "
            "free some space, or set `results` to a larger disk"
        )
    ours = config.paths().raw(str(name))
    own = tree_bytes(ours)
    others = sum(
        _claimed(config, folder) for folder in staged.iterdir() if folder.is_dir() and folder != ours
    )
    if needed and others + own + needed > config.source.disk_budget_gib * GIB:
        raise DiskError(
            f"range {name}: {needed / GIB:.2f} GiB needed, raw copies already take "
            f"{(others + own) / GIB:.2f} of {config.source.disk_budget_gib:g} GiB (source.disk_budget_gib); "
            "split the staged ranges first, lower source.look_ahead, or raise the budget"
        )


def _claimed(config: Config, folder: Path) -> int:
    """Bytes that a range's raw copies take, or will take once a job that is still copying is done."""
    manifest = config.paths().manifest(folder.name)
    promised = sum(entry.size or 0 for entry in read_manifest(manifest)) if manifest.exists() else 0
    return max(promised, tree_bytes(folder))


class _Stage:
    """One attempt at one range."""

    def __init__(
        self,
        config: Config,
        name: Range,
        progress: Progress,
        proofs: Proofs,
        kept: dict[str, Proof],
        entries: Sequence[Entry],
    ) -> None:
        self._config = config.source
        self._campaign = config
        self._name = name
        self._progress = progress
        self._proofs = proofs
        self._done = dict(kept)
        self._entries = entries
        self._wanted = [entry for entry in entries if entry.path not in kept]
        self._folders = proofs.folders(entries)
        self._bad: dict[str, str] = {}
        self._bytes = 0
        self._copied = 0
        self._begin = time.monotonic()
        self._deadline = Deadline(self._config.deadline_minutes * 60, f"staging of range {name}")

    async def run(self) -> None:
        """Copy what is wanted; when this returns, every copy of the range is on the disk."""
        width = self._config.concurrency
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(width))
        self._steps, self._flush = Steps(), Flush()
        # An earlier attempt that was killed may not have come to that.
        for path, proof in self._done.items():
            await self._flush.add(self._proofs.file(path), proof.size)
        if self._wanted:
            await self._copy_all(width)
        await self._flush.finish(self._folders)

    async def _copy_all(self, width: int) -> None:
        for folder in self._folders:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        first = self._wanted[0].uri
        opening = open_source(self._campaign, scheme_of(first), host_and_path(first)[0], self._deadline)
        async with opening as source:
            await each(self._wanted, lambda entry: self._one(source, entry), width)

    async def _one(self, source: Source, entry: Entry) -> None:
        final = self._proofs.file(entry.path)
        part = final.with_name(final.name + PART)
        try:
            proof = await self._fetch(source, entry, part)
        except TransferError as error:
            part.unlink(missing_ok=True)
            self._set_aside(entry, error)
            return
        await self._steps.do(lambda: self._publish(entry, part, final, proof))
        self._count(entry, proof)
        await self._flush.add(final, proof.size)

    async def _fetch(self, source: Source, entry: Entry, part: Path) -> Proof:
        try:
            proof = await persist(
                lambda: source.fetch(entry, part),
                attempts=self._config.attempts,
                deadline=self._deadline,
            )
        except Transient as error:
            # A source that is out of reach says nothing about the file: it is never set aside for that.
            if error.outage:
                raise SourceError(
                    f"{entry.uri}: {error}; what is verified stays: run the same command again later"
                ) from error
            raise TransferError(
                f"{entry.uri}: {error}; run the same command again later, or set such files aside with "
                "source.on_bad_file: quarantine"
            ) from error
        if self._config.require_checksum and not proof.is_checked():
            raise TransferError(
                f"{entry.uri}: the source names no checksum, and source.require_checksum is on; turn it off "
                "to accept files by their size"
            )
        return proof

    def _publish(self, entry: Entry, part: Path, final: Path, proof: Proof) -> None:
        with writing(final):
            os.replace(part, final)  # noqa: PTH105 - that of pathlib parses the path again
        self._proofs.add(entry, proof)

    def _set_aside(self, entry: Entry, error: TransferError) -> None:
        if self._config.on_bad_file == "fail":
            raise error
        self._bad[entry.path] = str(error)
        self._progress.say(f"{self._name}: set aside: {error}")
        if len(self._bad) > self._config.max_quarantined:
            raise SourceError(
                f"range {self._name}: {len(self._bad)} bad files, at most {self._config.max_quarantined} may "
                f"be set aside (source.max_quarantined); the last: {error}"
            )

    def _count(self, entry: Entry, proof: Proof) -> None:
        self._done[entry.path] = proof
        self._copied += 1
        self._bytes += proof.size
        rate = self._bytes / 1e6 / max(time.monotonic() - self._begin, 1e-3)
        self._progress.advance(
            f"stage {self._name}", self._copied, len(self._wanted), f"{self._copied} files, {rate:.1f} MB/s"
        )

    def files(self) -> list[StagedFile]:
        """Rows of the staged table."""
        return [
            StagedFile(entry, self._done.get(entry.path), self._bad.get(entry.path, ""))
            for entry in self._entries
        ]

    def summary(self) -> str:
        """One line that says what stands now and how it was verified."""
        ways = [proof.verified for proof in self._done.values()]
        counts = ", ".join(f"{ways.count(way)} by {way}" for way in sorted(set(ways)))
        aside = f"; {len(self._bad)} set aside" if self._bad else ""
        return f"{self._name}: {len(self._done)} files staged, verified: {counts or 'none'}{aside}"
