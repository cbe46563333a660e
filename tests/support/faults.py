"""Lets one file operation of a verb fail once, then runs the verb again.

python faults.py FOLDER SEED CASES SHARE OF, with faults.so preloaded; FAULT_VERBS=split,train: only these,
and FAULT_ERRNO=ENOENT,EIO: only with these.

The libraries are imported once; each verb runs in a fork, in which faults.c counts the operations below the
campaign's folder or lets one of them fail. Each line of the output is a JSON object: of a verb, or of a case.
"""

import contextlib
import ctypes
import errno
import importlib
import json
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crpipe.core.causes import MEANINGS
from fault_campaign import ALWAYS, FIRST, ONCE, SECOND, STEPS, WEIGHTS, write_settings

SOURCE = Path(__file__).with_suffix(".c")
LIMIT_S = 600
_GONE = {"ENOENT"}  # of a name: another host's file is seen late, or the server's answer was lost
_ANY = {"EIO", "ESTALE", "ETIMEDOUT", "EACCES", "ENOMEM"}
_FULL = {"ENOSPC", "EDQUOT"}
FAULTS = {
    "open": _ANY | {"EMFILE", "ENFILE", "EINTR"} | _GONE,
    "create": _ANY | _FULL | {"EMFILE", "EROFS", "EINTR"},
    "read": {"EIO", "ESTALE", "ETIMEDOUT", "EINTR", "ENOMEM"},
    "write": _FULL | {"EIO", "ESTALE", "EROFS", "EINTR"},
    "close": _FULL | {"EIO"},
    "closeread": {"EIO"},
    "fsync": _FULL | {"EIO", "ESTALE"},
    "fsyncdir": {"EIO", "EINVAL", "ESTALE"},
    "rename": _FULL | {"EIO", "ESTALE", "EACCES", "EROFS"} | _GONE,
    "link": _FULL | {"EIO", "EPERM", "EMLINK", "EOPNOTSUPP", "EEXIST"},
    "unlink": {"EIO", "ESTALE", "EACCES", "EROFS", "EBUSY"} | _GONE,
    "mkdir": _FULL | {"EIO", "EACCES", "EROFS", "EEXIST"},
    "rmdir": {"EIO", "ESTALE", "EACCES", "ENOTEMPTY", "EBUSY"} | _GONE,
    "stat": {"EIO", "ESTALE", "EACCES", "ETIMEDOUT", "ENOMEM"} | _GONE,
    "fstat": {"EIO", "ESTALE", "ENOMEM"},
    "opendir": _ANY | {"EMFILE"},
    "readdir": {"EIO", "ESTALE"},
    "truncate": _FULL | {"EIO"},
    "lock": {"ENOLCK", "EIO", "EINTR"},
    "mmap": {"ENOMEM", "ENODEV"},
    "sendfile": _FULL | {"EIO", "EINVAL"},
    "utime": {"EIO", "EROFS", "EACCES", "EPERM"},
    "chmod": {"EIO", "EROFS", "EPERM"},
    "statvfs": {"EIO", "ESTALE", "ENOSYS"},
}
WORDS = ("Traceback", "damaged", "truncated", "rm ")
ENDS = {"doctor": {78}}  # a finding of its own
NUMBERS = frozenset(filter(None, os.environ.get("FAULT_ERRNO", "").split(",")))
ONLY = frozenset(filter(None, os.environ.get("FAULT_VERBS", "").split(",")))
# Exit codes: try again; a person has to change something.
LATER, PERSON = {66, 74, 75}, 77
# Written by every attempt, or temporary, or dated.
PASSING = (
    ".sync.json",
    "journal.jsonl",
    ".proofs.jsonl",
    "metrics.jsonl",
    "lease",
    "report.html",
    "status.html",
)


@dataclass
class Case:
    """One fault: the step, the operation, which time it occurs, the errno; and what was wrong then."""

    verb: str
    operation: str
    nth: int
    errno: str
    code: int = 0
    fired: bool = False
    wrong: list[str] = field(default_factory=list)
    output: str = ""


def build(folder):
    """Compile the library; return its path."""
    library = folder / "faults.so"
    subprocess.run(
        ["cc", "-O1", "-w", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"], check=True
    )
    return library


def import_everything():
    """Import what any verb would."""
    for name in ("torch", "matplotlib.pyplot", "h5py", "uproot", "tensorboard", "onnx", "pyarrow.dataset"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import crpipe

    for module in pkgutil.walk_packages(crpipe.__path__, "crpipe."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


class Verbs:
    """Runs verbs in forks, in one folder."""

    def __init__(self, folder):
        self.folder, self.own = folder / "campaign", folder / "own"
        self.own.mkdir(parents=True)
        self._faults = ctypes.CDLL(None)

    def run(self, words, operation="", nth=0, number=0):
        """Run a verb; give exit code, output, whether the fault struck, and the counts of its operations."""
        sys.stdout.flush()
        child = os.fork()
        if not child:
            self._be(words, operation, nth, number)
        ended = time.monotonic() + LIMIT_S
        while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > ended:
                os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)
                break
            time.sleep(0.005)
        output = (self.own / "output").read_text(errors="replace")
        code = os.waitstatus_to_exitcode(status[1])
        fired = (self.own / "fired").exists()
        return code, output, fired

    def counts(self):
        """Read the counts of the last run."""
        rows = (self.own / "counts").read_text().splitlines()
        return {name: int(count) for count, name in (row.split(" ", 1) for row in rows)}

    def _be(self, words, operation, nth, number):
        """Be the verb, in the fork."""
        code = 99
        try:
            for name in ("fired", "counts"):
                (self.own / name).unlink(missing_ok=True)
            handle = os.open(self.own / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            os.chdir(self.folder)
            self._faults.faults_begin(os.fsencode(self.folder), operation.encode(), nth, number)
            code = _main(words)
            sys.stdout.flush()
            fired = self._faults.faults_fired()
            self._faults.faults_end(os.fsencode(self.own / "counts"))
            if fired:
                (self.own / "fired").touch()
        finally:
            os._exit(code)


def _main(words):
    from crpipe.__main__ import main

    sys.argv = ["crpipe", *words]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - what Python itself would do
        traceback.print_exc()
        return 1
    return 0


def everything(folder):
    """Read every file of a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def tree(folder):
    """Read every file of a folder that is promised to be the same again."""
    return {name: content for name, content in everything(folder).items() if not passes(name)}


def passes(name):
    """Whether a file is one of an attempt: no two attempts leave the same."""
    last = name.rpartition("/")[2]
    mark = name.startswith("copy/") and last.startswith("copy-")  # the random name of a second copy
    return mark or last in PASSING or last.endswith((".log", ".part")) or "/tensorboard/" in name


def put(source, target):
    """Make a copy with its times take the place of a folder; raw files there stay the same inodes."""
    kept = {"raw"} if (target / "raw").exists() else set()
    for each in target.iterdir() if target.exists() else ():
        if each.name not in kept:
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    names = lambda folder, _: kept if Path(folder) == source else set()  # noqa: E731
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=names)


@dataclass
class Step:
    """A verb as it runs undisturbed."""

    name: str
    words: tuple[str, ...]
    state: Path
    code: int
    before: dict[str, bytes]
    after: dict[str, bytes]
    counts: dict[str, int]


class Campaign:
    """One tiny campaign, prepared once: the state before each verb, and what the verb leaves."""

    def __init__(self, folder):
        self.verbs = Verbs(folder)
        self.steps = []
        self._at = None
        place = self.verbs.folder
        write_settings(place)
        for name in (FIRST, SECOND):
            done = self.verbs.run(("--config", "simulated.yaml", "simulate", name, "--out", f"raw/{name}"))
            assert done[0] == 0, done[1]
        last = max(number for number, (name, _) in enumerate(STEPS) if name in (ONLY or dict(STEPS)))
        for number, (name, words) in enumerate(STEPS[: last + 1]):
            self._prepare(name, words, folder / f"state-{number:02d}")

    def _prepare(self, name, words, state):
        place = self.verbs.folder
        put(place, state)
        begun = time.monotonic()
        code, output, _ = self.verbs.run(words)
        after = tree(place)
        if name == "-":
            assert code == 0, output
            return
        counts = self.verbs.counts()
        step = Step(name, words, state, code, tree(state), after, counts)
        self.steps.append(step)
        row = {"step": name, "code": code, "seconds": round(time.monotonic() - begun, 2)}
        report(row | {"counts": counts, "output": output[-300:] if code else ""})

    def cases(self, seed, count):
        """Choose cases: ALWAYS, each verb once, then by weight, each kind as often; all if ``count`` is 0."""
        every = {
            step.name: {
                kind: [
                    Case(step.name, operation, nth, name)
                    for operation, times in sorted(step.counts.items())
                    if operation.split(" ", 1)[0] == kind
                    for nth in range(1, times + 1)
                    for name in sorted(FAULTS[kind] & (NUMBERS or FAULTS[kind]))
                ]
                for kind in sorted({operation.split(" ", 1)[0] for operation in step.counts})
            }
            for step in self.steps
            if step.name in ONLY or not ONLY
        }
        every = {name: {kind: one for kind, one in kinds.items() if one} for name, kinds in every.items()}
        if not count:
            return [case for kinds in every.values() for cases in kinds.values() for case in cases]
        choice = random.Random(seed)
        names = sorted(name for name in every if every[name])
        weights = [WEIGHTS.get(name, 10) for name in names]
        fixed = [case for each in ALWAYS if each[0] in every for case in _always(every[each[0]], *each[1:])]
        more = [*names, *choice.choices(names, weights, k=count)]  # each once, then by chance
        chosen = [choice.choice(every[name][choice.choice(sorted(every[name]))]) for name in more]
        # Beside each other, cases of one verb that change nothing share its folder.
        return sorted([*fixed, *chosen][:count], key=lambda case: case.verb)

    def judge(self, case):
        """Run a case; write down what was wrong."""
        step = next(step for step in self.steps if step.name == case.verb)
        place, wrong = self.verbs.folder, case.wrong
        if self._at != step.name:
            put(step.state, place)
        untouched, self._at = everything(place), None
        number = getattr(errno, case.errno)
        case.code, case.output, case.fired = self.verbs.run(step.words, case.operation, case.nth, number)
        wrong += [f"says {word!r}" for word in WORDS if word in case.output]
        may_end = {step.code, *LATER, *ENDS.get(step.name, ())}
        may_end |= {PERSON} if MEANINGS[number].when == "person" else set()
        if case.code not in may_end:
            wrong.append(f"exit code {case.code}")
        if everything(place) == untouched:
            self._at = step.name  # again is what it was at first, and the folder can be used again
            return
        now = tree(place)
        for name, content in step.before.items():
            wanted = step.after.get(name)
            if now.get(name) not in (content, wanted):
                wrong.append(f"{'changed' if name in now else 'lost'}: {name}")
        if case.code == step.code and step.name in ONCE:
            return
        code, output, _ = self.verbs.run(step.words)
        if code != step.code:
            wrong.append(f"the same command again: exit code {code}: {output[-600:]}")
            return
        now = tree(place)
        for name in sorted({*now, *step.after}):
            if now.get(name) != step.after.get(name):
                what = "missing" if name not in now else "differs" if name in step.after else "left over"
                wrong.append(f"after the same command again {what}: {name}")


def _always(kinds, kind, end, nth, name):
    """Return the first case of a kind, end of path, time and errno."""
    cases = [case for case in kinds.get(kind, ()) if (case.nth, case.errno) == (nth, name)]
    return [case for case in cases if case.operation.endswith(end)][:1]


def report(row):
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def main():
    folder, seed, count, share, of = Path(sys.argv[1]), *map(int, sys.argv[2:6])
    os.environ.pop("LD_PRELOAD", None)
    os.environ.pop("CRPIPE_CONFIG", None)
    import_everything()
    campaign = Campaign(folder)
    for case in campaign.cases(seed, count)[share::of]:
        begun = time.monotonic()
        campaign.judge(case)
        case.output = case.output[-3000:] if case.wrong else ""
        report({"case": asdict(case), "seconds": round(time.monotonic() - begun, 2)})


if __name__ == "__main__":
    main()
