"""The campaign's memory of its configuration: what was made under other keys is refused, never mixed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.config.loading import refuse_changes
from crpipe.core.files import read_json, write_json
from crpipe.core.lease import lease

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crpipe.config.loading import Config

_CLAIM_WAIT_S = 60.0


def check_data(config: Config) -> None:
    """Raise ConfigError when the results directory was filled under other data keys."""
    _check(config.paths().campaign(), config.data_keys(), _data_advice(config))


def check_train(config: Config) -> None:
    """Raise ConfigError when the run was started under other training keys."""
    _check(config.paths().run_config(), config.train_keys(), _train_advice(config))


def claim_data(config: Config) -> None:
    """Record the data keys if the results directory is new; refuse other ones."""
    _claim(config.paths().campaign(), config.data_keys(), _data_advice(config))


def claim_train(config: Config) -> None:
    """Record the training keys if the run is new; refuse other ones."""
    _claim(config.paths().run_config(), config.train_keys(), _train_advice(config))


def _data_advice(config: Config) -> str:
    return f"restore the old values, or set `results` to a new directory (now {config.results})"


def _train_advice(config: Config) -> str:
    return f"restore the old values, or give the changed campaign a new name with `run` (now {config.run})"


def _check(path: Path, keys: Mapping[str, Any], advice: str) -> None:
    if path.exists():
        refuse_changes(read_json(path), keys, str(path.parent), advice)


def _claim(path: Path, keys: Mapping[str, Any], advice: str) -> None:
    if not path.exists():
        # The first jobs of a campaign start together: one of them writes, the others compare.
        with lease(path.parent / ".claim", wait_s=_CLAIM_WAIT_S, say=_quiet):
            if not path.exists():
                write_json(path, keys)
    _check(path, keys, advice)


def _quiet(_: str) -> None:
    pass
