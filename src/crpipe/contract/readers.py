"""The contract of a reader: blocks as its layout says, the same ones each time, damage named by file."""

from __future__ import annotations

import copy
import itertools
from functools import partial
from typing import TYPE_CHECKING

from crpipe.config.loading import validate
from crpipe.contract.cases import Case, check
from crpipe.core.errors import ConfigError, CrpipeError, FormatError, MachineError
from crpipe.events.batch import Events, concatenate
from crpipe.train.answers import refuse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from crpipe.campaign.readers import CheckedReader

KIND = "reader"
_CUTS = (0.0, 0.5, 0.9)  # what is left of a truncated file


def same_events(one: Events, other: Events) -> bool:
    """Compare two blocks, byte for byte."""
    pairs = [(one.multiplicity, other.multiplicity), (one.items, other.items)]
    pairs += [(values, other.columns[name]) for name, values in one.columns.items()]
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def rows_of(reader: CheckedReader, path: Path) -> Events | None:
    """Read a whole file; None for one without blocks."""
    blocks = list(reader.rows(path))
    return concatenate(blocks) if blocks else None


@check(KIND)
def rows_are_as_the_layout_says(case: Case) -> None:
    """Columns, types, shapes and legal values are those of the layout; such events may be rejected."""
    reader = case.reader()
    for path in case.files:
        for block in reader.rows(path):
            if case.rejects:
                continue
            for field in reader.layout.events:
                _legal(
                    f"{reader.name}.rows", path, field.name, block.columns[field.name], field.low, field.high
                )
            for column, field in enumerate(reader.layout.items):
                _legal(f"{reader.name}.rows", path, field.name, block.items[:, column], field.low, field.high)


def _legal(method: str, path: Path, name: str, values: np.ndarray, low: float, high: float) -> None:
    bad = values[~((values >= low) & (values <= high))]
    if len(bad):
        refuse(method, f"{name} within {low:g} to {high:g} in {path.name}", f"{bad[0]}")


@check(KIND)
def totals_are_the_sums_of_rows(case: Case) -> None:
    """The file's own account, which the split compares with what was read."""
    reader = case.reader()
    for path in case.files:
        events = rows_of(reader, path)
        read = (0, 0) if events is None else (len(events), int(events.multiplicity.sum()))
        counted = reader.totals(path)
        if counted != read:
            refuse(f"{reader.name}.totals", f"{read}, as rows gave for {path.name}", f"{counted}")


@check(KIND)
def rows_are_the_same_each_time(case: Case) -> None:
    """A second pass, and a reader of no other file, give the same bytes; passes at once do not mix."""
    reader = case.reader()
    for path in case.files:
        first = rows_of(reader, path)
        for name, events in (
            ("a second pass", rows_of(reader, path)),
            ("another reader", rows_of(case.reader(), path)),
        ):
            if first is not None and (events is None or not same_events(first, events)):
                refuse(f"{reader.name}.rows", f"the same rows of {path.name} each time", f"others in {name}")
        pairs = list(itertools.zip_longest(reader.rows(path), reader.rows(path)))
        if any(one is None or two is None or not same_events(one, two) for one, two in pairs):
            refuse(f"{reader.name}.rows", "two passes at once to be independent", "rows that differ")


@check(KIND)
def blocks_that_were_given_stay_as_they_are(case: Case) -> None:
    """The engine holds blocks while it reads on: no buffer may be used twice."""
    reader = case.reader()
    for path in case.files:
        held = [(block, copy.deepcopy(block)) for block in reader.rows(path)]
        if not all(same_events(block, before) for block, before in held):
            refuse(f"{reader.name}.rows", "blocks that stay as they were given", "one that changed later")


@check(KIND)
def reading_changes_no_file(case: Case) -> None:
    """A raw file is verified once, and read by several workers."""
    reader = case.reader()
    for path in case.files:
        before = path.read_bytes()
        rows_of(reader, path)
        reader.totals(path)
        if path.read_bytes() != before:
            refuse(f"{reader.name}.rows", f"{path.name} unchanged", "other bytes after it was read")


@check(KIND)
def a_truncated_file_is_refused_by_its_name(case: Case) -> None:
    """Half a file must not pass for a whole one; plain text carries no length, and cannot be judged."""
    whole = case.files[0]
    content = whole.read_bytes()
    cuts = _CUTS if b"\0" in content else (0.0,)
    for left in cuts:
        cut = case.scratch() / whole.name
        # Records of one size have no length either: an odd number of bytes ends within one of them.
        cut.write_bytes(content[: int(left * len(content)) | bool(left)])
        _refuse_cut(case.reader(), cut, left)


def _refuse_cut(reader: CheckedReader, cut: Path, left: float) -> None:
    """Fail unless a reader refuses a file of which so much is left."""
    for method, read in (("rows", rows_of), ("totals", type(reader).totals)):
        error = _error_of(partial(read, reader, cut))
        what = f"an error that names {cut.name}, cut to {left:.0%}"
        if error is None:
            if method == "rows" or not left:
                refuse(f"{reader.name}.{method}", what, "none")
        elif str(cut) not in str(error):
            refuse(f"{reader.name}.{method}", what, str(error))
        elif getattr(reader.reader, "formats", ()) and not isinstance(error, FormatError):
            refuse(
                f"{reader.name}.{method}", f"FormatError for {cut.name}", f"{type(error).__name__}: {error}"
            )


def _error_of(read: Callable[[], object]) -> Exception | None:
    try:
        read()
    except MachineError:
        raise
    except CrpipeError as error:
        return error
    return None


@check(KIND)
def an_unknown_option_is_refused_in_one_line(case: Case) -> None:
    """A misspelt option must not be silence."""
    refuse_unknown_option(case, "reader")


def refuse_unknown_option(case: Case, kind: str) -> None:
    """Fail unless a misspelt option of a plug-in is refused in one line."""
    section = "model" if kind == "workload" else kind
    tree = case.config.model_dump(mode="json", exclude_unset=True)
    tree[section] = {**tree.get(section, {}), "no_such_option": 1}
    try:
        validate(tree)
    except ConfigError as error:
        lines = str(error).splitlines()
        if len(lines) == 1 and "no_such_option" in lines[0]:
            return
        refuse(f"{case.plugin(kind)}Options", "one line on no_such_option", str(error))
    refuse(f"{case.plugin(kind)}Options", 'an unknown option to be refused (extra="forbid")', "it is taken")
