"""Tell a person through the command that the configuration names; what to tell comes from the files alone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError
from crpipe.core.files import write_json
from crpipe.report.status.campaign_state import collect
from crpipe.report.status.range_state import optional
from crpipe.report.status.status import render_status
from crpipe.report.status.status_types import State
from crpipe.report.text import duration

if TYPE_CHECKING:
    from crpipe.config.loading import Config
    from crpipe.report.status.status_types import CampaignStatus, SourceToken

EVENTS = ("success", "failure", "stall")
_WIDTH = 100
_SHOWN = 400  # characters of a failing command's complaint


def send(config: Config, event: str, token: SourceToken | None = None) -> str:
    """Run the command of ``event`` with the status on its stdin; return one line that says what was done.

    A stall is told once: again only after the campaign has moved in between. Raise ConfigError when the event
    is unknown, or when the command fails or takes too long.
    """
    if event not in EVENTS:
        raise ConfigError(f"notify: {event!r} is not an event; expected {', '.join(EVENTS)}")
    command: str = getattr(config.notify, event)
    if not command:
        return f"notify.{event} is empty: nobody is told"
    status = collect(config)
    if event == "stall" and not _is_news(config, status):
        return "the campaign moves, is finished, or its stall was told already: nobody is told"
    subject = subject_of(status, event)
    _run(config, event, command, subject, f"{subject}\n\n{render_status(config, _WIDTH, token=token)}\n")
    if event == "stall":
        write_json(config.paths().stall(), {"last_sign": last_sign(config, status)})
    return f"notify.{event}: told"


def subject_of(status: CampaignStatus, event: str) -> str:
    """Say the most important thing in one line."""
    trained, ranges = status.states()[State.TRAINED], len(status.chain())
    return f"crpipe {status.run}: {event}, {trained} of {ranges} ranges trained"


def last_sign(config: Config, status: CampaignStatus) -> float:
    """Find when the campaign last wrote anything: a journal, or the files of a running job; 0.0 for never."""
    paths = config.paths()
    journals = (paths.data_journal(), paths.train_journal())
    times = [path.stat().st_mtime for path in journals if path.exists()]
    times += [status.time - item.quiet_s for item in status.ranges if item.quiet_s is not None]
    return round(max(times, default=0.0), 3)


def _is_news(config: Config, status: CampaignStatus) -> bool:
    sign = last_sign(config, status)
    if not sign or status.states()[State.TRAINED] == len(status.chain()):
        return False
    if time.time() - sign < config.notify.stall_minutes * 60:
        return False
    told = optional(config.paths().stall())
    return told is None or bool(told["last_sign"] < sign - 1)


def _run(config: Config, event: str, command: str, subject: str, message: str) -> None:
    # The user's own configuration is a shell command on purpose; nothing from elsewhere is put into it, and
    # the message comes by stdin, so that neither it nor a secret ever stands on a command line.
    environment = {"CRPIPE_EVENT": event, "CRPIPE_RUN": config.run, "CRPIPE_SUBJECT": subject}
    with subprocess.Popen(  # noqa: S602 - see above
        command,
        shell=True,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(message, timeout=config.notify.timeout_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # whatever the shell has started, too
            limit = duration(config.notify.timeout_s)
            raise ConfigError(
                f"notify.{event}: the command took longer than {limit} (notify.timeout_s); correct it"
            ) from error
    if process.returncode:
        said = " ".join(said.split())[-_SHOWN:]
        raise ConfigError(f"notify.{event}: the command ended with {process.returncode}: {said}; correct it")
