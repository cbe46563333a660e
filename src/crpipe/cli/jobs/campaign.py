"""One configuration and all that follows from it, asked once; each verb hands plain values down from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.config import record
from crpipe.core.files import digest
from crpipe.events.tables import table_keys, table_paths
from crpipe.source.simulated import offered_tables, open_simulator
from crpipe.split.readers import open_reader

if TYPE_CHECKING:
    from crpipe.config.loading import Config, Tree
    from crpipe.core.chain import Chain
    from crpipe.core.paths import Paths
    from crpipe.events.layout import Layout
    from crpipe.events.tables import Tables


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign as its jobs see it.

    ranges: names in order, without the skipped ones. chain: the links of training.
    tables: the verified copies of the side tables.
    data_keys: what the shards follow from (configured keys and layout); train_keys: what the checkpoints do.
    table_keys: hashes of the side tables, known once they are staged. simulated_tables: those that the
        simulator writes.
    """

    config: Config
    paths: Paths
    ranges: tuple[str, ...]
    chain: Chain
    layout: Layout
    tables: Tables
    data_keys: Tree
    train_keys: Tree
    table_keys: Tree
    simulated_tables: tuple[str, ...] = ()

    @property
    def has_tables(self) -> bool:
        """Return whether side tables are staged before anything is split."""
        return bool(self.config.source.tables or self.simulated_tables)

    @property
    def data(self) -> str:
        """Hash of everything that changes a shard."""
        return digest({**self.data_keys, **self.table_keys})

    @property
    def run_keys(self) -> Tree:
        """Everything that changes a checkpoint, as a run records it."""
        return {**self.train_keys, **self.table_keys}

    @property
    def fingerprint(self) -> str:
        """Hash of everything that changes a checkpoint."""
        return digest(self.run_keys)


def claim_data(config: Config) -> None:
    """Record what the data are made with, or refuse other keys; needs no listing and no side tables."""
    layout = open_reader(config.source.reader, config.options("reader")).layout
    keys = {**config.data_keys(), **layout.identity()}
    record.claim_data(config.paths(), keys, layout.describe())


def open_campaign(config: Config) -> Campaign:
    """Read what a job needs besides the configuration: the reader's layout and the side tables."""
    paths = config.paths()
    layout = open_reader(config.source.reader, config.options("reader")).layout
    identity = layout.identity()
    return Campaign(
        config=config,
        paths=paths,
        ranges=tuple(str(name) for name in config.all_ranges()),
        chain=config.chain(has_outliers=layout.has_outliers()),
        layout=layout,
        tables=table_paths(paths.tables()),
        data_keys={**config.data_keys(), **identity},
        train_keys={**config.train_keys(), **identity},
        table_keys=table_keys(paths.tables()),
        simulated_tables=simulated_tables(config),
    )


def simulated_tables(config: Config) -> tuple[str, ...]:
    """Name the side tables that the simulator writes; none where the raw files are not simulated."""
    if not config.simulates():
        return ()
    return offered_tables(open_simulator(config.source.simulator, config.options("simulator")))
