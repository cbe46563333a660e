"""The store of one link: checkpoints and snapshots, whose names hold their hash, and the receipts.

A file is named ``<kind>-<key>[-<step>]-<sha256[:16]>.pt``: one rename publishes content and hash together.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import pickle
import struct
import sys
import zipfile
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from crpipe.core.causes import OF_FORM, refuse_machine_error, retry_io
from crpipe.core.errors import CheckpointError, UnseenError
from crpipe.core.files import atomic_write, sync
from crpipe.core.ranges import HASH_DIGITS
from crpipe.events.batch import Cursor
from crpipe.train.link_start import Saved, is_name, step_of, verified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from crpipe.campaign.records import BestReceipt, Receipt

FORMAT = 1
KEPT_SNAPSHOTS = 2
_ANOTHER = "use another checkpoint, or train again"
_LEFT = OF_FORM | {errno.ENOENT, errno.EISDIR, errno.ENOTDIR}  # a name that was typed
# What torch and its unpickler raise for content that nobody meant to be loaded.
_UNREADABLE = (
    *(OSError, RuntimeError, ValueError, EOFError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(AssertionError, MemoryError, pickle.UnpicklingError, struct.error, zipfile.BadZipFile),
)
PLAIN = (str, int, float, bool, type(None))
_FIELDS = ("keys", "model", "average", "optimizers", "shares", "counters")


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """Checkpoints and snapshots of one range under one key.

    check: raises an error when the store is not this process's any more; called before each file appears.
    """

    folder: Path
    key: str
    check: Callable[[], object] = bool

    def save_snapshot(self, state: dict[str, Any], step: int) -> Saved:
        """Write a snapshot, then drop all but the newest two of this key."""
        saved = self._save(state, f"snapshot-{self.key}-{step:010d}")
        for old in self._snapshots()[KEPT_SNAPSHOTS:]:
            old.unlink(missing_ok=True)
        self.drop_replaced()
        return saved

    def save_best(self, state: dict[str, Any], step: int) -> Saved:
        """Write the best checkpoint so far; step: of the link."""
        return self._save(state, f"best-{self.key}-{step:010d}")

    def drop_best_after(self, step: int) -> None:
        """Drop the best checkpoints of later steps."""
        for path in self._best():
            if step_of(path) > step:
                path.unlink(missing_ok=True)

    def best(self) -> Saved | None:
        """Find the best checkpoint of a finished link; raise CheckpointError when it is damaged."""
        paths = self._best()
        return verified(paths[-1]) if paths else None

    def drop_replaced(self, current: str = "") -> None:
        """Drop the best checkpoints that neither a snapshot refers to nor the receipt: that of ``current``.

        A snapshot refers to the last one up to its step; without ``current``, later ones stay, too.
        """
        best, snapshots = self._best(), [step_of(path) for path in self._snapshots()]
        kept = {path for step in snapshots for path in [p for p in best if step_of(p) <= step][-1:]}
        newest = max(snapshots, default=-1)
        for path in best:
            later = not current and step_of(path) > newest
            if path not in kept and path.name != current and not later:
                path.unlink(missing_ok=True)

    def _best(self) -> list[Path]:
        return sorted(self.folder.glob(f"best-{self.key}-*.pt"))

    def save_checkpoint(self, state: dict[str, Any]) -> Saved:
        """Write the finished state of the range."""
        return self._save(state, f"checkpoint-{self.key}")

    def drop_snapshots(self) -> None:
        """Delete the snapshots of this key, once its checkpoint exists, and flush that to the disk."""
        for path in self._snapshots():
            path.unlink(missing_ok=True)
        sync(self.folder)

    def drop_parts(self) -> None:
        """Delete the incomplete files of processes that were killed while saving."""
        for path in self.folder.glob(f".*-{self.key}*.part"):
            path.unlink(missing_ok=True)

    def checkpoint(self, say: Callable[[str], None]) -> Saved | None:
        """Find the finished checkpoint; a damaged one is reported, renamed, and trained again."""
        return _first_whole(sorted(self.folder.glob(f"checkpoint-{self.key}-*.pt")), say)

    def newest_snapshot(self, say: Callable[[str], None]) -> Path | None:
        """Find the newest undamaged snapshot; report and rename each damaged one."""
        saved = _first_whole(self._snapshots(), lambda text: say(f"{text}; falling back to the one before"))
        return saved.path if saved else None

    def has_snapshot(self) -> bool:
        """Return whether a training of this key has begun and is not finished."""
        return bool(self._snapshots())

    def _snapshots(self) -> list[Path]:
        return sorted(self.folder.glob(f"snapshot-{self.key}-*.pt"), reverse=True)

    def _save(self, state: dict[str, Any], stem: str) -> Saved:
        # Writing to a file, torch.save hides the system's error: a full disk would be a RuntimeError.
        buffer = io.BytesIO()
        torch.save(_canonical(state), buffer)
        content = buffer.getbuffer()
        full = hashlib.sha256(content).hexdigest()
        path = self.folder / f"{stem}-{full[:HASH_DIGITS]}.pt"
        with atomic_write(path) as part:
            part.write_bytes(content)
            self.check()
        return Saved(path, full)


def _first_whole(paths: Sequence[Path], say: Callable[[str], None]) -> Saved | None:
    """Find the first undamaged file; report and rename the damaged ones before it."""
    for path in paths:
        try:
            return verified(path)
        except UnseenError:
            raise
        except CheckpointError as error:
            say(str(error))
            path.replace(path.with_suffix(".damaged"))
    return None


def _canonical(value: Any) -> Any:
    """Copy a state so that equal states give equal bytes, whether they were resumed or not.

    Pickle writes an object once and then refers to it, by identity: strings must be the same objects, and
    tensors must not share memory.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {_canonical(name): _canonical(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return sys.intern(value) if isinstance(value, str) else value


def load(path: Path) -> dict[str, Any]:
    """Read a state onto the CPU, tensors and plain values only.

    Raise CheckpointError when it is none, or when a field is missing or of another type.
    """
    try:
        state = retry_io(lambda: _load_plain(path))
    except _UNREADABLE as error:
        refuse_machine_error(error, path, _LEFT, _LEFT)
        raise CheckpointError(f"{path}: cannot be loaded ({_reason(error)}); {_ANOTHER}") from error
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(f"{path}: not a checkpoint of crpipe; {_ANOTHER}")
    if state["format"] != FORMAT:
        other = state["format"] if isinstance(state["format"], PLAIN) else type(state["format"]).__name__
        raise CheckpointError(f"{path}: format {other!r}, this version reads {FORMAT}; {_ANOTHER}")
    try:
        problem = next(problems(state), "")
    except RecursionError:
        problem = "keys are nested without an end"
    if problem:
        raise CheckpointError(f"{path}: not a checkpoint as crpipe writes it: {problem}; {_ANOTHER}")
    return state


def _load_plain(path: Path) -> Any:
    _refuse_packed(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _refuse_packed(path: Path) -> None:
    """Raise an error unless a file is an archive that is as large as its content."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(each.file_size for each in archive.infolist())
    if unpacked > path.stat().st_size:
        raise ValueError(f"it holds {unpacked} bytes in {path.stat().st_size}")


def _reason(error: BaseException) -> str:
    """Return the text of an error on one line, without torch's advice to load what is not safe."""
    text = " ".join(str(error).split())
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        return "it holds other objects than tensors and plain values, which crpipe never loads"
    return text[:200] or type(error).__name__


@dataclass
class Counters:
    """The position of training. Totals are those of the whole chain; ``range_step`` counts in one link."""

    step: int = 0
    range_step: int = 0
    cursor: Cursor = field(default_factory=lambda: Cursor(0, 0))
    events: int = 0
    items: int = 0
    skipped: int = 0
    skipped_in_row: int = 0

    def state(self) -> dict[str, Any]:
        """Return plain values for a snapshot."""
        return {**vars(self), "cursor": list(self.cursor)}

    def of_next_link(self) -> Counters:
        """Keep the chain's totals; the position inside the link is its beginning."""
        return replace(self, range_step=0, cursor=Cursor(0, 0))

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Counters:
        """Return the counters that ``state`` gave."""
        return cls(**{**state, "cursor": Cursor(*state["cursor"])})


def problems(state: dict[Any, Any]) -> Iterator[str]:
    """Name what is missing from a state, or of another type."""
    for name in _FIELDS:
        if not isinstance(state.get(name), dict):
            yield f"{name} is no mapping" if name in state else f"{name} is missing"
        yield from (f"{name} has a key that is no text" for each in state[name] if not isinstance(each, str))
    for name, value in state["keys"].items():
        parents = name.split(".")[:-1]
        inside = [".".join(parents[: end + 1]) for end in range(len(parents))]
        yield from (f"keys has both {each} and {name}" for each in inside if each in state["keys"])
        if not _is_plain(value):
            yield f"the key {name} is no plain value"
    for kind in ("model", "average"):
        yield from (
            f"{kind} holds {each}, no tensor" for each, at in state[kind].items() if not _is_dense(at)
        )
    yield from (f"the share {each} is no number" for each, at in state["shares"].items() if not _is_real(at))
    yield from _scale_problems(state.get("loss_scales", {}))
    yield from _counter_problems(state["counters"])
    for name, optimizer in state["optimizers"].items():
        if not _is_optimizer(optimizer):
            yield f"the optimizer {name} is none"
    computed = state.get("numerics", [])
    if not (isinstance(computed, list) and all(isinstance(at, dict) and _is_plain(at) for at in computed)):
        yield "numerics is no list of mappings"
    if "range" in state and not is_name(state["range"]):
        yield "range is no name of a range"


def _counter_problems(counters: dict[str, Any]) -> Iterator[str]:
    cursor = counters.get("cursor")
    if not (isinstance(cursor, list) and [type(each) for each in cursor] == [int, int] and min(cursor) >= 0):
        yield "counters has no cursor"
    names = [each.name for each in fields(Counters)]
    if counters.keys() != {*names}:
        yield f"counters has {', '.join(sorted(counters))}"
    for name in names:
        if name != "cursor" and (type(counters[name]) is not int or counters[name] < 0):
            yield f"the counter {name} is no whole number"


def _scale_problems(scales: Any) -> Iterator[str]:
    for value in scales.values() if isinstance(scales, dict) else [scales]:
        match value:
            case [float(scale), float(steps)] if scale > 0 and _is_real(scale + steps):
                continue
        yield "a loss scale is no pair of numbers"


def _is_plain(value: Any) -> bool:
    """Return whether a value is one of JSON."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(each) for name, each in value.items())
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, PLAIN)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_dense(value: Any) -> bool:
    """Return whether a value is a tensor that holds all its numbers."""
    plain = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized
    return plain and value.device.type == "cpu" and value.nbytes <= value.untyped_storage().nbytes()


def _is_optimizer(saved: Any) -> bool:
    """Return whether a value has the form of what torch's optimizers save."""
    match saved:
        case {"state": dict(state), "param_groups": [*groups]}:
            listed = [group.get("params") for group in groups if isinstance(group, dict)]
            params = [each for names in listed if isinstance(names, list) for each in names]
            slots = [value for each in state.values() if isinstance(each, dict) for value in each.values()]
            indexed = all(type(index) is int and 0 <= index < len(params) for index in state)
            complete = len(listed) == len(groups) and all(isinstance(each, dict) for each in state.values())
            good = all(_is_dense(value) or _is_real(value) for value in slots)
            return complete and indexed and good and params == list(range(len(params)))
    return False


def refuse_not_finite(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise CheckpointError naming the first trained weight that is infinite or no number."""
    for name, value in weights.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{path}: the weight {name} is not finite; {_ANOTHER}")


def refuse_other_keys(state: dict[str, Any], keys: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError listing every configuration key that differs from the checkpoint's."""
    lines = [
        f"  {name}: checkpoint {state['keys'].get(name)!r}, run {keys.get(name)!r}"
        for name in sorted({*state["keys"], *keys})
        if state["keys"].get(name) != keys.get(name)
    ]
    if lines:
        head, remedy = f"{path}: made under another configuration:", "restore the values, or start a new run"
        raise CheckpointError("\n".join([head, *lines, remedy]))


def write_receipt(path: Path, receipt: Receipt | BestReceipt) -> None:
    """Write a receipt unless the same one exists: an unchanged file triggers nothing downstream."""
    if type(receipt).read_if_any(path) != receipt:
        receipt.write(path)
