"""What every split keeps, whatever its files hold: each event and item, once."""

import itertools
import tempfile

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crpipe.core.errors import ConfigError, FormatError
from crpipe.core.paths import LARGE_ROLES, PARTS, ROLES, TRAINED_ROLES, roles_of
from crpipe.workloads.muons.layout import BUNDLES
from raw_files import (
    campaign,
    events_in,
    ledger_of,
    make_events,
    nested,
    product_bytes,
    raw_folder,
    split,
    write_parquet,
    write_staged,
)

EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

multiplicities = st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(15, 60)), max_size=40)
raw_files = st.lists(
    st.fixed_dictionaries(
        {
            "multiplicity": multiplicities,
            "invalid": st.sets(st.integers(0, 39), max_size=3),
            "damaged": st.sampled_from([False, False, False, True]),
            "row_group": st.integers(1, 50),
        }
    ),
    min_size=1,
    max_size=5,
)
options = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 5),
        "split.outlier_above": st.sampled_from([1, 10, 20, 10**6]),
        "split.validation_fraction": st.sampled_from([0, 0.2, 0.6]),
        "split.test_fraction": st.sampled_from([0, 0.1, 0.3]),
        "split.shard_items": st.sampled_from([1000, 10**6]),
    }
)


def write_raw(config, files):
    """Write the files; return {(file, row): (event, muons, possible)} of all events that can be read."""
    expected = {}
    for number, file in enumerate(files):
        columns, multiplicity, items = make_events(file["multiplicity"], seed=number)
        bad = sorted(row for row in file["invalid"] if row < len(multiplicity))
        columns["zenith_rad"][bad] = 7
        path = raw_folder(config) / f"{number}.parquet"
        pq.write_table(nested(columns, multiplicity, items), path, row_group_size=file["row_group"])
        if file["damaged"]:
            path.write_bytes(path.read_bytes()[:-1])
            continue
        for row, (muons, end) in enumerate(zip(multiplicity, np.cumsum(multiplicity), strict=True)):
            event = {name: column[row].item() for name, column in columns.items()}
            expected[number, row] = event, items[end - muons : end], row not in bad
    write_staged(config)
    return expected


def rows_of(config, role):
    """Yield (file, row), the other columns and the muons of each event of a role."""
    for events in events_in(config, role):
        starts = events.offsets()
        for index in range(len(events)):
            event = {name: column[index].item() for name, column in events.columns.items()}
            place = event.pop("source_file"), event.pop("source_row")
            yield place, event, events.items[starts[index] : starts[index + 1]]


@EXAMPLES
@given(files=raw_files, keys=options)
def test_every_event_and_muon_is_accounted_for(files, keys):
    with tempfile.TemporaryDirectory() as root:
        overrides = [f"{name}={value}" for name, value in keys.items()]
        config = campaign(root, "split.on_bad_event=reject", "source.on_bad_file=quarantine", *overrides)
        expected = write_raw(config, files)
        if not any(good for *_, good in expected.values()) and (
            expected or any(file["damaged"] for file in files)
        ):
            with pytest.raises(FormatError, match="no event is left"):
                split(config)
            return
        split(config)
        ledger = ledger_of(config)
        found, primaries = {}, {}
        for role in ROLES:
            rows = list(rows_of(config, role))
            assert ledger["events"][role] == len(rows)
            assert ledger["items"][role] == sum(len(muons) for _, _, muons in rows)
            primaries[role] = {tuple(event[name] for name in BUNDLES.group) for _, event, _ in rows}
            for place, event, muons in rows:
                assert place not in found
                assert (len(muons) > keys["split.outlier_above"]) == (role in LARGE_ROLES)
                found[place] = event, muons
        for one, two in itertools.combinations(PARTS, 2):
            known, other = (
                {each for role in roles_of(part) for each in primaries[role]} for part in (one, two)
            )
            assert not known & other
        assert not set().union(*(primaries[role] for role in TRAINED_ROLES)) & set().union(
            *(primaries[role] for role in ROLES if role not in TRAINED_ROLES)
        )
        assert set(ledger["events"]) == {"listed", *ROLES, "rejected"}
        possible = {place: (event, muons) for place, (event, muons, good) in expected.items() if good}
        assert found.keys() == possible.keys()
        for place, (event, muons) in possible.items():
            assert found[place][0] == event
            assert np.array_equal(found[place][1], muons)
        rejected = [len(muons) for _, muons, good in expected.values() if not good]
        assert (ledger["events"]["rejected"], ledger["items"]["rejected"]) == (len(rejected), sum(rejected))
        assert ledger["events"]["listed"] == len(expected)
        assert ledger["quarantined"] == sum(file["damaged"] for file in files)


@EXAMPLES
@given(
    kinds=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["train", "validation", "test"])), min_size=1, max_size=5
    )
)
def test_files_decide_or_a_torn_group_is_refused(kinds):
    """Files of equal number hold the same groups: in two parts they are refused."""
    with tempfile.TemporaryDirectory() as root:
        chosen = {part: [n for n, (_, own) in enumerate(kinds) if own == part] for part in PARTS}
        config = campaign(
            root,
            "split.validation_fraction=0",
            *(f"split.{part}_files={chosen[part]}" for part in PARTS[1:]),
        )
        for number, (seed, _) in enumerate(kinds):
            write_parquet(raw_folder(config) / f"{number}.parquet", [1, 0, 2, 40], seed=seed)
        write_staged(config)
        parts = {seed: {part for other, part in kinds if other == seed} for seed, _ in kinds}
        if any(len(found) > 1 for found in parts.values()):
            with pytest.raises(ConfigError, match="the group of events primary_major_id .* occurs in"):
                split(config)
            return
        split(config)
        ledger = ledger_of(config)
        assert ledger["balanced"]
        for part in PARTS:
            rows = list(rows_of(config, part))
            assert {file for (file, _), _, _ in rows} == {*chosen[part]}
            assert len(rows) == ledger["events"][part] == 3 * len(chosen[part])


def stage(root, *overrides):
    counted = "split.histograms={energy_gev: [2.0e+5, 9.0e+5, 7], depth_m: [1000, 1400, 4]}"
    config = campaign(root, "split.shard_items=20000", counted, *overrides)
    for number in range(6):
        multiplicity = np.random.default_rng(number).poisson(6, 3000) + (np.arange(3000) % 500 == 0) * 900
        write_parquet(raw_folder(config) / f"{number}.parquet", multiplicity, seed=number)
    write_staged(config)
    return config


@pytest.mark.slow
def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setattr("crpipe.split.split._WORKER_RAW", 1)
    products = []
    for workers in (1, 2):
        config = stage(tmp_path / str(workers), f"resources.split.cpus={workers}")
        split(config)
        products.append(product_bytes(config))
    assert products[0] == products[1]
