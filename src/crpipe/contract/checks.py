"""All checks of the contract, in the order in which they say most: first what the later ones build on."""

from crpipe.contract import batches, losses, predictions, readers, simulators, trainings
from crpipe.contract.cases import CHECKS

__all__ = ["CHECKS", "batches", "losses", "predictions", "readers", "simulators", "trainings"]
