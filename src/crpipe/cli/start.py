"""Verbs of the first hour: init writes a folder to work in, doctor looks at this machine and the source."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli.terminal import Settings, show
from crpipe.core.errors import ConfigError, SetupError

if TYPE_CHECKING:
    from crpipe.setup.init import Answers

# Handlers import what they call: a verb pays for its own libraries only.
# ruff: noqa: PLC0415

start = typer.Typer()

_RANGES = ("first", "last", "step")


@start.command()
def init(
    folder: Annotated[
        Path, typer.Argument(readable=False, help="folder of the campaign; made where it is missing")
    ] = Path(),
    workload: Annotated[
        str, typer.Option(help="an included workload by its name (a wrong name lists them), or module:Name")
    ] = "",
    uri: Annotated[
        str,
        typer.Option(help="raw files: a path, pelican:// or osdf:// with {range} or {number}; synthetic://"),
    ] = "",
    files: Annotated[str, typer.Option(help="text file that lists the raw files, in place of --uri")] = "",
    reader: Annotated[str, typer.Option(help="what reads the raw files, as module:Name")] = "",
    simulator: Annotated[str, typer.Option(help="what makes the files of synthetic://, as module:Name")] = "",
    table: Annotated[
        list[str] | None, typer.Option(help="NAME=URI of a side table of the reader; several: repeat it")
    ] = None,
    results: Annotated[str, typer.Option(help="directory of the data; default: results/RUN")] = "",
    run: Annotated[str, typer.Option(help="name of the run; default: the name of the workload")] = "",
    first: Annotated[str, typer.Option(help="first file number")] = "",
    last: Annotated[str, typer.Option(help="last file number, or auto")] = "",
    step: Annotated[str, typer.Option(help="file numbers in one range")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="ask nothing: take the defaults")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="replace files with other content; each is kept as NAME.old")
    ] = False,
) -> None:
    """Write crpipe.yaml, and the workflow with its profiles into a folder that has none."""
    from crpipe.setup.init import Answers, complete, compose, lacking_tables, render, start_campaign

    numbers = {name: _number(name, text) for name, text in zip(_RANGES, (first, last, step), strict=True)}
    ranges = {name: value for name, value in numbers.items() if value is not None}
    answers = Answers(workload, uri, files, reader, simulator, results, run, ranges, _tables(table or ()))
    asks = not yes and _can_ask()
    if asks:
        answers = _asked(answers, folder)
    answers, found = complete(answers, folder)
    tree = compose(answers)
    lacking = lacking_tables(tree)
    if lacking:
        words = " ".join(f"--table {name}=URI" for name in lacking)
        raise ConfigError(
            f"source.tables: {tree['source']['reader']} needs {', '.join(lacking)}; add {words}"
        )
    told = [] if asks else found  # while it asked
    show("\n".join([*told, *start_campaign(folder, render(tree), force=force)]))


@start.command()
def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Look at Python, torch, GPU, disks, token, source, Slurm and extras; say what to type.

    Each line is ok, warn or fail; with a fail the exit code is 78.
    """
    from crpipe.setup.doctor import as_table, examine, failed_names, to_json

    findings = examine(Settings.config_files(), Settings.overrides)
    show(to_json(findings) if as_json else as_table(findings))
    failed = failed_names(findings)
    if failed:
        raise SetupError(f"{', '.join(failed)}: will stop a campaign; the lines with fail say what to do")


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _asked(answers: Answers, folder: Path) -> Answers:
    """Ask for what no option named; a wrong answer is asked again."""
    from crpipe.setup.init import complete, default_run, starter_of, starters

    workload = answers.workload
    if not workload:
        for name, starter in starters().items():
            show(f"  {name:10s} {starter.about}")
        workload = typer.prompt("workload (one of these, or module:Name)", default=next(iter(starters())))
    starter = starter_of(workload)
    answers = dataclasses.replace(answers, workload=workload)
    answers = _asked_source(answers, folder)
    if not answers.reader and not answers.simulated:
        for name, about in starter.readers.items():
            show(f"  {name}: {about['about']}")
        reader = typer.prompt("reader of these files", default=next(iter(starter.readers), None))
        answers = dataclasses.replace(answers, reader=reader)
    completed, found = complete(answers, folder)
    show("\n".join(found))
    asked = {
        name: _number(name, typer.prompt(f"ranges.{name}", default=str(completed.ranges[name])))
        for name in _RANGES
        if name not in answers.ranges and not answers.simulated
    }
    run = answers.run or typer.prompt("name of the run", default=default_run(workload))
    results = answers.results or typer.prompt("directory of the data", default=f"results/{run}")
    return dataclasses.replace(
        answers, run=run, results=results, ranges={**completed.ranges, **asked, **answers.ranges}
    )


def _asked_source(answers: Answers, folder: Path) -> Answers:
    """Ask where the files are until some are found there."""
    from crpipe.setup.init import complete

    while not (answers.uri or answers.files):
        uri = typer.prompt("raw files: a path, pelican:// or osdf:// with {range} or {number}; synthetic://")
        tried = dataclasses.replace(answers, uri=uri)
        try:
            complete(tried, folder)
        except ConfigError as error:
            show(str(error))
        else:
            return tried
    return answers


def _number(name: str, text: str) -> int | str | None:
    """Read a file number, or ``auto`` for the last one."""
    if not text or (text == "auto" and name == "last"):
        return text or None
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"--{name} {text}: expected a number{', or auto' if name == 'last' else ''}")
    return int(text)


def _tables(given: list[str] | tuple[()]) -> dict[str, str]:
    wrong = [text for text in given if not text.partition("=")[2]]
    if wrong:
        raise ConfigError(f"--table {wrong[0]}: expected NAME=URI")
    return {text.partition("=")[0]: text.partition("=")[2] for text in given}
