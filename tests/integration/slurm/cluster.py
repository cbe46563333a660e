"""A whole Slurm on one machine and in one folder: a controller and nodes, no systemd, no munge."""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

CLIENTS = ("sbatch", "squeue", "srun", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr")
CPUS, MEMORY_MB, GPUS = 8, 16_000, 2
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
MinJobAge=300
KillWait=15
SlurmdTimeout=10
SchedulerParameters=batch_sched_delay=0,bf_interval=5
SlurmdParameters=config_overrides
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
NODE = """\
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} \\
  CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
"""
PARTITIONS = """\
PartitionName=batch Nodes=ALL Default=YES State=UP PriorityTier=10
PartitionName=gpu Nodes=ALL State=UP PriorityTier=10
PartitionName=urgent Nodes=ALL State=UP PriorityTier=100
"""
# Without a Slurm in /etc every client needs SLURM_CONF, which Snakemake takes out of its jobs' environment.
CLIENT = '#!/bin/sh\nSLURM_CONF={conf} exec {program} "$@"\n'


class Cluster:
    """Daemons, their clients on a path of its own, and ways to break things."""

    def __init__(self, folder, nodes=2):
        self.folder = Path(folder)
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.conf = self.folder / "slurm.conf"
        self.bin = self.folder / "bin"

    def up(self):
        for name in ("state", "spool", "log", "run", "bin"):
            (self.folder / name).mkdir(parents=True)
        self._configure()
        for name in CLIENTS:
            client = self.bin / name
            client.write_text(CLIENT.format(conf=self.conf, program=shutil.which(name)))
            client.chmod(0o755)
        self.start("slurmctld")
        for node in self.nodes:
            self.start(node)
        wait_for(lambda: self.states() == dict.fromkeys(self.nodes, "idle"), "all nodes are idle", 60)

    def down(self):
        """Cancel every job, then stop exactly the daemons that this cluster started."""
        with contextlib.suppress(subprocess.CalledProcessError, AssertionError):
            self.call("scancel", "--user", getpass.getuser())
            wait_for(lambda: not self.call("squeue", "-h"), "no job is left", 60)
        for name in (*self.nodes, "slurmctld"):
            self.stop(name)

    def start(self, name):
        """Start the controller (``slurmctld``) or the daemon of a node."""
        words = ["slurmctld"] if name == "slurmctld" else ["slurmd", "-N", name]
        subprocess.run([*words, "-f", self.conf], env=self._environment(), check=True)

    def stop(self, name, number=signal.SIGTERM):
        """Stop one daemon by its process number and wait until it is gone."""
        process = self.process(name)
        if process is not None:
            process.send_signal(number)
            psutil.wait_procs([process], timeout=30)
        self._pid_file(name).unlink(missing_ok=True)

    def break_node(self, node):
        """Kill a node: its daemon and every process of its jobs die at once."""
        processes = [process for process in psutil.process_iter() if self._runs_on(process, node)]
        steps = {
            parent for process in processes if (parent := process.parent()) and parent.name() == "slurmstepd"
        }
        self.stop(node, signal.SIGKILL)
        for process in [*steps, *processes]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def process(self, name):
        with contextlib.suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return psutil.Process(int(self._pid_file(name).read_text()))
        return None

    def states(self):
        """Return the state of each node, in lower case."""
        lines = self.call("sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T", check=False).splitlines()
        return dict(line.split() for line in lines)

    def jobs(self, *options):
        """List the jobs as (id, state, what they work on, node)."""
        lines = self.call("squeue", "-h", *options, "-o", "%i|%T|%k|%N").splitlines()
        return [tuple(line.split("|")) for line in lines]

    def job_of(self, work, folder):
        """Find a campaign's running job whose comment ends with ``work``; another one may do the same."""
        lines = self.call("squeue", "-h", "--states=RUNNING", "-o", "%i|%Z|%k").splitlines()
        rows = [line.split("|") for line in lines]
        return next((job for job, place, what in rows if what.endswith(work) and place == str(folder)), None)

    def call(self, *words, check=True):
        done = subprocess.run(
            [self.bin / words[0], *words[1:]], capture_output=True, text=True, timeout=60, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _configure(self):
        host, ports = socket.gethostname().partition(".")[0], free_ports(len(self.nodes) + 1)
        text = CONFIGURATION.format(host=host, ports=ports, user=getpass.getuser(), folder=self.folder)
        for node, port in zip(self.nodes, ports[1:], strict=True):
            text += NODE.format(node=node, host=host, port=port, cpus=CPUS, memory=MEMORY_MB, gpus=GPUS)
        self.conf.write_text(text + PARTITIONS)
        # Any character device will do as a GPU that nobody computes on.
        (self.folder / "gres.conf").write_text(f"Name=gpu File=/dev/tty[0-{GPUS - 1}]\n")

    def _environment(self):
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def _pid_file(self, name):
        return self.folder / "run" / ("slurmctld.pid" if name == "slurmctld" else f"slurmd-{name}.pid")

    def _runs_on(self, process, node):
        with contextlib.suppress(psutil.Error):
            variables = process.environ()
            return (variables.get("SLURMD_NODENAME"), variables.get("SLURM_CONF")) == (node, str(self.conf))
        return False


def wait_for(condition, what, seconds):
    """Look twice a second until something is true; say ``what`` was waited for when it does not become so."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {seconds} s it is still not so that {what}"
        time.sleep(0.5)
    return value


def free_ports(count):
    """Find ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
