"""An evaluation reads its events once, in blocks, and writes numbers that need no torch to be read."""

import weakref
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from counting import Classified, Counting, Echo, Given, Listing, checkpoint_of, write_receipt
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.raw_files import Entry, write_manifest
from crpipe.core.errors import CheckpointError, ConfigError, PluginError
from crpipe.core.files import read_json, sha256, write_json
from crpipe.core.paths import EVALUATED, OUTLIERS
from crpipe.core.text import NullProgress
from crpipe.events.batch import Events, concatenate
from crpipe.events.layout import Metric
from crpipe.inference.evaluate import JoinedBlocks, checkpoint_to_evaluate, evaluate_link
from crpipe.report.figure_style import new_figure, save
from crpipe.report.posterior import ROWS, read_rows, render_posteriors
from told import Told
from toy import RANGES, make_events, toy_config, write_shards

FIRST, SECOND, _ = RANGES
STAGED = {"uri": "file:///data/{range}/*.parquet", "reader": "crpipe.workloads.muons.reading.parquet:Bundles"}


@pytest.fixture
def prepared(tmp_path):
    """Return what prepares an evaluation after the second range: (workload, events of each range)."""

    def prepare(kind=Counting, events=(100, 60), **sections):
        config = toy_config(tmp_path, train={"workload": f"counting:{kind.__name__}"}, **sections)
        campaign = Campaign.open(config)
        paths = campaign.paths
        for number, (name, count) in enumerate(zip(RANGES, events, strict=False)):
            block = make_events(count, number)
            block.columns["source_file"][:] = 1
            block.columns["primary_minor_id"][:] = 1000 * number + np.arange(count) // 4
            write_shards(paths.shards(name), [("validation-00000", "validation", block)], campaign.data)
        entries = [Entry(f"{letter}.parquet", f"file:///{letter}", 1, None) for letter in "ab"]
        write_manifest(paths.manifest(FIRST), entries)
        path = checkpoint_of(paths.store(SECOND), kind)
        write_receipt(paths.receipt(SECOND), SECOND, path, sha256="")
        return campaign

    yield prepare
    Counting.seen = staticmethod(lambda _: None)


def evaluate(campaign, progress=None):
    """Evaluate the second link; return the folder of the results."""
    evaluate_link(campaign, SECOND, progress or NullProgress())
    return campaign.paths.evaluation(SECOND)


def numbers(folder):
    return read_json(folder / "metrics.json")


def predictions(folder):
    return pq.read_table(folder / "predictions.parquet")


def test_numbers_are_written_with_their_declarations(prepared):
    said = Told()
    folder = evaluate(prepared(), said)
    found = numbers(folder)
    assert found["values"] == {"error": 0.0, "own": 3.0, "items": 0.0}
    assert found["metrics"][0] == {
        "name": "error",
        "title": "mean error",
        "unit": "m",
        "better": "low",
        "ideal": 0.0,
        "groups": 1,
        "needs": "",
        "tolerance": 0.0,
        "relative": False,
    }
    assert (found["step"], found["events"], found["part"]) == (7, 160, "validation")
    assert found["groups"] == 25 + 15
    assert "baseline" not in found
    assert "again" not in found
    (line,) = said.lines
    assert line == (
        "warning: counting:Counting.score: expected a finite rare, which `metrics` declares, found one that "
        "is not finite"
    )
    assert {path.name for path in folder.glob("[!.]*")} == {"metrics.json", "predictions.parquet"}


def test_figures_have_the_formats_that_are_asked_for(prepared, monkeypatch):
    numbers_of = Counting.score

    def score(self, truth, prediction, folder):
        save(new_figure(1.0), folder / "speed.svg")
        return numbers_of(self, truth, prediction, folder)

    campaign = prepared(evaluate={"formats": ["png"]})
    folder = campaign.paths.evaluation(SECOND)
    folder.mkdir(parents=True)
    (folder / "speed.pdf").touch()  # of an earlier evaluation
    monkeypatch.setattr(Counting, "score", score)
    assert {path.suffix for path in evaluate(campaign).glob("speed.*")} == {".svg", ".png", ".csv"}


def test_tensorboard_shows_the_titles(prepared):
    campaign = prepared()
    evaluate(campaign)
    events = EventAccumulator(str(campaign.paths.tensorboard()))
    events.Reload()
    (table,) = events.Tensors("evaluation/text_summary")
    text = table.tensor_proto.string_val[0].decode()
    assert "| mean error, in m | 0 |" in text
    assert "| own | 3 |" in text
    assert [item.value for item in events.Scalars("evaluation/own")] == [3.0]


def test_every_prediction_is_a_row_with_its_source(prepared):
    rows = predictions(evaluate(prepared())).to_pylist()
    assert len(rows) == 160
    assert list(rows[0]) == ["range", "source_file", "source_row", "path", "count", "sum_gev"]
    for number, name in enumerate((FIRST, SECOND)):
        mine = {row["source_row"]: row for row in rows if row["range"] == name}
        truth = make_events((100, 60)[number], number)
        assert [mine[row]["count"] for row in range(len(truth))] == truth.multiplicity.tolist()
        assert {row["path"] for row in mine.values()} == ({"b.parquet"} if name == FIRST else {None})


def test_the_key_of_the_layout_stands_beside_each_prediction(prepared):
    campaign = prepared()
    layout = replace(campaign.layout, key=("primary_minor_id",))
    table = predictions(evaluate(replace(campaign, known_layout=layout)))
    assert "primary_minor_id" in table.column_names


def test_every_block_draws_numbers_of_its_own(prepared, monkeypatch):
    seeds, predict = [], Counting.predict

    def recording(self, model, events, generator):
        seeds.append(generator.initial_seed())
        return predict(self, model, events, generator)

    monkeypatch.setattr(Counting, "predict", recording)
    evaluate(prepared(evaluate={"batch_events": 30}))
    assert len({*seeds}) == len(seeds) > 2


def test_blocks_fit_the_budget_and_are_not_kept(prepared):
    blocks, alive = [], []

    def look(events):
        blocks.append((len(events), len(events.items)))
        alive.append(weakref.ref(events.items))
        assert sum(each() is not None for each in alive) <= 2

    Counting.seen = staticmethod(look)
    folder = evaluate(
        prepared(load={"batch_size": 16, "max_items": 50}, evaluate={"events": 120, "batch_events": 30})
    )
    assert sum(events for events, _ in blocks) == numbers(folder)["events"] == 120
    assert max(events for events, _ in blocks) <= 30
    assert max(items for _, items in blocks) <= 50 + 12  # and the last event


def test_whole_events_are_scored_with_their_items_beside_a_second_simulation(prepared):
    source = {
        "uri": "synthetic://",
        "reader": "crpipe.workloads.muons.reading.parquet:Bundles",
        "simulator": "counting:Again",
    }
    folder = evaluate(prepared(Echo, source=source))
    found = numbers(folder)
    items = sum(int(make_events(count, number).multiplicity.sum()) for number, count in enumerate((100, 60)))
    assert found["values"] == {"items": items, "same": 1.0}
    assert found["again"] == {"items": items, "same": 0.0}
    assert found["metrics"] == []
    table = predictions(folder)
    assert table.column_names[4:] == ["guess", "multiplicity"]


def test_without_a_simulator_halves_of_the_truth_are_the_floor(prepared):
    found = numbers(evaluate(prepared(Echo, source=STAGED)))
    assert "again" not in found
    assert found["halves"]["same"] == 0.0
    assert 0 < found["halves"]["items"] <= found["values"]["items"] / 2
    assert found["differences"]["halves"]["same"] == 1.0


def test_a_generator_is_judged_with_the_true_multiplicities_too(prepared):
    folder = evaluate(prepared(Given, source=STAGED))
    assert numbers(folder)["values"]["given"] == 0.0  # its items are ones, those of the truth are not
    assert numbers(folder)["values"]["counts"] == 1.0


def test_what_classifiers_looked_at_is_kept_for_a_comparison(prepared):
    folder = evaluate(prepared(Classified, source=STAGED, evaluate={"events": 160}))
    assert numbers(folder)["values"] == {"same": 1.0}
    (rows,) = read_rows(folder / ROWS).values()
    assert rows.real.sum() == len(rows.real) / 2 == 160
    said = render_posteriors({"one": folder, "other": folder})
    assert said.splitlines()[-1].startswith("  energies  -0.")


def test_fresh_events_take_the_place_of_held_out_ones(prepared, monkeypatch):
    source = {
        "uri": "synthetic://",
        "reader": "crpipe.workloads.muons.reading.parquet:Bundles",
        "simulator": "counting:Again",
    }
    monkeypatch.setattr(Echo, "metrics", (Metric("muons", "mean of muons", groups=71),))
    told = Told()
    folder = evaluate(prepared(Echo, source=source, evaluate={"fresh_groups": 70, "batch_events": 16}), told)
    assert str(told).endswith("mean of muons needs 71 groups; raise evaluate.fresh_groups")
    found = numbers(folder)
    assert (found["part"], found["events"], found["groups"]) == ("fresh", 70, 70)
    table = predictions(folder)
    assert table["range"].unique().to_pylist() == ["fresh"]
    assert table["path"].null_count == table.num_rows == 70


def test_a_figure_that_is_not_plotted_again_is_not_left(prepared, monkeypatch):
    def plot(name):
        def score(self, truth, prediction, folder):
            (folder / f"{name}.svg").write_text("<svg></svg>")
            return {"error": 1.0}

        monkeypatch.setattr(Counting, "score", score)

    campaign = prepared()
    for name in ("first", "second", "second"):
        plot(name)
        folder = evaluate(campaign)
        assert [path.stem for path in folder.glob("*.svg")] == [name]
    monkeypatch.setattr(Counting, "score", lambda *_: {}["stopped"])
    with pytest.raises(PluginError):
        evaluate(campaign)
    assert (folder / "second.svg").exists()  # beside the numbers of its own evaluation


def test_lists_are_written_with_their_type_also_where_all_are_empty(prepared, monkeypatch):
    monkeypatch.setattr(Listing, "least", 6)  # few events have more items: half of the blocks have none
    folder = evaluate(prepared(Listing, evaluate={"batch_events": 20}))
    table = predictions(folder)
    assert table.schema.field("values").type == pa.list_(pa.float32())
    assert table.schema.field("places").type == pa.list_(pa.int16())
    sizes = [size if size > 6 else 0 for size in table["size"].to_pylist()]
    assert list(map(len, table["values"].to_pylist())) == sizes
    assert numbers(folder)["values"]["values"] == sum(sizes)


def test_an_error_of_the_workload_names_events_and_package(prepared):
    def strike(events):
        raise KeyError("colour")

    Counting.seen = staticmethod(strike)
    with pytest.raises(PluginError, match=r"counting:Counting.predict failed on \d+ events, the first from"):
        evaluate(prepared())


def test_without_held_out_events_there_are_files_without_numbers(prepared):
    """The training is done and must not count as failed; a sentence says why there is nothing."""
    said = Told()
    folder = evaluate(prepared(events=(0, 0)), said)
    found = numbers(folder)
    assert (found["values"], found["events"], found["groups"]) == ({}, 0, 0)
    table = predictions(folder)
    assert (table.num_rows, table.column_names) == (0, ["range", "source_file", "source_row", "path"])
    (line,) = said.lines
    assert line.startswith("no held-out events: nothing to compare with; for numbers, raise split.validation")


def test_the_test_part_judges_where_there_is_one(prepared):
    campaign = prepared()
    folder = campaign.paths.shards(SECOND)
    block = make_events(30, 5)
    remaining = ("validation-00000", "validation", make_events(60, 1))
    write_shards(
        folder, [remaining, ("test-00000", "test", block)], read_json(folder / "manifest.json")["data"]
    )
    results = evaluate(campaign)
    assert (numbers(results)["part"], numbers(results)["events"]) == ("test", 30)
    rows = predictions(results)
    assert {*rows["range"].to_pylist()} == {SECOND}


def test_held_out_outliers_are_judged_with_the_bulk(prepared):
    seen = []
    Counting.seen = staticmethod(lambda events: seen.extend(events.multiplicity.tolist()))
    campaign = prepared()
    folder = campaign.paths.outliers(FIRST)
    giants = make_events(3, 5)
    giants = Events(giants.columns, np.full(3, 200, np.uint32), np.ones((600, 3), np.float32))
    shards = [
        ("validation_outliers-00000", "validation_outliers", giants),
        ("outliers-00000", "outliers", giants),
    ]
    write_shards(folder, shards, read_json(folder / "manifest.json")["data"])
    results = evaluate(campaign)
    assert (numbers(results)["part"], numbers(results)["events"]) == ("validation", 163)
    assert seen.count(200) == 3
    rows = predictions(results)
    assert rows["range"].to_pylist() == [FIRST] * 103 + [SECOND] * 60


def test_outliers_alone_are_a_held_out_part(prepared):
    campaign = prepared(events=(0, 0))
    folder = campaign.paths.outliers(SECOND)
    data = read_json(folder / "manifest.json")["data"]
    write_shards(folder, [("test_outliers-00000", "test_outliers", make_events(4, 5))], data)
    results = numbers(evaluate(campaign))
    assert (results["part"], results["events"]) == ("test", 4)


def test_a_test_part_that_is_asked_for_and_missing_is_said(prepared):
    said = Told()
    folder = evaluate(prepared(split={"test_files": [1]}), said)
    assert numbers(folder)["part"] == "validation"
    assert any("validation events judge it" in line and "split.test_files" in line for line in said.lines)


def best_of(campaign, step=3):
    """Write a best checkpoint of the second range, with its receipt."""
    path = checkpoint_of(campaign.paths.store(SECOND), Counting)
    receipt = {"range": SECOND, "key": "k", "checkpoint": path.name, "sha256": "", "step": step}
    write_json(campaign.paths.best_receipt(SECOND), {**receipt, "metric": "fit/loss", "value": 1.0})


@pytest.mark.parametrize(
    ("name", "asked", "receipt", "folder"),
    [
        (SECOND, "", SECOND, SECOND),
        (SECOND, "latest", SECOND, SECOND),
        (SECOND, "best", f"{SECOND}.best", f"{SECOND}.best"),
        ("", "best", f"{SECOND}.best", f"{SECOND}.best"),
        ("", "latest", SECOND, SECOND),
        ("", SECOND, SECOND, SECOND),
        ("", f"{SECOND}.best", f"{SECOND}.best", f"{SECOND}.best"),
    ],
)
def test_the_checkpoint_that_is_judged(prepared, name, asked, receipt, folder):
    campaign = prepared()
    best_of(campaign)
    path = campaign.paths.receipt(receipt)
    assert checkpoint_to_evaluate(campaign, name, asked) == (SECOND, folder, path)
    evaluate_link(campaign, name, NullProgress(), checkpoint=asked)
    found = numbers(campaign.paths.evaluation(folder))
    assert (found["step"], found["events"]) == (7, 160)


def test_a_checkpoint_file_is_judged_in_a_folder_of_its_own(prepared, tmp_path):
    campaign = prepared()
    (path,) = campaign.paths.store(SECOND).glob("*.pt")
    assert checkpoint_to_evaluate(campaign, "", str(path)) == (SECOND, path.stem, path)
    elsewhere = tmp_path / path.name
    elsewhere.write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match="not of a link of this campaign; name the link"):
        evaluate_link(campaign, "", NullProgress(), checkpoint=str(elsewhere))
    evaluate_link(campaign, FIRST, NullProgress(), checkpoint=str(elsewhere))
    rows = predictions(campaign.paths.evaluation(path.stem))
    assert {*rows["range"].to_pylist()} == {FIRST}


@pytest.mark.parametrize("kind", ["event", "item"])
def test_a_checkpoint_of_other_events_is_refused(prepared, monkeypatch, kind):
    monkeypatch.setattr(Counting, f"{kind}_columns", ("energy_gev", "charge"))
    with pytest.raises(CheckpointError, match=f"Counting reads the {kind} columns charge, which events of t"):
        evaluate(prepared())


def test_the_workflow_judges_the_best_checkpoint_on_request(prepared):
    campaign = prepared(evaluate={"checkpoint": "best"})
    paths = campaign.paths
    receipt, best = paths.receipt(SECOND), paths.best_receipt(SECOND)
    assert checkpoint_to_evaluate(campaign, SECOND, "") == (SECOND, SECOND, receipt)  # there is no best one
    best_of(campaign)
    assert checkpoint_to_evaluate(campaign, SECOND, "") == (SECOND, SECOND, best)


def test_all_ranges_up_to_the_link_are_evaluated(prepared):
    campaign = prepared(events=(10, 10, 10))
    evaluate(campaign)
    (path,) = campaign.paths.store(SECOND).glob("*.pt")
    evaluate_link(campaign, OUTLIERS, NullProgress(), checkpoint=str(path))
    rows = [predictions(campaign.paths.evaluation(label)) for label in (SECOND, path.stem)]
    assert [{*table["range"].to_pylist()} for table in rows] == [{FIRST, SECOND}, {*RANGES}]
    with pytest.raises(ConfigError, match="not a link of this campaign"):
        evaluate_link(campaign, "0009000-0009999", NullProgress())


@pytest.mark.parametrize("asked", ["best", "newest", f"{FIRST}", "nowhere/x"])
def test_a_checkpoint_that_is_not_there(prepared, asked):
    campaign = prepared()
    with pytest.raises(
        CheckpointError, match="--checkpoint .*(none yet; set train.monitor|legal: best, lat)"
    ):
        evaluate_link(campaign, "", NullProgress(), checkpoint=asked)


@pytest.fixture
def evaluated(prepared):
    """An evaluation whose checkpoint was deleted since: campaign, folder, its declared files' bytes."""
    campaign = prepared()
    path = campaign.paths.receipt(SECOND)
    receipt = read_json(path)
    checkpoint = campaign.paths.store(SECOND) / receipt["checkpoint"]
    write_json(path, receipt | {"sha256": sha256(checkpoint)})
    folder = evaluate(campaign)
    checkpoint.unlink()
    return campaign, folder, {name: (folder / name).read_bytes() for name in EVALUATED}


def test_results_that_a_forced_job_lost_are_put_back_where_the_checkpoint_is_gone(evaluated):
    campaign, folder, files = evaluated
    for _ in range(2):
        for name in files:
            (folder / name).unlink()
        evaluate(campaign)
        assert {name: (folder / name).read_bytes() for name in files} == files
    evaluate(campaign)  # also where nothing was lost
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert not list(folder.glob(".*.part"))


def test_results_of_other_settings_or_of_another_checkpoint_are_not_put_back(evaluated):
    campaign, folder, files = evaluated
    (folder / "metrics.json").unlink()
    section = campaign.config.evaluate.model_copy(update={"events": 5})
    fewer = replace(campaign, config=campaign.config.model_copy(update={"evaluate": section}))
    with pytest.raises(CheckpointError, match=r"made with other settings \(events: 40000 then, 5 now\)"):
        evaluate(fewer)
    receipt = campaign.paths.receipt(SECOND)
    write_json(receipt, read_json(receipt) | {"sha256": "0" * 64})
    with pytest.raises(CheckpointError, match="missing; "):
        evaluate(campaign)
    assert (folder / ".finished" / "metrics.json").read_bytes() == files["metrics.json"]


def test_a_checkpoint_that_is_there_is_evaluated_again(prepared):
    campaign = prepared()
    first = (evaluate(campaign) / "metrics.json").stat().st_ino
    assert (evaluate(campaign) / "metrics.json").stat().st_ino != first


@pytest.mark.parametrize("items", [True, False])
def test_joined_blocks_are_the_blocks_end_to_end(items):
    blocks = [make_events(count, count) for count in (5, 1, 40)]
    joined = JoinedBlocks()
    for block in blocks:
        joined.add(block if items else replace(block, items=np.empty((0, 0), np.float32)))
    events, expected = joined.events(), concatenate(blocks)
    assert np.array_equal(events.multiplicity, expected.multiplicity)
    assert np.array_equal(events.columns["source_row"], expected.columns["source_row"])
    assert np.array_equal(events.items, expected.items if items else np.empty((0, 0)))


def test_a_joined_block_does_not_hold_the_window_that_it_was_cut_out_of():
    window = make_events(100, 1)
    held = [weakref.ref(array) for array in (window.multiplicity, window.items, *window.columns.values())]
    joined = JoinedBlocks()
    joined.add(window.part(10, 12))
    del window
    assert [array() for array in held] == [None] * len(held)
    assert len(joined.events()) == 2
