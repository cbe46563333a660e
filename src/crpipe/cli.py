"""The command line: parse, call one function, print; the only module that prints."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crpipe import __version__, campaign
from crpipe.config import Config, load_config
from crpipe.errors import AccessError, CrpipeError
from crpipe.journal import Journal
from crpipe.ranges import Range
from crpipe.signals import follow_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

# Handlers import what they call: a verb pays for its own libraries only (`status` starts without torch).
# ruff: noqa: PLC0415

DEFAULT_CONFIG = Path("config/config.yaml")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From range directories of simulated muon bundles to a trained generator of such bundles.",
)


class MergeMode(enum.StrEnum):
    """How `tb merge` brings an event file."""

    symlink = enum.auto()
    copy = enum.auto()


class Terminal:
    """Progress on a terminal: one line that is rewritten, with the time left; plain lines elsewhere."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._started: dict[str, tuple[float, float]] = {}
        self._told = 0.0

    def say(self, text: str) -> None:
        """Print one line."""
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def advance(self, label: str, done: float, total: float, note: str = "") -> None:
        """Print how far the work is, at most five times a second on a terminal, every 10 s elsewhere."""
        now = time.monotonic()
        share = done / total if total else 1.0
        # A resumed job starts somewhere in the middle: only what this process did tells its speed.
        started, first = self._started.setdefault(label, (now, share))
        if now - self._told < (0.2 if self._tty else 10.0) and done < total:
            return
        self._told = now
        left = f"{(now - started) * (1 - share) / (share - first):.0f} s left" if share > first else ""
        text = f"{label} {share:4.0%}  {left}  {note}".rstrip()
        if self._tty:
            print(f"\r\x1b[K{text}", end="\n" if done >= total else "", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._tty:
            print("\r\x1b[K", end="", file=sys.stderr)


class _Settings:
    """Options before the verb, kept until a handler asks for the configuration."""

    files: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()

    @classmethod
    def config(cls) -> Config:
        files = cls.files or ((DEFAULT_CONFIG,) if DEFAULT_CONFIG.exists() else ())
        return load_config(files, cls.overrides)


@app.callback()
def _options(
    config: Annotated[
        list[Path] | None, typer.Option("--config", "-c", help="YAML file; later ones override earlier ones")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", "-s", help="key.sub=value")] = None,
) -> None:
    _Settings.files = tuple(config or ())
    _Settings.overrides = tuple(overrides or ())


RangeArgument = Annotated[str, typer.Argument(metavar="RANGE", help="for example 0042000-0042999")]


@contextlib.contextmanager
def _data_step(verb: str, name: str) -> Iterator[Config]:
    config = _Settings.config()
    campaign.claim_data(config)
    with Journal(config.paths().data_journal()).attempt(verb, name):
        yield config


@app.command("list")
def list_(name: RangeArgument) -> None:
    """List one range of the source into its manifest."""
    from crpipe.source.listing import list_range

    with _data_step("list", name) as config:
        list_range(config, Range.parse(name), Terminal())


@app.command()
def stage(name: RangeArgument) -> None:
    """Copy one range next to the results, each file verified before its name appears."""
    from crpipe.source.stage import stage_range

    with _data_step("stage", name) as config:
        stage_range(config, Range.parse(name), Terminal())


@app.command()
def threshold() -> None:
    """Choose the outlier threshold as a quantile of the reference ranges."""
    from crpipe.data.threshold import choose_threshold

    with _data_step("threshold", "") as config:
        choose_threshold(config, Terminal())


@app.command()
def split(name: RangeArgument) -> None:
    """Turn one staged range into shards, outliers and a balanced ledger."""
    from crpipe.data.split import split_range

    with _data_step("split", name) as config:
        split_range(config, Range.parse(name), Terminal())


@app.command()
def consolidate() -> None:
    """Merge the outliers of all ranges into shards of a chosen size."""
    from crpipe.data.outliers import consolidate_outliers

    with _data_step("consolidate", "") as config:
        consolidate_outliers(config, Terminal())


@app.command()
def train(
    name: RangeArgument,
    max_minutes: Annotated[float, typer.Option(help="snapshot and stop after this long; 0: never")] = 0.0,
    profile: Annotated[int, typer.Option(help="steps to profile; 0: none")] = 0,
) -> None:
    """Train on one range (or on `outliers`), from where its parent or its last snapshot left off."""
    from crpipe.train.run import train_range

    train_range(_Settings.config(), name, Terminal(), max_minutes=max_minutes, profile_steps=profile)


@app.command()
def evaluate(name: RangeArgument) -> None:
    """Compare generated with held-out events for the checkpoint of one range (or of `outliers`)."""
    from crpipe.workloads.evaluate import evaluate_checkpoint

    evaluate_checkpoint(_Settings.config(), name, Terminal())


@app.command()
def generate(
    checkpoint: Annotated[Path, typer.Option(help="checkpoint file, or a receipt that points to it")],
    primaries: Annotated[
        Path, typer.Option(help="Parquet file with the primaries, in the input schema or flat")
    ],
    out: Annotated[Path, typer.Option(help="Parquet file to write, in the input schema")],
    multiplicity: Annotated[str, typer.Option(help="predicted, column, or a number")] = "predicted",
    cap: Annotated[int, typer.Option(help="most muons in one event")] = 10_000_000,
    seed: Annotated[int, typer.Option(help="seed of the generation")] = 1,
) -> None:
    """Generate bundles for given primaries with a trained checkpoint."""
    from crpipe.workloads.generate import generate_file

    generate_file(
        checkpoint, primaries, out, multiplicity=multiplicity, cap=cap, seed=seed, progress=Terminal()
    )


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Option(help="checkpoint file, or a receipt that points to it")],
    out: Annotated[Path, typer.Option(help="directory for the model, its sampler and its card")],
) -> None:
    """Write a trained checkpoint so that it runs without crpipe: weights, ONNX sampler, model card."""
    from crpipe.workloads.export import export_checkpoint

    export_checkpoint(_Settings.config(), checkpoint, out, Terminal())
    print(out)


@app.command()
def simulate(
    name: RangeArgument,
    out: Annotated[Path, typer.Option(help="directory for the files")],
) -> None:
    """Write the files of one synthetic range, in the schema of the real ones."""
    from crpipe.source.synthetic import simulate_range

    simulate_range(_Settings.config(), Range.parse(name), out, Terminal())


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="raw file, shard or HDF5 file")],
    rows: Annotated[int, typer.Option(help="events to show")] = 5,
) -> None:
    """Show what a file holds: schema, rows, multiplicities, first events."""
    from crpipe.data.inspect import inspect_file

    print(inspect_file(file, rows=rows))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    unfold: Annotated[bool, typer.Option("--all", help="a line for every range")] = False,
    html: Annotated[Path | None, typer.Option(help="write a self-contained page instead")] = None,
) -> None:
    """Show every range's state from files alone; works while nothing runs."""
    from crpipe.report.status import render_status, status_json

    config = _Settings.config()
    if html is not None:
        from crpipe.report.page import write_page

        write_page(config, html)
    elif as_json:
        print(status_json(config))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(render_status(config, _width(), unfold=unfold, colour=colour))


@app.command()
def plan() -> None:
    """Show ranges, files, bytes, peak disk against free disk, and jobs, before anything runs."""
    from crpipe.report.plan import render_plan

    print(render_plan(_Settings.config()))


@app.command()
def summary() -> None:
    """Show the campaign's sums, their check, and how good the final checkpoint is."""
    from crpipe.report.summary import render_summary

    print(render_summary(_Settings.config()))


@app.command()
def figures() -> None:
    """Draw multiplicities, losses and throughput of the campaign so far, as SVG files."""
    from crpipe.report.curves import draw_figures

    for path in draw_figures(_Settings.config()):
        print(path)


@app.command()
def notify(
    event: Annotated[str, typer.Argument(help="success, failure or stall")],
) -> None:
    """Tell a person through the configured command (section `notify`); the message goes to its stdin."""
    from crpipe.report.notify import send

    print(send(_Settings.config(), event), file=sys.stderr)


settings = typer.Typer(no_args_is_help=True, help="Write what the configuration can hold.")
app.add_typer(settings, name="config")


@settings.command()
def default() -> None:
    """Print the default configuration, every key commented."""
    from crpipe.config_docs import default_yaml

    print(default_yaml(), end="")


@settings.command()
def schema() -> None:
    """Print the configuration's JSON schema."""
    from crpipe.config_docs import schema_json

    print(schema_json(), end="")


@settings.command()
def table() -> None:
    """Print the table of keys in Markdown."""
    from crpipe.config_docs import key_table

    print(key_table(), end="")


tb = typer.Typer(no_args_is_help=True, help="Curate TensorBoard runs.")
app.add_typer(tb, name="tb")


@tb.command()
def merge(
    dst: Annotated[Path, typer.Option(help="directory to gather the runs in")],
    src: Annotated[list[Path], typer.Option(help="directory that holds runs, at any depth")],
    since: Annotated[str, typer.Option(help="only runs that wrote on or after this day, YYYY-MM-DD")] = "",
    match: Annotated[str, typer.Option(help="only names that this regular expression finds")] = "",
    glob: Annotated[str, typer.Option(help="only names of this pattern")] = "*",
    mode: Annotated[MergeMode, typer.Option(help="follow a run that still writes, or outlive it")] = (
        MergeMode.symlink
    ),
) -> None:
    """Gather the event files of many runs below one directory, for one TensorBoard."""
    from crpipe.report.tensorboard import merge_runs

    for name in merge_runs(dst, src, since=since, match=match, glob=glob, mode=mode.value):
        print(name)


shards = typer.Typer(no_args_is_help=True, help="Check shards, or hand them on in the input schema.")
app.add_typer(shards, name="shards")


@shards.command("verify")
def verify_shards(
    names: Annotated[list[str] | None, typer.Argument(metavar="RANGE …", help="default: all made")] = None,
    deep: Annotated[bool, typer.Option(help="hash every file and decode every page too")] = False,
) -> None:
    """Check that the shards of ranges (or of `consolidated`) are what their manifests say."""
    from crpipe.data.shards import verifiable, verify

    for folder in verifiable(_Settings.config(), names or ()):
        events, muons = verify(folder, deep=deep)
        print(f"{folder}: {events} events, {muons} muons, good")


@shards.command("export")
def export_range(
    name: RangeArgument,
    out: Annotated[Path, typer.Option(help="directory for train, validation and outliers.parquet")],
) -> None:
    """Write the shards of one range as Parquet files in the input schema."""
    from crpipe.data.export import export_shards

    paths, key = _Settings.config().paths(), str(Range.parse(name))
    events = export_shards([paths.shards(key), paths.outliers(key)], out, Terminal())
    print(f"{out}: {events} events")


outliers = typer.Typer(no_args_is_help=True, help="Look at the outliers.")
app.add_typer(outliers, name="outliers")


@outliers.command()
def suggest() -> None:
    """Show what each threshold would set aside, and the memory of a batch below it."""
    from crpipe.data.suggest import suggest_threshold

    print(suggest_threshold(_Settings.config()))


@app.command()
def token(
    login: Annotated[bool, typer.Option("--login", help="get a new one from the issuer first")] = False,
) -> None:
    """Show the token in use: where from, issuer, scope, end, and whether it covers the campaign."""
    from crpipe.source.access import check_access

    if login:
        from crpipe.source.login import log_in

        log_in(_Settings.config(), Terminal())
    access = check_access(_Settings.config())
    print(access.text)
    if access.problem:
        raise AccessError(access.problem)


@app.command()
def sync() -> None:
    """Send the run's new TensorBoard files and checkpoints to `sync.to`; failures are told, never fatal."""
    from crpipe.source.sync import sync_run

    sync_run(_Settings.config(), Terminal())


@app.command()
def federation(
    action: Annotated[Literal["up", "down"], typer.Argument(help="start it, or stop it; its files stay")],
    folder: Annotated[Path, typer.Argument(help="folder of the federation; it serves what is in data/")],
) -> None:
    """Run a Pelican federation on this machine, to try things on; say how to use it."""
    from crpipe.source.federation.loopback import Federation

    loopback = Federation(folder)
    print("\n".join(loopback.up()) if action == "up" else loopback.down())


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _width() -> int:
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stdout.fileno()).columns
    return 120


def main() -> None:
    """Run the command line; a CrpipeError becomes its message and its exit code."""
    if os.environ.get("CRPIPE_WORKFLOW"):
        follow_parent()
    try:
        app()
    except CrpipeError as error:
        print(f"crpipe: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
