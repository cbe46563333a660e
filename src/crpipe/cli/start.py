"""Verbs of the first hour: a folder to work in, what machine and source are like."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli import importing
from crpipe.cli.terminal import Settings, Terminal, opened, show
from crpipe.cli.verbs import VerbGroup, declare
from crpipe.core.causes import plugin_errors
from crpipe.core.errors import (
    ConfigError,
    DataError,
    MachineError,
    MissingExtra,
    PluginError,
    SetupError,
    SourceError,
    TrainError,
)
from crpipe.core.text import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.report.run_time import Rate
    from crpipe.setup.init import Answers

# Handlers import what they call: a verb pays for its own libraries only (`status` starts without torch).
# ruff: noqa: PLC0415


start = typer.Typer()
settings = typer.Typer(cls=VerbGroup, help="Check the configuration, or write what it can hold.")
start.add_typer(settings, name="config")
verb = partial(declare, "Start")
tool = partial(declare, "Tools")

_RANGES = ("first", "last", "size")


@verb(start, "init", "mine", raises=[MachineError], page="install.md")
def init(
    folder: Annotated[
        Path, typer.Argument(readable=False, help="folder of the campaign; made where it is missing")
    ] = Path(),
    workload: Annotated[
        str, typer.Option(help="a workload by its short name (a wrong one lists them all), or module:Name")
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
    size: Annotated[str, typer.Option(help="file numbers in one range")] = "",
    profile: Annotated[
        list[str] | None,
        typer.Option(help="cluster whose profile to write: slurm, htcondor; default: what submits from here"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="ask nothing: take the defaults")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="replace files with other content; each is kept as NAME.old")
    ] = False,
) -> None:
    """Look at the raw files; write crpipe.yaml and the workflow.

    The sizes in crpipe.yaml fit the files; the workflow is written where it is missing. Without options, in a
    folder that has a crpipe.yaml: the workflow alone.
    """
    from crpipe.setup import init as new

    profiles = new.profiles_here(profile or ())
    asked = (workload, uri, files, reader, simulator, table, results, run, first, last, size)
    if not any(asked) and (folder / new.CONFIGURATION).exists():  # a campaign is there: its workflow alone
        text = (folder / new.CONFIGURATION).read_bytes().decode()  # with its line ends
        wanted = profiles if profile else [name for name in profiles if not (folder / name).exists()]
        show("\n".join(new.start_campaign(folder, text, profiles=wanted, force=force)))
        return
    numbers = {name: _number(name, text) for name, text in zip(_RANGES, (first, last, size), strict=True)}
    ranges = {name: value for name, value in numbers.items() if value is not None}
    answers = new.Answers(workload, uri, files, reader, simulator, results, run, ranges, _tables(table or ()))
    asks = not yes and _can_ask()
    if asks:
        answers = _asked(answers, folder)
    answers, notes = new.complete(answers, folder)
    tree = new.compose(answers)
    lacking = new.lacking_tables(tree)
    if lacking:
        words = " ".join(f"--table {name}=URI" for name in lacking)
        raise ConfigError(f"source.tables: {', '.join(lacking)} not given; add {words}")
    unused = new.check_named(tree, answers)
    tree, reasons, sizes = new.fit_to_files(tree, answers)
    shown = unused if asks else [*notes, *unused]  # notes were shown while it asked
    text, counts = new.render(tree, reasons, new.own_sections(answers)), tree["ranges"]["last"] == "auto"
    written = new.start_campaign(folder, text, profiles=profiles, counts=counts, force=force)
    show("\n".join([*shown, *sizes, *written]))


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _answer(question: str, default: str = "") -> str:
    """Ask until there is an answer; Enter takes the default, where there is one."""
    while True:
        try:
            answer: str = typer.prompt(question, default=default, show_default=bool(default)).strip()
        except typer.Abort:
            show("\nnothing was written")
            raise typer.Exit(130) from None
        if answer:
            return answer
        show("an answer is needed here; Ctrl-C ends without writing anything")


def _asked(answers: Answers, folder: Path) -> Answers:
    """Look at the files, then ask for what no option named; a wrong answer is asked again."""
    from crpipe.campaign.declarations import init_configs
    from crpipe.setup.init import complete, default_run, find_init_config, plugins_of

    if answers.workload:
        find_init_config(answers.workload)
    answers = _asked_source(answers, folder)
    plugins = plugins_of(answers)
    if not answers.workload:
        for name, init_config in init_configs().items():
            show(f"  {name:10s} {init_config.about}")
        guesses = {each.workload for each in plugins}
        guess = guesses.pop() if len(guesses) == 1 else ""
        answers = dataclasses.replace(answers, workload=_asked_workload(guess))
    init_config = find_init_config(answers.workload)
    plugins = [each for each in plugins if each.workload == answers.workload]
    if not answers.reader and not answers.simulated:
        abouts = {name: each.about for name, each in init_config.readers.items()}
        for name in dict.fromkeys((*init_config.readers, *(each.reader for each in plugins))):
            fits = "reads these files" if name in {each.reader for each in plugins} else ""
            show(f"  {name}: {'; '.join(filter(None, (abouts.get(name), fits)))}")
        usual = next(iter(init_config.readers), "") if not plugins else ""
        answer = _answer("reader of these files", plugins[0].reader if len(plugins) == 1 else usual)
        tables = next((each.tables for each in plugins if each.reader == answer), {})
        answers = dataclasses.replace(answers, reader=answer, tables={**tables, **answers.tables})
    completed, notes = complete(answers, folder)
    show("\n".join(notes))
    asked = {
        name: _number(name, _answer(f"ranges.{name}", str(completed.ranges[name])))
        for name in _RANGES
        if name not in answers.ranges and not answers.simulated
    }
    run = answers.run or _answer("name of the run", default_run(answers.workload))
    results = answers.results or _answer("directory of the data", f"results/{run}")
    return dataclasses.replace(
        answers, run=run, results=results, ranges={**completed.ranges, **asked, **answers.ranges}
    )


def _asked_source(answers: Answers, folder: Path) -> Answers:
    """Ask where the files are until some are found there; the pattern that is found is the default."""
    from crpipe.setup.init import find_files
    from crpipe.source.suggestions import pattern_near

    question = "raw files: a folder, or a path, pelican:// or osdf:// with {range} or {number}; synthetic://"
    if answers.uri or answers.files:
        return find_files(answers, folder)[0]
    default = pattern_near(Path.cwd())
    while True:
        uri = _answer(question, default)
        try:
            completed, suggestion = find_files(dataclasses.replace(answers, uri=uri), folder)
        except ConfigError as error:
            show(str(error))
            continue
        if completed.uri == uri or completed.simulated or uri == default:
            return completed
        default = completed.uri  # of a folder that was named: to be seen, and confirmed by Enter
        show(f"found: {suggestion.text}")


def _asked_workload(default: str) -> str:
    """Ask for a workload until it is one."""
    from crpipe.setup.init import find_init_config

    while True:
        answer = _answer("workload (one of these, or module:Name)", default)
        try:
            find_init_config(answer)
        except ConfigError as error:
            show(str(error))
        else:
            return answer


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


@verb(start, "doctor", reads="source, results, runs", raises=[SetupError], page="install.md")
def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Check machine, configuration and source; say what to type.

    It looks at Python, torch, GPU, disks, token, source, Slurm and extras, and whether reader, simulator,
    workload and side tables fit together. Each line is ok, warn or fail; with a fail the exit code is 78.
    """
    from crpipe.setup.doctor import as_table, examine, failed_names, to_json

    findings = examine(Settings.config_files(), Settings.overrides)
    show(to_json(findings) if as_json else as_table(findings))
    failed = failed_names(findings)
    if failed:
        raise SetupError(f"{', '.join(failed)}: will stop a campaign; the lines with fail say what to do")


@tool(settings, "config default", page="operations.md#start")
def default() -> None:
    """Print the configuration with every key commented."""
    from crpipe.config.reference import default_yaml

    print(default_yaml(Settings.config()), end="")


@tool(settings, "config schema", page="operations.md#start")
def schema() -> None:
    """Print the configuration's JSON schema."""
    from crpipe.config.reference import schema_json

    print(schema_json(), end="")


@tool(settings, "config table", "-c mine.yaml", page="operations.md#start")
def table() -> None:
    """Print the table of keys in Markdown."""
    from crpipe.config.reference import key_table

    print(key_table(Settings.config()), end="")


@partial(declare, "Steps that the workflow runs")(
    settings,
    "config check",
    "-c mine.yaml",
    reads="source, reader, simulator, train, model",
    raises=[MissingExtra, PluginError],
    page="operations.md#start",
)
def check_fit() -> None:
    """Check that reader, simulator, workload and side tables fit together; print one line when they do."""
    from crpipe.setup.compatibility import check_fit

    print(check_fit(Settings.campaign()))


@verb(
    start,
    "plan",
    "--figure learning-rates.svg",
    reads="source, ranges, split, load, train, model",
    raises=[SourceError, TrainError, DataError, MissingExtra, PluginError],
    page="watching.md#before-and-after-crpipe-plan-crpipe-summary",
)
def plan(
    figure: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="also plot the learning rate of each phase over the campaign: SVG, PNG, PDF, CSV",
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="do not ask a remote source")] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="instead: call every method of reader, simulator and workload on one batch, then train on "
            "it: losses, times, memory",
        ),
    ] = False,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--in", readable=False, help="with --probe: raw file to take the batch from; several: repeat --in"
        ),
    ] = None,
    name: Annotated[
        str, typer.Option("--range", help="with --probe: split range to take the batch from")
    ] = "",
    steps: Annotated[int, typer.Option(help="with --probe: steps on the one batch", min=1)] = 200,
    anomaly: Annotated[
        bool,
        typer.Option("--anomaly", help="with --probe: name the operation of the first bad gradient; slow"),
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(readable=False, help="with --probe: write a trace of some steps to this file"),
    ] = None,
) -> None:
    """Show files, events, steps, disk, hours and jobs before a run."""
    if probe:
        _probe(inputs or (), name, steps, anomaly=anomaly, profile=profile)
        return
    if inputs or name or anomaly or profile:
        raise typer.BadParameter("--in, --range, --anomaly and --profile need --probe")
    from crpipe.report.plan import Plan, describe_plan, render_plan
    from crpipe.report.state import changed_values
    from crpipe.setup.compatibility import check_fit, planned_workload
    from crpipe.setup.preview import look_at_source
    from crpipe.source.counting import check_source

    config = Settings.campaign()
    check_source(config)
    checked = check_fit(config)
    campaign = opened(config, "either")
    seen = look_at_source(campaign, offline=offline)
    changed = [
        f"{each}; restore it, or set a new run (and new results, if it changes the data)"
        for each in changed_values(campaign)
    ]
    seen = dataclasses.replace(seen, problems=(*seen.problems, *changed))
    planned = Plan.of(campaign, planned_workload(config), seen, partial(_rate, campaign))
    if as_json:
        print(json_text(describe_plan(planned)))
    else:
        show(render_plan(planned))
        show(f"checked: {checked}")
    if figure is not None:
        from crpipe.report.figures import plot_rates
        from crpipe.train.rate_plan import rate_plan

        path = plot_rates(rate_plan(campaign), figure)
        print(path, file=sys.stderr if as_json else sys.stdout)
    if seen.problems:
        raise SourceError("\n".join(["the workflow would fail:", *seen.problems]))


def _rate(campaign: Campaign) -> Rate:
    """Measure events a second on what `plan --probe` would train on."""
    with importing(), plugin_errors("crpipe plan --probe shows why no step could be measured"):
        from crpipe.contract.probe import events_to_probe
        from crpipe.inference.probe import measure_rate

        return measure_rate(campaign, events_to_probe(campaign, (), "")[0])


def _probe(inputs: Sequence[Path], name: str, steps: int, *, anomaly: bool, profile: Path | None) -> None:
    """Check the contract on one batch and train on it; raise PluginError for what is broken."""
    with importing():
        from crpipe.contract.probe import check_contract, events_to_probe, refuse_broken, render_outcomes
        from crpipe.inference.probe import probe_batch, render_probe
        from crpipe.setup.compatibility import check_fit
        from crpipe.train.ranks import find_device, refuse_slow_precision

    config = Settings.config()
    check_fit(config)
    refuse_slow_precision(config.train.precision, find_device(config.train.device))
    campaign = opened(config)
    batch, case = events_to_probe(campaign, inputs, name)
    outcomes = check_contract(case, Terminal())
    show(render_outcomes(case, outcomes))
    refuse_broken(outcomes)
    result = probe_batch(campaign, batch, steps, Terminal(), anomaly=anomaly, profile=profile)
    show("\n" + render_probe(batch, campaign.item, result, anomaly=anomaly))


@partial(declare, "Look at a campaign")(
    start,
    "inspect",
    "raw/0042000.parquet --rows 10",
    reads="source.reader, reader",
    raises=[SourceError, MissingExtra, PluginError],
    page="data.md#readers",
)
def inspect(
    file: Annotated[
        Path, typer.Argument(readable=False, help="raw file of source.reader, shard, or any Parquet file")
    ],
    rows: Annotated[int, typer.Option(min=0, help="events to show")] = 5,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
) -> None:
    """Show what a file holds: schema, rows, multiplicities, events."""
    from crpipe.campaign.readers import configured_reader
    from crpipe.setup.init import included_reader
    from crpipe.split.inspect import facts_of, inspect_file

    choice = configured_reader(Settings.config()) if Settings.is_named() else included_reader(file)
    if as_json:
        print(json_text(asdict(facts_of(file, rows, choice))))
    else:
        show(inspect_file(file, rows, choice))
