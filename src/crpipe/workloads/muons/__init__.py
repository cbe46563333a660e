"""Generators of muon bundles: a conditional WGAN and a flow. Importing this package is cheap: no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.workloads.muons.options import MuonFlowOptions, MuonGanOptions

if TYPE_CHECKING:
    from crpipe.workloads.muons.models.flow import MuonFlow
    from crpipe.workloads.muons.models.gan import MuonGan

__all__ = ["MuonFlow", "MuonFlowOptions", "MuonGan", "MuonGanOptions"]


def __getattr__(name: str) -> Any:
    """Import a workload on first use: reading a configuration must not cost torch's 3 s."""
    if name == "MuonGan":
        from crpipe.workloads.muons.models.gan import MuonGan  # noqa: PLC0415

        return MuonGan
    if name == "MuonFlow":
        from crpipe.workloads.muons.models.flow import MuonFlow  # noqa: PLC0415

        return MuonFlow
    raise AttributeError(name)
