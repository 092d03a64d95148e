"""A cluster on this machine: slurmctld and two slurmd, as machines m0 and m1.

With folders and ports of their own, and without authentication, accounting and cgroups: the jobs of
one user need none of them.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.waiting import STUCK_S

ASKED_EVERY_S = 0.5
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "srun", "scancel")

CONFIGURATION = """\
ClusterName=bsmeta
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
# A job that is queued again waits for its credential to expire: two minutes, were this not set.
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=5
ReturnToService=2
NodeName=m0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} RealMemory=2000
NodeName=m1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} RealMemory=2000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Returns the programs of SLURM that this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Cluster:
    """Runs from `start` to `stop`; `environment` directs SLURM's commands to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts the daemons, and returns once both machines are idle."""
        (self.folder / "state").mkdir(parents=True)
        text = CONFIGURATION.format(
            host=socket.gethostname().split(".")[0],
            user=getpass.getuser(),
            ports=_free_ports(3),
            folder=self.folder,
        )
        (self.folder / "slurm.conf").write_text(text)
        for command in (["slurmctld"], ["slurmd", "-N", "m0"], ["slurmd", "-N", "m1"]):
            self._daemons.append(self._start(*command))
        self._wait_until_idle()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command[0]}-{command[-1]}.out").open("wb") as output:
            return subprocess.Popen(
                [*command, "-D", "-c"],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _wait_until_idle(self) -> None:
        self.wait_until(lambda: self._ask("show", "nodes").stdout.count("State=IDLE") == 2)

    def stop(self) -> None:
        """Ends the daemons and the jobs that still run."""
        self.command("scancel", "--me")
        try:
            self.wait_until(lambda: "JobState=COMPLETING" not in self._ask("show", "jobs").stdout)
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
                daemon.wait(STUCK_S)

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Waits for an event, as long as the daemons run."""
        limit = time.monotonic() + STUCK_S
        while not reached():
            assert all(daemon.poll() is None for daemon in self._daemons), self.logs()
            assert time.monotonic() < limit, self.logs()
            time.sleep(ASKED_EVERY_S)

    def logs(self) -> str:
        """Returns the logs of the daemons."""
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(f"{file.name}:\n{file.read_text()[-2000:]}" for file in files)

    def submit(self, folder: Path, *arguments: str, environment: Mapping[str, str]) -> str:
        """Submits from a folder with `sbatch`; returns the number of the job."""
        done = self.command("sbatch", "--parsable", *arguments, cwd=folder, environment=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Returns the scheduler's fields of a job, by SLURM's names."""
        return dict(re.findall(r"(\S+?)=(\S*)", self._ask("show", "job", number).stdout))

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.command("scontrol", *arguments)

    def command(
        self,
        *command: str,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of SLURM's commands to its end."""
        return subprocess.run(
            command,
            cwd=cwd,
            env={**(environment or os.environ), **self.environment},
            capture_output=True,
            text=True,
            timeout=STUCK_S,
            check=False,
        )


def _free_ports(number: int) -> list[int]:
    """Returns different free ports."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
