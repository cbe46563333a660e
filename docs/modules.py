"""Prints the tree of modules for docs/architecture.md, each with the first sentence of its docstring.

python docs/modules.py --write: puts it into the page.
"""

import ast
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE / "architecture.md"
SOURCE = HERE.parent / "src" / "crpipe"
BEGIN, END = "```text\nsrc/crpipe/\n", "```\n"
ROOMS = ["core", "config", "events", "campaign", "source", "split", "loading", "report", "train", "inference"]
ROOMS += ["check", "setup", "workloads", "workflow", "cli", "api", "contract"]


def tree():
    """Draw rooms in the order of their imports, and in each room its modules."""
    lines = list(modules(SOURCE, 1))
    for room in ROOMS:
        lines += folder(SOURCE / room, 1)
    return "".join(f"{line}\n" for line in lines)


def folder(path, depth):
    """Draw a folder and all that it holds."""
    yield line(f"{path.name}/", path / "__init__.py", depth)
    yield from modules(path, depth + 1)
    for inner in sorted(path.iterdir()):
        if (inner / "__init__.py").exists():
            yield from folder(inner, depth + 1)


def modules(path, depth):
    """Draw the modules of a folder."""
    for module in sorted(path.glob("*.py")):
        if module.name != "__init__.py":
            yield line(module.stem, module, depth)


def line(name, module, depth):
    """Write a name and what it is for."""
    text = ast.get_docstring(ast.parse(module.read_text()))
    first = " ".join(text.partition("\n\n")[0].split())
    return f"{'  ' * depth + name:<24} {first.partition('. ')[0].rstrip('.')}"


def page():
    """Return the page with its tree drawn anew."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}{tree()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        sys.stdout.write(tree())
