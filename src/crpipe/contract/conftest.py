"""Runs each test of the contract once for each case that was asked for; all that ship, if none was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from crpipe.contract.cases import KEYS, Case, cases_of, shipped_cases
from crpipe.contract.checks import CHECKS
from crpipe.core.errors import CrpipeError

if TYPE_CHECKING:
    from collections.abc import Generator

torch.set_num_threads(1)  # models are small: threads that wait for each other would cost most of the time
_CASES = pytest.StashKey[list[Case]]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the test with each check, and with each plug-in of its kind."""
    if "case" not in metafunc.fixturenames:
        return
    stash = metafunc.config.stash
    if _CASES not in stash:
        stash[_CASES] = _asked_for(metafunc.config)
    pairs = [
        pytest.param(
            check, case, id=f"{check.name}-{case.name}", marks=[pytest.mark.slow] if check.slow else []
        )
        for check in CHECKS
        for case in _of_kind(stash[_CASES], check.kind)
    ]
    metafunc.parametrize(("check", "case"), pairs)


def _of_kind(cases: list[Case], kind: str) -> list[Case]:
    """Leave out cases whose plug-in of this kind, with its options, is that of another one."""
    plugins: dict[tuple[str, str], Case] = {}
    for case in cases:
        if case.has(kind):
            plugins.setdefault(case.plugin_key(kind), case)
    return [*plugins.values()]


def _asked_for(config: pytest.Config) -> list[Case]:
    given = {name: config.getoption(f"--crpipe-{name}", []) for name in ("config", "set", "data", *KEYS)}
    if not any(given.values()):
        return shipped_cases()
    keys = [f"{key}={value}" for name, key in KEYS.items() for value in given[name]]
    return [cases_of(given["config"], [*keys, *given["set"]], given["data"])]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, Any, Any]:
    """Report what crpipe says of a plug-in as one sentence, without a traceback."""
    try:
        return (yield)
    except CrpipeError as error:
        pytest.fail(str(error), pytrace=False)
