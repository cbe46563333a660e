import json

from crpipe.events.layout import Metric


def test_a_declaration_survives_json():
    metric = Metric("angle", "mean opening angle", "deg", ideal=0.0)
    assert Metric(**json.loads(json.dumps(metric.describe()))) == metric
    assert metric.better == "low"
