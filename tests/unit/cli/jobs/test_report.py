"""What the reports are given: plain values, the recorded layout before any other."""

import pytest

from campaign_files import LAYOUT, CampaignFiles
from crpipe.cli.jobs.report import configured_keys, notify_job, plan_job, view_of
from crpipe.core.errors import ConfigError
from crpipe.core.files import write_json
from crpipe.core.paths import OUTLIERS
from crpipe.events.layout import Layout

OTHER = Layout.from_description({**LAYOUT, "item": "others"})


def test_the_recorded_layout_comes_before_any_other(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    assert (view_of(files.config).item, view_of(files.config, OTHER).item) == ("items", "others")
    files.claim()
    assert view_of(files.config, OTHER).item == "hits"


def test_layout_and_side_tables_are_part_of_both_digests(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    files.claim()
    views = [view_of(files.config)]
    files.laid_out(fixed=3)
    views.append(view_of(files.config))
    row = {"uri": "u", "path": "tables/geometry", "size": 1, "sha256": "0" * 64}
    write_json(files.paths.tables(), {"geometry": row})
    views.append(view_of(files.config))
    assert len({view.data for view in views}) == len({view.fingerprint for view in views}) == 3
    assert views[0].chain.names == (files.name(0), files.name(1), OUTLIERS)
    assert views[1].chain.names == (files.name(0), files.name(1))


def test_a_plan_asks_the_reader_before_any_job(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2)
    assert plan_job(files.config).view.data
    unnamed = CampaignFiles(tmp_path, ranges=2, overrides=('source.reader=""',))
    with pytest.raises(ConfigError, match="source.reader"):
        plan_job(unnamed.config)


def test_a_notification_has_a_known_event_and_its_command(tmp_path):
    files = CampaignFiles(tmp_path, ranges=2, overrides=("notify.stall=cat", "notify.stall_minutes=2"))
    job = notify_job(files.config, "stall")
    assert (job.command, job.stall_s) == ("cat", 120.0)
    with pytest.raises(ConfigError, match="expected success, failure, stall"):
        notify_job(files.config, "done")


def test_keys_of_the_report_differ_where_the_user_set_them(tmp_path):
    keys = {each.name: each for each in configured_keys(CampaignFiles(tmp_path, ranges=2).config)}
    changed = {name for name, each in keys.items() if each.changed}
    assert changed == {
        "source.uri", "source.reader", "source.simulator", "train.workload", "results", "runs", "ranges.last",
        "source.disk_budget_gib",
    }  # fmt: skip
    assert keys["model.hidden"].value == keys["model.hidden"].default != ""
