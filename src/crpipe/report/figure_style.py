"""The common style of all figures, and how they are written: the same bytes for the same data.

Every figure is an SVG, a PNG and a PDF, and a CSV file with the numbers behind it.
"""

from __future__ import annotations

import csv
import io
import re
from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import Formatter, LogFormatterMathtext
from matplotlib.transforms import Bbox

from crpipe.core.files import atomic_write, write_text
from crpipe.report.figure_context import FORMATS, formats, heading

if TYPE_CHECKING:
    import contextlib
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

WIDTH = 8.0  # inches
REAL, GENERATED, NEUTRAL = "#4a5568", "#c05621", "#2b6cb0"
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568")  # of curves beside each other
MARK = "#a0aec0"  # of lines that mark a place
_STRIP = 0.26  # inches of the line above a figure
_DPI = 144
# No date, no program, no random ids: equal data give equal files.
_METADATA: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "crpipe",
    "svg.fonttype": "none",  # text is kept as text
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titley": 1.0,  # else matplotlib places every title anew each time it draws: a third of the time
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
}


# What the page shows in its own colours, readable in light and dark: its text, its rules, its curves.
_INK, _RULE = "#5d6675", "#d9dee7"
_OF_THE_PAGE = {_INK: "faint", _RULE: "rule", MARK: "rule"}
_OF_THE_PAGE |= {colour: f"c{index}" for index, colour in enumerate(COLOURS)}
_PAGE_SIZE = (4.8, 2.6)  # inches; the page scales a chart to its column
_PAGE_STYLE: dict[Any, Any] = _STYLE | {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _RULE),
    "grid.alpha": 1.0,
    "font.size": 11,
    "legend.fontsize": 10.5,
    "legend.columnspacing": 1.2,
    "legend.handlelength": 1.4,
}
# What HTML needs no more: declarations, names of the parts, and addresses.
_NOT_IN_A_PAGE = re.compile(
    r'<metadata>.*?</metadata>\s*| id="[a-z0-9]+(?:\.\w+)?_\d+"| xmlns(?::xlink)?="[^"]*"', re.DOTALL
)


class PlainPowers(Formatter):
    """Powers of ten as text: as formulas, which matplotlib parses, they take a fifth of a figure's time."""

    _NUMBER = re.compile(r"\$\\mathdefault\{(-?)([\d.]*?)(?:\\times)?(?:10\^\{(-?\d+)\})?\}\$")
    _RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

    def __init__(self, formulas: LogFormatterMathtext) -> None:
        self._formulas = formulas

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of a tick; another formula stays as it is."""
        return self._NUMBER.sub(self._as_text, self._formulas(x, pos))

    def set_locs(self, locs: Any) -> None:
        """Pass the places of all ticks on: they decide which have labels."""
        self._formulas.set_locs(locs)

    def _as_text(self, match: re.Match[str]) -> str:
        sign, factor, power = match.groups(default="")
        minus = sign and "\N{MINUS SIGN}"
        if not power:
            return f"{minus}{factor}"
        times = factor and "\N{MULTIPLICATION SIGN}"
        return f"{minus}{factor}{times}10{power.translate(self._RAISED)}"


def write_powers_plainly(figure: Figure) -> None:
    """Write powers of ten as text, but with LaTeX, or fonts of a person that may have no raised digits."""
    ours = mpl.rcParams["font.family"] == ["sans-serif"] and "DejaVu Sans" in mpl.rcParams["font.sans-serif"]
    if mpl.rcParams["text.usetex"] or not ours:
        return
    for axis in (each for axes in figure.get_axes() for each in (axes.xaxis, axes.yaxis)):
        if isinstance(formatter := axis.get_major_formatter(), LogFormatterMathtext):
            axis.set_major_formatter(PlainPowers(formatter))
        if isinstance(formatter := axis.get_minor_formatter(), LogFormatterMathtext):
            axis.set_minor_formatter(PlainPowers(formatter))


class NotedFigure(Figure):
    """A figure that holds the numbers that its curves show, as rows of a table."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.rows: list[dict[str, str]] = []


def style() -> contextlib.AbstractContextManager[None]:
    """Apply the common style to everything plotted inside the block."""
    return mpl.rc_context(_STYLE)


def new_figure(height: float) -> NotedFigure:
    """Start a figure of the common width; ``height`` in inches."""
    return NotedFigure((WIDTH, height), layout="constrained")


def page_style() -> contextlib.AbstractContextManager[None]:
    """Apply the style of the charts of the page to everything plotted inside the block."""
    return mpl.rc_context(_PAGE_STYLE)


def page_figure() -> tuple[Figure, Axes]:
    """Start a chart of the page."""
    figure = Figure(_PAGE_SIZE, layout="constrained")
    return figure, figure.subplots()


def inline_svg(figure: Figure, label: str) -> str:
    """Return a figure as SVG for inside a page, in the colours of that; ``label``: what it shows."""
    write_powers_plainly(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=_METADATA[".svg"])
    svg = _NOT_IN_A_PAGE.sub("", text.getvalue()[text.getvalue().index("<svg") :])
    for colour, name in _OF_THE_PAGE.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label, quote=True)}"', 1).strip()


def note(figure: Figure | SubFigure | None, panel: str, curve: str, **columns: ArrayLike) -> None:
    """Add the numbers of one curve to the figure's table: columns of equal length, or single values."""
    if isinstance(figure, NotedFigure):
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(each)) for each in columns.values()))
        names = list(columns)
        head = {"panel": " ".join(panel.split()), "curve": curve}
        for row in zip(*(each.tolist() for each in arrays), strict=True):
            figure.rows.append(head | dict(zip(names, map(_cell, row), strict=True)))


def _cell(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as SVG to ``path``, and beside it as PNG, PDF and CSV, each atomically.

    Return the path of the SVG file; a name without one of these endings gets them. Of what a model is only
    compared with, nothing is written.
    """
    path = path.with_suffix(".svg") if path.suffix in FORMATS else path.with_name(f"{path.name}.svg")
    if not formats():
        return path
    width, height = figure.get_size_inches()
    title = heading()
    if title:
        figure.text(0.012, 1 + 0.07 / height, title, fontsize=8, color=REAL, va="bottom", in_layout=False)
    box = Bbox([[0, 0], [width, height + (_STRIP if title else 0)]])
    write_powers_plainly(figure)
    engine = figure.get_layout_engine()
    if engine is not None and figure.axes:  # once for all formats
        engine.execute(figure)
        figure.set_layout_engine(None)  # with "none" each format would be drawn twice
    for suffix in (each for each in _METADATA if each in formats()):
        with atomic_write(path.with_suffix(suffix)) as part:
            options: dict[str, Any] = {"metadata": _METADATA[suffix], "bbox_inches": box, "dpi": _DPI}
            figure.savefig(part, format=suffix[1:], **options)
    if isinstance(figure, NotedFigure) and ".csv" in formats():
        write_text(path.with_suffix(".csv"), _table(figure.rows))
    return path


def _table(rows: list[dict[str, str]]) -> str:
    """Write rows as CSV, with every column that any of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["panel", "curve"]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def mark_outside(
    axis: Axes, centre: NDArray[Any], ratio: NDArray[Any], colour: str, limits: tuple[float, float]
) -> None:
    """Limit the vertical axis, and mark the values outside with arrows at the edge that they are beyond."""
    axis.set_ylim(*limits)
    low, high = limits
    inset = 0.05 * (high - low)
    with np.errstate(invalid="ignore"):
        for beyond, where, marker in ((ratio > high, high - inset, "^"), (ratio < low, low + inset, "v")):
            if beyond.any():
                places = np.full(int(beyond.sum()), where)
                axis.plot(centre[beyond], places, marker, markersize=4, color=colour, clip_on=False)
