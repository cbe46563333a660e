"""Runs many cases in one process, so that imports are paid once.

Use: ``python -m fuzz.child SEED TARGET:FIRST:LAST …``; a folder ``found/TARGET/CASE`` is read again.

A JSON line before and after each case: a case without its second line killed the process, or hung in it.
"""

import gc
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from crpipe.core.errors import CrpipeError
from fuzz.mutations import seeded
from fuzz.targets import TARGETS

LIMIT_S = 15  # of one case
MEMORY = 2 << 30  # more than the process has when the first case begins


class TooLong(BaseException):
    """A case took longer than it may."""


def stop(*_):
    raise TooLong


def change(target, seed, number, folder):
    """Choose and change a file of a case: its name and its new content."""
    rng = seeded(seed, target.name, number)
    victim = rng.choice(sorted(target.victims))
    good = (folder / victim).read_bytes()
    return victim, rng.choice(target.victims[victim])(good, rng)


def outcome(target, folder, expected):
    """Read what is in a folder; give the kind of the outcome and its text. ``failed`` is a finding."""
    signal.alarm(LIMIT_S)
    try:
        found = target.read(folder)
    except CrpipeError as error:
        if error.exit_code not in target.codes:
            return "failed", f"{type(error).__name__} has exit code {error.exit_code}: {error}"
        return "refused", f"{type(error).__name__}: {error}"
    except TooLong:
        return "failed", f"more than {LIMIT_S} s"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
        place = traceback.extract_tb(error.__traceback__)[-1]
        own = [each for each in traceback.extract_tb(error.__traceback__) if "crpipe" in each.filename]
        where = own[-1] if own else place
        text = " ".join(str(error).split())[:300]
        return "failed", f"{type(error).__name__}: {text} ({where.filename}, line {where.lineno})"
    finally:
        signal.alarm(0)
    if repr(found) == repr(expected):
        return "same", ""
    return ("failed", "another result, though a checksum covers it") if target.checked else ("changed", "")


def prepared(target, folder):
    """Write good files, and read them; give what they hold."""
    target.make(folder)
    return target.read(folder)


def limit_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main(seed, tasks):
    signal.signal(signal.SIGALRM, stop)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=ResourceWarning)
    limit_memory()
    for task in tasks:
        if Path(task).is_dir():
            replay(Path(task))
        else:
            name, first, last = task.split(":")
            run_cases(seed, TARGETS[name], range(int(first), int(last)))


def replay(found):
    """Read again what was found once."""
    target = TARGETS[found.parent.name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        expected = prepared(target, folder)
        for path in found.iterdir():
            (folder / path.name.replace("@", "/")).write_bytes(path.read_bytes())
        say(target=target.name, case=found.name)
        kind, text = outcome(target, folder, expected)
        say(kind=kind, text=text)


def run_cases(seed, target, numbers):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        expected = prepared(target, folder)
        for number in numbers:
            victim, content = change(target, seed, number, folder)
            say(target=target.name, case=number, victim=victim)
            good = (folder / victim).read_bytes()
            (folder / victim).write_bytes(content)
            begun = time.monotonic()
            kind, text = outcome(target, folder, expected)
            (folder / victim).write_bytes(good)
            took = round(time.monotonic() - begun, 3)
            say(kind=kind, text=text, s=took)
            if number % 50 == 0:
                gc.collect()


def say(**row):
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
