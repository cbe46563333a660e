"""Verbs that look at a campaign, from its files alone."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import sys
import time
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli.terminal import (
    ByOption,
    FigureOption,
    Settings,
    Terminal,
    checkable,
    completing,
    link_names,
    opened,
    runs,
    show,
)
from crpipe.cli.verbs import RANGE, declare
from crpipe.core.errors import AccessError, DataError, DiskError, MachineError, SourceError
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.ranges import pick
from crpipe.core.text import counted, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from crpipe.check.findings import CheckReport
    from crpipe.config.loading import Config
    from crpipe.report.state import CampaignState, SourceToken

# Handlers import what they call: a verb pays for its own libraries only (`status` starts without torch).
# ruff: noqa: PLC0415


look = typer.Typer()
verb = partial(declare, "Look at a campaign")

_POLL_S = 0.5
_SHOWN = 3  # names in a line


@verb(
    look,
    "status",
    "--all",
    reads="source, ranges, split.outlier_above, train",
    raises=[DataError],
    page="watching.md#in-a-terminal-crpipe-status",
)
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
    """Show how far each range and link is, and what is wrong."""
    from crpipe.report.status import render_status, status_json

    if (watch and (as_json or html is not None)) or (every is not None and not watch):
        raise typer.BadParameter("SECONDS belongs to --watch, and --watch to the table in the terminal")
    config = Settings.campaign(options="installed")
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def look(width: int) -> str:
        return render_status(_state(config, source_token(config)), width, unfold=unfold, colour=colour)

    if html is not None:
        from crpipe.report.page import write_page

        write_page(_state(config, source_token(config)), html, short=True)
    elif as_json:
        print(status_json(_state(config, source_token(config))))
    elif watch:
        redraw(look, every or 10.0)
    else:
        print(look(_width()))


def redraw(look: Callable[[int], str], pause_s: float) -> None:
    """Print what ``look`` gives for the width of the terminal, again and again in its place, until Ctrl-C.

    Elsewhere than on a terminal one text follows the other, with the time between them.
    """
    tty = sys.stdout.isatty()
    while True:
        size = shutil.get_terminal_size((120, 24))
        text, when = look(size.columns), time.strftime("%Y-%m-%d %H:%M:%S")
        if tty:
            room = max(size.lines - 2, 1)
            lines = text.splitlines()
            hidden = len(lines) - room
            shown = [*lines[:room], f"{when}  every {pause_s:g} s; Ctrl-C ends" + _hidden(hidden)]
            body = "".join(f"{line}\x1b[K\n" for line in shown)
            print(f"\x1b[H{body}\x1b[J", end="", flush=True)
        else:
            print(f"{when}\n{text}\n", flush=True)
        time.sleep(pause_s)


def _hidden(count: int) -> str:
    return f"; {counted(count, 'more line')} in `crpipe status`" if count > 0 else ""


def _state(config: Config, token: SourceToken | None = None) -> CampaignState:
    from crpipe.report.state import CampaignState

    return CampaignState.read(opened(config, "recorded"), token)


def source_token(config: Config) -> SourceToken | None:
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


@verb(look, "logs", f"{RANGE} --follow", reads="ranges, train", page="watching.md#logs-crpipe-logs")
def show_logs(
    name: Annotated[
        str,
        typer.Argument(
            metavar="LINK_OR_RANGE",
            help="as for other verbs; without it and without --follow all logs are listed, newest last",
            autocompletion=completing(checkable),
        ),
    ] = "",
    verb: Annotated[str, typer.Option(help="only logs of this verb: list, stage, split, train, …")] = "",
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="print what is added, through retries, until Ctrl-C")
    ] = False,
) -> None:
    """Print the newest log of a link or range, or list all logs.

    The first line says where the file is.
    """
    from crpipe.core.text import moment
    from crpipe.report.jobs import chosen, job_logs, list_logs, read_on

    config = Settings.campaign(options=False)
    all_names = tuple(dict.fromkeys((*map(str, config.all_ranges()), *link_names(config), CONSOLIDATED)))
    logs = job_logs(config.paths())
    logs = chosen(logs, pick(name, all_names, "range or link") if name else "", verb)
    if not (name or follow):
        width = shutil.get_terminal_size((120, 0)).columns if sys.stdout.isatty() else sys.maxsize
        print(printable(list_logs(logs, width)))
        return
    newest = logs[-1]
    message = Terminal().message
    message(f"{newest.path}  ({newest.verb} {newest.name}".rstrip() + f", written {moment(newest.time)})")
    if not follow:
        print(printable(newest.path.read_text(errors="replace")), end="")
        return
    for text in read_on(newest.path, lambda: time.sleep(_POLL_S), message):
        print(printable(text), end="", flush=True)


@partial(declare, "Tools")(
    look,
    "summary",
    reads="ranges, split.outlier_above, train",
    raises=[DataError],
    page="watching.md#before-and-after-crpipe-plan-crpipe-summary",
)
def summary(
    as_json: Annotated[
        bool, typer.Option("--json", help="machine-readable: docs/watching.md#for-programs")
    ] = False,
) -> None:
    """Show the campaign's sums, their check, and how good the final checkpoint is."""
    from crpipe.report.summary import render_summary, summary_json

    state = _state(Settings.campaign(options="installed"))
    if as_json:
        print(summary_json(state))
    else:
        show(render_summary(state))


@verb(
    look,
    "report",
    reads="ranges, train",
    raises=[DataError, MachineError],
    page="watching.md#one-page-crpipe-report",
)
def report(
    out: Annotated[
        Path | None, typer.Option(readable=False, help="where to write it; default runs/<run>/report.html")
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="another run to show beside this one; several: repeat it",
            autocompletion=completing(runs),
        ),
    ] = None,
) -> None:
    """Write one HTML page: quality, figures, sums, failures, keys."""
    from crpipe.report.compare import read_runs
    from crpipe.report.page import write_page

    state = _state(Settings.campaign(options="installed"))
    beside = read_runs(state.campaign.paths, others or [])
    print(write_page(state, out or state.campaign.paths.report(), others=beside))


@partial(declare, "Steps that the workflow runs")(
    look,
    "figures",
    "--progress",
    reads="ranges, split.outlier_above, train",
    raises=[DataError, MachineError],
    page="watching.md#figures-crpipe-figures",
)
def figures(
    *,
    progress: Annotated[
        bool, typer.Option("--progress", help="plot the numbers of the evaluated checkpoints instead")
    ] = False,
) -> None:
    """Plot multiplicities, losses and throughput of the campaign so far, as SVG, PNG, PDF and CSV files."""
    from crpipe.report.figures import plot_figures, plot_progress

    campaign = opened(Settings.campaign(options="installed"), "recorded")
    for path in plot_progress(campaign) if progress else plot_figures(campaign):
        print(path)


@verb(
    look,
    "compare",
    "first second --figure compare.svg",
    raises=[DataError, MachineError],
    page="training.md#changing-ones-mind",
)
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="names of runs in the folder `runs`",
            autocompletion=completing(runs),
        ),
    ],
    figure: FigureOption = None,
    by: ByOption = "",
    *,
    posterior: Annotated[
        bool,
        typer.Option(
            "--posterior", help="of generators: also whose events are most like true ones (log-posterior)"
        ),
    ] = False,
) -> None:
    """Show what differs between runs: rank, keys, training, metrics."""
    from crpipe.report.compare import (
        compared_tables,
        evaluation_folders,
        plot_comparison,
        read_runs,
        render_tables,
    )

    config = Settings.campaign(options=False)
    comparison = read_runs(config.paths(), runs)
    show(render_tables(compared_tables(comparison, by, config.train.monitor)))
    if posterior:
        from crpipe.report.posterior import render_posteriors

        show(render_posteriors(evaluation_folders(comparison)))
    if figure is not None:
        print(plot_comparison(comparison, figure))


@verb(
    look,
    "check",
    f"{RANGE} --jobs 4",
    reads="ranges, train",
    raises=[DataError, SourceError, MachineError, AccessError],
    page="operations.md#check-that-all-is-there",
)
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME …",
            help="ranges, links, `consolidated` or `outliers`; default: all",
            autocompletion=completing(checkable),
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="processes", min=1)] = 1,
    export: Annotated[
        list[Path] | None,
        typer.Option(readable=False, help="folder that `crpipe export` wrote, too; several: repeat it"),
    ] = None,
    *,
    source: Annotated[
        bool, typer.Option("--source", help="also list the source again, and compare it with the manifests")
    ] = False,
) -> None:
    """Verify every hash and every sum; list what is wrong.

    Each finding comes with what to type. It writes nothing.
    """
    from crpipe.check.check import check as check_campaign
    from crpipe.check.check import open_files

    campaign = open_files(Settings.campaign(options=source))  # only a listing needs the reader's options
    all_names = tuple(dict.fromkeys((*campaign.ranges, *campaign.chain.names, CONSOLIDATED, OUTLIERS)))
    selected = [pick(name, all_names, "range or link") for name in names or ()]
    report = check_campaign(
        campaign, selected, Terminal(), exports=export or (), processes=jobs, source=source
    )
    errors = report.errors
    for why, parts in _by_reason(report).items():
        more = f", … ({len(parts)} in all)" if len(parts) > _SHOWN else ""
        print(f"not judged: {', '.join(parts[:_SHOWN])}{more}: {why}")
    for remedy, findings in groupby(errors, lambda finding: finding.remedy):
        for finding in findings:
            print(f"{finding.path}: {finding.what}")
        print(f"    type: {_as_typed(remedy)}")
    counts = report.counts
    nouns = ("link", "checkpoint", "evaluation", "export", "side table")
    seen = ", ".join(counted(counts[f"{noun.removeprefix('side ')}s"], noun) for noun in nouns)
    print(
        f"checked: {counted(counts['ranges'], 'range')} with {counted(counts['events'], 'event')}, {seen}; "
        f"{counted(counts['files'], 'file')} with {counts['bytes'] / 1e6:.1f} MB hashed"
    )
    if errors and all(finding.severity == "unread" for finding in errors):
        raise DiskError(f"{counted(len(errors), 'file')} could not be read; nothing says that it is damaged")
    if errors:
        many = counted(len(errors), "thing")
        raise DataError(
            f"{many} {'is' if len(errors) == 1 else 'are'} wrong; type what is listed, in this order, then "
            "check again"
        )
    print("nothing is wrong")


def _as_typed(remedy: str) -> str:
    """Add the options of this call to the commands of a remedy."""
    words = [word for file in Settings.files for word in ("--config", str(file))]
    words += [word for override in Settings.overrides for word in ("--set", override)]
    command = shlex.join(["crpipe", *words])
    parts = remedy.split(" && ")
    return " && ".join(re.sub(r"^crpipe\b", lambda _: command, part) for part in parts)


def _by_reason(report: CheckReport) -> dict[str, list[str]]:
    """Return the names of what was not checked, by the reason."""
    reasons: dict[str, list[str]] = {}
    for note in report.notes:
        reasons.setdefault(note.what, []).append(note.path)
    return reasons
