"""What a check found: each thing that is wrong with what to type, and what was counted."""

from __future__ import annotations

import contextlib
import filecmp
import json
import shlex
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from crpipe.campaign.records import Receipt, table_keys
from crpipe.campaign.split_record import ASIDE, SplitRecord
from crpipe.core.causes import OF_PROGRAMS, is_present, is_seen, machine_error, retry_io
from crpipe.core.errors import CrpipeError
from crpipe.core.files import digest, read_json, sha256
from crpipe.core.paths import HASHES, Paths

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign

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
T = TypeVar("T")
_LONGEST = 300
AGAIN = "crpipe check"  # once the file can be read: nothing of it was found wrong


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found: the file, what, and the command that repairs it.

    severity: "note" for a part that is not checked, by its name and without a remedy; "unread" where the
    machine failed, which says nothing about the file.
    """

    path: str
    what: str
    remedy: str = ""
    severity: Literal["wrong", "unread", "note"] = "wrong"


@dataclass(slots=True)
class CheckReport:
    """Everything that one part of a check found.

    counts: what was proved: bytes, files, events, ranges, …
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def errors(self) -> list[Finding]:
        """What is wrong or could not be read."""
        return [each for each in self.findings if each.severity != "note"]

    @property
    def notes(self) -> list[Finding]:
        """What was not checked."""
        return [each for each in self.findings if each.severity == "note"]

    def error(self, path: Path, what: str, remedy: str) -> None:
        """Add an error; the same one is not added twice."""
        self._add(Finding(_printable(str(path)), _printable(what)[:_LONGEST], remedy))

    def note(self, name: str, why: str) -> None:
        """Name a part that is not checked."""
        self._add(Finding(name, why, severity="note"))

    def _add(self, finding: Finding) -> None:
        if finding not in self.findings:
            self.findings.append(finding)

    def add(self, other: CheckReport) -> None:
        """Take over what another part found."""
        self.findings += other.findings
        self.counts += other.counts

    @contextlib.contextmanager
    def reading(self, path: Path, remedy: str) -> Iterator[None]:
        """Turn whatever a missing or malformed file raises inside the block into a finding."""
        try:
            yield
        except FileNotFoundError as error:
            if is_seen(error, path):
                self._add(_unread(path, "not found at first, then there: it was not read"))
                return
            other = error.filename is not None and str(error.filename) != str(path)
            self.error(path, f"missing ({error.filename})" if other else "missing", remedy)
        except MALFORMED as error:
            if self._failed_machine(path, error):
                return
            self.error(
                path, f"cannot be read: {type(error).__name__}: {' '.join(str(error).split())}", remedy
            )

    def has_bytes(self, path: Path, size: int | None, expected: str, remedy: str) -> bool:
        """Hash a file; return whether it has the size (bytes; None: any) and the sha256 that are recorded."""
        with self.reading(path, remedy):
            there = retry_io(path.stat).st_size
            if size not in (None, there):
                self.error(path, f"damaged: {there} bytes, {size} are recorded", remedy)
                return False
            actual = sha256(path)
            self.counts.update(files=1, bytes=there)
            if actual != expected:
                self.error(path, "damaged: its bytes are not those of the recorded sha256", remedy)
            return actual == expected
        return False

    def _failed_machine(self, path: Path, error: BaseException) -> bool:
        """Add a finding, without a remedy that deletes, where the machine failed; else return False."""
        failure = machine_error(error, path, OF_PROGRAMS)
        if failure is not None:
            self._add(_unread(path, f"could not be read, so nothing says that it is wrong: {failure}"))
        return failure is not None

    def read(self, read: Callable[[Path], T], path: Path, remedy: str) -> T | None:
        """Read a file, for example with ``Receipt.read``; a finding and None where that fails."""
        with self.reading(path, remedy):
            if is_present(path):
                return read(path)
            self.error(path, "missing", remedy)
        return None

    def read_object(self, path: Path, remedy: str) -> dict[str, Any] | None:
        """Read a JSON object; a finding and None where there is none."""
        value = self.read(read_json, path, remedy)
        if value is None or isinstance(value, dict):
            return value
        self.error(path, f"damaged: holds {type(value).__name__}, not an object", remedy)
        return None

    def is_other(self, path: Path, recorded: Path, remedy: str) -> bool:
        """Return whether a file differs from what a step recorded; often both are names of one file."""
        with self.reading(recorded, remedy):
            if is_present(path) and not path.samefile(recorded):
                return not filecmp.cmp(path, recorded, shallow=False)
        return False


def read_hashes(
    report: CheckReport, folder: Path, names: Collection[str], whose: str, remedy: str
) -> dict[str, Any]:
    """Read the hashes that a step recorded of its files; empty, with a note, where it recorded none."""
    path = folder / HASHES
    if not is_present(path):
        if is_present(folder):
            report.note(whose, "was made by a crpipe that recorded no hashes of its files")
        return {}
    hashes = report.read_object(path, remedy) or {}
    if {*hashes} - {*names}:
        report.error(path, "damaged: names other files than there are", remedy)
    return hashes


def _unread(path: Path, what: str) -> Finding:
    return Finding(_printable(str(path)), _printable(what)[:_LONGEST], AGAIN, "unread")


def _printable(text: str) -> str:
    """Replace what a damaged file could do to a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


def differing(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Name the keys of ``actual`` that are not as expected, with both values; empty when all are.

    Values are compared as JSON: not a number is the same as itself, 1 is not 1.0.
    """
    texts = [
        {name: json.dumps(value, sort_keys=True) for name, value in values.items()}
        for values in (actual, expected)
    ]
    return "; ".join(
        f"{name} is {_short(actual, name)}, should be {_short(expected, name)}"
        for name in sorted({*actual, *expected})
        if texts[0].get(name) != texts[1].get(name)
    )


def _short(values: Mapping[str, Any], name: str) -> str:
    text = repr(values[name]) if name in values else "missing"
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - a line


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the files of one campaign agree on and are compared with; None or empty where it is not known.

    Where all manifests (or all receipts) agree, it is what they say: then the one file that records it is
    wrong, not all of them. ``recorded`` has what that file says.

    layout: its description. data, fingerprint: hashes of the keys. threshold: multiplicity above which an
    event is an outlier. run_keys: those that the run recorded. trained: ranges of the finished links.
    replaced: finished links that no longer follow from the chain.
    """

    layout: Mapping[str, Any]
    data: str
    threshold: int | None
    fingerprint: str
    run_keys: Mapping[str, Any]
    trained: frozenset[str]
    replaced: frozenset[str]
    recorded: Mapping[str, Any]


def read_agreed(campaign: Campaign) -> Agreed:
    """Read what the files agree on; what is damaged is reported where that file is checked."""
    paths = campaign.paths
    data_keys, run_keys = _object(paths.campaign()), _object(paths.run_config())
    try:
        data = digest({**data_keys, **table_keys(paths.tables())}) if data_keys else ""
    except MALFORMED:
        data = ""
    quantile = data_keys.get("split.quantile") is not None
    recorded = {
        "layout": _object(paths.layout()),
        "data": data,
        "threshold": _object(paths.threshold()).get("threshold")
        if quantile
        else data_keys.get("split.threshold"),
        "fingerprint": digest(run_keys) if run_keys else "",
    }
    done = [link for link in campaign.chain.links if is_present(paths.receipt(link.name))]
    manifests = [_object(paths.shard_manifest(name)) for name in campaign.ranges]
    receipts = [_object(paths.receipt(link.name)) for link in done]
    rows = {link.name: receipt_of(paths.receipt(link.name)) for link in done}
    replaced = campaign.replaced({name: row for name, row in rows.items() if row is not None})
    return Agreed(
        layout=_agreed("layout", dict, manifests, recorded) or {},
        data=_agreed("data", str, manifests, recorded) or "",
        threshold=_agreed("threshold", int, manifests, recorded),
        fingerprint=_agreed("fingerprint", str, receipts, recorded) or "",
        run_keys=run_keys,
        trained=frozenset(
            name for link in done if link.name not in replaced for name in link.ranges or campaign.ranges
        ),
        replaced=replaced,
        recorded=recorded,
    )


def _agreed(key: str, kind: type, files: list[dict[str, Any]], recorded: Mapping[str, Any]) -> Any:
    """Return what two files or more say alike, else what is recorded for all of them; None if malformed."""
    claims = [file[key] for file in files if key in file]
    agree = len(claims) > 1 and all(claim == claims[0] for claim in claims)
    value = claims[0] if agree else recorded[key]
    return value if isinstance(value, kind) else None


def receipt_of(path: Path) -> Receipt | None:
    """Read the receipt of another link; None where it is damaged, which is reported there."""
    try:
        return Receipt.read(path) if path.suffix == ".json" else None
    except MALFORMED:
        return None


def _object(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except MALFORMED:
        return {}
    return value if isinstance(value, dict) else {}


def split_again(paths: Paths, name: str) -> str:
    """Return the commands that make the data of a range again from its source, to the same bytes.

    Nothing is deleted before its raw files are here again: the record is set aside, so that the range does
    not count as finished, and the split compares its files with it.
    """
    record = SplitRecord.of(paths, name).folder
    aside = f"mv {shlex.join(map(str, (record, record.with_name(ASIDE))))} && " if is_present(record) else ""
    return f"{aside}crpipe stage {name} && crpipe split {name}"


def train_again(paths: Paths, link: str) -> str:
    """Return the commands that write a receipt again, from its checkpoint or by training."""
    return f"{removing(paths.receipt(link))} && crpipe train {link}"


def retrain(paths: Paths, link: str) -> str:
    """Return the commands that train a link from its beginning; its files are set aside, not deleted."""
    store = paths.store(link)
    aside = (
        f"mv {shlex.join(map(str, (store, store.with_name(f'{link}.old'))))} && " if is_present(store) else ""
    )
    receipts = (paths.receipt(link), paths.best_receipt(link))
    return f"{aside}{removing(*receipts)} && crpipe train {link}"


def removing(*files: Path) -> str:
    """Return the command that removes files and folders."""
    return f"rm -rf {shlex.join(map(str, files))}"
