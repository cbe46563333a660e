"""Options of the xenon workloads (section ``model`` of the configuration)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from crpipe.config.keys import Section, key
from crpipe.workloads.xec.layout import TRUTHS, Face, Truth

option = partial(key, scope="train")


class CodecOptions(Section):
    """How photons and times become numbers about 1; stored in every checkpoint and graph."""

    photons: Literal["log1p", "sqrt", "linear"] = option(
        "log1p",
        "curve of the photons: log1p of photons / photons_scale, square root, or none; odd in all cases",
    )
    photons_scale: float = option(100.0, "photons at which log1p turns from a line into a logarithm", gt=0)
    photons_most: float = option(58_000.0, "photons that become 1", gt=0)
    time_scale_ns: float = option(
        5.0, "time that becomes 1, in ns, from when the event's light is expected", gt=0
    )


class EncoderOptions(Section):
    """What all models of this workload share: a codec, and an encoder of six faces."""

    codec: CodecOptions = option(CodecOptions(), "photons and times as the network sees them")
    patch: int = option(4, "sensors in one row or column of a patch on a rectangular face", ge=1, le=8)
    channels: int = option(32, "channels of a patch; twice as many after the faces are halved", ge=4)
    blocks: tuple[int, int] = option((1, 2), "ConvNeXt blocks before and after the faces are halved")
    hex_blocks: int = option(2, "blocks on top and bottom, whose sensors have six neighbours", ge=1)
    width: int = option(128, "width of the token of a face", ge=8)
    layers: int = option(2, "transformer layers over the six faces", ge=1)
    heads: int = option(4, "heads of the attention; they divide the width", ge=1)
    feedforward: int = option(256, "width of the feed-forward networks", ge=8)
    dropout: float = option(0.0, "dropout in the transformer", ge=0, lt=1)
    channel_dropout: float = option(
        0.0, "share of the valid sensors that training takes for dead, chosen for each event", ge=0, lt=1
    )
    learning_rate: float = option(1e-3, "learning rate", gt=0)
    weight_decay: float = option(0.01, "decay of the weights (AdamW)", ge=0)

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads: {self.heads} heads do not divide the width of {self.width}")
        return self


class TaskOptions(Section):
    """How one quantity is learned."""

    loss: Literal["smooth_l1", "l1", "mse", "gaussian_nll", "cosine"] = option(
        "smooth_l1", "loss; gaussian_nll also predicts an uncertainty; cosine: of an angle between directions"
    )
    beta: float = option(
        0.1,
        "smooth_l1: where it turns from a square into a line, in resolutions of the regression from which "
        "the network begins; gaussian_nll: power of the variance that weighs an event, 0: none",
        ge=0,
    )
    weight: float = option(1.0, "weight in the sum of all losses", gt=0)
    log: bool = option(default=False, meaning="learn the logarithm; only energy")


class RegressorOptions(EncoderOptions):
    """Energy, position, time and angle of a gamma; the defaults have 0.6 million weights."""

    tasks: dict[Truth, TaskOptions] = option(
        {"energy": TaskOptions(), "position": TaskOptions()}, f"what is learned, of {', '.join(TRUTHS)}"
    )
    balance: Literal["fixed", "learned"] = option(
        "fixed", "sum the losses by the tasks' weights, or learn an uncertainty of each task besides"
    )
    head: int = option(64, "width of the layers of each task", ge=8)
    photons_at_50_mev: float = option(
        85_000.0, "sum of all photons for an energy of 0.05 GeV, about: the unit of the light", gt=0
    )
    reweight: tuple[str, ...] = option(
        (),
        "event columns whose distribution is made flat by weights in the loss, for example energy_gev; "
        "their histograms come from the split (split.histograms)",
    )
    reweight_most: float = option(10.0, "largest weight of an event, over the mean weight", ge=1)
    dead_sensors: tuple[Annotated[int, Field(ge=0, le=4000)], ...] = key(
        (),
        "evaluate and predict take so many more valid sensors for dead, each number by itself, and fill all "
        "dead ones by each method, to compare: [0, 50, 200]; may change later",
        "site",
        later=True,
    )
    dead_list: str = key(
        "",
        "the same with the sensors of this file, a list as source.tables.dead; may change later",
        "site",
        later=True,
    )
    dead_inpainter: str = key(
        "",
        "checkpoint or receipt of the Inpainter that fills dead sensors, too; may change later",
        "site",
        later=True,
    )

    @model_validator(mode="after")
    def _tasks_fit(self) -> Self:
        if self.dead_inpainter and not (self.dead_sensors or self.dead_list):
            raise ValueError(
                "dead_inpainter: nothing asks for dead sensors; set dead_sensors, for example [0, 50, 200]"
            )
        if not self.tasks:
            raise ValueError(f"tasks: name at least one of {', '.join(TRUTHS)}")
        wrong = [name for name, task in self.tasks.items() if task.log and name != "energy"]
        if wrong:
            raise ValueError(f"tasks.{wrong[0]}.log: only energy has a logarithm; leave it out")
        others = [name for name, task in self.tasks.items() if task.loss == "cosine" and name != "angle"]
        if others:
            raise ValueError(f"tasks.{others[0]}.loss: cosine is for angle; choose another loss")
        negative = [name for name, task in self.tasks.items() if task.loss == "gaussian_nll"]
        if negative and self.balance == "learned":
            raise ValueError(
                f"balance: learned needs losses that cannot be negative, and tasks.{negative[0]}.loss is "
                "gaussian_nll, which knows its own scale; choose balance: fixed"
            )
        return self


class MaskedOptions(EncoderOptions):
    """What the masked autoencoder and the inpainter share."""

    time_weight: float = option(0.1, "weight of the times in the loss; 0: photons alone", ge=0)
    beta: float = option(0.02, "smooth L1: where it turns from a square into a line, encoded", gt=0)
    decoder: int = option(16, "channels of the decoders of the faces", ge=4)
    mask_flat: bool = option(
        False, "training hides sensors of all amounts of light alike, not mostly dark ones", later=True
    )
    photons_power: float = option(
        0.0,
        "a hidden sensor weighs by (photons + 1) to this power in the loss of the photons; 0: all alike",
        ge=0,
        le=2,
        later=True,
    )
    mask_faces: dict[Face, Annotated[float, Field(gt=0, lt=1)]] = option(
        {}, "training hides these shares of the named faces and nothing else: {inner: 0.1}", later=True
    )
    reweight_light: float = option(
        0.0,
        "an event weighs by how rare its sum of photons is, to this power: 1: a flat distribution of its "
        "logarithm, 0.5: half way; 0: all alike",
        ge=0,
        le=1,
        later=True,
    )
    balance: Literal["fixed", "learned"] = option(
        "fixed", "weigh the times by time_weight, or learn an uncertainty of photons and of times", later=True
    )
    averages: bool = key(
        default=True,
        meaning="evaluate and predict also estimate found sensors by two averages of their neighbours, "
        "which takes most of their time; may change later",
        scope="site",
    )


class MaskedAutoencoderOptions(MaskedOptions):
    """Learns an encoder without truth: most sensors are hidden, and found again from the rest."""

    mask: float = option(0.6, "share of the valid sensors that are hidden", gt=0, lt=1)


class InpainterOptions(MaskedOptions):
    """Finds what dead sensors would have seen."""

    mask_least: float = option(0.05, "least share of the valid sensors hidden in training", gt=0, lt=1)
    mask_most: float = option(0.2, "largest share", gt=0, lt=1)
    predict_mask: float = key(
        0.05,
        "share of the valid sensors that evaluate and predict hide and find again, to compare; "
        "may change later",
        "site",
        ge=0,
        lt=1,
    )
    predict_hidden: dict[Face, Annotated[int, Field(ge=1)]] = key(
        {},
        "evaluate and predict hide so many valid sensors of each face, others on none, in place of "
        "predict_mask: {inner: 10, outer: 1}; may change later",
        "site",
        later=True,
    )

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.mask_least > self.mask_most:
            raise ValueError(f"mask_least: {self.mask_least:g} is above mask_most, {self.mask_most:g}")
        if self.predict_hidden:
            from crpipe.workloads.xec.sensors import FACE_IDS  # noqa: PLC0415 - it reads tables

            for face, number in self.predict_hidden.items():
                if number >= (size := len(FACE_IDS[face])):
                    raise ValueError(
                        f"predict_hidden.{face}: {number}, but the face has {size} sensors, of which at most "
                        f"{size - 1} can be hidden"
                    )
        return self
