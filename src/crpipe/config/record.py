"""The record of what a campaign was made with: other keys are refused, never mixed in."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from crpipe.config.products import data_may_change, deletion_of_copies, run_may_change
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.files import read_json, read_json_if_any, write_json
from crpipe.core.lease import lease
from crpipe.core.paths import OUTLIERS
from crpipe.core.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from crpipe.core.paths import Paths

    Rule = Callable[[Collection[str]], bool]

_CLAIM_WAIT_S = 60.0
_TABLES = "tables."
_HORIZON = "train.horizon_ranges"
_MAX_FILES = "source.max_files"
PARTS_FIRST = "split.parts_first"  # recorded since the group, and not the size, decides an event's part
Keys = dict[str, Any]


def refuse_changes(recorded: Mapping[str, Any], current: Mapping[str, Any], what: str, advice: str) -> None:
    """Raise ConfigError listing the keys that differ between a campaign's record and the configuration."""
    changed = changed_keys(recorded, current)
    if changed:
        lines = [
            f"  {name}: {what} {_spelled(name, recorded)}, config {_spelled(name, current)}"
            for name in changed
        ]
        raise ConfigError("\n".join([f"the configuration changed under {what}:", *lines, advice]))


def _spelled(name: str, keys: Mapping[str, Any]) -> str:
    """Write the value of a key, with what it means where that is not seen."""
    value = keys.get(name)
    if name == PARTS_FIRST and not value:
        return "of an earlier crpipe, which trained on large held-out events: finish it with that one"
    return "0 (all)" if name == _MAX_FILES and not value else repr(value)


def check_data(paths: Paths, keys: Keys) -> None:
    """Raise ConfigError when the results directory was filled under other data keys."""
    _check(paths.campaign(), keys, _data_advice(paths), may_change=_data_rule(paths))


def check_train(paths: Paths, keys: Keys) -> None:
    """Raise ConfigError when the run was started under other training keys.

    The hashes of the side tables are compared where ``keys`` has them: their copies may be staged later.
    """
    _check(paths.run_config(), keys, _train_advice(paths, keys), _run_rule(paths), optional=_TABLES)


def claim_data(paths: Paths, keys: Keys, layout: Mapping[str, Any]) -> None:
    """Record data keys and layout when nothing was made under others; refuse other keys.

    Raw copies are kept where only keys differ that do not say what is copied, such as the reader.
    layout: the description that reports read, with the meanings that the keys leave out.
    """
    _claim(paths.campaign(), keys, _data_advice(paths), _data_rule(paths), {paths.layout(): layout})


def claim_train(paths: Paths, keys: Keys) -> None:
    """Record the training keys when the run has no checkpoint under others; refuse other keys."""
    _claim(paths.run_config(), keys, _train_advice(paths, keys), _run_rule(paths), spent=(paths.init_from(),))


def changed_keys(recorded: Mapping[str, Any], keys: Mapping[str, Any]) -> list[str]:
    """Name the keys whose values differ."""
    return [name for name in sorted({*recorded, *keys}) if recorded.get(name) != keys.get(name)]


def _data_rule(paths: Paths) -> Rule:
    return partial(data_may_change, paths)


def _run_rule(paths: Paths) -> Rule:
    return partial(run_may_change, paths)


def _data_advice(paths: Paths) -> str:
    advice = f"restore the old values, or set `results` to a new directory (now {paths.results})"
    command = deletion_of_copies(paths)
    if not command:
        return advice
    first = "nothing is split yet: delete what was listed and copied under the old values"
    return f"{first}\n  {command}\nor {advice}"


def _train_advice(paths: Paths, keys: Keys) -> str:
    """Say how to go on; where ranges or rounds were added, which key keeps the learning rate as it was."""
    advice = f"restore the old values, or give the changed campaign a new name with `run` (now {paths.run})"
    made, now = (read_json_if_any(paths.run_config()) or {}).get(_HORIZON), keys.get(_HORIZON)
    if made is None or now is None or made == now:
        return f"{advice}{_fork_advice(paths)}"
    return (
        f"{_HORIZON} follows from the number of ranges and rounds. To train added ones too, set\n"
        f"  {_HORIZON}: {made}\n"
        "Then a finished link is kept as long as its ranges and the link before it stay the same, and what "
        f"comes after the first {made} ranges (counted in each round) is trained at the final rate "
        f"(train.decay_to: {keys.get('train.decay_to')}).\nOtherwise {advice}"
    )


def _fork_advice(paths: Paths) -> str:
    """Say how the new values go on from what is trained; nothing where nothing is."""
    receipts = paths.receipt(OUTLIERS).parent.glob("*-*.json")
    found = [path for path in receipts if not path.name.endswith(".best.json")]
    if not found:
        return ""
    newest = max(found, key=lambda path: path.stat().st_mtime)
    end = Range.parse(newest.stem.partition(".")[0]).last + 1
    return (
        "\nTo keep what is trained and go on with new values, fork the run after a finished link:\n"
        f"  crpipe fork --from {newest.stem} --run NEW --set KEY=VALUE\n"
        "or begin a run with its weights alone and a learning rate of its own, with the keys\n"
        f"  run: NEW, train.init_from: {newest}, ranges.first: {end}"
    )


def _check(path: Path, keys: Keys, advice: str, may_change: Rule, optional: str = "") -> None:
    if not is_present(path):
        return
    recorded = {
        name: value
        for name, value in read_json(path).items()
        if name in keys or not (optional and name.startswith(optional))
    }
    changed = changed_keys(recorded, keys)
    if changed and not may_change(changed):
        refuse_changes(recorded, keys, str(path.parent), advice)


def _claim(
    path: Path,
    keys: Keys,
    advice: str,
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
