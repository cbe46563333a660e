"""The numbers of an evaluation that are declared, and how many held-out events each of them needs."""

from __future__ import annotations

from crpipe.events.metric import Metric

# A classifier needs rows of each side, and its error groups of each side in the half that was held out of its
# training; a distance needs muons in a bin of conditions.
FEWEST_ROWS = 200
FEWEST_GROUPS = 10
FEWEST_MUONS = 300  # real ones
FEWEST_GENERATED = 20  # with fewer, the bin counts as empty and has no distance


def _distance(name: str, title: str, unit: str = "") -> Metric:
    needs = f"{FEWEST_GROUPS} primaries, and {FEWEST_MUONS} muons in one bin of conditions"
    return Metric(name, title, unit, ideal=0.0, groups=FEWEST_GROUPS, needs=needs)


def _auc(name: str, title: str, rows: str) -> Metric:
    groups = 2 * FEWEST_GROUPS
    needs = f"{FEWEST_ROWS} {rows} of {groups} primaries, real and generated, and scikit-learn"
    return Metric(name, title, better="near", ideal=0.5, groups=groups, needs=needs)


METRICS: tuple[Metric, ...] = (
    _distance("w1_log_energy", "W1 of log10(energy / GeV)"),
    _distance("w1_radius_m", "W1 of radius", "m"),
    _auc("auc_event", "AUC of events", "events of 3 muons or more"),
    _auc("auc_multiplicity", "AUC of multiplicities", "events"),
    _auc("auc_full", "AUC of events with own multiplicities", "events of 1 muon or more"),
    _auc("auc_muon", "AUC of single muons", "muons"),
)
