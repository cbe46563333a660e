"""The contract of a workload in training: a killed one ends in the same bytes; an export is checked."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import validate
from crpipe.contract.batches import changed_tensors
from crpipe.contract.cases import Case, check, skip
from crpipe.core.errors import CrpipeError, MachineError, MissingExtra
from crpipe.core.files import sha256
from crpipe.core.paths import MANIFEST
from crpipe.core.signals import StopRequest
from crpipe.core.text import NullProgress
from crpipe.events.histograms import count_columns
from crpipe.events.shard_records import ShardManifest
from crpipe.events.shard_writer import write_shard
from crpipe.inference.card import provenance
from crpipe.inference.checkpoints import open_its_reader, open_model
from crpipe.inference.export import CONFIG, Exportable, export_model
from crpipe.inference.predictor import Predictor
from crpipe.source.side_tables import stage_tables
from crpipe.train.answers import phases_of, refuse
from crpipe.train.checkpoints import CheckpointStore
from crpipe.train.link_plan import LinkPlan
from crpipe.train.loop import Trainer
from crpipe.train.ranks import World
from crpipe.train.workload import Calibrates, Fits, Validates

if TYPE_CHECKING:
    from pathlib import Path

    from crpipe.train.link_start import Saved

KIND = "workload"
_KEPT = ("workload", "ema_decay", "gradient_clip_norm", "fresh_batches")  # float32: it trains on a CPU
_KILLED_AFTER = 4  # steps, of about six; the last snapshot is two steps older


class _Killed(BaseException):
    """What ends a training as SIGKILL does: nothing is saved."""


class _KillAfter(StopRequest):
    """Kills the training at the end of a step."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def reason(self) -> str:
        """Return no reason, or end the training."""
        self.left -= 1
        if not self.left:
            raise _Killed
        return ""


def tiny_campaign(case: Case, folder: Path) -> Campaign:
    """Write the events of a case as the shards of a campaign of one range."""
    given, workload = case.config, case.workload()
    tree = given.model_dump(mode="json", exclude_unset=True)
    repeats = max(phase.repeat for phase in phases_of(workload))
    train = {key: value for key, value in tree.get("train", {}).items() if key in _KEPT}
    train |= {"passes_per_link": 2 * repeats, "log_steps": 2, "snapshot_steps": 2, "device": "cpu"}
    train["schedule"] = {"shape": given.train.schedule.shape, "warmup_steps": 1}
    train |= {"validate_every": 3} if isinstance(workload, Validates) else {}
    tables = {name: str(path.resolve()) for name, path in case.tables.items()}
    source = {"reader": given.source.reader, "uri": "/nowhere/{range}", "tables": tables}
    events = case.events
    tree |= {
        "results": str(folder / "results"),
        "runs": str(folder / "runs"),
        "source": source,
        "ranges": {"first": 0, "last": 0, "size": 1},
        "load": {**tree.get("load", {}), "batch_size": max(1, -(-len(events) // 4)), "prefetch": 0},
        "train": train,
    }
    tree.pop("simulator", None)
    config = validate(tree)
    stage_tables(Campaign.open(config), NullProgress())
    campaign = Campaign.open(config)
    (name,), held_out = campaign.ranges, max(1, len(events) // 4)
    parts = {
        "train": events.part(0, len(events) - held_out),
        "validation": events.part(len(events) - held_out, len(events)),
    }
    shards, layout = campaign.paths.shards(name), campaign.layout
    histograms = count_columns(parts["train"].columns, config.split.histograms)
    for path in (shards, campaign.paths.outliers(name)):
        path.mkdir(parents=True)
        entries = [
            write_shard(path, f"{role}-00000", role, layout, [part])  # type: ignore[arg-type]
            for role, part in parts.items()
            if path == shards
        ]
        ShardManifest(
            range=name,
            data=campaign.data,
            shards=tuple(entries),
            layout=layout.describe(),
            threshold=config.split.outlier_above,
            histograms={column: each.describe() for column, each in histograms.items()},
        ).write(path / MANIFEST)
    return campaign


def train(case: Case, campaign: Campaign, stop: StopRequest | None = None) -> Saved:
    """Train the first link as `crpipe train` does, to its end or until ``stop`` ends it."""
    link = campaign.chain.links[0]
    workload = case.workload()
    store = CheckpointStore(campaign.paths.store(link.name), "0" * 16)
    plan = LinkPlan(campaign, link)
    world = World(0, 1, torch.device("cpu"))
    saved = Trainer(plan, workload, world, NullProgress(), store, stop or StopRequest()).run()
    assert saved is not None
    return saved


@cache
def finished(case: Case) -> tuple[Campaign, Saved]:
    """Train a case to its end, once for all tests: they only read what it left."""
    campaign = tiny_campaign(case, case.scratch())
    return campaign, train(case, campaign)


@check(KIND)
def a_killed_training_ends_in_the_same_bytes(case: Case) -> None:
    """Killed between two snapshots and begun again, it ends as one that nobody interrupted."""
    _, uninterrupted = finished(case)
    killed = tiny_campaign(case, case.scratch())
    with suppress(_Killed):
        train(case, killed, _KillAfter(_KILLED_AFTER))
        skip("too few events for a training of four steps; name larger files, or a smaller batch")
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002 - a process of its own has another state
    resumed = train(case, killed)
    if resumed.sha256 != uninterrupted.sha256:
        weights = [torch.load(each.path, weights_only=True)["model"] for each in (uninterrupted, resumed)]
        apart = changed_tensors(*weights)
        other = f"another {apart[:1] or 'metric'}"
        refuse(case.plugin(KIND), "the same checkpoint after a kill and a resume", other)


@check(KIND)
def corrections_are_buffers_and_measured_without_themselves(case: Case) -> None:
    """A fit gives the same for the same events; a calibration changes no deviation, so it may be repeated."""
    campaign, saved = finished(case)
    trained = open_model(campaign, saved.path)
    workload, model, blocks = trained.workload, trained.model, [case.events]
    weights = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        if isinstance(workload, Fits):
            states = []
            for _ in range(2):
                workload.fit(model, iter(blocks))
                states.append({name: buffer.clone() for name, buffer in model.named_buffers()})
            if changed_tensors(*states):
                refuse(f"{trained.name}.fit", "the same buffers for the same events", "others")
        if isinstance(workload, Calibrates):
            generators = [torch.Generator().manual_seed(1) for _ in range(2)]
            before = workload.deviations(model, case.events, generators[0])
            workload.calibrate(model, before)
            after = workload.deviations(model, case.events, generators[1])
            if not all(np.array_equal(before[name], after[name], equal_nan=True) for name in before):
                refuse(f"{trained.name}.deviations", "the same after `calibrate`", "others")
    if changed_tensors(weights, dict(model.named_parameters())):
        refuse(case.plugin(KIND), "`fit` and `calibrate` to change buffers alone", "other weights")


@check(KIND)
def a_checkpoint_predicts(case: Case) -> None:
    """Options, tables and weights of a checkpoint are enough: histograms are there in training alone."""
    campaign, saved = finished(case)
    trained = open_model(campaign, saved.path)
    Predictor(trained, torch.device("cpu")).predict(case.events, 1, campaign.layout)


@check(KIND, slow=True)
def an_export_is_whole_and_the_same_each_time(case: Case) -> None:
    """Graphs, which the workload compares with its model, are listed, load without torch, and have a card."""
    if not isinstance(case.workload(), Exportable):
        skip("it has no `graphs`")
    campaign, saved = finished(case)
    folders = [case.scratch(), case.scratch()]
    for folder in folders:
        try:
            export_model(campaign, saved.path, folder, NullProgress())
        except MissingExtra as error:
            skip(str(error))
    method = f"{case.plugin(KIND)}.graphs"
    written = [
        {str(path.relative_to(each)): sha256(path) for path in each.rglob("*") if path.is_file()}
        for each in folders
    ]
    unlisted = written[0].keys() - json.loads((folders[0] / CONFIG).read_text())["files"].keys() - {CONFIG}
    if unlisted:
        refuse(method, "every file of the export among Graphs.files", f"{min(unlisted)} besides")
    changed = [name for name in written[0] if written[0][name] != written[1].get(name)]
    if changed:
        refuse(method, "the same bytes each time", f"another {changed[0]}")
    if find_spec("onnxruntime") is None:
        skip("onnxruntime is not installed")
    onnxruntime: Any = import_module("onnxruntime")
    for path in folders[0].glob("*.onnx"):
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@check(KIND, slow=True)
def graphs_that_differ_from_the_model_are_refused(case: Case) -> None:
    """A workload compares each graph with its model: of weights that are NaN no graph can be right."""
    if not isinstance(case.workload(), Exportable):
        skip("it has no `graphs`")
    campaign, saved = finished(case)
    trained = open_model(campaign, saved.path)
    workload: Any = trained.workload
    origin = provenance(trained, open_its_reader(trained).layout, campaign, NullProgress())
    with torch.no_grad():
        for weight in trained.model.parameters():
            weight.fill_(torch.nan)
    try:
        workload.graphs(trained.model, origin, case.scratch())
    except MissingExtra as error:
        skip(str(error))
    except MachineError:
        raise
    except CrpipeError:
        return
    refuse(f"{case.plugin(KIND)}.graphs", "CheckpointError for a graph that differs from its model", "none")
