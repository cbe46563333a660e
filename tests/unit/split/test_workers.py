"""Workers, and what a process of theirs imports."""

import os
import subprocess
import sys

import pytest

from crpipe.core.errors import CrpipeError
from crpipe.split.workers import in_order
from named import READERS, SIMULATOR

WORK = "import numpy as np, pyarrow as pa; assert pa.array(np.arange(3)).to_numpy().sum() == 3"


def run(*lines):
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_arrays_come_and_go_without_pandas():
    check = "import sys; assert 'pandas' not in sys.modules"
    run("from crpipe.split.workers import leave_pandas_out", "leave_pandas_out()", WORK, check)


def test_pandas_can_still_be_used_later():
    run(
        "from crpipe.split.workers import leave_pandas_out",
        "leave_pandas_out()",
        WORK,
        "import pandas as pd",
        "assert pa.array(pd.Series([1, 2])).to_pylist() == [1, 2]",
        "assert pa.table({'a': [1, 2]}).to_pandas()['a'].sum() == 3",
        "assert pa.array(pd.Series([1, None])).null_count == 1",
    )


def test_a_data_step_runs_without_pandas(tmp_path):
    run(
        "import sys",
        "from crpipe.cli.campaign import main",
        f"sys.argv = ['crpipe', '--set', 'results={tmp_path}', '--set', 'source.uri=synthetic://', "
        f"'--set', 'source.reader={READERS['bundles']}', '--set', 'source.simulator={SIMULATOR}', "
        "'--set', 'ranges.last=999', 'list', '0000000-0000999']",
        "try:",
        "    main()",
        "except SystemExit as end:",
        "    assert not end.code",
        "assert 'pandas' not in sys.modules",
    )


def square(number):
    return number * number


def fail(number):
    if number == 3:
        raise CrpipeError("three")
    return number


def die(number):
    os._exit(number)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks(workers):
    assert list(in_order(square, range(20), workers)) == [square(number) for number in range(20)]
    assert list(in_order(square, [], workers)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_error_ends_the_work(workers):
    results = in_order(fail, range(6), workers)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(CrpipeError, match="three"):
        next(results)


def test_a_worker_that_is_killed_is_an_error_with_advice():
    with pytest.raises(CrpipeError, match=r"killed, most likely for lack of memory.*split\.workers lower"):
        list(in_order(die, [1, 1], 2))
