import numpy as np
import pytest
import torch

from crpipe.train.workload import Histograms
from crpipe.workloads.muons import MuonFlow, MuonFlowOptions, MuonGan, MuonGanOptions
from crpipe.workloads.muons.scoring.score import sample_of


def test_rows_of_one_primary_are_one_group(bundles):
    events = bundles([1, 2, 3, 0])
    events.columns["primary_minor_id"][:] = [5, 9, 5, 9]
    events.columns["primary_major_id"][:] = [1, 1, 1, 2]
    group = sample_of(events).group.tolist()
    assert group[0] == group[2]
    assert len(set(group)) == 3


def test_groups_are_numbered_in_the_order_of_their_ids(bundles):
    events = bundles([1] * 200)
    rng = np.random.default_rng(1)
    ids = [rng.integers(2**63, 2**63 + 5, 200, np.uint64), rng.integers(7, size=200).astype(np.uint64)]
    events.columns["primary_major_id"][:], events.columns["primary_minor_id"][:] = ids
    _, expected = np.unique(np.stack(ids, axis=1), axis=0, return_inverse=True)
    assert sample_of(events).group.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "workload", [MuonGan(MuonGanOptions(hidden=8)), MuonFlow(MuonFlowOptions(hidden=8, sampling_steps=2))]
)
def test_histograms_show_conditions_multiplicities_and_features(bundles, workload):
    assert isinstance(workload, Histograms)
    events = bundles([0, 3, 4000, 7] * 10)
    found = workload.histograms(workload.model(), events, torch.Generator().manual_seed(1))
    for name in ("log10_multiplicity", "log10_muon_energy_gev", "log10_radius_m"):
        assert {f"{name}/real", f"{name}/generated"} <= found.keys()
    assert len(found["condition/depth_m"]) == 40
    assert len(found["log10_radius_m/real"]) == 10 * (3 + 100 + 7)
    assert all(np.isfinite(values).all() for values in found.values())


def test_histograms_of_events_without_muons_leave_out_what_is_not_there(bundles):
    workload = MuonGan(MuonGanOptions(hidden=8))
    found = workload.histograms(workload.model(), bundles([0, 0]), torch.Generator().manual_seed(1))
    assert "log10_radius_m/real" not in found
    assert "log10_multiplicity/real" in found
