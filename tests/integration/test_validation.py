"""Validation, best checkpoints and early stop through the whole workflow, killed in training."""

import json
import time

import pytest
import yaml

from runs import LINKS, children, kill, verb_of
from same_results import products

pytestmark = pytest.mark.timeout(900)

TRAIN = {
    "validate_every": 2,
    "validate_events": 40,
    "monitor": "score_log_energy",
    "early_stopping_patience": 4,
}


def judged(split, folder):
    """Copy the campaign whose ranges are split, and ask for validation in its training."""
    campaign = split.copy(folder)
    path = campaign.folder / "config" / "tiny.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["train"] |= TRAIN
    path.write_text(yaml.safe_dump(tree))
    return campaign


def validations(campaign):
    """Read the numbers of every validation, which must be the same."""
    return [
        {name: value for name, value in json.loads(line).items() if name.startswith(("validation/", "step"))}
        for link in LINKS
        for line in (campaign.run / "store" / link / "metrics.jsonl").read_text().splitlines()
        if '"validation/' in line
    ]


def test_a_killed_campaign_with_validation_ends_with_the_same_bytes(split, tmp_path):
    calm, killed = judged(split, tmp_path / "calm"), judged(split, tmp_path / "killed")
    calm.snakemake("train_outliers")
    best = killed.run / "ranges" / f"{LINKS[1]}.best.json"

    with killed.running("train_outliers") as head:
        while head.poll() is None and not best.exists():
            time.sleep(0.02)
        for process in children(head):
            if verb_of(process) == "train":
                kill(process)
        head.wait()
    killed.snakemake("train_outliers")
    attempts = [row for row in killed.journal() if row["what"] == "start" and row.get("verb") == "train"]
    assert len(attempts) > len(LINKS)
    assert validations(killed) == validations(calm)
    assert products(killed) == products(calm)
    for link in LINKS:
        row = json.loads((calm.run / "ranges" / f"{link}.best.json").read_text())
        assert row["metric"] == TRAIN["monitor"]
        assert (calm.run / "store" / link / row["checkpoint"]).exists()
    assert "validation" in calm.crpipe("status").stdout
