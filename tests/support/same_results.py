"""Two campaigns hold the same bytes, wherever bytes are promised."""

import json
import re
from hashlib import sha256

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from crpipe.campaign.split_record import LISTING
from crpipe.core.paths import FINISHED
from runs import LINKS

PRODUCTS = re.compile(
    r"results/(manifests|ledgers|shards|outliers|multiplicity)/|runs/[^/]+/(ranges|store)/"
    r"|/(metrics\.json|predictions\.parquet)$"
)
# What names the places and times of raw files, which may differ.
LISTINGS = re.compile(rf"results/manifests/|{FINISHED}/{LISTING}$")


def products(campaign, *, without=None):
    """Hash every file whose bytes are promised, but for names that ``without`` finds; metrics have times."""
    found = {
        name: sha256(data).hexdigest()
        for name, data in campaign.contents().items()
        if PRODUCTS.search(name) and not name.endswith(".jsonl") and not (without and without.search(name))
    }
    assert len(found) > 10
    return found


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
    """Assert that two campaigns hold the same files, with the same bytes wherever bytes are promised."""
    for link in LINKS:
        steps = steps_of(campaign, link)
        assert steps == sorted(set(steps)) == steps_of(reference, link)
    for steps in curves(campaign).values():
        assert steps == sorted(set(steps))
    assert products(campaign) == products(reference)
    assert {*campaign.contents()} == {*reference.contents()}
