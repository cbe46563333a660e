"""Each check of the contract as a test, once for each case: ``pytest --pyargs crpipe.contract``."""

import pytest

from crpipe.contract.cases import Case, Check, NotChecked


def test_contract(check: Check, case: Case) -> None:
    """Run a check; pytest's hook beside it turns what crpipe says into a sentence without a traceback."""
    try:
        check(case)
    except NotChecked as reason:
        pytest.skip(str(reason))
