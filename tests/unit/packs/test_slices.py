"""The slices of a link prove themselves: `check` finds a gap, `status` shows how many there were."""

import json
import threading

import pytest

from checked import FIRST, Checked
from crpipe.campaign.campaign import Campaign
from crpipe.core.errors import ConfigError, SliceOver
from crpipe.core.signals import StopRequest
from crpipe.packs import archive
from crpipe.packs.links import pack_link
from crpipe.packs.results import unpack
from crpipe.packs.slices import SlicedJob, seconds_of, train_pack
from told import Told


@pytest.fixture(scope="module")
def sliced(tmp_path_factory):
    """A campaign whose first link was trained in slices of five steps."""
    folder = tmp_path_factory.mktemp("sliced")
    campaign = Checked(folder / "campaign", ("train.passes_per_link=12",))
    campaign.split(FIRST)
    pack_link(Campaign.open(campaign.config), FIRST, folder / "in.tar", Told())
    job = SlicedJob(folder / "in.tar", folder / "out.tar", str(folder / "state.tar"))
    asked = iter(range(1, 999))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopRequest, "reason", lambda _: "" if next(asked) % 3 else "SIGTERM")
        while not job.out.exists():
            try:
                train_pack(job, Told())
            except SliceOver:
                continue
    unpack(Campaign.open(campaign.config), job.out, Told())
    return campaign


def rows_of(campaign):
    return campaign.paths.slices(FIRST).read_text().splitlines(keepends=True)


def test_slices_that_follow_each_other_are_right(sliced):
    report = sliced.check(FIRST)
    assert not report.errors
    assert report.counts["slices"] == len(rows_of(sliced)) > 2
    line = next(line for line in sliced.crpipe("status").splitlines() if line.startswith("slices"))
    assert f"{len(rows_of(sliced))} on 1 host, {len(rows_of(sliced)) - 1} ended by a signal" in line


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: [*rows[:1], *rows[2:]], "slice 2 begins at step"),
        (lambda rows: [rows[0], *rows], "slice 2 begins at step 0"),
        (lambda rows: rows[:-1], "the last slice ended at step"),
        (
            lambda rows: [edited(rows[0], begun_with="0" * 64), *rows[1:]],
            "slice 1 begins at step 0 with 0",
        ),
        (lambda rows: [*rows[:-1], edited(rows[-1], left="0" * 64)], "the last slice ended at step"),
        (lambda rows: [*rows[:-1], rows[-1][:-9]], "damaged"),
    ],
)
def test_a_gap_between_slices_is_found(sliced, tmp_path, change, says):
    campaign = sliced.copy(tmp_path / "campaign")
    campaign.paths.slices(FIRST).write_text("".join(change(rows_of(campaign))))
    (finding,) = [each for each in campaign.check(FIRST).errors if "slices.jsonl" in each.path]
    assert says in finding.what


def edited(row, **fields):
    return json.dumps({**json.loads(row), **fields}) + "\n"


def test_a_duration_has_a_unit():
    assert [seconds_of(text) for text in ("90s", "30m", "1.5h", "2")] == [90, 1800, 5400, 120]
    for text in ("", "soon", "-3m", "0m", "3d"):
        with pytest.raises(ConfigError, match="not a duration; write for example 30m"):
            seconds_of(text)


def test_a_working_folder_is_deleted_before_another_job_begins_in_it(tmp_path, monkeypatch):
    begun, ended, seen, clear_tree = threading.Event(), threading.Event(), [], archive.clear_tree

    def later(path):
        begun.wait(0.2)
        return clear_tree(path)

    def second():
        with archive.working_folder(tmp_path / "out.tar", str) as work:
            begun.set()
            ended.wait(2)
            seen.append(work.is_dir())

    monkeypatch.setattr(archive, "clear_tree", later)
    waiting = threading.Thread(target=second)
    with archive.working_folder(tmp_path / "out.tar", str) as work:
        (work / "campaign").mkdir()
        waiting.start()
    ended.set()
    waiting.join()
    assert seen == [True]
    assert not any(tmp_path.iterdir())
