"""``crpipe plan --probe``, and the first job of a run: every method is called before it is needed.

In: a campaign, and a batch of raw files, of shards or of the simulator. Out: what keeps the contract, what
breaks it in one sentence each, and which optional members are not there. Nothing is written.
"""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crpipe.contract.cases import Case, Check, NotChecked, Taken
from crpipe.contract.checks import CHECKS
from crpipe.contract.predictions import a_score_of_all_events_is_whole
from crpipe.core.causes import is_present
from crpipe.core.errors import CrpipeError, MachineError, MissingExtra, PluginError
from crpipe.core.text import Progress, counted
from crpipe.inference.members import OPTIONAL, members_of
from crpipe.inference.probe import ProbeBatch, batch_of_files, read_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from crpipe.campaign.campaign import Campaign

FIRST_JOB_S = 60.0  # a first job begins no further check after so long
_WIDTH = 120
_EVENTS = 64  # of a batch that the checks look at


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check says: why the case breaks it, or why it has nothing to look at; neither: it is kept."""

    check: Check
    broken: str = ""
    skipped: str = ""


def events_to_probe(campaign: Campaign, inputs: Sequence[Path], name: str) -> tuple[ProbeBatch, Case]:
    """Read a batch of raw files, else of a split range, else of the simulator's or local files of the source.

    Raise ConfigError where there is none of them.
    """
    config, paths = campaign.config, campaign.paths
    is_split = any(is_present(paths.shard_manifest(each)) for each in campaign.ranges)
    if inputs or name or is_split:
        batch = read_batch(campaign, inputs, name)
        return batch, case_of(campaign, batch, inputs)
    case = Case(config)
    source = "files of the simulator" if config.simulates() else ", ".join(map(str, case.files))
    batch = batch_of_files(config, case.files, case.tables, source)
    return batch, case


def case_of(campaign: Campaign, batch: ProbeBatch, inputs: Sequence[Path] = ()) -> Case:
    """Return the case of events of a campaign, with its copies of the side tables."""
    events = batch.events.part(0, min(_EVENTS, len(batch.events))).copy()
    return Case(campaign.config, inputs, Taken(events, campaign.tables))


def outcomes(case: Case, checks: Iterable[Check], progress: Progress, most_s: float = 0.0) -> list[Outcome]:
    """Run checks in their order; most_s: begin none after so many seconds; 0: no limit.

    Raise MachineError where a disk or the memory failed: the same command again.
    """
    listed = list(checks)
    began, results = time.monotonic(), []
    for number, each in enumerate(listed):
        if most_s and time.monotonic() - began > most_s:
            results.append(Outcome(each, skipped=f"no time within {most_s:.0f} s"))
            continue
        broken, skipped = "", ""
        try:
            each(case)
        except (NotChecked, MissingExtra) as reason:
            skipped = str(reason)
        except MachineError:
            raise  # says nothing about a plug-in
        except CrpipeError as error:
            broken = " ".join(str(error).split())
        results.append(Outcome(each, broken, skipped))
        progress.update("contract", number + 1, len(listed))
    return results


def check_contract(case: Case, progress: Progress) -> list[Outcome]:
    """Run every check that the case has a plug-in and events for."""
    reads = case.has_files
    kinds = [kind for kind in ("reader", "simulator", "workload") if case.has(kind)]
    asked = [
        each
        for each in CHECKS
        if each.kind in kinds
        and (reads or each.kind != "reader")
        and (case.config.simulates() or each.kind != "simulator")
    ]
    return outcomes(case, asked, progress)


def render_outcomes(case: Case, results: Sequence[Outcome]) -> str:
    """Write what was kept, what is broken, and what each optional member that is not there would give."""
    lines = []
    for kind in dict.fromkeys(each.check.kind for each in results):
        of_kind = [each for each in results if each.check.kind == kind]
        broken = [each for each in of_kind if each.broken]
        kept = [each for each in of_kind if not each.broken and not each.skipped]
        wrong = f", {len(broken)} failed" if broken else ""
        lines.append(f"{kind} {case.plugin(kind)}: {counted(len(kept), 'check')} passed{wrong}")
        words = ", ".join(each.check.name.replace("_", " ") for each in kept)
        lines += textwrap.wrap(f"  passed: {words}", _WIDTH, subsequent_indent="    ") if kept else []
        for sentence in dict.fromkeys(each.broken for each in broken):
            lines += textwrap.wrap(f"  wrong: {sentence}", _WIDTH, subsequent_indent="    ")
    lines += ["", *_optional(case)]
    return "\n".join(lines)


def _optional(case: Case) -> list[str]:
    """List the optional members that a workload has not, and what each would give."""
    workload = case.workload()
    absent = [protocol for protocol in OPTIONAL if not isinstance(workload, protocol)]
    if not absent:
        return ["every optional member is there"]
    lines = ["optional, and not there:"]
    for protocol in absent:
        text = f"  {', '.join(sorted(members_of(protocol)))}: {_purpose(protocol)}"
        lines += textwrap.wrap(text, _WIDTH, subsequent_indent="    ")
    return lines


def _purpose(protocol: type) -> str:
    """Return the first line of a protocol's docstring: for a workload …."""
    line = (protocol.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")
    return f"for {line[:1].lower()}{line[1:]}".replace("``", "")


def refuse_broken(results: Sequence[Outcome]) -> None:
    """Raise PluginError with the first sentence where a check is broken."""
    broken = [*dict.fromkeys(each.broken for each in results if each.broken)]
    if broken:
        raise PluginError(broken[0] + (f" ({len(broken) - 1} more above)" if len(broken) > 1 else ""))


def check_first_job(campaign: Campaign, link: str, progress: Progress) -> None:
    """Call every method of the workload on events that a link trains on, before its first step.

    Raise PluginError for what would fail later, or be wrong without a word; only warn of what a workload may
    mean. Files of figures and exports are left to ``crpipe plan --probe``.
    """
    ranges = campaign.chain.ranges_trained_by(campaign.chain.named(link))
    case = case_of(campaign, read_batch(campaign, (), ranges[0]))
    asked = [
        each
        for each in CHECKS
        if each.kind == "workload" and (not each.slow or each.run is a_score_of_all_events_is_whole)
    ]
    began = time.monotonic()
    results = outcomes(case, asked, progress, FIRST_JOB_S)
    firm = [each for each in results if each.broken and not each.check.doubt]
    for each in results:
        if each.broken and each not in firm:
            progress.message(f"warning: {each.broken}")
    kept = len([each for each in results if not each.broken and not each.skipped])
    took = time.monotonic() - began
    progress.message(
        f"contract of {case.plugin('workload')}: {counted(kept, 'check')} passed in {took:.1f} s"
    )
    if firm:
        for each in firm[1:]:
            progress.message(f"wrong: {each.broken}")
        raise PluginError(f"{firm[0].broken}; to train all the same: crpipe train {link}")
