"""Where every file of a campaign is, and the names of where events go; the workflow reads it, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

# Where the events of a range go: the names that ledgers, tables, manifests and reports share.
#
# The group of an event decides its part; its size decides only whether it is stored with the bulk of that
# part or with its outliers. So a held-out event is never trained on, however large it is.


Part = Literal["train", "validation", "test"]
Role = Literal["train", "validation", "test", "outliers", "validation_outliers", "test_outliers"]

HELD_OUT: tuple[Part, ...] = ("validation", "test")  # never trained on
PARTS: tuple[Part, ...] = ("train", *HELD_OUT)  # also the names of the events up to the threshold
OUTLIERS_OF: dict[Part, Role] = {
    "train": "outliers",
    "validation": "validation_outliers",
    "test": "test_outliers",
}
LARGE_ROLES: tuple[Role, ...] = tuple(OUTLIERS_OF[part] for part in PARTS)  # events above the threshold
TRAINED_ROLES: tuple[Role, ...] = ("train", OUTLIERS_OF["train"])
ROLES: tuple[Role, ...] = (*PARTS, *LARGE_ROLES)  # of shards
DESTINATIONS = (*ROLES, "rejected")


def roles_of(part: Part) -> tuple[Role, Role]:
    """Name where the events of a part are: its bulk and its outliers."""
    return part, OUTLIERS_OF[part]


CONSOLIDATED = "consolidated"
BEST = ".best.json"  # ends the name of what points to the best checkpoint of a link
MANIFEST = "manifest.json"  # of a folder of shards
HEAD_FOLDER = ".snakemake/head"  # below the directory of the campaign: the lease of its workflow
CODE = "code.json"  # beside the data, and in a run
STORE = "store"  # of a run: a folder of checkpoints for each link
DELETED_CHECKPOINTS, FORKS = "dropped.json", "forks.json"
FINISHED = ".finished"  # folder of the record of a split or an evaluation, beside its results
HASHES = "hashes.json"  # in such a record, and beside the consolidated outliers: the sha256 of each file
# Of an evaluation: its declared files, with a second name in FINISHED, and there what they follow from.
EVALUATED, EVALUATED_KEY, KEY_DIGEST = ("predictions.parquet", "metrics.json"), "key.json", "digest"
THRESHOLD = "threshold.json"
OUTLIERS = "outliers"  # also the name of the last link of the training chain


def command_for(path: Path) -> str:
    """Return the command that makes a JSON file of a campaign again; empty where its path shows none."""
    name, folder = path.parent.name, path.parents[1].name if len(path.parents) > 1 else ""
    if path.match(f"evaluation/*/{FINISHED}/*"):
        name, folder = folder, "evaluation"
    if name == "ranges":
        return f"crpipe train {path.name.removesuffix(BEST).removesuffix('.json')}"
    if name in ("ledgers", "multiplicity"):
        return f"crpipe split {path.name.partition('.')[0]}"
    if name == CONSOLIDATED:
        return "crpipe consolidate"
    if path.name == THRESHOLD:
        return "crpipe threshold"
    if folder in ("shards", OUTLIERS):
        return f"crpipe split {name}"
    return f"crpipe evaluate {name}" if folder == "evaluation" else ""


@dataclass(frozen=True, slots=True)
class Paths:
    """Files of one campaign (under ``results``) and one run (under ``runs``).

    ``name`` arguments are the text form of a range, or a workflow wildcard such as ``{range}``.
    """

    results: Path
    runs: Path
    run: str

    def manifest(self, name: str) -> Path:
        """List's output: what should exist in the source."""
        return self.results / "manifests" / f"{name}.parquet"

    def staged(self, name: str) -> Path:
        """Stage's output: the manifest with checksums, how each was verified, and what was quarantined."""
        return self.results / "staged" / f"{name}.parquet"

    def raw(self, name: str) -> Path:
        """Directory of the raw copies; undeclared, so that a failed job resumes; gone once split."""
        return self.results / "staged" / name

    def converted(self, name: str) -> Path:
        """Convert's output: what source.convert made of each raw copy, and what was quarantined."""
        return self.results / "converted" / f"{name}.parquet"

    def convert_log(self, name: str, path: str) -> Path:
        """What the last source.convert that failed for a file of a range printed."""
        return self.results / "logs" / "convert" / name / f"{path}.log"

    def shards(self, name: str) -> Path:
        """Directory of training, validation and test shards; valid once its ``manifest.json`` is there."""
        return self.results / "shards" / name

    def outliers(self, name: str) -> Path:
        """Directory of the events above the threshold; ``consolidated`` for those of all ranges."""
        return self.results / OUTLIERS / name

    def shard_manifest(self, name: str) -> Path:
        """Split's output: files, sizes and hashes of the bulk shards."""
        return self.shards(name) / MANIFEST

    def outlier_manifest(self, name: str) -> Path:
        """Split's (or consolidate's) output: files, sizes and hashes of the outlier shards."""
        return self.outliers(name) / MANIFEST

    def multiplicity(self, name: str) -> Path:
        """Split's output: source file, row, ids, multiplicity and destination of each event."""
        return self.results / "multiplicity" / f"{name}.parquet"

    def histogram(self, name: str) -> Path:
        """Split's output: events by multiplicity."""
        return self.results / "multiplicity" / f"{name}.histogram.json"

    def split_outputs(self, name: str) -> tuple[Path, ...]:
        """Everything that the split of a range declares."""
        manifests = self.shard_manifest(name), self.outlier_manifest(name)
        return (*manifests, self.multiplicity(name), self.histogram(name), self.ledger(name))

    def split_record(self, name: str) -> Path:
        """What a finished split can be restored from: a file in the shards' directory, undeclared."""
        return self.shards(name) / FINISHED / "key.json"

    def threshold(self) -> Path:
        """Threshold's output: the quantile of the reference ranges; only with ``split.quantile``."""
        return self.results / THRESHOLD

    def ledger(self, name: str) -> Path:
        """Split's output: where every event and item of the range went."""
        return self.results / "ledgers" / f"{name}.json"

    def skipped(self, name: str) -> Path:
        """Why ``ranges.on_failure: skip`` left a range out; as long as it is there, it is left out."""
        return self.results / "skipped" / f"{name}.json"

    def campaign(self) -> Path:
        """The configuration keys that shaped the data, written by the first data job."""
        return self.results / "campaign.json"

    def command(self) -> Path:
        """The command of the last workflow for this run, to type again; data alone make no run."""
        return self.results / "logs" / f"{self.run}.command"

    def data_code(self) -> Path:
        """Which code read the data, from which range on."""
        return self.results / CODE

    def layout(self) -> Path:
        """The layout of the events, as the reader declared it; written with ``campaign``."""
        return self.results / "layout.json"

    def tables(self) -> Path:
        """The record of the side tables: URI, copy, size, hash of each copy."""
        return self.results / "tables.json"

    def table_copies(self) -> Path:
        """Directory of the copies of the side tables, beside their record."""
        return self.results / "tables"

    def positions(self) -> Path:
        """The last file number that the first listing found; for flat sources, or ``ranges.last: auto``."""
        return self.results / "positions.json"

    def position_names(self) -> Path:
        """The names of the files (or of the ranges) in the order of ``positions``, which follows it."""
        return self.results / "positions.parquet"

    def data_journal(self) -> Path:
        """Attempts of the data verbs: list, stage, tables, count, threshold, split, consolidate."""
        return self.results / "journal.jsonl"

    def run_dir(self) -> Path:
        """Everything of this run."""
        return self.runs / self.run

    def run_config(self) -> Path:
        """The configuration keys that shape the training, written by the first training job."""
        return self.run_dir() / "campaign.json"

    def run_code(self) -> Path:
        """Which code of the workload trained, from which link on."""
        return self.run_dir() / CODE

    def receipt(self, name: str) -> Path:
        """Train's output: a small deterministic file that points to the checkpoint."""
        return self.run_dir() / "ranges" / f"{name}.json"

    def best_receipt(self, name: str) -> Path:
        """Points to the best checkpoint of a link; only with ``train.monitor``."""
        return self.run_dir() / "ranges" / f"{name}{BEST}"

    def store(self, name: str) -> Path:
        """Checkpoints, snapshots and metrics of one range; undeclared, so that nothing deletes them."""
        return self.run_dir() / STORE / name

    def train_journal(self) -> Path:
        """Attempts of train and evaluate, and what they reported."""
        return self.run_dir() / "journal.jsonl"

    def init_from(self) -> Path:
        """Which weights the first link took from ``train.pretrained``, and which were left out."""
        return self.run_dir() / "init_from.json"

    def pretrained(self) -> Path:
        """Directory of the checkpoint that ``train.pretrained`` names, where it came in a pack."""
        return self.run_dir() / "pretrained"

    def pack(self, name: str, *, out: bool = False) -> Path:
        """Everything that a link needs, for a machine without a shared disk; or what came back."""
        return self.run_dir() / "packs" / f"{name}.{'out' if out else 'in'}.tar"

    def range_pack(self, name: str, *, out: bool = False) -> Path:
        """The same of a range."""
        return self.results / "packs" / "ranges" / f"{name}.{'out' if out else 'in'}.tar"

    def slices(self, name: str) -> Path:
        """The slices in which a link was trained, one row each; undeclared."""
        return self.store(name) / "slices.jsonl"

    def diverged(self, name: str, key: str) -> Path:
        """Why the training of a link under a key diverged; undeclared."""
        return self.store(name) / f"diverged-{key}.json"

    def deleted_checkpoints(self) -> Path:
        """The checkpoints that `crpipe clean` deleted, with their receipts."""
        return self.run_dir() / DELETED_CHECKPOINTS

    def forks(self) -> Path:
        """Which checkpoint of this run each fork begins with; `crpipe clean` keeps them."""
        return self.run_dir() / FORKS

    def stall(self) -> Path:
        """Records the stall already reported, so that each is reported once."""
        return self.run_dir() / "stall.json"

    def figures(self) -> Path:
        """Directory of the figures of the campaign so far: multiplicities, losses, throughput."""
        return self.run_dir() / "figures"

    def report(self) -> Path:
        """The page of ``crpipe report``."""
        return self.run_dir() / "report.html"

    def tensorboard(self) -> Path:
        """Event files, one per range; steps are global over the chain."""
        return self.run_dir() / "tensorboard"

    def evaluation(self, name: str) -> Path:
        """Directory of metrics and figures of one checkpoint."""
        return self.run_dir() / "evaluation" / name
