"""Readers, simulators and workloads by name: ``module:Name``, built from options of their own.

The options of ``package.module:Name`` are the model ``NameOptions``: in the module ``options`` beside
``module`` if there is one, else in ``module`` itself. A module ``options`` without torch lets a configuration
be checked without importing what it names.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

from crpipe.core.causes import plugin_errors
from crpipe.core.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

_EXAMPLES = {
    "source.reader": "mylab.hits:HitReader",
    "source.simulator": "mylab.simulation:HitSimulator",
    "train.workload": "mylab.model:HitWorkload",
    "train.loggers": "mylab.logging:HitLogger",
}
_SUFFIX = "Options"


def options_class(key: str, name: str) -> type[BaseModel] | None:
    """Find the model of the options of ``name``, the value of ``key``; None when it takes no options.

    Raise ConfigError when the name has another form or its module cannot be imported.
    """
    module, attribute = _split(key, name)
    class_name = attribute + _SUFFIX
    with _importing(key, name, module):
        spec = find_spec(module)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {module!r}")
        base = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
        beside = bool(base) and find_spec(f"{base}.options") is not None
        holder = import_module(f"{base}.options" if beside else module)
    model = getattr(holder, class_name, None)
    if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ConfigError(f"{key}: {holder.__name__}:{class_name} is not a pydantic model")
    return model


def free_options(model: type[BaseModel] | None) -> set[str]:
    """Name the options that no checkpoint depends on: those of scope ``site``."""
    return _options_with(model, "scope", "site")


def later_options(model: type[BaseModel] | None) -> set[str]:
    """Name the options that count only where they are not the default: campaigns are older than they."""
    return _options_with(model, "later", wanted=True)


def _options_with(model: type[BaseModel] | None, name: str, wanted: object) -> set[str]:
    extras = {key: field.json_schema_extra for key, field in (model.model_fields if model else {}).items()}
    return {key for key, extra in extras.items() if isinstance(extra, dict) and extra.get(name) == wanted}


def build(key: str, name: str, options: Mapping[str, Any], needed: Iterable[str]) -> Any:
    """Import ``name``, the value of ``key``, and build it from its options.

    Raise ConfigError when it cannot be imported, refuses its options, or lacks a member that is ``needed``.
    """
    module, attribute = _split(key, name)
    model = options_class(key, name)
    plugin = find_class(key, name)
    if model is None and hasattr(import_module(module), attribute + _SUFFIX):
        raise ConfigError(
            f"{key}: {module} holds {attribute}{_SUFFIX}, but a module `options` is beside it and holds all "
            "options: move the class there"
        )
    with plugin_errors(f"{key}: {name} cannot be built"):
        built = plugin() if model is None else plugin(model.model_validate(dict(options)))
    lacking = [member for member in needed if not hasattr(built, member)]
    if lacking:
        raise ConfigError(f"{key}: {name} has no {', no '.join(lacking)}; docs/workload.md shows an example")
    return built


def is_installed(name: str) -> bool:
    """Return whether the package of a class ``module:Name`` is here; nothing is imported."""
    return not name or find_spec(name.partition(":")[0].partition(".")[0]) is not None


def find_class(key: str, name: str) -> Any:
    """Import the class ``name``, a value of ``key``; raise ConfigError when it cannot be imported."""
    module, attribute = _split(key, name)
    with _importing(key, name, module):
        holder = import_module(module)
        plugin = getattr(holder, attribute, None)
    if not callable(plugin):
        raise ConfigError(f"{key}: {module} has no class {attribute}{_offer(holder, attribute)}")
    return plugin


def _split(key: str, name: str) -> tuple[str, str]:
    module, _, attribute = name.partition(":")
    if not name:
        raise ConfigError(f"{key}: not set; write module:Name, for example {_EXAMPLES[key]}")
    if not (module and attribute.isidentifier()):
        raise ConfigError(f"{key}: {name!r}: expected module:Name, for example {_EXAMPLES[key]}")
    return module, attribute


@contextlib.contextmanager
def _importing(key: str, name: str, module: str) -> Iterator[None]:
    try:
        with plugin_errors(f"{key}: {name}: {module} cannot be imported"):
            yield
    except PluginError as error:
        moved = renamed(getattr(error.__cause__, "name", None) or "")
        help_of = moved or "; is its package installed, or its folder in PYTHONPATH?"
        raise ConfigError(f"{error}{help_of}") from error


def renamed(dotted: str) -> str:
    """Return the new name of a key, or of a module, that an earlier version had."""
    text = files("crpipe.config").joinpath("renamed.yaml").read_text()
    new = yaml.safe_load(text).get(dotted)
    return f"; it is now called {new}" if new else ""


def _offer(module: ModuleType, class_name: str) -> str:
    """List the classes that a module offers, the nearest name first."""
    public = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    names = sorted(name for name in public if not name.endswith(_SUFFIX))
    near = difflib.get_close_matches(class_name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"; it offers {', '.join(names)}{hint}" if names else "; it offers no class"
