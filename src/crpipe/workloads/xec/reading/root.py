"""ROOT files of the xenon detector: one entry per event in, bounded blocks of checked events out."""

from __future__ import annotations

import contextlib
import difflib
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from crpipe.core.errors import FormatError, require
from crpipe.events.batch import Events
from crpipe.events.expectations import Expectations
from crpipe.events.notes import note
from crpipe.workloads.common.raw_files import reading
from crpipe.workloads.xec.layout import LARGEST, SENSORS, TRUTH, TYPICAL, Truth, sensor_layout
from crpipe.workloads.xec.sensors import read_sensor_map, sensor_map, uvw

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from crpipe.campaign.records import Tables
    from crpipe.events.layout import Layout
    from crpipe.workloads.xec.reading.options import RootFilesOptions

# Lists of dead sensors: one for all runs, or one with the run of each entry.

_HEADER = "run,sensor_id"


class DeadSensors:
    """Which sensors are dead in which run; ``sensors`` has a list for each run, and None for all runs."""

    def __init__(self, sensors: Mapping[int | None, list[int]]) -> None:
        self._lists = {run: np.unique(each) for run, each in sensors.items()}

    def of(self, runs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the dead sensors of each event: [N, 4760]."""
        dead = np.zeros((len(runs), SENSORS), bool)
        for run, sensors in self._lists.items():
            events = np.arange(len(runs)) if run is None else np.flatnonzero(runs == run)
            dead[np.ix_(events, sensors)] = True
        return dead


def read_dead(path: Path) -> DeadSensors:
    """Read a list of dead sensors; raise FormatError with the line.

    Either one sensor id in each line, or a CSV table with the header run,sensor_id. Text after # is ignored.
    """
    lists: dict[int | None, list[int]] = {}
    by_run: bool | None = None
    for number, line in enumerate(_lines(path), 1):
        text = ",".join(part.strip() for part in line.partition("#")[0].split(","))
        if not text:
            continue
        if by_run is None:
            by_run = text == _HEADER
            if by_run:
                continue
        run, sensor = _entry(path, number, text, by_run=by_run)
        lists.setdefault(run, []).append(sensor)
    return DeadSensors(lists)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{path}: expected a text file of dead sensors ({error}); name one in source.tables, as dead"
        ) from error


def _entry(path: Path, number: int, text: str, *, by_run: bool) -> tuple[int | None, int]:
    try:
        *run, sensor = map(int, text.split(","))
    except ValueError:
        run, sensor = [], -1
    if len(run) != by_run or not 0 <= sensor < SENSORS:
        expected = _HEADER if by_run else f"a sensor id, or {_HEADER} as the first line"
        raise FormatError(
            f"{path}: line {number}: expected {expected}, with sensors from 0 to {SENSORS - 1}, found "
            f"{text!r}; correct this file, which source.tables names as dead"
        )
    return (run[0] if run else None), sensor


# TTrees of ROOT files: the tree and its branches are checked, then read in blocks of bounded memory.

_SMALL = 1 << 12  # events of a block of small branches
_TREE = "TTree"
_NTUPLES = ("ROOT::RNTuple", "ROOT::Experimental::RNTuple")


class EventTree:
    """One open TTree; ``path`` and its ``name`` are in all messages."""

    def __init__(self, path: Path, name: str, tree: Any) -> None:
        self.path, self.name, self._tree = path, name, tree
        self.branches: dict[str, Any] = {each.name: each for each in tree.branches}
        self._names = [each.name for each in tree.branches]
        self.events = int(tree.num_entries)

    def need(self, option: str, name: str) -> None:
        """Raise FormatError when there is no branch ``name``, which ``option`` of the reader names."""
        if name not in self.branches:
            near = difflib.get_close_matches(name, self.branches, n=3, cutoff=0.4) or sorted(self.branches)
            raise FormatError(
                f"{self.path}: tree {self.name}: no branch {name} (near: {', '.join(near)}); name the right "
                f"one in reader.branches.{option}"
            )

    def check(self, name: str, kinds: str, shape: tuple[int, ...], usual: str = "") -> None:
        """Raise FormatError unless one branch holds numbers of ``kinds`` (as in numpy) in this shape.

        Note another kind than the ``usual`` ones, which is converted.
        """
        if self._names.count(name) > 1:
            raise FormatError(
                f"{self.path}: tree {self.name}: {self._names.count(name)} branches are called {name}; have "
                "the file made again"
            )
        branch = self.branches[name]
        word = {"f": "float or double", "fiu": "float, double or an integer type"}[kinds]
        expected = f"{word}{list(shape) or ''}"
        with _reading(self.path):
            fits = _fits(branch.interpretation, kinds, shape)
            is_usual = not usual or _fits(branch.interpretation, usual, shape)
            entries = int(branch.num_entries)
        if not fits:
            raise FormatError(
                f"{self.path}: tree {self.name}: branch {name}: expected {expected}, found "
                f"{branch.typename}; have the file made again"
            )
        if entries != self.events:
            raise FormatError(
                f"{self.path}: tree {self.name}: branch {name}: expected {self.events} entries as in the "
                f"tree, found {entries}; have the file made again"
            )
        if not is_usual:
            note(f"branch {name}: {branch.typename} is read as {'float' if usual == 'f' else 'an integer'}")

    def continues(self, earlier: Any) -> bool:
        """Return whether another state of the tree has only baskets that this one begins with."""
        if not earlier.num_entries:
            return True
        baskets = [_baskets(each) for each in earlier.branches]
        own_baskets = [_baskets(self.branches.get(each.name)) for each in earlier.branches]
        return any(baskets) and all(
            mine[: len(each)] == each for mine, each in zip(own_baskets, baskets, strict=True)
        )

    def whole(self, *names: str) -> list[NDArray[Any]]:
        """Read small branches of all events: [N] each. In blocks, as an open basket costs 10 kB."""
        blocks = list(self.blocks(dict.fromkeys(names, ()), _SMALL))
        return [np.concatenate([each[name] for each in blocks] or [np.zeros(0)]) for name in names]

    def blocks(self, shapes: Mapping[str, tuple[int, ...]], step: int) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield branches in blocks of ``step`` events: {name: [n, *shape]}; raise FormatError.

        Lists of variable length must have the length that the shape says.
        """
        with _reading(self.path):
            iterator = self._tree.iterate(filter_name=shapes.__contains__, step_size=step, library="np")
        row = 0
        while True:
            with _reading(self.path):
                block = next(iterator, None)
                if block is None:
                    return
                dense = {name: self._dense(name, block[name], shapes[name], row) for name in shapes}
            counts = {name: len(values) for name, values in dense.items()}
            if len({*counts.values()}) > 1:
                raise FormatError(
                    f"{self.path}: row {row}: expected as many entries of each branch, found {counts}; it is "
                    "damaged, have it copied or made again"
                )
            yield dense
            row += len(next(iter(dense.values())))

    def _dense(self, name: str, values: NDArray[Any], shape: tuple[int, ...], row: int) -> NDArray[Any]:
        """Turn the lists of a block that begins at ``row`` into an array; others are one already."""
        if values.dtype != object:
            if values.shape[1:] != shape:
                raise FormatError(
                    f"{self.path}: row {row}: {name}: expected {list(shape)} values of each event, found "
                    f"{list(values.shape[1:])}; it is damaged, have it copied or made again"
                )
            return values
        lengths = np.array([len(each) for each in values])
        wrong = lengths != shape[0]
        if wrong.any():
            at = int(np.argmax(wrong))
            raise FormatError(
                f"{self.path}: row {row + at}: {name}: expected {shape[0]} values, found {lengths[at]}; have "
                "the file made again"
            )
        return np.stack([np.asarray(each) for each in values])


def _baskets(branch: Any) -> list[int]:
    """Return the places of the baskets of a branch in its file."""
    if branch is None:
        return []
    return [int(place) for place in branch.member("fBasketSeek")[: branch.member("fWriteBasket")]]


@contextlib.contextmanager
def open_tree(path: Path, name: str) -> Iterator[EventTree]:
    """Open a tree without uproot's caches, which would keep what was read; raise FormatError.

    What else the file holds is noted, and another tree of this name with other events is refused.
    """
    with contextlib.ExitStack() as stack:
        with _reading(path):
            file = stack.enter_context(_uproot().open(path, array_cache=None, object_cache=None))
            _check_whole(path, int(file.file.fEND))
            kinds = file.classnames()
            tree = EventTree(path, name, file[_key_of(path, name, kinds)])
            _check_others(path, tree, file, kinds)
        yield tree


def _key_of(path: Path, name: str, kinds: Mapping[str, str]) -> str:
    """Choose the newest cycle of a tree among the keys of a file, or the one that ``name;2`` names."""
    cycles = [key for key, kind in kinds.items() if kind == _TREE and name in (key, _plain(key))]
    if cycles:
        return max(cycles, key=lambda key: int(key.rpartition(";")[2]))
    trees = [_plain(key) for key, kind in kinds.items() if kind == _TREE]
    ntuples = [_plain(key) for key, kind in kinds.items() if kind in _NTUPLES]
    if name in ntuples or (ntuples and not trees):
        other = name if name in ntuples else ntuples[0]
        raise FormatError(
            f"{path}: {other} is an RNTuple, and this reader reads a TTree; have it written as one, in ROOT: "
            f'ROOT::RDataFrame("{other}", "{path.name}").Snapshot("{name}", "tree.root")'
        )
    names = ", ".join(dict.fromkeys(trees)) or "none"
    near = difflib.get_close_matches(name, trees, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise FormatError(
        f"{path}: no tree {name} (the trees of the file: {names}{hint}); name the right one in reader.tree"
    )


def _plain(key: str) -> str:
    return key.rpartition(";")[0]


def _check_others(path: Path, tree: EventTree, file: Any, kinds: Mapping[str, str]) -> None:
    """Note the trees that are not read; raise FormatError for an earlier cycle that holds other events.

    A program that saves its tree now and then leaves an earlier state of it, which has the same baskets.
    """
    cycle = tree.name if tree.name in kinds else _key_of(path, tree.name, kinds)
    unread = []
    for key, kind in kinds.items():
        if key == cycle or kind not in (_TREE, *_NTUPLES):
            continue
        if _plain(key) != tree.name:
            unread.append(key if _plain(key) == _plain(cycle) else _plain(key))
        elif kind == _TREE and tree.continues(file[key]):
            note(f"the earlier state {key} is not read: its entries are in the newest one")
        else:
            raise FormatError(
                f"{path}: {key} holds other events than the newest cycle of {tree.name}, and would be left "
                f'unread; have one file made of each (or name the cycle to read, as reader.tree: "{cycle}")'
            )
    if unread:
        note(f"trees that are not read: {', '.join(dict.fromkeys(unread))}")


def _check_whole(path: Path, written: int) -> None:
    """Raise FormatError for a file shorter than its header says, most of which may be readable, or longer."""
    size = path.stat().st_size
    if size < written:
        raise FormatError(
            f"{path}: cannot be read whole (its header says {written} bytes, found {size}); it is "
            "truncated; have it copied again"
        )
    with path.open("rb") as file:
        file.seek(written)
        rest = any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 20), b""))
    if rest:
        raise FormatError(
            f"{path}: the file ends at byte {written}, but {size - written} more follow, which would be "
            "left unread: another file was joined to it; have it copied or made again (hadd joins ROOT "
            "files, cat does not)"
        )


def _reading(path: Path) -> contextlib.AbstractContextManager[None]:
    """Catch whatever uproot raises: its own code reads what the file's bytes describe."""
    return reading(path, Exception)


def _uproot() -> ModuleType:
    return require("uproot", extra="root", why="to read ROOT files")


def _fits(interpretation: Any, kinds: str, shape: tuple[int, ...]) -> bool:
    """Compare uproot's interpretation of a branch with what is expected."""
    content = getattr(interpretation, "content", None)  # of lists of variable length
    kind = interpretation if content is None else content
    dtype = getattr(kind, "to_dtype", None)
    if dtype is None or dtype.base.kind not in kinds:
        return False
    if content is not None:
        return len(shape) == 1 and dtype.shape == ()
    return bool(dtype.shape == shape)


_EVENTS = (16 << 20) // (16 * SENSORS)  # of a block: 16 MiB of items
_AT_ONCE = 16  # events whose flags are found together, so that they stay in the processor's cache
_NS = 1e9
_SHAPES: dict[Truth, tuple[int, ...]] = {"energy": (), "position": (3,), "time": (), "angle": (2,)}
_UNITS: dict[Truth, float] = {"energy": 1, "position": 1, "time": _NS, "angle": np.pi / 180}


class RootFiles:
    """Reader of TTrees; ``reader.branches`` names the branches of photons, times, run, event and truth.

    What is no value in a file (NaN, 1e10, the time of little light) becomes a flag here and nowhere else:
    see ``flag_sensors``. A branch of the truth that a file lacks gives NaN, which a split refuses and a
    prediction does not need. (run, event) must be unique in a file.
    """

    formats: ClassVar[tuple[str, ...]] = ("ROOT",)

    def __init__(self, options: RootFilesOptions) -> None:
        self._options = options
        self.layout: Layout = sensor_layout(
            options.truth,
            options.group,
            fiducial=options.fiducial,
            saturated=options.saturated is not None,
        )
        self.needs: tuple[str, ...] = tuple(name for name in ("sensors", "dead") if getattr(options, name))

    @cached_property
    def expectations(self) -> Expectations:
        """What is known of the values beside the layout: usual sizes, units, and where the sensors are."""
        axes = dict(zip(("u_cm", "v_cm", "w_cm"), uvw(sensor_map()[:, :3]).T, strict=True))
        return Expectations(
            typical=TYPICAL,
            units={"gamma_time_ns": "s", "sensors.time_ns": "s"}
            | dict.fromkeys(("theta_rad", "phi_rad"), "degrees"),
            flags={"sensors.photons": "photons_valid", "sensors.time_ns": "time_valid"},
            axes=axes,
            weights="photons",
            sentinel="reader.sentinel",
            saturated={"sensors.photons": self._options.saturated or "reader.saturated"},
        )

    def rows(self, path: Path, tables: Tables) -> Iterator[Events]:
        """Yield all events in the order of the file, in blocks of 16 MiB of items."""
        self._check_places(tables)
        dead = read_dead(tables["dead"]) if self._options.dead else DeadSensors({})
        with open_tree(path, self._options.tree) as tree:
            shapes = self._check(tree)
            branches = self._options.branches
            names = (branches.run, branches.event)
            run, event = (
                _whole(path, name, values) for name, values in zip(names, tree.whole(*names), strict=True)
            )
            _refuse_twins(path, run, event)
            row = 0
            for block in tree.blocks(shapes, _EVENTS):
                npho, time = block[branches.npho], block[branches.relative_time]
                rows = slice(row, row + len(npho))
                columns = {"run": run[rows], "event": event[rows]}
                items = flag_sensors(npho, time, dead.of(run[rows]), self._options)
                multiplicity = np.full(len(npho), SENSORS, np.uint32)
                yield Events(columns | self._truth(block, len(npho)), multiplicity, items)
                row += len(npho)

    def totals(self, path: Path, tables: Tables) -> tuple[int, int]:
        """Count events by the entries of the tree; refuse a wrong map of the sensors and a wrong tree."""
        self._check_places(tables)
        with open_tree(path, self._options.tree) as tree:
            self._check(tree)
            return tree.events, tree.events * SENSORS

    def _check_places(self, tables: Tables) -> None:
        if self._options.sensors:
            read_sensor_map(tables["sensors"])

    def _check(self, tree: EventTree) -> dict[str, tuple[int, ...]]:
        """Return the shape of each branch to read in blocks; raise FormatError for one that does not fit."""
        branches = self._options.branches
        for option in ("npho", "relative_time", "run", "event"):
            tree.need(option, getattr(branches, option))
        for name in (branches.run, branches.event):
            tree.check(name, "fiu", (), usual="iu")
        shapes: dict[str, tuple[int, ...]] = {branches.npho: (SENSORS,), branches.relative_time: (SENSORS,)}
        truth = {getattr(branches, name): _SHAPES[name] for name in self._options.truth}
        shapes |= {name: shape for name, shape in truth.items() if name in tree.branches}
        lacking = [name for name in truth if name not in tree.branches]
        if lacking:
            note(f"no branch {', '.join(lacking)}: NaN; set reader.truth: [] for measured events")
        for name, shape in shapes.items():
            tree.check(name, "fiu" if name == branches.npho else "f", shape, usual="f")
        return shapes

    def _truth(self, block: dict[str, NDArray[Any]], events: int) -> dict[str, NDArray[np.float32]]:
        """Turn the truth's branches into columns in crpipe's units: {name: [N] float32}."""
        columns: dict[str, NDArray[np.float32]] = {}
        for truth in self._options.truth:
            fields = TRUTH[truth]
            branch = block.get(getattr(self._options.branches, truth), np.full((events, len(fields)), np.nan))
            with np.errstate(over="ignore"):  # infinities are not legal, and are reported with their row
                values = (branch.reshape(events, -1).astype(np.float64) * _UNITS[truth]).astype(np.float32)
            columns |= {field.name: values[:, at].copy() for at, field in enumerate(fields)}
        return columns


def flag_sensors(
    npho: NDArray[Any], relative_time: NDArray[Any], dead: NDArray[np.bool_], options: RootFilesOptions
) -> NDArray[np.float32]:
    """Turn photons and times [s] with sentinels, [N, 4760] each, into items with flags: [N·4760, 4 or 5].

    photons_valid: npho is within ±9e9 or inf, none of ``options.sentinel``, and the sensor is not in ``dead``
    [N, 4760]. time_valid: photons_valid, npho is at least ``options.npho_threshold``, and the time is within
    ±9e9 and none of the sentinels. Where a flag is 0, so is the value. With ``options.saturated`` as many
    photons, or more, become that number, with 1 in the column ``saturated``; without it inf stays inf, for
    the split to refuse.
    """
    items = np.empty((len(npho), SENSORS, 4 if options.saturated is None else 5), np.float32)
    if npho.dtype.kind in "iu":
        npho = npho.astype(np.float64)
    for first in range(0, len(npho), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        photons, time = npho[some], relative_time[some]
        seen = ((np.abs(photons) <= LARGEST) | (photons == np.inf)) & ~dead[some]  # NaN is not <= anything
        timed = np.abs(time) <= LARGEST
        if options.sentinel:
            seen &= ~np.isin(photons, np.array(options.sentinel, photons.dtype))
            timed &= ~np.isin(time, np.array(options.sentinel, time.dtype))
        timed &= seen & (photons >= options.npho_threshold)
        if options.saturated is not None:
            items[some, :, 4] = seen & (photons >= options.saturated)
            photons = np.minimum(photons, options.saturated)
        items[some, :, 0] = np.where(seen, photons, 0)
        items[some, :, 1] = np.where(timed, time, 0) * _NS
        items[some, :, 2] = seen
        items[some, :, 3] = timed
    return items.reshape(-1, items.shape[2])


def _whole(path: Path, name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """Return whole numbers, [N]; raise FormatError for floats that are none, or too large to be exact."""
    if values.dtype.kind == "f":
        exact = 2.0 ** (np.finfo(values.dtype).nmant + 1)
        wrong = ~((np.floor(values) == values) & (np.abs(values) <= exact))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise FormatError(
                f"{path}: row {row}: {name}: expected a whole number up to {exact:.0f}, found {values[row]}; "
                "have the file made again, with an integer type"
            )
    return values.astype(np.int64)


def _refuse_twins(path: Path, run: NDArray[Any], event: NDArray[Any]) -> None:
    """Raise FormatError when two rows of a file have the same run and event."""
    order = np.lexsort((event, run))
    same = (np.diff(run[order]) == 0) & (np.diff(event[order]) == 0)
    if same.any():
        at = int(np.argmax(same))
        one, other = sorted(order[at : at + 2].tolist())
        raise FormatError(
            f"{path}: rows {one} and {other}: both are event {event[one]} of run {run[one]}; expected each "
            "event once; have the file made again"
        )
