"""A whole HTCondor on one machine: a Debian root in namespaces that end with their first process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from debian_root import CACHE, build
from integration.slurm.cluster import wait_for
from runs import REPOSITORY

VERSION = "23.9.6"
PLUGIN = "snakemake-executor-plugin-htcondor==0.3.0"
BINDINGS = "htcondor==23.10.29"  # of the pool's series; the plugin's own range has none for it
STRANGE = "htcondor==24.0.24"  # that do not get on with this pool
USER = 12345
CHROOT = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin")
CPUS, MEMORY_MB, GPUS = 4, 16_000, 2
CONFIGURATION = f"""\
LOCAL_DIR = /pool
UID_DOMAIN = pool
FILESYSTEM_DOMAIN = pool
NUM_CPUS = {CPUS}
MEMORY = {MEMORY_MB}
MACHINE_RESOURCE_GPUs = {GPUS}
NEGOTIATOR_CYCLE_DELAY = 1
NEGOTIATOR_MIN_INTERVAL = 1
"""
FOLDERS = (
    "run/condor",
    "log/condor",
    "lock/condor",
    "spool/condor",
    "lib/condor/execute",
    "lib/condor/cred_dir",
)
# Process 1: when it is killed every process, mount and network of the pool is gone.
FIRST = """
root=$1; folder=$2; shift 2
mount --bind "$root" "$root"
mount --bind "$folder/tmp" "$root/tmp"
for place in "$@"; do mkdir -p "$root$place"; mount --rbind "$place" "$root$place"; done
mkdir -p "$root/pool"; mount --bind "$folder/pool" "$root/pool"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
hostname pool
chroot "$root" ip link set lo up
chroot "$root" condor_master -f &
while true; do sleep 1000 & wait $!; done
"""


class Pool:
    """The daemons, what runs in their root, and ways to break things."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.root = CACHE / "pool"
        self.packages = CACHE / "pool-python"
        self.first = None  # as this machine numbers it

    def up(self):
        build(self.root, "trixie", ("minihtcondor", "iproute2"))
        for name in (BINDINGS, STRANGE):
            self._install(name)
        (self.root / "etc" / "hosts").write_text("127.0.0.1 localhost pool\n")
        (self.root / "root").chmod(0o755)  # the interpreter may be in there
        (self.root / "etc" / "condor" / "condor_config.local").write_text(CONFIGURATION)
        passwd = self.root / "etc" / "passwd"
        if "trainer" not in passwd.read_text():
            with passwd.open("a") as file:
                file.write(f"trainer:x:{USER}:{USER}::{self.folder}:/bin/sh\n")
        self._start()

    def _install(self, bindings):
        folder = self.packages / bindings
        if not (folder / "whole").exists():
            words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
            subprocess.run([*words, "--upgrade", PLUGIN, bindings], check=True)
            (folder / "whole").touch()

    def _start(self):
        names = [line.split(":") for line in (self.root / "etc" / "passwd").read_text().splitlines()]
        condor = next((int(row[2]), int(row[3])) for row in names if row[0] == "condor")
        self.folder.chmod(0o755)
        for name in FOLDERS:
            (self.folder / "pool" / name).mkdir(parents=True)
            os.chown(self.folder / "pool" / name, *condor)
        (self.folder / "tmp").mkdir()
        (self.folder / "tmp").chmod(0o1777)
        bound = dict.fromkeys(map(str, (sys.base_prefix, sys.prefix, REPOSITORY, self.packages, self.folder)))
        # also where this process is killed
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "-mpnu", "--fork", "--kill-child"]
        words += ["bash", "-ec", FIRST, "bash"]
        self.shell = subprocess.Popen(
            [*words, str(self.root), str(self.folder), *bound], stdin=subprocess.DEVNULL
        )
        children = psutil.Process(self.shell.pid).children
        self.first = wait_for(children, "the pool's first process runs", 10)[0]
        # a question before the collector listens is answered very late
        asked = ("timeout", "2", "condor_status", "-af", "Name")
        wait_for(lambda: self.call(*asked, check=False), "the pool has a slot", 60)

    def down(self):
        """Kill the first process, and with it everything."""
        if self.first is not None:
            self.first.kill()
            self.shell.wait(30)

    def inside(self, words, folder="/", user=USER):
        """Return the words that run a command in the pool's root."""
        enter = ["nsenter", "-t", str(self.first.pid), "-m", "-u", "-n", "-p", CHROOT, str(self.root)]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        return [*enter, *become, "env", "-C", str(folder), *map(str, words)]

    def call(self, *words, check=True, user=USER):
        """Run a command of HTCondor, as the user who submits; return what it prints."""
        done = subprocess.run(
            self.inside(words, user=user), capture_output=True, text=True, timeout=60, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def daemon(self, name):
        """Find one of the pool's daemons; None while it is not there."""
        running = [each for each in self.first.children(recursive=True) if each.name() == name]
        return next((each for each in running if each.status() != psutil.STATUS_ZOMBIE), None)
