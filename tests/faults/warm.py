"""Starts scripts without the seconds that every process spends on importing torch and the like.

A server imports all that once. It forks torchrun (whose own code runs), and that forks the ranks,
each with an environment, a session and signal handlers as a new process has them: only `exec` is
left out. Three quarters of what the fault tests took were imports.

    python -m tests.faults.warm DESCRIPTOR      the server, which ends with its socket
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

LAUNCHER = "torch.distributed.run"
HANDLED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
MESSAGE = 1 << 20
POLL_S = 0.01
FIRST_DESCRIPTOR, LAST_DESCRIPTOR = 3, 1024


class Forked:
    """A command line of Python that runs in a fork of this process; as much as is used of Popen.

    Args:
        command: `python [-u] [-m torch.distributed.run …] script arguments…`.
        env: Its environment.
        errors: File descriptor that becomes its standard error; None shares that of this process.
    """

    def __init__(
        self, command: Sequence[str], env: dict[str, str], errors: int | None = None
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            become([*map(str, command)], env, errors)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """The exit code, when it has ended."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def become(command: list[str], env: dict[str, str], errors: int | None) -> NoReturn:
    """Makes this fork the process that the command would start, and ends it."""
    gc.freeze()  # what the parent holds is never collected here: its files are closed now
    os.setsid()
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if errors is not None:
        os.dup2(errors, sys.stderr.fileno())
    os.closerange(FIRST_DESCRIPTOR, LAST_DESCRIPTOR)
    os.environ.clear()
    os.environ.update(env)
    code = 1
    try:
        run(command[1:])
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    # What the interpreter does at its end.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def run(arguments: list[str]) -> None:
    """Runs what stands behind `python` on a command line."""
    if arguments[0] == "-u":
        arguments = arguments[1:]
    if arguments[:2] == ["-m", LAUNCHER]:
        from torch.distributed import run as launcher
        from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

        # The ranks, too: with the environment that the launcher gives them.
        SubprocessHandler._popen = lambda _, args, env: Forked(args, env)  # type: ignore
        sys.argv = arguments[1:]
        launcher.main(arguments[2:])
        return
    script = arguments[0]
    sys.argv = arguments
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


def serve(connection: socket.socket) -> None:
    """Starts what it is asked to start, and tells how it ended, until the socket is closed."""
    started: dict[int, Forked] = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE, 1)
        if not message:  # whoever asked is gone, perhaps killed: so are the runs
            for process in started.values():
                process.send_signal(signal.SIGTERM)
            return
        asked = json.loads(message)
        if "pid" in asked:
            answer = {"code": started[asked["pid"]].poll()}
        else:
            process = Forked(asked["command"], asked["env"], descriptors[0])
            started[process.pid] = process
            answer = {"pid": process.pid}
            os.close(descriptors[0])
        connection.send(json.dumps(answer).encode())


class Warm:
    """A process that the server has started; as much as is used of Popen.

    Attributes:
        pid: Its process id. It leads a session of its own.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        reading, writing = os.pipe()
        self.pid: int = ask({"command": list(command), "env": env}, writing)["pid"]
        os.close(writing)
        self._errors = bytearray()
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()
        self.returncode: int | None = None

    def _read(self, descriptor: int) -> None:
        while part := os.read(descriptor, 1 << 16):
            self._errors += part
        os.close(descriptor)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = ask({"pid": self.pid})["code"]
        return self.returncode

    def communicate(self, timeout: float = 60.0) -> tuple[None, str]:
        """Its standard error, when it and all that it has started have closed that."""
        self._reader.join(timeout)
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        self.wait(timeout)
        return None, self._errors.decode(errors="replace")

    def wait(self, timeout: float = 60.0) -> int:
        """The exit code, when it has ended."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_S)
        return code


def ask(question: dict[str, Any], *descriptors: int) -> dict[str, Any]:
    """The server's answer."""
    connection = server()
    socket.send_fds(connection, [json.dumps(question).encode()], descriptors)
    answer: dict[str, Any] = json.loads(connection.recv(MESSAGE))
    return answer


@functools.cache
def server() -> socket.socket:
    """The connection to the server, which is started by the first one who asks."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        subprocess.Popen(
            [sys.executable, "-m", "tests.faults.warm", str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return here


def main() -> None:
    """The server."""
    import accelerate  # noqa: F401
    import deepspeed  # noqa: F401
    import torch._dynamo  # every optimizer imports it
    import torch.distributed.run
    import torch.utils.data  # noqa: F401

    import bsmeta.data.loader
    import bsmeta.training.run  # noqa: F401

    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
