"""What the page shows for a paper."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import crpipe
from campaign_files import CampaignFiles
from crpipe.core.files import write_json
from crpipe.report.compare import read_runs
from crpipe.report.page import render_page, write_page
from crpipe.report.paper import captions, input_charts, input_samples, origin, pictures

WORKLOADS = Path(crpipe.__file__).parent / "workloads"


@pytest.fixture
def files(tmp_path):
    """A campaign of two trained ranges, the first with shards on the disk and with an evaluation."""
    made = CampaignFiles(tmp_path, ranges=2, overrides=("run=mine",))
    made.claim()
    write_json(made.paths.run_config(), made.campaign.run_keys)
    for index in range(2):
        made.trained(made.split(index))
    made.evaluated(made.name(0), {"auc_event": 0.6, "auc_event_error": 0.01})
    for role, angles in (("train", np.linspace(0.1, 0.9, 900)), ("validation", np.linspace(0.2, 0.8, 100))):
        path = made.paths.shard_manifest(made.name(0)).parent / f"{role}-00000.events.parquet"
        columns = {"run": np.arange(len(angles), dtype=np.uint64), "angle_rad": angles.astype(np.float32)}
        pq.write_table(pa.table(columns), path)
    return made


def figure(made, name, text="<svg/>"):
    path = made.paths.evaluation(made.name(0)) / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("workload", ["muons", "direction", "xec"])
def test_every_figure_of_an_included_workload_has_a_caption(workload):
    texts = captions(f"crpipe.workloads.{workload}:Any")
    code = "".join(path.read_text() for path in (WORKLOADS / workload / "scoring").glob("*.py"))
    names = re.findall(r'"(\w+)": lambda|figures\["(\w+)"\] =|/ "(\w+)\.svg"', code)
    assert {"".join(each) for each in names} <= set(texts)
    assert all(text.endswith(".") and len(text.split()) > 5 for text in texts.values())


def test_a_package_without_captions_has_none():
    assert captions("nowhere.at_all:Mine") == captions("json:Mine") == {}


def test_inputs_are_those_of_each_part_without_names_of_events(files):
    samples = input_samples(files.campaign)
    assert {name: sorted(parts) for name, parts in samples.items()} == {"angle_rad": ["train", "validation"]}
    assert len(samples["angle_rad"]["train"]) == 900
    (chart,) = input_charts(files.campaign, samples)
    assert "validation (100 read)" in chart.svg
    assert "angle_rad [rad]" in chart.svg


def test_the_first_lines_name_data_checkpoint_and_code(files):
    lines = dict(origin(files.campaign, input_samples(files.campaign)))
    assert lines["events between"] == "angle_rad 0.1 to 0.9 rad"
    assert lines["sha256"] == "0" * 64
    assert lines["checkpoint"].endswith(f"store/{files.name(1)}/checkpoint-k-0.pt")
    assert lines["data"] == f"file:///data/{{range}}/*.parquet: 2 ranges, {files.name(0)} to {files.name(1)}"
    assert f"crpipe {crpipe.__version__}" in lines["page made by"]


def test_before_anything_ran_there_is_nothing_of_a_checkpoint(tmp_path):
    campaign = CampaignFiles(tmp_path, ranges=1).campaign
    assert input_samples(campaign) == {}
    assert [label for label, _ in origin(campaign, {})] == ["model", "data", "page made by"]


def test_figures_have_captions_and_links_from_where_the_page_is(files, tmp_path):
    for name in ("lateral.svg", "lateral.csv", "of_mine.svg"):
        figure(files, name)
    known, own = pictures(files.campaign, files.paths.evaluation(files.name(0)), tmp_path / "else")
    assert known.caption.startswith("Muons per event and area")
    assert [kind for kind, _ in known.links] == ["SVG", "CSV"]
    assert all((tmp_path / "else" / address).resolve().is_file() for _, address in known.links)
    assert (own.name, own.caption) == ("Of mine", "")
    assert [each.links for each in pictures(files.campaign, files.paths.evaluation(files.name(0)), None)] == [
        (), (),
    ]  # fmt: skip


def test_several_evaluations_show_how_the_numbers_changed(files):
    folder = files.paths.evaluation(files.name(0))
    assert list(pictures(files.campaign, folder, None)) == []
    files.evaluated(files.name(1), {"auc_event": 0.55, "auc_event_error": 0.01})
    (progress,) = pictures(files.campaign, folder, None)
    assert progress.name == "Progress over the links"
    assert progress.source.startswith("data:image/svg+xml")


def test_another_run_is_shown_beside_this_one(files, tmp_path):
    other = CampaignFiles(tmp_path, ranges=2, overrides=("run=other", "model.critic_learning_rate=1e-5"))
    write_json(other.paths.run_config(), other.campaign.run_keys)
    other.trained(other.name(0))
    other.evaluated(other.name(0), {"auc_event": 0.7, "auc_event_error": 0.01})
    for made, text in ((files, "<svg/>"), (other, "<svg></svg>")):
        figure(made, "lateral.svg", text)
    files.evaluated(files.name(1), {"auc_event": 0.6, "auc_event_error": 0.01})
    (files.paths.evaluation(files.name(1)) / "lateral.svg").write_text("<svg/>")
    page = render_page(files.state, others=read_runs(files.paths, ["other"]))
    assert "<h2>Beside other</h2>" in page
    assert "<h3>ranked by AUC of events, best near 0.5</h3>" in page
    assert "<td>model.critic_learning_rate</td>" in page
    assert "<td>0.700 ± 0.010</td>" in page
    assert page.count('alt="Lateral') == 2
    assert "Beside" not in write_page(files.state, tmp_path / "page.html").read_text()
