"""Options of what brokenlab offers, as its models have them."""

from hitlab.options import HitFilesOptions, HitPositionOptions
from tilelab.options import BeamTestOptions

NoRowsOptions = NoLayoutOptions = DoubleItemsOptions = StumblesOptions = ForgetsOptions = HitFilesOptions
NoScoreOptions = OtherOrderOptions = ScoreFailsOptions = CollateFailsOptions = HitPositionOptions
OtherTilesOptions = FallsSilentOptions = BeamTestOptions
