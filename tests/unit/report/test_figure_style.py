import csv
import re

import matplotlib as mpl
import numpy as np
import pytest

from crpipe.report.figure_context import FORMATS, FigureContext, figures_of, floor, formats, heading
from crpipe.report.figure_style import mark_outside, new_figure, note, save, style, write_powers_plainly


def plotted(folder, name="speed"):
    with style():
        figure = new_figure(2.0)
        axis = figure.subplots()
        axis.plot([1, 2, 3], [0.1, 0.25, 4.0])
        note(figure, "top\npanel", "model", step=[1, 2, 3], value=np.array([0.1, 0.25, 4.0]))
        note(figure, "top panel", "ideal", value=0.5)
        return save(figure, folder / f"{name}.svg")


def test_a_figure_is_written_in_four_formats_with_its_heading(tmp_path):
    with figures_of(FigureContext("run demo, step 7; 12 events")):
        path = plotted(tmp_path)
    assert {each.suffix for each in tmp_path.iterdir()} == {*FORMATS}
    assert ">run demo, step 7; 12 events<" in path.read_text()
    assert path.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    assert path.with_suffix(".pdf").read_bytes()[:4] == b"%PDF"
    with path.with_suffix(".csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert rows[1] == {"panel": "top panel", "curve": "model", "step": "2", "value": "0.25"}
    assert rows[3] == {"panel": "top panel", "curve": "ideal", "step": "", "value": "0.5"}


def test_equal_data_give_the_same_bytes_in_every_format(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with figures_of(FigureContext("run demo")):
            plotted(tmp_path / name)
    for suffix in FORMATS:
        one, other = (tmp_path / name / f"speed{suffix}" for name in ("a", "b"))
        assert one.read_bytes() == other.read_bytes(), suffix


@pytest.mark.parametrize("written", [(".svg",), ()])
def test_a_figure_is_written_in_the_formats_that_are_wanted(tmp_path, written):
    with figures_of(FigureContext(formats=written)):
        plotted(tmp_path)
    assert tuple(path.suffix for path in tmp_path.iterdir()) == written


@pytest.mark.parametrize(("given", "written"), [("a.png", "a.svg"), ("rates.v2", "rates.v2.svg")])
def test_any_name_of_a_figure_will_do(tmp_path, given, written):
    with style(), figures_of(FigureContext(formats=(".svg",))):
        path = save(new_figure(1.0), tmp_path / given)
    assert path.name == written
    assert [each.name for each in tmp_path.iterdir()] == [written]


def test_the_context_ends_with_its_block():
    with figures_of(FigureContext("above", floor={"auc": 0.5, "auc_error": 0.01, "w1": 2.0})):
        assert (heading(), formats()) == ("above", FORMATS)
        assert floor("auc") == (0.5, 0.01)
        assert floor("w1") == (2.0, 0.0)
        assert floor("other") is None
    assert heading() == ""
    assert floor("auc") is None


@pytest.mark.filterwarnings("error")
def test_values_outside_a_panel_are_marked_by_arrows_at_its_edge():
    axis = new_figure(2.0).subplots()
    where, ratio = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 7.0, 0.1, np.nan])
    mark_outside(axis, where, ratio, "black", (0.5, 1.5))
    marks = {line.get_marker(): line.get_xydata().tolist() for line in axis.get_lines()}
    assert marks == {"^": [[2.0, pytest.approx(1.45)]], "v": [[3.0, pytest.approx(0.55)]]}
    assert axis.get_ylim() == (0.5, 1.5)


@pytest.mark.parametrize(
    ("scale", "values", "labels"),
    [
        ("log", [1e-3, 1e5], ["10⁻³", "10⁵"]),
        ("log", [200, 900], ["2\N{MULTIPLICATION SIGN}10²", "6\N{MULTIPLICATION SIGN}10²"]),
        ("symlog", [-1e4, 1e4], ["\N{MINUS SIGN}10⁴", "10⁴"]),
        ("linear", [0, 5], ["0", "5"]),
    ],
)
def test_powers_of_ten_are_plain_text(tmp_path, scale, values, labels):
    with style():
        figure = new_figure(2.0)
        axis = figure.subplots()
        axis.set_yscale(scale)
        axis.plot([0, 1], values, "o")
        text = save(figure, tmp_path / "powers.svg").read_text()
    shown = re.findall(r"<text [^>]*>([^<]+)</text>", text)
    assert {*labels} <= {*shown}
    assert "<tspan" not in text  # of a formula


@pytest.mark.parametrize("own", [{"text.usetex": True}, {"font.family": ["serif"]}])
def test_who_chose_latex_or_another_font_keeps_formulas(own):
    with style(), mpl.rc_context(own):
        figure = new_figure(2.0)
        axis = figure.subplots().xaxis
        axis.axes.set_xscale("log")
        formulas = axis.get_major_formatter()
        write_powers_plainly(figure)
        assert axis.get_major_formatter() is formulas
