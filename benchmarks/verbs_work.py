"""What benchmarks/verbs.py measures: each verb's work, and what libraries alone take for the same.

Each function prepares a contestant and returns its work, which returns the number of events.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from crpipe.campaign.campaign import Campaign, RunRecord
from crpipe.core.paths import CONSOLIDATED
from crpipe.core.ranges import Chain, ChainLink
from crpipe.core.text import Silent
from crpipe.events.batch import Events, concatenate, cuts
from crpipe.events.shard_manifest import groups_of, layout_of, read_manifest
from crpipe.events.shard_reader import Shards
from crpipe.events.shard_writer import _WRITER, _ZSTD
from crpipe.inference import evaluate
from crpipe.inference.checkpoints import open_checkpoint, open_its_reader
from crpipe.inference.generate import generate_files
from crpipe.inference.inputs import RawInput
from crpipe.inference.predict import predict_files
from crpipe.loading.loader import RangeShards, held_out
from crpipe.report import figure_style, figures
from crpipe.report.page.document import write_report
from crpipe.split import export, outliers
from crpipe.train.ranks import use_threads
from crpipe.workloads.muons import batches as collate
from crpipe.workloads.muons import features
from crpipe.workloads.muons.scoring import classify, metrics, plots
from crpipe.workloads.muons.scoring.score import sample_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crpipe.config.loading import Config
    from crpipe.inference.checkpoints import LoadedModel

    Work = Callable[[], int]

FORMATS = ("svg", "png", "pdf")
_LINK = "first-ranges"  # the link that is evaluated
FILE_EVENTS = 12_700  # of the files that benchmarks/data.py writes


@dataclass(frozen=True)
class Case:
    """What a contestant works on: a campaign, about ``size`` events of its first ``ranges`` ranges.

    More ranges than there are: the same ones again and again.

    scratch: an empty folder. peer: a clone of the earlier system, or None.
    """

    config: Config
    size: int
    scratch: Path
    peer: Path | None
    ranges: int


def _evaluation(case: Case) -> Campaign:
    """Return the campaign with results in the scratch folder, and one link on the first ranges."""
    section = case.config.evaluate.model_copy(update={"events": case.size})
    update = {"evaluate": section, "runs": str(case.scratch)}
    campaign = Campaign.open(case.config.model_copy(update=update))
    ranges = tuple(islice(cycle(campaign.ranges), case.ranges))
    chain = Chain((ChainLink(_LINK, ranges, 1, "", 0, len(ranges)),), ranges)
    return replace(campaign, recorded=RunRecord(chain, campaign.data_keys, campaign.train_keys))


def _opened(case: Case) -> tuple[LoadedModel, torch.Generator]:
    use_threads(1)
    campaign = Campaign.open(case.config)
    receipt = case.config.paths().receipt(campaign.chain.names[0])
    trained = open_checkpoint(receipt, "cpu", campaign.tables, campaign.table_keys)
    return trained, torch.Generator().manual_seed(1)


def _sample(campaign: Campaign) -> Iterator[Events]:
    """Yield the events of an evaluation."""
    config, paths = campaign.config, campaign.paths
    part, ranges = evaluate.judged_on(paths, campaign.ranges)
    folders = [RangeShards.of(paths, name) for name in ranges]
    sizes = {name: getattr(config.evaluate, name) for name in ("events", "batch_events")}
    sizes["budget_items"] = config.load.budget_items
    with contextlib.closing(held_out(folders, part, seed=config.seed, **sizes)) as sample:
        for _, block in sample:
            yield block


def evaluation(case: Case) -> Work:
    """Prepare ``crpipe evaluate``, with the checkpoint of the first link."""
    campaign = _evaluation(case)
    receipt = case.config.paths().receipt(Campaign.open(case.config).chain.names[0])
    _opened(case)

    def work() -> int:
        evaluate.evaluate_link(campaign, _LINK, Silent(), checkpoint=str(receipt))
        results = campaign.paths.evaluation(receipt.stem)
        return pq.read_metadata(results / "predictions.parquet").num_rows

    return work


def reading(case: Case) -> Work:
    """Prepare the loader alone, on the events of an evaluation."""
    campaign = _evaluation(case)
    return lambda: sum(map(len, _sample(campaign)))


def _noise(networks: Any, context: torch.Tensor, event: torch.Tensor) -> Callable[[], None]:
    generator = networks.generator
    noise = torch.randn(len(context), generator.event_latent), torch.randn(len(event), generator.muon_latent)
    return lambda: generator(context, event, *noise)


def _forward(trained: LoadedModel, events: Events, counts: np.ndarray[Any, Any]) -> Callable[[], None]:
    """Prepare the bare passes of the networks for a block of at most 2,000 events; the noise is ready."""
    networks: Any = trained.model
    conditions = torch.from_numpy(features.conditions(events.columns))
    filled = np.flatnonzero(counts)
    steps = [partial(networks.multiplicity, conditions)]
    for low, high in cuts(counts[filled], len(filled), 1 << 13):
        rows = torch.from_numpy(filled[low:high])
        own = torch.from_numpy(counts[filled[low:high]])
        event = torch.repeat_interleave(torch.arange(high - low), own)
        steps.append(_noise(networks, collate.context_of(conditions[rows], own), event))

    def work() -> None:
        for step in steps:
            step()

    return work


def network(case: Case) -> Work:
    """Prepare the bare networks on the events of an evaluation, with the multiplicities that they draw."""
    trained, generator = _opened(case)
    made: Any = trained.workload
    passes = [
        (len(block), _forward(trained, block, made.multiplicities(trained.model, block, generator)))
        for block in map(Events.copy, _sample(_evaluation(case)))
    ]

    def work() -> int:
        with torch.no_grad():
            for _, one in passes:
                one()
        return sum(events for events, _ in passes)

    return work


def _compared(case: Case) -> tuple[Any, Any]:
    """Give what the numbers of an evaluation compare: real and generated samples."""
    trained, generator = _opened(case)
    made: Any = trained.workload
    real = concatenate([block.copy() for block in _sample(_evaluation(case))])
    found = [made.predict(trained.model, real.part(*each), generator) for each in _blocks(len(real))]
    return sample_of(real), sample_of(concatenate(found))


def _blocks(events: int, step: int = 2000) -> list[tuple[int, int]]:
    return [(low, min(low + step, events)) for low in range(0, events, step)]


def numbers(case: Case) -> Work:
    """Prepare the distances and all other numbers of an evaluation but those of classifiers."""
    real, generated = _compared(case)

    def work() -> int:
        metrics.compare(real, generated, {})
        return len(real)

    return work


def sorting(case: Case) -> Work:
    """Prepare numpy's sorts of the values that the distances compare, each as often as it is compared."""
    real, generated = _compared(case)
    both = np.concatenate([real.muons, generated.muons]).astype(np.float64)
    values = [both[:, 0].copy()] * 6 + [np.hypot(both[:, 1], both[:, 2])] * 7
    cells = np.linspace(0, len(both), 11).astype(int)  # as many muons in a sort as in a bin of conditions

    def work() -> int:
        for column in values:
            for low, high in pairwise(cells):
                np.argsort(column[low:high])
        return len(real)

    return work


def classifiers(case: Case) -> Work:
    """Prepare scikit-learn's fits and predictions on the tables of an evaluation."""
    sides = _compared(case)
    rng = np.random.default_rng(0)
    tables = []
    for rows in metrics.CLASSIFIERS.values():
        made = []
        for side in sides:
            event, chosen = rows(side)
            made.append(chosen(rng.permutation(len(event))[: classify.MOST_ROWS]))
        real = np.repeat([True, False], [len(each) for each in made])
        tables.append((np.concatenate(made), real, rng.random(len(real)) < 0.5))

    def work() -> int:
        for table, real, half in tables:
            model = HistGradientBoostingClassifier(max_iter=120, early_stopping=False, random_state=0)
            model.fit(table[half], real[half])
            model.predict_proba(table[~half])
        return len(sides[0])

    return work


def _captured(draw: Callable[[], object], module: Any) -> list[Any]:
    """Let something plot, and keep its figures in place of writing them."""
    kept: list[Any] = []
    with mock.patch.object(module, "save", lambda figure, path: (kept.append(figure), path)[1]):
        draw()
    return kept


def _saving(found: list[Any], folder: Path, count: int) -> Work:
    """Prepare matplotlib's layout and its three formats of each figure."""

    def work() -> int:
        with figure_style.style():
            for number, figure in enumerate(found):
                figure.get_layout_engine().execute(figure)
                figure.set_layout_engine(None)
                for kind in FORMATS:
                    figure.savefig(folder / f"{number}.{kind}", dpi=144)
        return count

    return work


def evaluation_figures(case: Case) -> Work:
    """Prepare matplotlib's work for the figures of an evaluation."""
    sides = _compared(case)
    kept = _captured(lambda: plots.draw_all(*sides, metrics.verdicts(*sides), case.scratch), plots.style)
    return _saving(kept, case.scratch, len(sides[0]))


def campaign_figures(case: Case) -> Work:
    """Prepare ``crpipe figures``."""
    campaign = Campaign.open(case.config, "recorded")
    return lambda: len(figures.plot_figures(campaign))


def bare_figures(case: Case) -> Work:
    """Prepare matplotlib's work for the figures of a campaign."""
    campaign = Campaign.open(case.config, "recorded")
    kept = _captured(lambda: figures.plot_figures(campaign), figures)
    return _saving(kept, case.scratch, len(kept))


def page(case: Case) -> Work:
    """Prepare ``crpipe report``."""
    campaign = Campaign.open(case.config, "recorded")

    def work() -> int:
        write_report(campaign, case.scratch / "report.html")
        return 1

    return work


def _stored(case: Case, role: str) -> Iterator[Events]:
    """Give the outliers of all ranges, or the events of a role of the first one."""
    paths, names = case.config.paths(), list(map(str, case.config.all_ranges()))
    folders = [paths.outliers(name) for name in names] if role == "outliers" else [paths.shards(names[0])]
    for folder in folders:
        layout = layout_of(read_manifest(folder, None), folder)
        yield from groups_of(Shards(folder, role, layout), layout)


def merging(case: Case) -> Work:
    """Prepare ``crpipe consolidate``."""
    campaign = Campaign.open(case.config)
    copy = replace(campaign, paths=replace(campaign.paths, results=case.scratch / "results"))
    for name in campaign.ranges:
        copy.paths.outliers(name).parent.mkdir(parents=True, exist_ok=True)
        copy.paths.outliers(name).symlink_to(campaign.paths.outliers(name).absolute())

    def work() -> int:
        outliers.consolidate_outliers(copy, Silent())
        entries = read_manifest(copy.paths.outliers(CONSOLIDATED), None)["shards"]
        return sum(entry["items"] for entry in entries)

    return work


def merging_bare(case: Case) -> Work:
    """Prepare pyarrow and sha256 alone: decode all outliers' items, encode them in memory, hash both."""
    paths = [
        path
        for name in map(str, case.config.all_ranges())
        for path in _items(case.config.paths().outliers(name))
    ]

    def work() -> int:
        count = 0
        for path in paths:
            table = pq.read_table(path, use_threads=False)
            options = {"use_byte_stream_split": table.schema.names, **_ZSTD, **_WRITER}
            made = pa.BufferOutputStream()
            pq.write_table(table, made, **options)
            hashlib.sha256(path.read_bytes())
            hashlib.sha256(made.getvalue())
            count += len(table)
        return count

    return work


def _items(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if ".events." not in path.name)


def merging_copy(case: Case) -> Work:
    """Prepare a copy of the outliers' items in memory."""
    groups = list(_stored(case, "outliers"))
    return lambda: sum(len(group.items.copy()) for group in groups)


def exporting(case: Case) -> Work:
    """Prepare ``crpipe shards export`` of the first range."""
    folder = case.config.paths().shards(str(case.config.all_ranges()[0]))
    return lambda: export.export_shards([folder], case.scratch / "out", None, Silent())


def exporting_bare(case: Case) -> Work:
    """Prepare pyarrow alone: decode the shards, encode a table of the same lists in memory."""
    folder = case.config.paths().shards(str(case.config.all_ranges()[0]))
    layout = layout_of(read_manifest(folder, None), folder)
    tables = [
        export.flat_table(events, layout)
        for role in ("train", "validation")
        for events in _stored(case, role)
    ]
    paths = sorted(folder.glob("*.parquet"))

    def work() -> int:
        for path in paths:
            pq.read_table(path, use_threads=False)
        for table in tables:
            pq.write_table(table, pa.BufferOutputStream(), compression="zstd", use_dictionary=False)
        return sum(map(len, tables))

    return work


def _campaign(case: Case) -> tuple[Campaign, Path]:
    """Open the campaign as its verbs do, and name the receipt of its first link."""
    campaign = Campaign.open(case.config, layout="recorded")
    return campaign, campaign.paths.receipt(campaign.ranges[0])


def _raw(case: Case) -> list[Path]:
    """Name raw files of about ``size`` events."""
    found = sorted(Path("raw").rglob("*.parquet"))
    if found:
        return found[: max(1, round(case.size / FILE_EVENTS))]
    raise SystemExit(f"{case.config.source.uri}: no raw files are kept")


def predicting(case: Case) -> Work:
    """Prepare ``crpipe predict`` of raw files."""
    campaign, receipt = _campaign(case)
    inputs, out = _raw(case), case.scratch / "out.parquet"
    _opened(case)
    return lambda: predict_files(campaign, receipt, inputs, out, Silent(), device="cpu")


def predicting_reader(case: Case) -> Work:
    """Prepare the reader alone, on raw files."""
    trained, _ = _opened(case)
    raw = RawInput(tuple(_raw(case)), open_its_reader(trained), {})
    return lambda: sum(map(len, raw.blocks(2000, 2_000_000)))


def predicting_network(case: Case) -> Work:
    """Prepare the bare networks on the events of raw files."""
    trained, generator = _opened(case)
    made: Any = trained.workload
    raw = RawInput(tuple(_raw(case)), open_its_reader(trained), {})
    passes, count = [], 0
    for block in raw.blocks(2000, 2_000_000):
        counts = made.multiplicities(trained.model, block, generator)
        passes.append(_forward(trained, block, counts))
        count += len(block)

    def work() -> int:
        with torch.no_grad():
            for one in passes:
                one()
        return count

    return work


def _conditions(case: Case) -> Path:
    """Write a flat table of primaries with multiplicities, in the order that the earlier system wants."""
    trained, _ = _opened(case)
    raw = RawInput(tuple(_raw(case)), open_its_reader(trained), {})
    names = ("energy_gev", "zenith_rad", "mass_number", "time", "depth_m")
    blocks = list(raw.blocks(1 << 16, 1 << 30))
    columns = {
        name: np.concatenate([block.columns.get(name, np.zeros(len(block), np.float32)) for block in blocks])
        for name in names
    }
    columns["multiplicity"] = np.concatenate([block.multiplicity for block in blocks]).astype(np.int64)
    path = case.scratch / "primaries.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def generating(case: Case) -> Work:
    """Prepare ``crpipe generate --flat --multiplicity column`` of a flat table."""
    campaign, receipt = _campaign(case)
    inputs, out = [_conditions(case)], case.scratch / "out.parquet"
    how = {"multiplicity": "column", "cap": 10_000_000, "flat": True, "device": "cpu"}
    return lambda: generate_files(campaign, receipt, inputs, out, Silent(), **how)  # type: ignore[arg-type]


def generating_network(case: Case) -> Work:
    """Prepare the bare networks on the same primaries and multiplicities."""
    trained, _ = _opened(case)
    table = pq.read_table(_conditions(case))
    columns: dict[str, Any] = {name: table[name].to_numpy() for name in table.column_names}
    counts = columns.pop("multiplicity")
    passes = []
    for low, high in _blocks(len(counts)):
        part = {name: column[low:high] for name, column in columns.items()}
        block = Events(part, counts[low:high].astype(np.uint32), np.empty((0, 0), np.float32))
        passes.append(_forward(trained, block, counts[low:high]))

    def work() -> int:
        with torch.no_grad():
            for one in passes:
                one()
        return len(counts)

    return work


def generating_peer(case: Case) -> Work:
    """Prepare the earlier system's batch inference of the same table, with weights as it starts with."""
    path = _conditions(case)
    assert case.peer is not None
    here = Path(__file__).parent  # its module training hides theirs, a folder
    sys.path[:] = [str(case.peer), *(each for each in sys.path if Path(each) != here)]
    from utils import batch_infer  # type: ignore[import-not-found]  # noqa: PLC0415 - of the clone

    torch.set_num_threads(1)
    words = ["batch_infer", "--input", str(path), "--output", str(case.scratch / "theirs.parquet")]
    words += ["--device", "cpu", "--denormalize", "--model-checkpoint", "", "--counts-mode", "column"]

    def work() -> int:
        with mock.patch.object(sys, "argv", [*words, "--counts-column", "multiplicity"]):
            batch_infer.main()
        return pq.read_metadata(path).num_rows

    return work


def directions(case: Case) -> Work:
    """Prepare the predictions of a direction workload for the events of an evaluation, already in memory."""
    trained, generator = _opened(case)
    blocks = list(map(Events.copy, _sample(_evaluation(case))))
    workload: Any = trained.workload

    def work() -> int:
        with torch.no_grad():
            return sum(len(workload.predict(trained.model, each, generator)["azimuth"]) for each in blocks)

    return work


def directions_network(case: Case) -> Work:
    """Prepare the bare network on collated batches of the same events."""
    trained, _ = _opened(case)
    workload: Any = trained.workload
    blocks = list(map(Events.copy, _sample(_evaluation(case))))
    batches = [workload.collate(each, np.arange(len(each)), ()) for each in blocks]
    angles = [torch.zeros(len(each)) for each in blocks]

    def work() -> int:
        with torch.no_grad():
            for batch, angle in zip(batches, angles, strict=True):
                for _ in range(workload.options.rotations):
                    trained.model(batch, angle)
        return sum(map(len, blocks))

    return work


def directions_fit(case: Case) -> Work:
    """Prepare the line fit that a direction workload gives beside its predictions."""
    trained, _ = _opened(case)
    workload: Any = trained.workload
    blocks = list(map(Events.copy, _sample(_evaluation(case))))
    return lambda: sum(len(workload.baseline(each)["azimuth"]) for each in blocks)
