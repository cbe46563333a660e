"""What a user would try in an afternoon, beside crpipe at equal CPU time, on four simulated detectors.

    python tests/physics/strong_baselines.py [--seconds 120] [--events 4000] [--write] FOLDER [NAME ...]

Of each detector: crpipe as its demo trains it, boosted trees of scikit-learn on hand-made features, and a
plain DeepSet in PyTorch, all with the same training events; then the same test events for all. --write: the
tables between the marks in docs/direction.md and docs/xec.md. Half an hour on one core.
"""

import argparse
import datetime as dt
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import nn

sys.path.append(str(Path(__file__).parent))
import other_detectors

import crpipe
from crpipe.campaign.records import table_paths
from crpipe.workloads.direction.layout import opening_angle, read_geometry, unit_vectors
from crpipe.workloads.direction.scoring.line_fit import line_fit
from crpipe.workloads.direction.scoring.metrics import COVERAGE, shares_inside
from crpipe.workloads.xec.sensors import FACE_IDS, INNER_RADIUS, read_sensor_map

REPOSITORY = Path(__file__).parents[2]
DETECTORS = {
    "demo telescope": ("direction", None),
    "other telescope": ("direction", other_detectors.write_neutrinos),
    "demo xenon": ("xec", None),
    "other xenon": ("xec", other_detectors.write_gammas),
}
EPOCHS = {"direction": 5.0, "xec": 3.0}  # take about 120 s of CPU
METHODS = ("crpipe", "its regression", "boosted trees", "plain DeepSet")


# crpipe, with the settings of its demos.


def settings(kind, write, folder, files, events, epochs):
    """Return the configuration of a campaign: the last file tests, a tenth of the rest validates."""
    tree = yaml.safe_load((REPOSITORY / "config" / f"{kind}-demo.yaml").read_text())
    tree |= {"run": "measured", "results": str(folder / "results"), "runs": str(folder / "runs")}
    tree["simulator"] = {"events_per_file": events}
    tree["ranges"] = {"first": 1, "last": files, "size": 1}
    tree["split"] |= {"validation_fraction": 0.1, "test_files": [files]}
    tree["train"] |= {"passes_per_link": epochs, "device": "cpu", "validate_every": 500}
    if write is None:
        return tree
    raw = folder / "raw"
    if not raw.exists():
        write(raw, files, events)
    del tree["simulator"]
    if kind == "direction":
        tables = {"meta": str(raw / "train_meta.parquet"), "geometry": str(raw / "sensor_geometry.csv")}
        reader = "crpipe.workloads.direction.reading.kaggle:KaggleFiles"
        tree["source"] = {"uri": f"{raw}/train/batch_{{number}}.parquet", "reader": reader, "tables": tables}
        tree["reader"] = {"truth": ["energy_gev", "cascade"]}
    else:
        tables = {"sensors": str(raw / "sensors.csv")}
        uri = f"{raw}/gammas_{{number:06}}.root"
        tree["source"] |= {"uri": uri, "tables": tables}
        del tree["source"]["simulator"]
        tree["reader"] = {"sensors": True, "truth": ["energy", "position", "time"]}
        tree["split"] |= {"on_bad_event": "reject", "max_rejected": 1}
    return tree


def run_crpipe(tree, folder, files):
    """Train; return the run and the CPU seconds of the training alone."""
    path = folder / "crpipe.yaml"
    path.write_text(yaml.safe_dump(tree))

    def verb(*words):
        command = [Path(sys.executable).parent / "crpipe", "--config", path, *words]
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr

    verb("tables")
    for number in range(1, files + 1):
        for step in ("list", "stage", "split"):
            verb(step, f"{number:07}-{number:07}")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    verb("train", f"{1:07}-{files:07}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return crpipe.open(folder / "runs" / "measured", config=path), seconds


def joined(batches):
    """Return all events of some batches, with what the methods here need of them."""
    blocks = [block.copy() for block in batches]
    columns = {name: np.concatenate([each.columns[name] for each in blocks]) for name in blocks[0].columns}
    return blocks, columns


# Directions: features by hand, and a DeepSet over pulses.


def pulse_features(blocks, places):
    """Return the features of all pulses, [P, 7], and the pulses of each event, [N]."""
    rows = []
    for block in blocks:
        event = np.repeat(np.arange(len(block)), block.multiplicity)
        sensor, late, charge, auxiliary = block.items.T
        count = np.maximum(block.multiplicity, 1)
        light = (auxiliary == 0) + 1e-3
        weight = np.bincount(event, light, len(block))
        late = late - (np.bincount(event, light * late, len(block)) / weight)[event]
        place = places[sensor.astype(int)]
        centre = [(np.bincount(event, light * axis, len(block)) / weight)[event] for axis in place.T]
        near = (place - np.stack(centre, axis=1)) / 150
        rows.append(np.column_stack([place / 500, near, late / 1000, np.log10(charge + 1e-3), auxiliary]))
        assert count.all()
    return np.concatenate(rows).astype(np.float32), np.concatenate([block.multiplicity for block in blocks])


def direction_features(blocks, places):
    """Return 24 features of each event: the line fit, the shape of the light, its first and its last part."""
    rows = []
    for block in blocks:
        features, many = pulse_features([block], places)
        event = np.repeat(np.arange(len(block)), many)
        light = (features[:, 8] == 0) + 1e-3

        def mean(values, weight, event=event, count=len(block)):  # noqa: B008
            total = np.bincount(event, weight, count)
            return np.stack([np.bincount(event, weight * each, count) / total for each in values.T], axis=1)

        near, late = features[:, 3:6], features[:, 6]
        early = mean(near, light * np.exp(-np.clip(late + 1, 0, 20) / 0.3))
        last = mean(near, light * np.exp(np.clip(late, -5, 5)))
        slope = mean(near * late[:, None], light)
        bright = mean(near, light * 10 ** features[:, 7])
        fit = unit_vectors(*line_fit(block, places))
        size = mean(near**2, light)
        sums = [
            np.log(many),
            np.log(np.bincount(event, light)),
            np.log(np.bincount(event, light * 10 ** features[:, 7])),
        ]
        duration = mean((late**2)[:, None], light)
        rows.append(
            np.column_stack(
                [fit, early, last, slope, bright, size, mean(features[:, :3], light), *sums, duration]
            )
        )
    return np.concatenate(rows)


class PulseSet(nn.Module):
    """Each pulse by itself, then mean and maximum over the pulses of an event, then the direction."""

    def __init__(self, width=96):
        super().__init__()
        self.each = nn.Sequential(
            nn.Linear(9, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.whole = nn.Sequential(
            nn.Linear(2 * width, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 3)
        )

    def forward(self, x, many):
        event = torch.repeat_interleave(torch.arange(len(many)), many)
        each = self.each(x)
        mean = torch.zeros(len(many), each.shape[1]).index_add(0, event, each) / many[:, None]
        index = event[:, None].expand_as(each)
        most = torch.zeros(len(many), each.shape[1]).scatter_reduce(
            0, index, each, "amax", include_self=False
        )
        return self.whole(torch.cat([mean, most], dim=1))


def learn(model, batches, loss, seconds, rate=2e-3):
    """Train for so many CPU seconds, with one cycle of the learning rate; return the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    begin, steps = time.process_time(), 0
    while (done := (time.process_time() - begin) / seconds) < 1:
        factor = done / 0.1 if done < 0.1 else 0.5 * (1 + np.cos(np.pi * (done - 0.1) / 0.9))
        for group in optimizer.param_groups:
            group["lr"] = rate * max(factor, 1e-3)
        optimizer.zero_grad()
        loss(model, *next(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
    return steps


def shuffled(count, size, seed=1):
    """Yield random indices of batches without end."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(count)
        yield from (order[first : first + size] for first in range(0, count - size + 1, size))


def boosted(x, y, tested):
    """Return the predictions of one boosted regression for each column of y."""
    columns = []
    for values in y.T:
        trees = HistGradientBoostingRegressor(
            max_iter=400, learning_rate=0.06, early_stopping=True, random_state=1
        )
        columns.append(trees.fit(x, values).predict(tested))
    return np.stack(columns, axis=1)


def directions(run, train, test, seconds):
    """Return the true unit vectors, those of each method, and the CPU seconds of each."""
    places = read_geometry(side_table(run, "geometry")).astype(np.float64)
    true, tested = (unit_vectors(each[1]["azimuth"], each[1]["zenith"]) for each in (train, test))
    begin = time.process_time()
    trees = boosted(direction_features(train[0], places), true, direction_features(test[0], places))
    spent = {"boosted trees": time.process_time() - begin}
    torch.manual_seed(1)
    model = PulseSet()
    (x, many), (x_test, many_test) = (pulse_features(each[0], places) for each in (train, test))
    x, ends, truth = torch.from_numpy(x), np.cumsum(many), torch.from_numpy(true).float()

    def batches():
        for index in shuffled(len(many), 64):
            rows = np.concatenate([np.arange(ends[each] - many[each], ends[each]) for each in index])
            yield x[rows], torch.from_numpy(many[index].astype(np.int64)), truth[index]

    def loss(model, x, many, truth):
        unit = nn.functional.normalize(model(x, many), dim=1)
        return torch.linalg.cross(unit, truth).norm(dim=1).atan2((unit * truth).sum(dim=1)).mean()

    learn(model, batches(), loss, seconds)
    with torch.no_grad():
        of_set = model(torch.from_numpy(x_test), torch.from_numpy(many_test.astype(np.int64))).numpy()
    return tested, {"boosted trees": trees, "plain DeepSet": of_set}, spent


def direction_rows(run, train, test, seconds):
    """Return, for each metric, the values of each event and method, and how they become one number."""
    true, vectors, spent = directions(run, train, test, seconds)
    predicted = predict(run, test[0])
    vectors["crpipe"] = unit_vectors(predicted["azimuth"], predicted["zenith"])
    vectors["its regression"] = unit_vectors(predicted["baseline_azimuth"], predicted["baseline_zenith"])
    angles = {name: np.degrees(opening_angle(each, true)) for name, each in vectors.items()}
    everything = np.ones(len(true), bool)
    rows = [
        ("mean angle, °", angles, np.mean, everything),
        ("median angle, °", angles, np.median, everything),
    ]
    if "cascade" in test[1]:
        cascade = test[1]["cascade"] > 0
        rows += [
            ("mean of tracks, °", angles, np.mean, ~cascade),
            ("mean of cascades, °", angles, np.mean, cascade),
        ]
    inside = shares_inside(np.radians(angles["crpipe"]), predicted["kappa"]) < COVERAGE
    rank = np.argsort(np.argsort(predicted["kappa"], kind="stable"))
    coverage = {"all": inside.mean()} | {
        f"quarter {part + 1}": inside[4 * rank // len(rank) == part].mean() for part in range(4)
    }
    return rows, spent, coverage


# Gammas: features by hand, and a DeepSet over sensors.


def gamma_features(blocks, places):
    """Return 33 features of each event, and its light and the centre of it, which the trees correct."""
    rows, simple = [], []
    u, v = (
        places[FACE_IDS["inner"], 2],
        INNER_RADIUS * np.arctan2(*places[FACE_IDS["inner"], 1::-1].T * [[1], [-1]]),
    )
    for block in blocks:
        sensors = block.items.reshape(len(block), -1, 4)
        light = np.where(sensors[..., 2] > 0, sensors[..., 0], 0).clip(0).astype(np.float64)
        by_face = np.stack([light[:, each].sum(axis=1) for each in FACE_IDS.values()], axis=1)
        total, inner = light.sum(axis=1).clip(1), light[:, FACE_IDS["inner"]]
        square = (inner**2).sum(axis=1).clip(1)
        centre = np.stack([(inner**2 @ axis) / square for axis in (u, v)], axis=1)
        away = np.hypot(u - centre[:, :1], v - centre[:, 1:])
        whole = inner.sum(axis=1).clip(1)
        rings = [(inner * (away < radius)).sum(axis=1) / whole for radius in (3, 5, 8, 12, 20)]
        mean = np.stack([(inner @ axis) / whole for axis in (u, v)], axis=1)
        width = [
            np.sqrt(np.maximum(inner @ axis**2 / whole - m**2, 0))
            for axis, m in zip((u, v), mean.T, strict=True)
        ]
        depth = np.sqrt(whole**2 / square)
        timed = sensors[..., 3] > 0
        columns = [
            np.log(by_face.clip(1)),
            by_face / total[:, None],
            np.log(total),
            centre,
            mean,
            depth,
            *rings,
            *width,
        ]
        columns += [np.log(light.max(axis=1).clip(1)), light.max(axis=1) / total, timed.sum(axis=1)]
        rows.append(np.column_stack(columns))
        simple.append(np.column_stack([np.log(total), centre, np.zeros(len(block))]))
    return np.concatenate(rows), np.concatenate(simple)


class SensorSet(nn.Module):
    """Each sensor by itself, then the mean of all, weighted by their light and not, then the gamma."""

    def __init__(self, places, width=32):
        super().__init__()
        self.places = torch.from_numpy(places / np.abs(places).max(axis=0)).float()
        self.each = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.whole = nn.Sequential(
            nn.Linear(2 * width + 1, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 4)
        )

    def forward(self, items):
        photons = (items[..., 0] * items[..., 2]).clamp_min(0)
        shown = torch.stack([(1 + photons).log() / 5, items[..., 2]], dim=2)
        each = self.each(torch.cat([shown, self.places.expand(len(items), -1, -1)], dim=2))
        total = photons.sum(dim=1, keepdim=True).clamp_min(1)
        weighted = (each * (photons / total)[..., None]).sum(dim=1)
        return self.whole(torch.cat([each.mean(dim=1), weighted, total.log() - 11], dim=1))


def gamma_rows(run, train, test, seconds):
    """Return, for each metric, the values of each event and method, and how they become one number."""
    places = read_sensor_map(side_table(run, "sensors"))
    truth = [
        np.column_stack([np.log(each[1]["energy_gev"]), *(each[1][f"{name}_cm"] for name in "uvw")]).astype(
            np.float64
        )
        for each in (train, test)
    ]
    begin = time.process_time()
    (x, simple), (x_test, simple_test) = (gamma_features(each[0], places) for each in (train, test))
    values = {"boosted trees": boosted(x, truth[0] - simple, x_test) + simple_test}
    spent = {"boosted trees": time.process_time() - begin}
    torch.manual_seed(1)
    model = SensorSet(places)
    centre, spread = truth[0].mean(axis=0), truth[0].std(axis=0)
    items, items_test = (
        torch.from_numpy(np.concatenate([block.items.reshape(len(block), -1, 4) for block in each[0]]))
        for each in (train, test)
    )
    target = torch.from_numpy((truth[0] - centre) / spread).float()
    batches = ((items[index], target[index]) for index in shuffled(len(items), 32))
    learn(model, batches, lambda model, x, y: nn.functional.smooth_l1_loss(model(x), y, beta=0.02), seconds)
    with torch.no_grad():
        of_set = np.concatenate([model(part).numpy() for part in items_test.split(50)])
    values["plain DeepSet"] = of_set * spread + centre
    predicted = predict(run, test[0])
    for name, prefix in (("crpipe", ""), ("its regression", "baseline_")):
        columns = [
            np.log(np.maximum(predicted[f"{prefix}energy_gev"], 1e-6)),
            *(predicted[f"{prefix}{axis}_cm"] for axis in "uvw"),
        ]
        values[name] = np.column_stack(columns).astype(np.float64)
    rows = []
    everything, deep = np.ones(len(truth[1]), bool), test[1]["w_cm"] >= 2
    energy = {name: 100 * np.expm1(each[:, 0] - truth[1][:, 0]) for name, each in values.items()}
    for words, part in (
        ("energy, %", everything),
        ("energy, w < 2 cm, %", ~deep),
        ("energy, w ≥ 2 cm, %", deep),
    ):
        rows.append((words, energy, half_width, part))
    for at, axis in enumerate("uvw", 1):
        off = {name: np.abs(each[:, at] - truth[1][:, at]) for name, each in values.items()}
        rows.append(
            (f"{axis}, cm", off, lambda values, **axis: np.quantile(values, 0.6827, **axis), everything)
        )
    return rows, spent, {}


def half_width(values, axis=None):
    """Return half the width of the interval between the quantiles of 16 and 84 %."""
    low, high = np.quantile(values, [0.1587, 0.8413], axis=axis)
    return (high - low) / 2


# All of it.


def side_table(run, name):
    """Return the path of a side table of the campaign."""
    return table_paths(run.paths.tables())[name]


def predict(run, blocks):
    """Return the columns that crpipe predicts with the checkpoint of its page."""
    model = run.model("best")
    columns = [model.predict(block) for block in blocks]
    return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}


def compared(rows):
    """Return a row of text for each metric, value ± error and paired differences; and these as numbers."""
    lines, numbers, rng = [], {}, np.random.default_rng(1)
    for words, values, number, part in rows:
        index = np.flatnonzero(part)
        resampled = rng.choice(index, (300, len(index)))
        value = {name: float(number(each[index])) for name, each in values.items()}
        drawn = {name: number(each[resampled], axis=1) for name, each in values.items()}
        rest = [name for name in METHODS if name != "crpipe"]
        line = [f"{value[name]:.3g} ± {drawn[name].std():.2g}" for name in METHODS]
        line += [
            f"{value['crpipe'] - value[name]:+.2g} ± {(drawn['crpipe'] - drawn[name]).std():.2g}"
            for name in rest
        ]
        lines.append(f"| {words} | {' | '.join(line)} |")
        numbers[words] = {
            name: [value[name], value["crpipe"] - value[name], float((drawn["crpipe"] - drawn[name]).std())]
            for name in rest
        }
    return lines, numbers


def measure(name, folder, seconds, events, files=7):
    """Measure everything on one detector: the lines of a table, and the paired differences by metric."""
    kind, write = DETECTORS[name]
    folder = folder / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    events = events if kind == "direction" else max(events // 3, 1)
    epochs = max(1, round(EPOCHS[kind] * seconds / 120))
    run, spent = run_crpipe(settings(kind, write, folder, files, events, epochs), folder, files)
    train, test = (joined(run.shards(part, batch_events=500)) for part in ("train", "test"))
    measured = direction_rows if kind == "direction" else gamma_rows
    rows, cpu, coverage = measured(run, train, test, spent)
    lines, numbers = compared(rows)
    sizes = f"{sum(map(len, train[0])):,} training and {sum(map(len, test[0])):,} test events"
    head = ["", *METHODS, *(f"crpipe - {each}" for each in METHODS if each != "crpipe")]
    words = (
        f"**{name}**, {sizes}; CPU seconds: crpipe and DeepSet {spent:.0f}, trees {cpu['boosted trees']:.0f}."
    )
    if coverage:
        words += (
            " Events in the 68 % circles of κ: "
            + ", ".join(f"{each} {100 * value:.1f} %" for each, value in coverage.items())
            + "."
        )
    return [words, "", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, ""], numbers


def write_table(name, lines):
    """Replace the table of a detector in its page."""
    page = REPOSITORY / "docs" / f"{DETECTORS[name][0]}.md"
    before, begin, after = page.read_text().partition(f"<!-- strong baselines: {name} -->\n")
    date = f"Measured on {dt.datetime.now(dt.UTC):%Y-%m-%d}: "
    _, end, after = after.partition("<!-- end of strong baselines -->")
    page.write_text("".join([before, begin, date, "\n".join(lines), end, after]))


def main():
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(DETECTORS))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--events", type=int, default=4000, help="of a file; gammas: a third")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for name in options.names:
        lines, _ = measure(name, options.folder.absolute(), options.seconds, options.events)
        print(*lines, sep="\n", flush=True)  # noqa: T201
        if options.write:
            write_table(name, lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
