"""The folder of a campaign: workflow, configuration and profiles, as this installation has them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import crpipe
from crpipe.core.errors import ConfigError
from crpipe.core.files import make_folder, replacing, writing

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATTERNS = Path(__file__).with_name("workflow_files.txt")
CONFIGURATION = Path("crpipe.yaml")
# What only the workflow of crpipe has.
_MARK = Path("workflow/rules/common.smk")


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file that ``crpipe init`` writes: its path in the folder, and its content."""

    path: Path
    content: bytes


def workflow_home() -> Path:
    """Return the folder that holds the workflow's files: in the wheel, or the root of the checkout.

    Raise ConfigError where the installation has none.
    """
    package = Path(crpipe.__file__).parent
    for home in (package / "campaign", package.parent.parent):
        if (home / _MARK).exists():
            return home
    raise ConfigError(
        f"{package}: this installation has no workflow; install crpipe from its wheel, or from a clone with "
        "pip install -e ."
    )


def workflow_files() -> list[PlannedFile]:
    """Read every file that the workflow needs in the folder of a campaign."""
    home = workflow_home()
    patterns = [line for line in _PATTERNS.read_text().splitlines() if not line.startswith("#")]
    found = [path for pattern in patterns for path in sorted(home.glob(pattern))]
    found.sort(key=lambda path: path == home / _MARK)  # written last: where it is, the workflow is whole
    return [PlannedFile(path.relative_to(home), path.read_bytes()) for path in found]


def has_workflow(folder: Path) -> bool:
    """Return whether crpipe's workflow is in a folder."""
    return (folder / _MARK).exists()


def start_campaign(folder: Path, configuration: str, *, force: bool = False) -> list[str]:
    """Write a campaign's configuration, and the workflow where the folder has none or with ``force``.

    Return what was written and what to type next, as lines. Nothing is written where a file with other
    content is in the way; ``force`` keeps it as NAME.old.
    """
    workflow = workflow_files() if force or not has_workflow(folder) else []
    # The configuration last: where it is, the folder is ready.
    written = write_files(
        folder, [*workflow, PlannedFile(CONFIGURATION, configuration.encode())], force=force
    )
    tops = dict.fromkeys(path.parts[0] + ("/" if len(path.parts) > 1 else "") for path in written)
    lines = [f"wrote in {folder}: {', '.join(tops)}" if written else f"{folder}: nothing to change"]
    here = [] if folder.resolve() == Path.cwd().resolve() else [f"  cd {shlex.quote(str(folder))}"]
    return [
        *lines,
        "next:",
        *here,
        f"  (edit {CONFIGURATION})",
        "  crpipe doctor   # this machine, the source of the files, what is missing",
        "  crpipe plan     # what will run",
        "  crpipe run      # run it; the same command continues after any stop",
    ]


def changed_files(folder: Path) -> list[Path]:
    """Name the rules of the workflow in a folder that are not those of this version, or are missing."""
    rules = [file for file in workflow_files() if file.path.parts[0] in ("Snakefile", "workflow")]
    places = [(file, folder / file.path) for file in rules]
    return [file.path for file, path in places if not path.is_file() or path.read_bytes() != file.content]


def write_files(folder: Path, files: list[PlannedFile], *, force: bool = False) -> list[Path]:
    """Write the files that are not there yet, and return their paths; nothing is written after an error.

    force: replace files with other content; each old one is kept as NAME.old. Without it they are a
    ConfigError.
    """
    differing = list(_differing(folder, files))
    if differing and not force:
        shown = ", ".join(str(folder / path) for path in differing[:5])
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""  # noqa: PLR2004 - as above
        raise ConfigError(
            f"{shown}{more}: already there, with other content; nothing was written. Choose another "
            "folder, or add --force: then each old file is kept as NAME.old"
        )
    written = []
    for file in files:
        path = folder / file.path
        if path.is_file() and path.read_bytes() == file.content:
            continue
        with writing(path):
            make_folder(path.parent)
            if path.exists() or path.is_symlink():
                path.rename(_free_name(path))
        with replacing(path) as part:
            part.write_bytes(file.content)
        written.append(file.path)
    return written


def _differing(folder: Path, files: list[PlannedFile]) -> Iterator[Path]:
    for file in files:
        path = folder / file.path
        broken = path.is_symlink() and not path.exists()
        if broken or (path.exists() and (not path.is_file() or path.read_bytes() != file.content)):
            yield file.path


def _free_name(path: Path) -> Path:
    """Return NAME.old, or the first of NAME.old2, NAME.old3 … that is free."""
    number = 1
    while True:
        candidate = path.with_name(f"{path.name}.old{number if number > 1 else ''}")
        if not (candidate.exists() or candidate.is_symlink()):
            return candidate
        number += 1
