"""The workflow as a user runs it: real Snakemake, real jobs, tiny data."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from crpipe.core.lease import is_claimed
from raw_files import make_events, nested, write_parquet
from runs import (
    BIN,
    LINKS,
    RANGES,
    REPOSITORY,
    Campaign,
    children,
    environment,
    flipped,
    kill,
    wait_for,
)

pytestmark = pytest.mark.timeout(900)


def test_one_command_makes_everything_and_nothing_is_left_behind(finished):
    assert list(finished.receipts()) == list(LINKS)
    for name in RANGES:
        ledger = json.loads((finished.results / "ledgers" / f"{name}.json").read_text())
        assert ledger["balanced"]
        assert ledger["events"]["listed"] == 240
    assert (finished.run / "evaluation" / "outliers" / "metrics.json").exists()
    assert (finished.run / "figures" / "losses.svg").exists()
    made = list((finished.run / "figures" / "evaluation").glob("*.svg"))
    assert made
    for path in (finished.run / "figures" / "losses.svg", *made):
        assert "run tiny, outliers, step " in path.read_text()
        assert path.with_suffix(".csv").stat().st_size
    left = {path.name for path in (finished.results / "staged").rglob("*") if path.is_file()}
    assert left == {"lease"}  # of each range: it counts who held it
    assert not list(finished.folder.rglob("*.part"))


def test_every_bulk_event_is_trained_on_in_every_epoch(finished):
    ledgers = [json.loads((finished.results / "ledgers" / f"{name}.json").read_text()) for name in RANGES]
    bulk = sum(ledger["events"]["train"] for ledger in ledgers)
    outliers = sum(ledger["events"]["outliers"] for ledger in ledgers)
    assert outliers > 0
    assert finished.receipts()["outliers"]["events"] == 6 * bulk + outliers


def test_a_workflow_that_ended_gave_its_lease_back(finished):
    """Where it did not, a head on another host watches it for a while."""
    assert not is_claimed(finished.folder / ".snakemake" / "head" / "lease")
    assert json.loads((finished.folder / ".snakemake" / "head" / "lease").read_text())["ended"]


def test_data_alone_never_trains_and_training_never_stages_again(split, tmp_path):
    campaign = split.copy(tmp_path / "campaign")
    assert not campaign.run.exists()
    assert campaign.jobs("train_all") == {"train": 3, "train_all": 1}
    campaign.snakemake(f"runs/tiny/ranges/{RANGES[0]}.json")
    assert set(campaign.times("start", "stage").values()) == set(split.times("start", "stage").values())
    assert campaign.jobs("outliers_consolidated train_all") == {"train": 2, "train_all": 1}


def test_a_finished_campaign_has_nothing_to_do_for_any_target(finished):
    assert finished.jobs("outliers_consolidated train_all train_outliers evaluation all") == {}
    assert "Nothing to be done" in finished.snakemake().stdout


def test_a_lost_evaluation_is_made_again(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    shutil.rmtree(campaign.run / "evaluation")
    assert campaign.jobs("all") == {"all": 1, "evaluate": 1, "gallery": 1}


def test_staging_waits_for_the_split_and_for_training_one_range_further_back(finished, split):
    for campaign in (finished, split):
        staged, done = campaign.times("start", "stage"), campaign.times("finished", "split")
        for earlier, name in pairwise(RANGES):  # source.prefetch_ranges is 1
            assert done[earlier] < staged[name]
    assert finished.times("finished", "train")[RANGES[0]] < finished.times("start", "stage")[RANGES[2]]


def test_a_target_changed_between_staging_and_split_copies_nothing_twice(begun):
    begun.snakemake(f"results/staged/{RANGES[0]}.parquet")
    begun.snakemake("outliers_consolidated")
    assert [row["range"] for row in begun.journal() if (row["what"], row["verb"]) == ("start", "stage")] == [
        *RANGES
    ]


def test_a_quantile_threshold_is_chosen_before_any_split(begun):
    begun.snakemake(
        "outliers_consolidated --config 'split={quantile: 0.9, reference_ranges: [0000004-0000005]}'"
    )
    chosen = begun.times("finished", "threshold")[""]
    assert all(chosen < start for start in begun.times("start", "split").values())


def test_what_a_person_types_reaches_every_job(begun):
    words = "--dry-run --printshellcmds --config 'source={attempts: 9}' run=night"
    shown = begun.snakemake(words).stdout
    assert "exec crpipe --config config/config.yaml --config config/tiny.yaml --set" in shown
    assert "--set run=night" in shown
    assert "source.attempts=" in shown
    assert f"runs/night/ranges/{RANGES[0]}.json" in shown


@pytest.mark.parametrize(
    ("variable", "words", "files"),
    [
        ("", "", ["crpipe.yaml"]),
        ("config/tiny.yaml:night.yaml", "", ["config/tiny.yaml", "night.yaml"]),
        ("night.yaml", "--configfile config/tiny.yaml", ["config/tiny.yaml"]),
    ],
)
def test_the_workflow_reads_the_files_that_the_verbs_read(begun, variable, words, files):
    (begun.folder / "crpipe.yaml").write_text((begun.folder / "config" / "tiny.yaml").read_text())
    (begun.folder / "night.yaml").write_text("run: night\n")
    (begun.folder / "Snakefile").unlink()
    (begun.folder / "Snakefile").write_text(
        (REPOSITORY / "Snakefile").read_text() + "from snakemake.spawn_jobs import SpawnedJobArgsFactory\n"
        'print("job:", SpawnedJobArgsFactory(workflow).get_configfiles_arg())\n'
    )
    command = [BIN / "snakemake", *shlex.split(f"--dry-run --printshellcmds {words}")]
    done = begun.process(*command, CRPIPE_CONFIG=variable)
    assert done.returncode == 0, done.stderr
    read = ["config/config.yaml", *files]
    assert f"job: --configfiles {' '.join(str(begun.folder / file) for file in read)}\n" in done.stdout
    given = " ".join(f"--config {file}" for file in read)
    assert f"exec crpipe {given} train {RANGES[0]}" in done.stdout
    assert f"runs/{'night' if 'night.yaml' in files else 'tiny'}/ranges/{RANGES[0]}.json" in done.stdout


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (b"# run: night\n", 0, "train_all"),
        (
            "# für die Nacht\n".encode("latin-1"),
            2,
            "crpipe: night.yaml: not valid YAML: line 1: not in UTF-8",
        ),
        (b"run: night\n\tseed: 2\n", 2, "crpipe: night.yaml: not valid YAML: line 2, column 1: "),
    ],
)
def test_a_file_without_keys_changes_nothing_and_one_that_is_no_yaml_is_named(begun, text, code, said):
    (begun.folder / "night.yaml").write_bytes(text)
    words = [BIN / "snakemake", "--dry-run", "train_all"]
    done = begun.process(*words, CRPIPE_CONFIG="config/tiny.yaml:night.yaml")
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_wrong_key_stops_before_any_job_with_one_line(begun):
    (begun.folder / "config" / "tiny.yaml").write_text("source: {look_ahed: 3}")
    done = begun.snakemake("--dry-run", check=False)
    assert done.returncode == 2
    said = "config/tiny.yaml: source.look_ahed: unknown key; did you mean source.prefetch_ranges?"
    assert said in done.stdout
    assert "Traceback" not in done.stdout


def test_a_configuration_changed_under_a_campaign_is_refused_before_any_job(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    before = campaign.contents()
    for change, said in (
        ("'split={outlier_above: 7}'", "split.outlier_above"),
        ("'train={passes_per_link: 9}'", "train.passes_per_link"),
    ):
        done = campaign.snakemake(f"--config {change}", check=False)
        assert done.returncode == 2
        assert said in done.stdout
        assert "restore the old values" in done.stdout
    assert campaign.contents() == before
    assert campaign.journal() == finished.journal()


def test_a_range_that_fails_blocks_what_needs_it_and_says_so(split, tmp_path):
    campaign = split.copy(tmp_path / "campaign")
    with (campaign.folder / "config" / "tiny.yaml").open("a") as config:
        config.write("notify: {failure: &tell 'echo $CRPIPE_SUBJECT >> told; cat >> told', success: *tell}\n")
    shard = campaign.results / "shards" / RANGES[1] / "train-00000.muons.parquet"
    good = shard.read_bytes()
    shard.write_bytes(flipped(good, len(good) // 3))
    done = campaign.snakemake("train_all outliers_consolidated", check=False)
    assert done.returncode == 1
    told = done.stdout[done.stdout.index("crpipe: the workflow did not finish.") :]
    assert f"train {RANGES[1]} (exit 65)" in told
    assert f"Training waits for range {RANGES[1]} (2 of 3 still to do)." in told
    assert "snakemake train_all outliers_consolidated --configfile config/tiny.yaml" in told
    assert str(shard.relative_to(campaign.folder).with_suffix("").with_suffix("")) in told
    heard = (campaign.folder / "told").read_text()
    assert heard.startswith("crpipe tiny: failure, 1 of 3 ranges trained\n")
    assert RANGES[1] in heard
    shard.write_bytes(good)
    campaign.snakemake("train_all")
    assert "crpipe tiny: success, 3 of 3 ranges trained" in (campaign.folder / "told").read_text()


def test_a_bad_file_that_is_made_anew_is_taken_without_copying_the_others_again(begun):
    """As its error says: delete manifest and staged table, then the same command again."""
    (folder := begun.folder / "raw" / RANGES[0]).mkdir(parents=True)
    write_parquet(folder / "good.parquet", [3, 0, 50])
    columns, multiplicity, items = make_events([2, 3], seed=1)
    columns["energy_gev"][1] = np.nan
    pq.write_table(nested(columns, multiplicity, items), folder / "bad.parquet")
    config = begun.folder / "config" / "tiny.yaml"
    config.write_text(config.read_text().replace("synthetic://", "raw/{range}/*.parquet\n  copy_local: true"))
    command = f"results/shards/{RANGES[0]}/manifest.json"
    told = begun.snakemake(command, check=False).stdout
    assert "bad.parquet: row 1: energy_gev is nan" in told
    advice = re.search(r"once the file is repaired: (rm \S+ \S+), and run the same command again", told)[1]
    size = (folder / "bad.parquet").stat().st_size
    write_parquet(folder / "bad.parquet", [2, 3], seed=1)
    assert (folder / "bad.parquet").stat().st_size == size
    subprocess.run(advice.split(), cwd=begun.folder, check=True)
    begun.snakemake(command)
    log = begun.results / "logs" / "stage" / f"{RANGES[0]}.log"
    assert "1 of 2 files are here already" in log.read_text()
    ledger = json.loads((begun.results / "ledgers" / f"{RANGES[0]}.json").read_text())
    assert ledger["events"]["listed"] == 5


def test_a_second_workflow_in_the_same_directory_is_refused_by_name(begun):
    begun.change(train={"passes_per_link": 10_000})  # longer than the second one waits for it
    with begun.running() as head:
        deadline = time.monotonic() + 60
        while not (begun.folder / ".snakemake" / "head" / "lease").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        done = begun.snakemake(check=False)
        assert head.poll() is None
    assert done.returncode == 75
    assert f"already being worked on by process {head.pid}" in done.stdout


def with_flock(folder, statement):
    """Return an environment in which the system's flock is another one."""
    body = f"(void)a; (void)b; {statement};"
    (folder / "flock.c").write_text(f"#include <errno.h>\nint flock(int a, int b) {{ {body} }}")
    command = ["cc", "-shared", "-fPIC", "-o", folder / "flock.so", folder / "flock.c"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(folder / "flock.so")}


@pytest.mark.compiler
def test_where_there_are_no_locks_workflow_and_jobs_are_refused_by_name(split, tmp_path):
    """As on Lustre without `-o flock`, for the workflow and for a job that is called alone; one may look."""
    variables = with_flock(tmp_path, "errno = ENOSYS; return -1")
    campaign = Campaign(split.copy(tmp_path / "campaign").folder, variables)
    before = campaign.contents()
    for done in (campaign.snakemake("train_all", check=False), campaign.crpipe("train", RANGES[0])):
        told = f"{done.stdout}{done.stderr or ''}"
        assert done.returncode == 74, told
        assert "has no file locks (Function not implemented): have it mounted with locks" in told
        assert "Traceback" not in told
    assert campaign.contents() == before
    assert campaign.snakemake("--dry-run").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a host name of its own needs root")
@pytest.mark.skipif(not shutil.which("unshare"), reason="apt-get install util-linux")
@pytest.mark.compiler
def test_a_second_workflow_on_another_host_is_refused_where_locks_are_local(begun, tmp_path):
    """Another host name, and a flock that succeeds for everyone: as on a file system with local locks."""
    begun.change(train={"passes_per_link": 10_000})  # longer than the second one waits for it
    local = Campaign(begun.folder, with_flock(tmp_path, "return 0"))
    far = ["unshare", "--uts", "sh", "-c", 'hostname far && exec "$@"', "-", *local.command("")]
    lease = begun.folder / ".snakemake" / "head" / "lease"
    with (
        (tmp_path / "far.log").open("w") as log,
        subprocess.Popen(
            far, cwd=begun.folder, env=environment(local.variables), stdout=log, stderr=log
        ) as head,
    ):
        try:
            assert wait_for(lease.exists, head)
            done = local.snakemake(check=False)
            assert head.poll() is None
        finally:
            for process in [head, *children(head)]:
                kill(process)
    assert done.returncode == 75
    assert f"already being worked on by process {head.pid} on far" in done.stdout
    assert local.snakemake("--dry-run").returncode == 0


def test_another_prefetch_ranges_copies_nothing_again(split, tmp_path):
    """Only the range whose data are gone is staged, though the ranges now wait for others than before."""
    campaign = split.copy(tmp_path / "campaign")
    for place in ("shards", "outliers", "multiplicity"):
        shutil.rmtree(campaign.results / place / RANGES[-1], ignore_errors=True)
    (campaign.results / "ledgers" / f"{RANGES[-1]}.json").unlink()
    jobs = campaign.jobs("train_all --config 'source={prefetch_ranges: 2}'")
    assert (jobs["stage"], jobs["split"], jobs["train"]) == (1, 1, 3)


def test_a_skipped_range_is_left_out_of_the_chain(begun):
    jobs = begun.jobs("--config 'ranges={skip: [0000002-0000003]}'")
    assert (jobs["train"], jobs["stage"], jobs["train_outliers"]) == (2, 2, 1)


def test_a_report_is_made_with_captions_and_categories(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    campaign.snakemake("--report report.html")
    page = (campaign.folder / "report.html").read_text()
    for word in ("Evaluation", "Training", "Data", "are trained on last"):
        assert word in page


def test_the_page_of_a_campaign_shows_quality_jobs_and_versions(finished, tmp_path):
    campaign = finished.copy(tmp_path / "campaign")
    done = campaign.crpipe("report")
    page = (campaign.run / "report.html").read_text()
    assert done.stdout.strip().endswith("runs/tiny/report.html")
    for word in (
        "balanced",
        "Figures of the evaluation",
        "data:image/svg+xml",
        "memory, at most",
        "trained on",
    ):
        assert word in page
    assert f"<td>{RANGES[0]}</td>" in page
    assert "<td>train.passes_per_link</td><td>6</td><td>1</td>" in page.replace("\n", "")


def test_progress_evaluates_every_checkpoint(finished):
    """It does in tests/outside/test_campaigns.py."""
    assert finished.jobs("progress") == {"evaluate": len(RANGES), "progress": 1}


def test_lint_finds_nothing(begun):
    assert "your workflow is in a good condition" in begun.snakemake("--lint").stdout


@pytest.mark.parametrize(
    ("command", "jobs"),
    [
        ("--profile slurm train_all", {"list_range", "stage", "split", "train"}),
        ("outliers_consolidated", {"list_range", "stage", "split"}),
    ],
)
def test_the_commands_of_the_mission_plan_all_hundred_ranges_in_a_clone(begun, command, jobs):
    done = begun.process(BIN / "snakemake", *command.split(), "-n")
    planned = dict(re.findall(r"^(\w+) +(\d+)$", done.stdout, flags=re.MULTILINE))
    assert {name: planned.get(name) for name in jobs} == dict.fromkeys(jobs, "100"), done.stderr
    assert {*planned} == {*jobs, command.split()[-1], "total"}


HOSTILE = "a $(touch executed) & b; `touch executed` 'c' \"d\" > e, (f)"


def test_a_path_is_never_executed_and_nothing_beside_it_is_written(tmp_path):
    """Of the working directory, the results and the runs; through every rule, and the report."""
    campaign = Campaign.begin(tmp_path / HOSTILE / "campaign")
    for name in ("a", "e,", "a.part"):
        (campaign.folder / name).write_text("of someone else")
    beside = {path for path in tmp_path.rglob("*") if path.is_file()}
    campaign.change(ranges={"last": 1}, train={"passes_per_link": 1})
    config = campaign.folder / "config" / "tiny.yaml"
    config.write_text(config.read_text() + yaml.safe_dump({"results": HOSTILE, "runs": f"{HOSTILE}/runs"}))
    campaign.snakemake()
    campaign.snakemake("--report report.html")
    made = campaign.folder / HOSTILE
    assert (made / "outliers" / "consolidated" / "manifest.json").exists()
    assert (made / "runs" / "tiny" / "figures" / "losses.svg").exists()
    for name in ("a", "e,", "a.part"):
        assert (campaign.folder / name).read_text() == "of someone else"
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - beside
    kept = (made, campaign.folder / ".snakemake", campaign.folder / "report.html")
    assert [path for path in new if not any(path.is_relative_to(place) for place in kept)] == []


def test_a_failure_below_such_a_path_is_explained(tmp_path):
    campaign = Campaign.begin(tmp_path / "campaign")
    (folder := campaign.folder / "raw" / RANGES[0]).mkdir(parents=True)
    (folder / "red\x1b[31m.parquet").write_bytes(b"no parquet")
    config = campaign.folder / "config" / "tiny.yaml"
    config.write_text(config.read_text().replace("synthetic://", "raw/{range}/*.parquet"))
    config.write_text(config.read_text() + yaml.safe_dump({"results": HOSTILE}))
    done = campaign.snakemake(shlex.quote(f"{HOSTILE}/ledgers/{RANGES[0]}.json"), check=False)
    told = done.stdout[done.stdout.index("crpipe: the workflow did not finish.") :]
    assert f"{RANGES[0]} (exit 6" in told
    assert "\x1b" not in told


def test_a_path_that_would_be_changed_on_its_way_is_refused_before_any_job(begun):
    begun.change(results="50%")
    done = begun.snakemake("--dry-run", check=False)
    assert done.returncode == 2
    assert "crpipe: results: '50%': " in done.stdout


def test_every_path_in_a_shell_line_is_quoted():
    """The wildcards are digits, `crpipe` is a command, already quoted, `options` are words of crpipe."""
    bare = {"params.crpipe", "params.options", "params.deadline", "wildcards.range", "wildcards.link"}
    for path in (REPOSITORY / "workflow" / "rules").glob("*.smk"):
        for line in re.findall(r'^ +"(exec .*)"$', path.read_text(), re.MULTILINE):
            assert line.endswith(" > {log:q} 2>&1")
            for name, quoted in re.findall(r"{([\w.]+)(:q)?}", line):
                assert quoted or name in bare, line


def test_a_uri_with_a_range_may_be_given_on_the_command_line(begun):
    """Snakemake takes braces in the parameters of a rule for its wildcards."""
    begun.change(ranges={"last": 1})
    begun.crpipe("simulate", RANGES[0], "--out", f"raw/{RANGES[0]}")
    shutil.copy(begun.folder / "config" / "tiny.yaml", begun.folder / "crpipe.yaml")
    words = ["run", "outliers_consolidated", "--set", "source.uri=raw/{range}/*.parquet"]
    done = begun.process(BIN / "crpipe", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (begun.folder / "results" / "outliers" / "consolidated" / "manifest.json").exists()


@pytest.mark.parametrize("name", ["gradients.svg", "multiplicity.pdf", "throughput.csv"])
def test_a_lost_figure_is_made_again(finished, tmp_path, name):
    campaign = finished.copy(tmp_path / "campaign")
    (campaign.run / "figures" / name).unlink()
    assert campaign.jobs("all") == {"figures": 1, "all": 1}


def without_outliers(campaign, words):
    """Plan jobs where no layout has outliers."""
    program = (
        "import sys; from snakemake.cli import main; from crpipe.events.layout import Layout\n"
        "Layout.has_outliers = lambda layout: False\n"
        "sys.exit(main())"
    )
    planned = campaign.command(f"{words} -n --quiet rules")[1:]
    done = campaign.process(sys.executable, "-c", program, *planned)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in (done.stdout + done.stderr).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit() and row[0] != "total"}


def test_events_of_a_fixed_size_need_no_job_for_outliers(begun):
    jobs = without_outliers(begun, "all")
    each = dict.fromkeys(("list_range", "stage", "split", "train"), 3)
    assert jobs == each | dict.fromkeys(("evaluate", "figures", "gallery", "all"), 1)
    data = without_outliers(begun, "outliers_consolidated")
    assert data == dict.fromkeys(("list_range", "stage", "split"), 3) | {"outliers_consolidated": 1}


def test_side_tables_are_staged_once_before_anything_is_split(begun):
    (begun.folder / "geometry.csv").write_text("channel,x_m\n0,1.5\n")
    config = begun.folder / "config" / "tiny.yaml"
    config.write_text(
        config.read_text().replace("source:\n", "source:\n  tables: {geometry: geometry.csv}\n")
    )
    assert begun.jobs("outliers_consolidated")["tables"] == 1
    assert begun.jobs("train_all")["tables"] == 1
    begun.snakemake(f"results/shards/{RANGES[0]}/manifest.json")
    assert begun.jobs(f"results/shards/{RANGES[1]}/manifest.json")["split"] == 1
    assert "tables" not in begun.jobs(f"results/shards/{RANGES[1]}/manifest.json")


def test_the_end_of_a_long_chain_is_planned_where_nothing_holds_staging_back(begun):
    (begun.folder / "config" / "tiny.yaml").write_text("run: long\n")
    jobs = begun.jobs("evaluation --config ranges='{last: 699999}' source='{prefetch_ranges: 1000}'")
    assert jobs["train"] == 700


def commands_of_the_readme():
    text = (REPOSITORY / "README.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = (line.partition("#")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize("line", commands_of_the_readme())
def test_the_readme_shows_commands_that_work(begun, line):
    """Run what looks, and what runs for long as a dry run; the lines with make are what CI itself runs."""
    shutil.copy(begun.folder / "config" / "tiny.yaml", begun.folder / "crpipe.yaml")
    program, *words = line.split()
    if program == "make":
        assert re.search(rf"^{words[0]}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    elif program in ("snakemake", "crpipe"):
        # A dry run of what runs for long; and nobody is here to answer questions.
        more = {
            "run": ["--dry-run"],
            "init": ["trial", "--yes", "--workload", "muons", "--uri", "synthetic://"],
        }
        words += ["--dry-run"] if program == "snakemake" else more.get(words[0], [])
        done = begun.process(BIN / program, *words)
        assert done.returncode == 0, done.stderr
    else:
        assert program in ("source", "tensorboard")


@pytest.mark.parametrize("scheduler", ["greedy", "ilp"])
def test_lower_ranges_come_first_with_either_scheduler(begun, scheduler):
    """Range 1 is staged before range 2, for it is what training waits for."""
    begun.change(ranges={"last": 7}, source={"prefetch_ranges": 8})
    names = [f"{place:07d}-{place + 1:07d}" for place in range(0, 8, 2)]
    targets = " ".join(f"results/staged/{name}.parquet" for name in reversed(names))
    begun.snakemake(f"{targets} --cores 1 --scheduler {scheduler}")
    begun_at = [(row["verb"], row["range"]) for row in begun.journal() if row["what"] == "start"]
    assert begun_at == [(verb, name) for name in names for verb in ("list", "stage")]
