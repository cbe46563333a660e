"""Verbs that show what happens while it happens: logs; and the redrawing of `status --watch`."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli import completion
from crpipe.cli.terminal import Settings, Terminal, completing
from crpipe.core.progress import printable
from crpipe.core.ranges import pick

if TYPE_CHECKING:
    from collections.abc import Callable

# Handlers import what they call: a verb pays for its own libraries only.
# ruff: noqa: PLC0415

_POLL_S = 0.5
logs = typer.Typer()


@logs.command("logs")
def show_logs(
    name: Annotated[
        str,
        typer.Argument(
            metavar="LINK_OR_RANGE",
            help="as for other verbs; without it and without --follow all logs are listed, newest last",
            autocompletion=completing(completion.ranges_and_links),
        ),
    ] = "",
    verb: Annotated[str, typer.Option(help="only logs of this verb: list, stage, split, train, …")] = "",
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="print what is added, through retries, until Ctrl-C")
    ] = False,
) -> None:
    """Print the newest log of a link or range, or list all logs; the first line says where the file is."""
    from crpipe.report.job_logs import chosen, job_logs, list_logs, read_on
    from crpipe.report.text import moment

    config = Settings.campaign(options=False)
    known = [each for each, _ in completion.ranges_and_links(config)]
    found = job_logs(config.paths())
    found = chosen(found, pick(name, known, "range or link") if name else "", verb)
    if not (name or follow):
        width = shutil.get_terminal_size((120, 0)).columns if sys.stdout.isatty() else sys.maxsize
        print(printable(list_logs(found, width)))
        return
    newest = found[-1]
    said = Terminal().say
    said(f"{newest.path}  ({newest.verb} {newest.name}".rstrip() + f", written {moment(newest.time)})")
    if not follow:
        print(printable(newest.path.read_text(errors="replace")), end="")
        return
    for text in read_on(newest.path, lambda: time.sleep(_POLL_S), said):
        print(printable(text), end="", flush=True)


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
    return f"; {count} more lines in `crpipe status`" if count > 0 else ""
