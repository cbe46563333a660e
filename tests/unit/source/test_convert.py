"""source.convert: a command makes a file for the reader of each raw file, and each is read whole."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import converter
from crpipe.campaign import claims
from crpipe.campaign.campaign import Campaign
from crpipe.campaign.raw_files import read_staged
from crpipe.campaign.readers import configured_reader
from crpipe.check.check import check, open_files
from crpipe.config.loading import load_config
from crpipe.core.errors import (
    ConfigError,
    DataError,
    FormatError,
    HostMemoryError,
    SourceError,
)
from crpipe.core.journal import Journal
from crpipe.core.text import NullProgress
from crpipe.report.plan import count_jobs
from crpipe.report.state import CampaignState, files_of
from crpipe.setup.preview import look_at_source
from crpipe.source.convert import convert_range
from crpipe.source.listing import list_range
from crpipe.source.stage import stage_range
from crpipe.split.inspect import inspect_file
from crpipe.split.split import split_range
from damage import flip
from named import NAMED, READERS
from raw_files import NAME, make_events, nested
from told import Told
from web_server import WebServer

SCRIPT = Path(converter.__file__)
COMMAND = f"{shlex.quote(sys.executable)} {shlex.quote(str(SCRIPT))} --infile {{in}} --outfile {{out}}"


class Converted:
    """A campaign over files that no reader reads."""

    def __init__(self, folder, **source):
        self.folder, self.calls = folder, folder / "calls"
        self.raw_files = folder / "data" / NAME
        self.keys = {"convert": f"{COMMAND} --calls {shlex.quote(str(self.calls))}", **source}

    def add(self, name, how="well", events=100):
        seed = len(name) + ord(name[0])
        counts = np.random.default_rng(seed).integers(0, 12, events)
        converter.write_raw(self.raw_files / name, nested(*make_events(counts, seed)), how)

    @property
    def campaign(self):
        changes = [f"results={self.folder}/results", f"source.uri={self.folder}/data/{{range}}/*.raw"]
        changes += ["ranges.last=999", "split.outlier_above=8", f"source.reader={READERS['bundles']}"]
        changes += [f"train.workload={NAMED['train']['workload']}", "source.attempts=1"]
        changes += [f"source.{name}={json.dumps(value)}" for name, value in self.keys.items()]
        return Campaign.open(load_config((), changes))

    @property
    def paths(self):
        return self.campaign.paths

    def stage(self):
        list_range(self.campaign, NAME, NullProgress())
        stage_range(self.campaign, NAME, NullProgress())

    def convert(self, progress=None):
        claims.record_data_keys(self.campaign)
        convert_range(self.campaign, NAME, progress or NullProgress())
        return {row.path: row for row in read_staged(self.paths.converted(NAME), "convert")}

    def split(self):
        split_range(self.campaign, NAME, NullProgress())
        return json.loads(self.paths.ledger(NAME).read_text())

    def called(self):
        lines = self.calls.read_text().split() if self.calls.exists() else []
        return {name: lines.count(name) for name in lines}

    def outputs(self):
        folder = self.paths.raw(NAME) / ".converted"
        tops = [path for path in folder.glob("*") if path.name != ".work"]  # where names come and go
        files = [path for top in tops for path in (top.rglob("*.parquet") if top.is_dir() else [top])]
        return {str(path.relative_to(folder)): path for path in files if path.suffix == ".parquet"}

    def left(self):
        return list((self.paths.raw(NAME) / ".converted" / ".work").iterdir())


@pytest.fixture
def made(tmp_path):
    """A campaign of four files that can be converted; keywords go to its source section."""

    def make(**source):
        made = Converted(tmp_path / "campaign", **source)
        for name in "abcd":
            made.add(f"{name}.raw")
        return made

    return make


def test_each_raw_file_is_converted_once_and_the_ledger_accounts_for_it(made):
    campaign = made()
    campaign.stage()
    rows = campaign.convert()
    assert [(row.state, row.verified) for row in rows.values()] == [("staged", "converted")] * 4
    assert set(campaign.outputs()) == {f"{name}.raw.parquet" for name in "abcd"}
    assert campaign.left() == []
    assert not list((campaign.paths.results / "logs").rglob("*.raw.log"))
    ledger = campaign.split()
    assert [row["path"] for row in ledger["files"]] == [f"{name}.raw" for name in "abcd"]
    assert {row["events"] for row in ledger["files"]} == {100}
    assert (ledger["balanced"], ledger["events"]["listed"], ledger["quarantined"]) == (True, 400, 0)
    sizes = {row["path"]: row["size"] for row in ledger["files"]}
    assert sizes == {path.name: path.stat().st_size for path in campaign.raw_files.iterdir()}
    assert not campaign.paths.raw(NAME).exists()  # raw copies and what was made of them


def test_the_state_of_a_range_and_its_check_know_the_step(made):
    campaign = made()

    def looked():
        state = CampaignState.read(campaign.campaign).ranges[0]
        (note,) = [each.what for each in checked().notes if each.path == NAME]
        return state.state, state.files, note

    def checked():
        return check(open_files(campaign.campaign.config), [NAME], NullProgress(), processes=1)

    def journal(what):
        Journal(campaign.paths.data_journal()).add(what, verb="convert", range=NAME)

    campaign.stage()
    whole = "not split yet; the raw files are as they were then, or named above"
    assert looked() == ("staged", 4, f"staged, {whole}")
    journal("start")
    assert looked()[0] == "converting"
    journal("failed")
    assert looked()[0] == "failed"
    journal("start")
    campaign.convert()
    journal("finished")
    assert looked() == ("converted", 4, f"converted, {whole}")
    assert count_jobs(campaign.campaign, *files_of(campaign.campaign))["convert"] == (1, 1)
    output = campaign.outputs()["b.raw.parquet"]
    output.write_bytes(output.read_bytes()[:-1])
    (wrong,) = [each for each in checked().errors if each.path == str(output)]
    assert wrong.remedy == f"crpipe convert {NAME}"


def test_a_finished_range_is_not_converted_again(made):
    campaign = made()
    campaign.stage()
    campaign.convert()
    campaign.split()
    stage_range(campaign.campaign, NAME, NullProgress())
    assert campaign.convert() == {}
    before = campaign.paths.shard_manifest(NAME).read_bytes()
    campaign.split()
    assert campaign.paths.shard_manifest(NAME).read_bytes() == before
    assert campaign.called() == {f"{name}.raw": 1 for name in "abcd"}


def test_names_that_a_shell_would_read_reach_the_command_as_they_are(made):
    campaign = made()
    for name in ("a b.raw", "it's $HOME.raw", '"q" `id`;#.raw', "{out}.raw", "below/x.raw"):
        campaign.add(name)
    campaign.keys["uri"] = f"{campaign.folder}/data/{{range}}/**/*.raw"
    campaign.stage()
    assert {row.state for row in campaign.convert().values()} == {"staged"}
    assert len(campaign.outputs()) == 9
    assert campaign.split()["events"]["listed"] == 900


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("fail", r"source\.convert ended with exit code 1; its last lines: reading b\.raw \| no such frame"),
        ("nothing", r"ended well and wrote no \{out\} \(b\.raw\.parquet\); its last lines: reading b\.raw"),
        ("half", r"made a file that is refused: b\.raw\.parquet: "),
        ("corrupt", r"made a file that is refused: b\.raw\.parquet: cannot be read whole \(ZSTD"),
        ("other", r"made a file that is refused: b\.raw\.parquet: .*muons"),
    ],
)
def test_a_file_that_cannot_be_converted_ends_the_range_and_says_why(made, how, why):
    campaign = made()
    campaign.add("b.raw", how)
    campaign.stage()
    with pytest.raises(FormatError, match=rf"(?s)/b\.raw: .*{why}") as caught:
        campaign.convert()
    log = campaign.paths.convert_log(NAME, "b.raw")
    assert log.read_text().startswith("reading b.raw\n")
    assert f"(all of it: {log})" in str(caught.value)
    assert "source.on_bad_file: quarantine" in str(caught.value)
    assert campaign.called()["b.raw"] == 2
    assert "b.raw.parquet" not in campaign.outputs()
    assert campaign.left() == []
    assert not campaign.paths.converted(NAME).exists()


def test_what_a_command_writes_beside_its_output_is_named(made):
    told, campaign = Told(), made(convert=f"{COMMAND} && cp {{out}} {{out}}.2")
    campaign.stage()
    assert len(campaign.convert(told)) == 4
    assert re.search(r"also wrote (.\.raw\.parquet)\.2 beside \1, which is not read", str(told))


def test_a_link_is_no_output(made):
    campaign = made(convert=f"{COMMAND} && mv {{out}} {{in}}.2 && ln -s {{in}}.2 {{out}}")
    campaign.stage()
    with pytest.raises(FormatError, match=r"source\.convert made \{out\} a link \(.*\); write a file"):
        campaign.convert()


def test_a_file_that_fails_once_is_tried_again(made):
    campaign = made()
    campaign.add("b.raw", "fail once")
    campaign.stage()
    assert {row.state for row in campaign.convert().values()} == {"staged"}
    assert campaign.called()["b.raw"] == 2


@pytest.mark.parametrize("how", ["fail", "corrupt", "nothing"])
def test_a_bad_file_is_set_aside_and_the_ledger_balances(made, how):
    campaign = made(on_bad_file="quarantine", max_quarantined=1)
    campaign.add("b.raw", how)
    campaign.stage()
    told = Told()
    rows = campaign.convert(told)
    assert {path: row.state for path, row in rows.items()}["b.raw"] == "quarantined"
    assert f"{NAME}: set aside: " in str(told)
    assert sum(campaign.called().values()) == 3 + 2 + 1  # one that works is tried at the end
    ledger = campaign.split()
    assert (ledger["balanced"], ledger["events"]["listed"], ledger["quarantined"]) == (True, 300, 1)
    (row,) = [row for row in ledger["files"] if row["state"] == "quarantined"]
    assert row["path"] == "b.raw"
    assert "source.convert" in row["reason"]
    record = campaign.paths.shards(NAME) / ".finished"
    assert record.exists()
    stage_range(campaign.campaign, NAME, NullProgress())  # the table of a finished range
    assert {row.path: row.state for row in read_staged(campaign.paths.staged(NAME))}["b.raw"] == "quarantined"


def test_no_more_files_are_set_aside_than_allowed(made):
    campaign = made(on_bad_file="quarantine", max_quarantined=1)
    campaign.add("b.raw", "fail")
    campaign.add("c.raw", "fail")
    campaign.stage()
    with pytest.raises(FormatError, match=rf"{NAME}: 2 bad files, at most 1 may be set aside"):
        campaign.convert()
    assert not campaign.paths.converted(NAME).exists()


def test_a_command_that_stops_working_sets_no_file_aside(made):
    """The first files are there from an earlier attempt; now the command itself is broken."""
    campaign = made(on_bad_file="quarantine", max_quarantined=10)
    campaign.add("b.raw", "fail")
    campaign.stage()
    campaign.convert()
    campaign.paths.converted(NAME).unlink()
    real = campaign.folder / "real.py"
    shutil.copy(SCRIPT, real)
    campaign.keys["convert"] = f"{shlex.quote(sys.executable)} {real} --infile {{in}} --outfile {{out}}"
    campaign.convert()
    campaign.paths.converted(NAME).unlink()
    real.unlink()
    with pytest.raises(
        SourceError, match=r"b\.raw: .*[acd]\.raw, which was converted before, fails now, too"
    ):
        campaign.convert()


def test_at_most_half_of_the_files_are_set_aside(made):
    campaign = made(on_bad_file="quarantine", max_quarantined=10)
    for name in "bcd":
        campaign.add(f"{name}.raw", "fail")
    campaign.stage()
    with pytest.raises(FormatError, match="3 bad files, at most 2 may be set aside"):
        campaign.convert()


@pytest.mark.slow
def test_a_command_that_hangs_is_ended_with_all_that_it_started(made):
    campaign = made(convert_timeout_s=2.0)
    campaign.add("b.raw", "hang")
    campaign.stage()
    begin = time.monotonic()
    with pytest.raises(FormatError, match=r"did not end within 2 s \(source.convert_timeout_s\); its last"):
        campaign.convert()
    assert time.monotonic() - begin < 60
    child = int((campaign.paths.raw(NAME) / "pid").read_text())
    assert is_gone(child)


def is_gone(process, seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_command_that_the_system_killed_is_the_machines_affair(made):
    campaign = made(on_bad_file="quarantine")
    campaign.add("b.raw", "killed")
    campaign.stage()
    with pytest.raises(HostMemoryError, match=r"b\.raw\.parquet: .*resources\.convert\.mem_mb"):
        campaign.convert()
    assert not campaign.paths.converted(NAME).exists()


def begin_convert(campaign):
    """Start `crpipe convert` as a job does."""
    keys = campaign.campaign.config.model_dump_json(exclude_defaults=True)
    file = campaign.folder / "campaign.yaml"
    file.write_text(keys)  # JSON is YAML
    crpipe = Path(sys.executable).with_name("crpipe")
    return subprocess.Popen(
        [crpipe, "--config", file, "convert", NAME],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_command_ends_with_the_step_that_started_it(made):
    campaign = made()
    campaign.add("b.raw", "hang")
    campaign.stage()
    job = begin_convert(campaign)
    pid = campaign.paths.raw(NAME) / "pid"
    end = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    child = int(pid.read_text())
    assert not is_gone(child, 0.2)
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    job.stdout.close()
    assert is_gone(child)


def test_an_output_that_was_damaged_meanwhile_is_made_again(made):
    campaign = made()
    campaign.stage()
    campaign.convert()
    campaign.paths.converted(NAME).unlink()
    (output,) = [path for name, path in campaign.outputs().items() if name.startswith("c")]
    flip(output, 200)
    told = Told()
    campaign.convert(told)
    assert campaign.called() == {"a.raw": 1, "b.raw": 1, "c.raw": 2, "d.raw": 1}
    assert "3 of 4 files are converted already" in str(told)


def test_a_raw_file_that_was_repaired_is_converted_again(made):
    campaign = made()
    campaign.stage()
    campaign.convert()
    campaign.add("b.raw", events=50)
    campaign.paths.manifest(NAME).unlink()
    campaign.stage()
    with pytest.raises(DataError, match=rf"b\.raw is another file now; run `crpipe convert {NAME}` again"):
        campaign.split()
    campaign.convert()
    assert campaign.called() == {"a.raw": 1, "b.raw": 2, "c.raw": 1, "d.raw": 1}
    assert campaign.split()["events"]["listed"] == 350


def test_another_command_is_refused_once_files_are_converted(made):
    campaign = made()
    campaign.stage()
    campaign.convert()
    campaign.keys["convert"] += " --seconds 0"
    with pytest.raises(
        ConfigError,
        match=r"(?s)source\.convert: .*--calls.*\(for source.convert alone: rm -r .*/results/converted\)",
    ):
        claims.check_data(campaign.campaign)
    with pytest.raises(DataError, match="another file now"):
        campaign.split()


def test_a_wrong_command_may_be_corrected_and_nothing_is_copied_again(made):
    campaign = made()
    campaign.keys["convert"] = "false {in} {out}"
    claims.record_data_keys(campaign.campaign)
    campaign.stage()
    with pytest.raises(FormatError, match="exit code 1; it printed nothing"):
        campaign.convert()
    campaign.keys["convert"] = COMMAND
    campaign.convert()
    assert campaign.split()["balanced"]


def test_without_a_command_there_is_nothing_to_convert(made):
    campaign = made()
    campaign.stage()
    campaign.keys["convert"] = ""
    with pytest.raises(ConfigError, match="source.convert: not set"):
        campaign.convert()


def test_a_campaign_without_a_command_has_the_keys_that_it_had(made):
    campaign = made()
    del campaign.keys["convert"]
    assert not [name for name in campaign.campaign.data_keys if "convert" in name]
    campaign.keys["convert"] = COMMAND
    assert campaign.campaign.data_keys["source.convert"] == COMMAND


@pytest.mark.parametrize(
    ("command", "more", "why"),
    [
        ("dump {in}", (), r"\{out\} is missing"),
        ("dump {out}", (), r"\{in\} is missing"),
        ('dump "{in}" {out}', (), "within quotes"),
        ("bash -c 'dump {in} {out}'", (), "within quotes"),
        ("dump {in} {out} 'x", (), "a quote is not closed"),
        ("dump {in} {out}", ("source.convert_suffix=/x",), "write it without /"),
        ("dump {in} {out}", ("packs=true",), "no job of a pack converts files"),
        ("dump {in} {out}", ("source.uri=synthetic://",), "source.simulator makes files"),
    ],
)
def test_a_command_that_cannot_work_is_refused_in_words(command, more, why):
    with pytest.raises(ConfigError, match=rf"source\.convert: .*{why}"):
        load_config((), (f"source.convert={json.dumps(command)}", *more), options=False)


def test_a_command_may_hold_other_braces_and_name_a_file_twice():
    command = "dump --in={in} {out} && awk '{print}' {out}"
    assert (
        load_config((), (f"source.convert={json.dumps(command)}",), options=False).source.convert == command
    )


def test_a_plan_converts_the_smallest_file_and_counts_in_raw_bytes(made):
    campaign = made()
    campaign.add("small.raw", events=50)
    seen = look_at_source(campaign.campaign)
    assert (seen.warnings, seen.problems) == ((), ())
    assert seen.file.name.endswith("/small.raw")
    assert (seen.file.events, seen.file.bytes) == (50, (campaign.raw_files / "small.raw").stat().st_size)
    assert campaign.called() == {"small.raw": 1}
    assert not campaign.paths.results.exists()


def test_a_look_at_a_raw_file_says_that_outputs_are_read(made):
    campaign = made()
    with pytest.raises(FormatError, match=r"a\.raw: .*source\.convert is set: its outputs are read, not raw"):
        inspect_file(campaign.raw_files / "a.raw", 5, configured_reader(campaign.campaign.config))


def test_files_of_a_server_are_converted_once_they_are_copied(made):
    campaign = made(require_checksum=False)
    with WebServer(campaign.raw_files) as server:
        (campaign.folder / f"{NAME}.txt").write_text("".join(f"{server.url}/{name}.raw\n" for name in "abcd"))
        campaign.keys |= {"uri": "", "files": f"{campaign.folder}/{{range}}.txt"}
        seen = look_at_source(campaign.campaign)
        assert (seen.warnings, seen.problems, seen.file.events) == ((), (), 100)
        campaign.stage()
    campaign.convert()
    assert campaign.split()["events"]["listed"] == 400


def test_a_plan_warns_where_the_command_fails(made):
    campaign = made(convert="no-such-program {in} {out}")
    seen = look_at_source(campaign.campaign)
    assert seen.file is None
    assert "source.convert ended with exit code 127" in seen.warnings[0]


def test_the_output_has_the_suffix_and_must_be_of_the_readers_format(made):
    campaign = made(convert_suffix=".h5")
    campaign.stage()
    campaign.keys["reader"] = READERS["bundles_hdf5"]
    with pytest.raises(FormatError, match=r"refused: .\.raw\.h5: this is a Parquet file, and .* reads HDF5"):
        campaign.convert()


def test_files_that_were_staged_in_place_are_copied_before_a_command_gets_them(made):
    campaign = made()
    command = campaign.keys.pop("convert")
    campaign.stage()
    raw = campaign.paths.raw(NAME)
    assert all((raw / f"{name}.raw").is_symlink() for name in "abcd")
    campaign.keys["convert"] = command
    campaign.convert()
    assert not any((raw / f"{name}.raw").is_symlink() for name in "abcd")
    assert all(file["checksum"] for file in campaign.split()["files"])


def test_a_plan_hands_no_original_to_a_command(made):
    campaign = made(convert="mv {in} {out}")
    look_at_source(campaign.campaign)
    assert sorted(path.name for path in campaign.raw_files.iterdir()) == [f"{name}.raw" for name in "abcd"]
