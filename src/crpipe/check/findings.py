"""What a check found: each thing that is wrong with what to type, and what was counted."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from crpipe.campaign.ledger import table_keys
from crpipe.campaign.split_record import ASIDE, SplitRecord
from crpipe.core.causes import OF_PROGRAMS, is_present, is_seen, machine_error, persist
from crpipe.core.errors import CrpipeError, MachineError
from crpipe.core.files import digest, read_json, sha256
from crpipe.core.paths import MANIFEST
from crpipe.events.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.paths import Paths

# What reading a file of any content raises. Here each is a finding: a check never stops at the first one.
MALFORMED = (
    CrpipeError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    pa.ArrowException,
)
_LONGEST = 300
AGAIN = "crpipe check"  # once the file can be read: nothing of it was found wrong


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: the file, what, and the command that repairs it."""

    place: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Unjudged:
    """One part that is not judged, and why."""

    name: str
    why: str


@dataclass(slots=True)
class CheckReport:
    """Everything that one part of a check found.

    notes: what was not judged. counts: what was proved: bytes, files, events, ranges, …
    """

    findings: list[Finding] = field(default_factory=list)
    notes: list[Unjudged] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def wrong(self, place: Path, what: str, remedy: str) -> None:
        """Add a finding; what was found before is not said twice."""
        finding = Finding(_printable(str(place)), _printable(what)[:_LONGEST], remedy)
        if finding not in self.findings:
            self.findings.append(finding)

    def note(self, name: str, why: str) -> None:
        """Name a part that is not judged."""
        self.notes.append(Unjudged(name, why))

    def add(self, other: CheckReport) -> None:
        """Take over what another part found."""
        self.findings += other.findings
        self.notes += other.notes
        self.counts += other.counts

    @contextlib.contextmanager
    def reading(self, path: Path, remedy: str) -> Iterator[None]:
        """Turn whatever a missing or malformed file raises inside the block into a finding."""
        try:
            yield
        except FileNotFoundError as error:
            if is_seen(error, path):
                self.wrong(path, "not found at first, then there: it was not read", AGAIN)
                return
            other = error.filename is not None and str(error.filename) != str(path)
            self.wrong(path, f"missing ({error.filename})" if other else "missing", remedy)
        except MALFORMED as error:
            if self._unread(path, error):
                return
            self.wrong(
                path, f"cannot be read: {type(error).__name__}: {' '.join(str(error).split())}", remedy
            )

    def has_bytes(self, path: Path, size: int, expected: str, remedy: str) -> bool:
        """Hash a file; return whether it has the size (bytes) and the sha256 that are recorded."""
        try:
            found = persist(path.stat).st_size
            if found != size:
                self.wrong(path, f"damaged: {found} bytes, {size} are recorded", remedy)
                return False
            actual = sha256(path)
        except FileNotFoundError:
            self.wrong(path, "missing", remedy)
            return False
        except (OSError, MachineError) as error:
            if not self._unread(path, error):
                self.wrong(path, f"cannot be read: {error}", remedy)
            return False
        self.counts.update(files=1, bytes=found)
        if actual != expected:
            self.wrong(path, "damaged: its bytes are not those of the recorded sha256", remedy)
        return actual == expected

    def _unread(self, path: Path, error: BaseException) -> bool:
        """Add a finding, without a remedy that deletes, where the machine failed; else return False."""
        found = machine_error(error, path, OF_PROGRAMS)
        if found is None:
            return False
        self.wrong(path, f"could not be read, so nothing says that it is wrong: {found}", AGAIN)
        return True

    def read_object(self, path: Path, remedy: str) -> dict[str, Any] | None:
        """Read a JSON object; a finding and None where there is none."""
        with self.reading(path, remedy):
            if not is_present(path):
                self.wrong(path, "missing", remedy)
                return None
            found = read_json(path)
            if isinstance(found, dict):
                return found
            self.wrong(path, f"damaged: holds {type(found).__name__}, not an object", remedy)
        return None


def _printable(text: str) -> str:
    """Replace what a damaged file could do to a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


def differing(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """Name the keys of ``found`` that are not as expected, with both values; empty when all are."""
    lines = [
        f"{name} is {_short(found, name)}, should be {_short(expected, name)}"
        for name in sorted({*found, *expected})
        if name not in found or name not in expected or not same(found[name], expected[name])
    ]
    return "; ".join(lines)


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same; not a number is the same as itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)  # noqa: PLR0124 - not a number
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def _short(values: dict[str, Any], name: str) -> str:
    text = repr(values[name]) if name in values else "missing"
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - a line


# What the files of a campaign are compared with, and the commands that repair each kind of damage.


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


def read_facts(campaign: Campaign) -> Facts:
    """Read them; what is damaged is reported where that file is checked."""
    paths = campaign.paths
    data_keys, run_keys = _object(paths.campaign()), _object(paths.run_config())
    try:
        data = digest({**data_keys, **table_keys(paths.tables())}) if data_keys else ""
    except MALFORMED:
        data = ""
    threshold = data_keys.get("split.threshold")
    if data_keys.get("split.quantile") is not None:
        threshold = _object(paths.threshold()).get("threshold")
    done = [link for link in campaign.chain.links if is_present(paths.receipt(link.name))]
    recorded = {
        "layout": _object(paths.layout()),
        "data": data,
        "threshold": threshold,
        "fingerprint": digest(run_keys) if run_keys else "",
    }
    manifests = [_object(paths.shard_manifest(name)) for name in campaign.ranges]
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
        trained=frozenset(name for link in done for name in link.ranges or campaign.ranges),
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
