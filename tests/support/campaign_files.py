"""A campaign directory as its steps leave it behind, laid out without running them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crpipe.campaign.campaign import Campaign
from crpipe.campaign.ledger import Ledger, LedgerFiles
from crpipe.campaign.records import Receipt
from crpipe.config.loading import Config, load_config
from crpipe.core.files import digest, read_json, write_json
from crpipe.core.paths import CONSOLIDATED
from crpipe.core.ranges import checkpoint_key
from crpipe.events.layout import Field, Layout, Metric
from crpipe.report.estimates import SourceLook
from crpipe.report.plan import Plan
from crpipe.report.state import CampaignState
from crpipe.setup.compatibility import planned_workload
from crpipe.split.ledger import staged_sums
from named import READERS, SIMULATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from crpipe.report.run_time import Rate

STEPS = 400
LOG_STEPS = 20
FILES = 10
EVENTS = 40_000
START = 1_700_000_000.0
LAYOUT = Layout(
    "hits",
    (Field("run", "uint64", "", 0, 1e9, ""), Field("angle_rad", "float32", "rad", 0, 3.2, "")),
    (Field("time_ns", "float32", "ns", 0, 1e6, ""), Field("charge", "float32", "", 0, 1e6, "")),
    ("run",),
).describe()
METRICS = (
    Metric(
        "w1_time", "W1 of the time", "ns", "low", 0.0, tolerance=0.01, meaning="W1 (Wasserstein distance)"
    ),
    Metric("auc_event", "AUC of events", better="near", ideal=0.5, tolerance=0.02),
    Metric("efficiency", "Share of events found", better="high", tolerance=0.05),
)
STOPPED = "no better validation/critic/loss for 3 validations; best 0.5 at step 200"
DEAD_PID = 2**22 + 1  # above the largest process number that Linux gives


@dataclass
class CampaignFiles:
    """Writes the files of single ranges; each method leaves what that step leaves."""

    root: Path
    ranges: int
    overrides: tuple[str, ...] = ()
    clock: float = START
    step: int = 0
    config: Config = field(init=False)

    def __post_init__(self) -> None:
        self.config = load_config(
            (),
            (
                "source.uri=file:///data/{range}/*.parquet",
                f"source.reader={READERS['bundles']}",
                f"source.simulator={SIMULATOR}",
                "train.workload=crpipe.workloads.muons:MuonGan",
                f"results={self.root}/results",
                f"runs={self.root}/runs",
                f"ranges.last={self.ranges * 1000 - 1}",
                "source.disk_budget_gib=2",
                *self.overrides,
            ),
        )
        self.paths = self.config.paths()

    @property
    def data(self) -> str:
        return self.campaign.data

    @property
    def campaign(self) -> Campaign:
        """The campaign with the layout that is recorded, else with LAYOUT."""
        campaign = Campaign.open(self.config, "recorded")
        known = campaign.known_layout or Layout.from_description(LAYOUT)
        return replace(campaign, known_layout=known)

    @property
    def state(self) -> CampaignState:
        """The state of the campaign as it is now."""
        return CampaignState.read(self.campaign)

    def plan(self, seen: SourceLook | None = None, measure: Callable[[], Rate] | None = None) -> Plan:
        """The plan as `crpipe plan` makes it."""
        campaign = Campaign.open(self.config, "either")
        return Plan.of(campaign, planned_workload(self.config), seen or SourceLook(), measure)

    def name(self, index: int) -> str:
        return str(self.config.all_ranges()[index])

    def given_up(self, index: int) -> str:
        """Leave a range out, as ``ranges.on_failure: skip`` does."""
        name = self.listed(index)
        about = {"range": name, "verb": "split", "kind": "FormatError", "cause": "a.parquet: damaged"}
        about |= {"attempts": 3, "log": f"results/logs/split/{name}.log", "time": START}
        about |= {"files": FILES, "bytes": FILES * (40 << 20)}
        self.paths.skipped(name).parent.mkdir(parents=True, exist_ok=True)
        write_json(self.paths.skipped(name), about)
        return name

    def claim(self) -> None:
        self.laid_out()
        write_json(self.paths.campaign(), self.campaign.data_keys)
        write_json(self.paths.run_config(), self.campaign.run_keys)

    def laid_out(self, **changes: object) -> None:
        write_json(self.paths.layout(), {**LAYOUT, **changes})

    def journal(self, verb: str, name: str, what: str, pid: int = DEAD_PID, **more: object) -> None:
        data = verb in {"list", "stage", "split", "consolidate"}
        path = self.paths.data_journal() if data else self.paths.train_journal()
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"time": self.clock, "what": what, "host": platform.node(), "pid": pid, "verb": verb}
        with path.open("a") as handle:
            handle.write(json.dumps({**row, "range": name, **more}) + "\n")

    def attempt(self, verb: str, name: str, seconds: float = 60.0) -> None:
        self.journal(verb, name, "start")
        self.clock += seconds
        self.journal(verb, name, "finished")

    def listed(self, index: int, size: int | None = 40 << 20, files: int = FILES) -> str:
        name = self.name(index)
        names = [f"{number:07d}.parquet" for number in range(files)]
        table = pa.table(
            {
                "path": names,
                "uri": [f"file:///data/{name}/{file}" for file in names],
                "size": pa.array([size] * files, pa.int64()),
                "mtime": pa.array([None] * files, pa.timestamp("us", tz="UTC")),
            }
        )
        self.paths.manifest(name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, self.paths.manifest(name))
        self.attempt("list", name, 2.0)
        return name

    def copied(self, index: int, files: int) -> str:
        name = self.listed(index)
        folder = self.paths.raw(name)
        folder.mkdir(parents=True)
        for number in range(files):
            path = folder / f"{number:07d}.parquet"
            path.touch()
            os.truncate(path, 40 << 20)
        (folder / ".proofs.jsonl").write_text("{}\n")
        return name

    def staged(self, index: int) -> str:
        name = self.copied(index, FILES)
        self.paths.staged(name).touch()
        self.attempt("stage", name)
        return name

    def split(
        self,
        index: int,
        quarantined: int = 0,
        rejected: int = 0,
        data: str = "",
        size: int | None = 40 << 20,
        empty: int = 0,
    ) -> str:
        name = self.listed(index, size)
        outliers, validation = 100 + index, EVENTS // 20
        events = {"outliers": outliers, "rejected": rejected, "validation": validation}
        events |= dict.fromkeys(("test", "validation_outliers", "test_outliers"), 0)
        events |= {"listed": EVENTS, "train": EVENTS - validation - outliers - rejected}
        items = {
            "outliers": 9_000_000,
            "rejected": 0,
            "validation": 20_000,
            **dict.fromkeys(("test", "validation_outliers", "test_outliers"), 0),
            "train": 380_000,
            "listed": 9_400_000,
        }
        ledger = {"range": name, "data": data or self.data, "threshold": self.config.split.outlier_above}
        ledger |= {"events": events, "items": items, "files": _files(quarantined), "balanced": True}
        ledger |= {"quarantined": quarantined, "rejected": _rejected(rejected), "empty": empty}
        ledger |= {"staged": staged_sums(LedgerFiles.from_json(ledger).files).as_json()}
        write_ledger(self.paths.ledger(name), ledger)
        write_json(self.paths.multiplicity(name).with_suffix(".histogram.json"), histogram(EVENTS))
        self._manifest(self.paths.outlier_manifest(name), name, {"outliers": outliers}, data)
        bulk = {"train": events["train"], "validation": validation}
        self._manifest(self.paths.shard_manifest(name), name, bulk, data)
        self.attempt("split", name)
        return name

    @contextlib.contextmanager
    def changed_ledger(self, name: str) -> Iterator[dict[str, Any]]:
        """Give a ledger as JSON has it, and write it again as it is after the block."""
        ledger = read_json(self.paths.ledger(name))
        yield ledger
        write_json(self.paths.ledger(name), ledger)

    def consolidated(self, events: int) -> None:
        self._manifest(self.paths.outlier_manifest(CONSOLIDATED), CONSOLIDATED, {"outliers": events}, "")
        self.attempt("consolidate", "")

    def trained(self, name: str, fingerprint: str = "", stopped: str = "") -> None:
        link = self.campaign.chain.named(name)
        self.journal("train", name, "start")
        self.metrics(name, STEPS)
        self.clock += 30.0
        self.journal("train", name, "finished")
        receipt = {"range": name, "ranges": list(link.ranges), "round": link.round, "key": "k"}
        receipt |= {"checkpoint": "checkpoint-k-0.pt", "sha256": "0" * 64}
        receipt |= {"stopped": stopped} if stopped else {}
        receipt |= {"parent": "", "fingerprint": fingerprint or self.campaign.fingerprint, "metrics": {}}
        receipt |= {"step": self.step, "events": self.step * 90, "items": self.step * 900, "skipped": 1}
        write_json(self.paths.receipt(name), receipt)
        (self.paths.store(name) / "checkpoint-k-0.pt").write_bytes(b"0" * 1000)
        os.utime(self.paths.receipt(name), (self.clock, self.clock))

    def best(self, name: str, metric: str, value: float) -> None:
        about = {"range": name, "key": "k", "checkpoint": "best-k-0000000100-0.pt", "sha256": "1" * 64}
        write_json(self.paths.best_receipt(name), {**about, "step": 100, "metric": metric, "value": value})

    def metrics(self, name: str, steps: int) -> None:
        path = self.paths.store(name) / "metrics.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as handle:
            for range_step in range(LOG_STEPS, steps + 1, LOG_STEPS):
                self.step += LOG_STEPS
                self.clock += 10.0
                row = {"range": name, "range_step": range_step, "range_steps": STEPS, "epoch": 0}
                handle.write(json.dumps({**row, "time": self.clock, **metrics_at(self.step)}) + "\n")

    def snapshot(self, name: str) -> None:
        (self.paths.store(name) / "snapshot-k-0000000100-0.pt").touch()

    def evaluated(
        self, name: str, values: dict[str, float], metrics: tuple[Metric, ...] = METRICS, **columns: object
    ) -> None:
        head = {"checkpoint": "0" * 64, "step": self.step, "events": 1000}
        declared = [metric.describe() for metric in metrics]
        write_json(
            self.paths.evaluation(name) / "metrics.json",
            {**head, "metrics": declared, "values": values, **columns},
        )

    def _manifest(self, path: Path, name: str, roles: dict[str, int], data: str) -> None:
        shards = []
        for role, events in roles.items():
            file = {"size": events * 100, "sha256": "0" * 64}
            shard = {"name": f"{role}-00000", "role": role, "events": events, "items": events * 10}
            shards.append({**shard, "files": {"events": file, "hits": file}})
        layout = {"range": name, "data": data or self.data, "layout": LAYOUT, "threshold": 50_000}
        write_json(path, {**layout, "shards": shards})


def write_ledger(path: Path, tree: dict[str, Any]) -> None:
    """Write a ledger that is given as JSON has it."""
    Ledger.from_json(tree).write(path)


def _files(quarantined: int) -> list[dict[str, object]]:
    bad = range(FILES - quarantined, FILES)
    return [
        {
            "path": f"{number:07d}.parquet",
            "size": 40 << 20,
            "state": "quarantined" if number in bad else "staged",
            "reason": "12 bytes short of 41943040" if number in bad else "",
            "checksum": "",
            "algorithm": "",
            "verified": "" if number in bad else "source-checksum",
            "events": 0 if number in bad else EVENTS // FILES,
            "items": 0 if number in bad else 940_000,
        }
        for number in range(FILES)
    ]


def _rejected(count: int) -> list[dict[str, object]]:
    reason = "angle_rad 9.9 is above 3.1415930"
    return [{"file": "0000003.parquet", "row": row, "reason": reason, "items": 0} for row in range(count)]


def histogram(events: int) -> dict[str, list[float]]:
    edges = [0, *sorted({round(10 ** (index / 10)) for index in range(81)})]
    weights = np.array([6.0, *(10 ** (-0.08 * index) for index in range(len(edges) - 2))])
    counts = np.floor(events * weights / weights.sum()).astype(int)
    return {"edges": edges, "events": [int(count) for count in counts]}


def metrics_at(step: int) -> dict[str, float]:
    wave = math.sin(step * 12.9898) * 43758.5453
    noise = wave - math.floor(wave) - 0.5
    decay = math.exp(-step / 4000)
    return {
        "step": step,
        "events": step * 90,
        "items": step * 900,
        "skipped": 1,
        "critic/loss": -2.5 * decay - 0.1 + 0.4 * noise,
        "critic/wasserstein": 2.0 * decay + 0.08 + 0.3 * noise,
        "critic/wasserstein_average": 2.0 * decay + 0.08,
        "critic/grad_norm_p50": 1.5 + 0.5 * noise,
        "critic/grad_norm_max": 4.0 + 2.0 * noise,
        "generator/loss": 0.6 - decay + 0.3 * noise,
        "generator/grad_norm_p50": 0.4 + 0.1 * noise,
        "generator/grad_norm_max": 1.4 + 0.4 * noise,
        "multiplicity/loss": 2.2 + 1.5 * decay + 0.05 * noise,
        "learning_rate": 1.0,
        "speed/events_per_s": 80_000 * (1 + 0.1 * noise),
        "speed/items_per_s": 800_000 * (1 + 0.1 * noise),
        "speed/step_s": 0.5,
        "speed/wait_fraction": 0.02,
    }


def realistic(root: Path, ranges: int = 100) -> CampaignFiles:
    """Lay out a campaign in its third week: most trained, one failed, the rest waiting."""
    files = CampaignFiles(root, ranges)
    files.claim()
    done = ranges * 57 // 100
    for index in range(done):
        files.trained(files.split(index, quarantined=2 if index == 3 else 0, rejected=5 if index == 9 else 0))
    name = files.split(done)
    files.journal("train", name, "start")
    files.metrics(name, STEPS // 4)
    files.journal("train", name, "failed", error="RuntimeError: CUDA error: an illegal memory access")
    files.journal("train", name, "start")
    files.metrics(name, 0)
    files.snapshot(name)
    files.staged(done + 1)
    name = files.copied(done + 2, 6)
    files.journal("stage", name, "start", pid=os.getpid())
    name = files.listed(done + 3)
    files.journal("stage", name, "start")
    error = f"pelican://osg-htc.org/{name}/0000004.parquet: 41943028 of 41943040 bytes after 6 tries"
    files.journal("stage", name, "failed", error=error)
    return files


def write_chain(campaign: Campaign, parent: str = "") -> None:
    """Write a receipt for each link of a chain, as trainings one after the other do."""
    for link in campaign.chain.links:
        key = checkpoint_key(link.name, campaign.fingerprint, parent, link.ranges)
        about = dict.fromkeys(("step", "events", "items"), 100 * (1 + campaign.chain.links.index(link)))
        Receipt(
            range=link.name,
            ranges=link.ranges,
            round=link.round,
            key=key,
            checkpoint=f"checkpoint-{key}-0.pt",
            sha256=digest([key]),
            parent=parent,
            fingerprint=campaign.fingerprint,
            skipped=0,
            **about,
        ).write(campaign.paths.receipt(link.name))
        parent = digest([key])


def linked(root: Path, ranges: int = 8, *overrides: str) -> CampaignFiles:
    """Lay out a campaign with two ranges in a link and two rounds: the first two links are trained.

    The first one ended early, and the third one is interrupted; its second range is staged.
    """
    keys = ("train.ranges_per_link=2", "train.passes=2", *overrides)
    files = CampaignFiles(root, ranges, keys)
    files.claim()
    first, second, third = (link.name for link in files.campaign.chain.links[:3])
    for index in range(6):
        files.split(index)
    files.trained(first, stopped=STOPPED)
    files.trained(second)
    files.best(second, "critic/loss", 0.125)
    files.journal("train", third, "start")
    files.metrics(third, STEPS // 4)
    files.snapshot(third)
    files.staged(6)
    return files


def with_validation(root: Path) -> CampaignFiles:
    """Lay out two links whose metrics hold two validations each, and whose best checkpoints are kept."""
    made = CampaignFiles(root, ranges=3)
    for index in range(2):
        name = made.split(index)
        made.trained(name)
        path = made.paths.store(name) / "metrics.jsonl"
        rows = []
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows.append(row)
            if row["range_step"] in (STEPS // 2, STEPS):
                own = {"validation/critic/loss": 0.5, "validation/critic/gap": 0.2, "validation/score": 2.25}
                rows.append({name: value for name, value in row.items() if "/" not in name} | own)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        best = {"range": name, "metric": "score", "value": 2.125, "step": 200, "checkpoint": "b", "key": "k"}
        best["sha256"] = "0" * 64
        write_json(made.paths.best_receipt(name), best)
    return made
