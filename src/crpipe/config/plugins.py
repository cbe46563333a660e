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
    "train.loggers": "mylab.logging:HitLogger; or wandb, or mlflow",
}
_SUFFIX = "Options"


def options_class(key: str, name: str) -> type[BaseModel] | None:
    """Find the model of the options of ``name``, the value of ``key``; None when it takes no options.

    Raise ConfigError when the name has another form or its module cannot be imported.
    """
    holder, class_name = _options_of(key, name)
    model = getattr(holder, class_name, None)
    if model is not None and not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ConfigError(f"{key}: {holder.__name__}:{class_name} is not a pydantic model")
    return model


def _options_of(key: str, name: str) -> tuple[ModuleType, str]:
    """Import the module that has to hold the options of ``name``; return it with the name of their class."""
    module, attribute = _split(key, name)
    with _importing(key, name, module):
        spec = find_spec(module)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {module!r}")
        base = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
        beside = bool(base) and find_spec(f"{base}.options") is not None
        return import_module(f"{base}.options" if beside else module), attribute + _SUFFIX


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
    if model is None and _takes_options(plugin):
        holder, class_name = _options_of(key, name)
        raise ConfigError(
            f"{key}: {name} takes options, but {holder.__name__} has no class {class_name}; write it there, "
            "as a pydantic model"
        )
    with plugin_errors(f"{key}: {name} cannot be built"):
        built = plugin() if model is None else plugin(model.model_validate(dict(options)))
    lacking = [member for member in needed if not hasattr(built, member)]
    if lacking:
        raise ConfigError(f"{key}: {name} has no {', no '.join(lacking)}; docs/workload.md shows an example")
    return built


def _takes_options(plugin: Any) -> bool:
    """Return whether a class cannot be built without an argument."""
    try:
        inspect.signature(plugin).bind()
    except TypeError:
        return True
    except ValueError:  # it has no signature
        return False
    return False


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
        example = f"for example {_EXAMPLES[key]}"
        raise ConfigError(f"{key}: not set; write module:Name, {example}; `crpipe init` lists what is there")
    if not (module and attribute.isidentifier()):
        raise ConfigError(f"{key}: {name!r}: expected module:Name, for example {_EXAMPLES[key]}")
    return module, attribute


@contextlib.contextmanager
def _importing(key: str, name: str, module: str) -> Iterator[None]:
    try:
        with plugin_errors(f"{key}: {name}: {module} cannot be imported"):
            yield
    except PluginError as error:
        hint = renamed(getattr(error.__cause__, "name", None) or "")
        if not hint and isinstance(error.__cause__, ModuleNotFoundError):
            hint = "; is its package installed, or its folder in PYTHONPATH?"
        raise ConfigError(f"{error}{hint}") from error


# Keys by the name that records, checkpoints and fingerprints have for them: what was begun before goes on.
# A configuration with the old name is refused, and told the new one.
WRITTEN_AS = {
    "source.prefetch_ranges": "source.look_ahead",
    "ranges.size": "ranges.step",
    "split.outlier_above": "split.threshold",
    "load.batch_size": "load.batch_events",
    "load.max_items": "load.budget_items",
    "train.passes": "train.rounds",
    "train.passes_per_link": "train.epochs",
    "train.gradient_clip_norm": "train.clip_norm",
    "train.schedule.shape": "train.schedule",
    **{
        f"train.schedule.{name}": f"train.{name}"
        for name in (
            *("warmup_steps", "decay_from", "decay_to", "one_cycle_start", "one_cycle_peak", "restarts"),
            *("plateau_after", "plateau_factor", "plateau_least", "horizon_ranges"),
        )
    },
    "train.ema_decay": "train.ema",
    "train.validate_every": "train.validate_steps",
    "train.monitor": "train.keep_best",
    "train.early_stopping_patience": "train.stop_after",
    "train.pretrained": "train.init_from",
}
CALLED_NOW = {old: new for new, old in WRITTEN_AS.items()}


def called_now(recorded: str) -> str:
    """Return the name that a configuration has for a key of a record."""
    return CALLED_NOW.get(recorded, recorded)


def renamed(dotted: str) -> str:
    """Return the new name of a key or module of before, or what to write where it has none."""
    names = yaml.safe_load(files("crpipe.config").joinpath("renamed.yaml").read_text())
    new = (CALLED_NOW | names).get(dotted)
    return f"; {'' if ' ' in new else 'it is now called '}{new}" if new else ""


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
