"""TTrees of ROOT files: the tree and its branches are checked, then read in blocks of bounded memory."""

from __future__ import annotations

import contextlib
import difflib
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from crpipe.core.errors import FormatError
from crpipe.core.extras import require
from crpipe.workloads.xec.reading.checks import reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray


_SMALL = 1 << 12  # events of a block of small branches


class EventTree:
    """One open TTree; ``path`` and its ``name`` are in all messages."""

    def __init__(self, path: Path, name: str, found: Any) -> None:
        self.path, self.name, self._found = path, name, found
        self.branches: dict[str, Any] = {each.name: each for each in found.branches}
        self._names = [each.name for each in found.branches]
        self.events = int(found.num_entries)

    def need(self, option: str, name: str) -> None:
        """Raise FormatError when there is no branch ``name``, which ``option`` of the reader names."""
        if name not in self.branches:
            near = difflib.get_close_matches(name, self.branches, n=3, cutoff=0.4) or sorted(self.branches)
            raise FormatError(
                f"{self.path}: tree {self.name}: no branch {name} (near: {', '.join(near)}); name the right "
                f"one in reader.branches.{option}"
            )

    def check(self, name: str, kinds: str, shape: tuple[int, ...]) -> None:
        """Raise FormatError unless one branch holds numbers of ``kinds`` (as in numpy) in this shape."""
        if self._names.count(name) > 1:
            raise FormatError(
                f"{self.path}: tree {self.name}: {self._names.count(name)} branches are called {name}; have "
                "the file made again"
            )
        branch = self.branches[name]
        word = {"f": "float or double", "iu": "an integer type"}[kinds]
        expected = f"{word}{list(shape) or ''}"
        with _reading(self.path):
            fits = _fits(branch.interpretation, kinds, shape)
        if not fits:
            raise FormatError(
                f"{self.path}: tree {self.name}: branch {name}: expected {expected}, found "
                f"{branch.typename}; have the file made again"
            )
        if branch.num_entries != self.events:
            raise FormatError(
                f"{self.path}: tree {self.name}: branch {name}: expected {self.events} entries as in the "
                f"tree, found {branch.num_entries}; have the file made again"
            )

    def whole(self, *names: str) -> list[NDArray[Any]]:
        """Read small branches of all events: [N] each. In blocks, as an open basket costs 10 kB."""
        blocks = list(self.blocks(dict.fromkeys(names, ()), _SMALL))
        return [np.concatenate([each[name] for each in blocks] or [np.zeros(0)]) for name in names]

    def blocks(self, shapes: Mapping[str, tuple[int, ...]], step: int) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield branches in blocks of ``step`` events: {name: [n, *shape]}; raise FormatError.

        Lists of variable length must have the length that the shape says.
        """
        wanted = self._found.iterate(filter_name=shapes.__contains__, step_size=step, library="np")
        row = 0
        while True:
            with _reading(self.path):
                block = next(wanted, None)
            if block is None:
                return
            yield {name: self._dense(name, block[name], shapes[name], row) for name in shapes}
            row += len(next(iter(block.values())))

    def _dense(self, name: str, found: NDArray[Any], shape: tuple[int, ...], row: int) -> NDArray[Any]:
        """Turn the lists of a block that begins at ``row`` into an array; others are one already."""
        if found.dtype != object:
            return found
        lengths = np.array([len(each) for each in found])
        wrong = lengths != shape[0]
        if wrong.any():
            at = int(np.argmax(wrong))
            raise FormatError(
                f"{self.path}: row {row + at}: {name}: expected {shape[0]} values, found {lengths[at]}; have "
                "the file made again"
            )
        return np.stack([np.asarray(each) for each in found])


@contextlib.contextmanager
def open_tree(path: Path, name: str) -> Iterator[EventTree]:
    """Open a tree without uproot's caches, which would keep what was read; raise FormatError."""
    with contextlib.ExitStack() as stack:
        with _reading(path):
            file = stack.enter_context(_uproot().open(path, array_cache=None, object_cache=None))
            _check_whole(path, int(file.file.fEND))
            trees = file.keys(filter_classname="TTree", cycle=False)
            if name not in trees:
                known = ", ".join(dict.fromkeys(trees)) or "none"
                raise FormatError(
                    f"{path}: no tree {name} (the trees of the file: {known}); name the right "
                    "one in reader.tree"
                )
            tree = EventTree(path, name, file[name])
        yield tree


def _check_whole(path: Path, written: int) -> None:
    """Raise FormatError for a file shorter than its header says, most of which may be readable."""
    found = path.stat().st_size
    if found < written:
        raise FormatError(
            f"{path}: cannot be read whole (its header says {written} bytes, found {found}); it is "
            "truncated; have it copied again"
        )


def _reading(path: Path) -> contextlib.AbstractContextManager[None]:
    """Catch what uproot raises for damaged files: seen with files that were cut or had bytes changed."""
    kinds = (OSError, ValueError, LookupError, TypeError, AssertionError, AttributeError, NotImplementedError)
    return reading(path, *kinds, OverflowError, struct.error, zlib.error, _uproot().DeserializationError)


def _uproot() -> ModuleType:
    return require("uproot", extra="root", why="to read ROOT files")


def _fits(found: Any, kinds: str, shape: tuple[int, ...]) -> bool:
    """Compare uproot's interpretation of a branch with what is expected."""
    content = getattr(found, "content", None)  # of lists of variable length
    kind = found if content is None else content
    dtype = getattr(kind, "to_dtype", None)
    if dtype is None or dtype.base.kind not in kinds:
        return False
    if content is not None:
        return len(shape) == 1 and dtype.shape == ()
    return bool(dtype.shape == shape)
