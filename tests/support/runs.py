"""A campaign of its own, run through the real Snakemake as a user would."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TINY = REPOSITORY / "tests" / "integration" / "tiny.yaml"
RANGES = ("0000000-0000001", "0000002-0000003", "0000004-0000005")
LINKS = (*RANGES, "outliers")
JOBS_ALONE = "all --until all --cores 1"  # one after the other, not by one process before them


@dataclass(frozen=True)
class Campaign:
    """A working directory as a fresh clone has it, with tiny.yaml as the configuration of the user.

    ``variables`` are added to the environment of every command.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, folder):
        folder.mkdir(parents=True)
        for name in ("Snakefile", "workflow", "profiles", "slurm"):
            (folder / name).symlink_to(REPOSITORY / name)
        (folder / "config").mkdir()
        shutil.copy(REPOSITORY / "config" / "config.yaml", folder / "config")
        shutil.copy(TINY, folder / "config" / "tiny.yaml")
        return cls(folder)

    def copy(self, folder, **variables):
        """Copy with times and links, so that Snakemake sees the same campaign."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Campaign(folder, variables)

    @property
    def results(self):
        return self.folder / "results"

    @property
    def run(self):
        return self.folder / "runs" / "tiny"

    def command(self, words):
        return [BIN / "snakemake", *shlex.split(words), "--configfile", "config/tiny.yaml"]

    def snakemake(self, words="", *, check=True):
        """Run to the end; return the finished process with its output in ``stdout``."""
        done = subprocess.run(
            self.command(words),
            cwd=self.folder,
            env=environment(self.variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout
        return done

    def run_command(self, words):
        """Return the same command with `crpipe run`."""
        return [BIN / "crpipe", "run", *shlex.split(words), "--config", "config/tiny.yaml"]

    @contextmanager
    def running(self, words="", program="snakemake"):
        """Start, and leave no process behind; program: snakemake, or crpipe for `crpipe run`."""
        # In the background of a script Ctrl-C is ignored, and so would be every head that a test starts.
        command = (self.command if program == "snakemake" else self.run_command)(words)
        command = ["env", "--default-signal=INT", *command]
        with (self.folder / "head.log").open("w") as output:
            head = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment(self.variables),
                stdout=output,
                stderr=output,
            )
        try:
            yield head
        finally:
            for process in [head, *children(head)]:
                kill(process)
            head.wait()

    def crpipe(self, *words):
        files = ("--config", "config/config.yaml", "--config", "config/tiny.yaml")
        return self.process(BIN / "crpipe", *files, *words)

    def say(self, *words):
        """Return what a crpipe command prints; it has to succeed."""
        done = self.crpipe(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def process(self, *words, **variables):
        """Run any command in the folder, with more variables; return the finished process."""
        return subprocess.run(
            words,
            cwd=self.folder,
            env=environment(self.variables | variables),
            capture_output=True,
            text=True,
            check=False,
        )

    def change(self, **sections):
        """Set keys of the user's configuration, section by section, or one that has no section."""
        path = self.folder / "config" / "tiny.yaml"
        tree = yaml.safe_load(path.read_text())
        for section, keys in sections.items():
            if not isinstance(keys, dict):
                tree[section] = keys
                continue
            before = tree.get(section, {})
            tree[section] = {**before, **keys}
            if "schedule" in keys:
                tree[section]["schedule"] = {**before.get("schedule", {}), **keys["schedule"]}
        path.write_text(yaml.safe_dump(tree, sort_keys=False))

    def in_one_process(self, *words):
        """Make what the jobs of a target make (test_ahead.py), without a process for each: ``crpipe ahead``.

        words: options, and the target.
        """
        *options, target = words
        for _ in range(9):  # a busy machine may need more than the minute that one call takes
            done = self.crpipe(*options, "ahead", target)
            assert done.returncode == 0, done.stderr
            if "done in one process" in done.stderr:
                return
        raise AssertionError(done.stderr)

    def receipts(self, links=LINKS):
        return {link: json.loads((self.run / "ranges" / f"{link}.json").read_text()) for link in links}

    def journal(self):
        """Read all rows of both journals in the order of time."""
        paths = (self.results / "journal.jsonl", self.run / "journal.jsonl")
        lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
        return sorted(map(json.loads, lines), key=lambda row: row["time"])

    def times(self, what, verb):
        """Return when each range was started with (or finished by) a verb, the last time."""
        rows = [row for row in self.journal() if (row["what"], row.get("verb")) == (what, verb)]
        return {row["range"]: row["time"] for row in rows}

    def jobs(self, words):
        """Count the jobs of each rule that a dry run would start."""
        lines = self.snakemake(f"{words} -n --quiet rules").stdout.splitlines()
        rows = [line.split() for line in lines]
        return {
            row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit() and row[0] != "total"
        }

    def checkpoints(self):
        """Read the bytes of every link's checkpoint."""
        return {path.parent.name: path.read_bytes() for path in self.run.glob("store/*/checkpoint-*.pt")}

    def contents(self):
        """Read every file of the campaign that is not about the attempt itself."""
        passing = ("logs", "benchmarks", "tensorboard", ".claim")
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for root in (self.results, self.run)
            for path in root.rglob("*")
            if path.is_file()
            and path.name not in ("journal.jsonl", "lease", "report.html")
            and not {*path.parts} & {*passing}
        }


def follow(blocks, folder):
    """Write the files of a page and run its commands, in their order.

    blocks: (kind, text); the first line of a file is a comment with its name.
    """
    for kind, block in blocks:
        if kind == "bash":
            done = bash(block, folder)
            assert done.returncode == 0, f"{block}\n{done.stdout}"
        else:
            (folder / re.match(r"# (\S+)\n", block)[1]).write_text(block)


def bash(block, folder, **variables):
    """Run the commands of a page as they are written; return the process, its output in ``stdout``."""
    places = os.pathsep.join(map(str, (BIN, "/usr/bin", "/bin")))
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=folder,
        env=environment({"PATH": places, **variables}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def environment(more):
    """Return the environment of a person's shell, also below `make`, whose demo prints the summary itself."""
    plain = {name: value for name, value in os.environ.items() if name != "MAKELEVEL"}
    return {**plain, "OMP_NUM_THREADS": "1", "PATH": os.pathsep.join(["/usr/bin", "/bin"]), **more}


def children(process):
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def verb_of(process):
    """Name the crpipe verb that a process executes, or nothing."""
    verbs = (
        "ahead",
        "list",
        "tables",
        "stage",
        "convert",
        "split",
        "consolidate",
        "train",
        "evaluate",
        "figures",
        "predict",
    )
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    if not any(word.endswith("/crpipe") for word in words[:2]):
        return ""
    return next((word for word in words if word in verbs), "")


def kill(process):
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        process.send_signal(signal.SIGKILL)


def flipped(data, place):
    """Turn over one bit of bytes."""
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def wait_for(condition, head, seconds=500.0):
    """Wait until ``condition()`` gives something, or the workflow is over."""
    deadline = time.monotonic() + seconds
    while head.poll() is None and time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    return None


def job_of(head, verbs):
    """Find a running job of one of several verbs."""
    return next((process for process in children(head) if verb_of(process) in verbs), None)
