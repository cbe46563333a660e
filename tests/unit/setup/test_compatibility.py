"""What does not fit together is refused before any job, in words; what fits is composed from one campaign."""

from dataclasses import replace

import pytest

from counting import Again, Counting, CountingOptions
from crpipe.config.loading import validate
from crpipe.core.errors import CheckpointError, ConfigError
from crpipe.events.layout import Field
from crpipe.setup.compatibility import check_columns, check_fit, check_simulator
from crpipe.train.workload import check_weighted
from crpipe.workloads.muons.layout import BUNDLES
from named import READERS, SIMULATOR
from plain_reader import HITS
from toy import RANGES

FIRST, SECOND, LAST = RANGES


def config_of(tmp_path, workload="counting:Counting", **source):
    source = {"uri": "synthetic://", "reader": READERS["bundles"], "simulator": "counting:Again", **source}
    return validate(
        {"results": str(tmp_path), "runs": str(tmp_path), "source": source, "train": {"workload": workload}}
    )


def test_what_fits_together_gives_one_line(tmp_path):
    line = check_fit(config_of(tmp_path))
    assert line == (
        f"reader {READERS['bundles']}, simulator counting:Again, workload counting:Counting: they fit "
        "together; items are muons"
    )


def test_a_side_table_that_is_not_configured_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Counting, "needs", ("geometry",), raising=False)
    monkeypatch.setattr(Counting, "use", lambda *_: None, raising=False)
    message = (
        r"the table geometry is missing, which counting:Counting needs \(found: none\); set source.tables"
    )
    uri = str(tmp_path / "{range}" / "*.parquet")
    with pytest.raises(ConfigError, match=message):
        check_fit(config_of(tmp_path, uri=uri))
    check_fit(config_of(tmp_path, uri=uri, tables={"geometry": "/data/geometry.csv"}))


def test_a_histogram_that_the_workload_wants_must_be_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(Counting, "wanted_histograms", ("zenith_rad",), raising=False)
    config = config_of(tmp_path)
    with pytest.raises(
        ConfigError, match=r"(?s)counting:Counting wants .*split: {histograms: {zenith_rad: \["
    ):
        check_fit(config)

    def counting(**histograms):
        split = config.split.model_copy(update={"histograms": histograms})
        return config.model_copy(update={"split": split})

    check_fit(counting(zenith_rad=(0.0, 1.6, 10)))
    with pytest.raises(ConfigError, match="did you mean zenith_rad"):
        check_fit(counting(zenith=(0.0, 1.6, 10)))


def test_a_checkpoint_to_start_from_must_be_there_before_any_job(tmp_path):
    config = config_of(tmp_path)
    config = config.model_copy(update={"train": config.train.model_copy(update={"pretrained": "old.pt"})})
    with pytest.raises(CheckpointError, match=r"train.pretrained: old.pt does not exist"):
        check_fit(config)
    config.paths().run_config().parent.mkdir(parents=True)
    config.paths().run_config().write_text("{}")  # the run has begun: the file may be gone
    check_fit(config)


def test_a_workload_that_reads_other_columns_is_refused():
    workload = Counting(CountingOptions())
    sentence = (
        r"lab:Net reads the {} columns energy_gev, which lab:Read does not give \(.*did you mean energy_mev"
    )
    for kind, name in (("event", "events"), ("item", "items")):
        fields = getattr(BUNDLES, name)
        misspelt = [replace(field, name=field.name.replace("_gev", "_mev")) for field in fields]
        with pytest.raises(ConfigError, match=sentence.format(kind)):
            check_columns(replace(BUNDLES, **{name: tuple(misspelt)}), "lab:Read", workload, "lab:Net")
    other = replace(BUNDLES, items=BUNDLES.items[::-1])
    with pytest.raises(ConfigError, match=r"reads the item columns energy_gev by position, but the first"):
        check_columns(other, "lab:Read", workload, "lab:Net")


def test_a_member_that_nothing_calls_is_in_the_line_for_a_person(tmp_path, monkeypatch):
    monkeypatch.setattr(Counting, "baselin", Counting.predict, raising=False)
    monkeypatch.setattr(Counting, "graphs", Counting.predict, raising=False)
    line = check_fit(config_of(tmp_path))
    assert line.endswith(
        "; nothing calls counting:Counting.graphs: it needs card beside it"
        "; nothing calls counting:Counting.baselin: did you mean baseline?"
    )


def test_a_workload_that_ignores_weights_is_refused(monkeypatch):
    workload = Counting(CountingOptions())
    layout = replace(BUNDLES, weight="energy_gev")
    with pytest.raises(ConfigError, match=r"lab:Net lacks `weighted = True`, but .* the weight energy_gev"):
        check_weighted(workload, "lab:Net", layout)
    check_weighted(workload, "lab:Net", BUNDLES)
    monkeypatch.setattr(Counting, "weighted", True, raising=False)
    check_weighted(workload, "lab:Net", layout)


def test_data_that_do_not_fit_are_refused_before_any_job(tmp_path, monkeypatch):
    config = config_of(tmp_path)
    monkeypatch.setattr(Again, "layout", replace(BUNDLES, item="hits"))
    with pytest.raises(ConfigError, match="counting:Again"):
        check_fit(config)
    source = {"uri": "/data/{range}/*.npz", "reader": "plain_reader:Plain"}
    options = {"layout": replace(HITS, fixed=30).describe()}
    low = validate({"source": source, "reader": options, "split": {"outlier_above": 29}})
    with pytest.raises(ConfigError, match=r"split\.outlier_above: 29 is below the 30 hits of every event"):
        check_fit(low)
    source = {"uri": "synthetic://", "reader": READERS["bundles"], "simulator": SIMULATOR}
    many = validate({"source": source, "simulator": {"files_per_range": 3}, "ranges": {"last": 3, "size": 2}})
    with pytest.raises(ConfigError, match="files_per_range: 3 files do not fit into range 0000000-0000001"):
        check_fit(many)


def test_a_simulator_of_another_layout_is_refused():
    other = replace(BUNDLES, item="hits")
    with pytest.raises(ConfigError, match=r"lab:Read reads: layout.item is 'hits' and 'muons'"):
        check_simulator(BUNDLES, "lab:Read", other, "lab:Sim")
    check_simulator(BUNDLES, "lab:Read", Again.layout, "lab:Sim")
    # Options of a reader may leave columns out, narrow what is legal, and group otherwise.
    kept = [replace(field, high=field.high / 2) for field in BUNDLES.events if field.name in BUNDLES.group]
    check_simulator(
        replace(BUNDLES, events=tuple(kept), group=BUNDLES.group[:1]), "lab:Read", BUNDLES, "lab:Sim"
    )
    more = replace(BUNDLES, events=(*BUNDLES.events, Field("mood", "float32", "", 0, 1, "")))
    with pytest.raises(ConfigError, match="layout.events is .* and .*mood float32"):
        check_simulator(more, "lab:Read", BUNDLES, "lab:Sim")
