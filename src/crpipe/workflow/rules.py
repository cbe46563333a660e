"""What the rules ask for: the ranges of a link, what runs before what, resources, and command lines."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import yaml

from crpipe.config.loading import SECTIONS, flatten, read_tree
from crpipe.core.causes import is_present
from crpipe.core.errors import ConfigError
from crpipe.core.paths import CONSOLIDATED, OUTLIERS
from crpipe.core.ranges import PATTERN, pick

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from crpipe.campaign.campaign import Campaign


def shards_of(campaign: Campaign, name: str) -> list[Path]:
    """List the manifests of the shards that a link trains on, one for each range.

    Raise ConfigError when the campaign has no such link.
    """
    paths, link = campaign.paths, campaign.chain.named(name)
    if name == OUTLIERS:
        return [paths.outlier_manifest(CONSOLIDATED)]
    return [paths.shard_manifest(each) for each in link.ranges]


def parent_of(campaign: Campaign, name: str) -> list[Path]:
    """Return the receipt of the link before, whose checkpoint a link starts from; none for the first link."""
    parent = campaign.chain.named(name).parent
    return [campaign.paths.receipt(parent)] if parent else []


def probe_option(campaign: Campaign, name: str) -> list[str]:
    """Return the option with which the first link of a run calls every method of classes of others."""
    foreign = any(not campaign.config.plugin(each).startswith("crpipe.") for each in ("reader", "model"))
    return ["--probe"] if foreign and name == campaign.chain.names[0] else []


def reference_ranges(campaign: Campaign) -> list[str]:
    """Name the ranges that a quantile threshold is computed from; none if the threshold is a number."""
    split = campaign.config.split
    if split.quantile is None:
        return []
    return list(split.reference_ranges) or [campaign.ranges[0]]


# Who waits for whom, and who is first: staging is at most ``source.prefetch_ranges`` beyond training.


TARGETS = ("all", "train_all", "train_outliers", "evaluation", "progress", "outliers_consolidated")
TRAINING_TARGETS = frozenset(
    {*TARGETS, "train", "evaluate", "figures", "gallery"} - {"outliers_consolidated"}
)


def trains(targets: Collection[str], runs: Path) -> bool:
    """Return whether training is among ``targets``: rules, or files (of training: below ``runs``)."""
    return any(name in TRAINING_TARGETS or Path(name).is_relative_to(runs) for name in targets)


def check_files(campaign: Campaign, targets: Iterable[str]) -> None:
    """Raise ConfigError for a target that is a file of a link or range which this campaign has not."""
    results, run = campaign.paths.results, campaign.paths.run_dir()
    for target in map(Path, targets):
        for folder, names, what in ((run, campaign.chain.names, "link"), (results, campaign.ranges, "range")):
            inside = str(target.relative_to(folder)) if target.is_relative_to(folder) else ""
            named = PATTERN.search(inside)
            if named is not None and not any(name in inside for name in names):
                pick(named[0], names, what)


def priority(ranges: Sequence[str], name: str) -> int:
    """Rank the jobs of a range: the first one gets the largest number, one that is left out gets 0."""
    return len(ranges) - ranges.index(name) if name in ranges else 0


def training_priority(ranges: Sequence[str]) -> int:
    """Rank the jobs that everything after them waits for: above all jobs of ranges together.

    A solver adds the priorities up: several small jobs must not outweigh one.
    """
    return 3 * len(ranges) * (len(ranges) + 1)


def staging_prerequisites(campaign: Campaign, name: str, *, training: bool) -> list[Path]:
    """List the files that range ``name`` waits for before it is staged.

    The ledger of the range prefetch_ranges before it: raw copies of so many ranges exist at most. And, where
    training is asked for, the receipt of the link before the first one whose last range is at most so many
    before it. Both belong to earlier ranges, so that no two ranges wait for each other.
    What was staged before waits for nothing: a change of target or prefetch_ranges must not copy it again.
    """
    paths, names = campaign.paths, campaign.ranges
    if is_present(paths.staged(name)) or is_present(paths.ledger(name)):
        return []
    # The threshold needs its reference ranges before anything is split: they cannot wait for a split one.
    reference = reference_ranges(campaign)
    if name in reference:
        return []
    prefetch_ranges = campaign.config.source.prefetch_ranges
    reach = names.index(name) - prefetch_ranges
    before = []
    for index in range(reach, -1, -prefetch_ranges):
        before.append(paths.ledger(names[index]))
        if names[index] not in reference:
            break  # a reference range waits for nothing: wait for what it passed by, too
    return [*before, *(_trained_before(campaign, reach) if training else ())]


def _trained_before(campaign: Campaign, reach: int) -> list[Path]:
    """Return the receipt of the link before the first one that trains on the range at ``reach``, or later."""
    chain = campaign.chain
    for link in chain.links:
        last = (link.ranges_after - 1) % len(chain.ranges)  # each round trains on all ranges
        if link.ranges and last >= reach:
            return [campaign.paths.receipt(link.parent)] if link.parent else []
    return []


# What jobs ask a cluster for, beyond plain numbers of the configuration.


_MOST_SPARE_MINUTES = 5.0
_SHARE = 0.9


def gpu_request(count: int, kind: str = "") -> str:
    """Format a request for GPUs on each node, such as ``gpu:a100:2``; "" for none."""
    return ":".join(["gpu", *([kind] if kind else []), str(count)]) if count else ""


def node_request(nodes: int) -> dict[str, Any]:
    """Return what a training job on several nodes asks for beside the rest: one torchrun on each."""
    return {"mpi": "srun", "nodes": nodes, "tasks": nodes, "tasks_per_gpu": 0} if nodes > 1 else {}


def time_limit(runtime_minutes: float) -> str:
    """Format the option with which a job takes a snapshot and stops by itself before its run time ends."""
    return f"--max-minutes {max(_SHARE * runtime_minutes, runtime_minutes - _MOST_SPARE_MINUTES):g}"


# How jobs call crpipe: with the configuration files, and with what --config of Snakemake changed.


# Options with which Snakemake reads the workflow and runs no job of it.
_LOOKING = frozenset(
    (
        *("--lint", "--report", "--unlock", "--print-compilation"),
        *("--summary", "-S", "--detailed-summary", "-D"),
        *("--list-rules", "--list", "-l", "--list-target-rules", "--lt"),
        *("--list-changes", "--lc", "--list-input-changes", "--list-untracked", "--lu"),
        *("--dag", "--rulegraph", "--filegraph", "--d3dag"),
    )
)


def only_looks(words: Iterable[str]) -> bool:
    """Return whether the command line ``words`` of Snakemake asks for something other than running jobs."""
    return any(word.partition("=")[0] in _LOOKING for word in words)


# Where `crpipe run` hands on what --set said: of other values of --config Snakemake makes text or numbers,
# and for a job of a cluster it quotes a quotation mark as no shell reads it.
GIVEN = "crpipe_set"


def hand_on(texts: Iterable[str]) -> str:
    """Write overrides as one value of Snakemake's --config."""
    return f"{GIVEN}={','.join(quote(text, safe='') for text in texts)}"


def overrides(files: Iterable[Path], config: Mapping[str, Any]) -> list[str]:
    """Write what ``config`` holds beyond the files (what --config changed) as ``key.sub=value``."""
    written = dict(flatten(read_tree(files)[0]))
    changed = {
        name: None if value == "null" else value
        for name, value in flatten(config)
        if name != GIVEN and (name not in written or written[name] != value)
        if value is not None or name not in SECTIONS
    }
    given = map(unquote, filter(None, str(config.get(GIVEN, "")).split(",")))
    return [*given, *(f"{name}={one_line(value)}" for name, value in changed.items())]


def one_line(value: Any) -> str:
    """Write a value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def crpipe_call(files: Iterable[Path], changes: Iterable[str]) -> str:
    """Format the start of a crpipe command, quoted so that it can be pasted into a shell."""
    options = [part for path in files for part in ("--config", str(path))]
    options += [part for text in changes for part in ("--set", text)]
    return shlex.join(["crpipe", *options])


def training_call(call: str, nodes: int, processes: int) -> str:
    """Wrap ``call`` in torchrun where a training job has several nodes, or ``processes`` on each."""
    if nodes * processes == 1:
        return call
    if nodes == 1:
        return f"torchrun --standalone --nproc-per-node={processes} -m {call}"
    # The shell runs on the first node of the job: the ranks meet there.
    return (
        f"srun --nodes={nodes} --ntasks={nodes} torchrun --nnodes={nodes} --nproc-per-node={processes}"
        f" --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID"
        f" --rdzv-endpoint=$(hostname):$((20000 + SLURM_JOB_ID % 10000)) -m {call}"
    )


def start_ranks(nodes: int, processes: int, link: str) -> None:
    """Replace this process by torchrun where a training needs several that are not there yet.

    One process alone would train in another way, under the key of the link. Raise ConfigError where the
    ranks belong on several nodes: only a job that has them can start them.
    """
    if nodes * processes == 1 or "WORLD_SIZE" in os.environ:
        return
    if nodes > 1:
        raise ConfigError(
            f"train.nodes: {nodes} nodes train together, and this is one process. `crpipe run` starts them; "
            f"in a job of {nodes} nodes the command is: "
            + training_call(f"crpipe train {shlex.quote(link)}", nodes, processes)
        )
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m", "crpipe"]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *words, *sys.argv[1:]])  # noqa: S606 - no shell is wanted


def search_path(python: str, folders: Sequence[str]) -> str:
    """Format a PATH on which the programs beside the interpreter ``python`` are found first."""
    return os.pathsep.join(dict.fromkeys([str(Path(python).parent), *folders]))


def allocator_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that makes torch's segments of GPU memory grow, unless a person has set one.

    Batches of rare size leave gaps between segments of fixed sizes, which end in an out-of-memory error.
    """
    set_already = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & environment.keys()
    return {} if set_already else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
