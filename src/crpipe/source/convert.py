"""Convert the raw copies of one range with the command of ``source.convert``, where no reader reads them.

An output counts once the reader has read it whole; then its name appears, and later calls keep it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.campaign.raw_files import (
    CONVERTED,
    STAGED,
    Entry,
    StagedFile,
    Verification,
    conversion_key,
    lease_folder,
    read_staged,
    write_staged,
)
from crpipe.campaign.raw_proofs import check_present
from crpipe.campaign.split_record import SplitRecord
from crpipe.config.combinations import fill_command
from crpipe.core import checksums
from crpipe.core.causes import is_plain
from crpipe.core.errors import ConfigError, FormatError, HostMemoryError, SourceError
from crpipe.core.files import disk_errors, make_folder, publish, refuse_links, remove_tree
from crpipe.core.lease import lease
from crpipe.core.text import Progress, counted, printable, shorten
from crpipe.source.copies import MOST_BAD, WORK, VerificationLog, check_free_space
from crpipe.source.retries import run_concurrently
from crpipe.source.stage import stage_range
from crpipe.source.uris import SourceOptions

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.raw_files import RawFile
    from crpipe.config.sections import SourceSection

_TRIES = 2  # of a file, one after the other
_VERIFIED = "converted"
_LINES, _WIDTH = 3, 200  # of a log in a message
_SAMPLE_S = 60.0  # a person waits
# One process of the group ends all of it once a pipe closes, which this process holds open until it dies.
_GUARD = "exec 3<&0 </dev/null\n(read -r _ <&3; kill -9 0) &\nexec 3<&-\n"
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


def convert_range(campaign: Campaign, name: str, progress: Progress) -> None:
    """Convert the staged files of a range, several at once, then write the table of the results.

    What an earlier attempt converted is kept where raw file and command are the same. Raise ConfigError
    without a command, FormatError for a file that cannot be converted (under ``source.on_bad_file:
    quarantine``: when too many cannot), SourceError when no file can any more, MachineError where the disk or
    the memory is too small, LeaseError when another job works on the range.
    """
    paths, raw = campaign.paths, campaign.paths.raw(name)
    if not campaign.config.source.convert:
        raise ConfigError("source.convert: not set; nothing to do, the reader reads the raw files")
    files = read_staged(paths.staged(name))
    if SplitRecord.of(paths, name).is_whole():
        write_staged(paths.converted(name), [])
        progress.message(f"{name}: already split, nothing is converted")
        return
    if any((raw / file.path).is_symlink() for file in files):  # staged when no command was to read them
        stage_range(campaign, name, progress)
        files = read_staged(paths.staged(name))
    with lease(lease_folder(raw), say=progress.message):
        conversions = _Conversions(campaign, name, files, progress)
        asyncio.run(conversions.run())
        write_staged(paths.converted(name), conversions.rows())
    aside = f"; {len(conversions.bad)} set aside" if conversions.bad else ""
    progress.message(f"{name}: {counted(len(conversions.done), 'file')} converted and read whole{aside}")


def convert_sample(source: SourceSection, file: Path, folder: Path) -> Path:
    """Convert one file into a folder, for a look at it; raise SourceError saying why that fails."""
    output, log = folder / f"{file.name}{source.convert_suffix}", folder / ".log"
    limit = min(_SAMPLE_S, source.convert_timeout_s)
    if why := asyncio.run(_run(_command(source, file, output), output, log, limit)):
        raise SourceError(f"{file}: source.convert {why}{_last_lines(log)}")
    return output


class _Conversions:
    """One attempt to have an output of every staged file; ``run`` does it.

    done: outputs by the paths of the raw files. bad: reasons of the files that are set aside.
    """

    def __init__(self, campaign: Campaign, name: str, files: list[RawFile], progress: Progress) -> None:
        self._paths, self._source = campaign.paths, campaign.config.source
        self._name, self._progress = name, progress
        self._raw = self._paths.raw(name)
        self._folder = self._raw / CONVERTED
        self._files = [file for file in files if file.state == STAGED]
        self._aside, self._total = len(files) - len(self._files), len(files)
        self._reader = campaign.reader.open()
        self._width = min(campaign.config.resources.convert.cpus, len(os.sched_getaffinity(0)))
        self._log = VerificationLog(self._folder, SourceOptions.of(campaign.config))
        self._suspects: list[tuple[RawFile, FormatError]] = []
        self.done: dict[str, Verification] = {}
        self.bad: dict[str, str] = {}

    def rows(self) -> list[StagedFile]:
        """Return the rows of the table: a proof of each output, or why there is none."""
        return [
            StagedFile(
                replace(self._entry(file), path=file.path),
                self.done.get(file.path),
                self.bad.get(file.path, ""),
            )
            for file in self._files
        ]

    async def run(self) -> None:
        """Convert what no earlier attempt has; when this returns, every output is on the disk."""
        refuse_links(self._raw, self._folder)
        with disk_errors(self._folder):
            remove_tree(self._folder / WORK)
            make_folder(self._folder / WORK)
        kept = self._log.keep(map(self._entry, self._files))
        self.done = {file.path: proof for file in self._files if (proof := kept.get(self._entry(file).path))}
        if self.done:
            text = f"{len(self.done)} of {len(self._files)} files are converted already"
            self._progress.message(f"{self._name}: {text}")
        self._turn = asyncio.Lock()  # a reader reads one file at a time
        with self._log:
            wanted = [file for file in self._files if file.path not in self.done]
            await run_concurrently(wanted, self._one, self._width)
            if self._suspects:
                await self._probe(self._suspects[-1][1])
        for file, error in self._suspects:
            self.bad[file.path] = str(error)
            self._progress.message(f"{self._name}: set aside: {error}")

    def _entry(self, file: RawFile) -> Entry:
        """Return what an output follows from, as an entry of the log of verified files."""
        return Entry(
            f"{file.path}{self._source.convert_suffix}", conversion_key(self._source, file), None, None
        )

    async def _one(self, file: RawFile) -> None:
        """Convert one file; when it fails again, suspect it where that is allowed."""
        for attempt in range(1, _TRIES + 1):
            try:
                await self._convert(file)
            except FormatError as error:
                if attempt == _TRIES:
                    self._suspect(file, error)
            else:
                break
        count = len(self.done) + len(self._suspects)
        self._progress.update(
            f"convert {self._name}", count, len(self._files), f"{len(self._suspects)} failed"
        )

    def _suspect(self, file: RawFile, error: FormatError) -> None:
        """Keep a file that failed for later; raise where none, or no more, may be set aside."""
        if self._source.on_bad_file == "fail":
            raise FormatError(
                f"{error}; repair the file or the command, or set such files aside with source.on_bad_file: "
                "quarantine"
            ) from error
        self._suspects.append((file, error))
        aside = self._aside + len(self._suspects)
        most = min(self._source.max_quarantined, int(MOST_BAD * self._total))
        if aside > most:
            raise FormatError(
                f"{self._name}: {counted(aside, 'bad file')}, at most {most} may be set aside "
                f"(source.max_quarantined, and half of those of the range, {self._total}); the last: {error}"
            ) from error

    async def _probe(self, failure: FormatError) -> None:
        """Convert a file once more that worked; raise SourceError where it fails now: no file is at fault."""
        # At least half of the files worked, or ``_suspect`` had raised.
        file = min((file for file in self._files if file.path in self.done), key=lambda file: file.size)
        try:
            await self._convert(file, keep=False)
        except FormatError as error:
            raise SourceError(
                f"{failure}; {file.path}, which was converted before, fails now, too: nothing is set aside"
            ) from error

    async def _convert(self, file: RawFile, *, keep: bool = True) -> None:
        """Convert one file in a folder of its own, read the output whole, and give it its name."""
        check_present(self._raw, file)
        source, log = self._raw / file.path, self._paths.convert_log(self._name, file.path)
        with disk_errors(log):
            make_folder(log.parent)
        with disk_errors(self._folder):
            work = Path(tempfile.mkdtemp(dir=self._folder / WORK))
        try:
            output = work / f"{source.name}{self._source.convert_suffix}"
            command = _command(self._source, source, output)
            why = await _run(command, output, log, self._source.convert_timeout_s)
            if not why:
                async with self._turn:
                    why = await asyncio.to_thread(self._refusal, output)
            if why:
                check_free_space(self._folder, 0, f"range {self._name}")
                raise FormatError(f"{file.uri}: source.convert {why}{_last_lines(log)} (all of it: {log})")
            if keep:
                await asyncio.to_thread(self._publish, file, output)
            log.unlink(missing_ok=True)
        finally:
            remove_tree(work)

    def _refusal(self, output: Path) -> str:
        """Read an output whole; return why the reader refuses it, or why it is none."""
        if output.is_symlink():  # what it leads to is not the output's own, and may be deleted
            return f"made {{out}} a link ({output.name}); write a file, as cp -L does"
        others = sorted(each.name for each in output.parent.iterdir() if each != output)
        if others and not self.done:  # of the first file alone
            unread = f"{', '.join(others[:3])} beside {output.name}, which is not read"
            self._progress.message(f"warning: {self._name}: source.convert also wrote {unread}")
        try:
            events = items = 0
            for block in self._reader.rows(output):
                events, items = events + len(block), items + len(block.items)
            totals = self._reader.totals(output)
        except FormatError as error:
            return f"made a file that is refused: {str(error).replace(str(output), output.name)}"
        if (events, items) != totals:
            counts = self._reader.layout.count
            return (
                f"made a file of {counts(*totals)} by its own account, and {counts(events, items)} were read"
            )
        return ""

    def _publish(self, file: RawFile, output: Path) -> None:
        entry = self._entry(file)
        final = self._log.file(entry.path)
        with disk_errors(final):
            make_folder(final.parent)
            size, checksum = output.stat().st_size, checksums.of_file(output, checksums.OWN)
            publish(output, final)
        proof = Verification(size, checksum, checksums.OWN, _VERIFIED)
        self._log.add(entry, proof)
        self.done[file.path] = proof


def _command(source: SourceSection, file: Path, output: Path) -> str:
    return fill_command(source.convert, str(file.absolute()), str(output.absolute()))


async def _run(command: str, output: Path, log: Path, timeout_s: float) -> str:
    """Run a command of the shell that makes a file; return why there is none, or nothing.

    Its process group ends with it, after the time limit, and when this process dies. Raise HostMemoryError
    where it was killed.
    """
    begin, end = os.pipe()
    try:
        try:
            with disk_errors(log), log.open("wb") as printed:
                process = await asyncio.create_subprocess_exec(
                    "/bin/sh",
                    "-c",
                    _GUARD + command,
                    stdin=begin,
                    stdout=printed,
                    stderr=printed,
                    start_new_session=True,
                )
        finally:
            os.close(begin)
        try:
            async with asyncio.timeout(timeout_s):
                code = await process.wait()
        except TimeoutError:
            return f"did not end within {timeout_s:g} s (source.convert_timeout_s)"
        finally:
            with contextlib.suppress(ProcessLookupError):
                # The guard is in the group, so nobody else has its number.
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    finally:
        os.close(end)
    if code in _KILLED:
        raise HostMemoryError(
            f"{output.name}: source.convert was killed, most likely for lack of memory; set "
            "resources.convert.mem_mb higher or resources.convert.cpus lower, then run the same command again"
        )
    if code:
        return f"ended with exit code {code}"
    return "" if is_plain(output) else f"ended well and wrote no {{out}} ({output.name})"


def _last_lines(log: Path) -> str:
    """Quote the end of what a command printed."""
    lines = [line.strip() for line in log.read_bytes()[-4096:].decode(errors="replace").splitlines()]
    last = " | ".join(shorten(printable(line), _WIDTH) for line in list(filter(None, lines))[-_LINES:])
    return f"; its last lines: {last}" if last else "; it printed nothing"
