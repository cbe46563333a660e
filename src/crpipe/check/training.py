"""The chain of training: receipts, checkpoints, evaluations and exports that follow from each other."""

from __future__ import annotations

import pickle
import shlex
import zipfile
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from crpipe.campaign.records import BestReceipt, EvaluationRecord, Receipt, read_slices
from crpipe.campaign.split_record import is_manifest_damaged
from crpipe.check.findings import (
    MALFORMED,
    differing,
    read_hashes,
    receipt_of,
    removing,
    retrain,
    train_again,
)
from crpipe.core.causes import is_present
from crpipe.core.errors import CheckpointError
from crpipe.core.files import digest, read_json, sha256
from crpipe.core.lease import is_held
from crpipe.core.paths import (
    CONSOLIDATED,
    EVALUATED,
    EVALUATED_KEY,
    FINISHED,
    KEY_DIGEST,
    MANIFEST,
    Paths,
)
from crpipe.core.ranges import HASH_DIGITS, ChainLink, checkpoint_key
from crpipe.core.text import counted
from crpipe.events.shard_manifest import changed_shards, open_manifest, shards_record
from crpipe.train.deleted_checkpoints import deleted_receipt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.check.findings import Agreed, CheckReport

# What a checkpoint says of itself, read without torch and without its tensors.


_STATE = "/data.pkl"  # torch.save writes a zip file: plain values in this one, each tensor in its own
_LEFT_OUT = ("model", "average", "optimizers")


class _Tensor:
    """Takes the place of a tensor and of everything else that is not a plain value."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _PlainValues(pickle.Unpickler):
    """Reads plain values; what else a file names is neither imported nor called."""

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Tensor

    def persistent_load(self, _: Any) -> Any:
        return _Tensor()


def checkpoint_metadata(path: Path) -> dict[str, Any]:
    """Read the keys, counters and metrics of a checkpoint; raise CheckpointError when it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(_STATE)]
            with archive.open(names[0]) as file:
                state = _PlainValues(file).load()
    except (zipfile.BadZipFile, pickle.UnpicklingError, IndexError, EOFError, TypeError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of crpipe ({error})") from error
    if not isinstance(state, dict) or "counters" not in state:
        raise CheckpointError(f"{path}: not a checkpoint of crpipe")
    return {name: value for name, value in state.items() if name not in _LEFT_OUT}


_COUNTERS = ("step", "events", "items", "skipped")


def check_link(report: CheckReport, campaign: Campaign, agreed: Agreed, name: str) -> None:
    """Check the receipts and the store of one link."""
    link, paths = campaign.chain.named(name), campaign.paths
    receipt, best = paths.receipt(name), paths.best_receipt(name)
    later = campaign.chain.links[campaign.chain.links.index(link) + 1 :]
    if is_held(paths.store(name) / "lease"):
        report.note(f"link {name}", "a job trains it")
        return
    if not is_present(receipt):
        if any(
            is_present(paths.receipt(other.name)) and other.name not in agreed.replaced for other in later
        ):
            report.error(receipt, "missing, though later links are trained", train_again(paths, name))
        elif any(paths.store(name).glob("*.pt")):
            report.note(f"link {name}", "not finished")
        else:
            report.note(f"link {name}", "not trained yet")
        _check_snapshots(report, paths.store(name))
        return
    if name in agreed.replaced:
        report.note(
            f"link {name}", "to be trained again: it does not go on from the link that is before it now"
        )
        _check_snapshots(report, paths.store(name))
        return
    remedy = train_again(paths, name)
    row = report.read(Receipt.read, receipt, remedy)
    if row is None:
        return
    report.counts["links"] += 1
    with report.reading(receipt, remedy):
        _check_receipt(report, campaign, agreed, link, row)
        _check_best(report, campaign, link, row.key, best)
        _check_shards(report, campaign, link, row.key)
    _check_snapshots(report, paths.store(name))


def _check_receipt(
    report: CheckReport, campaign: Campaign, agreed: Agreed, link: ChainLink, row: Receipt
) -> None:
    """Compare a receipt with what follows from its link, the receipt before it, and its checkpoint."""
    paths = campaign.paths
    receipt, path = paths.receipt(link.name), paths.store(link.name) / row.checkpoint
    sha256, events = _parent(report, campaign, agreed, link)
    parent, fingerprint = row.parent if sha256 is None else sha256, agreed.fingerprint or row.fingerprint
    key = checkpoint_key(link.name, fingerprint, parent, link.ranges)
    expected = replace(
        row,
        range=link.name,
        ranges=link.ranges,
        round=link.round,
        key=key,
        checkpoint=f"checkpoint-{key}-{row.sha256[:HASH_DIGITS]}.pt",
        parent=parent,
        fingerprint=fingerprint,
    )
    state = _metadata_of(report, campaign, link, path, row)
    if state is not None:
        used = state.get("numerics", [])
        expected = replace(
            expected,
            metrics=state["metrics"],
            stopped=state.get("stopped"),
            numerics=[digest(each) for each in used] or None,
            unknown={},
            **{name: state["counters"][name] for name in _COUNTERS},
        )
        _note_numerics(report, campaign, link, used)
        _check_slices(report, campaign, link, expected, state["counters"]["range_step"])
        if state["range"] != link.name or (
            agreed.fingerprint and digest(state["keys"]) != agreed.fingerprint
        ):
            report.error(path, "was trained as another link, or under other keys", retrain(paths, link.name))
    wrong = differing(row.as_json(), expected.as_json())
    if wrong:
        report.error(receipt, wrong, train_again(paths, link.name))
    elif events is not None and row.stopped is None:
        _check_trained(report, campaign, agreed, link, row.events - events)


def _parent(
    report: CheckReport, campaign: Campaign, agreed: Agreed, link: ChainLink
) -> tuple[str | None, int | None]:
    """Return the hash of the checkpoint that a link began with, and the events trained on until then.

    Each is None where it cannot be known here.
    """
    if link.parent:
        row = receipt_of(campaign.paths.receipt(link.parent))
        return (row.sha256, row.events) if row else (None, None)
    begun = str(agreed.run_keys.get("train.init_from", ""))
    if not begun:
        return "", 0
    source = receipt_of(Path(begun))
    if source:
        return source.sha256, None
    if Path(begun).suffix == ".pt" and Path(begun).is_file():
        return sha256(Path(begun)), None
    report.note(f"link {link.name}", f"{begun}, from which the run began, is not here")
    return None, None


def _note_numerics(
    report: CheckReport, campaign: Campaign, link: ChainLink, used: Sequence[Mapping[str, Any]]
) -> None:
    """Name the numerics of a link that was computed with several, or with others than the link before."""
    names = ("device", "threads", "instructions", "torch", "numpy")
    texts = [", ".join(f"{name} {each[name]}" for name in names if name in each) for each in used]
    parent = receipt_of(campaign.paths.receipt(link.parent)) if link.parent else None
    before = parent.numerics if parent else None
    if len(used) > 1:
        report.note(
            f"link {link.name}", f"was computed with {len(used)} numerics in turn: {'; '.join(texts)}"
        )
    elif used and before and before[-1] != digest(used[0]):
        report.note(f"link {link.name}", f"has other numerics than {link.parent}: {texts[0]}")


def _check_slices(report: CheckReport, campaign: Campaign, link: ChainLink, row: Receipt, last: int) -> None:
    """Check that the slices of a link are one chain, from its parent's checkpoint to its own."""
    path, remedy = campaign.paths.slices(link.name), retrain(campaign.paths, link.name)
    if not is_present(path):
        return
    rows = report.read(read_slices, path, remedy) or []
    report.counts["slices"] += len(rows)
    here, step = row.parent, 0
    if rows and rows[0].from_step:
        step, here = rows[0].from_step, rows[0].begun_with
        report.note(f"link {link.name}", f"trained in no slice: its first {counted(step, 'step')}")
    for number, each in enumerate(rows, 1):
        if (each.from_step, each.begun_with) != (step, here) or each.to_step < step:
            report.error(
                path,
                f"slice {number} begins at step {each.from_step} with {each.begun_with[:HASH_DIGITS]}, and "
                f"the one before ended at {step} with {here[:HASH_DIGITS]}",
                remedy,
            )
            return
        step, here = each.to_step, each.left
    if rows and (step, here) != (last, row.sha256):
        report.error(path, f"the last slice ended at step {step}, and the link has {last}", remedy)


def _metadata_of(
    report: CheckReport, campaign: Campaign, link: ChainLink, path: Path, row: Receipt
) -> dict[str, Any] | None:
    """Hash a checkpoint and read what it says of itself; None where it is gone or damaged."""
    if not is_present(path) and _is_passed(campaign, link):
        deleted = deleted_receipt(campaign.paths.run_dir(), link.name, row.key) == row
        gone = "was deleted by `crpipe clean`" if deleted else "is gone"
        report.note(
            f"link {link.name}", f"its checkpoint {gone}; the next link is finished and does not need it"
        )
        return None
    remedy = f"crpipe train {link.name}"
    if not report.has_bytes(path, None, row.sha256, remedy):
        return None
    with report.reading(path, remedy):
        report.counts["checkpoints"] += 1
        return checkpoint_metadata(path)
    return None


def _is_passed(campaign: Campaign, link: ChainLink) -> bool:
    """Return whether the next link is finished: nothing of the chain needs this checkpoint any more."""
    following = campaign.chain.links[campaign.chain.links.index(link) + 1 :][:1]
    return any(is_present(campaign.paths.receipt(other.name)) for other in following)


def _shards_of(report: CheckReport, campaign: Campaign, link: ChainLink) -> list[Path]:
    """List the folders of a link's shards; none, and a note, where the link cannot be compared with them."""
    folders = [campaign.paths.shards(name) for name in link.ranges] or [campaign.paths.outliers(CONSOLIDATED)]
    for folder in folders:
        if is_manifest_damaged(folder):
            report.note(f"link {link.name}", f"{folder / MANIFEST} is damaged; its shards are not compared")
            return []
    return folders


def _check_shards(report: CheckReport, campaign: Campaign, link: ChainLink, key: str) -> None:
    """Compare the shards of a link with those that it was trained on."""
    record, remedy = shards_record(campaign.paths.store(link.name), key), retrain(campaign.paths, link.name)
    if not is_present(record):
        report.note(f"link {link.name}", "has no record of the shards that it was trained on")
    with report.reading(record, remedy):
        changed = changed_shards(record, _shards_of(report, campaign, link))
        if changed:
            report.error(record, f"names other shards than there are in {changed[0]}", remedy)


def _check_trained(
    report: CheckReport, campaign: Campaign, agreed: Agreed, link: ChainLink, trained: int
) -> None:
    """Compare the events that a link trained on with those of its shards, in each epoch."""
    folders = _shards_of(report, campaign, link)
    role, key = ("train", "train.epochs") if link.ranges else ("outliers", "train.outlier_epochs")
    try:
        entries = [entry for folder in folders for entry in open_manifest(folder, None).of_role(role)]
        there = sum(entry.events for entry in entries) * agreed.run_keys[key]
    except MALFORMED:
        return  # reported where the shards are checked
    if folders and trained != there:
        report.error(
            campaign.paths.receipt(link.name),
            f"trained on {counted(trained, 'event')}, its shards hold {there} (in all epochs)",
            retrain(campaign.paths, link.name),
        )


def _check_best(report: CheckReport, campaign: Campaign, link: ChainLink, key: str, receipt: Path) -> None:
    """Check the best checkpoint of a finished link against what points to it."""
    paths, store = campaign.paths, campaign.paths.store(link.name)
    there = sorted(store.glob(f"best-{key}-*.pt"))
    if not is_present(receipt):
        if there:
            report.error(receipt, "missing, though there is a best checkpoint", train_again(paths, link.name))
        return
    remedy = f"{removing(receipt)} && crpipe train {link.name}"
    row = report.read(BestReceipt.read, receipt, remedy)
    if row is None:
        return
    with report.reading(receipt, remedy):
        path = store / row.checkpoint
        if not is_present(path) and len(there) == 1:
            report.error(receipt, f"names {row.checkpoint}; {there[0].name} is there", remedy)
            return
        if not report.has_bytes(path, None, row.sha256, retrain(paths, link.name)):
            return
        report.counts["checkpoints"] += 1
        state = checkpoint_metadata(path)
        counters, best = state["counters"], state["best"]
        name = f"best-{key}-{counters['range_step']:010d}-{row.sha256[:HASH_DIGITS]}.pt"
        expected = BestReceipt(
            range=link.name,
            key=key,
            checkpoint=name,
            sha256=row.sha256,
            step=counters["step"],
            metric=best["metric"],
            value=best["value"],
        )
        wrong = differing(row.as_json(), expected.as_json())
        if wrong:
            report.error(receipt, wrong, remedy)


def _check_snapshots(report: CheckReport, store: Path) -> None:
    """Check the snapshots of a link that is not being trained against the hashes in their names."""
    for path in sorted(store.glob("snapshot-*.pt")):
        with report.reading(path, removing(path)):
            report.counts.update(files=1, bytes=path.stat().st_size)
            if sha256(path)[:HASH_DIGITS] != path.stem.rpartition("-")[2]:
                report.error(path, "damaged: its bytes do not have the hash in its name", removing(path))


# Evaluations of a run: each names a checkpoint of this run, and has a row for each event that it judged.


def list_evaluations(paths: Paths) -> list[str]:
    """Name the evaluations of a run."""
    return sorted(path.parent.name for path in paths.evaluation("x").parent.glob("*/metrics.json"))


def check_evaluation(report: CheckReport, campaign: Campaign, name: str) -> None:
    """Check that an evaluation judged a checkpoint that the receipts of its link name."""
    folder, remedy = campaign.paths.evaluation(name), f"crpipe evaluate {name.removesuffix('.best')}"
    remedy += f" --checkpoint {name}" if name.endswith(".best") else ""
    path = folder / "metrics.json"
    row = report.read(EvaluationRecord.read, path, remedy)
    if row is None:
        return
    report.counts["evaluations"] += 1
    with report.reading(path, remedy):
        link = name.removesuffix(".best")
        if campaign.chain.find(link) is None:
            files = campaign.paths.store("x").parent.glob(f"*/*-{row.checkpoint[:HASH_DIGITS]}.pt")
            if not any(files):
                report.note(f"evaluation {name}", "of a checkpoint that is not in this run")
        else:
            receipts = [campaign.paths.best_receipt(link), campaign.paths.receipt(link)]
            if not is_present(receipts[-1]):
                report.note(f"evaluation {name}", "its link is not finished")
            elif not any(_is_of(receipt, row.checkpoint, row.step) for receipt in receipts):
                report.error(path, "judged a checkpoint that no receipt of this link names", remedy)
    rows = folder / "predictions.parquet"
    with report.reading(rows, remedy), pq.ParquetFile(rows) as file:
        if file.metadata.num_rows != row.events:
            report.error(
                rows,
                f"holds {counted(file.metadata.num_rows, 'event')}, metrics.json says {row.events}",
                remedy,
            )
    _check_kept(report, folder, name, remedy)


def _check_kept(report: CheckReport, folder: Path, name: str, remedy: str) -> None:
    """Check the hashes of the results, their second names, and the key that they follow from."""
    record = folder / FINISHED
    if not is_present(record / EVALUATED_KEY):
        report.note(f"evaluation {name}", "has no second copy of its results")
        return
    key = report.read_object(record / EVALUATED_KEY, remedy)
    if key is not None and key.pop(KEY_DIGEST, None) != digest(key):
        report.error(record / EVALUATED_KEY, "damaged: its values do not have the digest in it", remedy)
    hashes = read_hashes(report, record, EVALUATED, f"evaluation {name}", remedy)
    for file in EVALUATED:
        recorded, path = record / file, folder / file
        if hashes:
            report.has_bytes(recorded, None, hashes.get(file, ""), remedy)
        if report.is_other(path, recorded, remedy):
            report.error(recorded, f"is not {path}", remedy)


def _is_of(receipt: Path, sha256: str, step: int | None = None) -> bool:
    """Return whether a receipt points to a checkpoint, at this step (None: any)."""
    try:
        row = read_json(receipt)
        return bool(row["sha256"] == sha256 and step in (None, row["step"]))
    except MALFORMED:
        return False


# Exports of a run: every file has its recorded hash, and the checkpoint is one that a receipt names.


_ABOUT = "config.json"


def check_export(report: CheckReport, campaign: Campaign, folder: Path) -> None:
    """Check the folder that `crpipe export` wrote."""
    path, paths = folder / _ABOUT, campaign.paths
    receipts = {name: paths.receipt(name) for name in campaign.chain.names}
    receipts |= {f"{name}.best": paths.best_receipt(name) for name in campaign.chain.names}
    remedy = f"crpipe export --checkpoint latest --out {shlex.quote(str(folder))}"
    row = report.read_object(path, remedy)
    if row is None:
        return
    with report.reading(path, remedy):
        exported = [name for name, receipt in receipts.items() if _is_of(receipt, row["checkpoint"])]
        if exported:
            remedy = remedy.replace("latest", exported[0])
        else:
            report.error(path, "is of a checkpoint that no receipt of this run names", remedy)
        for name, expected in row["files"].items():
            report.has_bytes(folder / name, None, expected, remedy)
        report.counts["exports"] += 1
