"""A workload is built with its side tables, and its errors name it and the events."""

import numpy as np
import pytest

from counting import Counting
from crpipe.core.errors import ConfigError, FormatError, PluginError
from crpipe.train.workload import WorkloadCall, build_workload, open_workload
from toy import make_events

NAME = "counting:Counting"


@pytest.fixture
def uses_tables(monkeypatch):
    read = {}
    monkeypatch.setattr(Counting, "needs", ("geometry",), raising=False)
    monkeypatch.setattr(Counting, "use", lambda _, tables: read.update(tables), raising=False)
    return read


def test_side_tables_are_handed_over_before_the_model_is_built(uses_tables, tmp_path):
    open_workload(NAME, {}, {"geometry": tmp_path, "other": tmp_path})
    assert uses_tables["geometry"] == tmp_path


@pytest.mark.usefixtures("uses_tables")
def test_a_missing_side_table_is_named_with_an_example(tmp_path):
    message = r"counting:Counting needs the side table geometry, .*\(other\).* source.tables: {geometry: /da"
    with pytest.raises(ConfigError, match=message):
        open_workload(NAME, {}, {"other": tmp_path})


def test_an_error_while_reading_a_table_names_the_workload(monkeypatch, tmp_path):
    monkeypatch.setattr(Counting, "needs", ("geometry",), raising=False)
    monkeypatch.setattr(Counting, "use", lambda *_: 1 // 0, raising=False)
    with pytest.raises(PluginError, match=r"counting:Counting.use failed: ZeroDivisionError"):
        open_workload(NAME, {}, {"geometry": tmp_path})


def test_what_is_no_workload_is_refused():
    with pytest.raises(ConfigError, match="counting:Again has no metrics, no event_columns"):
        build_workload("counting:Again", {})


def test_an_error_of_a_call_names_method_and_first_event():
    events, call = make_events(9, 4), Counting.__new__(Counting)
    message = r"counting:Counting.collate failed on 2 events, the first from file 4 row 7: KeyError: 'x'"
    with pytest.raises(PluginError, match=message), WorkloadCall(call, "collate", events, np.array([7, 2])):
        raise KeyError("x")
    with pytest.raises(FormatError), WorkloadCall(call, "collate", events):
        raise FormatError("passes unchanged")
