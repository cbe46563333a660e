"""The model card of an export, written for the person who is about to use the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from crpipe import __version__
from crpipe.campaign.code import Code, used_code
from crpipe.campaign.records import BestReceipt, EvaluationRecord, Receipt
from crpipe.config.loading import SYNTHETIC
from crpipe.core.errors import CheckpointError, ShardError
from crpipe.core.files import digest
from crpipe.core.paths import BEST, CODE, CONSOLIDATED, OUTLIERS, TRAINED_ROLES
from crpipe.core.text import Progress, counted
from crpipe.events.layout import MULTIPLICITY, Layout
from crpipe.events.shard_manifest import open_manifest
from crpipe.report.evaluations import MODEL, Evaluation, compared_with, score_table
from crpipe.report.verdicts import line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from crpipe.campaign.campaign import Campaign
    from crpipe.inference.checkpoints import LoadedModel

# Sections of every card. A workload may put its own lines in place of a section, or add sections; what it
# gives for "" is the introduction.
USE, DATA, VALID, GOOD, DEVIATIONS, LICENCE, AGAIN = (
    "Use",
    "Trained on",
    "Valid for",
    "How good",
    "Known deviations",
    "Licence, and how to cite",
    "Train it again",
)


def model_card(origin: Provenance, added: Mapping[str, Sequence[str]]) -> str:
    """Write the card in Markdown; ``added``: the workload's lines for the sections that it knows better."""
    sections: dict[str, Sequence[str]] = {
        USE: list(_use(origin)),
        DATA: list(_trained_on(origin)),
        VALID: list(_valid_for(origin)),
        GOOD: list(_how_good(origin)),
        DEVIATIONS: [],
        LICENCE: list(_licence(origin)),
        AGAIN: list(_again(origin)),
    }
    sections |= {title: lines for title, lines in added.items() if title}
    name = origin.keys["train.workload"].rpartition(":")[2]
    lines = [f"# {name} `{origin.fingerprint}`", ""]
    lines += [*added.get("", ()), f"Workload `{origin.keys['train.workload']}`, crpipe {__version__}."]
    for title, content in sections.items():
        if content:
            lines += ["", f"## {title}", "", *content]
    return "\n".join(lines) + "\n"


def _use(origin: Provenance) -> Iterator[str]:
    yield "With crpipe, the workload's package and this run:"
    yield from ("", "```sh")
    pointer = f"runs/{origin.run}/ranges/{origin.receipt}"
    yield f"crpipe predict --checkpoint {pointer} --in FILES --out out.parquet"
    yield "```"
    yield from ("", "`model.safetensors` holds the weights, `config.json` every option and the layout.")


def _trained_on(origin: Provenance) -> Iterator[str]:
    keys, counters, item = origin.keys, origin.counters, origin.layout.item
    yield from ("| | |", "|---|---|")
    yield f"| source | `{keys['source.uri']}` |"
    yield f"| ranges | {_chain(origin)} of run `{origin.run}`) |"
    if origin.seen.events:
        yield f"| training data | {counted(origin.seen.events, 'event')}, {origin.seen.items:,} {item} |"
    seen = f"{counted(counters['events'], 'event')}, {counters['items']:,} {item}; once for each pass"
    yield f"| seen in {counted(counters['step'], 'step')} | {seen} |"
    yield from (f"| side table {name} (sha256) | `{value}` |" for name, value in side_tables(origin).items())
    yield f"| checkpoint (sha256) | `{origin.sha256}` |"
    yield f"| fingerprint | `{origin.fingerprint}` |"
    yield from (
        "",
        "All keys that shaped it are in `config.json` (`keys`), and as a configuration in `campaign.yaml`.",
    )
    if keys.get("train.init_from"):
        yield from ("", f"It started from the weights of `{keys['train.init_from']}`, not from fresh ones.")


def _chain(origin: Provenance) -> str:
    """Write which links there were, and how many ranges and rounds where these are other numbers."""
    first, last = origin.chain[0].name, origin.chain[-1].name
    names = first if first == last else f"{first} … {last}"
    links = counted(len(origin.chain), "link")
    if all(link.ranges in ((), (link.name,)) for link in origin.chain):
        return f"{names} ({links}"
    rounds = max(link.round for link in origin.chain)
    passes = f" in {rounds} rounds" if rounds > 1 else ""
    return f"{names} ({counted(len(origin.ranges), 'range')}{passes}: {links}"


def side_tables(origin: Provenance) -> dict[str, str]:
    """Return the hashes of the side tables by name."""
    prefix = "tables."
    return {
        name.removeprefix(prefix): value for name, value in origin.keys.items() if name.startswith(prefix)
    }


def _valid_for(origin: Provenance) -> Iterator[str]:
    if origin.seen.unknown:
        yield f"The ranges of the training data are not known: {origin.seen.unknown}."
    else:
        yield "The training data are within these ranges (measured on the training shards)."
        yield from ("", *limits_table(origin, origin.seen.limits), "")
        yield "Nothing is known outside of them. Between the two ends there may be few events."
    yield from outliers_lines(origin)


def limits_table(origin: Provenance, limits: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Lay out limits of event columns and of the multiplicity."""
    yield from ("| | unit | from | to |", "|---|---|---|---|")
    units = {field.name: field.unit or "" for field in origin.layout.events} | {MULTIPLICITY: ""}
    for name, unit in units.items():
        if name in limits:
            low, high = limits[name]
            yield f"| {name} | {unit} | {low:.6g} | {high:.6g} |"


def outliers_lines(origin: Provenance) -> Iterator[str]:
    """Return whether outliers were trained on; events of fixed size have none."""
    if origin.layout.fixed:
        return
    limit = f"above {origin.seen.threshold:,}" if origin.seen.threshold else "above the campaign's quantile"
    trained = "was trained on too, last" if origin.chain[-1].name == OUTLIERS else "was **not** trained on"
    yield f"Multiplicities {limit} are outliers, which this model {trained}."


def _how_good(origin: Provenance) -> Iterator[str]:
    evaluation = Evaluation.of(origin.evaluation, Path("metrics.json")) if origin.evaluation else None
    rows = [row for row in evaluation.shown() if MODEL in row.numbers] if evaluation else []
    if evaluation is None or not rows:
        yield "This checkpoint was not evaluated on enough held-out events: how good it is, is not known."
        return
    yield f"On {evaluation.part} events that training never used."
    yield f"By the rule of crpipe's docs/evaluation.md: {line(evaluation)}."
    yield from ("", *compared_with(evaluation), "")
    yield from score_table(evaluation.columns, rows, "this model", digits=(".3f", ".3f"), best=True)


def _licence(origin: Provenance) -> Iterator[str]:
    yield "crpipe: MIT. The weights carry no terms of their own; they follow those of the"
    if origin.keys["source.uri"] == SYNTHETIC:
        yield f"simulator `{origin.keys.get('source.simulator', '')}`, which made all data."
    else:
        yield f"data in `{origin.keys['source.uri']}`: ask its owners before you publish."
    yield from ("", f"Cite crpipe {__version__} as its CITATION.cff says, with the fingerprint above.")


def _again(origin: Provenance) -> Iterator[str]:
    receipt, pointer = (
        f"runs/{origin.run}/ranges/{name}" for name in (f"{origin.name}.json", origin.receipt)
    )
    outside = sorted({str(code) for code in origin.code.values() if code.sha256})
    needs = f"; it needs {' and '.join(outside)}" if outside else ""
    yield from (f"In a clone of crpipe, with `campaign.yaml` of this directory{needs}:", "", "```sh")
    yield f"snakemake --configfile campaign.yaml -- {receipt}"
    yield f"crpipe --config campaign.yaml evaluate {origin.name}"
    yield f"crpipe --config campaign.yaml export --checkpoint {pointer} --out export"
    yield from ("```", "")
    yield "On a CPU, the same kind of machine and the same `train.threads` give the same weights, to the bit."
    yield "The fingerprint leaves the threads out; another number of them gives other bits."


# Where a checkpoint comes from: its chain, the data it was trained on, and how good it was found to be.


Limits = dict[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class TrainedLink:
    """One link that a checkpoint was trained on, from its receipt."""

    name: str
    ranges: tuple[str, ...]
    round: int = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """The training data: smallest and largest value of each event column, and of the multiplicity.

    unknown: why there are no limits; empty where they were measured.
    events, items: distinct ones in the training shards; 0 where these do not exist any more.
    threshold: multiplicity above which events are outliers; None when a quantile chose it and is not known.
    """

    limits: Limits
    unknown: str
    threshold: int | None
    events: int = 0
    items: int = 0


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything that a model card says about the making of a checkpoint.

    chain: the links that this checkpoint was trained on, in order; only its own without receipts.
    receipt: name of the file in runs/<run>/ranges that points to it.
    evaluation: the metrics.json of this very checkpoint; None when there is none. code: that of reader,
    simulator and workload, as far as it was recorded.
    """

    run: str
    name: str
    chain: tuple[TrainedLink, ...]
    receipt: str
    keys: dict[str, Any]
    counters: dict[str, Any]
    sha256: str
    fingerprint: str
    layout: Layout
    seen: Seen
    evaluation: EvaluationRecord | None
    code: Mapping[str, Code]

    @property
    def ranges(self) -> tuple[str, ...]:
        """The ranges of all links, each once, in order."""
        return ranges_of(self.chain)


def ranges_of(chain: Sequence[TrainedLink]) -> tuple[str, ...]:
    """List the ranges of a chain, each once, in order."""
    return tuple(dict.fromkeys(name for link in chain for name in link.ranges))


def provenance(trained: LoadedModel, layout: Layout, campaign: Campaign, progress: Progress) -> Provenance:
    """Gather what is known about a checkpoint from the files beside it and from the training shards.

    campaign: of the training shards; one without a reader has none. Raise CheckpointError when the checkpoint
    does not name its source.
    """
    checkpoint = trained.checkpoint
    if "range" not in checkpoint or "source.uri" not in checkpoint["keys"]:
        raise CheckpointError(
            f"{trained.path}: does not say which range of which source it was trained on; name the "
            "checkpoint of a link of a training"
        )
    run = trained.run
    name, keys = str(checkpoint["range"]), checkpoint["keys"]
    alone = TrainedLink(name, () if name == OUTLIERS else (name,))
    chain = _links_before(run / "ranges", trained.sha256) or (alone,)
    best = BestReceipt.read_if_any(run / "ranges" / f"{name}{BEST}")
    return Provenance(
        run.name,
        name,
        chain,
        f"{name}{BEST}" if best and best.sha256 == trained.sha256 else f"{name}.json",
        keys,
        checkpoint["counters"],
        trained.sha256,
        digest(keys),
        layout,
        _seen(campaign, layout, keys, chain, progress),
        _evaluation(run / "evaluation", (name, f"{name}.best"), trained.sha256),
        {**used_code(campaign.paths.data_code()), **used_code(run / CODE, name)},
    )


def _links_before(folder: Path, sha256: str) -> tuple[TrainedLink, ...]:
    """Follow the receipts from a checkpoint back to the first link; a best checkpoint is one of its link."""
    paths = sorted(folder.glob("*.json"))
    receipts = [Receipt.read(path) for path in paths if not path.name.endswith(BEST)]
    by_hash = {receipt.sha256: receipt for receipt in receipts}
    finished = {receipt.key: receipt for receipt in receipts}
    for best in (BestReceipt.read(path) for path in paths if path.name.endswith(BEST)):
        if best.sha256 not in by_hash and best.key in finished:
            by_hash[best.sha256] = finished[best.key]
    links: list[TrainedLink] = []
    while sha256 in by_hash:
        receipt = by_hash[sha256]
        links.append(TrainedLink(receipt.range, receipt.ranges, receipt.round))
        sha256 = receipt.parent
    return tuple(reversed(links))


def _evaluation(folder: Path, names: Sequence[str], sha256: str) -> EvaluationRecord | None:
    paths = [folder / name / "metrics.json" for name in names]
    evaluations = [each for path in paths if (each := EvaluationRecord.read_if_any(path))]
    return next((each for each in evaluations if each.checkpoint == sha256), None)


def _seen(
    campaign: Campaign,
    layout: Layout,
    keys: dict[str, Any],
    chain: tuple[TrainedLink, ...],
    progress: Progress,
) -> Seen:
    """Measure the shards of the chain, if they are those that the checkpoint was trained on."""
    threshold = None if keys.get("split.quantile") else keys.get("split.threshold")
    shaped = {**campaign.data_keys, **campaign.table_keys} if campaign.config.source.reader else {}
    if any(keys.get(name) != value for name, value in shaped.items()):
        return Seen({}, "the configuration given is another one", threshold)
    folders = shard_folders(campaign, chain)
    try:
        manifests = [open_manifest(folder, campaign.data) for folder in folders]
    except ShardError:
        manifests = []
    if not manifests:
        return Seen({}, "the training shards do not all exist any more", threshold)
    shards = [
        (folder, shard)
        for folder, manifest in zip(folders, manifests, strict=True)
        for shard in manifest.shards
        if shard.role in TRAINED_ROLES
    ]
    limits: Limits = {}
    for number, (folder, shard) in enumerate(shards):
        _widen(limits, folder / f"{shard.name}.events.parquet", _measured(layout))
        progress.update("read", number + 1, len(shards))
    events, items = sum(shard.events for _, shard in shards), sum(shard.items for _, shard in shards)
    return Seen(limits, "", manifests[0].threshold, events, items)


def shard_folders(campaign: Campaign, chain: Sequence[TrainedLink]) -> list[Path]:
    """List the shards that a chain was trained on, those of each range once; none if one is unknown."""
    paths, ranges = campaign.paths, ranges_of(chain)
    if not campaign.config.source.reader or not {*ranges} <= {*campaign.ranges}:
        return []
    outliers = [paths.outliers(CONSOLIDATED) for link in chain if link.name == OUTLIERS]
    return [*map(paths.shards, ranges), *outliers]


def _measured(layout: Layout) -> list[str]:
    """Name the columns whose limits mean something: not those that only identify an event."""
    identity = {*layout.group, *layout.key}
    names = [field.name for field in layout.events if field.name not in identity]
    return [*names, MULTIPLICITY]


def _widen(limits: Limits, path: Path, names: list[str]) -> None:
    """Include the values of one shard in the limits; the writer keeps no statistics, so they are read."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(columns=names):
            for name in names:
                ends = pc.min_max(batch.column(name)).as_py()
                if ends["min"] is None:
                    continue
                low, high = limits.get(name, (math.inf, -math.inf))
                limits[name] = (min(low, float(ends["min"])), max(high, float(ends["max"])))
