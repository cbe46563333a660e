"""The configuration: the sections' keys in one tree, read, merged and judged.

YAML files come in, later ones win key by key; a frozen Config comes out. Unknown keys and impossible values
are a ConfigError that names the file, the key and the nearest legal name.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import yaml
from pydantic import BaseModel, model_validator

from crpipe.config.sections import (
    EvaluateSection,
    LoadSection,
    NotifySection,
    OutliersSection,
    RangesSection,
    ResourcesSection,
    Section,
    SourceSection,
    SplitSection,
    SyncSection,
    TrainSection,
    key,
)
from crpipe.core.errors import ConfigError
from crpipe.core.files import digest
from crpipe.core.paths import Paths
from crpipe.core.ranges import Range, expand
from crpipe.workloads.muons.simulator.options import Synthetic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Tree = dict[str, Any]

# Sections are part of this module's surface: who reads a configuration need not know where its keys stand.
__all__ = ["Config", "SourceSection", "Synthetic", "TrainSection", "Tree", "load_config", "validate"]


class Config(Section):
    """Everything a campaign is configured by."""

    run: str = key(
        "default",
        "name of the training run; outputs go to runs/<run>",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
    )
    seed: int = key(1, "seed of everything random", "data", ge=0)
    results: str = key("results", "directory of the data products")
    runs: str = key("runs", "directory of the training runs")
    source: SourceSection = key(SourceSection(), "the raw files")
    synthetic: Synthetic = key(Synthetic(), "the built-in simulator; read only with source.uri synthetic://")
    ranges: RangesSection = key(RangesSection(), "the campaign's ranges")
    split: SplitSection = key(SplitSection(), "bulk and outliers")
    outliers: OutliersSection = key(OutliersSection(), "consolidated outliers")
    load: LoadSection = key(LoadSection(), "batches")
    train: TrainSection = key(TrainSection(), "the training loop")
    model: Annotated[Tree, "options of train.workload, validated by its own Config"] = key(
        {}, "options of the workload", "train"
    )
    evaluate: EvaluateSection = key(EvaluateSection(), "held-out evaluation")
    resources: ResourcesSection = key(ResourcesSection(), "what the cluster is asked for")
    sync: SyncSection = key(SyncSection(), "a second place for what a run made")
    notify: NotifySection = key(NotifySection(), "who is told, and how")

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        expand(self.ranges.first, self.ranges.last, self.ranges.step, self._skip())
        return self

    def _skip(self) -> frozenset[Range]:
        return frozenset(Range.parse(text) for text in self.ranges.skip)

    def all_ranges(self) -> tuple[Range, ...]:
        """The campaign's ranges in order, without the skipped ones."""
        return expand(self.ranges.first, self.ranges.last, self.ranges.step, self._skip())

    def paths(self) -> Paths:
        """Where this campaign's files stand."""
        return Paths(Path(self.results), Path(self.runs), self.run)

    def options(self) -> BaseModel:
        """The workload's own options, validated."""
        return workload_config(self.train.workload).model_validate(self.model)

    def data_keys(self) -> Tree:
        """Every key that shapes the shards, flattened to dotted names."""
        return _scoped(self, {"data"})

    def train_keys(self) -> Tree:
        """Every key that shapes a checkpoint: those of the data, of the training, and of the workload."""
        keys = _scoped(self, {"data", "train"})
        del keys["model"]  # as written; what counts is what it says with its defaults
        keys["train.horizon_ranges"] = self.horizon()
        return keys | {
            f"model.{name}": value for name, value in flatten(self.options().model_dump(mode="json"))
        }

    def horizon(self) -> int:
        """Ranges over which the learning rate runs its course; one that is skipped counts like the others."""
        ranges = self.ranges
        return self.train.horizon_ranges or len(expand(ranges.first, ranges.last, ranges.step, frozenset()))

    def fingerprint(self) -> str:
        """Hash of every key that changes a checkpoint."""
        return digest(self.train_keys())


def workload_config(name: str) -> type[BaseModel]:
    """Find the options' model of a workload named ``module:Class``: ``ClassConfig`` in the same module."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(f"train.workload: {name!r} cannot be used; expected module:Class")
    try:
        found = getattr(import_module(module), f"{attribute}Config")
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"train.workload: {name!r} cannot be used ({error}); expected module:Class"
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        raise ConfigError(f"train.workload: {name}Config is not a pydantic model")
    return found


def load_config(files: Iterable[Path], overrides: Iterable[str] = ()) -> Config:
    """Merge YAML files and ``key.sub=value`` overrides, later ones first in rank, into a validated Config."""
    return validate(*read_tree(files, overrides))


def read_tree(files: Iterable[Path], overrides: Iterable[str] = ()) -> tuple[Tree, dict[str, str]]:
    """Merge files and overrides without judging them; tell for each dotted key where its value came from."""
    tree: Tree = {}
    origin: dict[str, str] = {}
    for path in files:
        _merge(tree, _read_yaml(path), str(path), origin)
    for text in overrides:
        _merge(tree, parse_override(text), f"--set {text}", origin)
    return tree, origin


def parse_override(text: str) -> Tree:
    """Read ``key.sub=value`` (value in YAML) into a nested mapping."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set {text}: expected key.sub=value")
    try:
        node: Any = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text}: {value!r} is not YAML") from error
    for part in reversed(name.split(".")):
        node = {part: node}
    return dict(node)


def validate(tree: Tree, origin: Mapping[str, str] | None = None) -> Config:
    """Check a merged mapping; raise ConfigError with one line per wrong key or value."""
    origin = origin or {}
    try:
        config = Config.model_validate(tree)
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(error, Config, "", origin)) from error
    options = workload_config(config.train.workload)
    try:
        options.model_validate(config.model)
    except pydantic.ValidationError as error:
        raise ConfigError(_explain(error, options, "model.", origin)) from error
    return config


def refuse_changes(recorded: Mapping[str, Any], current: Mapping[str, Any], what: str, advice: str) -> None:
    """Raise ConfigError listing the keys that differ between a campaign's record and the configuration."""
    changed = [name for name in sorted({*recorded, *current}) if recorded.get(name) != current.get(name)]
    if changed:
        lines = [f"  {name}: {what} {recorded.get(name)!r}, config {current.get(name)!r}" for name in changed]
        raise ConfigError("\n".join([f"the configuration changed under {what}:", *lines, advice]))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested mapping with dotted names."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _scoped(section: BaseModel, scopes: set[str], prefix: str = "") -> Tree:
    found: Tree = {}
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            found |= _scoped(value, scopes, f"{prefix}{name}.")
        elif isinstance(info.json_schema_extra, dict) and info.json_schema_extra["scope"] in scopes:
            found[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return found


def _read_yaml(path: Path) -> Tree:
    try:
        tree = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); name an existing file with --config"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected keys with values, found {type(tree).__name__}")
    return tree


def _merge(into: Tree, tree: Tree, source: str, origin: dict[str, str], prefix: str = "") -> None:
    for name, value in tree.items():
        dotted = f"{prefix}{name}"
        origin[dotted] = source
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value, source, origin, f"{dotted}.")
        else:
            into[name] = value
            if isinstance(value, dict):
                origin |= {f"{dotted}.{leaf}": source for leaf, _ in flatten(value)}


def _explain(
    error: pydantic.ValidationError, model: type[BaseModel], prefix: str, origin: Mapping[str, str]
) -> str:
    lines = []
    for item in error.errors():
        parts = [str(part) for part in item["loc"]]
        dotted = prefix + ".".join(parts)
        where = next((origin[name] for name in _ancestors(dotted) if name in origin), "")
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key" + _nearest(parts, model, prefix)
        elif not isinstance(item["input"], dict | BaseModel):
            message = f"{item['input']!r}: {message[:1].lower()}{message[1:]}"
        lines.append(": ".join(part for part in (where, dotted, message) if part))
    return "\n".join(lines)


def _ancestors(dotted: str) -> Iterator[str]:
    while dotted:
        yield dotted
        dotted = dotted.rpartition(".")[0]


def _nearest(parts: list[str], model: type[BaseModel], prefix: str) -> str:
    parent: Any = model
    for part in parts[:-1]:
        parent = parent.model_fields[part].annotation
    near = difflib.get_close_matches(parts[-1], list(parent.model_fields), n=1, cutoff=0.4)
    return f"; did you mean {prefix}{'.'.join([*parts[:-1], near[0]])}?" if near else ""
