"""The longest files of tests begin first; in CI `make test` ends with a list of the tests too long for it."""

import os

import pytest

LIMIT_S = 2.0
# Processes take one file after the other: with these at the end some of them would wait for the last.
LONGEST = (
    "integration/test_docs_xec.py",
    "integration/test_packs.py",
    "integration/test_workflow.py",
    "integration/test_crashes.py",
    "integration/test_slurm.py",
    "integration/test_bad_ranges.py",
    "integration/test_kills.py",
    "integration/test_small_campaigns.py",
    "integration/test_finished.py",
    "integration/test_docs_training.py",
    "integration/test_faults.py",
    "integration/test_scan.py",
    "integration/test_ahead.py",
    "integration/test_direction_models.py",
    "golden/test_yardstick.py",
    "integration/test_xec.py",
    "integration/test_direction.py",
    "integration/test_docs_direction.py",
    "integration/test_docs_operations.py",
    "integration/test_file_systems.py",
    "unit/workloads/direction/models/test_grouping.py",
    "integration/test_links.py",
    "integration/test_demo.py",
    "integration/test_convert.py",
    "integration/test_docs_pages.py",
    "unit/workloads/direction/test_export.py",
    "integration/test_weeks.py",
    "outside/test_page.py",
    "outside/test_examples.py",
    "outside/test_contract.py",
    "outside/test_campaigns.py",
    "properties/test_resume.py",
    "unit/workloads/test_capture.py",
    "unit/inference/test_export.py",
    "unit/check/test_campaign.py",
)


@pytest.hookimpl(tryfirst=True)  # before the mark expression chooses
def pytest_collection_modifyitems(items):
    """Sort by the list above, the others in their order (`--no-loadscope-reorder` keeps it).

    What runs whole campaigns is slow.
    """
    for item in items:
        if item.nodeid.startswith(("tests/integration/", "tests/golden/")):
            item.add_marker("slow")
    rank = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


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
