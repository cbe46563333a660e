"""`crpipe sync --every`: sends what changed again and again, until the run is finished or a signal comes."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError, CrpipeError
from crpipe.core.lease import lease
from crpipe.source.sync.send import LEASE, SyncRules, check_place, send_changed

if TYPE_CHECKING:
    from collections.abc import Callable

    from crpipe.campaign.campaign import Campaign
    from crpipe.core.text import Progress

_STOPS = (signal.SIGTERM, signal.SIGINT)  # a shell script starts its background jobs without the second


def sync_every(
    campaign: Campaign, minutes: float, finished: Callable[[], bool], progress: Progress, rules: SyncRules
) -> bool:
    """Send what changed every ``minutes``; return whether the finished run was sent, False when stopped.

    What fails is reported and sent the next time. Raise ConfigError when ``sync.to`` cannot be one,
    LeaseError while another sync of this run works.
    """
    check_place(campaign.config)
    before = {number: signal.signal(number, signal.default_int_handler) for number in _STOPS}
    try:
        while not campaign.paths.run_dir().is_dir():
            time.sleep(60 * minutes)
        with lease(campaign.paths.run_dir() / LEASE, wait_s=0.0, say=progress.message):
            return _repeat(campaign, minutes, finished, progress, rules)
    except KeyboardInterrupt:
        progress.message("stopped as asked; the same command goes on")
        return False
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _repeat(
    campaign: Campaign, minutes: float, finished: Callable[[], bool], progress: Progress, rules: SyncRules
) -> bool:
    while True:
        over = finished()  # before the sync: what is finished now is sent now
        try:
            send_changed(campaign, progress, rules)
        except ConfigError:
            raise
        except CrpipeError as error:
            progress.message(f"warning: {error}; tried again in {minutes:g} minutes")
        else:
            rules = replace(rules, new=False)
            if over:
                progress.message(f"{campaign.paths.run}: finished, and sent")
                return True
        time.sleep(60 * minutes)
