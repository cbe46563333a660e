"""The contract of a simulator: files follow from name and seed alone, and its reader reads them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from crpipe.campaign.simulators import file_names, offered_tables, written_tables
from crpipe.contract.cases import Case, check, skip
from crpipe.contract.readers import refuse_unknown_option, rows_of, same_events
from crpipe.core.errors import ConfigError
from crpipe.inference.fresh import check_fresh
from crpipe.setup.compatibility import check_simulator
from crpipe.statistics.groups import group_numbers
from crpipe.train.answers import refuse

if TYPE_CHECKING:
    from pathlib import Path

KIND = "simulator"
_GROUPS = 20


def _written(case: Case, file: str, seed: int, folder: Path) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    case.simulator().write(case.range, file, seed, folder / file)
    return (folder / file).read_bytes()


@check(KIND)
def files_are_named_once_and_the_same_each_time(case: Case) -> None:
    """A listing is made more than once."""
    names = file_names(case.simulator(), case.range)
    method = f"{case.plugin(KIND)}.files"
    if not names or len({*names}) != len(names):
        refuse(method, f"names of range {case.range}, each once", f"{names}")
    if names != file_names(case.simulator(), case.range):
        refuse(method, "the same names each time", "others the second time")


@check(KIND)
def files_that_are_written_are_those_that_are_named(case: Case) -> None:
    """Nothing but the file at the path that was given."""
    folder = case.scratch()
    for file in file_names(case.simulator(), case.range):
        case.simulator().write(case.range, file, case.config.seed, folder / file)
    written = sorted(path.name for path in folder.iterdir())
    if written != sorted(file_names(case.simulator(), case.range)):
        refuse(f"{case.plugin(KIND)}.write", "the files that `files` names, no others", f"{written}")


@check(KIND)
def equal_arguments_give_equal_bytes(case: Case) -> None:
    """A file that is made again is the same file; another seed or name makes another."""
    folder = case.scratch()
    method, seed = f"{case.plugin(KIND)}.write", case.config.seed
    first, *others = file_names(case.simulator(), case.range)
    once = _written(case, first, seed, folder / "once")
    if _written(case, first, seed, folder / "again") != once:
        refuse(method, f"the same bytes of {first} for the same seed", "other bytes")
    if _written(case, first, seed + 1, folder / "other") == once:
        refuse(method, f"other bytes of {first} for another seed", "the same bytes")
    if others and _written(case, others[0], seed, folder / "next") == once:
        refuse(method, f"other events in {others[0]} than in {first}", "the same bytes")


@check(KIND)
def files_written_at_the_same_time_are_the_same(case: Case) -> None:
    """Several threads of one process write files with one simulator."""
    folder = case.scratch()
    simulator, seed = case.simulator(), case.config.seed
    first = file_names(simulator, case.range)[0]
    alone = _written(case, first, seed, folder / "alone")
    with ThreadPoolExecutor(4) as threads:
        paths = [folder / f"{number}-{first}" for number in range(4)]
        list(threads.map(lambda path: simulator.write(case.range, first, seed, path), paths))
    if any(path.read_bytes() != alone for path in paths):
        refuse(f"{case.plugin(KIND)}.write", "the same bytes from several threads at once", "other bytes")


@check(KIND)
def its_reader_reads_its_files(case: Case) -> None:
    """Layouts agree, and every file has events that are read whole."""
    if not case.has("reader"):
        skip("no reader is named")
    reader = case.reader()
    try:
        check_simulator(reader.layout, reader.name, case.simulator().layout, case.plugin(KIND))
    except ConfigError as error:
        refuse(f"{case.plugin(KIND)}.layout", f"the columns that {reader.name} reads", str(error))
    for path in case.files:
        events = rows_of(reader, path)
        if events is None or not len(events):
            refuse(f"{case.plugin(KIND)}.write", f"events in {path.name}", "none")


@check(KIND)
def tables_are_those_that_it_offers(case: Case) -> None:
    """Side tables exist, are made again as they were, and are named by ``offers``."""
    folder = case.scratch()
    simulator, method = case.simulator(), f"{case.plugin(KIND)}.tables"
    tables = written_tables(simulator, folder / "once")
    if {*tables} != {*offered_tables(simulator)}:
        refuse(method, f"the tables of `offers`, {offered_tables(simulator)}", f"{sorted(tables)}")
    again = written_tables(case.simulator(), folder / "again")
    changed = [name for name in tables if tables[name].read_bytes() != again[name].read_bytes()]
    if changed:
        refuse(method, "the same bytes each time", f"another {changed[0]}")


@check(KIND)
def events_simulated_again_are_those_events(case: Case) -> None:
    """``again`` keeps the columns, follows from the seed, and is not the first simulation once more."""
    simulator = case.simulator()
    if not hasattr(simulator, "again"):
        skip("it has no `again`")
    method, events = f"{case.plugin(KIND)}.again", case.events
    before = {name: values.copy() for name, values in events.columns.items()}
    simulated, same, other = (case.simulator().again(events.columns, seed) for seed in (1, 1, 2))
    if any((values != before[name]).any() for name, values in events.columns.items()):
        refuse(method, "the columns that it was given unchanged", "other values")
    if len(simulated) != len(events) or simulated.items.shape[1] != len(case.layout.items):
        refuse(
            method,
            f"{len(events)} events of the layout",
            f"{len(simulated)} with {simulated.items.shape[1]} columns",
        )
    if not same_events(simulated, same):
        refuse(method, "the same events for the same seed", "others")
    if same_events(simulated, other):
        refuse(method, "other events for another seed", "the same ones")


@check(KIND)
def fresh_events_are_one_of_each_new_group(case: Case) -> None:
    """``fresh`` follows from the seed; an evaluation takes each of its events for a group of its own."""
    if not hasattr(case.simulator(), "fresh"):
        skip("it has no `fresh`")
    name, method = case.plugin(KIND), f"{case.plugin(KIND)}.fresh"
    simulated, same, other = (case.simulator().fresh(_GROUPS, seed) for seed in (1, 1, 2))
    for events in (simulated, same, other):
        check_fresh(events, _GROUPS, case.layout, name)
    groups = int(group_numbers([simulated.columns[each] for each in case.layout.group]).max()) + 1
    if groups != _GROUPS:
        refuse(method, f"{_GROUPS} groups", f"{groups}")
    if not same_events(simulated, same):
        refuse(method, "the same events for the same seed", "others")
    if same_events(simulated, other):
        refuse(method, "other events for another seed", "the same ones")


@check(KIND)
def an_unknown_option_is_refused_in_one_line(case: Case) -> None:
    """A misspelt option must not be silence."""
    refuse_unknown_option(case, KIND)
