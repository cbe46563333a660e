"""What `crpipe doctor` looks at on this machine: Python, torch, GPUs, memory, disks, Slurm, libraries."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from crpipe.core.causes import plugin_errors
from crpipe.core.errors import CrpipeError, PluginError
from crpipe.core.files import GIB, free_bytes
from crpipe.core.lease import Mount, mount_of
from crpipe.setup.init import changed_files, has_workflow

if TYPE_CHECKING:
    from collections.abc import Mapping

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at. fix: what to type or to change; empty where nothing is to be done."""

    name: str
    verdict: Verdict
    text: str
    fix: str = ""


OLDEST = (3, 11)
# What all tests pass with; docs/install.md says how far others were tried.
TRIED = ((3, 11),)
_PATIENCE_S = 10.0
# Oldest driver for each major version of CUDA (CUDA compatibility guide of NVIDIA).
_DRIVERS = {"11": 450, "12": 525, "13": 580}
_LEAST_MEMORY = 4 * GIB
_LEAST_DISK = 1 * GIB
_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi names it; memory in MiB."""

    name: str
    memory_mib: int
    driver: str


def python_found() -> Diagnosis:
    """Look at the interpreter."""
    version, text = sys.version_info[:2], f"{platform.python_version()} ({sys.executable})"
    if version < OLDEST:
        return Diagnosis("python", "fail", f"{text}: too old", "install Python 3.11 or later")
    if version not in TRIED:
        tried = ", ".join(f"{major}.{minor}" for major, minor in TRIED)
        fix = "python3.11 -m venv .venv   # docs/install.md says how far others were tried"
        return Diagnosis("python", "warn", f"{text}: the tests do not run with it, but with {tried}", fix)
    return Diagnosis("python", "ok", text)


def gpus_here() -> tuple[Gpu, ...]:
    """Ask the driver of NVIDIA for its GPUs; none without a driver, or when it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    question = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [program, *question], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return read_gpus(done.stdout) if done.returncode == 0 else ()


def read_gpus(answer: str) -> tuple[Gpu, ...]:
    """Read the answer of nvidia-smi: ``NVIDIA A100-SXM4-40GB, 40960, 550.54.15``; leave other lines out."""
    lines = [line for line in answer.splitlines() if line.count(",") > 1]
    rows = [[cell.strip() for cell in line.rsplit(",", 2)] for line in lines]
    return tuple(Gpu(name, int(memory), driver) for name, memory, driver in rows if memory.isdigit())


def gpu_found(gpus: tuple[Gpu, ...], wanted: int) -> Diagnosis:
    """Compare the GPUs with those that a training job asks for (``train.gpus``)."""
    if not gpus:
        text = "none that nvidia-smi shows: training uses the CPUs"
        if wanted > 1:
            return Diagnosis(
                "gpu", "warn", f"{text}, and train.gpus is {wanted}", "set train.gpus: 0, or use a cluster"
            )
        return Diagnosis("gpu", "ok", text)
    each = ", ".join(f"{gpu.name} with {gpu.memory_mib / 1024:.0f} GiB" for gpu in gpus)
    text = f"{each}; driver {gpus[0].driver}"
    if wanted > len(gpus):
        return Diagnosis("gpu", "warn", f"{text}; train.gpus is {wanted}", f"set train.gpus: {len(gpus)}")
    return Diagnosis("gpu", "ok", text)


def torch_found(gpus: tuple[Gpu, ...]) -> Diagnosis:
    """Look at the installed torch, without importing it, and whether the driver fits its CUDA."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Diagnosis("torch", "fail", "not installed", "pip install torch, as docs/install.md shows")
    cuda = _cuda_of_torch()
    if not cuda:
        text = f"{version}, for CPUs only"
        if gpus:
            plain = version.partition("+")[0]
            fix = f"pip uninstall -y torch && pip install torch=={plain}"
            return Diagnosis("torch", "warn", f"{text}, and there is a GPU", fix)
        return Diagnosis("torch", "ok", text)
    text = f"{version}, for CUDA {cuda}"
    least = _DRIVERS.get(cuda.partition(".")[0], 0)
    driver = gpus[0].driver.partition(".")[0] if gpus else ""
    if driver.isdigit() and int(driver) < least:
        fix = f"update the driver to {least} or later, or install torch for an older CUDA (docs/install.md)"
        return Diagnosis("torch", "fail", f"{text}, and the driver {gpus[0].driver} is too old for it", fix)
    return Diagnosis("torch", "ok", text)


def _cuda_of_torch() -> str:
    """Read the version of CUDA in torch/version.py; empty for a build without."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda[^=]*= *'([\d.]+)'", file.read_text(), re.MULTILINE) if file.exists() else None
    return found[1] if found else ""


def processors_found() -> Diagnosis:
    """Count the processors that this process may use, and look at the limit of threads."""
    usable, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{usable} of {all_of_them} cores"
    share = _group_processors()
    if share is not None and share < usable:
        text += f", {share:.1f} by the limit of this container"
    limit = os.environ.get("OMP_NUM_THREADS")
    if limit is not None:
        text += f"; OMP_NUM_THREADS is {limit}"
    return Diagnosis("processors", "ok", text)


def _group_processors() -> float | None:
    words = _read(_GROUP / "cpu.max").split()
    return int(words[0]) / int(words[1]) if len(words) > 1 and words[0].isdigit() else None


def memory_found() -> Diagnosis:
    """Look at the memory of this machine, or of this container where that is less."""
    numbers = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in _read(Path("/proc/meminfo")).splitlines())
        if value.split()
    }
    if "MemTotal" not in numbers:
        return Diagnosis("memory", "warn", "unknown: there is no /proc/meminfo", "use Linux")
    total, free = numbers["MemTotal"], numbers.get("MemAvailable", 0)
    text = f"{total / GIB:.1f} GiB, {free / GIB:.1f} GiB free"
    limit = _read(_GROUP / "memory.max").strip()
    if limit.isdigit() and int(limit) < total:
        total = int(limit)
        text += f"; {total / GIB:.1f} GiB by the limit of this container"
    if total < _LEAST_MEMORY:
        return Diagnosis("memory", "warn", text, "lower load.budget_items and split.memory_mib")
    return Diagnosis("memory", "ok", text)


def disk_found(key: str, folder: Path, budget_gib: float = 0.0, *, cluster: bool = False) -> Diagnosis:
    """Look at the file system of a directory: free space, permission, locks.

    budget_gib: space that raw copies may take there. cluster: whether jobs may run on other hosts.
    """
    mount, elsewhere = mount_of(folder), f"set {key} to another folder"
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not (place.is_dir() and os.access(place, os.W_OK)):
        return Diagnosis(key, "fail", f"{folder}: {place} cannot be written to", elsewhere)
    try:
        free = free_bytes(place)
    except (OSError, CrpipeError) as error:
        return Diagnosis(key, "fail", f"{folder}: {error}", elsewhere)
    text = f"{folder}: {free / GIB:.1f} GiB free, {mount.describe() if mount else 'unknown file system'}"
    if free < _LEAST_DISK:
        return Diagnosis(key, "fail", text, f"free some space, or {elsewhere}")
    doubt, fix = _doubt(key, mount, cluster=cluster)
    if not doubt and free < budget_gib * GIB:
        least = max(1, int(free / GIB * 0.8))
        doubt = f", less than raw copies may take (source.disk_budget_gib: {budget_gib:g})"
        fix = f"set source.disk_budget_gib: {least}"
    if doubt:
        return Diagnosis(key, "warn", f"{text}{doubt}", fix)
    shared = mount is not None and not mount.of_one_host()
    return Diagnosis(key, "ok", f"{text}, locks hold across hosts" if shared else text)


def _doubt(key: str, mount: Mount | None, *, cluster: bool) -> tuple[str, str]:
    """Describe what several hosts would meet on a file system, and what to do; nothing where it is fine."""
    if mount is not None and mount.locks_are_per_host():
        fix = "run all jobs on one host, or use a file system whose locks all hosts see (docs/operations.md)"
        return ": other hosts may not see its locks", fix
    if mount is not None and mount.of_one_host() and cluster:
        fix = f"set {key} to a file system that all hosts see, unless this one is exported to them"
        return ": a disk of this host, and jobs of Slurm run on others", fix
    return "", ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# Slurm, the optional libraries, and the workflow in this folder.


_PACKAGE = "crpipe"
_SLURM = "slurm"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[.*\])?((?:[=<>!~]=?[^;]*)?); *extra *== *['\"](\w+)['\"]")
# Distributions whose module has another name.
_MODULES = {
    "scikit-learn": "sklearn",
    "nvidia-ml-py": "pynvml",
    "wipac-rest-tools": "rest_tools",
}
_CONSTRAINTS = Path("constraints.txt")


def has_slurm() -> bool:
    """Return whether jobs can be submitted to a Slurm from here."""
    return shutil.which("sbatch") is not None


def slurm_found() -> Diagnosis:
    """Look for Slurm, ask it for this user's jobs, and look at the plugin of Snakemake.

    What is wrong stops only a campaign that runs with ``--profile slurm``.
    """
    if not has_slurm():
        return Diagnosis("slurm", "ok", "no sbatch on this machine: jobs run here")
    problem = _ask_queue()
    if problem:
        return Diagnosis("slurm", "warn", problem, "squeue --me   # and ask the site, if it fails too")
    requirement = next(iter(requirements(_SLURM).items()), ("snakemake-executor-plugin-slurm", ""))
    name, wanted = requirement
    version = _version(name)
    fix = f"pip install '{name}{wanted}'"
    if not version:
        return Diagnosis("slurm", "warn", "sbatch and squeue answer; the plugin of Snakemake is missing", fix)
    if not _fits(version, wanted):
        return Diagnosis("slurm", "warn", f"{name} {version}, and {wanted} is needed", fix)
    return Diagnosis("slurm", "ok", f"sbatch and squeue answer; {name} {version}")


def _ask_queue() -> str:
    """Ask squeue for this user's jobs; say what is wrong, empty when it answers."""
    program = shutil.which("squeue")
    if program is None:
        return "sbatch is there and squeue is not"
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [program, "-h", "--me"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"squeue does not answer within {_PATIENCE_S:g} s"
    reason = (done.stderr.strip().splitlines() or ["without a message"])[-1]
    return f"squeue fails: {reason}" if done.returncode else ""


def requirements(extra: str) -> dict[str, str]:
    """Read which distributions an extra of crpipe installs, each with the versions that fit."""
    try:
        lines = metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return {}
    found = [match for line in lines if (match := _REQUIREMENT.fullmatch(line.strip()))]
    return {match[1]: match[2].strip() for match in found if match[3] == extra}


def extras_found(needed: Mapping[str, str]) -> Diagnosis:
    """Compare the optional libraries with those that this configuration needs: extra and reason."""
    missing = {extra: lacking(extra) for extra in needed if lacking(extra)}
    if missing:
        names = [name for extra in missing for name in missing[extra]]
        limits = f"-c {_CONSTRAINTS} " if _CONSTRAINTS.exists() else ""
        why = "; ".join(f"{', '.join(missing[extra])} {needed[extra]}" for extra in missing)
        return Diagnosis("extras", "fail", f"missing: {why}", f"pip install {limits}{' '.join(names)}")
    broken = {name: why for extra in needed for name in requirements(extra) if (why := _import_error(name))}
    if broken:
        why = "; ".join(
            f"{name} is installed and cannot be imported ({each})" for name, each in broken.items()
        )
        return Diagnosis("extras", "fail", why, f"pip install --force-reinstall {' '.join(broken)}")
    rest = [extra for extra in ("export", "evaluate", "root", "hdf5", "gpu") if lacking(extra)]
    text = "all that this configuration needs"
    return Diagnosis("extras", "ok", f"{text}; not installed: {', '.join(rest)}" if rest else text)


def lacking(extra: str) -> list[str]:
    """Name the distributions of an extra that are not installed."""
    return [name for name in requirements(extra) if not _version(name)]


def workflow_found(folder: Path) -> Diagnosis:
    """Look for the workflow in a folder, and whether it is that of this version."""
    version = _version("snakemake")
    if not version:
        return Diagnosis("workflow", "fail", "snakemake is not installed", "pip install snakemake")
    if find_spec("snakemake") is None:
        fix = f"{sys.executable} -m pip install --force-reinstall snakemake"
        return Diagnosis("workflow", "fail", f"snakemake {version} is installed and cannot be imported", fix)
    if not has_workflow(folder):
        return Diagnosis("workflow", "warn", "there is none in this folder", "crpipe init")
    changed = changed_files(folder)
    if changed:
        names = ", ".join(map(str, changed[:3])) + (" …" if len(changed) > 3 else "")  # noqa: PLR2004 - as above
        text = f"in this folder, not as in this version of crpipe: {names}"
        return Diagnosis("workflow", "warn", text, "crpipe init --force   # keeps each old file as NAME.old")
    text = f"in this folder, of this version; snakemake {version}"
    if shutil.which("snakemake") is None:
        activate = "source .venv/bin/activate   # crpipe run works without"
        return Diagnosis("workflow", "warn", f"{text} is not on the PATH", activate)
    return Diagnosis("workflow", "ok", text)


def _import_error(name: str) -> str:
    """Import a distribution's module; say what is wrong, empty when it can be used."""
    module = _MODULES.get(name, name.replace("-", "_"))
    try:
        with plugin_errors(name):
            import_module(module)
    except PluginError as error:
        return str(error).removeprefix(f"{name}: ")
    return ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _fits(version: str, wanted: str) -> bool:
    """Compare a version with ``==2.8.*``; anything else fits."""
    if not wanted.startswith("==") or not wanted.endswith("*"):
        return True
    return version.startswith(wanted[2:-1])
