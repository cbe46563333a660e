"""A campaign opened from Python: its tables say what its files say, batches hold every event, models work."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch
import yaml

import crpipe
from campaign_files import EVENTS, LOG_STEPS, METRICS, STEPS, linked, realistic
from counting import Counting, state_of
from crpipe.core.errors import CheckpointError, ConfigError, DataError, DeviceMemoryError, FormatError
from crpipe.core.files import read_json, write_json
from crpipe.train.checkpoints import CheckpointStore
from crpipe.workloads.muons import MuonGan, MuonGanOptions
from crpipe.workloads.muons.layout import BUNDLES
from named import READERS

ROW = {"energy_gev": [1e5, 1e6, 1e7], "zenith_rad": 0.5, "mass_number": 1.0, "depth_m": 1500.0}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = realistic(tmp_path_factory.mktemp("campaign"), 20)
    again = {"w1_time": 0.5, "w1_time_error": 0.1}
    made.evaluated(made.name(0), {"w1_time": 2.0, "w1_time_error": 0.2, "own": 3.0}, again=again)
    return made


@pytest.fixture(scope="module")
def campaign(files):
    return crpipe.open(files.paths.run_dir())


def checkpoint(files, link, name, options, model, layout=BUNDLES, **named):
    """Save the model of a link as its training would, with its receipt."""
    keys = {"train.workload": name, "source.reader": READERS["bundles"], **layout.identity()}
    keys |= {f"model.{key}": value for key, value in options.model_dump(mode="json").items()}
    saved = CheckpointStore(files.paths.store(link), "k").save_checkpoint(
        state_of(keys | named, model.state_dict())
    )
    receipt = read_json(files.paths.receipt(link))
    write_json(files.paths.receipt(link), receipt | {"checkpoint": saved.path.name, "sha256": saved.sha256})
    return saved.path


@pytest.fixture(scope="module")
def trained(files):
    torch.manual_seed(1)
    options = MuonGanOptions(hidden=8)
    path = checkpoint(
        files, files.name(1), "crpipe.workloads.muons:MuonGan", options, MuonGan(options).model()
    )
    return crpipe.open(files.paths.run_dir()).model(str(path))


def test_opens_by_the_folder_alone_and_finds_its_data(campaign, files):
    assert campaign.name == "default"
    assert campaign.paths.results == files.paths.results
    assert campaign.layout.item == "hits"
    assert str(files.paths.results) in repr(campaign)


def test_ranges_are_those_of_the_ledgers(campaign):
    frame = campaign.ranges
    trained = frame.filter(pl.col("state") == "trained")
    assert len(trained) == 11
    assert trained["events"].to_list() == [EVENTS] * 11
    assert trained["items"].to_list() == [9_400_000] * 11
    parts = ["train", "validation", "test", "outliers", "rejected"]
    assert trained.select(pl.sum_horizontal(parts))["train"].to_list() == [EVENTS] * 11
    assert frame["range"].is_sorted()
    assert frame.filter(pl.col("state") == "listed")["events"].to_list() == [None] * len(
        frame.filter(pl.col("state") == "listed")
    )


def test_links_are_those_of_the_receipts_and_of_the_training(campaign, files):
    frame = campaign.links
    assert frame["link"].to_list() == [files.name(index) for index in range(12)]
    assert frame["step"].to_list()[:2] == [STEPS, 2 * STEPS]
    assert frame["state"].to_list()[-1] == "interrupted"


def test_metrics_are_one_row_for_each_logged_step_of_the_chain(campaign):
    frame = campaign.metrics
    assert frame["step"].to_list()[:3] == [LOG_STEPS, 2 * LOG_STEPS, 3 * LOG_STEPS]
    assert len(frame) == 11 * STEPS // LOG_STEPS + STEPS // 4 // LOG_STEPS
    assert frame.schema["critic/loss"] == pl.Float64
    assert frame.schema["step"] == pl.Int64


def test_a_metric_that_some_steps_lack_is_null_there(tmp_path):
    made = realistic(tmp_path, 10)
    path = made.paths.store(made.name(0)) / "metrics.jsonl"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first[:-1] + ', "validation/critic/loss": 1}', *rest]) + "\n")
    column = crpipe.open(made.paths.run_dir()).metrics["validation/critic/loss"]
    assert column[0] == 1
    assert column.null_count() == len(column) - 1


def test_evaluations_have_value_error_and_floor(campaign, files):
    frame = campaign.evaluations
    row = frame.row(by_predicate=pl.col("metric") == "w1_time", named=True)
    assert (row["link"], row["value"], row["error"], row["floor"]) == (files.name(0), 2.0, 0.2, 0.5)
    assert (row["baseline"], row["declared"], row["title"]) == (None, True, "W1 of the time (ns)")
    assert frame.filter(pl.col("declared"))["metric"].to_list() == [metric.name for metric in METRICS]
    assert frame.filter(~pl.col("declared"))["metric"].to_list() == ["own"]


def test_a_configuration_adds_what_is_still_to_come(files, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(files.config.model_dump(mode="json")))
    whole = crpipe.open(files.paths.run_dir(), config=path)
    assert len(whole.ranges) == 20
    assert whole.links["link"].to_list()[-1] == "outliers"
    path.write_text(yaml.safe_dump(files.config.model_dump(mode="json") | {"results": str(tmp_path)}))
    begun = crpipe.open(files.paths.run_dir(), config=path)
    assert begun.ranges["events"].null_count() == 20
    with pytest.raises(DataError, match=r"no data yet; run `crpipe run` first"):
        begun.shards()
    other = yaml.safe_load(path.read_text()) | {"run": "other"}
    path.write_text(yaml.safe_dump(other))
    with pytest.raises(ConfigError, match="run: other in .*mine.yaml, but the folder is .*default"):
        crpipe.open(files.paths.run_dir(), config=[path])


def test_links_of_several_ranges_and_rounds_keep_their_order(tmp_path):
    made = linked(tmp_path)
    frame = crpipe.open(made.paths.run_dir()).links
    assert frame["link"].to_list() == [link.name for link in made.campaign.chain.links[:3]]
    assert frame["best_value"].to_list() == [None, 0.125, None]
    assert frame["stopped"][0].startswith("no better")
    assert frame["ranges"].to_list()[1] == [made.name(2), made.name(3)]


def test_a_run_that_was_copied_alone_has_metrics_and_no_data(files, tmp_path):
    folder = tmp_path / "runs" / "default"
    folder.mkdir(parents=True)
    write_json(folder / "campaign.json", read_json(files.paths.run_config()))
    alone = crpipe.open(folder)
    assert alone.metrics.is_empty()
    assert alone.evaluations.is_empty()
    with pytest.raises(DataError, match=r"not found beside it.*results="):
        _ = alone.ranges
    assert len(crpipe.open(folder, results=files.paths.results).ranges) == 15


def test_other_data_are_refused(files, tmp_path):
    write_json(tmp_path / "campaign.json", {"seed": 2})
    with pytest.raises(DataError, match="not the data of"):
        crpipe.open(files.paths.run_dir(), results=tmp_path)
    with pytest.raises(DataError, match=r"campaign\.json: missing; name the folder of a run"):
        crpipe.open(tmp_path / "nothing")


def test_batches_hold_every_event_once(tmp_path, write_shards):
    made = realistic(tmp_path, 10)
    first = [[2, 0, 5] * 40]
    for index in range(2):
        folder = made.paths.shards(made.name(index))
        write_shards(folder, [first], first_id=1000 * index)
    batches = crpipe.open(made.paths.run_dir()).shards(
        ranges=[made.name(0), made.name(1)], batch_events=50, epochs=1
    )
    assert (batches.events, batches.items, len(batches)) == (240, 560, 5)
    for _ in range(2):  # each loop begins from the start
        found = [event for batch in batches for event in batch.columns["primary_minor_id"]]
        assert sorted(found) == [*range(120), *range(1000, 1120)]
    batch = next(iter(batches))
    owner = np.repeat(batch.columns["primary_minor_id"], batch.multiplicity)
    assert np.array_equal(batch.items[:, 0], owner.astype(np.float32))


def test_an_unknown_part_and_a_range_without_shards_are_refused(campaign):
    with pytest.raises(ConfigError, match="part 'bulk': unknown; legal: train, validation, test, outliers"):
        campaign.shards("bulk")
    with pytest.raises(DataError, match="crpipe split 0019000-0019999"):
        campaign.shards(ranges=["0019000-0019999"])
    with pytest.raises(ConfigError, match=r"^7000: not a range of this campaign"):
        campaign.shards(ranges="7000")
    with pytest.raises(ConfigError, match="batch_events: 0; it is at least 1"):
        campaign.shards(batch_events=0)


def test_generates_one_event_for_each_row_the_same_for_the_same_seed(trained):
    made = trained.generate(ROW)
    assert len(made) == 3
    assert made.items.shape == (made.multiplicity.sum(), 3)
    assert made.columns["energy_gev"].tolist() == [1e5, 1e6, 1e7]
    again = trained.generate(pl.DataFrame(ROW))
    assert np.array_equal(again.items, made.items)
    assert not np.array_equal(trained.generate(ROW, seed=2).items, made.items)
    assert trained.generate(ROW, multiplicity=4).multiplicity.tolist() == [4, 4, 4]
    assert trained.generate(ROW | {"n": [1, 0, 2]}, multiplicity="n").multiplicity.tolist() == [1, 0, 2]
    assert trained.generate(made, multiplicity="column").multiplicity.tolist() == made.multiplicity.tolist()
    predicted = trained.predict(made)
    assert predicted.columns["energy_gev"].tolist() == [1e5, 1e6, 1e7]
    frame = trained.frame(made)
    assert frame["muons_x_m"].list.len().to_list() == made.multiplicity.tolist()


def test_too_little_memory_of_a_gpu_says_what_to_do(trained, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    events = trained.generate(ROW)
    monkeypatch.setattr(MuonGan, "generate", full)
    with pytest.raises(DeviceMemoryError, match="give fewer rows at once"):
        trained.generate(ROW)
    with pytest.raises(DeviceMemoryError, match="give fewer events at once"):
        trained.predict(events)


def test_rows_that_cannot_be_used_are_refused(trained):
    with pytest.raises(FormatError, match="rows: no column depth_m"):
        trained.generate({name: value for name, value in ROW.items() if name != "depth_m"})
    with pytest.raises(FormatError, match="row 0: zenith_rad is 9"):
        trained.generate(ROW | {"zenith_rad": 9.0})
    with pytest.raises(FormatError, match="rows: none"):
        trained.generate({name: [] for name in ROW})
    with pytest.raises(ConfigError, match="multiplicity some: expected predicted, column, a number or a col"):
        trained.generate(ROW, multiplicity="some")
    with pytest.raises(FormatError, match="^rows: not columns of one length by name"):
        trained.generate(ROW | {"depth_m": [1500.0] * 2})


def test_a_workload_from_outside_needs_its_configuration(files, tmp_path):
    options = {"train": {"workload": "counting:Counting"}, "model": {}}
    tree = files.config.model_dump(mode="json")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree | {"train": tree["train"] | options["train"]}))
    kind = Counting.__init__.__globals__["CountingOptions"]()
    path = checkpoint(files, files.name(2), "counting:Counting", kind, Counting(kind).model())
    with pytest.raises(CheckpointError, match="names counting:Counting"):
        crpipe.open(files.paths.run_dir()).model(files.name(2))
    own = crpipe.open(files.paths.run_dir(), config=tmp_path / "mine.yaml").model(files.name(2))
    assert own.path == path
    gan = crpipe.open(files.paths.run_dir()).model(files.name(1))
    events = gan.generate(ROW, multiplicity=4)
    found = own.predict(events)
    assert found["count"].tolist() == [4, 4, 4]
    assert own.frame(events, found)["sum_gev"].len() == 3
    with pytest.raises(ConfigError, match=r"generates no events; use model\.predict"):
        own.generate(ROW)


def test_import_crpipe_is_light():
    light = "import sys, crpipe; print(sorted({'polars', 'torch', 'numpy', 'pydantic'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tables_and_batches_need_no_torch(files):
    code = f"""
import sys, crpipe
campaign = crpipe.open({str(files.paths.run_dir())!r})
campaign.ranges, campaign.links, campaign.metrics, campaign.evaluations
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
