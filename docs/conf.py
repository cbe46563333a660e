"""The site of the documentation: `make docs` writes it to docs/_build/html."""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent / "src"), str(DOCS)]

from commands import manual  # noqa: E402 - of this folder
from typer.main import get_command  # noqa: E402

import crpipe  # noqa: E402 - from this clone
from crpipe.cli.app import app as verbs  # noqa: E402
from crpipe.config.loading import load_config  # noqa: E402
from crpipe.config.reference import key_table  # noqa: E402
from crpipe.core.files import write_text  # noqa: E402

project = "crpipe"
author = "The crpipe developers"
copyright = "2026, the crpipe developers"  # noqa: A001 - Sphinx calls it so
release = version = crpipe.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
# The tutorial is executed by tests/integration/test_tutorial.py, which has a campaign.
nb_execution_mode = "off"
myst_heading_anchors = 4  # as on GitHub
suppress_warnings = [
    "misc.highlighting_failure",  # files of several kinds in one block
]

html_theme = "furo"
html_title = "crpipe"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

# `name: meaning`, as the docstrings of this repository describe arguments and attributes.
_ARGUMENT = re.compile(r"(\w+(?:, \w+)*): (.*)")


def _arguments_as_list(_app, _what, _name, _object, _options, lines):
    """Turn the lines that describe arguments into list items, their continuations into the same paragraph."""
    found, listed = [], False
    for line in lines:
        match = _ARGUMENT.fullmatch(line)
        if match:
            found += [*([] if listed else [""]), f"* **{match[1]}**: {match[2]}"]
        elif listed and line.strip():
            found.append(f"  {line.strip()}")
        else:
            found.append(line)
        listed = bool(match) or (listed and bool(line.strip()))
    lines[:] = found


def setup(app):
    # Two pages are what the program prints; they are not committed.
    write_text(DOCS / "commands.md", manual(get_command(verbs)))
    write_text(DOCS / "configuration.md", key_table(load_config([DOCS.parent / "config" / "config.yaml"])))
    app.connect("autodoc-process-docstring", _arguments_as_list)
