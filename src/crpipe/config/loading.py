"""The configuration: keys of all sections in one tree, read, merged, validated; a line for each error.

YAML files come in, later ones win key by key; a frozen Config comes out. Unknown keys and impossible values
are a ConfigError that names the file, the key and the nearest legal name.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, model_validator

from crpipe.config.combinations import (
    check_binnings,
    check_convert,
    check_directory,
    check_file_numbers,
    check_held_out,
    check_on_failure,
    check_processes,
    check_start,
)
from crpipe.config.keys import Section, key
from crpipe.config.plugins import (
    WRITTEN_AS,
    free_options,
    is_installed,
    later_options,
    options_class,
)
from crpipe.config.sections import (
    EvaluateSection,
    LoadSection,
    NotifySection,
    OutliersSection,
    RangesSection,
    ResourcesSection,
    SourceSection,
    SplitSection,
    SyncSection,
    TrainSection,
)
from crpipe.config.validation import checked
from crpipe.config.yaml_text import read_value, read_yaml
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.paths import Paths
from crpipe.core.ranges import Chain, Range, make_chain, make_ranges
from crpipe.core.records import NumberedFiles, skipped_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping


def check_choice(what: str, value: Any, known: Collection[str]) -> None:
    """Raise ConfigError unless ``value`` is one of the names; ``what`` says where it was given."""
    if value not in known:
        raise ConfigError(
            f"{what}: {value!r} is not known; known: {', '.join(known)}{did_you_mean(value, known)}"
        )


def did_you_mean(value: Any, known: Collection[str]) -> str:
    """Name the nearest of the known names, if one is near."""
    lower = {each.lower(): each for each in reversed([*known])}
    near = difflib.get_close_matches(str(value).lower(), lower, n=1, cutoff=0.4)
    return f"; did you mean {lower[near[0]]}?" if near else ""


Tree = dict[str, Any]
AUTO = "auto"
SYNTHETIC = "synthetic://"
# Sections whose keys belong to what another key names.
PARTS_FIRST = "split.parts_first"  # recorded since the group, and not the size, decides an event's part
Options = bool | Literal["installed"]
NAMED = {"reader": "source.reader", "simulator": "source.simulator", "model": "train.workload"}

# Sections are exported too: code that reads a configuration need not know which module declares a key.
__all__ = ["Config", "SourceSection", "TrainSection", "Tree", "load_config", "validate"]


class Config(Section):
    """Everything a campaign is configured by."""

    run: str = key(
        "default",
        "name of the training run; outputs go to runs/<run>",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
    )
    seed: int = key(1, "seed of everything random", "data", ge=0, le=2**63 - 1)
    results: str = key("results", "directory of the data products")
    runs: str = key("runs", "directory of the training runs")
    source: SourceSection = key(SourceSection(), "the raw files")
    reader: Annotated[Tree, "options of source.reader, validated by its own model"] = key(
        {}, "options of the reader", "data"
    )
    simulator: Annotated[Tree, "options of source.simulator, validated by its own model"] = key(
        {}, "options of the simulator; used only when source.uri is synthetic://", "data"
    )
    ranges: RangesSection = key(RangesSection(), "the campaign's ranges")
    split: SplitSection = key(SplitSection(), "bulk and outliers")
    outliers: OutliersSection = key(OutliersSection(), "consolidated outliers")
    load: LoadSection = key(LoadSection(), "batches")
    train: TrainSection = key(TrainSection(), "the training loop")
    model: Annotated[Tree, "options of train.workload, validated by its own model"] = key(
        {}, "options of the workload", "train"
    )
    evaluate: EvaluateSection = key(EvaluateSection(), "held-out evaluation")
    resources: ResourcesSection = key(ResourcesSection(), "what the cluster is asked for")
    sync: SyncSection = key(SyncSection(), "a second place for what a run made")
    packs: bool = key(
        False, "each link and range goes to its machine as one file, where no file system is shared"
    )
    notify: NotifySection = key(NotifySection(), "commands that notify a person")

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if isinstance(self.ranges.last, int):
            self._expand(self.ranges.last)
            self._check_horizon(self.ranges.last)
            check_file_numbers(self.split, self.ranges.first, self.ranges.last)
        check_directory("results", self.results)
        check_directory("runs", self.runs)
        check_held_out(self.split, self.train)
        check_start(self.train)
        check_on_failure(self.ranges, packs=self.packs)
        check_processes(self.train)
        check_binnings(self.split)
        check_convert(self.source, simulates=self.simulates(), packs=self.packs)
        return self

    def _check_horizon(self, last: int) -> None:
        rounds, horizon = self.train.passes, self.train.schedule.horizon_ranges
        most = rounds * len(self._expand(last, skip=False))
        if rounds > 1 and horizon > most and self.schedule_ends():
            raise ConfigError(
                f"train.schedule.horizon_ranges: {horizon} is beyond the campaign's {rounds} passes: the "
                f"learning rate would never reach its end; legal: 0 (all of them) to {most}"
            )

    def _expand(self, last: int, *, skip: bool = True) -> tuple[Range, ...]:
        skipped = frozenset(Range.parse(text) for text in self.ranges.skip) if skip else frozenset()
        where = self.source.files or self.source.uri
        # Without range directories the last range holds what is left.
        by_files = bool(where) and "{range}" not in where and not self.simulates()
        ragged = self.ranges.last == AUTO or by_files
        return make_ranges(self.ranges.first, last, self.ranges.size, skipped, ragged=ragged)

    def last_file(self) -> int:
        """Last file number; with ``ranges.last: auto`` the one that the first listing recorded."""
        if isinstance(self.ranges.last, int):
            return self.ranges.last
        record = self.paths().positions()
        if not is_present(record):
            raise ConfigError(
                "ranges.last: auto: the files of the source are not counted yet; run `crpipe count` first"
            )
        return NumberedFiles.read(record).last

    def all_ranges(self) -> tuple[Range, ...]:
        """The campaign's ranges in order, without the skipped ones."""
        given_up = self.given_up()
        left = tuple(name for name in self._expand(self.last_file()) if str(name) not in given_up)
        if not left:
            raise ConfigError(f"{self.paths().skipped('*')}: every range is skipped; nothing is left to do")
        return left

    def given_up(self) -> tuple[str, ...]:
        """Names in order of the ranges that have a record of ``ranges.on_failure: skip``."""
        names = skipped_names(self.paths()) - {*self.ranges.skip}
        every = self._expand(self.last_file(), skip=False) if names else ()
        return tuple(name for name in map(str, every) if name in names)

    def chain(self, *, has_outliers: bool) -> Chain:
        """The links of training; raise ConfigError when train.start_after names none, or the last."""
        train = self.train
        chain = make_chain(
            self._expand(self.last_file(), skip=False),
            self.all_ranges(),
            train.ranges_per_link,
            train.passes,
            has_outliers=has_outliers,
        )
        if not train.start_after:
            return chain
        try:
            return chain.after(train.start_after)
        except ConfigError as error:
            raise ConfigError(f"train.start_after: {error}") from error

    def paths(self) -> Paths:
        """Where this campaign's files are."""
        return Paths(Path(self.results), Path(self.runs), self.run)

    def simulates(self) -> bool:
        """Return whether the raw files come from source.simulator."""
        return self.source.uri == SYNTHETIC

    def check_fresh(self) -> None:
        """Raise ConfigError where fresh events are asked for, and nothing simulates them."""
        if self.evaluate.fresh_groups and not self.simulates():
            raise ConfigError(
                f"evaluate.fresh_groups: {self.evaluate.fresh_groups}, but source.uri is "
                f"{self.source.uri or 'empty'}: nothing simulates fresh events; set it to 0, or source.uri: "
                f"{SYNTHETIC}"
            )

    def options(self, section: str = "model") -> Tree:
        """The options of the reader, the simulator or the workload, with their defaults, as plain values."""
        model = self.options_model(section)
        if model is None:
            return {}
        return model.model_validate(getattr(self, section)).model_dump(mode="json")

    def use_options(self) -> Tree:
        """The options of the workload that no checkpoint depends on: they may change after training."""
        free = free_options(self.options_model("model"))
        return {key: value for key, value in self._counted_options("model").items() if key in free}

    def _counted_options(self, section: str) -> Tree:
        """Return the options that a fingerprint counts: not those that are newer and have their default."""
        options, model = self.options(section), self.options_model(section)
        later = later_options(model) if model is not None else set()
        usual = model().model_dump(mode="json", include=later) if model is not None and later else {}
        return {key: value for key, value in options.items() if key not in usual or value != usual[key]}

    def plugin(self, section: str) -> str:
        """Name the class, module:Name, whose options a section holds; empty for none."""
        group, _, leaf = NAMED[section].partition(".")
        name: str = getattr(getattr(self, group), leaf)
        return name

    def options_model(self, section: str) -> type[BaseModel] | None:
        """Find the class of a section's options; None where nothing is named, or it takes none."""
        name = self.plugin(section)
        return options_class(NAMED[section], name) if name else None

    def has_packages(self) -> bool:
        """Return whether everything that the configuration names is installed here."""
        return all(is_installed(self.plugin(section)) for section in NAMED)

    def data_keys(self) -> Tree:
        """Every configured key that shapes the shards, by the dotted name that records have for it."""
        keys = self._keys({"data"}, ["reader", "simulator"] if self.simulates() else ["reader"])
        if not self.simulates():
            del keys["source.simulator"]
        keys[PARTS_FIRST] = True
        # As JSON reads it back; without any, the keys are those of campaigns from before there were any.
        del keys["split.histograms"]
        if self.split.histograms:
            keys["split.histograms"] = {name: list(each) for name, each in self.split.histograms.items()}
        return keys

    def train_keys(self) -> Tree:
        """Every configured key that shapes a checkpoint: those of the data, the training, the workload."""
        keys = {**self.data_keys(), **self._keys({"train"}, ["model"])}
        # Rounds count through the length of the learning rate's campaign alone, and only where it has one.
        del keys["train.rounds"]
        if self.schedule_ends() or self.train.schedule.horizon_ranges:
            keys["train.horizon_ranges"] = self.horizon()
        else:
            del keys["train.horizon_ranges"]
        if self.train.early_stopping_patience or self.train.schedule.plateau_after:
            for name in ("validate_every", "validate_events", "monitor"):
                keys[WRITTEN_AS.get(f"train.{name}", f"train.{name}")] = getattr(self.train, name)
        return keys

    def _keys(self, scopes: set[str], sections: list[str]) -> Tree:
        keys = _scoped(self, scopes)
        free = {f"model.{name}" for name in self.use_options()} if "model" in sections else set()
        for section in NAMED:
            keys.pop(section, None)  # as written; what counts is what it says with its defaults
        for section in sections:
            keys |= {f"{section}.{name}": value for name, value in flatten(self._counted_options(section))}
        return {name: value for name, value in keys.items() if ".".join(name.split(".")[:2]) not in free}

    def horizon(self) -> int:
        """Ranges over which the learning rate runs its course, summed over the rounds.

        One that is skipped counts like the others.
        """
        return self.train.schedule.horizon_ranges or self.train.passes * len(
            self._expand(self.last_file(), skip=False)
        )

    def schedule_ends(self) -> bool:
        """Return whether the learning rate depends on how much of the campaign is done."""
        schedule = self.train.schedule
        return rate_ends(schedule.shape, schedule.decay_from, schedule.decay_to)


def rate_ends(schedule: str, decay_from: float, decay_to: float) -> bool:
    """Return whether a schedule depends on how much of the campaign is done."""
    level = schedule == "linear" and 1.0 in (decay_from, decay_to)
    return schedule != "constant" and not level


def load_config(files: Iterable[Path], overrides: Iterable[str] = (), *, options: Options = True) -> Config:
    """Merge YAML files and ``key.sub=value`` overrides, later ones first in rank, into a validated Config.

    options: validate also the options of reader, simulator and workload; their packages must be there, unless
    "installed".
    """
    return validate(*read_tree(files, overrides), options=options)


def read_tree(files: Iterable[Path], overrides: Iterable[str] = ()) -> tuple[Tree, dict[str, str]]:
    """Merge files and overrides without validation; also return where the value of each key came from."""
    tree: Tree = {}
    origin: dict[str, str] = {}
    for path in files:
        _merge(tree, read_yaml(path), str(path), origin)
    for text in overrides:
        _merge(tree, parse_override(text), f"--set {text}", origin)
    return tree, origin


def parse_override(text: str) -> Tree:
    """Read ``key.sub=value`` (value in YAML) into a nested mapping."""
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise ConfigError(f"--set {text}: expected key.sub=value")
    node: Any = read_value(value, f"--set {text}")
    for part in reversed(name.split(".")):
        node = {part: node}
    return dict(node)


def validate(tree: Tree, origin: Mapping[str, str] | None = None, *, options: Options = True) -> Config:
    """Check a merged mapping; raise ConfigError with one line per wrong key or value."""
    origin = origin or {}
    config: Config = checked(tree, Config, "", origin)
    for section, name in NAMED.items() if options else ():
        if options is True or is_installed(config.plugin(section)):
            _check_options(config, section, name, origin)
    return config


def _check_options(config: Config, section: str, key_name: str, origin: Mapping[str, str]) -> None:
    """Validate the options of one named thing; raise ConfigError with one line per wrong option."""
    given: Tree = getattr(config, section)
    name, model = config.plugin(section), config.options_model(section)
    if model is not None:
        checked(given, model, f"{section}.", origin)
    elif given:
        taker = f"{name} takes none" if name else f"{key_name} is not set"
        raise ConfigError(f"{section}: options are given ({', '.join(given)}), but {taker}")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested mapping with dotted names."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def fixed_keys(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Name each key of records that has one value today and cannot be set."""
    for name, info in section.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from fixed_keys(info.annotation, f"{prefix}{name}.")
        elif info.exclude:
            yield f"{prefix}{name}"


def _scoped(section: BaseModel, scopes: set[str], prefix: str = "") -> Tree:
    keys: Tree = {}
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            keys |= _scoped(value, scopes, f"{prefix}{name}.")
        elif isinstance(info.json_schema_extra, dict) and info.json_schema_extra["scope"] in scopes:
            if info.json_schema_extra.get("later") and value == info.default:
                continue  # a campaign from before the key does not know it
            dotted = f"{prefix}{name}"
            keys[WRITTEN_AS.get(dotted, dotted)] = list(value) if isinstance(value, tuple) else value
    return keys


def _merge(into: Tree, tree: Tree, source: str, origin: dict[str, str], prefix: str = "") -> None:
    """Merge a tree into another one, key by key; what several names share in YAML is copied for each."""
    for name, value in tree.items():
        dotted = f"{prefix}{name}"
        if value is None and dotted in SECTIONS:
            continue
        origin[dotted] = source
        if isinstance(value, dict):
            if not isinstance(into.get(name), dict):
                into[name] = {}
            _merge(into[name], value, source, origin, f"{dotted}.")
        else:
            into[name] = value


def _sections(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Name the sections, and the sections in them."""
    for name, info in model.model_fields.items():
        if isinstance(info.default, Section):
            yield f"{prefix}{name}"
            yield from _sections(type(info.default), f"{prefix}{name}.")


# Of which null, all of whose keys are commented out, changes nothing.
SECTIONS = frozenset((*NAMED, *_sections(Config)))
