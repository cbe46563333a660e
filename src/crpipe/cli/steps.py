"""Verbs that the workflow runs: each one makes what a rule asks for, and notes it in a journal."""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crpipe.cli import importing
from crpipe.cli.look import source_token
from crpipe.cli.terminal import (
    CheckpointOption,
    LinkArgument,
    RangeArgument,
    Settings,
    Terminal,
    completing,
    find_range,
    links,
    opened,
)
from crpipe.cli.verbs import OF_THE_SOURCE, RANGE, declare
from crpipe.core.errors import (
    CrpipeError,
    DataError,
    DivergenceError,
    LeaseError,
    MachineError,
    MissingExtra,
    PluginError,
    SliceOver,
    SourceError,
    TrainError,
)
from crpipe.core.journal import Journal
from crpipe.core.ranges import pick

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from crpipe.campaign.campaign import Campaign

# Handlers import what they call: a verb pays for its own libraries only (`status` starts without torch).
# ruff: noqa: PLC0415


PackOption = Annotated[
    Path | None,
    typer.Option("--pack", metavar="FILE", readable=False, help="a file that `crpipe pack` wrote"),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", readable=False, help="with --pack: file for the result"),
]
DeliverOption = Annotated[
    bool,
    typer.Option(
        "--deliver", help="with --pack: end with 0 also for a failure that is in --out; unpack raises it"
    ),
]

steps = typer.Typer()
verb = partial(declare, "Steps that the workflow runs")


@contextlib.contextmanager
def _attempt(verb: str, text: str | None = None) -> Iterator[tuple[Campaign, str]]:
    """Open the campaign once, claim its data, and note begin and end of the verb in its journal.

    text: names a range; yield the campaign and the full name of the range.
    """
    from crpipe.campaign.claims import record_data_keys

    config = Settings.config()
    name = "" if text is None else find_range(config, text)
    campaign = opened(config)
    record_data_keys(campaign)
    with Journal(campaign.paths.data_journal()).attempt(verb, name):
        yield campaign, name


@verb(steps, "count", reads="source, ranges", raises=OF_THE_SOURCE, page="data.md")
def count(
    *,
    grown: Annotated[
        bool, typer.Option("--grown", help="number the files, too, that were added after the last one")
    ] = False,
) -> None:
    """Count the files of the source once, for `ranges.last: auto`; print the last file number."""
    from crpipe.source.counting import count_files

    with _attempt("count") as (campaign, _):
        print(count_files(campaign, Terminal(), grown=grown))


@verb(steps, "tables", reads="source", raises=OF_THE_SOURCE, page="data.md#side-tables")
def tables() -> None:
    """Copy the side tables of `source.tables` next to the results, verified and hashed."""
    from crpipe.source.side_tables import stage_tables

    with _attempt("tables") as (campaign, _):
        stage_tables(campaign, Terminal())


@verb(
    steps,
    "list",
    RANGE,
    reads="source, ranges",
    raises=OF_THE_SOURCE,
    page="data.md#where-the-raw-files-are",
)
def list_(name: RangeArgument) -> None:
    """List one range of the source into its manifest."""
    with importing():
        from crpipe.source.listing import list_range

    with _attempt("list", name) as (campaign, key):
        list_range(campaign, key, Terminal())


@verb(
    steps,
    "stage",
    RANGE,
    reads="source",
    raises=[DataError, *OF_THE_SOURCE],
    page="data.md#where-the-raw-files-are",
)
def stage(name: RangeArgument) -> None:
    """Copy one range next to the results, each file verified before its name appears."""
    with importing():
        from crpipe.source.stage import stage_range

    with _attempt("stage", name) as (campaign, key):
        stage_range(campaign, key, Terminal())


@verb(
    steps,
    "convert",
    RANGE,
    reads="source, source.reader, reader, resources.convert",
    raises=[DataError, MissingExtra, PluginError, *OF_THE_SOURCE],
    page="data.md#files-that-no-reader-reads",
)
def convert(name: RangeArgument) -> None:
    """Make a file for the reader of each staged file of a range with the command of `source.convert`."""
    with importing():
        from crpipe.source.convert import convert_range

    with _attempt("convert", name) as (campaign, key):
        convert_range(campaign, key, Terminal())


@verb(
    steps,
    "threshold",
    reads="split, source.reader, reader",
    raises=[DataError, SourceError, PluginError, MachineError],
    page="data.md",
)
def threshold() -> None:
    """Choose the outlier threshold as a quantile of the reference ranges."""
    from crpipe.split.parts import choose_threshold

    with _attempt("threshold") as (campaign, _):
        choose_threshold(campaign, Terminal())


@verb(
    steps,
    "split",
    RANGE,
    reads="split, source.reader, reader, resources.split",
    raises=[DataError, SourceError, MissingExtra, PluginError, MachineError, LeaseError],
    page="data.md#the-ledger",
)
def split(
    name: RangeArgument = "",
    *,
    accept_code: Annotated[
        bool,
        typer.Option("--accept-code", help="the reader's code changed and its events are the same: go on"),
    ] = False,
    pack: PackOption = None,
    out: OutOption = None,
    deliver: DeliverOption = False,
) -> None:
    """Turn one staged range into shards, outliers and a balanced ledger.

    With --pack it lists and copies the range itself, in any folder, and leaves the result (or the failure) in
    --out; the raw files are deleted.
    """
    if pack or out or deliver:
        files = _files_of_pack(name, pack, out, [accept_code])
        with importing():
            from crpipe.packs.ranges import split_pack

        with _delivered(files[1], deliver=deliver):
            split_pack(*files, Terminal())
        return
    if not name:
        raise typer.BadParameter("name a range, or a pack with --pack FILE --out FILE")
    with importing():
        from crpipe.split.split import split_range

    with _attempt("split", name) as (campaign, key):
        split_range(campaign, key, Terminal(), accept_code=accept_code)


@verb(
    steps,
    "consolidate",
    reads="outliers",
    raises=[DataError, MachineError, LeaseError],
    page="data.md",
)
def consolidate() -> None:
    """Merge the outliers of all ranges into shards of a chosen size."""
    from crpipe.split.outliers import consolidate_outliers

    with _attempt("consolidate") as (campaign, _):
        consolidate_outliers(campaign, Terminal())


@verb(
    steps,
    "train",
    RANGE,
    reads="train, model, load",
    raises=[
        *(TrainError, DataError, MissingExtra, PluginError, MachineError, LeaseError, DivergenceError),
        SliceOver,
    ],
    page="training.md",
)
def train(
    name: LinkArgument = "",
    max_minutes: Annotated[float, typer.Option(help="snapshot and stop after this long; 0: never")] = 0.0,
    profile: Annotated[int, typer.Option(help="steps at the beginning to write a trace of; 0: none")] = 0,
    *,
    anomaly: Annotated[
        bool,
        typer.Option("--anomaly", help="name the first operation whose gradient is not finite; slow"),
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="before the first step of the link: call every method of the workload, as plan --probe",
        ),
    ] = False,
    pack: PackOption = None,
    out: OutOption = None,
    slice_: Annotated[
        str, typer.Option("--slice", metavar="TIME", help="with --pack: end after so long, for example 30m")
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="with --pack: the file that carries the link from one slice to the next, or a directory, "
            "pelican://host/path or s3://bucket/path for such files",
        ),
    ] = "state.tar",
    deliver: DeliverOption = False,
) -> None:
    """Train one link of the chain (or on `outliers`), from its last snapshot or the link before it.

    With --pack it needs nothing but the pack, leaves the result (or the failure) in --out, and ends with 85
    when a slice is over: the same command goes on.
    """
    if pack or out or slice_ or deliver:
        files = _files_of_pack(name, pack, out, [max_minutes, profile, anomaly, probe])
        with _delivered(files[1], deliver=deliver):
            _train_pack(*files, slice_, state)
        return
    if not name:
        raise typer.BadParameter("name a link, or a pack with --pack FILE --out FILE")
    with importing():
        from crpipe.workflow.rules import start_ranks

    config = Settings.config()
    start_ranks(config.train.nodes, config.train.processes_of_node, name)
    with importing():
        from crpipe.train.link import train_link

    campaign, terminal = opened(config), Terminal()
    link, first = pick(name, campaign.chain.names, "link"), None
    if probe:
        from crpipe.contract.probe import check_first_job

        first = partial(check_first_job, campaign, link, terminal)
    train_link(
        campaign,
        link,
        terminal,
        max_minutes=max_minutes,
        profile_steps=profile,
        anomaly=anomaly,
        first=first,
    )


def _train_pack(pack: Path, out: Path, slice_: str, state: str) -> None:
    """Train the link of a pack; its own configuration is the only one."""
    with importing():
        from crpipe.packs.slices import SlicedJob, process_age_s, seconds_of, train_pack

    begun = time.time() - process_age_s()
    train_pack(SlicedJob(pack, out, state, seconds_of(slice_) if slice_ else 0.0, begun), Terminal())


@contextlib.contextmanager
def _delivered(out: Path, *, deliver: bool) -> Iterator[None]:
    """Report an error that the result of a pack holds, and go on, where that is asked for."""
    out.unlink(missing_ok=True)
    try:
        yield
    except SliceOver:
        raise
    except CrpipeError as error:
        if not (deliver and out.exists()):
            raise
        Terminal().message(f"crpipe: {error}; {out} holds it")


def _files_of_pack(
    name: str, pack: Path | None, out: Path | None, others: Iterable[object]
) -> tuple[Path, Path]:
    """Return the files of a call with a pack; refuse ``others``, options that it would ignore."""
    if name or pack is None or out is None or Settings.is_given() or any(others):
        raise typer.BadParameter(
            "--pack and --out go together, with --deliver, --slice and --state at most: the name and the "
            "configuration are in the pack"
        )
    return pack, out


@verb(
    steps,
    "pack",
    "0000000-0000999 --out link.tar",
    reads="train",
    raises=[TrainError, DataError, SourceError, MachineError, LeaseError, DivergenceError],
    page="anywhere.md",
)
def pack(
    name: LinkArgument,
    out: Annotated[Path, typer.Option(readable=False, help="file for the pack")],
    refer: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="directory, pelican://host/path or s3://bucket/path: send the shards there, and only name "
            "them in the pack",
        ),
    ] = "",
    *,
    data: Annotated[
        bool, typer.Option("--data", help="a range to be made, for `crpipe split --pack`, and no link")
    ] = False,
) -> None:
    """Write all that the training of a link needs into one file, for `crpipe train --pack` anywhere."""
    config = Settings.config()
    campaign = opened(config)
    if data:
        if refer:
            raise typer.BadParameter(
                "--refer is for the shards of a link, and --data for a range without any"
            )
        with importing():
            from crpipe.packs.ranges import pack_range

        pack_range(campaign, find_range(config, name), out, Terminal())
        return
    with importing():
        from crpipe.packs.links import pack_link

    pack_link(campaign, pick(name, campaign.chain.names, "link"), out, Terminal(), refer=refer)


@verb(
    steps,
    "unpack",
    "link-out.tar",
    reads="train, split",
    raises=[TrainError, DataError, SourceError, PluginError, MachineError, LeaseError, DivergenceError],
    page="anywhere.md",
)
def unpack(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="what `crpipe train --pack` left", readable=False)
    ],
    *,
    remove: Annotated[
        bool, typer.Option("--remove", help="delete OUT once it is in the campaign, or of no use to it")
    ] = False,
    spent: Annotated[
        Path | None,
        typer.Option(
            readable=False, help="with --remove: file to write where every copy of OUT is of no use"
        ),
    ] = None,
) -> None:
    """Put what came back for a pack into the campaign; raise the error that ended its work, if one did."""
    with importing():
        from crpipe.packs.results import unpack as unpack_result

    unpack_result(opened(Settings.config()), out, Terminal(), remove=remove, spent=spent)


@verb(
    steps,
    "evaluate",
    "--checkpoint best",
    reads="evaluate, load.max_items, train.device, train.threads",
    raises=[TrainError, DataError, MissingExtra, PluginError, MachineError],
    page="training.md#validation-the-best-checkpoint-stopping-early",
)
def evaluate(
    name: Annotated[
        str,
        typer.Argument(
            metavar="LINK",
            help="a link; empty: that of --checkpoint",
            autocompletion=completing(links),
        ),
    ] = "",
    checkpoint: CheckpointOption = "",
) -> None:
    """Score the checkpoint of one link (or of `outliers`) on held-out events."""
    with importing():
        from crpipe.inference.evaluate import evaluate_link

    if not (name or checkpoint):
        raise typer.BadParameter("name a link, or a checkpoint with --checkpoint best, latest, LINK or PATH")
    campaign = opened(Settings.config())
    link = pick(name, campaign.chain.names, "link") if name else ""
    evaluate_link(campaign, link, Terminal(), checkpoint=checkpoint)


def _events(incomplete: str) -> list[str]:
    return [event for event in ("success", "failure", "stall") if event.startswith(incomplete)]


@verb(steps, "notify", "stall", reads="notify, ranges, train", page="watching.md#notifications-crpipe-notify")
def notify(
    event: Annotated[str, typer.Argument(help="success, failure or stall", autocompletion=_events)],
    minutes: Annotated[
        float, typer.Option(help="of a stall: how long the campaign wrote nothing", min=0.1)
    ] = 60.0,
) -> None:
    """Run the configured command of an event (section `notify`) with the status on its stdin."""
    from crpipe.report.notify import notify as run_command

    config = Settings.campaign()
    campaign = opened(config, "recorded")
    print(run_command(campaign, event, source_token(config), minutes), file=sys.stderr)
