"""Generators of muon bundles: GAN and variational autoencoder. Importing this package is cheap: no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crpipe.workloads.muons.options import MuonGanOptions, MuonVaeOptions

if TYPE_CHECKING:
    from crpipe.workloads.muons.models.gan import MuonGan
    from crpipe.workloads.muons.models.vae import MuonVae

__all__ = ["MuonGan", "MuonGanOptions", "MuonVae", "MuonVaeOptions"]


def __getattr__(name: str) -> Any:
    """Import a workload on first use: reading a configuration must not cost torch's 3 s."""
    if name == "MuonGan":
        from crpipe.workloads.muons.models.gan import MuonGan  # noqa: PLC0415

        return MuonGan
    if name == "MuonVae":
        from crpipe.workloads.muons.models.vae import MuonVae  # noqa: PLC0415

        return MuonVae
    raise AttributeError(name)
