"""The sections of the configuration: each key with its meaning, unit, legal values, and what it changes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, FiniteFloat

from crpipe.config.keys import FROZEN, Section, frozen, key

Binning = tuple[FiniteFloat, FiniteFloat, Annotated[int, Field(ge=1, le=10_000)]]


class SourceSection(Section):
    """Where the raw files are and how they are copied."""

    uri: str = key(
        "",
        "where the raw files are: a plain path, file://, pelican://, osdf://, https://, davs://, root://, "
        "s3://, gs:// or abfs://, with {range} or {number} in place of the file numbers, or a folder and a "
        "pattern (**/ before it: with all folders below); or synthetic:// for files of source.simulator",
        "data",
    )
    files: str = key(
        "",
        "text file with one URI or path per line, used in place of a listing; one list, or one per {range}",
        "data",
    )
    reader: str = key("", "what reads the raw files, as module:Name; its options are under `reader`", "data")
    simulator: str = key(
        "",
        "what makes the raw files when source.uri is synthetic://, as module:Name; its options are under "
        "`simulator`",
        "data",
    )
    convert: str = key(
        "",
        "command that makes a file for source.reader of each raw file before the split: {in} and {out} are "
        "replaced by the two paths, quoted for the shell; empty: none",
        "data",
        later=True,
    )
    convert_suffix: str = key(
        ".parquet", "what the name of each file that source.convert makes ends with", "data", later=True
    )
    convert_timeout_s: float = key(
        1800.0, "longest time that source.convert may take for one file, in seconds", gt=0
    )
    tables: dict[str, str] = key(
        {},
        "side tables that the reader or the workload needs, by name: {geometry: pelican://host/geometry.csv}",
        "data",
    )
    min_files: int = key(1, "fewest files that a range must list", ge=1)
    max_files: int = key(
        0, "only the first files of each range, in natural order, for a first trial; 0: all", "data", ge=0
    )
    concurrency: int = key(16, "files copied at once, each over two connections at most", ge=1, le=256)
    attempts: int = key(6, "tries for each file before it counts as bad", ge=1)
    deadline_minutes: float = key(
        120.0, "longest time that the copies of one range may take, in minutes", gt=0
    )
    read_timeout_s: float = key(
        60.0, "a connection that sends nothing for this long is a stall, in seconds", gt=0
    )
    on_bad_file: Literal["fail", "quarantine"] = key(
        "fail",
        "what to do with an unreadable file: `fail` stops the range; `quarantine` skips and counts the file",
        "data",
    )
    max_quarantined: int = key(10, "most files of one range that may be set aside", "data", ge=0)
    require_checksum: bool | None = key(
        None,
        "whether a file whose checksum cannot be verified is bad; null: only where neither a federation nor "
        "this machine holds it",
    )
    checksums: str = key(
        "",
        "list of checksums that the copies must have: what sha256sum prints, or a CSV or Parquet table; one "
        "list, or one per {range}",
    )
    copy_local: bool = key(
        False,
        "whether files of this machine are copied before they are split, as all others are: for slow file "
        "systems, and such that are purged; false: they are read where they are",
    )
    token_file: str = key(
        "", "file with the bearer token; empty: BEARER_TOKEN, BEARER_TOKEN_FILE, then WLCG's places"
    )
    token_issuer: str = key("", "issuer that `crpipe token --login` asks; empty: the one the director names")
    token_client: str = key(
        "crpipe", "client id registered with the token issuer, for `crpipe token --login`"
    )
    prefetch_ranges: int = key(2, "ranges that may be staged ahead of training", ge=1)
    disk_budget_gib: float = key(
        0.0,
        "most space that raw copies may take at once, in GiB; 0: 80 % of what is free or holds them",
        ge=0,
    )


class RangesSection(Section):
    """Which ranges make up the campaign."""

    first: int = key(0, "first file number", ge=0)
    last: int | Literal["auto"] = key(
        99_999,
        "last file number, included; auto: as many as the source holds when it is listed for the first time",
    )
    size: int = key(1000, "file numbers in one range", ge=1)
    skip: tuple[str, ...] = key(
        (), "ranges to leave out, e.g. [0042000-0042999]; the explicit way past a bad one"
    )
    on_failure: Literal["stop", "skip"] = key(
        "stop",
        "what to do about a range whose own files are bad in three attempts (missing, damaged, too few): "
        "`stop` blocks what follows it; `skip` leaves it out as `ranges.skip` does, and records why",
    )
    max_skipped: int = key(1, "most ranges that `ranges.on_failure: skip` leaves out; one more stops", ge=0)
    duplicates: Literal["refuse", "allow"] = key(
        "refuse",
        "what to do when a raw file is in two ranges, under any names: `refuse` does not train on both; "
        "`allow` counts its events twice",
    )


class SplitSection(Section):
    """Bulk and outliers, training and validation."""

    outlier_above: int = key(
        50_000,
        "multiplicity above which an event is an outlier: how it is stored; its group decides its part",
        "data",
        ge=1,
    )
    quantile: float | None = key(
        None,
        "take the threshold as this quantile of the reference ranges' multiplicities instead",
        "data",
        gt=0,
        lt=1,
    )
    reference_ranges: tuple[str, ...] = key((), "ranges scanned for the quantile; empty: the first", "data")
    validation_fraction: float = key(
        0.05,
        "share of the groups of events (layout.group) kept for validation; rows that belong together need "
        "equal values in the group columns",
        "data",
        ge=0,
        lt=1,
    )
    validation_files: tuple[str | int, ...] = key(
        (),
        "files kept for validation in place of a fraction: patterns of names, file numbers, or intervals "
        "such as 0000900-0000999; a file's number is its range's first number plus its place among the "
        "range's files, file2 before file10; needs validation_fraction: 0",
        "data",
    )
    test_fraction: float = key(
        0.0,
        "share of the groups of events kept for the final test; training never reads them",
        "data",
        ge=0,
        lt=1,
    )
    test_files: tuple[str | int, ...] = key(
        (), "files kept for the final test, named like validation_files; needs test_fraction: 0", "data"
    )
    histograms: dict[str, Binning] = key(
        {},
        "event columns whose values in training events are counted, as column: [low end, high end, number of "
        "bins (1 to 10000)]; for workloads that use how often a value occurs",
        "data",
    )
    shard_items: int = key(16_000_000, "items in one bulk shard, about", "data", ge=1000)
    on_bad_event: Literal["fail", "reject"] = key(
        "fail",
        "what to do with an event that has an impossible value: `fail` stops the range; `reject` skips and "
        "counts the event",
        "data",
    )
    max_rejected: float = key(
        0.01,
        "share of a range's events that `reject` may leave out; with more, the range fails. 1: any, as long "
        "as one is left",
        ge=0,
        le=1,
    )


class OutliersSection(Section):
    """Consolidated outlier shards."""

    shard_mib: int = key(256, "size of one consolidated shard, in MiB, about", ge=1)


class NotifySection(Section):
    """Shell commands that notify a person; the message is on stdin, its subject in CRPIPE_SUBJECT."""

    success: str = key(
        "", 'when a workflow is done, e.g. mail -s "$CRPIPE_SUBJECT" me@example.org; empty: none'
    )
    failure: str = key("", "when a workflow fails; empty: none")
    stall: str = key("", "when `crpipe notify stall`, called regularly, finds no sign of life; empty: none")


class SyncSection(Section):
    """A second place for what a run made (`crpipe sync`)."""

    to: str = key(
        "",
        "directory, pelican://host/path or s3://bucket/path that gets the run's TensorBoard files and "
        "checkpoints; empty: none",
    )


class JobResources(Section):
    """What one job of a rule asks for."""

    cpus: int = key(2, "CPU cores", ge=1)
    mem_mb: int = key(4000, "memory of the first attempt, in MB; each retry asks for as much more", ge=100)
    runtime_minutes: int = key(
        240,
        "longest run time, in minutes; each retry of a job that cannot resume asks for as much more",
        ge=1,
    )


class ResourcesSection(Section):
    """What the workflow asks the cluster for, per rule."""

    stage: JobResources = key(JobResources(), "copying one range")
    convert: JobResources = key(JobResources(), "source.convert on the files of one range, one on each CPU")
    split: JobResources = key(JobResources(), "splitting one range")
    train: JobResources = key(JobResources(cpus=8, mem_mb=32_000, runtime_minutes=1440), "training one range")
    evaluate: JobResources = key(JobResources(mem_mb=16_000), "evaluating a checkpoint")


# The sections of the configuration that are about training: batches, the loop, held-out evaluation.


class LoadSection(Section):
    """Batches."""

    batch_size: int = key(4096, "events in one batch", "train", ge=1)
    max_items: int = key(
        2_000_000, "most items held in one micro-batch; larger batches are accumulated", "train", ge=1
    )
    prefetch: int = key(2, "batches prepared ahead in the background", ge=0)
    collate_workers: int = key(
        1,
        "threads that make tensors of the batches prepared ahead; 0, or prefetch 0: the training itself does",
        ge=0,
        le=64,
    )


class ScheduleSection(Section):
    """The course of the learning rate over the campaign."""

    shape: Literal["linear", "constant", "cosine", "cosine_restarts", "one_cycle"] = key(
        "linear",
        "course of the learning rate: linear (constant up to decay_from, then a linear fall), constant, "
        "cosine (falls over the whole campaign), cosine_restarts (falls restarts + 1 times), one_cycle "
        "(rises up to one_cycle_peak, then falls); workloads may ask for another one in a phase",
        "train",
    )
    warmup_steps: int = key(
        100, "steps over which the learning rate rises from zero; not for one_cycle", "train", ge=0
    )
    decay_from: float = key(
        0.6,
        "linear: share of the campaign after which the learning rate falls to decay_to",
        "train",
        ge=0,
        le=1,
    )
    decay_to: float = key(
        0.05, "learning rate at the campaign's end, as a share of its full value", "train", ge=0, le=1
    )
    one_cycle_start: Annotated[float, *FROZEN] = frozen(0.04, "train")
    one_cycle_peak: float = key(
        0.3,
        "one_cycle: share of the campaign at which the learning rate has its full value",
        "train",
        gt=0,
        lt=1,
    )
    restarts: int = key(
        3, "cosine_restarts: how often the learning rate is back at its full value", "train", ge=1, later=True
    )
    plateau_after: int = key(
        0,
        "validations in a row without a better train.monitor that lower the learning rates; 0: never. "
        "Above 0, train.validate_every, validate_events and monitor change the checkpoints too",
        "train",
        ge=0,
        later=True,
    )
    plateau_factor: float = key(
        0.5, "what plateau_after multiplies the learning rates by", "train", gt=0, lt=1, later=True
    )
    plateau_least: float = key(
        0.01,
        "plateau_after lowers a learning rate to this share of its full value at most",
        "train",
        gt=0,
        le=1,
        later=True,
    )
    horizon_ranges: int = key(
        0,
        "ranges that make up the learning rate's campaign, counted once for each round; 0: all of this one",
        "train",
        ge=0,
    )


class TrainSection(Section):
    """The training loop; the options of the model itself are under ``model``."""

    workload: str = key("", "what is trained, as module:Name; its options are under `model`", "train")
    ranges_per_link: int = key(
        1, "ranges that one training job trains on, shuffled together; 0: all of them", "train", ge=0
    )
    passes: int = key(
        1,
        "passes over the whole campaign: so often the links are trained, one after the other",
        "train",
        ge=1,
    )
    passes_per_link: int = key(
        1, "passes over the ranges of one link before the next link is trained", "train", ge=1
    )
    fresh_batches: bool = key(
        True, "each repeat of a phase draws its own batch; false: repeats share one", "train"
    )
    gradient_clip_norm: float = key(
        10.0, "gradients of a phase are clipped to this norm; 0: never", "train", ge=0
    )
    schedule: ScheduleSection = key(ScheduleSection(), "the course of the learning rate over the campaign")
    ema_decay: float = key(
        0.998,
        "decay of the averaged weights that evaluation and generation use; 0: none",
        "train",
        ge=0,
        lt=1,
    )
    outlier_epochs: int = key(1, "passes of train_outliers over the consolidated outliers", "train", ge=1)
    precision: Literal["float32", "bfloat16", "float16"] = key(
        "float32",
        "arithmetic of the forward passes; float16: on GPUs alone, with loss scales, never tried on one",
        "train",
    )
    tf32: bool = key(
        False, "float32 matrix products in TF32 on GPUs that have it: faster, 10 bits of mantissa", "train"
    )
    compile: Annotated[
        bool | Literal["reduce-overhead", "max-autotune", "fullgraph"],
        BeforeValidator(lambda value: True if value == "default" else value),
    ] = key(
        False,
        "compile the model's modules where that works, eager otherwise: true (default), reduce-overhead or "
        "max-autotune as torch.compile has them, or fullgraph: eager where one is not one graph",
        "train",
    )
    deterministic: bool = key(
        False,
        "only algorithms that give the same bytes each time, on a GPU too: slower; one without any "
        "ends the training",
        "train",
        later=True,
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = key(
        "auto", "where to train; auto: a GPU of CUDA (or ROCm) when there is one; mps: of Apple, never tried"
    )
    gpus: int = key(1, "GPUs of a training job on each node, a process each; 0: train on CPUs", ge=0, le=64)
    processes: int = key(
        1,
        "processes of a training job on each node, with train.gpus: 0; they share its CPUs, and each takes "
        "batches of load.batch_size",
        ge=1,
        le=256,
    )
    nodes: int = key(1, "nodes of a training job; more than one only on a cluster", ge=1)
    numerics: Literal["warn", "refuse"] = key(
        "warn",
        "when a snapshot or a parent's checkpoint was computed with another numerics fingerprint (processor, "
        "versions, threads): warn that the last bits will differ, or refuse",
    )
    threads: int = key(0, "CPU threads of a process; 0: its share of what the job was given", ge=0)
    snapshot_steps: int = key(500, "steps between snapshots", ge=1)
    snapshot_seconds: float = key(600.0, "a snapshot is also taken after this long, in seconds", gt=0)
    log_steps: int = key(20, "steps between metrics", ge=1)
    throttle_steps: Annotated[int, *FROZEN] = frozen(20, "train")
    validate_every: int = key(
        0, "steps between validations with the averaged weights, besides one at the end; 0: none", ge=0
    )
    validate_events: int = key(2000, "held-out events of a validation, the same in all links, at most", ge=1)
    monitor: str = key(
        "", "metric of validation whose best checkpoint each link keeps, e.g. multiplicity/loss; empty: none"
    )
    keep_links: int = key(
        0,
        "newest finished links whose checkpoints `crpipe clean` keeps, besides those that something else "
        "needs; 0: all",
        ge=0,
    )
    early_stopping_patience: int = key(
        0,
        "validations in a row without a better train.monitor that end a link; 0: never. Above 0, "
        "validate_every, validate_events and monitor change the checkpoints too",
        "train",
        ge=0,
    )
    loggers: tuple[str, ...] = key(
        (), "what else gets the metrics: wandb, mlflow, or a class of yours as module:Name"
    )
    stop_loss: float = key(
        1000.0,
        "a loss beyond ± this stops the training after the last good snapshot; 0.3 of it warns",
        gt=0,
    )
    pretrained: str = key(
        "", "checkpoint, or receipt of one, whose weights the first link starts from", "train"
    )
    init_map: dict[str, str] = key(
        {},
        "which weights of pretrained are loaded, by the beginning of their names there and here: "
        "{encoder.: encoder.}; empty: all that fit. With it the optimizers start fresh; not used after "
        "start_after",
        "train",
    )
    start_after: str = key(
        "",
        "link of another run after which this one goes on (`crpipe fork` sets it); empty: none",
        "train",
    )
    on_optimizer_change: Literal["refuse", "reset"] = key(
        "refuse",
        "when the optimizer differs from the parent checkpoint's: refuse, or start with a new state",
        "train",
    )

    on_code_change: Literal["warn", "refuse"] = key(
        "warn",
        "when the code of the workload is not that of the run so far: say it, or refuse to go on",
        "site",
    )

    @property
    def processes_of_node(self) -> int:
        """How many processes train together on each node: one for each GPU, or ``processes`` on CPUs."""
        return self.gpus or self.processes

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return self.processes_of_node * self.nodes


class EvaluateSection(Section):
    """Held-out evaluation."""

    events: int = key(
        40_000,
        "held-out events that predictions are compared with, at most; test events where there are any",
        ge=100,
    )
    fresh_groups: int = key(
        0,
        "where the source simulates: groups simulated for the evaluation alone, one event of each, in place "
        "of held-out events; 0: none",
        ge=0,
    )
    batch_events: int = key(2000, "events generated at once", ge=1)
    checkpoint: Literal["latest", "best"] = key(
        "latest", "which checkpoint of a link the workflow evaluates: the last, or that of train.monitor"
    )
    formats: tuple[Literal["png", "pdf"], ...] = key(
        ("png", "pdf"), "formats of its figures besides SVG and CSV; each takes time"
    )
