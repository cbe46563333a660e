"""Combinations of keys that contradict each other, or mean nothing."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from crpipe.core.errors import ConfigError
from crpipe.core.ranges import numbers_of

if TYPE_CHECKING:
    from crpipe.config.sections import RangesSection, SourceSection, SplitSection, TrainSection

# Characters of a path that do not reach its files as they are, and who changes them.
_CHANGED = {
    "{": "Snakemake reads it as a wildcard",
    "}": "Snakemake reads it as a wildcard",
    "%": "Slurm replaces it in the names of its logs",
    "\\": "Slurm replaces it in the names of its logs",
}


def check_directory(name: str, path: str) -> None:
    """Refuse a directory whose name does not reach Snakemake, Slurm or the lines of logs as it is."""
    if path.startswith("~"):
        raise ConfigError(f"{name}: {path!r}: ~ is not replaced here; write the whole path")
    for character in path:
        why = _CHANGED.get(character) or ("" if character.isprintable() else "it breaks the lines of logs")
        if why:
            raise ConfigError(
                f"{name}: {path!r}: the character {character!r} cannot be part of this path ({why}); choose "
                "a directory without it"
            )


def check_file_numbers(split: SplitSection, first: int, last: int) -> None:
    """Refuse numbers of held-out files that no file of the campaign can have."""
    for name in ("validation_files", "test_files"):
        for entry in getattr(split, name):
            interval = numbers_of(entry)
            if interval is not None and not first <= interval[0] <= interval[1] <= last:
                raise ConfigError(
                    f"split.{name}: {entry} is outside of the campaign's file numbers, {first} to {last} "
                    "(ranges.first, ranges.last); correct it"
                )


def check_on_failure(ranges: RangesSection, *, packs: bool) -> None:
    """Refuse to skip ranges that fail on machines of their own: what they left is no cause to judge by."""
    if packs and ranges.on_failure == "skip":
        raise ConfigError(
            "ranges.on_failure: skip does not work with packs: true; set it to stop, and name a bad range in "
            "ranges.skip"
        )


def check_held_out(split: SplitSection, train: TrainSection) -> None:
    """Refuse combinations of keys that say two things, or nothing, about the held-out events."""
    for part in ("validation", "test"):
        files, fraction = getattr(split, f"{part}_files"), getattr(split, f"{part}_fraction")
        if files and fraction:
            raise ConfigError(
                f"split.{part}_files and split.{part}_fraction ({fraction:g}) are both set; for "
                f"files, set split.{part}_fraction: 0"
            )
    if split.validation_fraction + split.test_fraction >= 1:
        raise ConfigError(
            "split.validation_fraction and split.test_fraction leave no events to train on; lower one of "
            "them: their sum must be below 1"
        )
    if train.validate_every and not (split.validation_fraction or split.validation_files):
        raise ConfigError(
            "train.validate_every: there is no validation event; set split.validation_fraction above 0, or "
            "split.validation_files, or train.validate_every: 0"
        )
    if train.monitor and not train.validate_every:
        raise ConfigError(
            f"train.monitor: {train.monitor} is never measured; set train.validate_every, for example "
            "to 500, or train.monitor: ''"
        )
    patience = {
        "early_stopping_patience": train.early_stopping_patience,
        "schedule.plateau_after": train.schedule.plateau_after,
    }
    for name, validations in patience.items():
        if validations and not train.monitor:
            raise ConfigError(
                f"train.{name}: needs the metric that should improve; set train.monitor, for example to "
                f"PHASE/loss, or train.{name}: 0"
            )


def check_processes(train: TrainSection) -> None:
    """Refuse a number of processes that the GPUs decide."""
    if train.processes > 1 and train.gpus:
        raise ConfigError(
            f"train.processes: {train.processes} is for training on CPUs; with train.gpus: {train.gpus} "
            "there is a process for each GPU; set train.gpus: 0 and train.device: cpu, or train.processes: 1"
        )


def check_binnings(split: SplitSection) -> None:
    """Refuse histograms without a width."""
    for column, (low, high, _) in split.histograms.items():
        if low >= high:
            raise ConfigError(
                f"split.histograms.{column}: the low end {low:g} is not below the high end {high:g}; write "
                "[low end, high end, number of bins], for example [0, 100, 50]"
            )


_PLACES = re.compile(r"\{(in|out)\}")
_MARK = "\x01 \x01"


def fill_command(command: str, source: str, output: str) -> str:
    """Write the two paths into a command of source.convert, quoted for the shell."""
    paths = {"in": shlex.quote(source), "out": shlex.quote(output)}
    return _PLACES.sub(lambda match: paths[match[1]], command)


def check_convert(source: SourceSection, *, simulates: bool, packs: bool) -> None:
    """Refuse a command of source.convert that cannot work."""
    command, places = source.convert, _PLACES.findall(source.convert)
    missing = {"in", "out"} - {*places}
    try:
        words = "\n".join(shlex.split(fill_command(command, _MARK, _MARK)))
    except ValueError:
        words = ""
    why = ""
    if missing:
        why = (
            f"{{{min(missing)}}} is missing; write the command for one file, with {{in}} in place of the raw "
            "file's path and {out} in place of the output's"
        )
    elif words.count(_MARK) != len(places) or f"'{_MARK}" in words:
        why = (
            "{in} or {out} is within quotes, or a quote is not closed; write both without: crpipe quotes them"
        )
    elif "/" in source.convert_suffix:
        why = f"source.convert_suffix: {source.convert_suffix!r} is part of a name; write it without /"
    elif simulates:
        why = "source.simulator makes files for source.reader itself; leave it empty"
    elif packs:
        why = "no job of a pack converts files; convert them before, or set packs: false"
    if command and why:
        raise ConfigError(f"source.convert: {why}")


def check_start(train: TrainSection) -> None:
    """Refuse keys about the beginning of a run that need a checkpoint where none is named."""
    for name, value in (("init_map", train.init_map), ("start_after", train.start_after)):
        if value and not train.pretrained:
            raise ConfigError(
                f"train.{name}: no checkpoint is named; set train.pretrained to a checkpoint (.pt) or to a "
                "receipt (runs/<run>/ranges/<link>.json)"
            )
