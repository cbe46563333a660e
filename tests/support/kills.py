"""Kills a campaign in every way: its workflow, one job, one worker of a job, or all at once, by any signal.

Moments are drawn from a seed, or chosen: a process that is held before one of its file operations.
"""

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from file_ops import FileOps
from runs import BIN, JOBS_ALONE, children, environment, job_of, kill, verb_of, wait_for
from same_results import LISTINGS, products, same_result

SMALL_FILES = Path(__file__).with_name("small_files")
WHO = ("head", "job", "worker", "group")
HOW = ("KILL", "TERM", "INT", "STOP then KILL", "STOP then CONT")
KINDS = [(who, how) for who in WHO for how in HOW]
VERBS = ("list", "tables", "stage", "split", "consolidate", "train", "evaluate", "figures", "predict")
OFTEN = ("list", "stage", "split", "train")
SPARED, ANY_MOMENT, HALF = 0.3, 0.2, 0.5
MOST = 0.9  # of the CPU seconds of a job
UNSEEN = ("figures", "predict")  # in no journal
RAW = "0000000-0000001"
PREDICT = ("predict", "--checkpoint", "runs/tiny/ranges/outliers.json", "--in")
PREDICT += ("raw/bundles-0000000.parquet", "raw/bundles-0000001.parquet", "--out", "predicted.parquet")


@dataclass(frozen=True)
class Kill:
    """One kill: whom, how, and the verb that was caught; ``at_work``: its journal says that it had begun."""

    who: str
    how: str
    verb: str
    at_work: bool


def cpu_seconds_of(campaign):
    """Find the CPU seconds that each verb needs, from Snakemake's benchmarks of a finished campaign.

    A busy machine needs more time for a job, and no more CPU seconds.
    """
    found = {}
    for path in campaign.folder.rglob("benchmarks/**/*.tsv"):
        names, values = (line.split("\t") for line in path.read_text().splitlines()[:2])
        seconds = float(values[names.index("cpu_time")])
        for name in (path.stem, path.parent.name):
            found[name] = min(seconds, found.get(name, seconds))
    return {verb: found[verb] for verb in VERBS if verb in found}


def disturbed(campaign, **variables):
    """Return a campaign whose splits use two processes."""
    campaign.change(resources={"split": {"cpus": 2}})
    path = os.pathsep.join(filter(None, (str(SMALL_FILES), os.environ.get("PYTHONPATH"))))
    return replace(campaign, variables={**campaign.variables, **variables, "PYTHONPATH": path})


def command_of(*words):
    return [BIN / "crpipe", "--config", "config/config.yaml", "--config", "config/tiny.yaml", *words]


@contextmanager
def head_of(campaign, command):
    """Start a command in a group of its own, and wait for its end; what it leaves behind lives on."""
    with (campaign.folder / "head.log").open("a") as output:
        head = subprocess.Popen(
            ["env", "--default-signal=INT", *command],
            cwd=campaign.folder,
            env=environment(campaign.variables),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield head
        head.wait(900)
    finally:
        if head.poll() is None:
            for process in processes_of(campaign):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            head.wait()


def processes_of(campaign):
    """List the processes whose working directory is that of a campaign."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if is_alive(process) and Path(process.cwd()) == campaign.folder:
                found.append(process)
    return found


def remaining(campaign, seconds=60.0):
    """Wait so long for the end of all processes of a campaign; list those that are left."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(campaign)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [process.cmdline() for process in left]


def is_fatal(who, how):
    """Return whether a job does not end well after this: a head that is asked to stop lets its jobs end."""
    return how != "STOP then CONT" and (who != "head" or "KILL" in how)


def cpu_seconds(process):
    """Return the CPU seconds of a process and its workers so far."""
    with suppress(psutil.Error):
        return sum(sum(each.cpu_times()[:2]) for each in [process, *process.children()])
    return 0.0


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def began(campaign, process):
    """Return whether a process is in a journal, or has written a part: it has imported its libraries."""
    start = f'"what": "start", "host": "{os.uname().nodename}", "pid": {process.pid},'
    paths = (campaign.results / "journal.jsonl", campaign.run / "journal.jsonl")
    return any(start in path.read_text() for path in paths if path.exists())


def strike(how, head, victim, pause_s):
    """Send a signal, or two with a pause between them, to a process, else to the head and its jobs."""
    victims = [victim] if victim is not None else [psutil.Process(head.pid), *children(head)]
    for number, name in enumerate(how.split(" then ")):
        time.sleep(pause_s if number else 0)
        for process in victims:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.send_signal(signal.Signals[f"SIG{name}"])


def victim_of(who, head, job):
    """Find the process to strike, and who it is: a job may have no worker at this moment."""
    if who == "worker":
        workers = [process for process in children(job) if is_worker(process)]
        return ("worker", workers[-1]) if workers else ("job", job)
    return who, {"head": psutil.Process(head.pid), "job": job, "group": None}[who]


def is_worker(process):
    try:
        return "spawn_main" in str(process.cmdline())
    except psutil.Error:
        return False


class Killer:
    """Kills campaigns at the moments that one seed gives.

    left: how often each verb is still to be caught. kills: what happened. cpu: CPU seconds of each verb.
    say: gets a line for each kill.
    """

    def __init__(self, seed, wanted, cpu, say=len):
        self._choice = random.Random(seed)
        self._cpu = cpu
        self._say = say
        self._kinds = []
        self._spared = set()
        self._most = 0
        self.left = Counter(wanted)
        self.kills = []

    def disturb(self, campaign, target, verbs, most=1 << 20):
        """Kill a workflow until each of ``verbs`` was caught as often as it is wanted, or all is done."""
        self._most = most
        while any(self._is_wanted(verb) for verb in verbs):
            with head_of(campaign, campaign.command(f"--cores 2 {target}")) as head:
                while found := wait_for(lambda head=head: self._wanted(head, verbs), head):
                    self._strike(campaign, head, *found)
            # What a head left behind ends by itself; the next head may begin before that.
            if self._choice.random() < HALF:
                assert remaining(campaign) == []
            if head.returncode == 0:
                return

    def disturb_command(self, campaign, verb, words):
        """Kill a command that no workflow runs, as often as its verb is wanted."""
        while self.left[verb] > 0:
            with head_of(campaign, command_of(*words)) as head:
                job = psutil.Process(head.pid)
                self._wait(campaign, job, verb)
                who, how = self._kind([kind for kind in KINDS if kind[0] in ("job", "group")])
                at_work = any(campaign.folder.glob("*.parts"))
                if is_alive(job):
                    strike(how, head, victim_of(who, head, job)[1], 0.3)
                    self._note(who, how, verb, at_work)

    def _wanted(self, head, verbs):
        """Find the shortest job; of verbs that come again some are spared, so that later ones come."""
        jobs = [(process, verb_of(process)) for process in children(head)]
        jobs = [(process, verb) for process, verb in jobs if verb in verbs and self._is_wanted(verb)]
        for process, verb in sorted(jobs, key=lambda job: self._cpu[job[1]]):
            if process.pid not in self._spared:
                if verb not in OFTEN or self._choice.random() >= SPARED:
                    return process, verb
                self._spared.add(process.pid)
        return None

    def _is_wanted(self, verb):
        return self.left[verb] > 0 and len(self.kills) < self._most

    def _strike(self, campaign, head, job, verb):
        """Strike at a moment in the life of a job, unless it ends before."""
        self._wait(campaign, job, verb)
        kinds = [kind for kind in KINDS if kind[0] != "worker" or verb == "split"]
        if verb not in OFTEN and self.left[verb] > 1:  # one that ends well does not come again
            kinds = [kind for kind in kinds if is_fatal(*kind)]
        who, how = self._kind(kinds)
        at_work = began(campaign, job)
        if is_alive(job):
            who, victim = victim_of(who, head, job)
            strike(how, head, victim, self._choice.uniform(0.2, 1.0))
            self._note(who, how, verb, at_work)
            self._spared.add(job.pid)  # no process counts twice

    def _wait(self, campaign, job, verb):
        """Wait for a moment in the life of a job: mostly one in its work, if a journal shows that."""
        begun = 0.0
        if verb not in UNSEEN and self._choice.random() >= ANY_MOMENT:
            while is_alive(job) and not began(campaign, job):
                time.sleep(0.02)
            begun = cpu_seconds(job)
        share = self._choice.uniform(0, MOST)
        while is_alive(job) and cpu_seconds(job) < begun + share * (self._cpu[verb] - begun):
            time.sleep(0.02)

    def _kind(self, kinds):
        """Take the next kind that fits, so that all of them occur about equally often."""
        while not any(kind in kinds for kind in self._kinds):
            self._kinds += self._choice.sample(KINDS, len(KINDS))
        found = next(kind for kind in self._kinds if kind in kinds)
        self._kinds.remove(found)
        return found

    def _note(self, who, how, verb, at_work):
        self.left[verb] -= 1
        self.kills.append(Kill(who, how, verb, at_work))
        self._say(f"{len(self.kills)}: {verb}: {who}: {how}{' at work' if at_work else ''}")


class Holder:
    """Holds the first process of a verb that is about to touch a file of its work: it is really at work.

    which: of its operations on files whose path holds ``place``. worker: hold a worker of the verb's job.
    """

    def __init__(self, verb, place, which, *, worker=False):
        self._wanted, self._place, self._left = (verb, worker), place, which
        self._known = {}
        self.held = threading.Event()
        self.process = None

    def before(self, operation):
        """Hold the process of an operation, or let it go on."""
        if operation.pid not in self._known:
            process = psutil.Process(operation.pid)
            worker = is_worker(process)
            self._known[operation.pid] = verb_of(process.parent() if worker else process), worker
        if self._known[operation.pid] != self._wanted or self._place not in str(operation.path):
            return False
        self._left -= 1
        if self._left == 0:
            self.process = psutil.Process(operation.pid)
            self.held.set()
        return self._left == 0


def aimed(campaign, command, verb, place, which, kind, folder):
    """Run a command until a process is held at its work, and kill by ``kind``: (who, how)."""
    who, how = kind
    holder = Holder(verb, place, which, worker=who == "worker")
    with FileOps(folder, holder.before) as files:
        watched = replace(campaign, variables={**campaign.variables, **files.variables})
        with head_of(watched, command) as head:
            assert wait_for(lambda: holder.held.wait(0.01), head), (campaign.folder / "head.log").read_text()
            assert is_alive(holder.process)
            victim = victim_of(who, head, holder.process)[1] if who != "worker" else holder.process
            strike(how, head, victim, 0.3)
            files.release()
        assert remaining(campaign) == []


def check_killed_in_training(finished, folder):
    """Kill the first training of a copy while it writes its second snapshot; it ends in the same bytes."""
    campaign = finished.untrained(folder / "campaign")
    aimed(campaign, campaign.command(JOBS_ALONE), "train", "/.snapshot-", 2, ("job", "KILL"), folder)
    assert list(campaign.run.glob("store/*/snapshot-*.pt"))
    assert not [path for path in campaign.run.glob("ranges/*.json") if ".best" not in path.name]
    campaign.snakemake("train_all")
    ours, theirs = campaign.checkpoints(), finished.checkpoints()
    assert len(ours) > 1
    assert ours == {link: theirs[link] for link in ours}


def caught_after(process, seconds):
    """Stop a process where it stands after some time; return whether it was still alive."""
    with suppress(psutil.TimeoutExpired):
        process.wait(seconds)
    try:
        process.suspend()
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_kills_change_nothing(begun, finished, folder, kills, seed):
    """Kill a copy of a campaign that has begun; its files must be those of the one that nobody killed."""
    campaign = begun.copy(folder)
    killed = kill_at_random(campaign, JOBS_ALONE, kills, random.Random(seed))
    assert killed.total() == sum(kills.values())
    assert set(killed) == {"head", "job"}
    campaign.snakemake("all")
    assert products(campaign, without=LISTINGS) == products(finished, without=LISTINGS)


def kill_at_random(campaign, words, kills, choice):
    """Kill jobs of each verb as often as ``kills`` says, or the workflow; count what was killed.

    One job at a time must run (``--cores 1``): none is born and done while another one is watched.
    """
    left, killed = Counter(kills), Counter()
    while left.total():
        with campaign.running(words) as head:
            while job := wait_for(lambda head=head: job_of(head, +left), head):
                verb = verb_of(job)
                left[verb] -= 1
                caught = caught_after(job, choice.uniform(0, 2.5 if verb == "train" else 0.8))
                # A job that got away is done: then the workflow dies, before it starts the next one.
                victim = choice.choice([head, job]) if caught else head
                kill(victim)
                kill(job)
                killed["head" if victim is head else "job"] += 1
                if victim is head:
                    break
            head.wait()
        assert head.returncode or not left.total(), f"the campaign ended, and these never ran: {+left}"
    return killed


def check_nothing_was_lost(campaign, finished):
    """Run the same command again, undisturbed: all is as in a campaign that nobody killed."""
    campaign.snakemake("--cores 2")
    assert remaining(campaign) == []
    same_result(campaign, finished)
    assert list(campaign.folder.glob(".snakemake/locks/*")) == []
    assert campaign.jobs("all") == {}
    checked = campaign.crpipe("check")
    assert (checked.returncode, checked.stdout.splitlines()[-1:]) == (0, ["nothing is wrong"])
    campaign.snakemake("--report report.html")


def table(kills):
    """Count kills by kind and verb, as docs/reliability.md shows them."""
    verbs = [verb for verb in VERBS if any(kill.verb == verb for kill in kills)]
    counts = Counter((kill.who, kill.how, kill.verb) for kill in kills)
    rows = [[f"{who}: {how}", *(counts[who, how, verb] or "" for verb in verbs)] for who, how in KINDS]
    rows = [[*row, sum(cell or 0 for cell in row[1:])] for row in rows if any(row[1:])]
    rows.append(["all", *(sum(kill.verb == verb for kill in kills) for verb in verbs), len(kills)])
    at_work = [sum(kill.verb == verb and kill.at_work for kill in kills) for verb in verbs]
    rows.append(["of these at work", *at_work, sum(at_work)])
    lines = [f"| {' | '.join(map(str, row))} |" for row in [["", *verbs, "all"], *rows]]
    return "\n".join([lines[0], "|---" * (len(verbs) + 2) + "|", *lines[1:]])
