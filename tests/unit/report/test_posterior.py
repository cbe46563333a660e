"""Several runs' generated events before one classifier, from the files of their evaluations."""

import numpy as np
import pytest

from crpipe.core.errors import DataError
from crpipe.report.posterior import ROWS, read_rows, render_posteriors, write_rows
from crpipe.statistics.classifier import LabelledRows


def rows(shift, seed, true_seed=0, events=400):
    """Two events in each group; the last one has no rows."""
    truth = np.random.default_rng(true_seed).normal(size=(events, 2))
    generated = np.random.default_rng([1, seed]).normal(shift, size=(events, 2))
    event = np.tile(np.arange(events), 2)
    real = np.repeat([True, False], events)
    return LabelledRows(
        np.concatenate([truth, generated]), real, event, np.arange(events + 1) // 2, np.ones(2 * events)
    )


def kept(tmp_path, **runs):
    for run, one in runs.items():
        (tmp_path / run).mkdir()
        write_rows(tmp_path / run, {"bundles": one, "events": one})
    return {run: tmp_path / run for run in runs}


def test_rows_are_read_as_they_were_written(tmp_path):
    one = rows(1.0, 2)
    folders = kept(tmp_path, one=one)
    read = read_rows(folders["one"] / ROWS)
    assert list(read) == ["bundles", "events"]
    for name in ("features", "real", "event", "weight"):
        assert np.array_equal(getattr(read["events"], name), getattr(one, name))
    assert np.array_equal(read["events"].group[one.event], one.group[one.event])


def test_the_best_run_is_named_where_it_is_seen(tmp_path):
    text = render_posteriors(kept(tmp_path, near=rows(0.0, 1), far=rows(2.0, 2))).splitlines()
    assert "-0.693" in text[0]
    assert text[1].split() == ["events", "near", "far", "best"]
    assert text[-1].split()[0] == "events"
    assert text[-1].endswith("  near")


def test_alike_runs_have_no_best(tmp_path):
    text = render_posteriors(kept(tmp_path, one=rows(1.0, 1), other=rows(1.0, 2)))
    assert text.splitlines()[-1].endswith("cannot tell")


def test_other_true_events_are_not_compared(tmp_path):
    folders = kept(tmp_path, one=rows(0.0, 1), other=rows(0.0, 2, true_seed=5))
    with pytest.raises(DataError, match="one, other: judged on other true events"):
        render_posteriors(folders)


def test_an_evaluation_without_rows_says_why(tmp_path):
    with pytest.raises(DataError, match="evaluate again"):
        render_posteriors({"one": tmp_path, "other": tmp_path})
