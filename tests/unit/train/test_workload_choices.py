"""Words that choose something are refused when nothing knows them: none falls through to a default."""

import pytest

from crpipe.campaign.records import EvaluationRecord
from crpipe.core.errors import ConfigError, DataError
from crpipe.events.layout import Metric
from crpipe.report.evaluations import Evaluation
from crpipe.train.ranks import find_device
from crpipe.train.schedule import Schedule
from crpipe.train.workload import OptimizerSpec


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: OptimizerSpec("adamw", 1e-3),
            "OptimizerSpec: kind: 'adamw' is not known; .*did you mean adam",
        ),
        (lambda: OptimizerSpec("Adam", 1e-3), "known: adam, sgd; did you mean adam"),
        (lambda: OptimizerSpec("SGD", 1e-3), "did you mean sgd"),
        (lambda: OptimizerSpec("lion", 1e-3), "'lion' is not known; known: adam, sgd"),
        (lambda: OptimizerSpec("", 1e-3), "'' is not known"),
        (lambda: OptimizerSpec("adam", 1e-3, momentum=0.9), "adam has no momentum"),
        (lambda: OptimizerSpec("sgd", 1e-3, betas=(0.5, 0.9)), "sgd has no betas"),
        (lambda: Schedule(kind="cosin"), "Schedule: kind: 'cosin' is not known; .*did you mean cosine"),
        (lambda: Schedule(kind="onecycle"), "did you mean one_cycle"),
        (
            lambda: Metric("r", "r", better="higher"),
            "Metric r: better: 'higher' is not known; .*did you mean high",
        ),
        (lambda: Metric("r", "r", better=""), "'' is not known; known: low, high, near"),
        (lambda: find_device("gpu"), "'gpu' is not known; known: auto, cpu, cuda"),
        (lambda: find_device("cud"), "did you mean cuda"),
    ],
)
def test_an_unknown_word_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_metrics_file_with_an_unknown_direction_is_damaged(tmp_path):
    metrics = ({"name": "r", "title": "r", "better": "best"},)
    record = EvaluationRecord(checkpoint="0", metrics=metrics, values={"r": 1.0})
    with pytest.raises(DataError, match="damaged .*'best' is not known"):
        Evaluation.of(record, tmp_path / "metrics.json")
