"""``python -m benchmarks NAME [options]``: one benchmark; ``--list``: all names.

``all`` (``make bench``) runs every comparison with other systems, some twenty minutes in all; ``gpu``
(``make gpu``) the checklist for an NVIDIA GPU, in parts of at most ten minutes; ``table`` prints the table of
a folder again. Each benchmark runs in a process of its own, and is stopped when its time is over. What fails,
does not fit into the time, or needs what is missing is named below the table, and the next one runs. Rows and
what is printed go to ``--folder``. Other work on the machine makes all of it worth little: the load before
and after each is shown. ``--device cpu --small`` rehearses the checklist without a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import peers, suite, table
from benchmarks.catalogue import BENCHMARKS, PARTS
from benchmarks.runner import Run, busy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GROUPS = ("all", "gpu", "table")
# What a common processor has, for torch, oneDNN and MKL.
COMMON = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def function_of(name: str) -> Callable[..., None]:
    """Import the function of a benchmark, by its name or as MODULE:FUNCTION."""
    module, _, attribute = (BENCHMARKS[name].function if name in BENCHMARKS else name).partition(":")
    function: Callable[..., None] = getattr(importlib.import_module(module), attribute)
    return function


def add_options(parser: argparse.ArgumentParser, function: Callable[..., None]) -> None:
    """Add an option for each keyword argument of a benchmark; its default says its type."""
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        option, default = f"--{name.replace('_', '-')}", parameter.default
        shown = {"help": f"default: {default}", "default": default}
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(option, nargs="+", type=type(default[0]), **shown)
        else:
            parser.add_argument(option, type=type(default), **shown)


def parser_of(name: str) -> argparse.ArgumentParser:
    """Make the command line of a benchmark, or of a group."""
    function = None if name in GROUPS else function_of(name)
    module = sys.modules[function.__module__] if function else sys.modules[__name__]
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=f"{module.__doc__}\n{function.__doc__ if function else ''}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = BENCHMARKS[name].peers if name in BENCHMARKS else (*peers.PEERS,)
    parser.add_argument(
        "--peer", type=peers.named, nargs="+", default=[], metavar="NAME=PLACE", help=", ".join(known)
    )
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary directory")
    if name in GROUPS:
        parser.add_argument("--only", nargs="+", default=[], help="benchmarks whose names begin like this")
    if name == "gpu":
        parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
        parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
        parser.add_argument("--small", action="store_true", help="sizes of a rehearsal")
    if function:
        parser.add_argument("--noted", type=Path, help=argparse.SUPPRESS)
        parser.add_argument("--smallest", action="store_true", help="only show that it works")
        parser.add_argument("--load", type=int, default=0, help="endless loops that run beside it")
        parser.add_argument("--avx2", action="store_true", help="as on a common processor")
        add_options(parser, function)
    return parser


def run_one(name: str, words: Sequence[str]) -> None:
    """Run one benchmark in this process."""
    parser = parser_of(name)
    options = vars(parser.parse_args(words))
    given, folder, noted = dict(options.pop("peer")), options.pop("folder"), options.pop("noted")
    load = options.pop("load")
    if options.pop("avx2"):
        os.environ.update(COMMON)
    if options.pop("smallest"):
        parser.set_defaults(**BENCHMARKS[name].small)
        options = {key: value for key, value in vars(parser.parse_args(words)).items() if key in options}
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    print("\n".join(suite.machine(given)), flush=True)
    with tempfile.TemporaryDirectory(prefix="crpipe-benchmark-") as temporary:
        place = (folder or Path(temporary)).absolute()
        place.mkdir(parents=True, exist_ok=True)
        with busy(load):
            function_of(name)(Run(place, given, noted=noted), **options)


def run_group(name: str, words: Sequence[str]) -> int:
    """Run all comparisons or the checklist, or print the table of a folder."""
    options = parser_of(name).parse_args(words)
    folder = options.folder or Path(f"results/{'gpu' if name == 'gpu' else 'bench'}")
    chosen = {key for key in BENCHMARKS if not options.only or key.startswith(tuple(options.only))}
    given = dict(options.peer)
    if name == "table":
        print("\n".join(suite.table_of(folder)))
        return 0
    if name == "all":
        names = [key for key, each in BENCHMARKS.items() if key in chosen and each.comparison is not None]
        return suite.run_all(names, given, folder)
    failed, more = 0, {"device": options.device} | ({"small": True} if options.small else {})
    for part in options.part:
        names = [key for key in PARTS[part] if key in chosen]
        failed |= suite.run_all(names, given, folder, seconds=suite.PART_SECONDS, **more)
    return failed


def main() -> int:
    """Read the first word, and do what it names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, add_help=False)
    parser.add_argument("name", nargs="?", help="one of --list, all, gpu, table, or MODULE:FUNCTION")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--prepare", choices=peers.PEERS, help="print the commands that make a peer")
    words = sys.argv[1:]
    given = parser.parse_args(words if words[:1] in ([], ["--list"], ["--prepare"]) else words[:1])
    if given.prepare:
        print("\n".join(peers.PEERS[given.prepare].commands(given.prepare)))
    elif given.name in GROUPS:
        return run_group(given.name, words[1:])
    elif given.name:
        if given.name not in BENCHMARKS and ":" not in given.name:
            parser.error(f"{given.name}: expected one of {', '.join((*GROUPS, *BENCHMARKS))}")
        run_one(given.name, words[1:])
    else:
        print(__doc__)
        rows = [[name, each.measures, ", ".join(each.peers)] for name, each in BENCHMARKS.items()]
        print("\n".join(table.lines(["name", "what it measures", "peers"], rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
