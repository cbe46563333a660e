"""`crpipe scan`: runs of one campaign over a table of keys, one after the other, and which of them is best.

In: a file of runs, or of a grid, and what `crpipe run` takes. Out: an exit code; a table of the runs.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from crpipe.config.loading import Config, Tree, check_choice, flatten, load_config, read_tree, validate
from crpipe.config.reference import entries
from crpipe.config.yaml_text import read_yaml
from crpipe.core.causes import is_plain, is_present
from crpipe.core.errors import ConfigError, LeaseError
from crpipe.core.signals import HEAD_SIGNALS, StopRequest
from crpipe.core.text import counted
from crpipe.report.compare import RunFiles
from crpipe.workflow.rules import crpipe_call, one_line
from crpipe.workflow.run import RunRequest, check_profile, keep_trying

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from crpipe.core.text import Progress

_EXAMPLES = {
    "runs": "runs: {small: {model.hidden: 32}, large: {model.hidden: 128}}",
    "grid": "grid: {model.hidden: [32, 128], train.schedule.shape: [cosine, constant]}",
}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class ScanRun:
    """One run of a scan.

    overrides: its keys, as --set takes them. keys: its values of all keys that the scan names.
    """

    config: Config
    overrides: tuple[str, ...]
    keys: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.config.run

    def has_begun(self) -> bool:
        """Return whether its training has begun."""
        return is_present(self.config.paths().run_config())

    def files(self) -> RunFiles:
        """Read what the run has left so far, with the keys that the scan names."""
        files = RunFiles.read(self.config.paths()) if self.has_begun() else RunFiles(self.name)
        return replace(files, keys=self.keys)


def read_scan(path: Path, files: Sequence[Path], overrides: Sequence[str]) -> list[ScanRun]:
    """Read the runs of a file, each with the keys that it adds to the configuration of ``files``.

    Raise ConfigError for a file that is none, for a wrong key, and for one that may not differ.
    """
    named, base = _named(path), load_config(files, overrides)
    scopes = {each.dotted: each.changes for each in entries(base) if not each.section}
    scopes |= {"reader": "data", "simulator": "data"}  # with options that are none
    runs = []
    for name, keys in named.items():
        where = f"{path}: {name}"
        for key in keys:
            _check_scope(where, key, scopes, base)
        texts = [f"{key}={one_line(value)}" for key, value in keys.items()]
        texts.append(f"run={base.run}-{name}")
        tree, origin = read_tree(files, (*overrides, *texts))
        given_by = {f"--set {text}": where for text in texts}
        try:
            config = validate(tree, {key: given_by.get(given, given) for key, given in origin.items()})
        except ConfigError as error:
            text = str(error)  # a combination of keys is of no single --set
            raise ConfigError(text if text.startswith(where) else f"{where}: {text}") from error
        runs.append(ScanRun(config, tuple(texts), {}))
    shown = {part for keys in named.values() for key in keys for part in (key, key.rpartition(".")[0])}
    return [
        replace(run, keys={key: value for key, value in _values(run.config) if key in shown}) for run in runs
    ]


def _named(path: Path) -> dict[str, Tree]:
    """Read the keys of each run, by their dotted names."""
    if not is_plain(path):
        raise ConfigError(f"{path}: no such file; write one that holds {_EXAMPLES['runs']}")
    tree = read_yaml(path)
    for name in tree:
        check_choice(str(path), name, _EXAMPLES)
    if len(tree) != 1:
        raise ConfigError(f"{path}: expected runs or grid, one of them, as in {_EXAMPLES['runs']}")
    ((kind, table),) = tree.items()
    if not (isinstance(table, dict) and table):
        raise ConfigError(f"{path}: {kind}: {table!r}: expected a mapping, as in {_EXAMPLES[kind]}")
    if kind == "grid":
        return _product(path, _flat(str(path), table))
    for name, keys in table.items():
        if not isinstance(keys, dict | None):
            raise ConfigError(f"{path}: {name}: {keys!r}: expected keys with values, as in {_EXAMPLES[kind]}")
    return {str(name): _flat(f"{path}: {name}", keys or {}) for name, keys in table.items()}


def _flat(where: str, tree: Tree) -> Tree:
    """Return keys by their dotted names; raise ConfigError for one that is written in both ways."""
    pairs = list(flatten(tree))
    for key, number in Counter(key for key, _ in pairs).items():
        if number > 1:
            raise ConfigError(f"{where}: {key} is written twice")
    return dict(pairs)


def _product(path: Path, axes: Mapping[str, Any]) -> dict[str, Tree]:
    """Combine all values of all keys; the name of a run has the last word of each key, and its value."""
    for key, values in axes.items():
        if not (isinstance(values, list) and values):
            raise ConfigError(
                f"{path}: {key}: {values!r}: expected a list of values, as in {_EXAMPLES['grid']}"
            )
    last = [key.rpartition(".")[2] for key in axes]
    words = [word if last.count(word) == 1 else key for key, word in zip(axes, last, strict=True)]
    runs: dict[str, Tree] = {}
    for values in itertools.product(*axes.values()):
        parts = (
            f"{word}-{_NOT_IN_NAMES.sub('-', str(value))}" for word, value in zip(words, values, strict=True)
        )
        name = "_".join(parts)
        if name in runs:
            raise ConfigError(f"{path}: two runs of the grid are {name}; write each value once")
        runs[name] = dict(zip(axes, values, strict=True))
    return runs


def _check_scope(where: str, key: str, scopes: Mapping[str, str], base: Config) -> None:
    """Raise ConfigError for a key that may not differ; one that does not exist is refused later."""
    scope = next((scopes[each] for each in scopes if key == each or key.startswith(f"{each}.")), "train")
    if scope == "data":
        raise ConfigError(
            f"{where}: {key} changes the data, and all runs of a scan share those in {base.results}; with "
            f"others it is another campaign: --set results=DIRECTORY --set {key}=VALUE"
        )
    if scope != "train":
        raise ConfigError(
            f"{where}: {key} is the same for all runs of a scan, which differ in keys that change the "
            f"checkpoints alone: crpipe --set {key}=VALUE scan FILE"
        )


def _values(config: Config) -> Iterator[tuple[str, Any]]:
    yield from ((each.dotted, each.value) for each in entries(config) if not each.section)
    yield from flatten({"model": config.options("model")})


def run_scan(runs: Sequence[ScanRun], request: RunRequest, progress: Progress, stop: StopRequest) -> int:
    """Run the workflow for each run, whatever became of those before it; return the exit code.

    request: what was typed, with the configuration that all runs share.
    """
    check_profile(request.profile)
    request.words(())  # refuses a wrong option once
    failed, again = {}, shlex.join(request.typed)
    stop.listen(HEAD_SIGNALS)
    for number, run in enumerate(runs, 1):
        progress.message(f"run {number} of {len(runs)}: {run.name}")
        code = keep_trying(_request_of(run, request), progress, stop)
        if stop.number:
            progress.message(f"Stopped as asked; continue with: {again}")
            return stop.exit_code
        if code == LeaseError.exit_code:  # of the directory: the others would be refused, too
            return code
        if code:
            failed[run.name] = code
    if failed:
        names = ", ".join(f"{name} (exit code {code})" for name, code in failed.items())
        progress.message(
            f"{len(failed)} of {counted(len(runs), 'run')} failed: {names}; to try them again: {again}"
        )
    codes = {*failed.values()}
    return codes.pop() if len(codes) == 1 else min(len(codes), 1)


def _request_of(run: ScanRun, request: RunRequest) -> RunRequest:
    """Return what `crpipe run` would be asked for one run, with the command that a person would type."""
    overrides = (*request.overrides, *run.overrides)
    words = [*shlex.split(crpipe_call(request.files, overrides)), "run", *request.targets]
    words += ["--profile", request.profile] if request.profile else []
    words += ["--cores", request.cores] if request.cores else []
    words += ["--", *request.more] if request.more else []
    return replace(request, overrides=overrides, typed=tuple(words))
