"""An exported model gives crpipe's own muons without crpipe, and its card tells the truth about it."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file

from counting import NAMED, checkpoint_of, write_receipt
from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config, validate
from crpipe.core.errors import CheckpointError
from crpipe.core.files import read_json, sha256, write_json
from crpipe.core.paths import OUTLIERS
from crpipe.core.text import NullProgress
from crpipe.events.batch import Events
from crpipe.events.layout import Layout
from crpipe.inference.card import TrainedLink, model_card, provenance, shard_folders
from crpipe.inference.checkpoints import open_checkpoint
from crpipe.inference.export import export_model
from crpipe.train.checkpoints import CheckpointStore
from crpipe.train.state import TrainState
from crpipe.train.workload import build_workload
from crpipe.workloads.muons import MuonGan
from crpipe.workloads.muons.export import MUONS, sampler_graphs, sampler_of
from crpipe.workloads.muons.layout import BUNDLES
from crpipe.workloads.muons.standalone import Sampler
from named import READERS, SIMULATOR
from side_tables import with_tables
from toy import RANGES as TOY_RANGES
from toy import toy_config

MODELS = {
    "gan": ("MuonGan", {"hidden": 8}),
    "vae": ("MuonVae", {"hidden": 8, "components": 3}),
}
RANGES = ("0000000-0000009", "0000010-0000019")
SCORES = {
    "step": 3,
    "metrics": [metric.describe() for metric in MuonGan.metrics],
    "values": {"w1_log_radius": 0.5, "w1_log_radius_error": 0.01},
    "again": {"w1_log_radius": 0.4},
}
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("crpipe", "torch"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
import numpy as np
from sample import Sampler

given = np.load(sys.argv[1])
sampler = Sampler(".")
noise = {item["name"]: given[item["name"]] for item in sampler.config["sampler"]["noise"]}
filled = given["multiplicity"] > 0
muons = sampler.muons(given["primaries"][filled], given["multiplicity"][filled], given["event"], noise)
drawn = sampler.multiplicity(given["primaries"], np.random.default_rng(int(given["seed"])))
np.savez(sys.argv[2], muons=muons, drawn=drawn)
"""


def settings(folder, name, options=()):
    model = [f"model.{key}={value}" for key, value in (*MODELS[name][1].items(), *options)]
    return load_config(
        [],
        [
            f"run={name}",
            f"results={folder / 'results'}",
            f"runs={folder / 'runs'}",
            "source.uri=synthetic://",
            f"source.reader={READERS['bundles']}",
            f"source.simulator={SIMULATOR}",
            "ranges.last=29",
            "ranges.size=10",
            f"train.workload=crpipe.workloads.muons:{MODELS[name][0]}",
            *model,
        ],
    )


def trained(config):
    """Write what two trained ranges leave: store, receipts, evaluation; give the receipt of the second."""
    torch.manual_seed(1)
    campaign = Campaign.open(config)
    paths, parent = campaign.paths, ""
    workload = build_workload(config.train.workload, config.options())
    for link in RANGES:
        state = TrainState(workload.model(), workload.phases(), 1, torch.device("cpu"))
        for value in state.average.values():
            value.add_(torch.randn_like(value), alpha=0.1)
        state.counters.step, state.counters.events, state.counters.items = 3, 12_345, 678_901
        folder = paths.store(link)
        folder.mkdir(parents=True)
        saved = CheckpointStore(folder, "k").save_checkpoint(
            {**state.state(campaign.train_keys), "range": link}
        )
        write_receipt(paths.receipt(link), link, saved.path, key=f"k{link}", parent=parent)
        parent = saved.sha256
    write_json(paths.evaluation(RANGES[-1]) / "metrics.json", {"checkpoint": parent, **SCORES})
    return paths.receipt(RANGES[-1])


def add_shards(config, write_shards):
    data = Campaign.open(config).data
    for link in RANGES:
        folder = write_shards(config.paths().shards(link), [[[2, 0, 5] * 4, [1] * 3]])
        manifest = read_json(folder / "manifest.json")
        write_json(folder / "manifest.json", manifest | {"data": data})


@pytest.fixture(scope="module")
def exported(tmp_path_factory, write_shards):
    """Export on demand, once each: (config, receipt, directory)."""
    made = {}

    def export(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            config = settings(folder, name)
            receipt = trained(config)
            if name == "gan":
                add_shards(config, write_shards)
            export_model(Campaign.open(config), receipt, folder / "out", NullProgress())
            made[name] = config, receipt, folder / "out"
        return made[name]

    return export


def primaries(size):
    rng = np.random.default_rng(2)
    low, high = np.log10([1e4, 0.01, 1, 1000]), np.log10([1e8, 1.3, 56, 2800])
    return (10 ** rng.uniform(low, high, (size, 4))).astype(np.float32)


def conditions(given):
    names = ("energy_gev", "zenith_rad", "mass_number", "depth_m")
    columns = {name: given[:, column] for column, name in enumerate(names)}
    return Events(columns, np.zeros(len(given), np.uint32), np.zeros((0, 3), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_same_noise_gives_the_same_muons_where_crpipe_cannot_be_imported(exported, name, tmp_path):
    _, receipt, out = exported(name)
    own, given = open_checkpoint(receipt), primaries(60)
    multiplicity = np.random.default_rng(3).integers(0, 40, 60)
    made = own.workload.generate(own.model, conditions(given), multiplicity, torch.Generator().manual_seed(4))
    drawn = own.workload.multiplicities(own.model, conditions(given), torch.Generator().manual_seed(5))

    generator = torch.Generator().manual_seed(4)
    rows = {"events": np.count_nonzero(multiplicity), "muons": multiplicity.sum()}
    draw = {"normal": torch.randn, "uniform": torch.rand}
    config = json.loads((out / "config.json").read_text())["sampler"]
    noise = {
        item["name"]: draw[item["law"]](int(rows[item["rows"]]), item["columns"], generator=generator)
        for item in config["noise"]
    }
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(5)))
    event = np.repeat(np.arange(rows["events"]), multiplicity[multiplicity > 0])
    inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(inputs, primaries=given, multiplicity=multiplicity, event=event, seed=seed, **noise)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, inputs, outputs], cwd=out, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = np.load(outputs)
    # Cartesian features count in 500 m, so float32 itself resolves 1e-5 m no better close to the axis.
    tolerance = 1e-4 if name == "vae" else 1e-5
    np.testing.assert_allclose(found["muons"], made.items, rtol=tolerance, atol=tolerance)
    assert np.array_equal(found["drawn"], drawn)
    assert len(set(drawn)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gan", "vae"])
def test_bundles_of_every_size_come_out_in_order(exported, name):
    sampler = Sampler(exported(name)[2])
    sampler.config["sampler"]["limits"] = {}
    counts = [0, 3, 20_000, 0, 1, 8192, 0] if name == "gan" else [0, 3, 0, 1, 40, 0]
    given = primaries(len(counts))
    multiplicity, muons = sampler.bundles(given, np.random.default_rng(1), counts)
    assert multiplicity.tolist() == counts
    assert muons.shape == (sum(counts), 3)
    assert (muons[:, 0] > 0.1).all()
    assert len(np.unique(muons, axis=0)) == len(muons)
    again = sampler.bundles(given, np.random.default_rng(1), counts)[1]
    assert np.array_equal(again, muons)


@pytest.mark.slow
def test_no_primaries_and_no_muons_are_legal(exported):
    sampler = Sampler(exported("vae")[2])
    for size in (0, 3):
        multiplicity, muons = sampler.bundles(primaries(size), np.random.default_rng(1), [0] * size)
        assert (len(multiplicity), muons.shape) == (size, (0, 3))


@pytest.mark.slow
def test_primaries_outside_of_the_training_data_are_told(exported):
    _, _, out = exported("gan")
    sampler = Sampler(out)
    inside, outside = [[2.0, 1.0, 1.0, 1.5]], [[2.0, 1.0, 1.0, 1e4]]
    assert sampler.outside([*inside, *outside]).tolist() == [False, True]
    with pytest.warns(UserWarning, match="outside"):
        sampler.bundles(outside, np.random.default_rng(1))


@pytest.mark.slow
def test_the_table_command_of_the_card_runs(exported, tmp_path):
    out = exported("vae")[2]
    np.save(tmp_path / "primaries.npy", primaries(3))
    files = [tmp_path / "primaries.npy", tmp_path / "bundles.npz"]
    subprocess.run([sys.executable, out / "sample.py", *files], check=True)
    found = np.load(files[1])
    assert found["multiplicity"].sum() == len(found["muons"])


@pytest.mark.slow
def test_the_weights_are_the_averaged_ones(exported):
    _, receipt, out = exported("gan")
    weights, checkpoint = load_file(out / "model.safetensors"), open_checkpoint(receipt).checkpoint
    assert weights.keys() == checkpoint["model"].keys()
    for name, value in weights.items():
        wanted = checkpoint["average"].get(name, checkpoint["model"][name])
        assert np.array_equal(value, wanted.numpy())
    assert any(not torch.equal(checkpoint["model"][n], v) for n, v in checkpoint["average"].items())


@pytest.mark.slow
def test_the_card_tells_data_metrics_and_limits(exported):
    config, _, out = exported("gan")
    card = (out / "MODEL_CARD.md").read_text()
    for text in (
        Campaign.open(config).fingerprint,
        "| source | `synthetic://` |",
        "0000000-0000009 … 0000010-0000019 (2 links of run `gan`)",
        "30 events, 62 muons",
        "12,345 events, 678,901 muons",
        "(measured on the training shards)",
        "| depth_m | m | 1 | 8 |",
        "| multiplicity |  | 0 | 5 |",
        "Multiplicities above 50,000 are outliers, which this model was **not** trained on",
        "| W1 of log10(radius / m) | 0.500 ± 0.010 | 0.400 | 0 |",
        "simulated again (the floor): the same events",
        "azimuth",
        "CITATION.cff",
    ):
        assert text in card


@pytest.mark.slow
def test_without_shards_the_limits_are_the_simulators_and_foreign_scores_are_not_quoted(exported):
    config, receipt, out = exported("vae")
    card = (out / "MODEL_CARD.md").read_text()
    assert (
        "as configured for the simulator; not measured: the training shards do not all exist any more" in card
    )
    assert "| depth_m | m | 1000 | 2800 |" in card
    path = config.paths().evaluation(RANGES[-1]) / "metrics.json"
    write_json(path, read_json(path) | {"checkpoint": "another"})
    made = provenance(open_checkpoint(receipt), BUNDLES, Campaign.open(config), NullProgress())
    assert "how good it is, is not known" in model_card(made, {})


@pytest.mark.slow
def test_the_campaign_beside_it_trains_the_same_model(exported):
    config, _, out = exported("gan")
    again = load_config([out / "campaign.yaml"])
    assert Campaign.open(again).fingerprint == Campaign.open(config).fingerprint
    assert tuple(map(str, again.all_ranges())) == RANGES


@pytest.mark.slow
def test_nothing_of_this_machine_stands_in_the_graphs(exported):
    out = exported("gan")[2]
    for path in out.glob("*.onnx"):
        content = path.read_bytes()
        for text in (b"site-packages", b".py", str(Path(__file__).parents[3]).encode()):
            assert text not in content


@pytest.mark.slow
def test_graphs_that_say_something_else_are_refused(exported):
    _, receipt, out = exported("gan")
    own = open_checkpoint(receipt)
    graph = sampler_graphs(sampler_of(own.model, own.workload.options), primaries(8))[MUONS]
    assert graph.check(out / MUONS) <= 1e-5
    for value in (0.0, torch.nan):
        with torch.no_grad():
            own.model.generator.out.bias.fill_(value)
        with pytest.raises(CheckpointError, match="differs from the model"):
            graph.check(out / MUONS)


def unconfigured(folder):
    """Open a campaign that names a workload, and no reader: nothing is known of its shards."""
    config = validate({"results": str(folder / "none"), "train": {"workload": "counting:Counting"}})
    return Campaign.open(config, layout="recorded")


def test_a_workload_without_graphs_is_exported_with_everything_else(tmp_path):
    (tmp_path / "geometry.csv").write_text("0,0,0")
    store = tmp_path / "runs" / "r" / "store" / "0000000-0000999"
    keys = {"tables.geometry": sha256(tmp_path / "geometry.csv"), "source.uri": "file:///data"}
    path = checkpoint_of(store, **keys)
    campaign = with_tables(unconfigured(tmp_path), {"geometry": tmp_path / "geometry.csv"})
    export_model(campaign, path, tmp_path / "out", NullProgress())
    config = read_json(tmp_path / "out" / "config.json")
    assert Layout.from_description(config["layout"]) == BUNDLES
    names = {"model.safetensors", "campaign.yaml", "MODEL_CARD.md", "tables/geometry.csv"}
    assert {name: sha256(tmp_path / "out" / name) for name in names} == config["files"]
    assert config["tables"] == {"geometry": keys["tables.geometry"]}
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    for text in ("# Counting `", "side table geometry", "678,901 muons", "crpipe predict --checkpoint"):
        assert text in card


def test_of_simulated_data_nobody_is_to_be_asked(tmp_path):
    keys = {"source.uri": "synthetic://", "source.simulator": "lab:Maker"}
    path = checkpoint_of(tmp_path / "runs" / "r" / "store" / "0000000-0000999", **keys)
    trained = open_checkpoint(path, allowed_plugins=["counting:Counting"])
    card = model_card(provenance(trained, BUNDLES, unconfigured(tmp_path), NullProgress()), {})
    assert "they follow those of the\nsimulator `lab:Maker`, which made all data.\n" in card
    assert "owners" not in card


TILES = [f"{first:07d}-{first + 9:07d}" for first in (0, 10, 20)]
LINKS = {"0000000-0000019": TILES[:1], "0000020-0000029": TILES[2:]}  # two ranges in a link, one is skipped


def chained(folder, rounds):
    """Write checkpoints and receipts of both links in each round; give the last checkpoint."""
    run, parent = folder / "runs" / "r", ""
    for step, (number, first) in enumerate(itertools.product(range(1, rounds + 1), LINKS), 1):
        name = first if number == 1 else f"{first}.{number}"
        keys = {"source.uri": "file:///data", "train.horizon_ranges": 9, "step": step}
        path = checkpoint_of(run / "store" / name, link=name, **keys)
        place = {"ranges": LINKS[first], "round": number, "key": f"k{step}", "parent": parent}
        write_receipt(run / "ranges" / f"{name}.json", name, path, **place)
        parent = sha256(path)
    return path


def test_links_of_several_ranges_and_rounds_are_followed_back(tmp_path):
    path = chained(tmp_path, rounds=2)
    export_model(unconfigured(tmp_path), path, tmp_path / "out", NullProgress())
    config = read_json(tmp_path / "out" / "config.json")
    assert config["links"] == [*LINKS, *(f"{name}.2" for name in LINKS)]
    assert config["ranges"] == [TILES[0], TILES[2]]
    again = yaml.safe_load((tmp_path / "out" / "campaign.yaml").read_text())
    assert again["ranges"] == {"first": 0, "last": 29, "size": 10, "skip": [TILES[1]]}
    assert again["train"]["passes"] == 3  # over which the learning rate runs its 9 ranges
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "0000000-0000019 … 0000020-0000029.2 (2 ranges in 2 rounds: 4 links of run `r`)" in card
    assert "runs/r/ranges/0000020-0000029.2.json --in FILES" in card


def test_a_best_checkpoint_has_the_chain_of_its_link_and_is_no_receipt(tmp_path):
    last = chained(tmp_path, rounds=1)
    best = checkpoint_of(last.parent, link="0000020-0000029", step=0, **{"source.uri": "file:///data"})
    pointer = tmp_path / "runs" / "r" / "ranges" / "0000020-0000029.best.json"
    about = {"range": "0000020-0000029", "key": "k2", "checkpoint": best.name, "sha256": sha256(best)}
    write_json(pointer, {**about, "step": 3, "metric": "x/loss", "value": 0.5})
    for path, receipt in ((last, "0000020-0000029.json"), (best, pointer.name)):
        trained = open_checkpoint(path, allowed_plugins=NAMED)
        made = provenance(trained, BUNDLES, unconfigured(tmp_path), NullProgress())
        assert [link.name for link in made.chain] == list(LINKS)
        assert made.receipt == receipt


def test_the_training_shards_are_those_of_the_chain(tmp_path):
    campaign = Campaign.open(toy_config(tmp_path))
    chain = [
        TrainedLink("several", TOY_RANGES),
        TrainedLink(f"{TOY_RANGES[-1]}.2", TOY_RANGES[-1:]),
        TrainedLink(OUTLIERS, ()),
    ]
    folders = [*map(campaign.paths.shards, TOY_RANGES), campaign.paths.outliers("consolidated")]
    assert shard_folders(campaign, chain) == folders
    assert shard_folders(campaign, [TrainedLink("another", ("0009000-0009999",))]) == []
    assert shard_folders(unconfigured(tmp_path), chain) == []
