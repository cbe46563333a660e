"""The contract of what a trained workload gives: a row for each event in order, finite numbers, figures."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from crpipe.contract.batches import changed_tensors
from crpipe.contract.cases import Case, check, skip
from crpipe.contract.readers import same_events
from crpipe.core.errors import PluginError
from crpipe.events.batch import Events
from crpipe.inference.event_displays import show_events
from crpipe.inference.measured import Measurement, measure
from crpipe.inference.predictor import (
    Predictor,
    predicted_columns,
    table_of,
)
from crpipe.report.figure_context import FigureContext, figures_of
from crpipe.split.hashing import identities
from crpipe.statistics.groups import group_numbers
from crpipe.train.answers import check_generated, checked_columns, refuse, unmeasured
from crpipe.train.workload import (
    Baseline,
    Generates,
    Histograms,
    ShowsEvents,
    Validates,
    WorkloadCall,
    WritesTable,
    weighed,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from crpipe.inference.checkpoints import LoadedModel
    from crpipe.train.workload import Columns

KIND = "workload"
BASELINE = "the baseline"
_ALONE = 4  # events that are predicted one by one
_REPLICAS = 8  # whether there are errors, and not how large they are
_FEW = (1, 2, 5)  # of predictions; a baseline goes through the same score, and one event tells


def _predict(case: Case, trained: LoadedModel, events: Events, seed: int = 1) -> Events | Columns:
    """Predict as the engine does: it refuses other shapes."""
    return Predictor(trained, torch.device("cpu")).predict(events, seed, case.layout)


def _columns(events: Events, prediction: Events | Columns) -> Columns:
    """Return numbers of each event to compare, those of lists and items as their sums."""
    if isinstance(prediction, Events):
        owner = np.repeat(np.arange(len(events)), prediction.multiplicity)
        sums = {
            f"sum of item column {number}": np.bincount(owner, values, len(events))
            for number, values in enumerate(prediction.items.T)
        }
        return {**predicted_columns(events, prediction), **sums}
    return {
        name: np.array([each.sum(dtype=float) for each in values]) if values.dtype == object else values
        for name, values in prediction.items()
    }


def _same(one: Columns, other: Columns, *, exactly: bool = False) -> str:
    """Name the first column that differs; empty without any."""
    if one.keys() != other.keys():
        return f"other columns, {sorted(one.keys() ^ other.keys())}"
    for name, values in one.items():
        if values.dtype.kind not in "biuf":
            alike = np.array_equal(values, other[name])
        else:
            first, second = values.astype(float), other[name].astype(float)
            scale = np.nanmax(np.abs(first), initial=0.0) if np.isfinite(first).any() else 0.0
            rtol, atol = (0.0, 0.0) if exactly else (1e-3, 1e-4 * scale + 1e-6)
            alike = first.shape == second.shape and np.allclose(first, second, rtol, atol, equal_nan=True)
        if not alike:
            return f"another {name}"
    return ""


@check(KIND)
def predictions_follow_from_their_arguments(case: Case) -> None:
    """The same for the same seed; events and weights stay as they were."""
    trained, events = case.trained(), copy.deepcopy(case.events)
    method = f"{trained.name}.predict"
    weights = {name: value.clone() for name, value in trained.model.state_dict().items()}
    first = _columns(events, _predict(case, trained, events))
    if not same_events(
        case.events,
        Events({n: events.columns[n] for n in case.events.columns}, events.multiplicity, events.items),
    ):
        refuse(method, "its events unchanged", "other values after the call")
    changed = changed_tensors(weights, trained.model.state_dict())
    if changed:
        refuse(method, "the model unchanged", f"another {changed[0]}")
    apart = _same(first, _columns(events, _predict(case, trained, events)), exactly=True)
    if apart:
        refuse(method, "the same prediction for the same seed", apart)
    prediction = _predict(case, trained, events)
    if isinstance(prediction, Events) and prediction.multiplicity.dtype != np.uint32:
        refuse(method, "multiplicities of uint32", f"{prediction.multiplicity.dtype}")


@check(KIND, doubt=True)
def a_prediction_does_not_depend_on_the_other_events(case: Case) -> None:
    """One event alone, and all in another order, have the predictions that they have together."""
    trained, events = case.trained(), case.with_gap()
    method = f"{trained.name}.predict"
    whole = _columns(events, _predict(case, trained, events))
    if _same(whole, _columns(events, _predict(case, trained, events, seed=2)), exactly=True):
        skip("it draws random numbers")
    order = np.random.default_rng(5).permutation(len(events))
    mixed = events.take(order)
    apart = _same({n: v[order] for n, v in whole.items()}, _columns(mixed, _predict(case, trained, mixed)))
    if apart:
        refuse(method, "one row for each event, in their order", f"{apart} in another order")
    for number in np.linspace(0, len(events) - 1, _ALONE).astype(int):
        alone = events.take(np.array([number]))
        apart = _same(
            {n: v[[number]] for n, v in whole.items()}, _columns(alone, _predict(case, trained, alone))
        )
        if apart:
            refuse(method, f"the same for event {number} alone as among others", apart)


@check(KIND)
def predictions_have_the_same_columns_for_any_events(case: Case) -> None:
    """Of one event, of one without items, and beside the columns that identify an event."""
    trained, events = case.trained(), case.events
    whole = _predict(case, trained, events)
    table_of({name: events.columns[name] for name in case.layout.key}, predicted_columns(events, whole))
    small = [events.part(0, 1)]
    if not case.layout.fixed:
        small += [case.without_items(events.part(0, 1), 0), case.without_items(events, len(events) - 1)]
    for few in small:
        other = _predict(case, trained, few)
        names = [sorted(_columns(each, found)) for each, found in ((events, whole), (few, other))]
        if names[0] != names[1]:
            refuse(f"{trained.name}.predict", f"the columns {names[0]} of any events", f"{names[1]}")
        for name, values in _columns(few, other).items():
            if values.dtype.kind == "f" and np.isinf(values).any():
                refuse(f"{trained.name}.predict", f"{name} finite, or NaN where nobody knows it", "infinity")


@check(KIND)
def a_validation_has_a_number_for_each_event(case: Case) -> None:
    """What validation_metrics declare, [N] each, the same for the same seed."""
    trained, events = case.trained(), case.events
    workload = trained.workload
    if not isinstance(workload, Validates):
        skip("it has no `validate`")

    def measure() -> Columns:
        torch.manual_seed(7)
        with torch.no_grad(), WorkloadCall(workload, "validate", events):
            return workload.validate(trained.model, events, torch.Generator().manual_seed(1))

    method, columns = (
        f"{trained.name}.validate",
        checked_columns(measure(), len(events), f"{trained.name}.validate"),
    )
    declared = [metric.name for metric in workload.validation_metrics]
    if sorted(columns) != sorted(declared):
        refuse(method, f"the columns of validation_metrics, {sorted(declared)}", f"{sorted(columns)}")
    if _same(columns, checked_columns(measure(), len(events), method), exactly=True):
        refuse(method, "the same numbers for the same seed", "others")
    bad = [name for name, values in columns.items() if not np.isfinite(values.astype(float)).all()]
    if bad:
        refuse(method, f"finite values of {bad[0]}", "others")


def _sized(case: Case, prediction: Events | Columns, count: int) -> tuple[Events, Events | Columns]:
    """Choose so many events, first those that count: of weights 0 alone there is no mean."""
    index = np.sort(np.argsort(case.weights(case.events) <= 0, kind="stable")[:count])
    few = case.events.take(index)
    if isinstance(prediction, Events):
        return few, prediction.take(index)
    bare = Events(few.columns, few.multiplicity, np.empty((0, 0), np.float32))
    return bare, {name: values[index] for name, values in prediction.items()}


def _score(
    case: Case, trained: LoadedModel, pair: tuple[Events, Any], folder: Path, *, draw: bool = True
) -> Measurement:
    """Score as an evaluation does; a truth of columns has no items. Figures take nearly all of the time."""
    truth, method = weighed(pair[0], case.layout.weight), f"{trained.name}.score"
    before = copy.deepcopy((truth, pair[1]))
    folder.mkdir(exist_ok=True)
    formats = (".svg",) if draw else ()
    with figures_of(FigureContext("contract", formats)), WorkloadCall(trained.workload, "score", truth):
        group = group_numbers([truth.columns[name] for name in case.layout.group])
        measurement = measure(trained.workload.score(truth, pair[1], folder), group, method, _REPLICAS)
    # Baseline and floor are judged by the same truth.
    if not same_events(before[0], truth) or not _alike(truth, before[1], pair[1]):
        refuse(method, "truth and prediction unchanged", "other values after the call")
    return measurement


def _alike(events: Events, one: Events | Columns, other: Events | Columns) -> bool:
    """Compare predictions for events, byte for byte."""
    if isinstance(one, Events) and isinstance(other, Events):
        return same_events(one, other)
    pair = (_columns(events, each) for each in (one, other))
    return not _same(*pair, exactly=True)


def _judge(case: Case, trained: LoadedModel, truth: Events, measured: Measurement, what: str) -> None:
    """Fail where a declared number that the events are enough for is missing, or not finite.

    A baseline may lack what it does not predict, such as an uncertainty.
    """
    groups = len(np.unique(identities([truth.columns[name] for name in case.layout.group])))
    metrics = [
        each
        for each in trained.workload.metrics
        if not each.needs and (what != BASELINE or each.name in measured.given())
    ]
    for sentence in unmeasured(f"{trained.name}.score", metrics, measured.given(), groups):
        raise PluginError(
            f"{sentence} (of {what} of {len(truth)} events); where they may be too alike for it (all of one "
            "class), say what it needs: Metric(needs=…)"
        )


@check(KIND, slow=True)  # it makes all figures
def a_score_of_all_events_is_whole(case: Case) -> None:
    """The declared numbers, of all events, as an evaluation asks for them."""
    trained, events, folder = case.trained(), case.events, case.scratch()
    truth, prediction = _sized(case, _predict(case, trained, events), len(events))
    numbers = _score(case, trained, (truth, prediction), folder)
    _judge(case, trained, truth, numbers, "predictions")
    _whole_figures(f"{trained.name}.score", folder)


@check(KIND, slow=True)  # it makes all figures, several times
def scores_of_model_and_baseline_are_finite(case: Case) -> None:
    """All declared numbers, of few events and of a baseline; figures are written; nothing is changed."""
    folder = case.scratch()
    trained, events = case.trained(), case.events
    predictions: dict[str, Events | Columns] = {"predictions": _predict(case, trained, events)}
    if isinstance(trained.workload, Baseline):
        with WorkloadCall(trained.workload, "baseline", events):
            baselines = [trained.workload.baseline(events) for _ in range(2)]
        method = f"{trained.name}.baseline"
        columns, again = (checked_columns(each, len(events), method) for each in baselines)
        if _same(columns, again, exactly=True):
            refuse(method, "the same columns for the same events", "others")
        predictions[BASELINE] = columns
    for what, prediction in predictions.items():
        counts = (1, len(events)) if what == BASELINE else [few for few in _FEW if few < len(events)]
        for count in counts:
            truth, few = _sized(case, prediction, count)
            numbers = _score(case, trained, (truth, few), folder / f"{count}-{what.split()[-1]}")
            _judge(case, trained, truth, numbers, what)
            if count == counts[-1]:
                second = _score(case, trained, (truth, few), folder / "again", draw=False)
                if second.numbers != numbers.numbers:
                    refuse(f"{trained.name}.score", "the same numbers for the same events", "others")
    _whole_figures(f"{trained.name}.score", folder)


def _whole_figures(method: str, folder: Path) -> None:
    for path in folder.rglob("*.svg"):
        if "</svg>" not in path.read_text(errors="replace"):
            refuse(method, f"{path.name} to be a whole SVG figure", "one without an end")


@check(KIND, slow=True)
def chosen_events_are_shown(case: Case) -> None:
    """Places among the events, and numbers with names of their own."""
    folder = case.scratch()
    trained, events = case.trained(), case.events
    if not isinstance(trained.workload, ShowsEvents):
        skip("it has no `shown`")
    truth, prediction = _sized(case, _predict(case, trained, events), len(events))
    pair = (weighed(truth, case.layout.weight), prediction)
    known = _score(case, trained, (truth, prediction), folder, draw=False).numbers
    show_events(trained, pair, [events], case.layout.weight, folder, known)
    _whole_figures(f"{trained.name}.show", folder)


@check(KIND)
def a_table_of_its_own_is_a_table(case: Case) -> None:
    """The same columns for any block of events, because all blocks go into one file."""
    trained, events = case.trained(), case.events
    workload = trained.workload
    if not isinstance(workload, WritesTable):
        skip("it has no `table`")
    tables = []
    for few in (events, events.part(0, 1)):
        with WorkloadCall(workload, "table", few):
            tables.append(workload.table(few, _predict(case, trained, few)))
    if not all(isinstance(table, pa.Table) for table in tables):
        refuse(f"{trained.name}.table", "a pyarrow.Table", type(tables[0]).__name__)
    if tables[0].schema != tables[1].schema:
        refuse(
            f"{trained.name}.table", "the same columns and types for any events", f"{tables[1].schema.names}"
        )


@check(KIND)
def histograms_are_arrays(case: Case) -> None:
    """Named arrays of numbers for TensorBoard."""
    trained, events = case.trained(), case.events
    if not isinstance(trained.workload, Histograms):
        skip("it has no `histograms`")
    with torch.no_grad(), WorkloadCall(trained.workload, "histograms", events):
        histograms = trained.workload.histograms(trained.model, events, torch.Generator().manual_seed(1))
    bad = [name for name, values in histograms.items() if not np.isfinite(np.asarray(values, float)).all()]
    if not histograms or bad:
        refuse(f"{trained.name}.histograms", "named arrays of finite numbers", f"{bad or 'none'}")


def _drawn(trained: LoadedModel, given: Events, seed: int = 1) -> tuple[NDArray[Any], Events]:
    """Draw the numbers of items with one seed, the items with another."""
    workload = trained.workload
    if not isinstance(workload, Generates):
        skip("it has no `generate`")
    first, second = (torch.Generator().manual_seed(each) for each in (1, seed))
    with torch.no_grad(), WorkloadCall(workload, "generate", given):
        counts = np.asarray(workload.multiplicities(trained.model, given, first))
        return counts, workload.generate(trained.model, given, counts.astype(np.int64), second)


def _without_items(case: Case) -> Events:
    events = case.events
    none = np.empty((0, len(case.layout.items)), np.float32)
    return Events(events.columns, np.zeros(len(events), np.uint32), none)


@check(KIND)
def generated_events_follow_from_the_seed(case: Case) -> None:
    """The items that were asked for, with the columns that were given; others for another seed."""
    trained, events = case.trained(), case.events
    asked = _without_items(case)
    counts, generated = _drawn(trained, asked)
    if counts.shape != (len(events),) or counts.dtype.kind not in "iu" or counts.min() < 0:
        refuse(
            f"{trained.name}.multiplicities",
            f"[{len(events)}] numbers of at least 0",
            f"{counts.dtype} {counts.shape}",
        )
    check_generated(generated, len(events), case.layout, f"{trained.name}.generate")
    method = f"{trained.name}.generate"
    if not np.array_equal(generated.multiplicity, counts):
        refuse(method, "the numbers of items that were asked for", "others")
    lost = [
        name
        for name, values in events.columns.items()
        if name not in generated.columns or not np.array_equal(generated.columns[name], values)
    ]
    if lost:
        refuse(method, f"the column {lost[0]} as it was given", "another one")
    if not np.isfinite(generated.items).all():
        refuse(method, "finite items", "others")
    counts_again, same = _drawn(trained, asked)
    if not np.array_equal(counts, counts_again):
        refuse(f"{trained.name}.multiplicities", "the same numbers for the same seed", "others")
    if not same_events(generated, same):
        refuse(method, "the same events for the same seed", "others")
    if len(generated.items) and same_events(generated, _drawn(trained, asked, 2)[1]):
        refuse(method, "other events for another seed", "the same ones")


@check(KIND)
def what_is_generated_does_not_depend_on_given_items(case: Case) -> None:
    """An evaluation gives real events: one that looked at their items would agree with them."""
    trained = case.trained()
    (counts, generated), (others, known) = (
        _drawn(trained, given) for given in (_without_items(case), case.events)
    )
    if not np.array_equal(counts, others):
        refuse(f"{trained.name}.multiplicities", "the same numbers whatever items the events have", "others")
    if not np.array_equal(generated.items, known.items, equal_nan=True):
        refuse(f"{trained.name}.generate", "the same items whatever items the events have", "others")
