"""Mistakes that people make, one line each, in a small package: the suite has a sentence for each."""

import re
from pathlib import Path

import numpy as np
import pytest

import small_lab
from crpipe.author import Field, Layout, Reader
from crpipe.config.loading import validate
from crpipe.contract.cases import CHECKS, Case, NotChecked
from crpipe.contract.checks import (
    batches,
    losses,
    predictions,
    readers,
    simulators,
    trainings,
)
from crpipe.core.errors import CrpipeError

SOURCE = Path(small_lab.__file__).read_text()
WRONG = 'wrong, weight = (self.guess(model, batch) - batch["energy"]).square(), batch["weight"]'
# Small guesses: the losses of an untrained model do not show it.
EACH_AGAINST_EACH = """weight = batch["weight"]
        pairs = (0.3 * self.guess(model, batch)[:, None] - batch["energy"]).square()
        wrong = (pairs * weight).sum(dim=1) / weight.sum()"""
HITS_OF_THE_NEXT_EVENT = """torch.from_numpy(
                np.unique(np.repeat(np.arange(len(part)), part.multiplicity), return_inverse=True)[1]
            )"""
COUNTS_CALLS = """self.calls = 1 + vars(self).get("calls", 0) * model.training
        weight = batch["weight"]
        wrong = self.calls * (self.guess(model, batch) - batch["energy"]).square()"""
# The test that sees it, the line, the mistake, and what that test says of it.
MISTAKES = {
    "the last block is lost": (
        readers.totals_are_the_sums_of_rows,
        "range(0, len(events), self.block)",
        "range(0, len(events) - self.block, self.block)",
        r"HitFiles.totals: expected \(14, \d+\), as rows gave for hits_0.npz, found \(20, \d+\)",
    ),
    "what the first file says is used for all": (
        readers.rows_are_the_same_each_time,
        'file["items"].astype(np.float32)',
        'file["items"].astype(np.float32) * vars(self).setdefault("scale", columns["rate_hz"][0])',
        r"HitFiles.rows: expected the same rows of hits_1.npz each time, found others in another reader",
    ),
    "a block is changed after it was given": (
        readers.blocks_that_were_given_stay_as_they_are,
        "    yield events.part(first, min(first + self.block, len(events)))",
        "    yield events.part(first, min(first + self.block, len(events)))\n            events.items[:] = 0",
        r"HitFiles.rows: expected blocks that stay as they were given, found one that changed later",
    ),
    "a damaged file is an empty one": (
        readers.a_truncated_file_is_refused_by_its_name,
        'raise FormatError(f"{path}: no .npz file ({error})") from error',
        "return HitMaker(None).again({f.name: np.zeros(0, f.dtype) for f in LAYOUT.events}, 1)",
        r"HitFiles.rows: expected an error that names hits_0.npz, cut to 0%, found none",
    ),
    "an error of another kind": (
        readers.a_truncated_file_is_refused_by_its_name,
        "raise FormatError(",
        "raise RuntimeError(",
        r"HitFiles.rows: expected FormatError for hits_0.npz, found PluginError",
    ),
    "an error without the file": (
        readers.a_truncated_file_is_refused_by_its_name,
        'FormatError(f"{path}: no',
        'FormatError(f"it is no',
        r"HitFiles.rows: expected an error that names hits_0.npz, cut to 50%, found it is no .npz file",
    ),
    "another unit": (
        readers.rows_are_as_the_layout_says,
        'file["items"].astype(np.float32)',
        'file["items"].astype(np.float32) * np.float32(1e9)',
        r"HitFiles.rows: expected x_m within -100 to 100 in hits_0.npz, found",
    ),
    "float64": (
        readers.rows_are_as_the_layout_says,
        'file["items"].astype(np.float32)',
        'file["items"].astype(np.float64)',
        r"items: expected float32 \[M, K\], found float64",
    ),
    "any option is taken": (
        readers.an_unknown_option_is_refused_in_one_line,
        'HitFilesOptions(BaseModel, frozen=True, extra="forbid")',
        "HitFilesOptions(BaseModel, frozen=True)",
        r'HitFilesOptions: expected an unknown option to be refused \(extra="forbid"\), found it is taken',
    ),
    "random numbers without a seed": (
        simulators.equal_arguments_give_equal_bytes,
        "rng = np.random.default_rng([seed, number])",
        "rng = np.random.default_rng()",
        r"HitMaker.write: expected the same bytes of hits_0.npz for the same seed, found other bytes",
    ),
    "one seed for all": (
        simulators.equal_arguments_give_equal_bytes,
        "rng = np.random.default_rng([seed, number])",
        "rng = np.random.default_rng([number])",
        r"HitMaker.write: expected other bytes of hits_0.npz for another seed, found the same bytes",
    ),
    "the same events in each file": (
        simulators.equal_arguments_give_equal_bytes,
        'number = int(file.removesuffix(".npz").removeprefix("hits_"))',
        "number = 0",
        r"HitMaker.write: expected other events in hits_1.npz than in hits_0.npz, found the same bytes",
    ),
    "another file": (
        simulators.files_that_are_written_are_those_that_are_named,
        'with path.open("wb")',
        'with path.with_suffix(".bin").open("wb")',
        r"HitMaker.write: expected the files that `files` names, no others, found \['hits_0.bin', ",
    ),
    "simulated again with the same numbers": (
        simulators.events_simulated_again_are_those_events,
        "rng = np.random.default_rng(seed)\n        energy",
        "rng = np.random.default_rng(1)\n        energy",
        r"HitMaker.again: expected other events for another seed, found the same ones",
    ),
    "fresh events of one group": (
        simulators.fresh_events_are_one_of_each_new_group,
        "    def again(",
        """    def fresh(self, groups, seed):
        names = ("event_id", "energy_gev", "rate_hz")
        return self.again({name: np.ones(groups, np.float32) for name in names}, seed)

    def again(""",
        r"HitMaker.fresh: expected 20 groups, found 1",
    ),
    "the generator of the process": (
        batches.collate_follows_from_its_arguments,
        "np.random.default_rng(seed).normal(0, 1e-3, len(part))",
        "np.random.normal(0, 1e-3, len(part))",
        r"HitEnergy.collate: expected random numbers from `seed` alone, found a draw from the process's gen",
    ),
    "the generator of torch": (
        batches.collate_follows_from_its_arguments,
        '"energy": torch.from_numpy(energy)',
        '"energy": torch.from_numpy(energy) + 1e-3 * torch.randn(len(part))',
        r"HitEnergy.collate: expected random numbers from `seed` alone, found a draw from the process's gen",
    ),
    "collate in place": (
        batches.collate_changes_no_event,
        "        x, charge = part.items.T\n",
        "        part.items[:, 0] += 1\n        x, charge = part.items.T\n",
        r"HitEnergy.collate: expected its events and index unchanged, found other values after the call",
    ),
    "collate in float64": (
        batches.collate_gives_tensors_on_the_cpu,
        "shift.astype(np.float32)",
        "shift",
        r"HitEnergy.collate: expected 'energy' of float32, found float64",
    ),
    "arrays in place of tensors": (
        batches.collate_gives_tensors_on_the_cpu,
        '"energy": torch.from_numpy(energy)',
        '"energy": energy',
        r"HitEnergy.collate: expected 'energy' as a tensor on the CPU, found float32",
    ),
    "one tensor for all batches": (
        batches.collate_changes_no_event,
        '"energy": torch.from_numpy(energy)',
        '"energy": vars(self).setdefault("kept", torch.zeros(64))[: len(part)].copy_(torch.tensor(energy))',
        r"HitEnergy.collate: expected tensors of its own for each batch, found tensors that a later call ",
    ),
    "a size that depends on the batch": (
        batches.size_is_a_number_for_each_event_alone,
        "return events.multiplicity",
        "return np.sort(events.multiplicity)",
        r"HitEnergy.size: expected the same size in any batch, found another one among other events",
    ),
    "a method with another name": (
        batches.optional_members_are_whole_and_have_their_names,
        "def baseline(",
        "def base_line(",
        r"HitEnergy.base_line: nothing calls it; did you mean baseline\?",
    ),
    "half a pair": (
        batches.optional_members_are_whole_and_have_their_names,
        "def multiplicities(",
        "def draw_counts(",
        r"HitEnergy.generate: nothing calls it; it needs multiplicities beside it",
    ),
    "a sum in place of a mean": (
        losses.a_loss_is_the_weighted_sum_of_its_micro_batches,
        "mean = (wrong * weight).sum() / weight.sum()",
        "mean = (wrong * weight).sum()",
        r"HitEnergy: the loss of phase fit: expected a mean over events: of a batch, and of its parts",
    ),
    "each prediction against each truth": (
        losses.a_loss_is_the_weighted_sum_of_its_micro_batches,
        WRONG,
        EACH_AGAINST_EACH,
        r"HitEnergy: the loss of phase fit: expected a mean over events: .* the same gradients, found others",
    ),
    "numbers of the events that have hits": (
        losses.a_loss_is_the_weighted_sum_of_its_micro_batches,
        "torch.from_numpy(np.repeat(np.arange(len(part)), part.multiplicity))",
        HITS_OF_THE_NEXT_EVENT,
        r"HitEnergy: the loss of phase fit: expected a mean over events: of a batch, and of its parts",
    ),
    "gradients of its own": (
        losses.a_loss_is_a_scalar_with_detached_metrics,
        'return mean, {"squared": mean.detach()}',
        "mean.backward(retain_graph=True)\n        return mean",
        r"HitEnergy: the loss of phase fit: expected `backward` left to the training, found gradients",
    ),
    "weights that do not count": (
        losses.an_event_counts_as_often_as_its_weight_says,
        "mean = (wrong * weight).sum() / weight.sum()",
        "mean = wrong.mean()",
        r"HitEnergy: the loss of phase fit: expected an event of weight [02] to count like [02] events",
    ),
    "a loss that is not finite": (
        losses.a_loss_is_a_scalar_with_detached_metrics,
        'return mean, {"squared": mean.detach()}',
        "return mean.log() * 0 / 0",
        r"HitEnergy: the loss of phase fit: expected a finite loss of a batch, found nan",
    ),
    "a loss for each event": (
        losses.a_loss_is_a_scalar_with_detached_metrics,
        'return mean, {"squared": mean.detach()}',
        "return wrong, {}",
        r"HitEnergy: the loss of phase fit: expected a scalar tensor, .*, found a tensor \[20\]",
    ),
    "a metric with its gradients": (
        losses.a_loss_is_a_scalar_with_detached_metrics,
        "mean.detach()}",
        "mean}",
        r"HitEnergy: the loss of phase fit: expected the metric squared as a detached scalar tensor, found",
    ),
    "no mean of no hits": (
        losses.losses_and_gradients_are_finite,
        "count.clamp_min(1)",
        "count",
        r"HitEnergy: the loss of phase fit: expected a finite loss of a batch with an event without items",
    ),
    "statistics of a batch in the network": (
        losses.two_ranks_have_the_gradients_of_one,
        "each = nn.Sequential(nn.Linear(2, hidden), nn.SiLU()",
        "each = nn.Sequential(nn.Linear(2, hidden), nn.BatchNorm1d(hidden), nn.SiLU()",
        r"HitEnergy: the loss of phase fit: expected of a batch on two ranks the gradients of one rank, .*%",
    ),
    "half of the network": (
        losses.every_parameter_is_in_a_phase,
        "lambda model: model.parameters()",
        'lambda model: model["each"].parameters()',
        r"HitEnergy.phases: expected every parameter in a phase, or frozen by the model, found whole.weight",
    ),
    "one phase alone": (
        losses.phases_are_phases,
        'return [Phase("fit", lambda model: model.parameters(), self.loss, adam, average=True)]',
        'return Phase("fit", lambda model: model.parameters(), self.loss, adam, average=True)',
        r"HitEnergy.phases: expected a list of Phase, found Phase",
    ),
    "predictions one short": (
        predictions.predictions_follow_from_their_arguments,
        "10 ** self.guess(model, batch).numpy()",
        "10 ** self.guess(model, batch).numpy()[1:]",
        r"HitEnergy.predict: the column energy_gev_predicted has the shape \[19\], expected \[20\]",
    ),
    "predictions in another order": (
        predictions.a_prediction_does_not_depend_on_the_other_events,
        "10 ** self.guess(model, batch).numpy()",
        "np.sort(10 ** self.guess(model, batch).numpy())",
        r"HitEnergy.predict: expected one row for each event, in their order, found another energy_gev_pred",
    ),
    "predictions that depend on the others": (
        predictions.a_prediction_does_not_depend_on_the_other_events,
        "10 ** self.guess(model, batch).numpy()",
        "10 ** self.guess(model, {**batch, 'count': batch['count'] / batch['count'].mean()}).numpy()",
        r"HitEnergy.predict: expected the same for event 0 alone as among others",
    ),
    "a validation of another name": (
        predictions.a_validation_has_a_number_for_each_event,
        'return {"distance": np.abs',
        'return {"distances": np.abs',
        r"HitEnergy.validate: expected the columns of validation_metrics, \['distance'\], found \['dist",
    ),
    "a score of another name": (
        predictions.scores_of_model_and_baseline_are_finite,
        'return {"bias": float(',
        'return {"offset": float(',
        r"HitEnergy.score: expected a finite bias, .* declares, found offset \(of predictions of 1 events",
    ),
    "a score by chance": (
        predictions.scores_of_model_and_baseline_are_finite,
        'return {"bias": float(',
        'return {"bias": np.random.default_rng().normal() + float(',
        r"HitEnergy.score: expected the same numbers for the same events, found others",
    ),
    "a score that changes the truth": (
        predictions.a_score_of_all_events_is_whole,
        "ratio = np.log10(prediction[",
        'truth.columns["energy_gev"] *= 1e3\n        ratio = np.log10(prediction[',
        r"HitEnergy.score: expected truth and prediction unchanged, found other values after the call",
    ),
    "a score that is not a number": (
        predictions.scores_of_model_and_baseline_are_finite,
        "float(np.average(ratio, weights=truth.columns",
        "float('nan' if len(truth) < 2 else np.average(ratio, weights=truth.columns",
        r"HitEnergy.score: expected a finite bias, .* found one that is not finite .* needs: Metric\(needs=",
    ),
    "a baseline by chance": (
        predictions.scores_of_model_and_baseline_are_finite,
        "10 ** (events.multiplicity / 5)",
        "10 ** np.random.default_rng().uniform(size=len(events))",
        r"HitEnergy.baseline: expected the same columns for the same events, found others",
    ),
    "generated without the generator": (
        predictions.generated_events_follow_from_the_seed,
        "torch.rand(int(multiplicity.sum()), 2, generator=generator)",
        "torch.rand(int(multiplicity.sum()), 2)",
        r"HitEnergy.generate: expected the same events for the same seed, found others",
    ),
    "the true number of items in place of a drawn one": (
        predictions.what_is_generated_does_not_depend_on_given_items,
        "mean = 2 * np.log10(np.maximum(events.columns",
        "return events.multiplicity.astype(np.int64)\n        mean = 2 * np.log10(np.maximum(events.columns",
        r"HitEnergy.multiplicities: expected the same numbers whatever items the events have, found others",
    ),
    "items that do not add up": (
        predictions.generated_events_follow_from_the_seed,
        "multiplicity.astype(np.uint32), items)",
        "multiplicity.astype(np.uint32), items[1:])",
        r"HitEnergy.generate .*items: expected \d+, the sum of the multiplicities, found \d+",
    ),
    "a loss that counts its calls": (
        trainings.a_killed_training_ends_in_the_same_bytes,
        WRONG,
        COUNTS_CALLS,
        r"HitEnergy: expected the same checkpoint after a kill and a resume, found",
    ),
    "a fit of weights": (
        trainings.corrections_are_buffers_and_measured_without_themselves,
        "    def validate(",
        """    fit_events = 40

    def fit(self, model, blocks):
        model["whole"].bias.add_(1)

    def validate(""",
        r"HitEnergy: expected `fit` and `calibrate` to change buffers alone, found other weights",
    ),
    "a calibration of what is calibrated": (
        trainings.corrections_are_buffers_and_measured_without_themselves,
        "    def validate(",
        """    calibration_events, factor = 40, 1.0

    def deviations(self, model, events, generator):
        return {"off": self.factor * events.columns["energy_gev"]}

    def calibrate(self, model, deviations):
        self.factor *= 0.5

    def validate(""",
        r"HitEnergy.deviations: expected the same after `calibrate`, found others",
    ),
    "a calibration without its number of events": (
        batches.optional_members_are_whole_and_have_their_names,
        "    def validate(",
        "    def deviations(self, model, events, generator):\n        return {}\n\n    def validate(",
        r"HitEnergy.deviations: nothing calls it; it needs calibrate, calibration_events beside it",
    ),
}


def case_of(module):
    """A case of the small package under another name of its module."""
    return Case(validate(small_lab.tree(module)))


def sentence_of(case, check):
    """Return what a check says of a case; empty where it is content."""
    try:
        check(case)
    except NotChecked:
        return ""
    except CrpipeError as failure:
        return str(failure)
    return ""


def test_the_small_package_keeps_the_contract():
    case = case_of("small_lab")
    assert [text for check in CHECKS if (text := sentence_of(case, check.run))] == []


class Records(Reader):
    layout = Layout(
        "hits", (Field("n", "uint32", "", 0, 9, ""),), (Field("x", "float32", "", 0, 9, ""),), ("n",)
    )
    record = np.dtype([("n", "<u4"), ("x", "<f4")])

    def rows(self, path, tables):
        if not path.stat().st_size or path.stat().st_size % self.record.itemsize:
            raise ValueError("not a whole number of records")
        found = np.fromfile(path, self.record)
        yield self.block(np.ones(len(found)), {"n": found["n"]}, {"x": found["x"]})

    def totals(self, path, tables):
        return (sum(len(block) for block in self.rows(path, tables)),) * 2


def test_records_of_one_size_have_no_length_that_a_cut_between_two_of_them_could_contradict(tmp_path):
    path = tmp_path / "hits.dat"
    np.zeros(20, Records.record).tofile(path)
    case = Case(validate({"run": "records", "source": {"reader": f"{__name__}:Records"}}), [path])
    readers.a_truncated_file_is_refused_by_its_name(case)


def changed_case(name, right, wrong, tmp_path, monkeypatch):
    """Return a case of the small package with a line changed."""
    assert SOURCE.count(right) >= 1
    (tmp_path / f"{name}.py").write_text(SOURCE.replace(right, wrong, 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    return case_of(name)


GRAPHS = """    def graphs(self, model, origin, folder):
        from crpipe.core.errors import CheckpointError
        from crpipe.inference.export import Graphs

        if not torch.isfinite(model["whole"].weight).all():
            raise CheckpointError("not finite")
        return Graphs((), {"example": torch.rand(2).tolist()})

    def card(self, origin, graphs):
        return {"Example": [str(graphs.description["example"])]}

    def validate("""
# Lines that look odd, and are right.
RIGHT = {
    "weights of 0": (
        '"rate_hz": rng.uniform(0.5, 2, count)',
        '"rate_hz": (np.arange(count) > 5) * rng.uniform(0.5, 2, count)',
    ),
    "a number that nobody knows": (
        '"energy": torch.from_numpy(energy),',
        '"energy": torch.from_numpy(energy), "time": torch.full((len(part),), np.nan),',
    ),
    "an export with random inputs as an example": ("    def validate(", GRAPHS),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_keeps_the_contract(name, tmp_path, monkeypatch):
    case = changed_case(f"right_{[*RIGHT].index(name)}", *RIGHT[name], tmp_path, monkeypatch)
    assert [text for check in CHECKS if (text := sentence_of(case, check.run))] == []


def test_whole_events_that_no_chance_makes_keep_the_columns_of_the_given_ones(tmp_path, monkeypatch):
    right = 'return {"energy_gev_predicted": 10 ** self.guess(model, batch).numpy()}'
    wrong = "return Events(events.columns, events.multiplicity, events.items / 2)"
    case = changed_case("whole", right, wrong, tmp_path, monkeypatch)
    assert sentence_of(case, predictions.a_prediction_does_not_depend_on_the_other_events) == ""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_its_sentence(name, tmp_path, monkeypatch):
    check, right, wrong, sentence = MISTAKES[name]
    case = changed_case(f"lab_{[*MISTAKES].index(name)}", right, wrong, tmp_path, monkeypatch)
    text = sentence_of(case, check)
    assert re.search(sentence, text), text
    assert "\n" not in text
