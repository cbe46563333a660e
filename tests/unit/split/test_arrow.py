"""In processes of their own: which modules are imported is theirs."""

import subprocess
import sys

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
        "'--set', 'ranges.last=999', 'list', '0000000-0000999']",
        "try:",
        "    main()",
        "except SystemExit as end:",
        "    assert not end.code",
        "assert 'pandas' not in sys.modules",
    )
