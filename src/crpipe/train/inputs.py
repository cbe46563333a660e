"""Everything that a Trainer works with, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crpipe.core.progress import Progress
    from crpipe.core.signals import StopRequest
    from crpipe.events.metric import Metric
    from crpipe.loading.loader import Loader
    from crpipe.train.checkpoints import Saved, Store
    from crpipe.train.link import TrainJob
    from crpipe.train.ranks import World
    from crpipe.train.records.loggers import LoggedRun, Logger
    from crpipe.train.validation.measure import SampleBlock
    from crpipe.train.workload import Workload


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a Trainer works with.

    parent: the receipt of the link before, None for the first link. sample: this rank's share of the held-out
    events; None without validation. best: what train.keep_best names. loggers: classes of train.loggers.
    source: the checkpoint that the first link starts from (train.init_from).
    """

    job: TrainJob
    workload: Workload
    loader: Loader
    store: Store
    parent: Mapping[str, Any] | None
    world: World
    stop: StopRequest
    progress: Progress
    sample: Sequence[SampleBlock] | None = None
    best: Metric | None = None
    loggers: Mapping[str, Callable[[LoggedRun], Logger]] = field(default_factory=dict)
    profile_steps: int = 0
    source: Saved | None = None
