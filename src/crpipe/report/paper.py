"""What the page shows for a paper: what was trained on what, spectra of its inputs, captions, other runs."""

from __future__ import annotations

import base64
import io
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from crpipe import __version__
from crpipe.campaign.records import Receipt
from crpipe.core.paths import PARTS, Part, roles_of
from crpipe.core.text import counted, number
from crpipe.events.shard_records import ShardManifest
from crpipe.report.evaluations import evaluations
from crpipe.report.figure_context import FORMATS
from crpipe.report.figure_style import COLOURS, inline_svg, page_figure, page_style, style
from crpipe.report.figures import Chart, progress_figure
from crpipe.report.status import last_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from crpipe.campaign.campaign import Campaign
    from crpipe.events.layout import Field

_MOST_SHARDS = 24  # of each part, whose first rows are read
_MOST_EVENTS = 200_000  # of each part
_MOST_COLUMNS = 6
_BINS = 40
_DECADES = 100.0  # the largest value over the smallest, from which the axis is logarithmic
_FEW = 30  # different values, which are plotted one by one
_TICKS = 6

Samples = dict[str, dict[str, "NDArray[Any]"]]  # values by column and part


def origin(campaign: Campaign, samples: Samples) -> Iterator[tuple[str, str]]:
    """Yield label and text of what a paper says of the newest checkpoint: data, hashes, code."""
    config, source = campaign.config, campaign.config.source
    workload = config.train.workload
    names = campaign.ranges
    ranges = names[0] if len(names) == 1 else f"{counted(len(names), 'range')}, {names[0]} to {names[-1]}"
    yield "model", f"{workload.rpartition(':')[2]} ({workload})"
    yield "data", f"{source.files or source.uri}: {ranges}"
    inside = [_span(field, samples[field.name]) for field in shown_fields(campaign) if field.name in samples]
    if inside:
        yield "events between", "; ".join(inside)
    files = (campaign.paths.receipt(name) for name in reversed(campaign.chain.names))
    receipt = next((each for path in files if (each := Receipt.read_if_any(path))), None)
    if receipt is not None:
        seen = f"{counted(receipt.events, 'event')}, {number(receipt.items)} {campaign.item}, passes counted"
        yield "trained on", f"{seen}; {counted(receipt.step, 'step')}"
        yield "checkpoint", str(campaign.paths.store(receipt.range) / receipt.checkpoint)
        yield "sha256", receipt.sha256
        yield "fingerprint", f"{receipt.fingerprint} (all keys that shaped it are below)"
    if last_command(campaign.paths):
        yield "command", last_command(campaign.paths)
    yield "page made by", f"crpipe {__version__}{commit()}"


@cache
def commit() -> str:
    """Return the commit of the clone that crpipe is used from; empty for a wheel."""
    clone = Path(__file__).parents[3]
    if not (clone / "src" / "crpipe").is_dir() or not (clone / ".git").exists():
        return ""  # a wheel, which may be installed below another project's clone
    words = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f", commit {done.stdout.strip()}" if done.returncode == 0 else ""


def _span(field: Field, parts: Mapping[str, NDArray[Any]]) -> str:
    values = np.concatenate(list(parts.values()))
    return f"{field.name} {values.min():.4g} to {values.max():.4g} {field.unit}".rstrip()


def shown_fields(campaign: Campaign) -> list[Field]:
    """List the event columns that describe an event: not those that name or weigh it."""
    layout = campaign.known_layout
    if layout is None:
        return []
    names = {*layout.group, *layout.key, layout.weight}
    return [field for field in layout.events if field.name not in names][:_MOST_COLUMNS]


def input_samples(campaign: Campaign) -> Samples:
    """Read the first rows of some shards of each part; columns with a single value are left out."""
    names = [field.name for field in shown_fields(campaign)]
    by_part: dict[str, dict[str, NDArray[Any]]] = {
        part: values for part in PARTS if (values := _of_part(campaign, part, names))
    }
    samples: Samples = {}
    for name in names:
        finite = {part: values[name][np.isfinite(values[name])] for part, values in by_part.items()}
        parts = {part: values for part, values in finite.items() if len(values)}
        if parts and len(np.unique(np.concatenate([values[:_FEW] for values in parts.values()]))) > 1:
            samples[name] = parts
    return samples


def _of_part(campaign: Campaign, part: Part, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    paths = []
    for name in campaign.ranges:
        for manifest in (campaign.paths.shard_manifest(name), campaign.paths.outlier_manifest(name)):
            record = ShardManifest.read_if_any(manifest)
            shards = () if record is None else record.shards
            paths += [
                manifest.parent / f"{shard.name}.events.parquet"
                for shard in shards
                if shard.role in roles_of(part) and shard.events
            ]
    chosen = paths[:: max(1, -(-len(paths) // _MOST_SHARDS))]
    tables: list[pa.Table] = []
    for path in chosen:
        try:
            with pq.ParquetFile(path) as file:
                group = file.read_row_group(0, columns=list(names))
        except (OSError, pa.ArrowException):
            continue  # deleted since, or damaged: `crpipe check` reports it
        tables.append(group.slice(0, _MOST_EVENTS // len(chosen)))
    if not tables:
        return {}
    table = pa.concat_tables(tables)
    return {name: table[name].to_numpy().astype(np.float64) for name in names}


def input_charts(campaign: Campaign, samples: Samples) -> Iterator[Chart]:
    """Plot the spectra of the event columns, those of each part as shares of its events."""
    for field in shown_fields(campaign):
        if field.name in samples:
            label = f"{field.name} [{field.unit}]" if field.unit else field.name
            with page_style():
                figure, axis = page_figure()
                _spectrum(axis, samples[field.name])
                axis.set_xlabel(label.replace("$", r"\$"))
                axis.set_ylabel("share of the events")
                svg = inline_svg(figure, f"spectrum of {field.name}")
            yield Chart(f"input-{field.name}", f"Input: {field.meaning}", svg)


def _spectrum(axis: Any, parts: Mapping[str, NDArray[Any]]) -> None:
    values = np.concatenate(list(parts.values()))
    single = np.unique(values)
    low, high = single[0], single[-1]
    logarithmic = low > 0 and high > _DECADES * low
    if len(single) <= _FEW:
        edges = np.arange(len(single) + 1) - 0.5
        parts = {part: np.searchsorted(single, each) for part, each in parts.items()}
        some = np.arange(0, len(single), -(-len(single) // _TICKS))
        axis.set_xticks(some, [f"{value:.4g}" for value in single[some]])
    elif logarithmic:
        edges = np.geomspace(low, high, _BINS + 1)
        axis.set_xscale("log")
    else:
        edges = np.linspace(low, high, _BINS + 1)
    for (part, each), colour in zip(parts.items(), COLOURS, strict=False):
        counts, _ = np.histogram(np.clip(each, edges[0], edges[-1]), edges)
        label = f"{part} ({number(len(each))} read)"
        axis.stairs(counts / len(each), edges, color=colour, label=label)
    axis.set_ylim(bottom=0.0)
    axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2)


def captions(workload: str) -> Mapping[str, str]:
    """Read ``captions.yaml`` of the workload's package: what each figure of an evaluation shows, by its name.

    Empty for a package without one. The package is found, not imported.
    """
    module = workload.partition(":")[0]
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    path = Path(spec.origin).with_name("captions.yaml") if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        return {}
    texts = yaml.safe_load(path.read_text())
    return {str(name): str(text) for name, text in texts.items()} if isinstance(texts, dict) else {}


# Figures of the evaluation, embedded, with those of other runs beside them.

_MOST_FIGURES = 16
_MOST_FIGURE_BYTES = 1 << 20  # a larger one is named, not shown
_MOST_SVG_BYTES = 150_000
_KINDS = {".svg": "svg+xml", ".png": "png"}


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of an evaluation: its name, what it shows, its data URI (empty where it is too large).

    links: of its files, as format and address. others: runs, and data URIs of the same figure.
    """

    name: str
    caption: str
    source: str
    links: tuple[tuple[str, str], ...] = ()
    others: tuple[tuple[str, str], ...] = ()


def pictures(
    campaign: Campaign, figures: Path, page: Path | None, others: Mapping[str, Path] | None = None
) -> Iterator[Picture]:
    """Yield an evaluation's first figures, and how its numbers changed over the links where this is plotted.

    figures: folder of the evaluation; others: those of other runs. page: folder of the page, for links.
    """
    words = captions(campaign.config.train.workload)
    for path in islice(sorted(figures.glob("*.svg")), _MOST_FIGURES):
        beside = {run: folder / path.name for run, folder in (others or {}).items()}
        name = path.stem.replace("_", " ")
        yield Picture(
            name[0].upper() + name[1:],
            words.get(path.stem, ""),
            embedded(path),
            tuple(_links(path, page)),
            tuple((run, embedded(file)) for run, file in beside.items() if file.is_file()),
        )
    evaluated = list(evaluations(campaign))
    if len(evaluated) > 1:
        content = io.BytesIO()
        with style():
            progress_figure(campaign, evaluated).savefig(content, format="svg", metadata={"Date": None})
        text = "Numbers of the evaluations of several links, in the order of the chain."
        links = tuple(_links(campaign.paths.figures() / "progress.svg", page))
        yield Picture("Progress over the links", text, _uri("svg+xml", content.getvalue()), links)


def _links(path: Path, page: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the files of a figure, and where they are seen from the page; nothing without its folder."""
    if page is not None:
        for suffix in FORMATS:
            if path.with_suffix(suffix).is_file():
                yield suffix[1:].upper(), quote(os.path.relpath(path.with_suffix(suffix), page))


def embedded(path: Path) -> str:
    """Return a figure as a data URI, a large one as its PNG; empty where that is too large as well."""
    picture = path.with_suffix(".png")
    if path.stat().st_size > _MOST_SVG_BYTES and picture.exists():
        path = picture
    content = path.read_bytes()
    return "" if len(content) > _MOST_FIGURE_BYTES else _uri(_KINDS[path.suffix], content)


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
