"""The same bytes with two C libraries: fifty operations, and a short training of each workload.

Two Debian roots by debootstrap, in which this Python and its packages run: `make test-numerics`, some ten
minutes, as root.
"""

import json
import os
import subprocess
import sys

import pytest

from debian_root import CACHE, LIBRARIES, build, needs_roots
from runs import REPOSITORY

VARIANTS = {
    "all instructions": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL"},
}
ENTER = """
root=$1; shift
for folder in "$@"; do mkdir -p "$root$folder" && mount --rbind "$folder" "$root$folder" || exit 1; done
exec chroot "$root" "$PYTHON" "$SCRIPT" "$FOLDER"
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * 3600), needs_roots]


@pytest.fixture(scope="module")
def roots():
    return {suite: build(CACHE / f"numerics-{suite}", suite) for suite in LIBRARIES}


def run_in(root, variables, folder):
    """Run the operations and trainings in a root; mounts end with their namespace."""
    folder.mkdir(parents=True)
    bound = {"/dev", "/proc", "/sys", sys.base_prefix, sys.prefix, str(REPOSITORY), str(folder)}
    known = {"PYTHON": sys.executable, "SCRIPT": str(REPOSITORY / "tests/support/in_root.py")}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", ENTER, "sh", str(root), *sorted(bound)],
        env={**os.environ, **variables, **known, "FOLDER": str(folder), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_c_libraries_give_the_same_bytes(roots, tmp_path, variant):
    made = {suite: run_in(root, VARIANTS[variant], tmp_path / suite) for suite, root in roots.items()}
    libraries = [each["library"] for each in made.values()]
    assert len(set(libraries)) == 2
    one, other = (each["found"] for each in made.values())
    assert len(one) >= 50
    differing = [name for name in one if one[name] != other[name]]
    assert differing == [], f"{variant}: of {len(one)} hashes, {' and '.join(libraries)}"
