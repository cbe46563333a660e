"""Jobs of campaigns that run for weeks, composed from the configuration."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from crpipe.check.clean import CleanJob
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.files import read_json_if_any

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.config.loading import Config
    from crpipe.core.ranges import Chain


def clean_job(config: Config, keep: tuple[str, ...], workplace: Path) -> CleanJob:
    """Compose the deletion of what a campaign does not need any more."""
    return CleanJob(
        paths=config.paths(),
        chain=_chain(config),
        keep_links=config.train.keep_links,
        keep=keep,
        workplace=workplace,
    )


def is_finished(config: Config) -> bool:
    """Return whether every link of the chain has its receipt; not before its files are counted."""
    paths = config.paths()
    with contextlib.suppress(ConfigError):
        return all(is_present(paths.receipt(name)) for name in _chain(config).names)
    return False


def _chain(config: Config) -> Chain:
    """Form the chain from the files alone: the reader may not be installed here."""
    layout = read_json_if_any(config.paths().layout()) or {}
    return config.chain(has_outliers=not layout.get("fixed"))
