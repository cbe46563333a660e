"""The command line: parse, call one function, print; only this, `tools` and `session` print."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe import __version__
from crpipe.cli.jobs import claim_data
from crpipe.cli.jobs_report import notify_job, plan_job, view_of
from crpipe.cli.models import models
from crpipe.cli.terminal import RangeArgument, Settings, Terminal
from crpipe.cli.tools import tools
from crpipe.core.errors import AccessError, CrpipeError
from crpipe.core.journal import Journal
from crpipe.core.ranges import Range
from crpipe.core.signals import follow_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crpipe.config.loading import Config
    from crpipe.report.status.status_types import SourceToken

# Handlers import what they call: a verb pays for its own libraries only (`status` starts without torch).
# ruff: noqa: PLC0415

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From range directories of simulated muon bundles to a trained generator of such bundles.",
)


app.add_typer(models)
app.add_typer(tools)


@app.callback()
def _options(
    config: Annotated[
        list[Path] | None, typer.Option("--config", "-c", help="YAML file; later ones override earlier ones")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", "-s", help="key.sub=value")] = None,
) -> None:
    Settings.files = tuple(config or ())
    Settings.overrides = tuple(overrides or ())


@contextlib.contextmanager
def _data_step(verb: str, name: str) -> Iterator[Config]:
    from crpipe.split.workers import leave_pandas_out

    config = Settings.config()
    leave_pandas_out()
    claim_data(config)
    with Journal(config.paths().data_journal()).attempt(verb, name):
        yield config


@app.command("list")
def list_(name: RangeArgument) -> None:
    """List one range of the source into its manifest."""
    from crpipe.cli.source_jobs import list_job
    from crpipe.source.listing import list_range

    with _data_step("list", name) as config:
        list_range(list_job(config, name), Terminal())


@app.command()
def stage(name: RangeArgument) -> None:
    """Copy one range next to the results, each file verified before its name appears."""
    from crpipe.cli.source_jobs import stage_job
    from crpipe.source.stage import stage_range

    with _data_step("stage", name) as config:
        stage_range(stage_job(config, name), Terminal())


@app.command()
def tables() -> None:
    """Copy the side tables of `source.tables` next to the results, verified and hashed."""
    from crpipe.cli.source_jobs import tables_job
    from crpipe.source.side_tables import stage_tables

    with _data_step("tables", "") as config:
        stage_tables(tables_job(config), Terminal())


@app.command()
def count() -> None:
    """Count the files of the source once, for `ranges.last: auto`; print the last file number."""
    from crpipe.cli.source_jobs import count_job
    from crpipe.source.counting import count_files

    with _data_step("count", "") as config:
        print(count_files(count_job(config), Terminal()))


@app.command()
def threshold() -> None:
    """Choose the outlier threshold as a quantile of the reference ranges."""
    from crpipe.cli.data_jobs import threshold_job
    from crpipe.cli.jobs import open_campaign
    from crpipe.split.threshold import choose_threshold

    with _data_step("threshold", "") as config:
        choose_threshold(threshold_job(open_campaign(config)), Terminal())


@app.command()
def split(name: RangeArgument) -> None:
    """Turn one staged range into shards, outliers and a balanced ledger."""
    from crpipe.cli.data_jobs import split_job
    from crpipe.cli.jobs import open_campaign
    from crpipe.split.split import split_range

    with _data_step("split", name) as config:
        split_range(split_job(open_campaign(config), str(Range.parse(name))), Terminal())


@app.command()
def consolidate() -> None:
    """Merge the outliers of all ranges into shards of a chosen size."""
    from crpipe.cli.data_jobs import consolidate_job
    from crpipe.cli.jobs import open_campaign
    from crpipe.split.outliers import consolidate_outliers

    with _data_step("consolidate", "") as config:
        consolidate_outliers(consolidate_job(open_campaign(config)), Terminal())


@app.command()
def simulate(
    name: RangeArgument,
    out: Annotated[Path, typer.Option(help="directory for the files")],
) -> None:
    """Write the files of one synthetic range, in the schema of the real ones."""
    from crpipe.source.simulated import open_simulator, simulate_range

    config = Settings.config()
    simulator = open_simulator(config.source.simulator, config.options("simulator"))
    simulate_range(simulator, Range.parse(name), config.seed, out, Terminal())


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="raw file of source.reader, shard, or any Parquet file")],
    rows: Annotated[int, typer.Option(help="events to show")] = 5,
) -> None:
    """Show what a file holds: schema, rows, multiplicities, first events."""
    from crpipe.cli.data_jobs import configured_reader
    from crpipe.split.inspect import inspect_file

    print(inspect_file(file, rows, configured_reader(Settings.config())))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    unfold: Annotated[bool, typer.Option("--all", help="a line for every range")] = False,
    html: Annotated[Path | None, typer.Option(help="write a self-contained page instead")] = None,
) -> None:
    """Show every range's state from files alone; works while nothing runs."""
    from crpipe.report.status.status import render_status, status_json

    config = Settings.config()
    view, token = view_of(config), _source_token(config)
    if html is not None:
        from crpipe.report.status.page import write_page

        write_page(view, html, token)
    elif as_json:
        print(status_json(view, token))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(render_status(view, _width(), unfold=unfold, colour=colour, token=token))


@app.command()
def plan() -> None:
    """Show ranges, files, bytes, peak disk against free disk, and jobs, before anything runs."""
    from crpipe.report.plan import render_plan

    print(render_plan(plan_job(Settings.config())))


@app.command()
def summary() -> None:
    """Show the campaign's sums, their check, and how good the final checkpoint is."""
    from crpipe.report.summary import render_summary

    print(render_summary(view_of(Settings.config())))


@app.command()
def figures(
    *,
    progress: Annotated[
        bool, typer.Option("--progress", help="plot the numbers of the evaluated checkpoints instead")
    ] = False,
) -> None:
    """Plot multiplicities, losses and throughput of the campaign so far, as SVG files."""
    from crpipe.report.figures import plot_figures, plot_progress

    for path in (plot_progress if progress else plot_figures)(view_of(Settings.config())):
        print(path)


@app.command()
def notify(
    event: Annotated[str, typer.Argument(help="success, failure or stall")],
) -> None:
    """Run the configured command of an event (section `notify`) with the status on its stdin."""
    from crpipe.report.status.notify import send

    config = Settings.config()
    print(send(notify_job(config, event), _source_token(config)), file=sys.stderr)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _source_token(config: Config) -> SourceToken | None:
    """Find the token that a job started here would use; the report itself knows no sources."""
    from crpipe.report.status.status_types import SourceToken
    from crpipe.source.pelican.tokens import find_for

    try:
        token = find_for([config.source.uri, *config.source.tables.values()], config.source.token_file)
    except AccessError as error:
        return SourceToken(problem=str(error))
    if token is None:
        return None
    return SourceToken(token.place, None if math.isinf(token.expires) else token.expires)


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
        # On a full disk the log may take no word more: the exit code still tells.
        with contextlib.suppress(OSError):
            print(f"crpipe: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
