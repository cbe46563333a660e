"""Workloads that installed packages declare, by entry points of the group ``crpipe.workloads``.

``jets = "jets"`` gives a package's workload a short name; ``start.yaml`` beside its ``__init__.py`` says what
`crpipe init` begins with. ``jets = "jets.model:JetTagger"`` gives the name alone. crpipe's own need no entry.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

import crpipe
from crpipe.config.validation import explain
from crpipe.core.errors import ConfigError

GROUP = "crpipe.workloads"
START = "start.yaml"


class DeclaredReader(BaseModel, frozen=True, extra="forbid"):
    """What a reader reads, what pip has to install for it, and the usual names of its side tables' files."""

    about: str = ""
    extra: str = ""
    tables: dict[str, str] = {}


class InitConfig(BaseModel, frozen=True, extra="forbid"):
    """What a workload begins with: the content of ``start.yaml``.

    about: what it learns, in a line. workload, simulator: ``module:Name``. readers: the same of its readers;
    the first is the default. tables: that the workload itself needs, by the usual names of their files.
    extras: those that its evaluation needs, and why. per_step: batches that a step takes. always, synthetic:
    keys of the configuration for any files, and those besides for simulated ones.
    """

    about: str
    workload: str
    readers: dict[str, DeclaredReader] = {}
    simulator: str = ""
    tables: dict[str, str] = {}
    extras: dict[str, str] = {}
    per_step: int = 1
    always: dict[str, Any] = {}
    synthetic: dict[str, Any] = {}


@cache
def declared() -> dict[str, str]:
    """Return what installed packages declare, a package or ``module:Name``, by the workload's short name.

    Raise ConfigError where two packages use one name.
    """
    starts = sorted((Path(crpipe.__file__).parent / "workloads").glob(f"*/{START}"))
    values = {path.parent.name: f"{GROUP}.{path.parent.name}" for path in starts}
    for point in sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        if values.setdefault(point.name, point.value) != point.value:
            both = f"{values[point.name]} and {point.value}"
            raise ConfigError(f"workload {point.name}: declared twice, by {both}; uninstall one package")
    return values


def is_declared(name: str) -> bool:
    """Return whether the class ``module:Name`` is in a package that declares a workload."""
    modules = [value.partition(":") for value in declared().values()]
    packages = {module.rpartition(".")[0] or module if kind else module for module, kind, _ in modules}
    return any(name.startswith((f"{each}.", f"{each}:")) for each in packages)


@cache
def init_configs() -> dict[str, InitConfig]:
    """Read what each declared workload begins with, by its short name; ConfigError for a wrong file."""
    return {name: _of(value) for name, value in sorted(declared().items())}


def declared_readers() -> dict[str, dict[str, DeclaredReader]]:
    """Return the readers of each declared workload, with the side tables of both, by its short name."""
    return {
        name: {
            reader: about.model_copy(update={"tables": {**config.tables, **about.tables}})
            for reader, about in config.readers.items()
        }
        for name, config in init_configs().items()
    }


def _of(value: str) -> InitConfig:
    if ":" in value:
        return InitConfig(about=value, workload=value)
    spec = find_spec(value)  # imports no package, but those around it
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"entry point of {GROUP}: there is no package {value}; install it again")
    path = Path(spec.submodule_search_locations[0], START)
    try:
        return InitConfig.model_validate(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; write what `crpipe init` begins with") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: no YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, InitConfig, '', {})}") from error
