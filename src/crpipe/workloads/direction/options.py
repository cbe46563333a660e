"""Options of the direction workloads (section ``model`` of the configuration)."""

from __future__ import annotations

from functools import partial
from typing import Literal, Self

from pydantic import model_validator

from crpipe.config.keys import Section, key

option = partial(key, scope="train")
FEATURES, PER_PULSE = 8, 3  # of one sensor, and of each of its pulses


class DirectionOptions(Section):
    """What all models of this workload share."""

    loss: Literal["von_mises_fisher", "angle"] = option(
        "von_mises_fisher",
        "minus the log of a von Mises-Fisher density, whose concentration kappa is the uncertainty, or the "
        "mean angle to the truth, without an uncertainty",
    )
    time: Literal["relative", "absolute"] = option(
        "relative",
        "times from the first pulse of the event, or from the file's zero, which may tell what only a "
        "simulation knows",
    )
    pulses_per_dom: int = option(
        16, "pulses of one sensor that a model sees, the first ones; all are counted", ge=1, le=1024
    )
    max_doms: int = option(256, "sensors of one event that a model sees, the first ones hit", ge=1)
    rotate: bool = option(
        default=False, meaning="turn each event by a random angle about the vertical axis in training"
    )
    rotations: int = key(
        1,
        "a prediction is the mean over so many turns about the vertical axis; may change later",
        "site",
        ge=1,
        le=64,
    )
    learning_rate: float = option(1e-3, "learning rate", gt=0)
    weight_decay: float = option(0.01, "decay of the weights (AdamW)", ge=0)


class TransformerOptions(DirectionOptions):
    """What both transformers share."""

    width: int = option(128, "width of a token", ge=8)
    layers: int = option(4, "blocks of attention and feed-forward network", ge=1)
    heads: int = option(8, "heads of the attention; they divide the width", ge=1)
    feedforward: int = option(256, "width of the feed-forward networks", ge=8)
    head: int = option(128, "width of the last layer before the direction", ge=8)
    dropout: float = option(
        0.0, "share of the attention that is left out in training", ge=0, lt=1, later=True
    )
    residual_scales: bool = option(
        default=False,
        meaning="before each block, scale the tokens and add the first ones, by learned factors",
        later=True,
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads: {self.heads} heads do not divide the width of {self.width}")
        return self


class FlatTransformerOptions(TransformerOptions):
    """A transformer whose tokens are the sensors of an event.

    The defaults have 0.5 million weights; width 256, layers 6, feedforward 1024, head 1024 have 5 million;
    width 384, layers 6, feedforward 1280, head 1024 have 10 million.
    """

    input: Literal["linear", "mlp", "none"] = option(
        "linear",
        "what turns the features of a sensor into a token: a linear layer, two with a GELU between them, or "
        "nothing but zeros after the features",
        later=True,
    )

    @model_validator(mode="after")
    def _features_fit(self) -> Self:
        least = FEATURES + PER_PULSE * self.pulses_per_dom
        if self.input == "none" and self.width < least:
            raise ValueError(
                f"input: none needs a width of at least {least} for {self.pulses_per_dom} pulses_per_dom, "
                f"found {self.width}"
            )
        return self


class HierarchicalTransformerOptions(TransformerOptions):
    """A transformer over the pulses of each sensor, whose means are the tokens of one over the sensors."""

    pulses_per_dom: int = option(
        128, "pulses of one sensor that a model sees, the first ones; all are counted", ge=1, le=1024
    )
    pulse_layers: int = option(2, "blocks of the transformer over the pulses of a sensor", ge=1)


class DeepSetOptions(DirectionOptions):
    """A network over single sensors, summed up by mean and maximum, and one over the sums."""

    hidden: int = option(96, "width of both networks", ge=8)
