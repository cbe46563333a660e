"""Options of what brokenlab offers, as its models have them."""

from hitlab.options import HitFilesOptions, HitPositionOptions
from tilelab.options import BeamTestOptions

NoRowsOptions = StumblesOptions = HitFilesOptions
NoScoreOptions = OtherOrderOptions = ScoreFailsOptions = HitPositionOptions
FallsSilentOptions = BeamTestOptions
