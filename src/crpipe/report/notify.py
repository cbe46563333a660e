"""Run the configured command of an event, with the status of the campaign as its input."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from crpipe.core.causes import look_at
from crpipe.core.errors import ConfigError
from crpipe.core.files import read_json_if_any, write_json
from crpipe.core.text import counted, duration
from crpipe.report.state import CampaignState, SourceToken
from crpipe.report.status import render_status

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign

EVENTS = ("success", "failure", "stall")
STALL_MINUTES = 60.0
TIMEOUT_S = 60.0  # of a command
_WIDTH = 100
_SHOWN = 400  # characters of a failing command's output


def notify(
    campaign: Campaign, event: str, token: SourceToken | None = None, minutes: float = STALL_MINUTES
) -> str:
    """Run the event's command with the status on its stdin; return one line that says what was done.

    A stall (``minutes`` without a sign of life) is reported once, and again only after the campaign has moved
    in between. Raise ConfigError when the event is unknown, or when the command fails or takes too long.
    """
    if event not in EVENTS:
        raise ConfigError(f"notify: {event!r} is not an event; expected {', '.join(EVENTS)}")
    if not getattr(campaign.config.notify, event):
        return f"notify.{event} is empty: nothing is sent"
    state = CampaignState.read(campaign, token)
    if event == "stall" and not _is_news(campaign, state, minutes):
        return "the campaign moves, is finished, or its stall was reported already: nothing is sent"
    subject = subject_of(state, event)
    _run(campaign, event, subject, f"{subject}\n\n{render_status(state, _WIDTH)}\n")
    if event == "stall":
        write_json(campaign.paths.stall(), {"last_sign": last_sign(campaign, state)})
    return f"notify.{event}: sent"


def subject_of(state: CampaignState, event: str) -> str:
    """Summarize the campaign in one line."""
    lost = f", {counted(len(state.given_up), 'range')} skipped" if state.given_up else ""
    return f"crpipe {state.run}: {event}, {state.trained_of()} trained{lost}"


def last_sign(campaign: Campaign, state: CampaignState) -> float:
    """Find when the campaign last wrote anything: a journal, or the files of a running job; 0.0 for never."""
    journals = (campaign.paths.data_journal(), campaign.paths.train_journal())
    times = [status.st_mtime for path in journals if (status := look_at(path))]
    times += [state.time - item.quiet_s for item in state.rows() if item.quiet_s is not None]
    return round(max(times, default=0.0), 3)


def _is_news(campaign: Campaign, state: CampaignState, minutes: float) -> bool:
    sign = last_sign(campaign, state)
    if not sign or state.finished() == len(state.bulk()):
        return False
    if time.time() - sign < minutes * 60:
        return False
    reported = read_json_if_any(campaign.paths.stall())
    return reported is None or bool(reported["last_sign"] < sign - 1)


def _run(campaign: Campaign, event: str, subject: str, message: str) -> None:
    section = campaign.config.notify
    # The command is a shell command on purpose: it comes from the user's own configuration, and nothing else
    # is inserted into it. The message comes by stdin, so that no secret appears on a command line.
    environment = {name: value for name, value in os.environ.items() if name != "BEARER_TOKEN"}
    environment |= {"CRPIPE_EVENT": event, "CRPIPE_RUN": campaign.paths.run, "CRPIPE_SUBJECT": subject}
    with subprocess.Popen(  # noqa: S602 - see above
        getattr(section, event),
        shell=True,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(message, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # the shell and everything that it has started
            limit = duration(TIMEOUT_S)
            raise ConfigError(f"notify.{event}: the command took longer than {limit}; correct it") from error
    if process.returncode:
        output = " ".join(output.split())[-_SHOWN:]
        raise ConfigError(
            f"notify.{event}: the command ended with {process.returncode}: {output}; correct it"
        )
