"""What the files of a run say of its campaign: its record, its receipts, and the data that fit to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.campaign.records import Receipt
from crpipe.core.causes import is_plain
from crpipe.core.errors import DataError
from crpipe.core.files import read_json, read_json_if_any
from crpipe.core.paths import BEST, OUTLIERS, Paths
from crpipe.core.ranges import Chain, ChainLink, Range, checkpoint_key
from crpipe.core.records import skipped_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crpipe.config.loading import Tree

_RECORD = "campaign.json"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What the files of a run say of it where no configuration is given.

    data_keys: None where its data are not known. train_keys: those of the run, side tables included.
    given_up: ranges that ``ranges.on_failure: skip`` left out.
    """

    chain: Chain
    data_keys: Tree | None
    train_keys: Tree
    given_up: tuple[str, ...]


def read_run(run: Path, results: Path | None) -> tuple[Paths, RunRecord]:
    """Read the records of a run and of its data; see ``Campaign.of_run``."""
    keys = _record_of(run)
    root = run.parent.parent
    if results is not None and not _fits(results / _RECORD, keys):
        raise DataError(
            f"{results}: not the data of {run}: {_RECORD} is missing there, or names other keys; name the "
            "directory that `results` named in the configuration of the run"
        )
    data = results or next((each for each in _candidates(root, run) if _fits(each / _RECORD, keys)), None)
    paths = Paths(data or root / "results", run.parent, run.name)
    given_up = tuple(sorted(skipped_names(paths)))
    ranges = () if data is None else tuple(sorted(_data_ranges(paths) - {*given_up}))
    data_keys = None if data is None else read_json(data / _RECORD)
    return paths, RunRecord(_chain(paths, ranges), data_keys, keys, given_up)


def _record_of(run: Path) -> Tree:
    if not is_plain(run / _RECORD):
        raise DataError(
            f"{run / _RECORD}: missing; name the folder of a run whose training has begun, as runs/demo"
        )
    keys: Tree = read_json(run / _RECORD)
    return keys


def _fits(record: Path, keys: Mapping[str, Any]) -> bool:
    """Return whether data were made with the same values as the run, key by key."""
    recorded = read_json_if_any(record)
    return recorded is not None and all(
        name in keys and keys[name] == value for name, value in recorded.items()
    )


def _candidates(root: Path, run: Path) -> Iterator[Path]:
    """List the places of data, those that a configuration usually names first."""
    yield root / "results" / run.name
    yield root / "results"
    for pattern in (f"results/*/{_RECORD}", f"*/{_RECORD}"):
        yield from (path.parent for path in sorted(root.glob(pattern)))


def _data_ranges(paths: Paths) -> set[str]:
    """Name the ranges that were listed or split."""
    kinds = ((paths.manifest("x").parent, ".parquet"), (paths.ledger("x").parent, ".json"))
    return {path.name.removesuffix(end) for folder, end in kinds for path in folder.glob(f"*{end}")}


def _chain(paths: Paths, ranges: tuple[str, ...]) -> Chain:
    """Order the links by their receipts, and after them those whose training has begun."""
    folder = paths.receipt("x").parent
    receipts = [Receipt.read(path) for path in folder.glob("*.json") if not path.name.endswith(BEST)]
    receipts.sort(key=lambda receipt: receipt.step)
    rows = [(receipt.range, receipt.ranges, receipt.round) for receipt in receipts]
    finished = {name for name, _, _ in rows}
    begun = {path.name for path in paths.store("x").parent.glob("*") if path.is_dir()} - finished
    rows += [_begun(name, ranges) for name in sorted(begun, key=lambda each: (each == OUTLIERS, each))]
    links: list[ChainLink] = []
    trained = 0
    for name, of_link, turn in rows:
        parent = links[-1].name if links else ""
        links.append(ChainLink(name, of_link, turn, parent, trained, trained + len(of_link)))
        trained += len(of_link)
    return Chain(tuple(links), tuple(sorted({*ranges, *(name for link in links for name in link.ranges)})))


def replaced_links(chain: Chain, receipts: Mapping[str, Receipt], *, pretrained: bool) -> frozenset[str]:
    """Name the finished links that follow from another chain than this one; they are trained again.

    Since then ranges were added before them or left out, or a link before them was trained again. pretrained:
    whether the first link began with a checkpoint from elsewhere. Example: A, B and the outliers are trained,
    and C is added: the outliers began with the checkpoint of B, and C is before them now.
    """
    names: list[str] = []
    before: Receipt | None = None
    earlier = {""}
    for link in chain.links:
        receipt = receipts.get(link.name)
        if receipt is not None:
            if not link.parent:
                moved = bool(receipt.parent) and not pretrained
            elif before is None:  # not trained yet, unless its receipt is lost
                moved = receipt.parent in earlier
            else:
                moved = receipt.parent != before.sha256
            key = checkpoint_key(receipt.range, receipt.fingerprint, receipt.parent, receipt.ranges)
            if names or (moved and key == receipt.key):
                names.append(link.name)
            earlier.add(receipt.sha256)
        before = receipt
    return frozenset(names)


def _begun(name: str, ranges: tuple[str, ...]) -> tuple[str, tuple[str, ...], int]:
    """Return name, ranges and round of a link without a receipt: its name is its share of the campaign."""
    if name == OUTLIERS:
        return name, (), 1
    share, _, turn = name.partition(".")
    span = Range.parse(share)
    inside = [each for each in map(Range.parse, ranges) if span.first <= each.first <= span.last]
    return name, tuple(map(str, inside)), int(turn or 1)
