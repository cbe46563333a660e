"""One configuration and all that follows from it, asked once; each verb hands plain values down from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crpipe.campaign import claims
from crpipe.campaign.ledger import table_keys, table_paths
from crpipe.campaign.readers import check_needs, open_reader
from crpipe.campaign.simulators import offered_tables, open_simulator
from crpipe.core.errors import ConfigError
from crpipe.core.files import digest
from crpipe.events.histograms import check_binnings

if TYPE_CHECKING:
    from crpipe.campaign.ledger import Tables
    from crpipe.config.loading import Config, Tree
    from crpipe.core.paths import Paths
    from crpipe.core.ranges import Chain
    from crpipe.events.layout import Layout


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
    claims.claim_data(config.paths(), keys, layout.describe())


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


# What is compared before any job starts, as far as it needs neither torch nor the source.


def check_data(config: Config) -> list[str]:
    """Compare reader, simulator, side tables, threshold and histograms.

    Give a phrase for each thing that was checked. Raise ConfigError with the module, what is missing, and an
    example.
    """
    reader = open_reader(config.source.reader, config.options("reader"))
    offered = simulated_tables(config)
    check_needs(config.source.reader, reader.needs, (*config.source.tables, *offered))
    if config.split.quantile is None:
        check_threshold(reader.layout, config.split.threshold)
    check_binnings(reader.layout, config.split.histograms)
    checked = [f"reader {config.source.reader}"]
    if config.simulates():
        simulator = open_simulator(config.source.simulator, config.options("simulator"))
        check_simulator(reader.layout, config.source.reader, simulator.layout, config.source.simulator)
        checked.append(f"simulator {config.source.simulator}")
    return checked


def check_simulator(layout: Layout, reader: str, simulated: Layout, simulator: str) -> None:
    """Raise ConfigError when the simulator does not make what the reader reads.

    Options of a reader may leave event columns out, narrow legal values, or group events otherwise.
    """
    own, other = _columns(layout), _columns(simulated)
    other["layout.events"] = [
        column for column in other["layout.events"] if column in own["layout.events"]
    ] or other["layout.events"]
    for name in own:
        if own[name] != other[name]:
            ours, theirs = _differing(own[name], other[name])
            raise ConfigError(
                f"source.simulator: {simulator} makes another layout than {reader} reads: {name} is {theirs} "
                f"and {ours}; name the reader of these files with source.reader, or another source.simulator"
            )


def _columns(layout: Layout) -> dict[str, Any]:
    """Give the columns of a layout without their legal values."""
    spelled = {
        f"layout.{kind}": [f"{field.name} {field.dtype} {field.unit}".rstrip() for field in fields]
        for kind, fields in (("events", layout.events), ("items", layout.items))
    }
    return {"layout.item": layout.item, "layout.fixed": layout.fixed, **spelled}


def _differing(own: Any, other: Any) -> tuple[str, str]:
    """Spell two values that differ; of two lists, what only one of them has."""
    if not isinstance(own, list):
        return repr(own), repr(other)
    ours, theirs = ([one for one in a if one not in b] for a, b in ((own, other), (other, own)))
    return ", ".join(ours) or repr(own), ", ".join(theirs) or repr(other)


def check_threshold(layout: Layout, threshold: int) -> None:
    """Raise ConfigError when the threshold makes an outlier of every event of a layout of fixed size."""
    if threshold < layout.fixed:
        raise ConfigError(
            f"split.threshold: {threshold} is below the {layout.fixed} {layout.item} of every event, so that "
            f"all would be outliers; set it to {layout.fixed} or more"
        )
