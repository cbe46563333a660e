"""Writes or checks the tables of the demos in the pages: `python docs/demo_numbers.py [--write] RUN...`.

A table is between `<!-- numbers: RUN COLUMN -->` and `<!-- end of numbers -->`; COLUMN: floor or baseline.
Without --write, a number that differs from that of the run by more than three errors gives exit code 1: the
last digits depend on the processor.
"""

import json
import math
import re
import sys
from pathlib import Path

import polars as pl

import crpipe

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- numbers: (\S+) (\S+) -->\n)(.*?)(<!-- end of numbers -->)", re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
HEADS = {"floor": "simulated again (floor)", "baseline": "baseline"}
ERRORS = 3


def declared(run):
    """Return the declared metrics of the last evaluation of a run, as rows.

    Those that come from tables are left out: which of their bins is the worst depends on the last digits.
    """
    opened = crpipe.open(run)
    rows = opened.evaluations.filter(pl.col("declared"))
    last = rows["link"][-1]
    tables = json.loads((opened.paths.evaluation(last) / "metrics.json").read_text()).get("tables", {})
    rows = rows.filter((pl.col("link") == last) & ~pl.col("metric").is_in(list(tables)))
    return rows.rename({"error": "value_error"}).to_dicts()


def with_error(value, error):
    """Format a number and its error, with two digits of the error: 0.052 ± 0.010."""
    if value is None:
        return ""
    if not error:
        return f"{value:.3g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def table(rows, column):
    """Return a table of metrics in Markdown."""
    events = f"{rows[0]['events']:,} events" + (
        f" of {rows[0]['groups']:,} groups" if rows[0]["groups"] else ""
    )
    lines = [f"| metric ({events}) | model | {HEADS[column]} | ideal |", "|---|---|---|---|"]
    for row in rows:
        numbers = [with_error(row[name], row[f"{name}_error"]) for name in ("value", column)]
        ideal = "" if row["ideal"] is None else f"{row['ideal']:g}"
        lines.append(f"| {row['title']} | {' | '.join(numbers)} | {ideal} |")
    return "".join(f"{line}\n" for line in lines)


def differences(page, fresh):
    """Yield the rows of two tables whose numbers are further apart than their errors allow."""
    for old, new in zip(page.splitlines(), fresh.splitlines(), strict=True):
        (_, *head, _), (_, *now, _) = old.split("|"), new.split("|")
        if head[0] != now[0] or not all(map(near, head[1:], now[1:])):
            yield old, new


def near(old, new):
    """Compare two cells: numbers with errors by these, all else exactly."""
    numbers = [[float(number) for number in NUMBER.findall(cell)] for cell in (old, new)]
    if "±" not in old or "±" not in new:
        return old == new
    (value, error), (other, other_error) = numbers
    return abs(value - other) <= ERRORS * math.hypot(error, other_error)


def main(words):
    """Write or check every table of the runs that are named."""
    write, runs = "--write" in words, {word for word in words if word != "--write"}
    failed = False
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text()
        for begin, run, column, old, end in BLOCK.findall(text):
            if run not in runs:
                continue
            fresh = table(declared(run), column)
            if write:
                text = text.replace(begin + old + end, begin + fresh + end)
            else:
                for page, now in differences(old, fresh):
                    print(f"{path.name}: {run}\n  page {page}\n  now  {now}", file=sys.stderr)
                    failed = True
        if write:
            path.write_text(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
