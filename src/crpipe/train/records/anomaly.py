"""With train.detect_anomaly: an error that names the first operation whose gradient is not finite."""

from __future__ import annotations

import contextlib
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from crpipe.core.errors import TrainError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@contextlib.contextmanager
def named_anomaly(phase: str) -> Iterator[None]:
    """Turn what torch's anomaly detection finds in the block into a TrainError; nothing while it is off."""
    if not torch.is_anomaly_enabled():
        yield
        return
    with warnings.catch_warnings(record=True) as heard:  # torch warns with the traceback of the forward pass
        warnings.simplefilter("always")
        try:
            yield
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                raise
            raise TrainError(
                f"train.detect_anomaly: phase {phase}: {' '.join(str(error).split())}{_place(heard)}; "
                "correct the operation, or set train.detect_anomaly: false, which skips such steps"
            ) from error


def refuse_not_finite(phase: str, loss: Tensor) -> None:
    """Raise TrainError for a loss that is not finite, while anomaly detection is on."""
    if torch.is_anomaly_enabled() and not bool(torch.isfinite(loss)):
        raise TrainError(
            f"train.detect_anomaly: phase {phase}: the loss is {float(loss):g} before any gradient; look at "
            "the operations of its loss, or set train.detect_anomaly: false, which skips such steps"
        )


def _place(heard: list[warnings.WarningMessage]) -> str:
    """Name the file and line of the forward pass, from torch's warning."""
    frames = [frame for each in heard for frame in _FRAME.findall(str(each.message))]
    own = [frame for frame in frames if "/torch/" not in frame[0]] or frames
    if not own:
        return ""
    file, line = own[-1]
    return f" ({'/'.join(Path(file).parts[-2:])}, line {line})"
