"""Raw files through crpipe's own split: each event is in a shard, or in the ledger with its reason."""

import numpy as np
import pytest

from crpipe.core.errors import FormatError
from crpipe.core.files import read_json
from crpipe.events.shard_manifest import groups_of
from crpipe.events.shard_reader import Shards
from crpipe.workloads.xec.layout import SENSORS, sensor_layout
from crpipe.workloads.xec.reading.hdf5 import LIQUIDO
from liquido_files import make_liquido, write_liquido
from raw_files import NAME, campaign, raw_folder, split, write_staged
from root_files import make_sensors, make_truth, write_root

EVENTS = 12
OUTSIDE = {1: ("u_cm", -24.0), 4: ("v_cm", 68.0), 7: ("w_cm", -0.01)}


def xenon(root, *overrides):
    """A campaign of one range over two files; of the second three events are outside of the cut."""
    config = campaign(
        root,
        "source.reader=crpipe.workloads.xec.reading.root:RootFiles",
        "train.workload=crpipe.workloads.xec:Regressor",
        f"split.threshold={SENSORS}",
        *overrides,
    )
    for run in (1, 2):
        npho, time = make_sensors(EVENTS, seed=run)
        truth = make_truth(EVENTS, seed=run)
        truth["uvwTruth"][0] = [23.9, -67.9, 0]  # on the border, which is inside
        if run == 2:
            for row, (name, value) in OUTSIDE.items():
                truth["uvwTruth"][row, ("u_cm", "v_cm", "w_cm").index(name)] = value
        path = raw_folder(config) / f"gammas_{run:06}.root"
        write_root(path, npho, time, run=np.full(EVENTS, run, np.int32), **truth)
    write_staged(config)
    return config


def written(config, layout):
    """The (run, event) of all events in the shards, with their items."""
    found = {}
    for role in ("train", "validation"):
        for events in groups_of(Shards(config.paths().shards(NAME), role, layout), layout):
            items = events.items.reshape(len(events), SENSORS, 4)
            numbers = zip(events.columns["run"].tolist(), events.columns["event"].tolist(), strict=True)
            found |= dict(zip(numbers, items, strict=True))
    return found


def test_all_events_of_both_files_are_in_the_shards(tmp_path):
    config = xenon(tmp_path)
    split(config)
    found = written(config, sensor_layout())
    assert set(found) == {(run, event) for run in (1, 2) for event in range(EVENTS)}
    for run in (1, 2):
        npho, _ = make_sensors(EVENTS, seed=run)
        for event in range(EVENTS):
            assert np.array_equal(found[run, event][:, 0], np.where(npho[event] < 9e9, npho[event], 0))


def test_events_outside_of_the_fiducial_volume_are_in_the_ledger_with_their_reason(tmp_path):
    config = xenon(tmp_path, "reader.fiducial=true", "split.on_bad_event=reject", "split.max_rejected=1")
    split(config)
    ledger = read_json(config.paths().ledger(NAME))
    assert ledger["balanced"] is True
    assert ledger["events"]["listed"] == 2 * EVENTS
    assert ledger["events"]["rejected"] == len(OUTSIDE)
    assert [(row["file"], row["row"], row["items"]) for row in ledger["rejected"]] == [
        ("gammas_000002.root", row, SENSORS) for row in OUTSIDE
    ]
    reasons = [row["reason"] for row in ledger["rejected"]]
    assert reasons[0] == "u_cm is -24.0, not within -23.9 to 23.9 cm"
    assert all(reason.startswith(name) for reason, (name, _) in zip(reasons, OUTSIDE.values(), strict=True))
    found = written(config, sensor_layout(fiducial=True))
    kept = {(run, event) for run in (1, 2) for event in range(EVENTS) if run == 1 or event not in OUTSIDE}
    assert set(found) == kept


def test_without_reject_the_first_event_outside_fails_the_range_with_the_way_out(tmp_path):
    config = xenon(tmp_path, "reader.fiducial=true")
    with pytest.raises(FormatError) as error:
        split(config)
    assert "gammas_000002.root: row 1: u_cm is -24.0, not within -23.9 to 23.9 cm" in str(error.value)
    assert "split.on_bad_event: reject" in str(error.value)


def test_runs_stay_together_where_they_are_the_group(tmp_path):
    config = xenon(tmp_path, "reader.group=run", "split.validation_fraction=0.5")
    split(config)
    layout = sensor_layout(group="run")
    parts = {}
    for role in ("train", "validation"):
        for events in groups_of(Shards(config.paths().shards(NAME), role, layout), layout):
            for run in np.unique(events.columns["run"]).tolist():
                parts.setdefault(run, set()).add(role)
    assert sorted(parts) == [1, 2]
    assert all(len(roles) == 1 for roles in parts.values())


def test_a_file_of_liquido_is_split_into_all_its_hits(tmp_path):
    config = campaign(
        tmp_path,
        "source.reader=crpipe.workloads.xec.reading.hdf5:LiquidOFiles",
        "train.workload=crpipe.workloads.xec:Regressor",
        "split.threshold=10000",
    )
    counts = [*range(78, 100), 0, 2480]
    truth, hits = make_liquido(counts)
    write_liquido(raw_folder(config) / "electrons.h5", truth, hits)
    write_staged(config)
    split(config)
    assert read_json(config.paths().ledger(NAME))["items"]["listed"] == sum(counts)
    seen = 0
    for role in ("train", "validation"):
        for events in groups_of(Shards(config.paths().shards(NAME), role, LIQUIDO), LIQUIDO):
            starts = events.offsets()
            for index, number in enumerate(events.columns["event_no"].tolist()):
                own = hits[hits[:, 0] == number, 1:]
                assert np.array_equal(events.items[starts[index] : starts[index + 1]], own)
                seen += 1
    assert seen == len(counts)
