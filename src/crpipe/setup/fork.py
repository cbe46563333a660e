"""The configuration of a fork: a run that goes on after a finished link of another one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from crpipe.campaign import claims
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.records import Receipt
from crpipe.config.files import DEFAULTS
from crpipe.config.loading import NAMED, Config, Tree, flatten, load_config, read_tree
from crpipe.config.plugins import called_now
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.files import atomic_write
from crpipe.core.paths import OUTLIERS
from crpipe.core.ranges import pick
from crpipe.core.records import Forks

if TYPE_CHECKING:
    from collections.abc import Sequence


_KEYS_OF_FORK = ("run", "results", "runs", "train.pretrained", "train.start_after")


def write_fork(
    files: Sequence[Path], overrides: Sequence[str], link: str, run: str, changes: Sequence[str], out: Path
) -> str:
    """Write the file that turns the present configuration into that of the fork; return the command to run.

    files, overrides: the present configuration. link: the finished link after which the new run begins.
    Raise ConfigError when the link is not finished, when a change needs other shards, when nothing is left to
    train, when ``run`` exists, and when ``out`` exists with another content.
    """
    present = load_config(files, overrides)
    campaign = Campaign.open(present)
    link = _link_named(campaign, link)
    claims.check_train(campaign)
    start = [
        f"run={json.dumps(run)}",
        f"train.pretrained={json.dumps(str(_checkpoint(campaign, link)))}",
        f"train.start_after={json.dumps(link)}",
        "train.on_optimizer_change=reset",
    ]
    _refuse_keys_of_fork(changes)
    texts = [*overrides, *start, *changes]
    forked = load_config(files, texts)
    _refuse_other_shards(campaign, forked)
    if is_present(forked.paths().run_dir()):
        raise ConfigError(f"--run {run}: {forked.paths().run_dir()} exists; choose another name")
    links = Campaign.open(forked).chain.names
    tree = _validated(read_tree((), texts)[0], forked)
    head = f"# Goes on after link {link} of run {present.run}, under other settings.\n"
    text = head + yaml.safe_dump(tree, sort_keys=False)
    if not is_present(out):
        with atomic_write(out) as part:
            part.write_text(text)
    elif out.read_text() != text:  # the same: an attempt that failed after it
        raise ConfigError(f"{out} exists; name another file with --out, or delete it")
    load_config([*files, out])
    _record_fork(campaign, run, forked.train.pretrained)
    given = shlex.join(str(path) for path in [*(path for path in files if path != DEFAULTS), out])
    return (
        f"{out}: run {run} goes on with link {links[0]}, {len(links)} to train; start it (and add your "
        "profile):\n"
        f"snakemake --configfile {given}"
    )


def _validated(tree: Tree, forked: Config) -> Tree:
    """Return the values as the configuration took them: of 1e-5 YAML makes a text."""
    whole = forked.model_dump(mode="json") | {name: forked.options(name) for name in NAMED if name in tree}
    return _same_keys(tree, whole)


def _same_keys(tree: Tree, whole: Tree) -> Tree:
    return {
        name: _same_keys(value, whole[name]) if isinstance(value, dict) and value else whole[name]
        for name, value in tree.items()
    }


def _link_named(campaign: Campaign, text: str) -> str:
    """Find the link that --from means."""
    try:
        return pick(text, campaign.chain.names, "link")
    except ConfigError as error:
        raise ConfigError(f"--from {error}") from error


def _checkpoint(campaign: Campaign, link: str) -> Path:
    """Find the checkpoint of a finished link."""
    before = campaign.chain.named(link).parent
    if link == OUTLIERS:
        raise ConfigError(
            f"--from {link}: the outliers are trained on last, nothing follows them; name a link before "
            f"them, for example --from {before}"
        )
    paths = campaign.paths
    if not is_present(paths.receipt(link)):
        done = [name for name in campaign.chain.names if is_present(paths.receipt(name)) and name != OUTLIERS]
        raise ConfigError(
            f"--from {link}: this link is not finished ({paths.receipt(link)} does not exist); finished are: "
            f"{', '.join(done) or 'none'}"
        )
    return paths.store(link) / Receipt.read(paths.receipt(link)).checkpoint


def _record_fork(campaign: Campaign, run: str, checkpoint: str) -> None:
    """Record in the present run that a fork begins with a checkpoint: `crpipe clean` keeps that."""
    path = campaign.paths.forks()
    before = Forks.read_if_any(path)
    checkpoints = {**(before.checkpoints if before else {}), run: str(Path(checkpoint).resolve())}
    Forks(checkpoints=checkpoints).write(path)


def _refuse_keys_of_fork(changes: Sequence[str]) -> None:
    names = {name for name, _ in flatten(read_tree((), changes)[0])}
    wrong = [name for name in _KEYS_OF_FORK if name in names]
    if wrong:
        raise ConfigError(f"--set {', '.join(wrong)}: the fork itself sets or keeps this; leave it out")


def _refuse_other_shards(campaign: Campaign, forked: Config) -> None:
    """Raise ConfigError naming the changed keys of scope ``data``: a fork trains on the present shards."""
    before, after = campaign.config.data_keys(), forked.data_keys()
    changed = [called_now(name) for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    if changed:
        raise ConfigError(
            f"--set {', '.join(changed)}: changes the shards; a fork trains on those that exist. Set "
            "`results` to a new directory and `run` to a new name, and start that campaign from its beginning"
        )
