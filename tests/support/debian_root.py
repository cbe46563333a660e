"""Debian root file systems by debootstrap, in which this Python runs; kept for the next time."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_COMMON = "libffi8,libsqlite3-0,liblzma5,libbz2-1.0,zlib1g,libgomp1,libstdc++6"
LIBRARIES = {"bookworm": f"{_COMMON},libssl3,libreadline8", "trixie": f"{_COMMON},libssl3t64,libreadline8t64"}
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "crpipe"
PROGRAMS = {"debootstrap": "debootstrap", "unshare": "util-linux", "nsenter": "util-linux"}
INSTALL = """
printf '#!/bin/sh\\nexit 101\\n' > "$1/usr/sbin/policy-rc.d" && chmod 755 "$1/usr/sbin/policy-rc.d" &&
mount -t proc proc "$1/proc" && root=$1 && shift &&
DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -q -y --no-install-recommends "$@"
"""


def lacking():
    """Return what this machine lacks to build and enter a root, with the command that helps, or ""."""
    packages = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    if packages:
        return f"needs Debian roots: apt-get install {' '.join(packages)}"
    if os.geteuid() != 0 or subprocess.run(["unshare", "-mpnu", "-f", "true"], check=False).returncode:
        return "needs root, with the right to mount: run it with sudo (in a container: with --privileged)"
    return ""


needs_roots = pytest.mark.skipif(bool(lacking()), reason=lacking() or "-")


def build(folder, suite, packages=()):
    """Build the root of a Debian ``suite`` with ``packages`` in ``folder``, where it is not there whole."""
    whole = folder / "whole"
    if not whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        words = ["debootstrap", "--variant=minbase", f"--include={LIBRARIES[suite]}", suite]
        subprocess.run([*words, str(folder), MIRROR], check=True)
        if packages:
            shutil.copy("/etc/resolv.conf", folder / "etc")
            # mounts end with their namespace
            subprocess.run(["unshare", "-m", "sh", "-ec", INSTALL, "sh", str(folder), *packages], check=True)
        whole.touch()
    return folder
