"""`crpipe doctor`: this machine, and what a configuration names, with what to type where it is not ok."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from crpipe.config.loading import Config, load_config
from crpipe.config.sections import TrainSection
from crpipe.core.causes import plugin_errors
from crpipe.core.errors import CrpipeError, PluginError
from crpipe.core.files import GIB, free_bytes
from crpipe.core.lease import Mount, mount_of
from crpipe.core.ranges import Range
from crpipe.core.text import counted, size
from crpipe.setup.compatibility import check_fit
from crpipe.setup.init import changed_files, extras_of, has_workflow
from crpipe.source.pelican.login import check_reading, source_uris
from crpipe.source.preview import LIMIT_S, list_now
from crpipe.source.uris import FEDERATIONS, WEB, Kind, SourcePattern, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


OLDEST = (3, 11)
# What all tests pass with; docs/install.md says how far others were tried.
TRIED = ((3, 11),)
_PATIENCE_S = 10.0
# Oldest driver for each major version of CUDA (CUDA compatibility guide of NVIDIA).
_DRIVERS = {"11": 450, "12": 525, "13": 580}
_LEAST_DISK = 1 * GIB
_PACKAGE = "crpipe"
_SLURM = "slurm"
_OPTIONAL = ("export", "evaluate", "root", "hdf5", "gpu")  # extras that are named where they are missing
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[.*\])?((?:[=<>!~]=?[^;]*)?); *extra *== *['\"](\w+)['\"]")
# Distributions whose module has another name.
_MODULES = {
    "scikit-learn": "sklearn",
    "nvidia-ml-py": "pynvml",
    "wipac-rest-tools": "rest_tools",
}
_CONSTRAINTS = (Path("constraints.txt"), Path("workflow/constraints.txt"))  # of a clone, of a campaign
_WIDTH = 15  # of the names
_INDENT = _WIDTH + 7
_LINE = 110
_FIX = "correct section source or ranges, then: crpipe doctor"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at. fix: what to type or to change; empty where nothing is to be done."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi names it; memory in MiB."""

    name: str
    memory_mib: int
    driver: str


def examine(files: Sequence[Path], overrides: Iterable[str]) -> list[Diagnosis]:
    """Examine this machine, and what the configuration names; without one, the machine alone."""
    config, configuration = _configuration(files, overrides)
    gpus, slurm = gpus_here(), diagnose_slurm()
    cluster = has_slurm() and slurm.verdict == "ok"
    train = config.train if config is not None and not cluster else TrainSection(gpus=0)
    findings = [
        configuration,
        diagnose_workflow(Path()),
        diagnose_python(),
        diagnose_torch(gpus),
        diagnose_gpus(gpus, train.gpus, train.device),
        slurm,
    ]
    needed = {"gpu": "to record the use of the GPU"} if gpus else {}
    if config is None:
        return [*findings, diagnose_disk("folder", Path()), diagnose_extras(needed)]
    needed |= extras_of(config.source.reader, config.train.workload)
    findings.append(diagnose_extras(needed))
    fits = [] if {"torch", "extras"} & {*failed_names(findings)} else [diagnose_fit(config)]
    return [*findings, *fits, *_diagnose_campaign(config, cluster=cluster)]


def as_table(findings: Sequence[Diagnosis]) -> str:
    """Write one line for each finding, and below it the fix."""
    lines = []
    for one in findings:
        lines += textwrap.wrap(
            one.text,
            _LINE,
            initial_indent=f"{one.verdict:4s}  {one.name:{_WIDTH}s} ",
            subsequent_indent=" " * _INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        if one.fix:
            lines += [f"{'':{_INDENT}s}-> {one.fix}"]  # in one line: it is pasted
    return "\n".join(lines)


def to_json(findings: Sequence[Diagnosis]) -> str:
    """Write the findings for a program: name, verdict, text and fix of each."""
    return json.dumps({"findings": [asdict(one) for one in findings]}, indent=1)


def failed_names(findings: Sequence[Diagnosis]) -> list[str]:
    """Name what will stop a campaign."""
    return [one.name for one in findings if one.verdict == "fail"]


# What the configuration names: disks, token, source.


def _configuration(files: Sequence[Path], overrides: Iterable[str]) -> tuple[Config | None, Diagnosis]:
    """Read the configuration; None and the reason where none is named, or it is wrong."""
    if not files:
        text = "none is named: only this machine is looked at"
        return None, Diagnosis("configuration", "warn", text, "crpipe init   # or name one: --config FILE")
    names = ", ".join(map(str, files))
    try:
        return load_config(files, overrides), Diagnosis("configuration", "ok", f"{names} (later files win)")
    except CrpipeError as error:
        return None, Diagnosis("configuration", "fail", f"{names}: {error}", "correct the key that is named")


def _diagnose_campaign(config: Config, *, cluster: bool) -> Iterator[Diagnosis]:
    paths = config.paths()
    budget = 0.0 if config.simulates() else config.source.disk_budget_gib
    yield diagnose_disk("results", paths.results, budget, cluster=cluster)
    yield diagnose_disk("runs", paths.runs, cluster=cluster)
    try:
        uris = source_uris(config)
    except CrpipeError as error:
        yield Diagnosis("source", "fail", str(error), "crpipe init --force   # or edit section source")
        return
    yield diagnose_token(config, uris)
    yield diagnose_source(config)


def diagnose_fit(config: Config) -> Diagnosis:
    """Examine whether reader, simulator, workload and side tables fit together, as before any job."""
    try:
        return Diagnosis("fit", "ok", check_fit(config))
    except CrpipeError as error:
        return Diagnosis("fit", "fail", str(error), "correct the key that is named, then: crpipe doctor")


def diagnose_source(config: Config) -> Diagnosis:
    """List the files of the first range, as `crpipe plan` does."""
    pattern = SourcePattern.of(config)
    if pattern.kind is Kind.SIMULATED:
        maker = config.source.simulator.rpartition(":")[2]
        return Diagnosis("source", "ok", f"synthetic://: {maker} makes the files")
    first = _first_range(config, pattern)
    try:
        listings = list_now(config, [first])
    except CrpipeError as error:
        return Diagnosis("source", "fail", str(error), _FIX)
    wrong = [*listings.problems, *listings.warnings]
    if wrong:
        return Diagnosis("source", "fail", wrong[0], _FIX)
    entries = listings.files[str(first)]
    total = size(sum(entry.size or 0 for entry in entries))
    return Diagnosis("source", "ok", f"{counted(len(entries), 'file')}, {total} (range {first})")


def _first_range(config: Config, pattern: SourcePattern) -> Range:
    """Return the first range that is not skipped; where the files are not counted yet, the first of all."""
    with contextlib.suppress(CrpipeError):
        return config.all_ranges()[0]
    first, step = config.ranges.first, config.ranges.size
    # A flat source may hold less than one range.
    return Range(first, first if pattern.kind in (Kind.FLAT, Kind.FLAT_LIST) else first + step - 1)


def diagnose_token(config: Config, uris: Sequence[str]) -> Diagnosis:
    """Compare the token in use with what the source asks for, in a short time."""
    if not any(uri and scheme_of(uri) in FEDERATIONS for uri in uris):
        is_asked = any(uri and scheme_of(uri) in WEB for uri in uris)
        text = "its server asks for one where it needs one" if is_asked else "the source needs none"
        return Diagnosis("token", "ok", text)
    try:
        access = check_reading(config, min(config.source.read_timeout_s, LIMIT_S / 2))
    except CrpipeError as error:
        return Diagnosis("token", "fail", str(error), "crpipe token --login")
    if not access.answered:
        return Diagnosis("token", "warn", f"not compared: {access.problem}", "crpipe doctor   # later")
    if access.problem:
        return Diagnosis("token", "fail", access.problem, "crpipe token --login")
    lines = access.text.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines if len(line.split(maxsplit=1)) > 1)
    if "ends" not in rows:
        return Diagnosis("token", "ok", lines[0])
    return Diagnosis("token", "ok", f"covers the campaign; ends {rows['ends']}")


def diagnose_disk(key: str, folder: Path, budget_gib: float = 0.0, *, cluster: bool = False) -> Diagnosis:
    """Examine the file system of a directory: free space, permission, locks.

    budget_gib: space that raw copies may take there. cluster: whether jobs may run on other hosts.
    """
    mount, elsewhere = mount_of(folder), f"set {key} to another folder"
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        return Diagnosis(key, "fail", f"{folder}: {existing} cannot be written to", elsewhere)
    try:
        free = free_bytes(existing)
    except (OSError, CrpipeError) as error:
        return Diagnosis(key, "fail", f"{folder}: {error}", elsewhere)
    text = f"{folder}: {free / GIB:.1f} GiB free, {mount.describe() if mount else 'unknown file system'}"
    if free < _LEAST_DISK:
        return Diagnosis(key, "fail", text, f"free some space, or {elsewhere}")
    doubt, fix = _doubt(key, mount, cluster=cluster)
    if not doubt and free < budget_gib * GIB:
        doubt = f", less than raw copies may take (source.disk_budget_gib: {budget_gib:g})"
        fix = "set source.disk_budget_gib: 0, which takes 80 % of what is free"
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


# This machine: the workflow in this folder, Python, torch, GPUs, Slurm, optional libraries.


def diagnose_workflow(folder: Path) -> Diagnosis:
    """Check whether a folder has the workflow, and that of this version."""
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


def diagnose_python() -> Diagnosis:
    """Examine the interpreter."""
    version, text = sys.version_info[:2], f"{platform.python_version()} ({sys.executable})"
    if version < OLDEST:
        return Diagnosis("python", "fail", f"{text}: too old", "install Python 3.11 or later")
    if version not in TRIED:
        tried = ", ".join(f"{major}.{minor}" for major, minor in TRIED)
        fix = "python3.11 -m venv .venv   # docs/install.md says how far others were tried"
        return Diagnosis("python", "warn", f"{text}: the tests do not run with it, but with {tried}", fix)
    return Diagnosis("python", "ok", text)


def diagnose_torch(gpus: Sequence[Gpu]) -> Diagnosis:
    """Examine the installed torch, without importing it, and whether the driver fits its CUDA."""
    version = _version("torch")
    if not version:
        return Diagnosis("torch", "fail", "not installed", "pip install torch, as docs/install.md shows")
    cuda, rocm = _cuda_of_torch(), _cuda_of_torch("hip")
    if rocm:
        return Diagnosis("torch", "ok", f"{version}, for ROCm {rocm} (never tried)")
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


def _cuda_of_torch(platform: str = "cuda") -> str:
    """Read the version of CUDA (or HIP, of ROCm) in torch/version.py; empty for a build without."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin).with_name("version.py")
    text = file.read_text() if file.exists() else ""
    version = re.search(rf"^{platform}[^=]*= *'([\w.-]+)'", text, re.MULTILINE)
    return version[1] if version else ""


def gpus_here() -> tuple[Gpu, ...]:
    """Ask the driver of NVIDIA for its GPUs; none without a driver, or when it does not answer."""
    question = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    done = _ask("nvidia-smi", *question) if shutil.which("nvidia-smi") else None
    return read_gpus(done.stdout) if done is not None and done.returncode == 0 else ()


def read_gpus(answer: str) -> tuple[Gpu, ...]:
    """Read the answer of nvidia-smi: ``NVIDIA A100-SXM4-40GB, 40960, 550.54.15``; leave other lines out."""
    lines = [line for line in answer.splitlines() if line.count(",") > 1]
    rows = [[cell.strip() for cell in line.rsplit(",", 2)] for line in lines]
    return tuple(Gpu(name, int(memory), driver) for name, memory, driver in rows if memory.isdigit())


def diagnose_gpus(gpus: Sequence[Gpu], asked: int, device: str = "auto") -> Diagnosis:
    """Compare the GPUs with those that a training job asks for (``train.gpus``, ``train.device``)."""
    rocm = _cuda_of_torch("hip")
    untried = "train.device is mps" if device == "mps" else f"torch is for ROCm {rocm}" if rocm else ""
    if untried and not gpus:
        return Diagnosis("gpu", "ok", f"{untried}: whether it finds a GPU is not looked at (never tried)")
    if not gpus and device == "cuda":
        text = "none that nvidia-smi shows, and train.device is cuda"
        return Diagnosis("gpu", "fail", text, "set train.device: auto, or train where GPUs are")
    if not gpus:
        text = "none that nvidia-smi shows: training uses the CPUs"
        if asked > 1:
            fix = "set train.gpus: 0, or use a cluster"
            return Diagnosis("gpu", "warn", f"{text}, and train.gpus is {asked}", fix)
        return Diagnosis("gpu", "ok", text)
    names = ", ".join(f"{gpu.name} with {gpu.memory_mib / 1024:.0f} GiB" for gpu in gpus)
    text = f"{names}; driver {gpus[0].driver}"
    if asked > len(gpus):
        return Diagnosis("gpu", "warn", f"{text}; train.gpus is {asked}", f"set train.gpus: {len(gpus)}")
    return Diagnosis("gpu", "ok", text)


def has_slurm() -> bool:
    """Return whether jobs can be submitted to a Slurm from here."""
    return shutil.which("sbatch") is not None


def diagnose_slurm() -> Diagnosis:
    """Find Slurm, query this user's jobs, and examine the plugin of Snakemake.

    What is wrong stops only a campaign that runs with ``--profile slurm``.
    """
    if not has_slurm():
        return Diagnosis("slurm", "ok", "no sbatch on this machine: jobs run here")
    problem = _ask_queue()
    if problem:
        return Diagnosis("slurm", "warn", problem, "squeue --me   # and ask the site, if it fails too")
    name, needed = next(iter(requirements(_SLURM).items()), ("snakemake-executor-plugin-slurm", ""))
    version, fix = _version(name), f"pip install '{name}{needed}'"
    if not version:
        return Diagnosis("slurm", "warn", "sbatch and squeue answer; the plugin of Snakemake is missing", fix)
    # ``==2.8.*`` is compared; anything else fits.
    if needed.startswith("==") and needed.endswith("*") and not version.startswith(needed[2:-1]):
        return Diagnosis("slurm", "warn", f"{name} {version}, and {needed} is needed", fix)
    return Diagnosis("slurm", "ok", f"sbatch and squeue answer; {name} {version}")


def _ask_queue() -> str:
    """Ask squeue for this user's jobs; return what is wrong, empty when it answers."""
    if shutil.which("squeue") is None:
        return "sbatch is there and squeue is not"
    done = _ask("squeue", "-h", "--me")
    if done is None:
        return f"squeue does not answer within {_PATIENCE_S:g} s"
    reason = (done.stderr.strip().splitlines() or ["without a message"])[-1]
    return f"squeue fails: {reason}" if done.returncode else ""


def _ask(*words: str) -> subprocess.CompletedProcess[str] | None:
    """Run a command, for some seconds; None when it cannot be run, or does not end."""
    try:
        return subprocess.run(  # noqa: S603 - fixed commands
            words, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def diagnose_extras(needed: Mapping[str, str]) -> Diagnosis:
    """Compare the optional libraries with those that this configuration needs: extra and reason."""
    missing = {extra: _missing(extra) for extra in needed if _missing(extra)}
    if missing:
        names = " ".join(name for extra in missing for name in missing[extra])
        limits = next((f"-c {path} " for path in _CONSTRAINTS if path.exists()), "")
        why = "; ".join(f"{', '.join(missing[extra])} {needed[extra]}" for extra in missing)
        return Diagnosis("extras", "fail", f"missing: {why}", f"pip install {limits}{names}")
    broken = {name: why for extra in needed for name in requirements(extra) if (why := _import_error(name))}
    if broken:
        unusable = "is installed and cannot be imported"
        text = "; ".join(f"{name} {unusable} ({why})" for name, why in broken.items())
        return Diagnosis("extras", "fail", text, f"pip install --force-reinstall {' '.join(broken)}")
    rest = ", ".join(extra for extra in _OPTIONAL if _missing(extra))
    text = "all that this configuration needs"
    return Diagnosis("extras", "ok", f"{text}; not installed: {rest}" if rest else text)


def requirements(extra: str) -> dict[str, str]:
    """Read which distributions an extra of crpipe installs, each with the versions that fit."""
    try:
        lines = metadata.requires(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return {}
    matches = [match for line in lines if (match := _REQUIREMENT.fullmatch(line.strip()))]
    return {match[1]: match[2].strip() for match in matches if match[3] == extra}


def _missing(extra: str) -> list[str]:
    """Name the distributions of an extra that are not installed."""
    return [name for name in requirements(extra) if not _version(name)]


def _import_error(name: str) -> str:
    """Import a distribution's module; return what is wrong, empty when it can be used."""
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
