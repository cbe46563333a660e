import pytest

from campaign_files import CampaignFiles
from crpipe.core.files import read_json, write_json
from crpipe.core.paths import OUTLIERS
from crpipe.report.summary import WIDTH, render_summary


@pytest.fixture
def files(tmp_path):
    made = CampaignFiles(tmp_path, ranges=2)
    made.claim()
    for index in range(2):
        made.trained(made.split(index, quarantined=index, rejected=3 * index))
    made.consolidated(events=201)
    return made


def is_a_clean_box(text):
    lines = text.splitlines()
    return {len(line) for line in lines} == {WIDTH} and lines[0][0] + lines[-1][-1] == "╭╯"


def test_the_box_holds_the_sums_and_their_check(files):
    text = render_summary(files.config)
    assert is_a_clean_box(text)
    assert text.count("✓") == 3
    assert "80,000" in text
    assert "consolidated 201 = 201 in the ranges" in text
    assert f"{files.name(1)}/0000009.parquet: 12 bytes short of 41943040" in text


def test_an_unbalanced_sum_and_lost_outliers_are_marked(files):
    path = files.paths.ledger(files.name(0))
    ledger = read_json(path)
    ledger["events"]["train"] -= 1
    write_json(path, ledger)
    files.consolidated(events=200)
    text = render_summary(files.config)
    assert text.count("✗") == 2
    assert f"not {files.name(0)}" in text
    assert "consolidated 200 ≠ 201" in text


def test_the_last_link_gives_checkpoint_and_evaluation(files):
    files.evaluated(files.name(1), {"w1_log_energy": 9.0})
    files.trained(OUTLIERS)
    values = {"w1_log_energy": 0.0312, "w1_log_energy_error": 0.002, "auc_event": 0.53, "bins": 100.0}
    values |= {"floor/w1_log_energy": 0.022, "w1_radius_m": 0.4, "w1_radius_m/all": 0.5}
    files.evaluated(OUTLIERS, values)
    text = render_summary(files.config)
    assert is_a_clean_box(text)
    assert "store/outliers" in "".join(line.strip("│ ") for line in text.splitlines())
    assert "W1 of log10(energy / GeV) 0.031 ± 0.002 0.022" in " ".join(text.split())
    assert "0.530" in text
    assert "0.400" in text


def test_huge_sums_and_an_empty_campaign_keep_the_box(files, tmp_path):
    path = files.paths.ledger(files.name(0))
    ledger = read_json(path)
    ledger["muons"]["listed"] += 10**15
    ledger["muons"]["train"] += 10**15
    write_json(path, ledger)
    assert is_a_clean_box(render_summary(files.config))
    assert "1,000,000,018,800,000" in render_summary(files.config)
    text = render_summary(CampaignFiles(tmp_path / "empty", ranges=2).config)
    assert is_a_clean_box(text)
    assert "none yet" in text
    assert "not evaluated yet" in text
