"""The view of a campaign from its files alone: the record of a run, its receipts, and the data that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crpipe.core.causes import is_plain
from crpipe.core.chain import Chain, ChainLink
from crpipe.core.errors import DataError
from crpipe.core.files import digest, read_json, read_json_if_any
from crpipe.core.paths import BEST, OUTLIERS, Paths
from crpipe.core.ranges import Range
from crpipe.events.tables import table_keys
from crpipe.report.campaign_view import CampaignView, read_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Keys = dict[str, Any]
_RECORD = "campaign.json"


def recorded_view(run: Path, results: Path | None) -> CampaignView:
    """Compose the view of a run; raise DataError when the folder is no run, or ``results`` are not its data.

    results: the directory of the data; None: the one beside the run that was made with the run's keys. Where
    there is none, a view without data is given: a run that was copied alone has metrics and a model.
    """
    keys = _record_of(run)
    root = run.parent.parent
    if results is not None and not _fits(results / _RECORD, keys):
        raise DataError(
            f"{results}: not the data of {run}: {_RECORD} is missing there, or names other keys; name the "
            "directory that `results` named in the configuration of the run"
        )
    found = results or next((each for each in _candidates(root, run) if _fits(each / _RECORD, keys)), None)
    paths = Paths(found or root / "results", run.parent, run.name)
    known = () if found is None else tuple(sorted(_data_ranges(paths)))
    chain = _chain(paths, known)
    view = CampaignView(
        run=run.name,
        paths=paths,
        ranges=chain.ranges,
        skipped=(),
        chain=chain,
        data="",
        fingerprint=digest(keys),
        data_keys={},
        train_keys=keys,
        threshold=int(keys.get("split.threshold", 0)),
        disk_budget=0,
    )
    return view if found is None else _with_data(view, found)


def _with_data(view: CampaignView, results: Path) -> CampaignView:
    data_keys: Keys = read_json(results / _RECORD)
    return replace(
        view,
        data=digest(data_keys | table_keys(view.paths.tables())),
        data_keys=data_keys,
        layout=read_layout(view.paths.layout()),
    )


def has_data(view: CampaignView) -> bool:
    """Return whether the directory of the data is known."""
    return bool(view.data)


def _record_of(run: Path) -> Keys:
    if not is_plain(run / _RECORD):
        raise DataError(
            f"{run / _RECORD}: missing; name the folder of a run whose training has begun, as runs/demo"
        )
    keys: Keys = read_json(run / _RECORD)
    return keys


def _fits(record: Path, keys: Mapping[str, Any]) -> bool:
    """Return whether data were made with the same values as the run, key by key."""
    made = read_json_if_any(record)
    return made is not None and all(name in keys and keys[name] == value for name, value in made.items())


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
    receipts = [read_json(path) for path in folder.glob("*.json") if not path.name.endswith(BEST)]
    receipts.sort(key=lambda row: int(row["step"]))
    rows = [(row["range"], tuple(row["ranges"]), row["round"]) for row in receipts]
    finished = {name for name, _, _ in rows}
    begun = {path.name for path in paths.store("x").parent.glob("*") if path.is_dir()} - finished
    rows += [_begun(name, ranges) for name in sorted(begun, key=lambda each: (each == OUTLIERS, each))]
    links: list[ChainLink] = []
    trained = 0
    for name, own, turn in rows:
        parent = links[-1].name if links else ""
        links.append(ChainLink(name, own, turn, parent, trained, trained + len(own)))
        trained += len(own)
    return Chain(tuple(links), tuple(sorted({*ranges, *(name for link in links for name in link.ranges)})))


def _begun(name: str, ranges: tuple[str, ...]) -> tuple[str, tuple[str, ...], int]:
    """Give name, ranges and round of a link without a receipt: its name is its share of the campaign."""
    if name == OUTLIERS:
        return name, (), 1
    share, _, turn = name.partition(".")
    whole = Range.parse(share)
    inside = [each for each in map(Range.parse, ranges) if whole.first <= each.first <= whole.last]
    return name, tuple(map(str, inside)), int(turn or 1)
