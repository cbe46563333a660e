"""The model card of an export, written for the person who is about to use the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crpipe import __version__
from crpipe.core.paths import OUTLIERS
from crpipe.events.layout import MULTIPLICITY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from crpipe.inference.provenance import Provenance

# Sections of every card. A workload may put its own lines in place of a section, or add sections; what it
# gives for "" is the introduction.
USE, DATA, VALID, GOOD, DEVIATIONS, LICENCE, AGAIN = (
    "Use",
    "Trained on",
    "Valid for",
    "How good",
    "Known deviations",
    "Licence, and how to cite",
    "Train it again",
)
_SYNTHETIC = "synthetic://"


def model_card(made: Provenance, own: Mapping[str, Sequence[str]]) -> str:
    """Write the card in Markdown; ``own``: the workload's lines for the sections that it knows better."""
    sections: dict[str, Sequence[str]] = {
        USE: list(_use(made)),
        DATA: list(_trained_on(made)),
        VALID: list(_valid_for(made)),
        GOOD: list(_how_good(made)),
        DEVIATIONS: [],
        LICENCE: list(_licence(made)),
        AGAIN: list(_again(made)),
    }
    sections |= {title: lines for title, lines in own.items() if title}
    name = made.keys["train.workload"].rpartition(":")[2]
    lines = [f"# {name} `{made.fingerprint}`", ""]
    lines += [*own.get("", ()), f"Workload `{made.keys['train.workload']}`, crpipe {__version__}."]
    for title, content in sections.items():
        if content:
            lines += ["", f"## {title}", "", *content]
    return "\n".join(lines) + "\n"


def _use(made: Provenance) -> Iterator[str]:
    yield "With crpipe, the workload's package and this run:"
    yield from ("", "```sh")
    yield f"crpipe predict --checkpoint runs/{made.run}/ranges/{made.receipt} --in FILES --out out.parquet"
    yield "```"
    yield from ("", "`model.safetensors` holds the weights, `config.json` every option and the layout.")


def _trained_on(made: Provenance) -> Iterator[str]:
    keys, counters, item = made.keys, made.counters, made.layout.item
    yield from ("| | |", "|---|---|")
    yield f"| source | `{keys['source.uri']}` |"
    yield f"| ranges | {_chain(made)} of run `{made.run}`) |"
    if made.seen.events:
        yield f"| training data | {made.seen.events:,} events, {made.seen.items:,} {item} |"
    seen = f"{counters['events']:,} events, {counters['items']:,} {item}; once for each pass"
    yield f"| seen in {counters['step']:,} steps | {seen} |"
    yield from (f"| side table {name} (sha256) | `{value}` |" for name, value in side_tables(made).items())
    yield f"| checkpoint (sha256) | `{made.sha256}` |"
    yield f"| fingerprint | `{made.fingerprint}` |"
    yield from (
        "",
        "All keys that shaped it are in `config.json` (`keys`), and as a configuration in `campaign.yaml`.",
    )
    if keys.get("train.init_from"):
        yield from ("", f"It started from the weights of `{keys['train.init_from']}`, not from fresh ones.")


def _chain(made: Provenance) -> str:
    """Write which links there were, and how many ranges and rounds where these are other numbers."""
    first, last = made.chain[0].name, made.chain[-1].name
    names = first if first == last else f"{first} … {last}"
    links = "1 link" if first == last else f"{len(made.chain)} links"
    if all(link.ranges in ((), (link.name,)) for link in made.chain):
        return f"{names} ({links}"
    rounds = max(link.round for link in made.chain)
    passes = f" in {rounds} rounds" if rounds > 1 else ""
    return f"{names} ({len(made.ranges)} ranges{passes}: {links}"


def side_tables(made: Provenance) -> dict[str, str]:
    """Give the hashes of the side tables by name."""
    prefix = "tables."
    return {name.removeprefix(prefix): value for name, value in made.keys.items() if name.startswith(prefix)}


def _valid_for(made: Provenance) -> Iterator[str]:
    if made.seen.unknown:
        yield f"The ranges of the training data are not known: {made.seen.unknown}."
    else:
        yield "The training data are within these ranges (measured on the training shards)."
        yield from ("", *limits_table(made, made.seen.limits), "")
        yield "Nothing is known outside of them. Between the two ends there may be few events."
    yield from outliers_lines(made)


def limits_table(made: Provenance, limits: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Lay out limits of event columns and of the multiplicity."""
    yield from ("| | unit | from | to |", "|---|---|---|---|")
    units = {field.name: field.unit or "" for field in made.layout.events} | {MULTIPLICITY: ""}
    for name, unit in units.items():
        if name in limits:
            low, high = limits[name]
            yield f"| {name} | {unit} | {low:.6g} | {high:.6g} |"


def outliers_lines(made: Provenance) -> Iterator[str]:
    """Say whether outliers were trained on; events of fixed size have none."""
    if made.layout.fixed:
        return
    limit = f"above {made.seen.threshold:,}" if made.seen.threshold else "above the campaign's quantile"
    trained = "was trained on too, last" if made.chain[-1].name == OUTLIERS else "was **not** trained on"
    yield f"Multiplicities {limit} are outliers, which this model {trained}."


def _how_good(made: Provenance) -> Iterator[str]:
    rows = list(_rows(made))
    if not rows:
        yield "This checkpoint was not evaluated on enough held-out events: how good it is, is not known."
        return
    columns = {"values": "this model", "baseline": "baseline", "again": "simulated again"}
    kinds = {kind: title for kind, title in columns.items() if kind in made.evaluation}
    yield f"On {made.evaluation.get('part', 'validation')} events that training never used."
    if "again" in kinds:
        yield "The last column is a second simulation of the same events: but for chance, no model is better."
    yield from ("", f"| | {' | '.join(kinds.values())} | best |", "|---" * (len(kinds) + 2) + "|")
    for name, title, best in rows:
        cells = [_number(made.evaluation[kind], name) for kind in kinds]
        yield f"| {title} | {' | '.join(cells)} | {best} |"


def _rows(made: Provenance) -> Iterator[tuple[str, str, str]]:
    """Yield name, title and best value of the declared metrics; of all numbers where none is declared."""
    values = made.evaluation.get("values", {})
    declared = made.evaluation.get("metrics", [])
    for metric in declared:
        if metric["name"] in values:
            title = f"{metric['title']}, in {metric['unit']}" if metric["unit"] else metric["title"]
            best = metric["better"] if metric["ideal"] is None else f"{metric['ideal']:g}"
            yield metric["name"], title, best
    if not declared:
        yield from ((name, name, "") for name in values if not name.endswith("_error"))


def _number(values: Mapping[str, float], name: str) -> str:
    if name not in values:
        return ""
    error = values.get(f"{name}_error")
    return f"{values[name]:.3f}" + ("" if error is None else f" ± {error:.3f}")


def simulated(made: Provenance) -> bool:
    """Report whether a simulator of the campaign made the training data."""
    return str(made.keys["source.uri"]).startswith(_SYNTHETIC)


def _licence(made: Provenance) -> Iterator[str]:
    yield "crpipe: MIT. The weights carry no terms of their own; they follow those of the data in"
    yield f"`{made.keys['source.uri']}`: ask its owners before you publish."
    yield from ("", f"Cite crpipe {__version__} as its CITATION.cff says, with the fingerprint above.")


def _again(made: Provenance) -> Iterator[str]:
    receipt, pointer = (f"runs/{made.run}/ranges/{name}" for name in (f"{made.name}.json", made.receipt))
    yield from ("In a clone of crpipe, with `campaign.yaml` of this directory:", "", "```sh")
    yield f"snakemake --configfile campaign.yaml -- {receipt}"
    yield f"crpipe --config campaign.yaml evaluate {made.name}"
    yield f"crpipe --config campaign.yaml export --checkpoint {pointer} --out export"
    yield from ("```", "")
    yield "On a CPU, the same kind of machine and the same `train.threads` give the same weights, to the bit."
    yield "The fingerprint leaves the threads out; another number of them gives other bits."
