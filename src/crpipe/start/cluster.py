"""Slurm, the optional libraries, and the workflow in this folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.core.causes import Foreign
from crpipe.core.errors import ForeignError
from crpipe.start.campaign_folder import changed_files, has_workflow
from crpipe.start.diagnoses import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATIENCE_S = 10.0
_PACKAGE = "crpipe"
_SLURM = "slurm"
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[.*\])?((?:[=<>!~]=?[^;]*)?); *extra *== *['\"](\w+)['\"]")
# Distributions whose module has another name.
_MODULES = {
    "scikit-learn": "sklearn",
    "nvidia-ml-py": "pynvml",
    "pyjwt": "jwt",
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
        with Foreign(name):
            import_module(module)
    except ForeignError as error:
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
