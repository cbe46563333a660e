"""In CI, a run without the slow tests ends with a list of those that were too long and are not marked."""

import os

LIMIT_S = 2.0


def too_long(reports):
    """List (seconds, phase, test) of what took more than the limit, the longest first."""
    phases = [(report.duration, report.when, report.nodeid) for report in reports]
    return sorted((phase for phase in phases if phase[0] > LIMIT_S), reverse=True)


def pytest_terminal_summary(terminalreporter, config):
    if not os.environ.get("CI") or config.option.markexpr != "not slow":
        return
    reports = [
        report
        for kind in terminalreporter.stats.values()
        for report in kind
        if hasattr(report, "duration") and hasattr(report, "when")
    ]
    lines = [f"{seconds:5.1f} s  {phase:8}  {test}" for seconds, phase, test in too_long(reports)]
    if lines:
        terminalreporter.section(f"more than {LIMIT_S:g} s: make them faster, or mark them slow")
        terminalreporter.write_line("\n".join(lines))
