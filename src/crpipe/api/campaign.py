"""A run and its campaign, opened from Python (`crpipe.open`): tables, batches of events, trained models."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from crpipe.api.recorded import has_data, recorded_view
from crpipe.cli.jobs.report import view_of
from crpipe.config.files import config_files
from crpipe.config.loading import load_config
from crpipe.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import polars as pl

    from crpipe.api.batches import EventBatches
    from crpipe.api.model import TrainedModel
    from crpipe.config.loading import Config
    from crpipe.core.paths import Paths
    from crpipe.events.layout import Layout
    from crpipe.report.campaign_view import CampaignView

# polars and torch are imported by what uses them.
# ruff: noqa: PLC0415

Place = str | os.PathLike[str]


class CampaignRun:
    """One run and its data, read from their files; nothing is written, and jobs may run meanwhile.

    Every property reads the files again.
    """

    def __init__(self, view: CampaignView, config: Config | None = None) -> None:
        """Take what the reports know of a campaign, and its configuration, if one was given."""
        self._view = view
        self._config = config

    def __repr__(self) -> str:
        """Name the run and its data."""
        data = self.paths.results if has_data(self._view) else None
        return f"<crpipe run {self.paths.run_dir()}, data {data}>"

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._view.run

    @property
    def paths(self) -> Paths:
        """Where every file of the campaign is."""
        return self._view.paths

    @property
    def layout(self) -> Layout:
        """Names, types, units and legal values of the columns of events and items.

        Raise DataError when the data were not found, or none were made yet.
        """
        layout = self._data().layout
        if layout is None:
            raise DataError(f"{self.paths.layout()}: missing; the first job of a campaign writes it")
        return layout

    @property
    def ranges(self) -> pl.DataFrame:
        """One row for each range: range, state, files, quarantined, events, items, and events by destination.

        The destinations are train, validation, test, outliers, validation_outliers, test_outliers and
        rejected; together they are ``events``.
        Null where a range is not that far. Without a configuration, only ranges that were listed are known.
        """
        from crpipe.api.frames import ranges_frame

        return ranges_frame(self._data())

    @property
    def links(self) -> pl.DataFrame:
        """One row for each link of training: link, state, round, ranges, step, events, items, checkpoint, ….

        step, events, items: of the whole chain up to this link. best_*: of its best checkpoint, if one is
        kept. Without a configuration, only links whose training has begun are known.
        """
        from crpipe.api.frames import links_frame

        return links_frame(self._view)

    @property
    def metrics(self) -> pl.DataFrame:
        """One row for each logged step, over the whole chain: step, link, events, items, losses, speed, ….

        A metric is called PHASE/NAME, one of a validation validation/NAME; null in steps that did not log it.
        """
        from crpipe.api.frames import metrics_frame

        return metrics_frame(self._view)

    @property
    def evaluations(self) -> pl.DataFrame:
        """One row for each number of each evaluated checkpoint: link, step, metric, value, error, floor, ….

        floor: the same number for a second simulation of the same events, the best that is possible.
        baseline: for a simple method without the model. Null where the workload offers none.
        declared: whether the reports show it. better: low, high or near (its ``ideal``).
        """
        from crpipe.api.frames import evaluations_frame

        return evaluations_frame(self._view)

    def shards(
        self,
        part: str = "train",
        *,
        ranges: Sequence[str] = (),
        batch_events: int = 4096,
        epochs: int = 1,
        seed: int = 1,
    ) -> EventBatches:
        """Open the events of one part as shuffled batches of numpy arrays.

        A batch has N events and M items: ``batch.columns`` (arrays [N] by name), ``batch.multiplicity`` [N]
        and ``batch.items`` [M, K] float32, event after event; ``batch.offsets()`` [N + 1] are the ends. Names
        and units of the columns are in ``layout``.

        part: train, validation, test, or their outliers, validation_outliers, test_outliers (whose batches
        also end at 4 million items).
        ranges: their names; without any, all that are split.
        batch_events: most events of a batch. epochs: how often each event comes. seed: of the order.

        Raise ConfigError for an unknown part, DataError for a range that is not split, ShardError for a
        damaged shard.
        """
        from crpipe.api.batches import open_batches

        view = self._data()
        return open_batches(view, part, ranges, batch_events=batch_events, epochs=epochs, seed=seed)

    def model(self, link: str = "latest", *, device: str = "cpu") -> TrainedModel:
        """Load a trained model: of the latest checkpoint, the ``best`` one, a LINK, LINK.best, or a file.

        device: cpu, cuda, or auto (a GPU when there is one). torch is imported here, which takes seconds.

        Raise CheckpointError when there is no such checkpoint or it is damaged; also when it names a workload
        that is not part of crpipe, unless the campaign was opened with its configuration.
        """
        from crpipe.api.model import TrainedModel
        from crpipe.events.tables import table_keys, table_paths
        from crpipe.inference.checkpoints import find_checkpoint, open_checkpoint
        from crpipe.train.ranks import find_device

        record, config = self.paths.tables(), self._config
        tables, place = table_paths(record), find_device(device)
        trained = open_checkpoint(
            find_checkpoint(link, self.paths, lambda: self._view.chain.names),
            place,
            tables,
            table_keys(record),
            config.use_options() if config else {},
            (config.train.workload, config.source.reader) if config else (),
        )
        return TrainedModel(trained, tables, place)

    def _data(self) -> CampaignView:
        if not has_data(self._view):
            run = self.paths.run_dir()
            raise DataError(
                f"{run}: the data of this run were not found beside it; name their directory: "
                f'crpipe.open("{run}", results="DIRECTORY")'
            )
        return self._view


def open_run(
    run: Place, *, results: Place | None = None, config: Place | Iterable[Place] | None = None
) -> CampaignRun:
    """Open a run; see ``crpipe.open``, which calls this."""
    folder = Path(run).absolute()
    found = Path(results) if results is not None else None
    if config is None:
        return CampaignRun(recorded_view(folder, found))
    files = [config] if isinstance(config, str | os.PathLike) else list(config)
    root = folder.parent.parent
    mine = [Path(each).absolute() for each in files]
    named = [root / path for path in config_files(mine, here=root, environ={})]
    loaded = load_config(named)
    if loaded.run != folder.name:
        raise ConfigError(
            f"run: {loaded.run} in {named[-1]}, but the folder is {folder}; name its own configuration"
        )
    places = {"results": found or root / loaded.results, "runs": folder.parent}
    settings = load_config(named, [f"{name}={json.dumps(str(place))}" for name, place in places.items()])
    return CampaignRun(view_of(settings), settings)
