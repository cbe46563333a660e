import numpy as np

from crpipe.workloads.muon_gan import MuonGan, MuonGanConfig
from crpipe.workloads.muon_gan.scoring import sample_of


def test_rows_of_one_primary_are_one_group(bundles):
    events = bundles([1, 2, 3, 0])
    events.columns["primary_minor_id"][:] = [5, 9, 5, 9]
    events.columns["primary_major_id"][:] = [1, 1, 1, 2]
    group = sample_of(events).group.tolist()
    assert group[0] == group[2]
    assert len(set(group)) == 3


def test_score_gives_finite_numbers_and_figures(bundles, tmp_path):
    truth, made = bundles([0, 3, 40, 7] * 100, seed=1), bundles([0, 3, 40, 7] * 100, seed=2)
    numbers = MuonGan(MuonGanConfig()).score(truth, made, tmp_path / "new")
    assert numbers["multiplicity_ratio"] == 1
    assert 0.4 < numbers["auc_full"] < 0.6
    assert all(isinstance(value, float) for value in numbers.values())
    assert np.isfinite(list(numbers.values())).all()
    assert (tmp_path / "new" / "lateral.svg").exists()
