"""What an evaluation makes of the statistics of a workload's ``score``."""

import numpy as np

from crpipe.inference.measured import measure


def measured(scores, events, group=None):
    """Return numbers and errors by name; each event is a group of its own, unless ``group`` says so."""
    return measure(scores, np.arange(events) if group is None else group, "score").numbers
