"""Verbs that use a trained model: predict, generate, export, fork."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crpipe.cli import importing
from crpipe.cli.terminal import (
    CheckpointOption,
    Settings,
    Terminal,
    completing,
    find_range,
    finished_links,
    keys,
    opened,
)
from crpipe.cli.verbs import RANGE, declare
from crpipe.core.errors import (
    ConfigError,
    DataError,
    FormatError,
    MachineError,
    MissingExtra,
    PluginError,
    SourceError,
    TrainError,
)
from crpipe.core.files import size, write_text
from crpipe.core.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from crpipe.campaign.campaign import Campaign

# Handlers import what they call: a verb pays for its own libraries only (`status` starts without torch).
# ruff: noqa: PLC0415


use = typer.Typer()
verb = partial(declare, "Use a model")

MODEL_KEYS = "evaluate.batch_events, load.max_items, train.threads"

InputOption = Annotated[
    list[Path], typer.Option("--in", readable=False, help="file to read; several: repeat --in")
]


MoreInputs = Annotated[
    list[Path] | None, typer.Argument(metavar="FILE …", readable=False, help="more files to read")
]


DeviceOption = Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="where to compute")]


@verb(
    use,
    "predict",
    "--checkpoint best --in measured.parquet --out predicted.parquet",
    reads=f"{MODEL_KEYS}, source.tables",
    raises=[TrainError, DataError, SourceError, MissingExtra, PluginError, MachineError],
    page="export.md#predict",
)
def predict(
    checkpoint: CheckpointOption,
    inputs: InputOption,
    out: Annotated[Path, typer.Option(readable=False, help="table to write: .parquet, .csv or .root")],
    more: MoreInputs = None,
    device: DeviceOption = "auto",
    seed: Annotated[int, typer.Option(help="seed of everything random", min=0)] = 1,
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
    """Predict for all events of raw files; again: go on.

    The same command continues after a crash.
    """
    with importing():
        from crpipe.inference.predict import TableRequest, predict_files

    campaign, path = _of_checkpoint(checkpoint)
    files = [*inputs, *(more or ())]
    request = TableRequest(
        campaign=campaign, checkpoint=path, inputs=files, out=out, device=device, seed=seed
    )
    names = [name.strip() for name in columns.split(",") if name.strip()]
    events = predict_files(request, Terminal(), tables=_tables(table or ()), columns=names)
    print(describe_table(out, events))


def _of_checkpoint(checkpoint: str) -> tuple[Campaign, Path]:
    """Open the campaign as its files describe it, and find what --checkpoint names."""
    from crpipe.inference.checkpoints import find_checkpoint

    campaign = opened(Settings.config(), layout="recorded")
    return campaign, find_checkpoint(checkpoint, campaign.paths, lambda: campaign.chain.names)


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
    for option in given:
        name, equals, path = option.partition("=")
        if not (name and equals and path):
            raise typer.BadParameter(
                f"--table {option}: expected NAME=FILE, for example meta=test_meta.parquet"
            )
        tables[name] = Path(path)
    return tables


@verb(
    use,
    "generate",
    "--checkpoint latest --in wanted.csv --out generated.parquet",
    reads=MODEL_KEYS,
    raises=[TrainError, DataError, SourceError, MissingExtra, PluginError, MachineError],
    page="export.md#generate",
)
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
    seed: Annotated[int, typer.Option(help="seed of the generation", min=0)] = 1,
    device: DeviceOption = "auto",
    *,
    flat: Annotated[
        bool, typer.Option("--flat", help="one row for each item in place of each event")
    ] = False,
) -> None:
    """Generate an event for each row of a table or of raw files.

    The table is flat, has the event columns, and is Parquet or CSV.
    """
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
    try:
        events = generate_files(request, Terminal(), multiplicity=multiplicity, cap=cap, flat=flat)
    except FormatError as error:
        raise FormatError(str(error).replace(str(files[0]), "--event") if event else str(error)) from error
    finally:
        if event:
            # After a kill the same command writes the same file, and goes on.
            files[0].unlink(missing_ok=True)
    print(describe_table(out, events))


def write_events(given: Sequence[str], out: Path) -> Path:
    """Write events such as ``energy=1e6,angle=0.3`` into a hidden CSV file beside ``out``; return its path.

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
    path = out.with_name(f".{out.name}.events.csv")
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
        if name in row:
            raise ConfigError(f"--event {text}: {name} is there twice; give it once")
        row[name] = value
    return row


@verb(
    use,
    "export",
    "--checkpoint best --out model",
    reads="source.reader, reader, train.workload",
    raises=[DataError, MissingExtra, PluginError, MachineError],
    page="export.md#export",
)
def export(
    out: Annotated[Path, typer.Option(readable=False, help="directory for the files; of a model, a new one")],
    checkpoint: CheckpointOption = "",
    events: Annotated[
        str,
        typer.Option(metavar="RANGE", help="write the events of this range, in place of a model"),
    ] = "",
) -> None:
    """Write a model for use elsewhere, or the events of a range.

    With --checkpoint: weights, options, side tables, graphs, model card. With --events: the shards of the
    range as Parquet files, in the raw files' schema if the reader has one.
    """
    if bool(events) == bool(checkpoint):
        raise typer.BadParameter("name a checkpoint with --checkpoint, or a range with --events")
    if events:
        _export_events(events, out)
        return
    with importing():
        from crpipe.inference.export import CARD, export_model

    campaign, path = _of_checkpoint(checkpoint)
    if campaign.config.source.reader:  # the card measures the training shards, which follow from its layout
        campaign = opened(campaign.config)
    export_model(campaign, path, out, Terminal())
    print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    options = [part for path in Settings.files for part in ("--config", str(path))]
    options += [part for text in Settings.overrides for part in ("--set", text)]
    print(f"next: read {out / CARD}, how to use it; or prove it with the command")
    print(f"  {shlex.join(['crpipe', *options, 'check', '--export', str(out)])}")


def _export_events(name: str, out: Path) -> None:
    """Write train.parquet, outliers.parquet, … of one range."""
    from crpipe.campaign.readers import configured_reader
    from crpipe.split.export import export_shards

    config = Settings.campaign()
    key = find_range(config, name)
    folders = [config.paths().shards(key), config.paths().outliers(key)]
    written = export_shards(folders, out, configured_reader(config), Terminal())
    print(f"{out}: {counted(written, 'event')}")


@verb(
    use,
    "fork",
    f"--from {RANGE} --run gentler --set train.gradient_clip_norm=1.0",
    reads="train, ranges",
    raises=[DataError, MachineError],
    page="training.md#changing-ones-mind",
)
def fork(
    link: Annotated[
        str,
        typer.Option(
            "--from",
            help="finished link after which the new run begins",
            autocompletion=completing(finished_links),
        ),
    ],
    run: Annotated[str, typer.Option(help="name of the new run")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key.sub=value that the new run has; several: repeat it",
            autocompletion=completing(keys),
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(readable=False, help="file to write; default: RUN.yaml")] = None,
) -> None:
    """Write the configuration of a run that goes on after a link.

    The new run has other settings from there on.
    """
    from crpipe.setup.fork import write_fork

    files = Settings.config_files()
    print(write_fork(files, Settings.overrides, link, run, changes or (), out or Path(f"{run}.yaml")))
