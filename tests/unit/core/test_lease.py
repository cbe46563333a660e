import json
import os
import signal
import subprocess
import sys

import pytest

from crpipe.core.errors import LeaseError
from crpipe.core.lease import is_held, lease, owner_of

HOLD = (
    "import sys, time; from pathlib import Path; from crpipe.core.lease import lease\n"
    "with lease(Path(sys.argv[1]), wait_s=0, say=print): print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def quiet(_):
    pass


def test_a_second_job_is_refused_with_the_name_of_the_first(tmp_path, holder):
    with pytest.raises(LeaseError, match=f"process {holder.pid} on .* run the same command again"):
        lease(tmp_path, wait_s=0, say=quiet).__enter__()


def test_the_kernel_takes_the_lease_of_a_killed_process_back(tmp_path, holder):
    assert is_held(tmp_path / "lease")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not is_held(tmp_path / "lease")
    with lease(tmp_path, wait_s=0, say=quiet):
        assert json.loads((tmp_path / "lease").read_text())["pid"] == os.getpid()


def test_a_waiting_job_says_once_whom_it_waits_for_and_then_goes_on(tmp_path, holder):
    said = []

    def tell(text):
        said.append(text)
        holder.kill()

    with lease(tmp_path, wait_s=30, say=tell):
        pass
    assert len(said) == 1
    assert f"waiting for process {holder.pid}" in said[0]


def test_a_job_that_is_told_to_stop_waits_no_longer(tmp_path, holder):
    with pytest.raises(LeaseError):
        lease(tmp_path, wait_s=1e9, say=quiet, stopped=lambda: True).__enter__()


def test_the_lease_is_free_after_the_block_and_asking_never_takes_it(tmp_path):
    with lease(tmp_path / "new", wait_s=0, say=quiet):
        assert is_held(tmp_path / "new" / "lease")
    assert not is_held(tmp_path / "new" / "lease")
    assert not is_held(tmp_path / "never" / "lease")


def test_who_only_asks_never_keeps_a_job_from_its_lease(tmp_path):
    code = (
        "import sys; from pathlib import Path; from crpipe.core.lease import is_held\n"
        "print('asking', flush=True)\n"
        "while True: is_held(Path(sys.argv[1]))"
    )
    ask = [sys.executable, "-c", code, str(tmp_path / "lease")]
    with subprocess.Popen(ask, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "asking\n"
        try:
            for _ in range(300):
                with lease(tmp_path, wait_s=0, say=pytest.fail):
                    pass
        finally:
            process.kill()


def test_an_unreadable_owner_is_no_reason_to_fail(tmp_path):
    (tmp_path / "lease").write_text("{")
    assert owner_of(tmp_path / "lease") == "an unknown process"
