"""How jobs call crpipe: with the configuration files, and with what --config of Snakemake changed."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from crpipe.config.loading import flatten, read_tree
from crpipe.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

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


def overrides(files: Iterable[Path], config: Mapping[str, Any]) -> list[str]:
    """Write what ``config`` holds beyond the files (what --config changed) as ``key.sub=value``."""
    written = dict(flatten(read_tree(files)[0]))
    changed = {
        name: value for name, value in flatten(config) if name not in written or written[name] != value
    }
    return [f"{name}={one_line(value)}" for name, value in changed.items()]


def one_line(value: Any) -> str:
    """Write a value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def crpipe_call(files: Iterable[Path], changes: Iterable[str]) -> str:
    """Spell the start of a crpipe command, quoted so that it can be pasted into a shell."""
    options = [part for path in files for part in ("--config", str(path))]
    options += [part for text in changes for part in ("--set", text)]
    return shlex.join(["crpipe", *options])


def training_call(call: str, nodes: int, processes: int) -> str:
    """Put ``call`` under torchrun where a training job has several nodes, or ``processes`` on each."""
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
    """Spell a PATH on which the programs beside the interpreter ``python`` are found first."""
    return os.pathsep.join(dict.fromkeys([str(Path(python).parent), *folders]))


def allocator_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the variable that makes torch's segments of GPU memory grow, unless a person has set one.

    Batches of rare size leave gaps between segments of fixed sizes, which end in an out-of-memory error.
    """
    set_already = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & environment.keys()
    return {} if set_already else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
