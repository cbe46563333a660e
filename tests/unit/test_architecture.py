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
from crpipe.api.batches import EventBatches
from crpipe.api.campaign import CampaignRun
from crpipe.api.frames import EVALUATIONS, LINKS, RANGES
from crpipe.api.model import TrainedModel
from crpipe.cli.campaign import app
from crpipe.cli.options import PANEL as SHARED
from crpipe.config.docs import entries
from crpipe.config.loading import NAMED, load_config
from crpipe.report.status.notify import EVENTS

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
    {"config"},
    {"events"},
    {"source", "split", "loading", "report"},
    {"train"},
    {"check", "inference", "start"},
    {"workloads"},
    {"workflow"},
    {"cli"},
    {"api", "__main__"},
    {"crpipe"},
)
# Ties of the engine to one workload that are still to be opened; each line that goes away is a gain.
TIES = {
    (f"crpipe.{module}", f"crpipe.workloads.muons.{name}")
    for module, name in (
        ("config.loading", "simulator.options"),
        ("source.simulated", "simulator.files"),
        ("inference.export", "export.card"),
        ("inference.export", "export.graph"),
        ("inference.export", "export.provenance"),
        ("inference.export", "layout"),
        ("inference.export", "models.sampling"),
        ("inference.evaluate", "simulator.files"),
    )
}
# Imports that close a circle and are still to be turned around.
CIRCLES = set()
# The package's own module opens a campaign for users; all others import it for its version alone.
DOOR = "crpipe"
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
ONLY = {
    "pelicanfs": {"source"},
    "fsspec": {"source"},
    "aiohttp": {"source"},
    "torch": {"train", "inference", "workloads"},
    "typer": {"cli"},
    "snakemake": set(),
}
COMMAND_LINE = {"cli"}
FROZEN = Path(__file__).with_name("frozen")


@functools.cache
def nodes_of(module):
    """Parse a module; return its text and every node of its tree."""
    text = MODULES[module].read_text()
    return text, list(ast.walk(ast.parse(text)))


@functools.cache
def imports(module, *, for_types=False):
    """List every imported module, those inside functions too; those for type checkers alone only if asked."""
    return list(_imports(module, for_types))


def _imports(module, for_types):
    _, nodes = nodes_of(module)
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


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards_only(module):
    own = part(module)
    for name in imports(module):
        other = part(name)
        if not name.startswith("crpipe") or other in (own, "crpipe"):
            continue
        if (module, name) not in TIES:
            assert LEVEL_OF[other] < LEVEL_OF[own], f"{module} imports {name}"


def test_no_module_imports_itself_by_a_detour():
    """Imports for type checkers count too: who reads one module of a circle has to read them all."""
    graph = {
        module: {name for name in imports(module, for_types=True) if name in MODULES} - {module}
        for module in MODULES
    }
    graph[DOOR] = {name for name in imports(DOOR) if name in MODULES} - {DOOR}
    for module, name in CIRCLES:
        assert name in graph[module], f"{module} no longer imports {name}: take it out of CIRCLES"
        graph[module].discard(name)
    assert list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle


@pytest.mark.parametrize("module", MODULES)
def test_heavy_libraries_stay_in_their_rooms(module):
    for name in imports(module):
        library = name.split(".")[0]
        assert part(module) in ONLY.get(library, {part(module)}), f"{module} imports {library}"


@pytest.mark.parametrize("module", [name for name in MODULES if part(name) not in COMMAND_LINE])
def test_only_the_command_line_prints(module):
    calls = [node.func for node in nodes_of(module)[1] if isinstance(node, ast.Call)]
    assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "print"]


@pytest.mark.parametrize("module", MODULES)
def test_functions_and_modules_keep_a_readable_size(module):
    text, nodes = nodes_of(module)
    assert len(text.splitlines()) <= 500
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 80, node.name


@pytest.mark.parametrize("module", MODULES)
def test_nothing_catches_everything(module):
    for node in nodes_of(module)[1]:
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            stops = isinstance(node.body[-1], ast.Raise)
            assert caught not in ("everything", "Exception")
            assert stops or caught != "BaseException"


SECTIONS = {entry.dotted.rpartition(".")[2] for entry in entries(CONFIG) if entry.section}


def last_name(node):
    """Name the last part of an expression: ``b`` of ``a.b``, ``x`` of ``x``; those of getattr(a.b, …) too."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
        return last_name(node.args[0])
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def sections_of(tree):
    """Map the names of one module that hold a section of the configuration to the names of their sections."""
    found = {name: {name} for name in SECTIONS}
    for node in ast.walk(tree):
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


def keys_read(path):
    """List the (section, key) pairs that a module reads as attributes."""
    tree = ast.parse(path.read_text())
    names = sections_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            for section in names.get(last_name(node.value), ()):
                yield section, node.attr
            yield "", node.attr  # keys outside of sections
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            yield from ((section, "by name") for section in names.get(last_name(node.args[0]), ()))


def test_every_key_of_the_configuration_is_read_somewhere():
    read = {pair for path in SOURCE.rglob("*.py") for pair in keys_read(path)}
    files = [REPOSITORY / "workflow" / "Snakefile", *(REPOSITORY / "workflow").rglob("*.smk")]
    rules = "\n".join(path.read_text() for path in files)
    read |= set(re.findall(r"\b(?=(\w+)\.(\w+)\b)", rules))
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
    for line in pytestconfig.getini("markers"):
        for command in re.findall(r"\(apt-get install ([^)]*)\)", line):
            for package in command.split():
                assert package.startswith("-") or package in ci, f"{package} is missing in .ci/run"
