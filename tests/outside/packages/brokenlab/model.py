"""Workloads that do not fit."""

from hitlab.model import HitPosition


class NoScore:
    metrics = ()
    event_columns = ()
    item_columns = ()
    size = collate = model = phases = predict = None

    def __init__(self, options):
        pass


class OtherOrder(HitPosition):
    item_columns = ("time_ns", "detector", "charge_pe")


class ScoreFails(HitPosition):
    def score(self, truth, prediction, folder):
        return {"charge": truth.columns["charge_pe"].mean()}
