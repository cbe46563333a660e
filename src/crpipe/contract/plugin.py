"""Options of ``pytest --pyargs crpipe.contract``: which plug-ins are tested, and on which files.

pytest finds this module by the entry point of the package; it imports nothing of crpipe's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

# name of the option, what it sets, what it is
OPTIONS = (
    ("--crpipe-config", "FILE", "configuration of a campaign; several are merged, as by crpipe --config"),
    ("--crpipe-reader", "MODULE:NAME", "reader to test, in place of source.reader"),
    ("--crpipe-simulator", "MODULE:NAME", "simulator to test, in place of source.simulator"),
    ("--crpipe-workload", "MODULE:NAME", "workload to test, in place of train.workload"),
    ("--crpipe-set", "KEY=VALUE", "any other key, such as an option: model.hidden=8"),
    (
        "--crpipe-data",
        "FILE",
        "raw file that the reader reads; without any: files of the simulator or source",
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; each may be given several times."""
    group = parser.getgroup("crpipe", "contract of crpipe's plug-ins (pytest --pyargs crpipe.contract)")
    for name, value, meaning in OPTIONS:
        group.addoption(name, action="append", default=[], metavar=value, help=meaning)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of tests that take seconds."""
    config.addinivalue_line("markers", "slow: takes more than 2 s; leave it out with -m 'not slow'")
