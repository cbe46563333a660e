"""Runs each test of the contract once for each case that was asked for; all that ship, if none was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from crpipe.contract.cases import KEYS, Case, cases_of, shipped_cases
from crpipe.core.errors import CrpipeError

if TYPE_CHECKING:
    from collections.abc import Generator

torch.set_num_threads(1)  # models are small: threads that wait for each other would cost most of the time
_CASES = pytest.StashKey[list[Case]]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``case`` of a test with each plug-in of the kind that the test's module is about."""
    if "case" not in metafunc.fixturenames:
        return
    stash, kind = metafunc.config.stash, metafunc.module.KIND
    if _CASES not in stash:
        stash[_CASES] = _asked_for(metafunc.config)
    plugins: dict[tuple[str, str], Case] = {}
    for case in stash[_CASES]:
        if case.has(kind):
            plugins.setdefault(case.plugin_key(kind), case)
    metafunc.parametrize("case", [*plugins.values()], ids=lambda case: case.name)


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
