"""Gammas in the liquid xenon detector of MEG II, from its photosensors. Importing this is cheap: no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.workloads.xec.options import InpainterOptions, MaskedAutoencoderOptions, RegressorOptions

if TYPE_CHECKING:
    from crpipe.workloads.xec.models.masked import Inpainter, MaskedAutoencoder
    from crpipe.workloads.xec.models.regressor import Regressor

__all__ = [
    "Inpainter",
    "InpainterOptions",
    "MaskedAutoencoder",
    "MaskedAutoencoderOptions",
    "Regressor",
    "RegressorOptions",
]


def __getattr__(name: str) -> Any:
    """Import a workload on first use: reading a configuration must not cost torch's 3 s."""
    if name == "Regressor":
        from crpipe.workloads.xec.models import regressor  # noqa: PLC0415

        return regressor.Regressor
    if name in ("MaskedAutoencoder", "Inpainter"):
        from crpipe.workloads.xec.models import masked  # noqa: PLC0415

        return getattr(masked, name)
    raise AttributeError(name)
