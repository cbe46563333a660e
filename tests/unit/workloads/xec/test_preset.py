"""The configurations of gammas in liquid xenon that ship with crpipe."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from crpipe.config.loading import load_config
from crpipe.workloads.xec.layout import SENSORS
from crpipe.workloads.xec.models.masked import MaskedAutoencoder
from crpipe.workloads.xec.models.regressor import Regressor
from crpipe.workloads.xec.options import MaskedAutoencoderOptions, RegressorOptions
from crpipe.workloads.xec.sensors import sensor_map, write_sensor_map
from crpipe.workloads.xec.simulator.files import write_gammas
from crpipe.workloads.xec.simulator.options import XenonDetectorOptions

CONFIG = Path(__file__).parents[4] / "config"
DEMO, PRESET, PRETRAIN = (
    CONFIG / name for name in ("xec-demo.yaml", "presets/xec.yaml", "presets/xec-pretrain.yaml")
)


def keys_of(path):
    return load_config([CONFIG / "config.yaml", path])


@pytest.mark.parametrize("path", [DEMO, PRESET, PRETRAIN], ids=lambda path: path.stem)
def test_no_event_is_an_outlier(path):
    assert keys_of(path).split.outlier_above == SENSORS


def test_both_presets_use_the_same_shards():
    sections = ("results", "source", "reader", "ranges", "split")
    regressor, masked = (yaml.safe_load(path.read_text()) for path in (PRESET, PRETRAIN))
    assert {name: regressor[name] for name in sections} == {name: masked[name] for name in sections}


def test_the_comment_of_the_preset_starts_from_the_last_checkpoint_of_the_pretraining():
    comments = [line.strip(" #") for line in PRESET.read_text().splitlines() if "  # " in line]
    lines = [line for line in comments if line.startswith(("pretrained: ", "init_map: "))]
    more = yaml.safe_load("\n".join(lines))
    chain = keys_of(PRETRAIN).chain(has_outliers=False)
    assert more["pretrained"] == f"runs/xec-pretrain/ranges/{chain.links[-1].name}.json"
    assert more["init_map"] == {"encoder.": "encoder."}


def test_the_regressor_fits_the_encoder_of_the_pretraining_and_has_its_weights():
    models = []
    for path, kind, options in (
        (PRESET, Regressor, RegressorOptions),
        (PRETRAIN, MaskedAutoencoder, MaskedAutoencoderOptions),
    ):
        workload = kind(options(**yaml.safe_load(path.read_text())["model"]))
        workload.places = sensor_map()
        models.append(workload.model())
    shapes = [{name: each.shape for name, each in model.encoder.named_parameters()} for model in models]
    assert shapes[0] == shapes[1]
    counts = [sum(each.numel() for each in model.parameters()) / 1e6 for model in models]
    assert [round(count) for count in counts] == [32, 27]


def test_a_preset_is_planned_with_a_folder_of_files(tmp_path):
    for run in range(2):
        write_gammas(XenonDetectorOptions(events_per_file=2), 1, run, tmp_path / f"{run}.root")
    write_sensor_map(tmp_path / "sensors.csv")
    (tmp_path / "dead.csv").write_text("run,sensor_id\n")
    keys = {
        "source.uri": tmp_path / "*.root",
        "source.tables.sensors": tmp_path / "sensors.csv",
        "source.tables.dead": tmp_path / "dead.csv",
    }
    changes = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [
            Path(sys.executable).with_name("crpipe"),
            *("--config", CONFIG / "config.yaml", "--config", PRESET),
            *changes,
            "plan",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 66, done.stderr
    assert "holds 2 files, numbers 0 to 1; set ranges.last to 1" in done.stderr
    assert "10: 0000000-0000003 to 0000036-0000039" in done.stdout
    assert "they fit together; items are sensors" in done.stdout
