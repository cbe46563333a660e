"""The command line as a whole: its options, its verbs, and how errors end it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe import __version__
from crpipe.cli import completion
from crpipe.cli.data import data, tools
from crpipe.cli.help import Verbs
from crpipe.cli.look import logs, redraw, runs, verification, weeks
from crpipe.cli.model import models
from crpipe.cli.start import start
from crpipe.cli.terminal import Settings, completing, show
from crpipe.core.causes import MachineWatch, machine_error
from crpipe.core.errors import AccessError, CrpipeError, SourceError
from crpipe.core.signals import follow_parent
from crpipe.core.text import printable

if TYPE_CHECKING:
    from crpipe.config.loading import Config
    from crpipe.report.state import CampaignState, SourceToken

# ruff: noqa: PLC0415

# Handlers import what they call: a verb pays for its own libraries only (`status` starts without torch).

app = typer.Typer(
    cls=Verbs,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From raw simulation files in many range directories to a trained model, through every crash.",
)


app.add_typer(start)
app.add_typer(logs)
app.add_typer(data)
app.add_typer(models)
app.add_typer(runs)
app.add_typer(tools)
app.add_typer(verification)
app.add_typer(weeks)


def _print_version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="print the version and exit"
        ),
    ] = False,
) -> None:
    """Take the options that only make sense before a verb."""


@app.command()
def status(
    every: Annotated[
        float | None, typer.Argument(metavar="SECONDS", help="with --watch: time between two looks", min=1)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="machine-readable: docs/watching.md#for-programs")
    ] = False,
    unfold: Annotated[bool, typer.Option("--all", help="a line for every range")] = False,
    html: Annotated[
        Path | None, typer.Option(readable=False, help="write a self-contained page instead")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="look again every 10 s, or SECONDS, until Ctrl-C")
    ] = False,
) -> None:
    """Show every range's state from files alone; works while nothing runs."""
    from crpipe.report.status import render_status, status_json

    if (watch and (as_json or html is not None)) or (every is not None and not watch):
        raise typer.BadParameter("SECONDS belongs to --watch, and --watch to the table in the terminal")
    config = Settings.campaign()
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def look(width: int) -> str:
        return render_status(_state(config, _source_token(config)), width, unfold=unfold, colour=colour)

    if html is not None:
        from crpipe.report.page import write_page

        write_page(_state(config, _source_token(config)), html, short=True)
    elif as_json:
        print(status_json(_state(config, _source_token(config))))
    elif watch:
        redraw(look, every or 10.0)
    else:
        print(look(_width()))


@app.command()
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
) -> None:
    """Look at the source and show files, events, steps, disk, hours and jobs, before anything runs."""
    from crpipe.campaign.campaign import Campaign
    from crpipe.report.plan import Plan, describe_plan, render_plan
    from crpipe.setup.compatibility import check_fit, planned_workload
    from crpipe.setup.preview import look_at_source
    from crpipe.source.counting import check_source

    config = Settings.campaign()
    check_source(config)
    checked = check_fit(config)
    campaign = Campaign.open(config, "either")
    seen = look_at_source(campaign, offline=offline)
    planned = Plan.of(campaign, planned_workload(config), seen)
    if as_json:
        print(json.dumps(describe_plan(planned), indent=1))
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


@app.command()
def summary(
    as_json: Annotated[
        bool, typer.Option("--json", help="machine-readable: docs/watching.md#for-programs")
    ] = False,
) -> None:
    """Show the campaign's sums, their check, and how good the final checkpoint is."""
    from crpipe.report.summary import render_summary, summary_json

    state = _state(Settings.campaign())
    if as_json:
        print(summary_json(state))
    else:
        show(render_summary(state))


@app.command()
def report(
    out: Annotated[
        Path | None, typer.Option(readable=False, help="where to write it; default runs/<run>/report.html")
    ] = None,
) -> None:
    """Write one HTML page: sums, quality, plots, ranges, jobs, failures, configuration, versions."""
    from crpipe.report.page import write_page

    state = _state(Settings.campaign())
    print(write_page(state, out or state.campaign.paths.report()))


@app.command()
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN …",
            help="names of runs in the folder `runs`",
            autocompletion=completing(completion.runs),
        ),
    ],
    figure: Annotated[
        Path | None,
        typer.Option(readable=False, help="also plot their losses over each other: SVG, PNG, PDF, CSV"),
    ] = None,
) -> None:
    """Show what differs between runs: keys, training, the metrics of the newest evaluations."""
    from crpipe.report.compare import plot_comparison, read_runs, render_comparison

    found = read_runs(Settings.campaign(options=False).paths(), runs)
    show(render_comparison(found))
    if figure is not None:
        print(plot_comparison(found, figure))


@app.command()
def figures(
    *,
    progress: Annotated[
        bool, typer.Option("--progress", help="plot the numbers of the evaluated checkpoints instead")
    ] = False,
) -> None:
    """Plot multiplicities, losses and throughput of the campaign so far, as SVG, PNG, PDF and CSV files."""
    from crpipe.campaign.campaign import Campaign
    from crpipe.report.figures import plot_figures, plot_progress

    campaign = Campaign.open(Settings.campaign(), "recorded")
    for path in plot_progress(campaign) if progress else plot_figures(campaign):
        print(path)


def _events(incomplete: str) -> list[str]:
    return [event for event in ("success", "failure", "stall") if event.startswith(incomplete)]


@app.command()
def notify(
    event: Annotated[str, typer.Argument(help="success, failure or stall", autocompletion=_events)],
) -> None:
    """Run the configured command of an event (section `notify`) with the status on its stdin."""
    from crpipe.campaign.campaign import Campaign
    from crpipe.report.notify import notify as run_command

    config = Settings.campaign()
    campaign = Campaign.open(config, "recorded")
    print(run_command(campaign, event, _source_token(config)), file=sys.stderr)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _state(config: Config, token: SourceToken | None = None) -> CampaignState:
    from crpipe.campaign.campaign import Campaign
    from crpipe.report.state import CampaignState

    return CampaignState.read(Campaign.open(config, "recorded"), token)


def _source_token(config: Config) -> SourceToken | None:
    """Find the token that a job started here would use; the report itself knows no sources."""
    from crpipe.report.state import SourceToken
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


def quiet_libraries() -> None:
    """Keep warnings of libraries from a terminal; logs of jobs have them."""
    if not sys.warnoptions and sys.stderr.isatty():
        warnings.simplefilter("ignore")


def main() -> None:
    """Run the command line; an error becomes one message and its exit code, see `crpipe.core.errors`."""
    if os.environ.get("CRPIPE_WORKFLOW"):
        follow_parent()
    quiet_libraries()
    try:
        with MachineWatch():
            _run()
    except CrpipeError as error:
        # On a full disk the log may take no more text: the exit code still says what happened.
        with contextlib.suppress(OSError):
            print(printable(f"crpipe: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)


def _run() -> None:
    """Run the verb and write all that it printed, while an error of the output can still be reported."""
    try:
        app()
    finally:
        failed = sys.exc_info()[1]
        try:
            sys.stdout.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left is not written a second time
            if not isinstance(failed, CrpipeError):
                raise _unwritten(error) from error


def _unwritten(error: OSError) -> BaseException:
    """Return what ends a verb whose output was not taken; nobody reads the message after `| head`."""
    if isinstance(error, BrokenPipeError):
        return SystemExit(1)
    return machine_error(error, "standard output") or error
