"""A trained model from a checkpoint file alone: it names the workload and its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from crpipe.config.names import free_options, options_class
from crpipe.core.errors import CheckpointError
from crpipe.split.readers import open_reader
from crpipe.train.checkpoints import checkpoint_file, load, verified
from crpipe.train.workload import open_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import Tensor, nn

    from crpipe.core.paths import Paths
    from crpipe.events.tables import Tables
    from crpipe.split.readers import Reader
    from crpipe.train.workload import Workload

_MAX_NAMES = 8
_OTHER_VERSION = "use the version that trained it, or train again"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A workload with its trained model, averaged weights in place, ready to predict.

    name: the workload, as module:Name.
    """

    path: Path
    name: str
    workload: Workload
    model: nn.Module
    checkpoint: dict[str, Any]
    sha256: str


def open_checkpoint(
    path: Path,
    device: str | torch.device = "cpu",
    tables: Tables | None = None,
    table_keys: Mapping[str, Any] | None = None,
    use_options: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Load a checkpoint, or the one that a receipt points to.

    tables, table_keys: the campaign's copies of the side tables, and their hashes. use_options: values of
    options that no checkpoint depends on, such as how often a prediction is repeated. Raise CheckpointError
    when the checkpoint is damaged, when its weights or options are those of another version, or when it was
    trained with other side tables; ConfigError when a table that the workload needs is missing.
    """
    saved = verified(checkpoint_file(path))
    checkpoint = load(saved.path)
    keys = checkpoint["keys"]
    _refuse_other_tables(saved.path, keys, table_keys or {})
    name = keys["train.workload"]
    workload = open_workload(name, _options(saved.path, name, keys, use_options or {}), tables or {})
    model = workload.model()
    weights = {**checkpoint["model"], **checkpoint["average"]}
    _refuse_other_weights(saved.path, model.state_dict(), weights)
    model.load_state_dict(weights)
    return LoadedModel(saved.path, name, workload, model.to(device).eval(), checkpoint, saved.sha256)


def find_checkpoint(asked: str, paths: Paths, links: Callable[[], Sequence[str]]) -> Path:
    """Find what ``--checkpoint`` names: ``best``, ``latest``, a link, ``LINK.best``, or else a path.

    ``links`` gives the names of the chain's links, in order. Raise CheckpointError for a name without a
    checkpoint.
    """
    newest = {"best": paths.best_receipt, "latest": paths.receipt}.get(asked)
    if newest is not None:
        made = [newest(link) for link in reversed(links()) if newest(link).exists()]
        if made:
            return made[0]
        how = "set train.keep_best" if asked == "best" else "train a link"
        raise CheckpointError(f"--checkpoint {asked}: the run {paths.run} has none yet; {how} first")
    if "/" not in asked and paths.receipt(asked).exists():
        return paths.receipt(asked)
    if Path(asked).suffix in {".pt", ".json"}:
        return Path(asked)
    raise CheckpointError(
        f"--checkpoint {asked}: neither a trained link of the run {paths.run} nor a file; legal: best, "
        "latest, a link such as 0000000-0000999, LINK.best, or the path of a checkpoint or receipt"
    )


def open_its_reader(trained: LoadedModel) -> Reader:
    """Open the reader of the raw files that a checkpoint was trained on.

    Raise CheckpointError when its layout is not that of the training data any more.
    """
    keys = trained.checkpoint["keys"]
    if "source.reader" not in keys:
        raise CheckpointError(f"{trained.path}: does not name the reader of its raw files; {_OTHER_VERSION}")
    reader = open_reader(keys["source.reader"], nested(keys, "reader."))
    own = reader.layout.identity()
    changed = [name for name in sorted(own) if name in keys and keys[name] != own[name]]
    if changed:
        lines = [f"  {name}: checkpoint {keys[name]!r}, reader {own[name]!r}" for name in changed]
        raise CheckpointError(
            "\n".join([f"{trained.path}: {keys['source.reader']} has another layout now:", *lines])
        )
    return reader


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


def _refuse_other_weights(path: Path, own: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Raise CheckpointError naming what is missing, unexpected, or of another shape."""
    wrong = [f"missing {name}" for name in sorted(own.keys() - found.keys())]
    wrong += [f"unexpected {name}" for name in sorted(found.keys() - own.keys())]
    wrong += [
        f"{name} is {list(found[name].shape)}, the model has {list(own[name].shape)}"
        for name in sorted(own.keys() & found.keys())
        if own[name].shape != found[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - _MAX_NAMES} more" if len(wrong) > _MAX_NAMES else ""
        raise CheckpointError(
            f"{path}: its weights do not fit the model of this version of crpipe: "
            f"{', '.join(wrong[:_MAX_NAMES])}{more}; {_OTHER_VERSION}"
        )


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
