"""What pretraining gives: resolution against the number of labelled events, from scratch and pretrained.

One command: ``python benchmarks/xec_pretraining.py [--figure FILE]``. A MaskedAutoencoder learns from
simulated events without their truth; then Regressors learn energy and position from fewer events with truth,
each once from scratch and once from that encoder (train.init_from, train.init_map), all with the same steps,
batches and learning rate. All are campaigns of crpipe over one set of shards. A tenth of the labelled events
chooses the best checkpoint; the test events are the same for all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from crpipe.campaign.campaign import Campaign, claim_data
from crpipe.config.loading import load_config
from crpipe.core.text import Silent
from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.report.figure_style import COLOURS, new_figure, save, style
from crpipe.source.listing import list_range
from crpipe.source.side_tables import stage_tables
from crpipe.source.stage import stage_range
from crpipe.split.split import split_range

FILES, FILE_EVENTS = 10, 100  # of a range: nine files to train on, one to choose the best checkpoint with
RANGE_EVENTS = FILES * FILE_EVENTS
TEST_RANGES = 4
BATCH = 100
PACKAGE = "crpipe.workloads.xec"
SHOWN = {
    "energy_resolution": "energy resolution [%]",
    "distance_resolution": "distance to the true position, 68 % [cm]",
}
Settings = dict[str, Any]


def settings_of(given: argparse.Namespace, folder: Path) -> Settings:
    """Give what all campaigns share: the events, and who is held out."""
    ranges = given.unlabelled // RANGE_EVENTS
    files = FILES * (ranges + TEST_RANGES)
    return {
        "source.uri": "synthetic://",
        "source.reader": f"{PACKAGE}.reading.root:RootFiles",
        "source.simulator": f"{PACKAGE}.simulator.files:XenonDetector",
        "simulator.events_per_file": FILE_EVENTS,
        "simulator.files_per_range": FILES,
        "ranges.first": 0,
        "ranges.last": files - 1,
        "ranges.step": FILES,
        "split.threshold": 1_000_000,
        "split.validation_fraction": 0,
        "split.validation_files": list(range(FILES - 1, FILES * ranges, FILES)),
        "split.test_files": [f"{FILES * ranges:07}-{files - 1:07}"],
        "split.workers": 1,
        "train.ranges_per_link": 0,
        "train.schedule": "one_cycle",
        "train.device": "cpu",
        "load.batch_events": BATCH,
        "evaluate.events": TEST_RANGES * RANGE_EVENTS,
        "evaluate.checkpoint": "best",
        "results": str(folder / "results"),
        "runs": str(folder / "runs"),
    }


def texts(settings: Settings) -> tuple[str, ...]:
    """Write settings as --set takes them."""
    return tuple(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()
    )


def split_one(settings: Settings, name: str) -> None:
    """Simulate and split one range."""
    config = load_config((), texts(settings))
    list_range(Campaign.open(config), name, Silent())
    stage_range(Campaign.open(config), name, Silent())
    split_range(Campaign.open(config), name, Silent())


def make_shards(settings: Settings) -> list[str]:
    """Simulate and split all ranges that are not there yet; give their names."""
    settings = settings | {"train.workload": f"{PACKAGE}:Regressor"}
    config = load_config((), texts(settings))
    claim_data(config)
    stage_tables(Campaign.open(config), Silent())
    names = [str(name) for name in config.all_ranges()]
    missing = [name for name in names if not config.paths().shard_manifest(name).exists()]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(split_one, [settings] * len(missing), missing))
    return names


def crpipe(settings: Settings, *verb: str) -> None:
    """Run a verb of crpipe on one thread."""
    options = [word for text in texts(settings) for word in ("--set", text)]
    command = [sys.executable, "-m", "crpipe", *options, *verb]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(verb)}: {done.stdout[-2000:]}{done.stderr[-4000:]}")


def link_of(settings: Settings) -> str:
    """Name the only link of a campaign."""
    return Campaign.open(load_config((), texts(settings))).chain.names[0]


def pretrain(given: argparse.Namespace, shared: Settings, names: list[str]) -> Path:
    """Train the autoencoder on all but the test events; give the receipt of its checkpoint."""
    settings = shared | {
        "run": "pretraining",
        "ranges.skip": names[-TEST_RANGES:],
        "train.workload": f"{PACKAGE}:MaskedAutoencoder",
        "model.decoder": 8,
        "train.epochs": given.pretraining_epochs,
        "train.threads": os.cpu_count(),
        "train.validate_steps": 500,
        "train.validate_events": 500,
        **model_of(given),
    }
    begin = time.perf_counter()
    crpipe(settings, "train", link_of(settings))
    receipt = load_config((), texts(settings)).paths().receipt(link_of(settings))
    found = json.loads(receipt.read_text())
    seconds = time.perf_counter() - begin
    print(f"pretraining: {given.unlabelled:,} events, {found['step']} steps, {seconds:.0f} s")
    metrics = {name: value for name, value in found["metrics"].items() if isinstance(value, float)}
    print("  " + ", ".join(f"{name} {value:.3g}" for name, value in metrics.items()), flush=True)
    return receipt


def model_of(given: argparse.Namespace) -> Settings:
    """Give the options of the encoder and its learning rate."""
    return {f"model.{name}": value for name, value in (text.split("=") for text in given.model)}


def fit(
    given: argparse.Namespace, shared: Settings, names: list[str], labelled: int, source: Path | None
) -> dict[str, Any]:
    """Train a regressor on so many events and evaluate it on the test events; give metrics.json."""
    ranges = labelled // RANGE_EVENTS
    per_epoch = ranges * (FILES - 1) * FILE_EVENTS // BATCH
    settings = shared | {
        "run": f"{labelled}-{'pretrained' if source else 'scratch'}",
        "train.workload": f"{PACKAGE}:Regressor",
        "train.epochs": max(1, round(given.steps / per_epoch)),
        "train.threads": 1,
        "train.validate_steps": max(9, given.steps // 10),
        "train.validate_events": 1000,
        "train.keep_best": "fit/loss",
        **model_of(given),
    }
    if source:
        settings |= {"train.init_from": str(source), "train.init_map": {"encoder.": "encoder."}}
    trained = settings | {"ranges.skip": names[ranges:]}
    link = link_of(trained)
    crpipe(trained, "train", link)
    # The test events are in ranges that are not trained on.
    judged = settings | {"run": f"{settings['run']}-test"}
    paths = load_config((), texts(trained)).paths()
    crpipe(judged, "evaluate", link, "--checkpoint", str(paths.best_receipt(link)))
    folder = load_config((), texts(judged)).paths().run_dir() / "evaluation"
    (found,) = folder.glob("*/metrics.json")
    metrics: dict[str, Any] = json.loads(found.read_text())
    return metrics | {"steps": json.loads(paths.receipt(link).read_text())["step"]}


def show(rows: dict[tuple[int, bool], dict[str, Any]]) -> None:
    """Print the table."""
    print(
        f"{'labelled':>9}  {'':12}{'steps':>6}{'best at':>9}"
        + "".join(f"{name:>44}" for name in SHOWN.values())
    )
    for (labelled, pretrained), found in rows.items():
        cells = [f"{found['values'][name]:.3f} ± {found['values'][f'{name}_error']:.3f}" for name in SHOWN]
        start = "pretrained" if pretrained else "from scratch"
        print(
            f"{labelled:9,}  {start:12}{found['steps']:6}{found['step']:9}"
            + "".join(f"{c:>44}" for c in cells)
        )
    baseline = next(iter(rows.values()))["baseline"]
    print(
        f"{'simple reconstruction':38}"
        + "".join(f"{baseline.get(name, float('nan')):44.3f}" for name in SHOWN)
    )


def draw(given: argparse.Namespace, rows: dict[tuple[int, bool], dict[str, Any]]) -> None:
    """Write the figure."""
    with style(), figures_of(FigureContext(copies=False)):
        figure = new_figure(3.2)
        for axes, (name, label) in zip(figure.subplots(1, len(SHOWN)), SHOWN.items(), strict=True):
            for pretrained, colour in ((False, COLOURS[1]), (True, COLOURS[0])):
                chosen = {count: each["values"] for (count, kind), each in rows.items() if kind == pretrained}
                axes.errorbar(
                    list(chosen),
                    [values[name] for values in chosen.values()],
                    [values[f"{name}_error"] for values in chosen.values()],
                    fmt="o-",
                    color=colour,
                    label=f"pretrained on {given.unlabelled:,} events" if pretrained else "from scratch",
                )
            simple = next(iter(rows.values()))["baseline"].get(name, float("nan"))
            title = f"{given.steps} steps each; simple reconstruction: {simple:.3g}"
            axes.set(xscale="log", xlabel="labelled events", ylabel=label, title=title)
            axes.legend()
        print(save(figure, given.figure))


def main() -> None:
    """Simulate, train, evaluate; print the table and write the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unlabelled", type=int, default=30_000, help="events for the autoencoder")
    parser.add_argument("--pretraining-epochs", type=int, default=6)
    parser.add_argument("--labelled", type=int, nargs="+", default=[1_000, 5_000, 20_000])
    parser.add_argument("--steps", type=int, default=720, help="of each regressor, in batches of 100")
    parser.add_argument(
        "--model", nargs="*", default=["channels=16"], help="options of both models, as learning_rate=1e-3"
    )
    parser.add_argument("--parallel", type=int, default=os.cpu_count(), help="regressors trained at once")
    parser.add_argument("--figure", type=Path, default=Path("pretraining.svg"))
    parser.add_argument("--folder", type=Path, help="where all is kept; default: a temporary directory")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        shared = settings_of(given, given.folder or Path(name))
        begin = time.perf_counter()
        names = make_shards(shared)
        print(
            f"{RANGE_EVENTS * len(names):,} events simulated and split: {time.perf_counter() - begin:.0f} s"
        )
        receipt = pretrain(given, shared, names)
        tasks = [(labelled, source) for labelled in given.labelled for source in (None, receipt)]
        with ThreadPoolExecutor(given.parallel) as pool:
            found = pool.map(lambda task: fit(given, shared, names, *task), tasks)
            rows = {
                (labelled, source is not None): each
                for (labelled, source), each in zip(tasks, found, strict=True)
            }
    print(f"all: {time.perf_counter() - begin:.0f} s")
    show(rows)
    draw(given, rows)


if __name__ == "__main__":
    main()
