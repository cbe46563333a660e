"""What came back for a pack, put into the campaign: the result of a link, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from crpipe.campaign.code import CodeRecord
from crpipe.campaign.records import LoadedWeights, PackFailure, PackRecord, Receipt
from crpipe.core import errors
from crpipe.core.causes import is_present
from crpipe.core.errors import CrpipeError, PackError
from crpipe.core.files import copy_file, write_text
from crpipe.core.journal import Journal
from crpipe.core.lease import lease
from crpipe.core.text import counted
from crpipe.packs.archive import BRING_AGAIN, FAILED, LINK_OUT, RANGE_OUT, read_record, unpacked
from crpipe.packs.links import RUNS, newest_step
from crpipe.report.tensorboard import curve_of, drop_moved
from crpipe.train.link_start import key_of, start_of

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.ranges import ChainLink
    from crpipe.core.text import Progress


def unpack(
    campaign: Campaign, pack: Path, progress: Progress, *, remove: bool = False, spent: Path | None = None
) -> None:
    """Put what came back for a link or a range into the campaign, the file that others trust last.

    Safe to kill and to run again. remove: delete the pack once it is of no more use: the next workflow then
    does the work again where it failed; one of another version of crpipe stays. spent: file that marks a pack
    of which another copy, wherever it is, is of no use either. Raise PackError when it is not whole, or of
    another key than what is here gives; and a failure of the node as the error that it was, once its snapshot
    is here.
    """
    try:
        failure = _unpack(campaign, pack, progress)
    except PackError as error:
        if remove and not error.foreign:
            _use_up(pack, None if error.damaged else spent)
        raise
    if remove:
        _use_up(pack, None if failure is None else spent)
    if failure is not None:
        raise_failure(failure, progress)


def _use_up(pack: Path, mark: Path | None) -> None:
    """Mark a pack, if it is to be marked, and then delete it."""
    if mark is not None:
        write_text(mark, "")
    pack.unlink(missing_ok=True)


def _unpack(campaign: Campaign, pack: Path, progress: Progress) -> PackFailure | None:
    record = read_record(pack, (LINK_OUT, RANGE_OUT), BRING_AGAIN)
    if not record.name:  # a node that could not even read its pack
        return _failure_alone(campaign, pack)
    if record.kind == LINK_OUT:
        return _unpack_link(campaign, pack, record, progress)
    # The readers' libraries take half a second, and a link needs none of them.
    from crpipe.packs.ranges import unpack_range  # noqa: PLC0415

    return unpack_range(campaign, pack, record, progress)


def _failure_alone(campaign: Campaign, pack: Path) -> PackFailure:
    with unpacked(pack, campaign.paths.run_dir(), (LINK_OUT, RANGE_OUT)) as folder:
        return PackFailure.read(folder / FAILED)


def _unpack_link(
    campaign: Campaign, pack: Path, record: PackRecord, progress: Progress
) -> PackFailure | None:
    """Put what came back for a link into its run; return why its work failed, if it did."""
    name, paths = record.name, campaign.paths
    link = campaign.chain.named(name)
    start = start_of(campaign, link)
    key = key_of(campaign, link, start)
    if (record.run, record.key) != (paths.run, key):
        raise PackError(
            f"{pack}: of run {record.run} and key {record.key}, and link {name} of run {paths.run} has "
            f"the key {key} here: the link before it was trained again since, or keys changed; pack it again "
            f"(crpipe pack {name} --out FILE)"
        )
    with (
        lease(paths.store(name), say=progress.message),
        unpacked(pack, paths.store(name), (LINK_OUT,)) as incoming,
    ):
        parent = start.sha256 if start else ""
        return _Returned(campaign, link, key, parent, incoming, record).take(progress)


def raise_failure(failure: PackFailure, progress: Progress) -> None:
    """Raise the error that ended the work on a node, after the last lines that it printed there."""
    for line in failure.log:
        progress.message(f"{failure.host} | {line}")
    kind = getattr(errors, failure.kind, None)
    text = f"{failure.error} (on {failure.host})"
    if isinstance(kind, type) and issubclass(kind, CrpipeError):
        raise kind(text)
    error = CrpipeError(f"{failure.kind}: {text}")
    error.exit_code = failure.exit_code
    raise error


@dataclass(frozen=True, slots=True)
class _Returned:
    """The files that came back for a link, unpacked and verified in ``incoming``."""

    campaign: Campaign
    link: ChainLink
    key: str
    parent: str
    incoming: Path
    record: PackRecord

    def take(self, progress: Progress) -> PackFailure | None:
        """Put the files in their targets; return why the work failed, if it did."""
        paths, name = self.campaign.paths, self.link.name
        targets = self._targets()
        failure = PackFailure.read_if_any(self.incoming / FAILED)
        receipt = None if failure else self._receipt(targets)
        with_journal = self.incoming / self._in_run("journal.jsonl")
        if is_present(with_journal):
            Journal(paths.train_journal()).merge(with_journal)
        here = Receipt.read_if_any(paths.receipt(name))
        if here is not None and here.key == self.key and is_present(paths.store(name) / here.checkpoint):
            progress.message(f"{name}: already finished here; what came back again is left out")
            return None
        came = self.incoming / self._in_run(f"store/{name}")
        if failure is not None and newest_step(paths.store(name), self.key) > newest_step(came, self.key):
            return failure
        for old in paths.store(name).glob(f"checkpoint-{self.key}-*.pt"):
            old.unlink()
        for file, target in targets.items():
            if target not in (paths.receipt(name), paths.run_code(), paths.init_from()):
                copy_file(self.incoming / file, target)
        drop_moved(paths, self.campaign.chain)
        self._take_records()
        if receipt is not None:
            for old in paths.store(name).glob(f"snapshot-{self.key}-*.pt"):
                old.unlink()
            receipt.write(paths.receipt(name))
            progress.message(
                f"{name}: trained, {counted(receipt.step, 'step')} so far; its checkpoint and "
                "receipt are here"
            )
        return failure

    def _in_run(self, name: str) -> str:
        return f"{RUNS}/{self.record.run}/{name}"

    def _targets(self) -> dict[str, Path]:
        """Return where each file of the pack belongs; raise PackError for one that belongs nowhere."""
        paths, name, prefix = self.campaign.paths, self.link.name, self._in_run("")
        whole = {paths.receipt(name), paths.best_receipt(name), paths.init_from(), paths.run_code()}
        events = f"events.out.tfevents.{curve_of(self.campaign.chain, name)}"
        targets = {}
        for file in self.record.files:
            target = paths.run_dir() / file.removeprefix(prefix)
            if file in (FAILED, self._in_run("journal.jsonl")):
                continue
            if not file.startswith(prefix) or not (
                target in whole
                or target.parent == paths.store(name)
                or (target.parent, target.name) == (paths.tensorboard(), events)
            ):
                raise PackError(
                    f"{file}: no file of link {name}; this pack was not made by crpipe train --pack"
                )
            targets[file] = target
        return targets

    def _receipt(self, targets: dict[str, Path]) -> Receipt:
        """Read the receipt that came back; raise PackError where it does not fit the rest."""
        path = self.campaign.paths.receipt(self.link.name)
        file = next((name for name, target in targets.items() if target == path), None)
        if file is None:
            raise PackError(f"{self.link.name}: a result without a receipt; run its job again")
        receipt = Receipt.read(self.incoming / file)
        checkpoint = self.record.files.get(self._in_run(f"store/{self.link.name}/{receipt.checkpoint}"))
        named = receipt.key, receipt.parent, receipt.range, receipt.sha256
        if named != (self.key, self.parent, self.link.name, checkpoint.sha256 if checkpoint else ""):
            raise PackError(
                f"{self.link.name}: the receipt that came back does not fit its checkpoint; run its job again"
            )
        return receipt

    def _take_records(self) -> None:
        """Take the records of the run that a node went on with: its code, and which weights it began with."""
        paths = self.campaign.paths
        code = CodeRecord.read_if_any(self.incoming / self._in_run(paths.run_code().name))
        here = CodeRecord.read_if_any(paths.run_code())
        if code is not None and (here is None or code.entries[: len(here.entries)] == here.entries):
            code.write(paths.run_code())
        loaded = LoadedWeights.read_if_any(self.incoming / self._in_run(paths.init_from().name))
        start = start_of(self.campaign, self.link)
        if loaded is not None and start is not None and not self.link.parent:
            replace(loaded, checkpoint=str(start.path)).write(paths.init_from())
