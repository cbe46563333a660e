"""Which configuration files are read, in one order for the verbs and for the workflow."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.core.causes import is_plain, is_present
from crpipe.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULTS = Path("config/config.yaml")
OWN = Path("crpipe.yaml")
VARIABLE = "CRPIPE_CONFIG"


def config_files(
    named: Iterable[str | Path] = (), *, here: Path = Path(), environ: Mapping[str, str] = os.environ
) -> tuple[Path, ...]:
    """List the configuration files, weakest first: config/config.yaml where it exists, then the user's.

    The user's are those that are ``named``, else those in CRPIPE_CONFIG, else crpipe.yaml where it exists.
    The defaults are listed once, also where they are named. Relative names start at the directory ``here``.
    Raise ConfigError when CRPIPE_CONFIG names a missing file; one of ``named`` is refused when it is read.
    """
    chosen = own_files(named, here=here, environ=environ)
    defaults = (here / DEFAULTS).resolve()
    if not is_present(defaults):
        return chosen
    return (DEFAULTS, *(path for path in chosen if (here / path).resolve() != defaults))


def own_files(
    named: Iterable[str | Path] = (), *, here: Path = Path(), environ: Mapping[str, str] = os.environ
) -> tuple[Path, ...]:
    """List the files that the user chose: named, else of CRPIPE_CONFIG, else crpipe.yaml."""
    given = tuple(map(Path, named))
    if given:
        return given
    variable = [Path(part) for part in environ.get(VARIABLE, "").split(os.pathsep) if part]
    for path in variable:
        if not is_plain(here / path):
            raise ConfigError(
                f"{VARIABLE}: {path} does not exist; correct the variable, or remove it: unset {VARIABLE}"
            )
    if variable:
        return tuple(variable)
    return (OWN,) if is_plain(here / OWN) else ()


def is_configured(here: Path) -> bool:
    """Return whether the directory holds a configuration that verbs read without --config."""
    return is_plain(here / OWN) or is_plain(here / DEFAULTS)


def way_to_campaign(here: Path) -> str:
    """Describe the way from a directory without a campaign to one: the nearest above, else what to type."""
    near = next((each for each in here.absolute().parents if is_configured(each)), None)
    if near:
        return f"change to the directory of the campaign: cd {shlex.quote(str(near))}"
    return "change to the directory of the campaign"


def relative(paths: Iterable[Path], here: Path) -> list[Path]:
    """Name files below the absolute directory ``here`` relative to it: the names outlive a move of it."""
    full = [here / path for path in paths]
    return [path.relative_to(here) if path.is_relative_to(here) else path for path in full]
