"""A link as a pack: the files of a campaign that its training needs, for a machine that has nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.campaign import claims
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.code import record_run_code
from crpipe.campaign.records import BestReceipt, PackedFile, PackRecord
from crpipe.config.loading import load_config
from crpipe.core.causes import is_present
from crpipe.core.errors import CheckpointError, ConfigError
from crpipe.core.paths import CONSOLIDATED, MANIFEST, OUTLIERS, Paths
from crpipe.core.text import counted
from crpipe.events.shard_manifest import open_manifest, shards_record
from crpipe.packs.archive import LINK, new_record, write_pack
from crpipe.packs.depot import Depot
from crpipe.split.parts import refuse_unfit_ranges
from crpipe.train.deleted_checkpoints import deleted_receipt
from crpipe.train.link_start import Saved, key_of, read_receipt, refuse_diverged, start_of, step_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from crpipe.core.ranges import ChainLink
    from crpipe.core.text import Progress
    from crpipe.events.shard_records import ShardEntry

CONFIG = "config.json"
RESULTS, RUNS = "results", "runs"
# Of the head and its site alone. A token comes to a node by its own ways, never in a file that caches keep.
_NOT_SENT: Any = {"results": True, "runs": True, "sync": True, "notify": True, "source": {"token_file"}}
_HELD_OUT = ("validation", "validation_outliers")


@dataclass(frozen=True, slots=True)
class PackFiles:
    """The files of a campaign by their names in a pack: below ``results`` and ``runs``, wherever these are.

    known: of those whose size and sha256 are recorded.
    """

    campaign: Campaign
    members: dict[str, Path | bytes] = field(default_factory=dict)
    known: dict[str, PackedFile] = field(default_factory=dict)

    def name(self, path: Path) -> str:
        """Return the name in packs of a file of the campaign."""
        paths = self.campaign.paths
        if path.is_relative_to(paths.run_dir()):
            return f"{RUNS}/{paths.run}/{path.relative_to(paths.run_dir()).as_posix()}"
        return f"{RESULTS}/{path.relative_to(paths.results).as_posix()}"

    def add(self, *paths: Path | None) -> None:
        """Add those files that exist."""
        self.members.update(
            {self.name(path): path for path in paths if path is not None and is_present(path)}
        )

    def add_configuration(self) -> None:
        """Add the merged configuration, and what the reader, links and ranges need alike."""
        tree = self.campaign.config.model_dump(mode="json", exclude=_NOT_SENT)
        tree["ranges"]["skip"] += self.campaign.config.given_up()
        self.members[CONFIG] = (json.dumps(tree, indent=1, sort_keys=True) + "\n").encode()
        paths = self.campaign.paths
        self.add(paths.tables(), paths.positions(), paths.position_names())
        if is_present(paths.tables()):
            self.add(*self.campaign.tables.values())

    def add_shards(self, folder: Path, *roles: str) -> int:
        """Add the manifest of a folder and its shards of some roles; return their events."""
        manifest = open_manifest(folder, self.campaign.data)
        self.add(folder / MANIFEST)
        entries = [entry for entry in manifest.shards if entry.role in roles]
        self.add_entries(folder, entries)
        return sum(entry.events for entry in entries)

    def add_entries(self, folder: Path, entries: Iterable[ShardEntry]) -> None:
        """Add the shards of a folder that entries of its manifest name."""
        for entry in entries:
            for part, file in entry.files.items():
                path = folder / f"{entry.name}.{part}.parquet"
                self.members[self.name(path)] = path
                self.known[self.name(path)] = PackedFile(size=file.size, sha256=file.sha256)

    def add_checkpoint(self, at: Path, saved: Saved) -> None:
        """Add a checkpoint as the file ``at``."""
        self.members[self.name(at)] = saved.path
        self.known[self.name(at)] = PackedFile(size=saved.path.stat().st_size, sha256=saved.sha256)

    def refer(self, to: str, progress: Progress) -> None:
        """Send the shards to a depot, those that are not there yet, and only name them in the pack."""
        depot = Depot(self.campaign.config, to)
        shards = {
            f"{file.sha256}-{Path(name).name}": (name, file)
            for name, file in self.known.items()
            if name.endswith(".parquet")
        }
        files = {at: (Path(str(self.members[name])), file) for at, (name, file) in shards.items()}
        sent = depot.send_missing(files)
        progress.message(f"{to}: {sent} of {counted(len(files), 'shard')} sent, the others were there")
        for at, (name, file) in shards.items():
            self.known[name] = replace(file, uri=depot.uri(at))

    def write(self, out: Path, kind: str, name: str, key: str) -> PackRecord:
        """Write the pack."""
        record = new_record(kind, self.campaign.paths.run, name, key)
        return write_pack(out, record, self.members, self.known)


def pack_link(campaign: Campaign, name: str, out: Path, progress: Progress, *, refer: str = "") -> None:
    """Write everything that the training of a link needs into one file.

    refer: a directory or ``pelican://`` address: shards are sent there, and only named in the pack. What was
    trained of the link before goes into the pack, too: nothing is trained twice. Raise what `train_link`
    raises before it begins, and PackError when a file is not what is recorded of it.
    """
    link, paths = campaign.chain.named(name), campaign.paths
    _refuse_several(campaign)
    refuse_unfit_ranges(campaign, campaign.chain.ranges_trained_by(link))
    claims.record_train_keys(campaign)
    record_run_code(campaign, name, progress.message)
    start = start_of(campaign, link)
    key = key_of(campaign, link, start)
    _refuse_ended(paths, name, key)
    files = PackFiles(campaign)
    files.add_configuration()
    files.add(paths.run_config(), paths.run_code())
    events = _add_shards(files, link)
    if start is not None:
        if not is_present(start.path):
            raise CheckpointError(f"{start.path}: missing; restore it, or train {link.parent or 'it'} again")
        files.add_checkpoint(start.path if link.parent else paths.pretrained() / start.path.name, start)
    if link.parent:
        # Where nothing is trained yet, the first link with events begins again from train.pretrained.
        untrained = not read_receipt(paths.receipt(link.parent)).step
        first = start_of(campaign, campaign.chain.links[0]) if untrained else None
        if first is not None:
            files.add_checkpoint(paths.pretrained() / first.path.name, first)
        files.add(paths.receipt(link.parent), *(() if events else _best_of(paths, link.parent)))
    files.add(*link_files(paths, name, key))
    if refer:
        files.refer(refer, progress)
    inside = [file.size for file in files.write(out, LINK, name, key).files.values() if file.uri is None]
    progress.message(f"{out}: link {name}, key {key}, {counted(len(inside), 'file')}, {sum(inside):,} bytes")


def _refuse_several(campaign: Campaign) -> None:
    train = campaign.config.train
    if train.nodes * train.processes_of_node > 1:
        raise ConfigError(
            f"train.nodes, train.processes, train.gpus: {train.nodes * train.processes_of_node} processes "
            "train together, and a pack is trained by one; set them to 1, or train where disks are shared"
        )


def _refuse_ended(paths: Paths, name: str, key: str) -> None:
    """Raise an error where a node would refuse to train, or would have nothing to train."""
    refuse_diverged(paths.diverged(name, key))
    if deleted_receipt(paths.run_dir(), name, key) is not None:
        raise CheckpointError(
            f"{name}: already trained, and `crpipe clean` deleted its checkpoint: there is nothing to pack; "
            f"`crpipe train {name}` writes its receipt again"
        )


def _add_shards(files: PackFiles, link: ChainLink) -> int:
    """Add what a link trains on, what it may be validated on, and all histograms; return its events.

    Whether a workload calibrates on held-out events is known to its code alone: they always come along.
    """
    campaign, paths = files.campaign, files.campaign.paths
    if link.name == OUTLIERS:
        events = files.add_shards(paths.outliers(CONSOLIDATED), OUTLIERS)
    else:
        events = sum(files.add_shards(paths.shards(name), "train") for name in link.ranges)
    for name in campaign.chain.links[0].ranges or campaign.ranges:
        for folder in (paths.shards(name), paths.outliers(name)):
            if is_present(folder / MANIFEST):
                files.add_shards(folder, *_HELD_OUT)
    if link.name == OUTLIERS:
        files.add(*(paths.shard_manifest(name) for name in campaign.ranges))
    return events


def _best_of(paths: Paths, name: str) -> Iterator[Path]:
    """Yield the receipt of the best checkpoint of a link, and that checkpoint."""
    row = BestReceipt.read_if_any(paths.best_receipt(name))
    if row is not None:
        yield from (paths.best_receipt(name), paths.store(name) / row.checkpoint)


def link_files(paths: Paths, name: str, key: str) -> list[Path]:
    """List the files of a link that is trained under a key, or was: the newest snapshot, or the checkpoint.

    None before there is one of these.
    """
    store = paths.store(name)
    finished = sorted(store.glob(f"checkpoint-{key}-*.pt"))[:1]
    newest = finished or sorted(store.glob(f"snapshot-{key}-*.pt"))[-1:]
    if not newest:
        return []
    beside = [
        store / "metrics.jsonl",
        paths.slices(name),
        shards_record(store, key),
        paths.best_receipt(name),
    ]
    beside += [paths.init_from(), *paths.tensorboard().glob(f"events.out.tfevents.??????.{name}")]
    bests = store.glob(f"best-{key}-*.pt")
    return [path for path in [*newest, *bests, *beside] if is_present(path)]


def newest_step(store: Path, key: str) -> int:
    """Return the step of the newest snapshot in the store of a link; -1 without any."""
    return max(map(step_of, store.glob(f"snapshot-{key}-*.pt")), default=-1)


def open_unpacked(folder: Path) -> Campaign:
    """Open the campaign that a pack brought."""
    config = load_config([folder / CONFIG])
    targets = {"results": str(folder / RESULTS), "runs": str(folder / RUNS)}
    return Campaign.open(config.model_copy(update=targets))
