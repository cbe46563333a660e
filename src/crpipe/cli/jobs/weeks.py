"""Jobs of campaigns that run for weeks, composed from the configuration: clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe.check.clean.needed import CleanJob
from crpipe.core.files import read_json_if_any

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.config.loading import Config


def clean_job(config: Config, keep: tuple[str, ...], workplace: Path) -> CleanJob:
    """Compose the deletion of what a campaign does not need any more."""
    layout = read_json_if_any(config.paths().layout()) or {}
    return CleanJob(
        paths=config.paths(),
        chain=config.chain(has_outliers=not layout.get("fixed")),
        keep_links=config.train.keep_links,
        keep=keep,
        workplace=workplace,
    )
