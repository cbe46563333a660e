"""`crpipe run`: starts the workflow once, or again and again after failures that may pass."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config, read_tree
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError, CrpipeError
from crpipe.core.text import duration, printable
from crpipe.report.notify import notify
from crpipe.source.counting import check_source, ensure_counted
from crpipe.workflow.monitor import Monitor
from crpipe.workflow.run import (
    LOOK_S,
    RetryPolicy,
    SnakemakeCommand,
    StopSignal,
    WorkflowResult,
    described,
    run_head,
)

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.workflow.monitor import Screen


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What was typed: the configuration, the targets (or the number of ``links``), and options of Snakemake.

    typed: the whole command, to repeat. pause_s: the first pause of --keep-trying; 0 without it.
    """

    files: tuple[Path, ...]
    overrides: tuple[str, ...]
    targets: tuple[str, ...]
    links: int
    profile: str
    cores: str
    dry_run: bool
    more: tuple[str, ...]
    typed: tuple[str, ...]
    pause_s: float

    def config(self) -> Config:
        """Read and validate the configuration."""
        return load_config(self.files, self.overrides)

    def chosen(self, campaign: Campaign) -> tuple[str, ...]:
        """Name the targets: those that were typed, or the next links."""
        return next_links(campaign, self.links) if self.links else self.targets

    def call(self, targets: tuple[str, ...]) -> SnakemakeCommand:
        """Compose the call of Snakemake."""
        changes: dict[str, Any] = read_tree((), self.overrides)[0]
        return SnakemakeCommand(
            targets, self.files, changes, self.profile, self.cores, self.dry_run, self.more
        )


def next_links(campaign: Campaign, number: int) -> tuple[str, ...]:
    """Name the receipts of the next ``number`` links that are not trained; raise ConfigError without any."""
    receipts = [campaign.paths.receipt(name) for name in campaign.chain.names]
    left = [str(path) for path in receipts if not is_present(path)]
    if not left:
        raise ConfigError(
            f"--links {number}: all {len(receipts)} links are trained; add ranges (ranges.last) or rounds "
            "(train.rounds), or evaluate and plot what is there: crpipe run"
        )
    return tuple(left[:number])


def run_until_done(request: RunRequest, screen: Screen) -> int:
    """Run the workflow; with a pause, again after each failure that may pass. Return the exit code."""
    request.config()  # a wrong key is refused at once, also where nothing else can be reached
    stop = StopSignal(screen.message)
    if not request.dry_run:
        stop.listen()
    patience = RetryPolicy(request.pause_s)
    chosen: list[tuple[str, ...]] = []  # once: a link that is trained now is one of those that were asked for
    while True:
        end, error = _attempt(request, chosen, screen, stop)
        if stop.number:
            screen.message(f"Stopped as asked; continue with: {shlex.join(request.typed)}")
            return stop.exit_code
        if error is None and end.code == 0:
            return 0
        pause_s = 0.0
        if request.pause_s:
            pause_s = patience.after(end) if error is None else patience.after_error(error)
        if not pause_s:
            if request.pause_s:
                _inform(request, screen)
            if error is not None:
                raise error
            _explain(end, screen)
            return end.code if end.code > 0 else 128 - end.code
        at = time.strftime("%H:%M:%S", time.localtime(time.time() + pause_s))
        what = described(end) if error is None else str(error)
        screen.message(f"failed: {what}")
        screen.message(f"trying again in {duration(pause_s)}, at {at}; Ctrl-C stops this")
        _pause(pause_s, stop)


def _attempt(
    request: RunRequest, chosen: list[tuple[str, ...]], screen: Screen, stop: StopSignal
) -> tuple[WorkflowResult, CrpipeError | None]:
    """Run the workflow once, unless a signal came in the pause; also give the error before any job."""
    try:
        return (WorkflowResult() if stop.number else run_once(request, chosen, screen, stop)), None
    except CrpipeError as error:
        return WorkflowResult(), error
    except KeyboardInterrupt:
        if not stop.number:
            raise
        return WorkflowResult(), None


def run_once(
    request: RunRequest, chosen: list[tuple[str, ...]], screen: Screen, stop: StopSignal
) -> WorkflowResult:
    """Run the workflow once, and print what happens; ``chosen`` keeps its targets for the next time."""
    config = request.config()
    check_source(config)
    campaign = Campaign.open(config)
    ensure_counted(campaign, screen)
    if not chosen:
        chosen.append(request.chosen(campaign))
    monitor = Monitor(campaign, screen, dry_run=request.dry_run)
    end = run_head(
        request.call(chosen[0]),
        request.typed,
        stop,
        monitor.receive,
        monitor.tick,
        notify=not request.pause_s,
    )
    if not stop.number:
        end.refuse_system_error()
    if end.code == 0 and not stop.number:
        for line in monitor.close():
            (screen.show if request.dry_run else screen.message)(line)
    return end


def _inform(request: RunRequest, screen: Screen) -> None:
    """Inform a person of the failure; why that is not possible must not hide why the workflow failed."""
    try:
        config = request.config()
        if config.notify.failure:
            notify(Campaign.open(config, "recorded"), "failure")
    except CrpipeError as error:
        screen.message(f"warning: notify.failure: {error}")


def _explain(end: WorkflowResult, screen: Screen) -> None:
    """Print why the workflow failed: its own words, else the last lines of what it printed."""
    for line in (end.text or end.output).splitlines():
        screen.message(printable(line))


def _pause(seconds: float, stop: StopSignal) -> None:
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until and not stop.number:
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        if not stop.number:
            raise
