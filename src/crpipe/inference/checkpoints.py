"""A trained model from a checkpoint file alone: it names the workload and its options."""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from torch.nn.modules.module import register_module_parameter_registration_hook

from crpipe.campaign.code import changes, used_code
from crpipe.campaign.declarations import is_declared
from crpipe.campaign.readers import Reader, open_reader
from crpipe.config.plugins import free_options, options_class
from crpipe.core.causes import is_plain, is_present, plugin_errors
from crpipe.core.errors import CheckpointError, ConfigError
from crpipe.core.files import sha256
from crpipe.core.paths import CODE, STORE, Paths
from crpipe.core.ranges import pick
from crpipe.train.checkpoints import load, refuse_not_finite
from crpipe.train.link_start import checkpoint_file, verified
from crpipe.train.workload import Workload, open_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import torch
    from torch import Tensor, nn

    from crpipe.campaign.campaign import Campaign
    from crpipe.campaign.records import Tables
    from crpipe.events.layout import Layout

_LOG = logging.getLogger(__name__)
_MAX_NAMES = 8
_OTHER_VERSION = "use the version that trained it, or train again"
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
# A module may build more than it keeps; options of another model build many times as much.
_MOST_TIMES, _MOST_MORE = 4, 1 << 22


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A workload with its trained model, averaged weights in place, ready to predict.

    name: the workload, as module:Name. allowed_plugins: see ``open_checkpoint``.
    """

    path: Path
    name: str
    workload: Workload
    model: nn.Module
    checkpoint: dict[str, Any]
    sha256: str
    allowed_plugins: Collection[str] = ()

    @property
    def run(self) -> Path:
        """The folder of its run, as long as it is there: runs/<run>/store/<link>/<checkpoint>."""
        return self.path.absolute().parent.parent.parent


def open_model(
    campaign: Campaign,
    checkpoint: Path,
    device: str | torch.device = "cpu",
    use_options: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Load a checkpoint with the side tables of a campaign; it may name workload and reader of that."""
    plugins = (campaign.config.train.workload, campaign.config.source.reader)
    return open_checkpoint(checkpoint, device, campaign.tables, campaign.table_keys, use_options, plugins)


def open_checkpoint(
    path: Path,
    device: str | torch.device = "cpu",
    tables: Tables | None = None,
    table_keys: Mapping[str, Any] | None = None,
    use_options: Mapping[str, Any] | None = None,
    allowed_plugins: Collection[str] = (),
) -> LoadedModel:
    """Load a checkpoint, or the one that a receipt points to.

    tables, table_keys: the campaign's copies of the side tables, and their hashes. use_options: values of
    options that no checkpoint depends on, such as how often a prediction is repeated. allowed_plugins:
    workload and reader of the configuration; beside them only packages that declare a workload are imported.
    Raise CheckpointError when the checkpoint is damaged, when its weights or options are those of another
    version, when it names another workload, or when it was trained with other side tables;
    ConfigError when a table that the workload needs is missing.
    """
    saved = verified(checkpoint_file(path))
    checkpoint = load(saved.path)
    keys = checkpoint["keys"]
    _refuse_other_tables(saved.path, keys, table_keys or {})
    name = _trusted(saved.path, keys, "train.workload", allowed_plugins)
    _warn_of_other_code(saved.path, str(checkpoint.get("range", "")))
    workload = open_workload(name, _options(saved.path, name, keys, use_options or {}), tables or {})
    weights = {**checkpoint["model"], **checkpoint["average"]}
    with _no_larger_than(saved.path, weights):
        model = workload.model()
    _refuse_other_weights(saved.path, model.state_dict(), weights)
    refuse_not_finite(saved.path, {each: weights[each] for each, _ in model.named_parameters()})
    with plugin_errors(f"{saved.path}: the model does not take its weights ({_OTHER_VERSION})"):
        model.load_state_dict(weights)
    model = model.to(device).eval()
    return LoadedModel(saved.path, name, workload, model, checkpoint, saved.sha256, allowed_plugins)


def _warn_of_other_code(path: Path, link: str) -> None:
    """Warn of a workload whose code is not the one that trained, where the checkpoint is in its run."""
    store = path.absolute().parent.parent
    if store.name == STORE:
        for line in changes(used_code(store.parent / CODE, link)):
            _LOG.warning("%s: %s; what it predicts may have changed with it", path, line)


def _trusted(path: Path, keys: Mapping[str, Any], key: str, allowed: Collection[str]) -> str:
    """Return the value of a key that names what is imported; raise CheckpointError for one from outside."""
    name = keys.get(key)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CheckpointError(f"{path}: {key} is {name!r}, not module:Name; {_OTHER_VERSION}")
    if name not in allowed and not is_declared(name):
        raise CheckpointError(
            f"{path}: names {name} as {key}, which is neither in the configuration nor in a package that "
            "declares a workload; a checkpoint does not decide what is imported: give the configuration of "
            f"its training (crpipe --config FILE …), or if you know that package, crpipe --set {key}={name} …"
        )
    return name


@contextmanager
def _no_larger_than(path: Path, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise CheckpointError when a model is built inside that is much larger than ``weights``.

    Called for each parameter when it has an address, but before its memory is used.
    """
    known, most = 0, _MOST_TIMES * sum(each.numel() for each in weights.values()) + _MOST_MORE

    def add(_module: nn.Module, name: str, value: Tensor | None) -> None:
        nonlocal known
        known += 0 if value is None else value.numel()
        if value is not None and known > most:
            raise CheckpointError(
                f"{path}: its options build a larger model than its weights are (from {name} on, "
                f"{list(value.shape)}); {_OTHER_VERSION}"
            )

    hook = register_module_parameter_registration_hook(add)
    try:
        with plugin_errors(f"{path}: no model can be built with its options ({_OTHER_VERSION})"):
            yield
    finally:
        hook.remove()


def find_checkpoint(name: str, paths: Paths, links: Callable[[], Sequence[str]]) -> Path:
    """Find what ``--checkpoint`` names: ``best``, ``latest``, a link or ``LINK.best``, or else a path.

    ``links`` gives the names of the chain's links, in order. Raise CheckpointError for a name without a
    checkpoint.
    """
    newest = {"best": paths.best_receipt, "latest": paths.receipt}.get(name)
    if newest is not None:
        for link in reversed(links()):
            if is_present(newest(link)):
                return newest(link)
        how = "set train.monitor" if name == "best" else "train a link"
        raise CheckpointError(f"--checkpoint {name}: the run {paths.run} has none yet; {how} first")
    if "/" not in name and is_present(paths.receipt(name)):
        return paths.receipt(name)
    if Path(name).suffix in {".pt", ".json"}:
        return Path(name)
    # The name of a link may be cut short, or be its number.
    with suppress(ConfigError):
        stem = name.removesuffix(".best")
        receipt = paths.receipt(pick(stem, links(), "link") + name.removeprefix(stem))
        if is_present(receipt):
            return receipt
    raise CheckpointError(
        f"--checkpoint {name}: neither a trained link of the run {paths.run} nor a file; legal: best, "
        "latest, a link such as 0000000-0000999, LINK.best, or the path of a checkpoint or receipt"
    )


def open_its_reader(trained: LoadedModel) -> Reader:
    """Open the reader of the raw files that a checkpoint was trained on.

    Raise CheckpointError when its layout is not that of the training data any more.
    """
    keys = trained.checkpoint["keys"]
    if "source.reader" not in keys:
        raise CheckpointError(f"{trained.path}: does not name the reader of its raw files; {_OTHER_VERSION}")
    name = _trusted(trained.path, keys, "source.reader", trained.allowed_plugins)
    reader = open_reader(name, nested(keys, "reader."))
    identity = reader.layout.identity()
    changed = [name for name in sorted(identity) if name in keys and keys[name] != identity[name]]
    if changed:
        lines = [f"  {name}: checkpoint {keys[name]!r}, reader {identity[name]!r}" for name in changed]
        raise CheckpointError(
            "\n".join([f"{trained.path}: {keys['source.reader']} has another layout now:", *lines])
        )
    return reader


def refuse_other_events(trained: LoadedModel, layout: Layout) -> None:
    """Raise CheckpointError when events of a layout lack columns that the model reads."""
    for kind, read, fields in (
        ("event", {*trained.workload.event_columns}, {field.name for field in layout.events}),
        ("item", {*trained.workload.item_columns}, {field.name for field in layout.items}),
    ):
        if missing := sorted(read - fields):
            raise CheckpointError(
                f"{trained.path}: {trained.name} reads the {kind} columns {', '.join(missing)}, which events "
                "of this campaign do not have; name a checkpoint of this campaign"
            )


def _refuse_other_tables(path: Path, keys: Mapping[str, Any], table_keys: Mapping[str, Any]) -> None:
    """Raise CheckpointError when a side table of the campaign is not the one of the training."""
    changed = [name for name in sorted(table_keys) if name in keys and keys[name] != table_keys[name]]
    if changed:
        names = ", ".join(name.removeprefix("tables.") for name in changed)
        raise CheckpointError(
            f"{path}: trained with another content of the side table {names}; use the campaign that trained "
            "it (--config), or train again"
        )


def _options(path: Path, name: str, keys: dict[str, Any], use: Mapping[str, Any]) -> dict[str, Any]:
    model = options_class("train.workload", name)
    free = free_options(model)
    options = nested(keys, "model.") | {key: value for key, value in use.items() if key in free}
    try:
        return model.model_validate(options).model_dump() if model else options
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, item["loc"])) or item["msg"] for item in error.errors())
        raise CheckpointError(
            f"{path}: its options do not fit {name} of this version of crpipe: {wrong}; {_OTHER_VERSION}"
        ) from error


def _refuse_other_weights(path: Path, expected: dict[str, Tensor], weights: dict[str, Tensor]) -> None:
    """Raise CheckpointError naming what is missing, unexpected, or of another shape or type."""
    wrong = [f"missing {name}" for name in sorted(expected.keys() - weights.keys())]
    wrong += [f"unexpected {name}" for name in sorted(weights.keys() - expected.keys())]
    others = []
    for name in sorted(expected.keys() & weights.keys()):
        weight, tensor = weights[name], expected[name]
        if weight.shape != tensor.shape:
            wrong.append(f"{name} is {list(weight.shape)}, the model has {list(tensor.shape)}")
        elif weight.dtype != tensor.dtype:
            others.append(f"{name} is {weight.dtype}, the model has {tensor.dtype}")
    wrong += others
    if wrong:
        more = f" and {len(wrong) - _MAX_NAMES} more" if len(wrong) > _MAX_NAMES else ""
        raise CheckpointError(
            f"{path}: its weights do not fit the model of this version of crpipe: "
            f"{', '.join(wrong[:_MAX_NAMES])}{more}; {_OTHER_VERSION}"
        )


def use_key(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what results depend on of options of use: a file that one names counts by its content, too."""
    files = {name: Path(each) for name, each in options.items() if isinstance(each, str) and each}
    hashes = {name: sha256(path) for name, path in files.items() if is_plain(path)}
    return {**options, **{name: [options[name], each] for name, each in hashes.items()}}


def nested(keys: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn dotted names that begin with ``prefix`` into a tree without it."""
    tree: dict[str, Any] = {}
    for name, value in keys.items():
        if name.startswith(prefix):
            *parents, leaf = name.removeprefix(prefix).split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = value
    return tree
