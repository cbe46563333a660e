"""Verbs around a model: train, evaluate, predict, generate, export."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crpipe.cli import completion, importing
from crpipe.cli.terminal import LinkArgument, Settings, Terminal, completing
from crpipe.core.errors import ConfigError
from crpipe.core.files import size, write_text
from crpipe.core.ranges import pick
from crpipe.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from crpipe.campaign.campaign import Campaign

# ruff: noqa: PLC0415

# Handlers import what they call: a verb pays for its own libraries only.

models = typer.Typer()

_CHECKPOINT = (
    "best, latest, a link (in full, its beginning, or its number from 0), LINK.best, or the path of a "
    "checkpoint or receipt"
)
_checkpoints = completing(completion.checkpoints)
CheckpointOption = Annotated[str, typer.Option(help=_CHECKPOINT, autocompletion=_checkpoints)]
InputOption = Annotated[
    list[Path], typer.Option("--in", readable=False, help="file to read; several: repeat --in")
]
MoreInputs = Annotated[
    list[Path] | None, typer.Argument(metavar="FILE …", readable=False, help="more files to read")
]
DeviceOption = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="where to compute")]


@models.command()
def probe(
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--in", readable=False, help="raw file to take the batch from; several: repeat --in"),
    ] = None,
    steps: Annotated[int, typer.Option(help="steps on the one batch", min=1)] = 200,
    name: Annotated[
        str,
        typer.Option(
            "--range", help="split range to take the batch from", autocompletion=completing(completion.ranges)
        ),
    ] = "",
    *,
    anomaly: Annotated[
        bool, typer.Option("--anomaly", help="name the operation of the first bad gradient; slow")
    ] = False,
    profile: Annotated[
        Path | None, typer.Option(readable=False, help="write a trace of some steps to this file")
    ] = None,
) -> None:
    """Train on one batch of your data again and again, and show losses, times and memory."""
    with importing():
        from crpipe.campaign.campaign import Campaign
        from crpipe.inference.probe import probe_batch, read_batch, render_probe
        from crpipe.setup.compatibility import check_fit

    config = Settings.config()
    check_fit(config)
    campaign = Campaign.open(config)
    batch = read_batch(campaign, inputs or (), name)
    result = probe_batch(campaign, batch, steps, Terminal(), anomaly=anomaly, profile=profile)
    print(render_probe(batch, campaign.item, result, anomaly=anomaly))


@models.command()
def train(
    name: LinkArgument,
    max_minutes: Annotated[float, typer.Option(help="snapshot and stop after this long; 0: never")] = 0.0,
    profile: Annotated[int, typer.Option(help="steps to profile; 0: none")] = 0,
) -> None:
    """Train one link of the chain (or on `outliers`), from its last snapshot or the link before it."""
    with importing():
        from crpipe.workflow.rules import start_ranks

    config = Settings.config()
    start_ranks(config.train.nodes, config.train.processes_of_node, name)
    with importing():
        from crpipe.campaign.campaign import Campaign
        from crpipe.train.link import train_link

    campaign = Campaign.open(config)
    link = pick(name, campaign.chain.names, "link")
    train_link(campaign, link, Terminal(), max_minutes=max_minutes, profile_steps=profile)


@models.command()
def evaluate(
    name: Annotated[
        str,
        typer.Argument(
            metavar="LINK",
            help="a link; empty: that of --checkpoint",
            autocompletion=completing(completion.links),
        ),
    ] = "",
    checkpoint: CheckpointOption = "",
) -> None:
    """Score the checkpoint of one link (or of `outliers`) on held-out events."""
    with importing():
        from crpipe.campaign.campaign import Campaign
        from crpipe.inference.evaluate import evaluate_link

    if not (name or checkpoint):
        raise typer.BadParameter("name a link, or a checkpoint with --checkpoint best, latest, LINK or PATH")
    campaign = Campaign.open(Settings.config())
    link = pick(name, campaign.chain.names, "link") if name else ""
    evaluate_link(campaign, link, Terminal(), checkpoint=checkpoint)


@models.command()
def predict(
    checkpoint: CheckpointOption,
    inputs: InputOption,
    out: Annotated[Path, typer.Option(readable=False, help="table to write: .parquet, .csv or .root")],
    more: MoreInputs = None,
    device: DeviceOption = "auto",
    seed: Annotated[int, typer.Option(help="seed of everything random")] = 1,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="a side table of these files in place of the campaign's; may be repeated",
        ),
    ] = None,
    columns: Annotated[
        str, typer.Option(help="columns to write, as NAME,NAME,…, in this order; all without it")
    ] = "",
) -> None:
    """Predict for all events of raw files; the same command continues after a crash."""
    with importing():
        from crpipe.inference.predict import TableRequest, predict_files

    campaign, path = _of_checkpoint(checkpoint)
    files = [*inputs, *(more or ())]
    request = TableRequest(
        campaign=campaign, checkpoint=path, inputs=files, out=out, device=device, seed=seed
    )
    chosen = [name.strip() for name in columns.split(",") if name.strip()]
    events = predict_files(request, Terminal(), tables=_tables(table or ()), columns=chosen)
    print(describe_table(out, events))


def _of_checkpoint(asked: str) -> tuple[Campaign, Path]:
    """Open the campaign as its files describe it, and find what --checkpoint names."""
    from crpipe.campaign.campaign import Campaign
    from crpipe.inference.checkpoints import find_checkpoint

    campaign = Campaign.open(Settings.config(), layout="recorded")
    return campaign, find_checkpoint(asked, campaign.paths, lambda: campaign.chain.names)


def describe_table(out: Path, events: int) -> str:
    """Describe a table that was written: events, rows, columns and size."""
    import pyarrow.parquet as pq

    about = [counted(events, "event")]
    if out.suffix == ".parquet":
        file = pq.read_metadata(out)
        if file.num_rows != events:
            about.append(counted(file.num_rows, "row"))
        about.append(f"columns {', '.join(pq.read_schema(out).names)}")
    elif out.suffix == ".csv":
        with out.open() as lines:
            about.append(f"columns {', '.join(lines.readline().strip().split(','))}")
    return f"{out}: {'; '.join([*about, size(out.stat().st_size)])}"


def _tables(given: Iterable[str]) -> dict[str, Path]:
    tables = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not (name and equals and path):
            raise typer.BadParameter(
                f"--table {each}: expected NAME=FILE, for example meta=test_meta.parquet"
            )
        tables[name] = Path(path)
    return tables


@models.command()
def generate(
    checkpoint: CheckpointOption,
    out: Annotated[Path, typer.Option(readable=False, help="table to write: .parquet, .csv or .root")],
    inputs: Annotated[
        list[Path] | None, typer.Option("--in", readable=False, help="file to read; several: repeat --in")
    ] = None,
    more: MoreInputs = None,
    event: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER,…", help="one event in place of a file; may be repeated"),
    ] = None,
    multiplicity: Annotated[
        str, typer.Option(help="predicted, a number, column, or a column's name")
    ] = "predicted",
    cap: Annotated[int, typer.Option(help="most items in one event")] = 10_000_000,
    seed: Annotated[int, typer.Option(help="seed of the generation")] = 1,
    device: DeviceOption = "auto",
    *,
    flat: Annotated[
        bool, typer.Option("--flat", help="one row for each item in place of each event")
    ] = False,
) -> None:
    """Generate an event for each row: of a flat table of event columns (Parquet, CSV), or of raw files."""
    with importing():
        from crpipe.inference.predict import TableRequest, generate_files

    files = [*(inputs or ()), *(more or ())]
    if bool(files) == bool(event):
        raise typer.BadParameter('name files with --in FILE, or events with --event "NAME=NUMBER,…"')
    campaign, path = _of_checkpoint(checkpoint)
    files = files or [write_events(event or (), out)]
    request = TableRequest(
        campaign=campaign, checkpoint=path, inputs=files, out=out, device=device, seed=seed
    )
    events = generate_files(request, Terminal(), multiplicity=multiplicity, cap=cap, flat=flat)
    print(describe_table(out, events))


def write_events(given: Sequence[str], out: Path) -> Path:
    """Write events such as ``energy=1e6,angle=0.3`` into a CSV file beside ``out``; return its path.

    Raise ConfigError where one is not NAME=NUMBER, or where they have different columns.
    """
    rows = [_event(text) for text in given]
    names = list(rows[0])
    for text, row in zip(given, rows, strict=True):
        if set(row) != set(names):
            raise ConfigError(
                f"--event {text}: has the columns {', '.join(row)}, and the first one {', '.join(names)}; "
                "give the same columns for every event"
            )
    path = out.with_name(f"{out.name}.events.csv")
    lines = [",".join(names), *(",".join(row[name] for name in names) for row in rows)]
    write_text(path, "\n".join([*lines, ""]))
    return path


def _event(text: str) -> dict[str, str]:
    row = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        try:
            float(value)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise ConfigError(
                f'--event {text}: {part!r} is not NAME=NUMBER; for example --event "a=1e6,b=0.3"'
            )
        row[name] = value
    return row


@models.command()
def export(
    checkpoint: CheckpointOption,
    out: Annotated[
        Path, typer.Option(readable=False, help="directory for weights, options, tables, graphs and the card")
    ],
) -> None:
    """Write a trained checkpoint for use elsewhere: weights, options, side tables, graphs, model card."""
    with importing():
        from crpipe.campaign.campaign import Campaign
        from crpipe.inference.export import CARD, export_model

    campaign, path = _of_checkpoint(checkpoint)
    if campaign.config.source.reader:  # the card measures the training shards, which follow from its layout
        campaign = Campaign.open(campaign.config)
    export_model(campaign, path, out, Terminal())
    print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    options = [part for path in Settings.files for part in ("--config", str(path))]
    options += [part for text in Settings.overrides for part in ("--set", text)]
    print(f"next: read {out / CARD}, how to use it; or prove it with the command")
    print(f"  {shlex.join(['crpipe', *options, 'check', '--export', str(out)])}")
