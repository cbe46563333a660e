"""The command line as a whole: its options, its verbs, and how errors end it."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import Annotated

import typer

from crpipe import __version__
from crpipe.cli.look import look
from crpipe.cli.start import start
from crpipe.cli.steps import steps
from crpipe.cli.tools import tools
from crpipe.cli.use import use
from crpipe.cli.verbs import Verbs
from crpipe.cli.workflow import workflow
from crpipe.core.causes import MachineWatch, machine_error
from crpipe.core.errors import CrpipeError
from crpipe.core.signals import follow_parent
from crpipe.core.text import printable
from crpipe.core.waiting import choose_waiting

app = typer.Typer(
    cls=Verbs,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From raw simulation files in many range directories to a trained model, through every crash.",
)


for group in (start, workflow, look, steps, use, tools):
    app.add_typer(group)


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


def quiet_libraries() -> None:
    """Keep warnings of libraries from a terminal; logs of jobs have them."""
    if not sys.warnoptions and sys.stderr.isatty():
        warnings.simplefilter("ignore")


def main() -> None:
    """Run the command line; an error becomes one message and its exit code, see `crpipe.core.errors`."""
    if os.environ.get("CRPIPE_WORKFLOW"):
        follow_parent(os.environ["CRPIPE_WORKFLOW"])
    quiet_libraries()
    choose_waiting()
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
