"""The sections of the configuration that are about training: batches, the loop, held-out evaluation."""

from __future__ import annotations

from typing import Literal

from crpipe.config.sections import Section, key


class LoadSection(Section):
    """Batches."""

    batch_events: int = key(4096, "events in one batch", "train", ge=1)
    budget_items: int = key(
        2_000_000, "most items held in one micro-batch; larger batches are accumulated", "train", ge=1
    )
    prefetch: int = key(2, "batches prepared ahead in the background", ge=0)
    collate_workers: int = key(
        1,
        "threads that make tensors of the batches prepared ahead; 0, or prefetch 0: the training itself does",
        ge=0,
        le=64,
    )


class TrainSection(Section):
    """The training loop; the options of the model itself are under ``model``."""

    workload: str = key("", "what is trained, as module:Name; its options are under `model`", "train")
    ranges_per_link: int = key(
        1, "ranges that one training job trains on, shuffled together; 0: all of them", "train", ge=0
    )
    rounds: int = key(
        1,
        "passes of the chain over the campaign",
        "train",
        ge=1,
    )
    epochs: int = key(1, "passes over the ranges of a link before the next link", "train", ge=1)
    fresh_batches: bool = key(
        True, "each repeat of a phase draws its own batch; false: repeats share one", "train"
    )
    clip_norm: float = key(10.0, "gradients of a phase are clipped to this norm; 0: never", "train", ge=0)
    schedule: Literal["linear", "constant", "cosine", "one_cycle"] = key(
        "linear",
        "course of the learning rate: linear (constant up to decay_from, then a linear fall), constant, "
        "cosine (falls over the whole campaign), one_cycle (rises up to one_cycle_peak, then falls); "
        "workloads may ask for another one in a phase",
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
    one_cycle_start: float = key(
        0.04, "one_cycle: learning rate at the beginning, as a share of its full value", "train", ge=0, le=1
    )
    one_cycle_peak: float = key(
        0.3,
        "one_cycle: share of the campaign at which the learning rate has its full value",
        "train",
        gt=0,
        lt=1,
    )
    horizon_ranges: int = key(
        0,
        "ranges that make up the learning rate's campaign, counted once for each round; 0: all of this one",
        "train",
        ge=0,
    )
    ema: float = key(
        0.998,
        "decay of the averaged weights that evaluation and generation use; 0: none",
        "train",
        ge=0,
        lt=1,
    )
    outlier_epochs: int = key(1, "passes of train_outliers over the consolidated outliers", "train", ge=1)
    precision: Literal["float32", "bfloat16"] = key("float32", "arithmetic of the forward passes", "train")
    tf32: bool = key(
        False, "float32 matrix products in TF32 on GPUs that have it: faster, 10 bits of mantissa", "train"
    )
    compile: bool = key(False, "compile the model's modules where that works, eager otherwise", "train")
    device: Literal["auto", "cpu", "cuda"] = key("auto", "where to train; auto: a GPU when there is one")
    gpus: int = key(1, "GPUs of a training job on each node, a process each; 0: train on CPUs", ge=0, le=64)
    processes: int = key(
        1,
        "processes of a training job on each node, with train.gpus: 0; they share its CPUs, and each takes "
        "batches of load.batch_events",
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
    throttle_steps: int = key(
        20, "steps between decisions to throttle a player that is too strong", "train", ge=1
    )
    validate_steps: int = key(
        0, "steps between validations with the averaged weights, besides one at the end; 0: none", ge=0
    )
    validate_events: int = key(2000, "held-out events of a validation, the same in all links, at most", ge=1)
    keep_best: str = key(
        "", "metric of validation whose best checkpoint each link keeps, e.g. multiplicity/loss; empty: none"
    )
    keep_links: int = key(
        0,
        "newest finished links whose checkpoints `crpipe clean` keeps, besides those that something else "
        "needs; 0: all",
        ge=0,
    )
    stop_after: int = key(
        0,
        "validations in a row without a better train.keep_best that end a link; 0: never. Above 0, "
        "validate_steps, validate_events and keep_best change the checkpoints too",
        "train",
        ge=0,
    )
    loggers: tuple[str, ...] = key(
        (), "what else gets the metrics, each as module:Name, for example a client of W&B or MLflow"
    )
    profile_steps: int = key(0, "steps at the beginning of a training job to profile; 0: none", ge=0)
    detect_anomaly: bool = key(
        False, "stop at the first operation whose gradient is not finite, and name it; very slow"
    )
    histogram_steps: int = key(500, "steps between histograms in TensorBoard; 0: none", ge=0)
    warn_loss: float = key(300.0, "a loss beyond ± this is warned about", gt=0)
    stop_loss: float = key(
        1000.0, "a loss beyond ± this stops the training after the last good snapshot", gt=0
    )
    max_skipped: int = key(20, "non-finite steps in a row that stop the training", ge=1)
    lease_wait_s: float = key(120.0, "how long to wait for another job on the same range, in seconds", ge=0)
    init_from: str = key(
        "", "checkpoint, or receipt of one, whose weights the first link starts from", "train"
    )
    init_map: dict[str, str] = key(
        {},
        "which weights of init_from are loaded, by the beginning of their names there and here: "
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
    batch_events: int = key(2000, "events generated at once", ge=1)
    checkpoint: Literal["latest", "best"] = key(
        "latest", "which checkpoint of a link the workflow evaluates: the last, or that of train.keep_best"
    )
