"""The house as docs/architecture.md draws it: who may import whom, and what a user can hold on to."""

import ast
import functools
import graphlib
import inspect
import re
from pathlib import Path

import pytest
from typer.main import get_command

import crpipe
from crpipe.api.campaign import EVALUATIONS, LINKS, RANGES, CampaignRun
from crpipe.api.model import EventBatches, TrainedModel
from crpipe.cli.app import app
from crpipe.cli.verbs import PANEL as SHARED
from crpipe.config.loading import NAMED, load_config
from crpipe.config.reference import entries
from crpipe.report.notify import EVENTS

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src" / "crpipe"
CONFIG = load_config([REPOSITORY / "config" / "config.yaml"])
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}
# Rooms from the base upwards; a room imports from the rooms below it, and siblings never from each other.
LEVELS = (
    {"core"},
    {"config", "statistics"},
    {"events"},
    {"campaign"},
    {"source", "split", "loading"},
    {"report"},
    {"train"},
    {"inference", "check"},
    {"packs"},
    {"setup"},
    {"author"},
    {"contract"},
    {"workloads"},
    {"workflow"},
    {"cli"},
    {"api", "__main__"},
    {"crpipe"},
)
# The package's own module opens a campaign for users; all others import it for its version alone.
DOOR = "crpipe"
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
ONLY = {
    "pelicanfs": {"source"},
    "fsspec": {"source"},
    "aiohttp": {"source"},
    "torch": {"train", "inference", "author", "workloads", "contract"},
    "typer": {"cli"},
    "pytest": {"contract"},
    "snakemake": {"workflow"},  # `crpipe run` becomes Snakemake; the rules import it themselves
}
COMMAND_LINE = {"cli"}
MODULE_LINES = 500
FUNCTION_LINES = 80
FROZEN = Path(__file__).with_name("frozen")


@functools.cache
def text_of(module):
    return MODULES[module].read_text()


@functools.cache
def tree_of(module):
    """Parse a module, once for all tests."""
    return ast.parse(text_of(module))


@functools.cache
def nodes_of(module):
    """List every node of a module, from the outside inwards."""
    return list(ast.walk(tree_of(module)))


def all_nodes(kind):
    """Yield every node of one kind, with the module and line it is on as a person would look for it."""
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, kind):
                yield module, f"{module}, line {node.lineno}", node


@functools.cache
def imports(module, *, for_types=False):
    """List every imported module, those inside functions too; those for type checkers alone only if asked."""
    return list(_imports(module, for_types))


def _imports(module, for_types):
    nodes = nodes_of(module)
    blocks = [node for node in nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = set() if for_types else {child for block in blocks for child in ast.walk(block)}
    for node in nodes:
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in whole)


def part(module):
    """Name the room of a module: a package of siblings, or the module itself."""
    words = module.split(".")
    return words[1] if len(words) > 1 else "crpipe"


def test_imports_go_downwards_only():
    upwards = []
    for module in MODULES:
        own = part(module)
        for name in imports(module):
            other = part(name)
            if not name.startswith("crpipe") or other in (own, "crpipe"):
                continue
            if LEVEL_OF[other] >= LEVEL_OF[own]:
                upwards.append(f"{module} imports {name}")
    assert upwards == []


def test_no_module_imports_itself_by_a_detour():
    """Imports for type checkers count too: who reads one module of a circle has to read them all."""
    graph = {
        module: {name for name in imports(module, for_types=True) if name in MODULES} - {module}
        for module in MODULES
    }
    graph[DOOR] = {name for name in imports(DOOR) if name in MODULES} - {DOOR}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_heavy_libraries_stay_in_their_rooms():
    strays = [
        f"{module} imports {name}"
        for module in MODULES
        for name in imports(module)
        if part(module) not in ONLY.get(name.split(".")[0], {part(module)})
    ]
    assert strays == []


def test_only_the_command_line_prints():
    calls = [
        place
        for module, place, node in all_nodes(ast.Call)
        if part(module) not in COMMAND_LINE and getattr(node.func, "id", "") == "print"
    ]
    assert calls == []


def test_functions_and_modules_keep_a_readable_size():
    long = [
        f"{module}: {lines} lines, at most {MODULE_LINES}"
        for module in MODULES
        if (lines := len(text_of(module).splitlines())) > MODULE_LINES
    ]
    long += [
        f"{place}: {node.name} has {lines} lines, at most {FUNCTION_LINES}"
        for _, place, node in all_nodes(ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES
    ]
    assert long == []


def test_nothing_catches_everything():
    broad = []
    for _, place, node in all_nodes(ast.ExceptHandler):
        caught = ast.unparse(node.type) if node.type else "everything"
        stops = isinstance(node.body[-1], ast.Raise)
        if caught in ("everything", "Exception") or (caught == "BaseException" and not stops):
            broad.append(f"{place}: catches {caught}")
    assert broad == []


SECTIONS = {entry.dotted.rpartition(".")[2] for entry in entries(CONFIG) if entry.section}


def last_name(node):
    """Name the last part of an expression: ``b`` of ``a.b``, ``x`` of ``x``; those of getattr(a.b, …) too."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
        return last_name(node.args[0])
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def sections_of(module):
    """Map the names of one module that hold a section of the configuration to the names of their sections."""
    found = {name: {name} for name in SECTIONS}
    for node in nodes_of(module):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            name = node.arg if isinstance(node, ast.arg) else last_name(node.target)
            kind = ast.unparse(node.annotation).removesuffix("Section").lower()
            if kind in SECTIONS:
                found.setdefault(name, set()).add(kind)
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=True) if several else [(target, value)]
            for name, section in pairs:
                if isinstance(section, ast.Attribute) and section.attr in SECTIONS:
                    found.setdefault(last_name(name), set()).add(section.attr)
    return found


def keys_read(module):
    """List the (section, key) pairs that a module reads as attributes."""
    names = sections_of(module)
    for node in nodes_of(module):
        if isinstance(node, ast.Attribute):
            for section in names.get(last_name(node.value), ()):
                yield section, node.attr
            yield "", node.attr  # keys outside of sections
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            yield from ((section, "by name") for section in names.get(last_name(node.args[0]), ()))


def test_every_key_of_the_configuration_is_read_somewhere():
    read = {pair for module in MODULES for pair in keys_read(module)}
    files = [REPOSITORY / "workflow" / "Snakefile", *(REPOSITORY / "workflow").rglob("*.smk")]
    rules = "\n".join(path.read_text() for path in files)
    read |= set(re.findall(r"\b(?=(\w+)\.(\w+)\b)", rules))
    read |= {("", key) for name, key in read if name == "SETTINGS"}
    # `crpipe notify EVENT` reads the key of the event.
    read |= {("notify", event) for event in EVENTS if ("notify", "by name") in read}
    # resources.VERB.KEY is read for the verb that a rule names.
    asked = {section for section in SECTIONS if re.search(rf'\b\w+\("{section}"\)', rules)}
    read |= {(section, key) for section in asked for key in ("mem_mb", "runtime_minutes")}
    unread = []
    for entry in entries(CONFIG):
        parent, _, leaf = entry.dotted.rpartition(".")
        section = parent.rpartition(".")[2]
        if not entry.section and section not in NAMED and (section, leaf) not in read:
            unread.append(entry.dotted)
    assert unread == []


def verbs(command, prefix=""):
    """Yield every verb of the command line with its parameters, without the options that all verbs have."""
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from verbs(inner, f"{prefix}{name} ")
        else:
            own = [
                given for given in inner.params if given.name != "help" and given.rich_help_panel != SHARED
            ]
            words = [word for given in own for word in given.opts]
            yield " ".join([f"{prefix}{name}", *words])


def python_names():
    """Yield what `crpipe.open` gives, with the parameters of each method and the columns of each table."""
    yield f"crpipe.open{inspect.signature(crpipe.open)}".partition(" -> ")[0]
    for kind in (CampaignRun, EventBatches, TrainedModel):
        yield from (f"{kind.__name__}.{name}" for name in inspect.get_annotations(kind))
        for name, member in vars(kind).items():
            if not name.startswith("_"):
                given = list(inspect.signature(member).parameters)[1:] if callable(member) else []
                yield " ".join([f"{kind.__name__}.{name}", *given])
    for table, schema in (("ranges", RANGES), ("links", LINKS), ("evaluations", EVALUATIONS)):
        yield from (f"CampaignRun.{table}[{column}] {dtype}" for column, dtype in schema.items())


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("config-keys.txt", [entry.dotted for entry in entries(CONFIG) if not entry.section]),
        ("verbs.txt", list(verbs(get_command(app)))),
        ("python.txt", list(python_names())),
    ],
)
def test_a_change_of_what_users_hold_on_to_is_seen_in_review(name, now):
    frozen = (FROZEN / name).read_text().splitlines()
    assert sorted(now) == frozen, f"meant? then update tests/unit/frozen/{name} and CHANGELOG.md"


def test_ci_installs_what_the_marked_tests_need(pytestconfig):
    ci = (REPOSITORY / ".ci" / "run").read_text()
    markers = "\n".join(pytestconfig.getini("markers"))
    needed = " ".join(re.findall(r"\(apt-get install ([^)]*)\)", markers)).split()
    assert [package for package in needed if not package.startswith("-") and package not in ci] == []
