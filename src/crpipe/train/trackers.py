"""W&B and MLflow as loggers, by one word: ``train.loggers: [wandb]`` or ``[mlflow]``.

The client of such a tool runs in a process of its own: its threads, exit handlers and waits end with that
process. In: one JSON line on the run, then one for each row. Out: TOOL.log in the run's folder; exit code 1,
with the reason in its last line.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, cast
from uuid import uuid4

from crpipe.config.plugins import find_class
from crpipe.core.errors import MissingExtra, PluginError
from crpipe.core.files import atomic_write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

KEY = "train.loggers"
END_S = 50.0  # for what is left, after the last row; less than a job waits for its loggers


class Tracker:
    """A logger that passes everything to the client of a tool, in a process of its own; run: a LoggedRun."""

    def __init__(self, tool: str, run: Any) -> None:
        self._tool, self._log = tool, Path(run.folder, f"{tool}.log")
        words = [sys.executable, "-m", __name__, tool, str(END_S)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(  # noqa: S603 - Python itself
                words, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True
            )
        self._rows = cast("IO[str]", self._process.stdin)
        self._send([run.run, dict(run.keys), str(run.folder.resolve())])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass a row on; raise PluginError when the client has ended."""
        self._send([step, dict(metrics)])

    def close(self) -> None:
        """Wait until the client has sent what is left, or has given up; raise PluginError for that."""
        with contextlib.suppress(BrokenPipeError):
            self._rows.close()
        if self._process.wait():
            self._refuse()

    def _send(self, content: Any) -> None:
        try:
            self._rows.write(json.dumps(content, default=str) + "\n")
            self._rows.flush()
        except BrokenPipeError:
            self._refuse()

    def _refuse(self) -> None:
        code = self._process.wait()
        *_, last = ["", *self._log.read_text(errors="replace").splitlines()]
        reason = last if code == 1 else f"exit code {code}"
        raise PluginError(f"train.loggers: {self._tool} ended early: {reason}; more in {self._log}")


def included_logger(name: str) -> Callable[[Any], Tracker] | None:
    """Return the logger of a tool that crpipe knows, else None; raise MissingExtra without its package."""
    if name not in _CLIENTS:
        return None
    for module in _NEEDED[name]:
        # A folder of that name, as W&B makes one, can be imported, too; it has no file.
        if getattr(find_spec(module), "origin", None) is None:
            raise MissingExtra(
                f"train.loggers: {name} needs {module}, which is not installed; install it with "
                f"pip install 'crpipe[{name}]'"
            )
    return partial(Tracker, name)


def find_loggers(names: Sequence[str]) -> dict[str, Callable[[Any], Any]]:
    """Import the classes of Loggers that train.loggers names; raise ConfigError or MissingExtra."""
    return {name: included_logger(name) or find_class(KEY, name) for name in names}


@contextlib.contextmanager
def _wandb(run: str, keys: Mapping[str, Any], folder: Path) -> Iterator[Callable[..., None]]:
    import wandb  # noqa: PLC0415

    mode: Any = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
    # W&B itself leaves out the steps that it has.
    with wandb.init(
        id=_remembered(folder / "wandb.id", lambda: uuid4().hex),
        resume="allow",
        mode=mode,
        project=os.environ.get("WANDB_PROJECT", "crpipe"),
        name=run,
        config=dict(keys),
        dir=os.environ.get("WANDB_DIR", folder),
        settings=wandb.Settings(console="off"),
    ) as active:

        def log(step: int, metrics: Mapping[str, float]) -> None:
            if not shutil.disk_usage(active.dir).free:  # W&B does not say so
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), active.dir)
            active.log(dict(metrics), step=step)

        yield log


@contextlib.contextmanager
def _mlflow(run: str, keys: Mapping[str, Any], folder: Path) -> Iterator[Callable[..., None]]:
    import mlflow  # noqa: PLC0415

    if "MLFLOW_TRACKING_URI" not in os.environ:
        store = folder / "mlflow.db"
        if not store.exists():  # one that is half made is of no use
            with atomic_write(store) as part:
                mlflow.MlflowClient(f"sqlite:///{part}").search_experiments()
        mlflow.set_tracking_uri(f"sqlite:///{store}")

    def create() -> str:
        experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "crpipe"))
        return str(mlflow.MlflowClient().create_run(experiment.experiment_id, run_name=run).info.run_id)

    with mlflow.start_run(run_id=_remembered(folder / "mlflow.id", create)) as active:
        mlflow.log_params(dict(keys))
        last = {metric.key: metric.step for metric in active.data.to_proto().metrics}

        def log(step: int, metrics: Mapping[str, float]) -> None:
            legal = {re.sub(r"[^\w./ -]", "_", name): value for name, value in metrics.items()}
            new = {name: value for name, value in legal.items() if step > last.get(name, -1)}
            mlflow.log_metrics(new, step=step)

        yield log


_CLIENTS = {"wandb": _wandb, "mlflow": _mlflow}
_NEEDED = {"wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


def _remembered(path: Path, make: Callable[[], str]) -> str:
    """Return the name that the run has in the tool; make and write it first where there is none."""
    if not path.exists():
        name = make()  # outside of the block, which blames the disk
        with atomic_write(path) as part:
            part.write_text(name)
    return path.read_text()


def _read(rows: SimpleQueue[Any], end_s: float) -> None:
    """Queue the lines of standard input, then None; end a client that takes longer than ``end_s`` then."""
    with contextlib.suppress(ValueError):  # a killed training may leave half a line
        for line in sys.stdin:
            rows.put(json.loads(line))
    rows.put(None)
    time.sleep(end_s)
    _end(f"no answer within {end_s:g} s of the last row: not everything was sent")


def _fail(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    """Print what the client raised, and end."""
    traceback.print_exception(error, file=sys.stdout)
    _end(f"{type(error).__name__}: {' '.join(str(error).split())}")


def _end(reason: str) -> None:
    sys.stdout.write(f"{reason}\n")
    sys.stdout.flush()
    os._exit(1)  # handlers of the client would wait once more


def main(tool: str, end_s: str) -> None:
    """Pass the rows of standard input to the client of a tool, which has ``end_s`` after the last one."""
    sys.excepthook = _fail
    rows: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read, args=[rows, float(end_s)], daemon=True).start()
    run, keys, folder = rows.get()
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(sys.stdout, fcntl.LOCK_EX)  # the client of a killed job may still send its last rows
    with _CLIENTS[tool](run, keys, Path(folder)) as log:
        while (row := rows.get()) is not None:
            log(*row)


if __name__ == "__main__":
    main(*sys.argv[1:])
