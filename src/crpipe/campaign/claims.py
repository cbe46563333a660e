"""The record of what a campaign was made with: other keys are refused, never mixed in."""

from __future__ import annotations

import os
import platform
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from crpipe.config.loading import PARTS_FIRST
from crpipe.config.plugins import called_now
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.files import read_json, read_json_if_any, write_json
from crpipe.core.journal import ENDS, Journal
from crpipe.core.lease import lease
from crpipe.core.paths import BEST, FINISHED, MANIFEST, OUTLIERS, Paths
from crpipe.core.ranges import Range
from crpipe.core.signals import is_alive
from crpipe.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign

    Rule = Callable[[Collection[str]], bool]
    # The file of the recorded keys, the keys now, advice where they are refused, and whether they may change.
    Claim = tuple[Path, dict[str, Any], Callable[[], str], Rule]

# Whether anything was made under the recorded keys of a campaign or run; else other keys replace them.


# Keys that say what is read from the source; all others concern what is made of the copies.
_COPIED = ("source.", "simulator.")
_FREE = frozenset({"source.reader"})
_ASIDE = frozenset({"source.on_bad_file", "source.max_quarantined"})  # of the staged table
_CONVERT = frozenset({"source.convert", "source.convert_suffix"})


def data_keys_are_unused(paths: Paths, changed: Collection[str]) -> bool:
    """Return whether the data keys ``changed`` may replace the recorded ones: nothing follows from those."""
    if _is_split(paths) or _is_busy(paths.data_journal()):
        return False
    if not copied(paths):
        return True
    return not any(_says_what_is_copied(name, paths) for name in changed)


def deletion_of_copies(paths: Paths) -> str:
    """Return the command that deletes what was listed and copied; empty where more than that was made."""
    copies = [] if _is_split(paths) or _is_busy(paths.data_journal()) else copied(paths)
    return shlex.join(["rm", "-r", *map(str, copies)]) if copies else ""


def copied(paths: Paths) -> list[Path]:
    """Name the files and folders of what was listed and copied."""
    tables = paths.tables()
    folders = [paths.manifest("x").parent, paths.staged("x").parent, paths.converted("x").parent]
    folders.append(paths.table_copies())
    files = [tables, paths.positions(), paths.position_names()]
    return [folder for folder in folders if any(path.name != "lease" for path in folder.glob("*"))] + [
        file for file in files if is_present(file)
    ]


def run_may_change(paths: Paths, changed: Collection[str]) -> bool:  # noqa: ARG001 - every key shapes it
    """Return whether the keys of a run may be replaced: it has no checkpoint, snapshot or receipt."""
    folder = paths.run_dir()
    patterns = ("ranges/*.json", "store/*/*.pt", "evaluation/*/metrics.json")
    return not any(_holds(folder, pattern) for pattern in patterns) and not _is_busy(paths.train_journal())


def _is_split(paths: Paths) -> bool:
    patterns = ["ledgers/*.json", "multiplicity/*", paths.threshold().name, f"outliers/*/{MANIFEST}"]
    patterns += [f"shards/*/{MANIFEST}", f"shards/*/{FINISHED}/*"]
    return any(_holds(paths.results, pattern) for pattern in patterns)


def _holds(folder: Path, pattern: str) -> bool:
    return next(folder.glob(pattern), None) is not None


def _says_what_is_copied(name: str, paths: Paths) -> bool:
    if name in _ASIDE:
        return _holds(paths.staged("x").parent, "*.parquet")
    if name in _CONVERT:
        return _holds(paths.converted("x").parent, "*.parquet")
    return name == "seed" or (name.startswith(_COPIED) and name not in _FREE)


def _is_busy(journal: Path) -> bool:
    """Return whether a job may be at work: on another host it is asked for its end, here for its process."""
    running = {}
    for row in Journal(journal).rows():
        if isinstance(row, dict) and row.get("what") in ("start", *ENDS):
            job = (row.get("verb"), row.get("range"), row.get("pid"))
            if row["what"] == "start":
                running[job] = row
            else:
                running.pop(job, None)
    return any(_may_live(row) for row in running.values())


def _may_live(row: dict[str, object]) -> bool:
    if row.get("host") != platform.node():
        return True
    pid = row.get("pid")
    return isinstance(pid, int) and pid != os.getpid() and is_alive(pid)


_CLAIM_WAIT_S = 60.0
_TABLES = "tables."
_HORIZON = "train.horizon_ranges"  # as records have it
_MAX_FILES = "source.max_files"
Keys = dict[str, Any]


def refuse_changes(recorded: Mapping[str, Any], current: Mapping[str, Any], what: str, advice: str) -> None:
    """Raise ConfigError listing the keys that differ between a campaign's record and the configuration."""
    changed = changed_keys(recorded, current)
    if changed:
        lines = [
            f"  {called_now(name)}: {what} {_spelled(name, recorded)}, config {_spelled(name, current)}"
            for name in changed
        ]
        raise ConfigError("\n".join([f"the configuration changed under {what}:", *lines, advice]))


def _spelled(name: str, keys: Mapping[str, Any]) -> str:
    """Write the value of a key, with what it means where that is not seen."""
    value = keys.get(name)
    if name == PARTS_FIRST and not value:
        return "of an earlier crpipe, which trained on large held-out events: finish it with that one"
    return "0 (all)" if name == _MAX_FILES and not value else repr(value)


def check_data(campaign: Campaign) -> None:
    """Raise ConfigError when the results directory was filled under other data keys."""
    _check(*data_claim(campaign))


def check_train(campaign: Campaign) -> None:
    """Raise ConfigError when the run was started under other training keys.

    The hashes of the side tables are compared where they are known: their copies may be staged later.
    """
    _check(*run_claim(campaign), optional=_TABLES)


def record_data_keys(campaign: Campaign) -> None:
    """Record data keys and layout when nothing was made under others; refuse other keys.

    Raw copies are kept where only keys differ that do not say what is copied, such as the reader. The layout
    is recorded with the meanings that the keys leave out: reports read it.
    """
    layout = {campaign.paths.layout(): campaign.layout.describe()}
    _claim(*data_claim(campaign), beside=layout)


def record_train_keys(campaign: Campaign) -> None:
    """Record the training keys when the run has no checkpoint under others; refuse other keys."""
    _claim(*run_claim(campaign), spent=(campaign.paths.init_from(),))


def changed_keys(recorded: Mapping[str, Any], keys: Mapping[str, Any]) -> list[str]:
    """Name the keys whose values differ."""
    return [name for name in sorted({*recorded, *keys}) if recorded.get(name) != keys.get(name)]


def data_claim(campaign: Campaign) -> Claim:
    """Return where data keys are recorded, what they are now, and what to do where they differ."""
    paths = campaign.paths
    rule = partial(data_keys_are_unused, paths)
    return paths.campaign(), campaign.data_keys, partial(_data_advice, paths), rule


def run_claim(campaign: Campaign) -> Claim:
    """Return the same of the keys of a run."""
    paths, keys = campaign.paths, campaign.run_keys
    return paths.run_config(), keys, partial(_train_advice, campaign), partial(run_may_change, paths)


def _data_advice(paths: Paths) -> str:
    advice = f"restore the old values, or set `results` to a new directory (now {paths.results})"
    command = deletion_of_copies(paths)
    if not command:
        return advice
    first = "nothing is split yet: delete what was listed and copied under the old values"
    converted = paths.converted("x").parent
    if _holds(converted, "*"):
        command += f"\n  (for source.convert alone: {shlex.join(['rm', '-r', str(converted)])})"
    return f"{first}\n  {command}\nor {advice}"


def _train_advice(campaign: Campaign) -> str:
    """Describe how to go on; if ranges or rounds were added, which key keeps the learning rate as it was."""
    paths, keys = campaign.paths, campaign.run_keys
    advice = f"restore the old values, or give the changed campaign a new name with `run` (now {paths.run})"
    record = read_json_if_any(paths.run_config()) or {}
    if not campaign.data_keys.keys().isdisjoint(changed_keys(record, keys)):
        return f"{advice} and other data: set `results` to a new directory (now {paths.results})"
    recorded, now = record.get(_HORIZON), keys.get(_HORIZON)
    if recorded is None or now is None or recorded == now:
        return f"{advice}{_fork_advice(paths)}"
    return (
        f"{called_now(_HORIZON)} follows from the number of ranges and rounds. To train added ones too, set\n"
        f"  {called_now(_HORIZON)}: {recorded}\n"
        "Then a finished link is kept as long as its ranges and the link before it stay the same, and what "
        f"comes after the first {counted(recorded, 'range')} (counted in each round) is trained at "
        f"the final rate (train.schedule.decay_to: {keys.get('train.decay_to')}).\nOtherwise {advice}"
    )


def _fork_advice(paths: Paths) -> str:
    """Describe how the new values go on from what is trained; nothing where nothing is."""
    receipts = paths.receipt(OUTLIERS).parent.glob("*-*.json")
    finished = [path for path in receipts if not path.name.endswith(BEST)]
    if not finished:
        return ""
    newest = max(finished, key=lambda path: path.stat().st_mtime)
    end = Range.parse(newest.stem.partition(".")[0]).last + 1
    return (
        "\nTo keep what is trained and go on with new values, fork the run after a finished link:\n"
        f"  crpipe fork --from {newest.stem} --run NEW --set KEY=VALUE\n"
        "or begin a run with its weights alone and a learning rate of its own, with the keys\n"
        f"  run: NEW, train.pretrained: {newest}, ranges.first: {end}"
    )


def _check(path: Path, keys: Keys, advice: Callable[[], str], may_change: Rule, optional: str = "") -> None:
    if not is_present(path):
        return
    recorded = {
        name: value
        for name, value in read_json(path).items()
        if name in keys or not (optional and name.startswith(optional))
    }
    changed = changed_keys(recorded, keys)
    if changed and not may_change(changed):
        refuse_changes(recorded, keys, str(path.parent), advice())


def _claim(
    path: Path,
    keys: Keys,
    advice: Callable[[], str],
    may_change: Rule,
    beside: Mapping[Path, Mapping[str, Any]] | None = None,
    spent: tuple[Path, ...] = (),
) -> None:
    if not is_present(path) or read_json(path) != keys:
        _check(path, keys, advice, may_change)  # a refusal writes nothing, not even a lease
        # The first jobs of a campaign start together: one of them writes, the others compare.
        with lease(path.parent / ".claim", wait_s=_CLAIM_WAIT_S, say=_quiet):
            _check(path, keys, advice, may_change)
            if not is_present(path) or read_json(path) != keys:
                for old in spent:
                    old.unlink(missing_ok=True)
                for other, content in (beside or {}).items():
                    write_json(other, dict(content))
                write_json(path, keys)


def _quiet(_: str) -> None:
    pass
