"""What a checkpoint says of itself, read without torch and without its tensors."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from crpipe.core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_STATE = "/data.pkl"  # torch.save writes a zip file: plain values in this one, each tensor in its own
_LEFT_OUT = ("model", "average", "optimizers")


class _Tensor:
    """Takes the place of a tensor and of everything else that is not a plain value."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


class _PlainValues(pickle.Unpickler):
    """Reads plain values; what else a file names is neither imported nor called."""

    def find_class(self, module: str, name: str) -> Any:
        return OrderedDict if (module, name) == ("collections", "OrderedDict") else _Tensor

    def persistent_load(self, _: Any) -> Any:
        return _Tensor()


def read_notes(path: Path) -> dict[str, Any]:
    """Read the keys, counters and metrics of a checkpoint; raise CheckpointError when it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(_STATE)]
            with archive.open(names[0]) as file:
                state = _PlainValues(file).load()
    except (zipfile.BadZipFile, pickle.UnpicklingError, IndexError, EOFError, TypeError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of crpipe ({error})") from error
    if not isinstance(state, dict) or "counters" not in state:
        raise CheckpointError(f"{path}: not a checkpoint of crpipe")
    return {name: value for name, value in state.items() if name not in _LEFT_OUT}
