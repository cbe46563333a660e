"""What one process does before any job: which commands, where it ends, and what it leaves to the jobs."""

import os
import signal

import pytest

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import load_config
from crpipe.core.errors import DataError, Interrupted
from crpipe.workflow import ahead
from crpipe.workflow.ahead import commands, has_few_files, is_left, work_ahead
from named import READERS
from told import Told

FIRST, SECOND = "0000000-0000999", "0001000-0001999"
FEW = 1 << 28


@pytest.fixture
def campaign(tmp_path):
    def make(*changes):
        keys = (
            "ranges.last=1999",
            f"source.reader={READERS['bundles']}",
            "train.workload=crpipe.workloads.muons:MuonVae",
            f"source.uri={tmp_path}/raw/{{range}}/*.parquet",
            f"results={tmp_path}/results",
            f"runs={tmp_path}/runs",
            *changes,
        )
        return Campaign.open(load_config((), keys))

    return make


def write_raw(folder, *sizes):
    for name, size in zip((FIRST, SECOND), sizes, strict=True):
        file = folder / "raw" / name / "0.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.truncate(file, size)


def touch(paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def touch_all(campaign):
    """Leave what is left after all links are trained."""
    for command in commands(campaign, ("train_all",)):
        touch(command.outputs)


def words(campaign, *targets):
    return [" ".join(command.words) for command in commands(campaign, targets)]


def data(*names):
    return [f"{verb} {name}" for name in names for verb in ("list", "stage", "split")]


def test_the_commands_are_those_of_the_jobs_in_an_order_in_which_one_process_does_them(campaign):
    every = campaign()
    assert words(every, "outliers_consolidated") == [*data(FIRST, SECOND), "consolidate"]
    links = [*data(FIRST), f"train {FIRST}", *data(SECOND), f"train {SECOND}"]
    assert words(every, "train_all") == ["config check", *links]
    together = words(campaign("train.ranges_per_link=0"), "train_all")
    assert together == ["config check", *data(FIRST, SECOND), "train 0000000-0001999"]
    trained = ["config check", *links, "consolidate", "train outliers"]
    assert words(every, "train_outliers") == trained
    assert words(every, "evaluation") == [*trained, "evaluate outliers"]
    assert words(every, "all") == [*trained, "evaluate outliers", "figures", "gallery"]
    each = [f"evaluate {name}" for name in (FIRST, SECOND, "outliers")]
    assert words(every, "progress") == [*trained, *each, "figures --progress"]


def test_reference_ranges_are_staged_before_their_threshold_is_chosen(campaign):
    chosen = campaign("split.quantile=0.9", f"split.reference_ranges=[{SECOND}]")
    assert words(chosen, "outliers_consolidated")[:4] == [
        *data(SECOND)[:2],
        "threshold",
        f"list {FIRST}",
    ]


def test_trainings_of_several_processes_are_left_to_their_jobs(campaign):
    assert not any(
        "train" in each
        for each in words(campaign("train.processes=2", "train.gpus=0", "train.device=cpu"), "all")
    )


def test_what_is_there_is_not_made_again(campaign):
    begun = campaign()
    touch(begun.paths.split_outputs(FIRST))
    left = [command for command in commands(begun, ("outliers_consolidated",)) if not command.is_done()]
    assert [" ".join(command.words) for command in left] == [*data(SECOND), "consolidate"]


def test_only_whole_targets_are_worked_on(campaign):
    assert is_left(campaign(), {"all"})
    assert not is_left(campaign(), {"all", "results/ledgers/0000000-0000999.json"})
    touch_all(campaign())
    assert not is_left(campaign(), {"train_all"})
    assert is_left(campaign(), {"all"})


@pytest.mark.parametrize("missing", ["receipt", "ledger"])
def test_what_follows_from_what_is_left_is_not_taken_as_done(campaign, missing):
    begun = campaign()
    touch_all(begun)
    getattr(begun.paths, missing)(FIRST).unlink()
    assert not is_left(begun, {"train_all"})  # the second link was trained from another first one
    begun.paths.receipt(FIRST).unlink(missing_ok=True)
    begun.paths.receipt(SECOND).unlink()
    assert is_left(begun, {"train_all"})


def test_links_before_what_is_left_stay(campaign):
    """As where a file of the second range was damaged, and is restored."""
    begun = campaign()
    touch_all(begun)
    begun.paths.ledger(SECOND).unlink()
    begun.paths.receipt(SECOND).unlink()
    assert is_left(begun, {"train_all"})
    calls = Calls(begun)
    work_ahead(begun, ("train_all",), calls, Told())
    assert [each.partition(" --")[0] for each in calls] == [f"split {SECOND}", f"train {SECOND}"]


def test_few_raw_files_are_those_of_this_machine_that_are_read_in_place(campaign, tmp_path):
    assert not has_few_files(campaign())  # there is none
    write_raw(tmp_path, FEW - 1, 1)
    assert has_few_files(campaign())
    assert not has_few_files(campaign("source.copy_local=true"))
    assert not has_few_files(campaign("source.convert=cp {in} {out}", "source.convert_suffix=.parquet"))
    assert not has_few_files(campaign("source.uri=synthetic://"))
    assert not has_few_files(campaign("packs=true"))
    write_raw(tmp_path, 1, FEW)  # the first range alone would tell nothing
    assert not has_few_files(campaign())


class Calls(list):
    """Notes what is called; makes its outputs, or raises an error."""

    def __init__(self, campaign, errors=()):
        self.errors = dict(errors)
        self.outputs = {
            ("summary",): (),
            **{each.words: each.outputs for each in commands(campaign, ("all",))},
        }

    def __call__(self, called):
        self.append(" ".join(called))
        os.write(1, f"said by {called[0]}\n".encode())  # the streams of pytest are not those of a process
        os.write(2, f"warned by {called[0]}\n".encode())
        if called[0] == "train":  # as training does
            signal.signal(signal.SIGTERM, lambda *_: None)
        if called[0] in self.errors:
            raise self.errors[called[0]]
        touch(self.outputs[tuple(called[:2])])


def test_each_command_writes_the_log_of_its_job(campaign, capfd):
    begun, told = campaign(), Told()
    calls, due = Calls(begun), words(begun, "train_outliers")
    before = signal.getsignal(signal.SIGTERM)
    work_ahead(begun, ("train_outliers",), calls, told, [("summary",)])
    assert [each.partition(" --")[0] for each in calls] == [*due, "summary"]
    for verb, folder in (("list", begun.paths.results), ("train", begun.paths.run_dir())):
        text = (folder / "logs" / verb / f"{FIRST}.log").read_text()
        assert text == f"said by {verb}\nwarned by {verb}\n"
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("said by summary\n", "warned by summary\n")
    assert signal.getsignal(signal.SIGTERM) == before
    assert not begun.paths.staged(FIRST).exists()  # as Snakemake deletes it after the split
    *begun_links, line = told.lines
    assert begun_links == [f"train {name}" for name in (FIRST, SECOND, "outliers")]
    assert line.startswith("11 steps done in one process in ")


@pytest.mark.parametrize(("verb", "error"), [("split", DataError("bad")), ("train", Interrupted("enough"))])
def test_a_command_that_fails_is_left_to_its_job_with_all_after_it(campaign, verb, error):
    begun, told = campaign(), Told()
    calls = Calls(begun, {verb: error})
    work_ahead(begun, ("all",), calls, told, [("summary",)])
    assert calls[-1].startswith(f"{verb} {FIRST}")
    assert told.lines[-1:] == [f"{verb} {FIRST}: {type(error).__name__}; its own job tries again"]
    folder = begun.paths.run_dir() if verb == "train" else begun.paths.results
    assert (folder / "logs" / verb / f"{FIRST}.log").read_text().endswith(f"crpipe: {error}\n")


def test_after_a_minute_the_jobs_go_on(campaign, monkeypatch):
    monkeypatch.setattr(ahead, "LIMIT_S", 0.0)
    calls = Calls(campaign())
    work_ahead(campaign(), ("all",), calls, Told())
    assert calls == []


def test_the_first_link_calls_every_method_of_foreign_classes(campaign):
    foreign = campaign("source.reader=small_lab:HitFiles")
    trained = [each for each in words(foreign, "train_all") if each.startswith("train")]
    assert trained == [f"train {FIRST} --probe", f"train {SECOND}"]


def test_a_training_is_given_what_is_left_of_the_minute(campaign):
    begun = campaign()
    calls = Calls(begun)
    work_ahead(begun, ("train_all",), calls, Told())
    given = [each.rpartition(" --max-minutes ")[2] for each in calls if each.startswith("train")]
    assert len(given) == 2
    assert all(0 < float(minutes) <= 1 for minutes in given)
