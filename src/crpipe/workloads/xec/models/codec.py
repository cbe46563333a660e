"""The one place where photons and times become what a network sees, and come back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from crpipe.workloads.xec.options import CodecOptions

CURVES = ("log1p", "sqrt", "linear")


class Codec(nn.Module):
    """Encodes photons and times; ``decode_*`` undoes ``encode_*`` for any finite value.

    Part of the model: its constants travel in the checkpoint and inside an exported graph, and weights that
    were trained with others are refused.
    """

    def __init__(self, options: CodecOptions) -> None:
        super().__init__()
        self.curve = options.photons
        self.scale = options.photons_scale
        self.most = options.photons_most
        self.time_scale = options.time_scale_ns
        constants = (float(CURVES.index(self.curve)), self.scale, self.most, self.time_scale)
        self.register_buffer("constants", torch.tensor(constants))

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Tensor],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Refuse weights that were trained with other constants: they would see other numbers."""
        there = state_dict.get(f"{prefix}constants")
        here = self.get_buffer("constants")
        if there is not None and not torch.equal(there.to(here), here):
            curve, *numbers = there.tolist()
            error_msgs.append(
                f"the weights were trained with model.codec: {{photons: {CURVES[int(curve)]}, photons_scale: "
                f"{numbers[0]:g}, photons_most: {numbers[1]:g}, time_scale_ns: {numbers[2]:g}}}; "
                "give the same"
            )
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def encode_photons(self, photons: Tensor) -> Tensor:
        """Encode photons, of any sign, as numbers that are 1 at photons_most."""
        if self.curve == "linear":
            return photons / self.most
        size = photons.abs()
        if self.curve == "sqrt":
            # The slope of a root at 0 is infinite, and infinity times the sign of 0 is not a number.
            share = (size / self.most).clamp_min(torch.finfo(torch.float32).tiny)
            return photons.sign() * share.sqrt()
        return photons.sign() * (size / self.scale).log1p() / math.log1p(self.most / self.scale)

    def decode_photons(self, encoded: Tensor) -> Tensor:
        """Give the photons that ``encode_photons`` encodes as these numbers."""
        if self.curve == "linear":
            return encoded * self.most
        size = encoded.abs()
        if self.curve == "sqrt":
            return encoded.sign() * size.square() * self.most
        return encoded.sign() * (size * math.log1p(self.most / self.scale)).expm1() * self.scale

    def encode_time(self, time: Tensor, start: Tensor) -> Tensor:
        """Encode times as distances from expected ones, ``start``, in ns both; shapes that broadcast."""
        return (time - start) / self.time_scale

    def decode_time(self, encoded: Tensor, start: Tensor) -> Tensor:
        """Give the times, in ns, that ``encode_time`` encodes as these numbers."""
        return encoded * self.time_scale + start
