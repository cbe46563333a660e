"""`crpipe run`: this process becomes Snakemake with a screen of its own; `--keep-trying` starts it again.

In: what was typed. Out: the exit code. `snakemake_logger_plugin_crpipe` shows what happens.
"""

from __future__ import annotations

import difflib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crpipe.campaign.campaign import Campaign
from crpipe.config.loading import Config, check_choice, load_config
from crpipe.config.yaml_text import read_yaml
from crpipe.core.causes import is_present, retry_io
from crpipe.core.errors import ConfigError, CrpipeError, MissingExtra, exit_code_is_retryable, is_retryable
from crpipe.core.signals import HEAD_SIGNALS, StopRequest, follow
from crpipe.core.text import Progress, counted, duration
from crpipe.report.notify import notify
from crpipe.setup.init import PROFILES
from crpipe.source.counting import check_source, ensure_counted
from crpipe.workflow.head import end_early, head_stop, what_stopped
from crpipe.workflow.monitor import RUN
from crpipe.workflow.rules import TARGETS, hand_on

if TYPE_CHECKING:
    from collections.abc import Sequence


_RULE = re.compile(r"^\s*(?:rule|checkpoint|use rule .* as) (\w+)", re.MULTILINE)
LOOK_S = 0.2
_OURS = frozenset({"--config", "-C", "--configfile", "--configfiles"})
_USAGE = ": error: "
# In the environment of a workflow that `--keep-trying` watches: the open file for its end, and its targets.
WATCHED = "CRPIPE_WATCHED"


def check_targets(targets: Sequence[str], folder: Path) -> None:
    """Raise ConfigError for a word that is nearly one of the targets, and no rule of the workflow there."""
    named = [target for target in targets if not {*target} & {"/", "."}]
    files = [folder / "Snakefile", *(folder / "workflow").rglob("Snakefile")]
    files += (folder / "workflow").rglob("*.smk")
    texts = [retry_io(path.read_text, path) for path in files if path.is_file()] if named else []
    rules = {name for text in texts for name in _RULE.findall(text)}
    for target in named:
        if target not in rules and difflib.get_close_matches(target, TARGETS):
            check_choice("TARGET", target, TARGETS)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What was typed: the configuration, the targets (or the number of ``links``), and options of Snakemake.

    cores: of this machine, or with a profile the number of jobs at a time; more: words passed on as they are.
    typed: the whole command, to repeat. pause_s: the first pause of --keep-trying; 0 without it.
    """

    files: tuple[Path, ...]
    overrides: tuple[str, ...]
    targets: tuple[str, ...]
    links: int
    profile: str
    cores: str
    dry_run: bool
    more: tuple[str, ...]
    typed: tuple[str, ...]
    pause_s: float

    def config(self) -> Config:
        """Read and validate the configuration."""
        return load_config(self.files, self.overrides)

    def words(self, targets: Sequence[str]) -> list[str]:
        """Format the words of Snakemake's command line."""
        for word in self.more:
            if word.partition("=")[0] in _OURS:
                raise ConfigError(
                    f"{word} after --: name the configuration before it: "
                    "crpipe run --config FILE --set KEY.SUB=VALUE"
                )
        words = [*targets, "--logger", "crpipe"]
        if self.files:
            words += ["--configfile", *map(str, self.files)]
        if self.overrides:
            words += ["--config", hand_on(self.overrides)]
        if self.profile:
            words += ["--profile", self.profile]
        if self.cores:
            words += ["--jobs" if self.profile else "--cores", self.cores]
        if self.dry_run:
            words += ["--dry-run"]
        return [*words, *self.more]


def next_links(campaign: Campaign, number: int) -> tuple[str, ...]:
    """Name the receipts of the next ``number`` links that are not trained; raise ConfigError without any."""
    receipts = [campaign.paths.receipt(name) for name in campaign.chain.names]
    left = [str(path) for path in receipts if not is_present(path)]
    if not left:
        raise ConfigError(
            f"--links {number}: trained already: {counted(len(receipts), 'link')}; add ranges (ranges.last) "
            "or rounds (train.passes), or evaluate and plot what is there: crpipe run"
        )
    return tuple(left[:number])


def check_profile(name: str) -> None:
    """Raise ConfigError for a cluster's profile that is not here, with the command that writes it."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    places = [home, *(os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]
    cluster = name.partition("/")[0]
    folders = [Path(name), *(Path(place) / "snakemake" / name for place in places)]
    if cluster in PROFILES and not any(folder.is_dir() for folder in folders):
        raise ConfigError(
            f"--profile {name}: no folder {name} in {Path.cwd()}; write it: crpipe init --profile {cluster}"
        )


def run_workflow(request: RunRequest, progress: Progress) -> int:
    """Run the workflow; with a pause, again after each failure that may pass. Return the exit code."""
    config = request.config()  # a wrong key is refused before Snakemake reads the files
    check_profile(request.profile)
    files = tuple(path for path in request.files if read_yaml(path))  # Snakemake refuses one without keys
    if request.files and not files:
        raise ConfigError(
            f"{', '.join(map(str, request.files))}: no key is written; write those that you need"
        )
    request = replace(request, files=files)
    if WATCHED in os.environ:
        return _run_watched(request, progress)
    if request.pause_s or (config.ranges.on_failure == "skip" and not request.dry_run):
        stop = StopRequest()
        code = keep_trying(request, progress, stop)
        if stop.number:
            progress.message(f"Stopped as asked; continue with: {shlex.join(request.typed)}")
        return code
    RUN.typed = request.typed
    if not request.dry_run:
        end_early(head_stop())
    return run_snakemake(request.words(_targets(request, config, progress)), progress)


def _targets(request: RunRequest, config: Config, progress: Progress) -> tuple[str, ...]:
    """Name the targets: those that were typed, or the next links."""
    if not request.links:
        return request.targets
    check_source(config)
    campaign = Campaign.open(config)
    ensure_counted(campaign, progress)
    return next_links(campaign, request.links)


def ensure_cache() -> None:
    """Set a cache of Snakemake here where that of the user cannot be written, as in many containers."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        os.environ["XDG_CACHE_HOME"] = str(Path(".snakemake/cache").absolute())


def run_snakemake(words: Sequence[str], progress: Progress) -> int:
    """Run Snakemake in this process; return its exit code. What it says of its own options is left out."""
    if find_spec("snakemake") is None:
        raise MissingExtra(
            f"snakemake runs the workflow, and {sys.executable} cannot import it; install it there: "
            f"{sys.executable} -m pip install snakemake; then crpipe doctor"
        )
    from snakemake import cli  # noqa: PLC0415 - only here is it needed
    from snakemake.exceptions import ApiError, CliException, WorkflowError  # noqa: PLC0415

    ensure_cache()
    warnings.simplefilter("ignore")  # of libraries: not for a user's eyes
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            parser, args = cli.parse_args(list(words))
    except (SystemExit, CliException, ApiError, WorkflowError) as error:
        text = printed.getvalue() if isinstance(error, SystemExit) else f"Error: {error}"
        last = text.strip().rpartition("\n")[2]
        # The error stands below the list of all options.
        code = _refused(last.partition(_USAGE)[2] or text, progress)
        return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else code
    try:
        code = 0 if cli.args_to_api(args, parser) else 1
    except KeyboardInterrupt:  # a signal where no scheduler of Snakemake takes it
        if not RUN.stop.number:
            raise
        if RUN.monitor is not None:
            RUN.monitor.close()
        if not RUN.watched:
            progress.message(what_stopped(RUN.words()))
        return RUN.stop.exit_code
    except (CliException, ApiError, WorkflowError, OSError) as error:
        return _refused(f"Error: {error}", progress)
    if RUN.error is not None:
        raise RUN.error
    return code


def _refused(text: str, progress: Progress) -> int:
    """Print what Snakemake said of its options, or report it; return the exit code."""
    RUN.text = text
    if not RUN.watched:
        for line in text.splitlines():
            progress.message(line)
    return 1


# `crpipe run --keep-trying`: whether a failed workflow is started again, and after what pause.
#
# Snakemake can run once in a process, and may be killed: a process of few lines watches over it.


LONGEST_S = 3600.0
MOST = 50  # about two days of one cause without any progress


@dataclass(slots=True)
class WorkflowEnd:
    """How a watched workflow ended.

    code: its exit code, negative for a signal. targets: what it made, to ask for the same again. The others
    are those of `WorkflowRun`.
    """

    code: int = 0
    targets: Sequence[str] = ()
    began: bool = False
    finished: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    skipped: dict[str, str] = field(default_factory=dict)


def _run_watched(request: RunRequest, progress: Progress) -> int:
    """Run the workflow for `keep_trying`, and report how it ended; its targets are chosen the first time."""
    about = json.loads(os.environ.pop(WATCHED))
    os.set_inheritable(about["report"], False)  # not by its jobs
    RUN.typed, RUN.report, RUN.targets = request.typed, about["report"], tuple(about["targets"])
    try:
        RUN.targets = RUN.targets or _targets(request, request.config(), progress)
        RUN.write_report()  # now and after each job: a kill leaves no time for it
        return run_snakemake(request.words(RUN.targets), progress)
    except CrpipeError as error:
        RUN.refuse(error)
        return error.exit_code
    finally:
        RUN.write_report()


def keep_trying(request: RunRequest, progress: Progress, stop: StopRequest) -> int:
    """Run the workflow, again and again after failures that may pass; return the exit code of the last one.

    At once, and without --keep-trying, too, where all that failed are ranges that are skipped now.
    """
    policy = RetryPolicy(request.pause_s)
    targets: tuple[str, ...] = ()
    stop.listen(HEAD_SIGNALS)
    while True:
        end = _attempt(request, targets, stop)
        targets = tuple(end.targets) or targets
        again = bool(end.skipped) and not end.failures
        for name, why in end.skipped.items():
            progress.message(f"skipped: {why}")
            targets = tuple(target for target in targets if name not in target)
        pause_s = 0.0 if stop.number or end.code == 0 or again else policy.after(end)
        if pause_s:
            at = time.strftime("%H:%M:%S", time.localtime(time.time() + pause_s))
            progress.message(f"failed: {describe_end(end)}")
            progress.message(f"trying again in {duration(pause_s)}, at {at}; Ctrl-C stops this")
            _pause(pause_s, stop)
        if stop.number:
            return stop.exit_code
        if not (pause_s or again):
            break
    if end.code:
        _inform(request, progress)
        for line in end.text.splitlines():
            progress.message(line)
    return end.code if end.code >= 0 else 128 - end.code


def _attempt(request: RunRequest, targets: Sequence[str], stop: StopRequest) -> WorkflowEnd:
    """Run the same command once in a child; it gets each signal of this process once, as SIGTERM.

    It has a session of its own, so that Ctrl-C reaches it in no other way, and dies with this process.
    """
    with tempfile.TemporaryFile() as report:
        about = json.dumps({"report": report.fileno(), "targets": targets})
        child = subprocess.Popen(  # noqa: S603 - this Python, and the words that were typed
            [sys.executable, "-P", "-m", "crpipe", *request.typed[1:]],
            env={**os.environ, WATCHED: about},
            stdin=subprocess.DEVNULL,
            pass_fds=(report.fileno(),),
            start_new_session=True,
            preexec_fn=follow(os.getpid()),  # noqa: PLW1509 - no thread runs in this process
        )

        def end_child() -> None:
            child.send_signal(signal.SIGTERM)

        stop.listen(HEAD_SIGNALS, end_child)
        if stop.number:  # the signal came before
            end_child()
        code = child.wait()
        stop.listen(HEAD_SIGNALS)
        try:
            size = os.fstat(report.fileno()).st_size
            return WorkflowEnd(code, **json.loads(os.pread(report.fileno(), size, 0) or "{}"))
        except ValueError:  # cut by a full disk
            return WorkflowEnd(code)


def _pause(seconds: float, stop: StopRequest) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stop.number:
        time.sleep(LOOK_S)


def _inform(request: RunRequest, progress: Progress) -> None:
    """Inform a person of the failure; why that is not possible must not hide why the workflow failed."""
    try:
        config = request.config()
        if config.notify.failure:
            notify(Campaign.open(config, "recorded"), "failure")
    except CrpipeError as error:
        progress.message(f"warning: notify.failure: {error}")


@dataclass(slots=True)
class RetryPolicy:
    """Growing pauses, from ``first_s`` to an hour; each cause is waited for MOST times without progress."""

    first_s: float = 60.0
    tries: Counter[str] = field(default_factory=Counter)
    _pause_s: float = 0.0

    def after(self, end: WorkflowEnd) -> float:
        """Return the pause after a failed workflow, in seconds; 0 where it is no use to try again."""
        if not _may_pass(end):
            return 0.0
        causes = [f"{each['verb']} {each['name']}: {each['kind'] or 'killed'}" for each in end.failures]
        causes = causes or [f"exit {end.code}"]
        if end.finished:
            self.tries.clear()
            self._pause_s = 0.0
        self.tries.update(causes)
        if any(self.tries[cause] > MOST for cause in causes):
            return 0.0
        self._pause_s = min(max(2 * self._pause_s, self.first_s), LONGEST_S)
        return self._pause_s


def _may_pass(end: WorkflowEnd) -> bool:
    """Return whether waiting may repair what made the workflow fail."""
    if end.failures:
        return all(is_retryable(failure["kind"]) for failure in end.failures)
    # Snakemake ends with 1 for every error of its own: one before any job is a wrong target or option.
    return exit_code_is_retryable(end.code) and (end.began or end.code != 1)


def describe_end(end: WorkflowEnd) -> str:
    """Describe in one line what failed."""
    ended = {"verb": "workflow", "name": "", "cause": f"ended with exit code {end.code}"}
    first, *more = end.failures or [ended]
    name, cause = " ".join(filter(None, (first["verb"], first["name"]))), first["cause"]
    text = f"{name}{' ' if cause.startswith('(') else ': '}{cause}" if name else cause
    return f"{text} (and {len(more)} more)" if more else text
