"""Which code read the data and trained the model: a record beside the results, and what changes of it mean.

The code of a plug-in is in no fingerprint: a comment must not end a campaign. It is recorded, and a change is
named. Bytes of results do not depend on the record.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from crpipe import __version__
from crpipe.core.errors import ConfigError
from crpipe.core.files import sha256
from crpipe.core.lease import lease
from crpipe.core.paths import OUTLIERS
from crpipe.core.records import Record

if TYPE_CHECKING:
    from crpipe.campaign.campaign import Campaign

READER, SIMULATOR, WORKLOAD = "source.reader", "source.simulator", "train.workload"
_OURS = "crpipe"
_MODULES, _PACKAGE = (".py", *EXTENSION_SUFFIXES), "__init__.py"
_DIGITS = 12
_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(Record):
    """The code of one class: its name, the distribution with its version, and the hash of its modules.

    distribution: empty for a folder in PYTHONPATH. sha256: of its module and of what that imports from the
    same package; empty for crpipe, whose version says it.
    """

    name: str
    distribution: str
    sha256: str

    def __str__(self) -> str:
        """Write it for a person."""
        hashed = f"modules {self.sha256[:_DIGITS]}" if self.sha256 else ""
        package = self.name.partition(":")[0].partition(".")[0]
        return ", ".join(part for part in (self.distribution or f"package {package}", hashed) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeEntry(Record):
    """What was used from a range or link on. accepted: where a person said that a change is meant."""

    since: str
    code: Mapping[str, Code]
    accepted: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRecord(Record, files="code.json"):
    """code.json, beside the results and in each run: every code that was used, in order.

    sha256: of the entries, because nothing else of a campaign knows them.
    """

    entries: tuple[CodeEntry, ...]
    sha256: str

    @classmethod
    def of(cls, entries: Iterable[CodeEntry]) -> Self:
        """Make the record of all entries."""
        kept = tuple(entries)
        return cls(entries=kept, sha256=_hash_of(kept))

    @classmethod
    def from_json(cls, value: Any, where: str = "it") -> Self:
        """Make a record of a JSON value; raise ValueError where its entries are not those of its hash."""
        record = super(CodeRecord, cls).from_json(value, where)
        if record.sha256 != _hash_of(record.entries):
            raise ValueError("entries are not those of its sha256")
        return record


def _hash_of(entries: Iterable[CodeEntry]) -> str:
    written = json.dumps([entry.as_json() for entry in entries], sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()


def code_of(name: str) -> Code | None:
    """Describe the code of a class ``module:Name``; None where its package is not installed here."""
    package = name.partition(":")[0].partition(".")[0]
    if package == _OURS:
        return Code(name=name, distribution=f"{_OURS} {__version__}", sha256="")
    spec = find_spec(package)
    if spec is None:
        return None
    holders = (each for each in distributions() if _has(each, package))
    named = ", ".join(sorted({f"{each.name} {each.version}" for each in holders}))
    hashed = hashlib.sha256()
    for module, path in sorted(_modules(name.partition(":")[0], spec).items()):
        hashed.update(f"{module}\0{sha256(path)}\n".encode())
    return Code(name=name, distribution=named, sha256=hashed.hexdigest())


def _has(distribution: Distribution, package: str) -> bool:
    """Return whether a distribution holds a package: ``packages_distributions`` takes ten times as long."""
    if names := distribution.read_text("top_level.txt"):
        return package in names.split()
    files = distribution.read_text("RECORD") or ""
    return re.search(rf"^{re.escape(package)}(/|\.[^/\n]*,)", files, re.MULTILINE) is not None


def _modules(name: str, package: ModuleSpec) -> dict[str, Path]:
    """Find a module of a package, and those of the same package that it imports, directly or not.

    Nothing is imported: what a module imports by a name that it computes is not seen.
    """
    modules: dict[str, Path] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        path = _file_of(module, package)
        if module in modules or path is None:
            continue
        modules[module] = path
        waiting.append(module.rpartition(".")[0])  # its package's __init__.py runs first
        if path.suffix == ".py":
            base = module if path.name == _PACKAGE else module.rpartition(".")[0]
            waiting += _imports(path, base)
    return modules


def _file_of(module: str, package: ModuleSpec) -> Path | None:
    """Return the file of a module of a package; None where the package has none of this name."""
    top, *parts = module.split(".")
    if top != package.name:
        return None
    if package.submodule_search_locations is None:
        return Path(package.origin or "") if not parts else None
    for folder in package.submodule_search_locations:
        stem = Path(folder, *parts)
        for path in (stem / _PACKAGE, *(stem.parent / f"{stem.name}{end}" for end in _MODULES)):
            if path.is_file():
                return path
    return None


def _imports(path: Path, base: str) -> Iterator[str]:
    """Yield what a module of the package ``base`` may import, by full names."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = base.split(".")[: len(base.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*parents, *filter(None, [node.module])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def used_code(path: Path, until: str = "") -> Mapping[str, Code]:
    """Return the newest code that a record names; none where there is no record.

    until: a link, after which nothing counts.
    """
    record = CodeRecord.read_if_any(path)
    entries = record.entries if record else ()
    before = [entry for entry in entries if not until or _order(entry.since) <= _order(until)]
    return before[-1].code if before else {}


def _order(link: str) -> tuple[bool, int, str]:
    """Return what sorts the links of a chain: the outliers are the last one."""
    share, _, turn = link.partition(".")
    return link == OUTLIERS, int(turn or 1), share


def changes(recorded: Mapping[str, Code]) -> list[str]:
    """Write in words which classes have other code than recorded, as far as they are installed here."""
    now = {key: code_of(code.name) for key, code in recorded.items()}
    return [
        f"the code of {code.name} changed: {code} before, {now[key]} now"
        for key, code in sorted(recorded.items())
        if now[key] not in (None, code)
    ]


def record_data_code(
    campaign: Campaign, name: str, say: Callable[[str], None], *, accept: bool = False
) -> None:
    """Record the code of reader and simulator before a range is split.

    Raise ConfigError for a reader whose code is not that of the ranges before, unless it is accepted. Say it
    for a simulator, and for crpipe's own readers, of which keys say all that changes a shard.
    """
    paths, source = campaign.paths, campaign.config.source
    names = {READER: source.reader} | ({SIMULATOR: source.simulator} if campaign.config.simulates() else {})
    others = {path.stem for path in paths.ledger("x").parent.glob("*.json")} - {name}

    def judge(used: Mapping[str, Code]) -> None:
        refused = changes({READER: used[READER]} if READER in used and used[READER].sha256 else {})
        if refused and not accept:
            raise ConfigError(
                f"{refused[0]}; ranges of {paths.results} are split with the code before. Restore it, set "
                "`results` to a new directory, or accept it where the events are the same:\n"
                f"  crpipe split {name} --accept-code"
            )
        for line in changes(used):
            say(f"warning: {line}")

    _record(paths.data_code(), name, names, judge if others else None, accepted=accept and bool(others))


def record_run_code(campaign: Campaign, name: str, say: Callable[[str], None]) -> None:
    """Record the code of the workload before a link is trained.

    Where it is not that of the run so far, train.on_code_change decides: raise ConfigError, or say it.
    """
    train, paths = campaign.config.train, campaign.paths
    is_begun = any(paths.store("x").parent.glob("*/*.pt"))

    def judge(used: Mapping[str, Code]) -> None:
        for line in changes(used):
            if train.on_code_change == "refuse":
                raise ConfigError(
                    f"{line}; restore it, give the changed campaign a new name with `run` (now {paths.run}), "
                    "or set train.on_code_change: warn"
                )
            say(f"warning: {line}; the run goes on with it")

    _record(paths.run_code(), name, {WORKLOAD: train.workload}, judge if is_begun else None)


def _record(
    path: Path,
    since: str,
    names: Mapping[str, str],
    judge: Callable[[Mapping[str, Code]], None] | None,
    *,
    accepted: bool = False,
) -> None:
    """Append the code that is used now, if it is not what was used last.

    judge: gets what was used last; raises an error to refuse the change. None: what was used last is
    forgotten, because nothing is left of it.
    """
    now = {key: code for key, name in names.items() if (code := code_of(name)) is not None}
    if used_code(path) == now:
        return
    with lease(path.parent / ".claim", wait_s=_WAIT_S, say=lambda _: None):
        used = used_code(path)
        if used == now:
            return
        if judge is not None:
            judge(used)
        record = CodeRecord.read_if_any(path) if judge is not None else None
        entry = CodeEntry(since=since, code=now, accepted=True if accepted else None)
        CodeRecord.of((*(record.entries if record else ()), entry)).write(path)


def accepted_code(path: Path) -> Mapping[str, Any] | None:
    """Return the newest entry of a record where a person accepted it, as a ledger notes it; else None."""
    record = CodeRecord.read_if_any(path)
    return record.entries[-1].as_json() if record and record.entries and record.entries[-1].accepted else None
