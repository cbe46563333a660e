"""Two campaigns hold the same bytes, wherever bytes are promised."""

import json
import re

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from runs import LINKS


def steps_of(campaign, link):
    """Read the step numbers in one link's metrics."""
    path = campaign.run / "store" / link / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def curves(campaign):
    """Read every curve of TensorBoard: name -> steps, over the event files of the training."""
    accumulator = EventAccumulator(str(campaign.run / "tensorboard"))
    accumulator.Reload()
    return {
        tag: [event.step for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
        if not tag.startswith("evaluation/")
    }


def same_result(campaign, reference):
    """Assert that two campaigns hold the same bytes wherever bytes are promised."""
    assert campaign.receipts() == reference.receipts()
    for link in LINKS:
        steps = steps_of(campaign, link)
        assert steps == sorted(set(steps)) == steps_of(reference, link)
    for steps in curves(campaign).values():
        assert steps == sorted(set(steps))
    theirs, ours = reference.contents(), campaign.contents()
    made = [name for name in theirs if re.match("results/(ledgers|shards|outliers|multiplicity)/", name)]
    made += [name for name in theirs if name.endswith(("metrics.json", "predictions.parquet", ".pt"))]
    assert len(made) > 10
    assert [name for name in made if theirs[name] != ours.get(name)] == []
    assert {*ours} == {*theirs}
