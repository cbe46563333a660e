"""The same bytes with two C libraries: fifty operations, and a short training of each workload.

Two Debian roots by debootstrap, in which this Python and its packages run: `make test-numerics`, some ten
minutes, as root. NUMERICS_ROOTS names a folder that keeps the roots for the next time.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runs import REPOSITORY

_COMMON = "libffi8,libsqlite3-0,liblzma5,libbz2-1.0,zlib1g,libgomp1,libstdc++6"
PACKAGES = {"bookworm": f"{_COMMON},libssl3,libreadline8", "trixie": f"{_COMMON},libssl3t64,libreadline8t64"}
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
VARIANTS = {
    "all instructions": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL"},
}
ENTER = """
root=$1; shift
for folder in "$@"; do mkdir -p "$root$folder" && mount --rbind "$folder" "$root$folder" || exit 1; done
exec chroot "$root" "$PYTHON" "$SCRIPT" "$FOLDER"
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * 3600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("debootstrap"),
        reason="needs root and debootstrap: apt-get install debootstrap",
    ),
]


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    kept = os.environ.get("NUMERICS_ROOTS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("roots")
    for suite, packages in PACKAGES.items():
        if not (folder / suite / "etc" / "debian_version").exists():
            words = ["debootstrap", "--variant=minbase", f"--include={packages}", suite]
            subprocess.run([*words, str(folder / suite), MIRROR], check=True)
    return folder


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
    made = {suite: run_in(roots / suite, VARIANTS[variant], tmp_path / suite) for suite in PACKAGES}
    libraries = [each["library"] for each in made.values()]
    assert len(set(libraries)) == 2
    one, other = (each["found"] for each in made.values())
    assert len(one) >= 50
    differing = [name for name in one if one[name] != other[name]]
    assert differing == [], f"{variant}: of {len(one)} hashes, {' and '.join(libraries)}"
