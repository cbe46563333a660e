"""Options of the muons workload (section ``model`` of the configuration)."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import model_validator

from crpipe.config.keys import Section, key

option = partial(key, scope="train")


class MuonGanOptions(Section):
    """What the generator, the critic and the multiplicity model are, and how they are trained."""

    features: Literal["radial", "cartesian"] = option(
        "radial",
        "muon features: log10 E and log10 radius with uniform azimuth, or log10 E, x, y (earlier system)",
    )
    hidden: int = option(64, "width of generator and critic", ge=4)
    critic_steps: int = option(3, "critic steps for each generator step", ge=1)
    penalty: Literal["pair_slope", "gradient", "none"] = option(
        "pair_slope",
        "what keeps the critic Lipschitz: slope over real/fake pairs, the classic gradient "
        "penalty, or nothing",
    )
    penalty_sides: Literal["one", "two"] = option(
        "one", "punish slopes above 1 only, or all that differ from 1"
    )
    penalty_weight: float = option(10.0, "weight of the penalty", ge=0)
    gp_every: int = option(
        1, "the gradient penalty is taken at random in one of so many losses, and weighs as much more", ge=1
    )
    gp_max_pairs: int = option(0, "most events in a gradient penalty; 0: all", ge=0)
    gp_sample_fraction: float = option(1.0, "share of the events in a gradient penalty", gt=0, le=1)
    optimizer: Literal["adam", "sgd"] = option("adam", "optimizer of generator and critic")
    momentum: float = option(0.0, "momentum of sgd", ge=0, lt=1)
    generator_learning_rate: float = option(3e-4, "learning rate of the generator", gt=0)
    critic_learning_rate: float = option(6e-4, "learning rate of the critic", gt=0)
    multiplicity_learning_rate: float = option(2e-3, "learning rate of the multiplicity model", gt=0)
    max_muons: int = option(
        32, "muons of one event that enter a training step, a random window of larger ones; 0: all", ge=0
    )

    critic_throttle_above: float = option(
        0.0,
        "Wasserstein gap beyond which the critic's learning rate is lowered, never raised; 0: never",
        ge=0,
    )
    critic_throttle_factor: float = option(0.5, "factor of each lowering", gt=0, lt=1)
    critic_throttle_least: float = option(0.05, "smallest share of the critic's learning rate", gt=0, le=1)

    @model_validator(mode="after")
    def _every_option_applies(self) -> MuonGanOptions:
        fields = type(self).model_fields
        given = {name for name, field in fields.items() if getattr(self, name) != field.default}
        gradient_only = sorted(given & {"gp_every", "gp_max_pairs", "gp_sample_fraction"})
        if gradient_only and self.penalty != "gradient":
            raise ValueError(f"{', '.join(gradient_only)} need penalty: gradient (it is {self.penalty})")
        if self.penalty == "none" and given & {"penalty_weight", "penalty_sides"}:
            raise ValueError("penalty_weight and penalty_sides need a penalty (it is none)")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum needs optimizer: sgd (it is {self.optimizer})")
        return self


class MuonVaeOptions(Section):
    """What density, encoder and multiplicity model are, and how they are trained."""

    hidden: int = option(64, "width for a muon; twice as much for an event", ge=4)
    latent: int = option(4, "numbers that all muons of an event share", ge=1)
    components: int = option(8, "components of the mixtures of energies and of radii", ge=1)
    learning_rate: float = option(2e-3, "learning rate of density and encoder", gt=0)
    multiplicity_learning_rate: float = option(2e-3, "learning rate of the multiplicity model", gt=0)
    max_muons: int = option(
        64, "muons of one event that enter a training step, a random window of larger ones; 0: all", ge=0
    )
