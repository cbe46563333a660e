"""What a check works on, as plain values, and the commands that repair each kind of damage."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.check.findings import MALFORMED
from crpipe.core.causes import is_present
from crpipe.core.files import digest, read_json
from crpipe.core.paths import MANIFEST
from crpipe.events.layout import Layout
from crpipe.events.split_record import ASIDE, SplitRecord
from crpipe.events.tables import table_keys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.core.chain import Chain
    from crpipe.core.paths import Paths


@dataclass(frozen=True, slots=True)
class CheckJob:
    """A campaign and one of its runs.

    chain: its links in order. names: ranges, links, ``outliers`` or ``consolidated`` to look at; empty: all.
    exports: folders that `crpipe export` wrote. duplicates: a file may be in two ranges.
    """

    paths: Paths
    ranges: tuple[str, ...]
    chain: Chain
    names: tuple[str, ...] = ()
    processes: int = 1
    exports: tuple[Path, ...] = ()
    duplicates: bool = False

    def wants(self, name: str) -> bool:
        """Return whether something of this name is checked."""
        return not self.names or name in self.names


@dataclass(frozen=True, slots=True)
class Facts:
    """What the files of one campaign are compared with; None or empty where it is not known.

    Where all manifests (or all receipts) agree, it is what they say: then the one file that records it is
    wrong, not all of them. ``recorded`` has what that file says.

    data, fingerprint: hashes of the keys. threshold: multiplicity above which an event is an outlier.
    layout: its description. run_keys: those that the run recorded.
    trained: ranges that a receipt says were trained on.
    """

    layout: Layout | None
    data: str
    fingerprint: str
    threshold: int | None
    run_keys: Mapping[str, Any]
    trained: frozenset[str]
    recorded: Mapping[str, Any]


def read_facts(job: CheckJob) -> Facts:
    """Read them; what is damaged is reported where that file is checked."""
    paths = job.paths
    campaign, run_keys = _object(paths.campaign()), _object(paths.run_config())
    try:
        data = digest({**campaign, **table_keys(paths.tables())}) if campaign else ""
    except MALFORMED:
        data = ""
    threshold = campaign.get("split.threshold")
    if campaign.get("split.quantile") is not None:
        threshold = _object(paths.threshold()).get("threshold")
    done = [link for link in job.chain.links if is_present(paths.receipt(link.name))]
    recorded = {
        "layout": _object(paths.layout()),
        "data": data,
        "threshold": threshold,
        "fingerprint": digest(run_keys) if run_keys else "",
    }
    manifests = [_object(paths.shard_manifest(name)) for name in job.ranges]
    receipts = [_object(paths.receipt(link.name)) for link in done]
    claimed = {key: _agreed(key, manifests, recorded) for key in ("layout", "data", "threshold")}
    claimed["fingerprint"] = _agreed("fingerprint", receipts, recorded)
    try:
        layout = Layout.from_description(claimed["layout"])
    except MALFORMED:
        layout = None
    return Facts(
        layout=layout,
        data=claimed["data"] if isinstance(claimed["data"], str) else "",
        fingerprint=claimed["fingerprint"] if isinstance(claimed["fingerprint"], str) else "",
        threshold=claimed["threshold"] if isinstance(claimed["threshold"], int) else None,
        run_keys=run_keys,
        trained=frozenset(name for link in done for name in link.ranges or job.ranges),
        recorded=recorded,
    )


def _agreed(key: str, files: list[dict[str, Any]], recorded: Mapping[str, Any]) -> Any:
    """Give what two files or more say alike, else what is recorded for all of them."""
    claims = [file[key] for file in files if key in file]
    several = len(claims) > 1 and all(claim == claims[0] for claim in claims)
    return claims[0] if several else recorded[key]


def _object(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except MALFORMED:
        return {}
    return found if isinstance(found, dict) else {}


def split_again(paths: Paths, name: str) -> str:
    """Give the commands that make the data of a range again from its source, to the same bytes.

    Nothing is deleted before its raw files are here again: the record is set aside, so that the range does
    not count as finished, and the split compares its files with it.
    """
    record = SplitRecord.of(paths, name).folder
    aside = f"mv {shlex.join(map(str, (record, record.with_name(ASIDE))))} && " if is_present(record) else ""
    return f"{aside}crpipe stage {name} && crpipe split {name}"


def deliver_again(name: str) -> str:
    """Give the command that restores missing outputs of a split from its own record."""
    return f"crpipe split {name}"


def merge_again(paths: Paths, name: str) -> str:
    """Give the commands that merge the outliers again."""
    return f"{removing(paths.outliers(name) / MANIFEST)} && crpipe consolidate"


def train_again(paths: Paths, link: str) -> str:
    """Give the commands that write a receipt again, from its checkpoint or by training."""
    return f"{removing(paths.receipt(link))} && crpipe train {link}"


def retrain(paths: Paths, link: str) -> str:
    """Give the commands that train a link from its beginning; what was trained is set aside, not deleted."""
    store = paths.store(link)
    aside = (
        f"mv {shlex.join(map(str, (store, store.with_name(f'{link}.old'))))} && " if is_present(store) else ""
    )
    receipts = (paths.receipt(link), paths.best_receipt(link))
    return f"{aside}{removing(*receipts)} && crpipe train {link}"


def removing(*files: Path) -> str:
    """Give the command that removes files and folders."""
    return f"rm -rf {shlex.join(map(str, files))}"
