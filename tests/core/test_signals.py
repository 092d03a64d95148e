"""Which signals ask a run to end, and the output of a run whose caller has closed it."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import REPOSITORY
from tests.waiting import STUCK_S

START = """
import os, signal, sys
from bsmeta.core.process import run_and_report
from bsmeta.core.signals import StopRequest

def leave(name):
    print(name, flush=True)
    return 75

stop = StopRequest()
stop.install(leave, os.getppid())
"""
LOADER = """
from torch.utils.data import DataLoader
assert len([*DataLoader(range(4), num_workers=1)]) == 4
print("the worker has ended", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""
END = """
sys.exit(run_and_report(lambda: print("done")))
"""


def run_program(program: str, closed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {closed}', "bash", sys.executable, "-c", START + program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


def test_the_end_of_a_loader_process_does_not_end_the_run() -> None:
    """Torch handles SIGCHLD in Python, so its number, too, arrives where signals are received."""
    done = run_program(LOADER)
    assert (done.returncode, done.stdout) == (75, "the worker has ended\nSIGTERM\n"), done.stderr


def test_a_run_without_standard_output_exits_with_0() -> None:
    done = run_program(END, ">&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_run_without_standard_error_exits_with_0() -> None:
    """Trackers and progress bars ask whether standard error is a terminal."""
    done = run_program(f"assert not sys.stderr.isatty()\n{END}", "2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
