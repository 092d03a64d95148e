"""Starts Python programs without the seconds that each process spends importing torch and the like.

A server imports all that once for all workers of pytest, and forks a process for each. That one
forks the programs that its worker asks for: a script, torchrun or `accelerate launch`, whose own
code runs and forks the ranks. Each program has the environment, the session and the signal handlers
of a new one; only `exec` is left out. Three quarters of what such tests took were imports.

What a library reads from the environment at import, and the seed of hashes, are those of the
server: a test that depends on them starts a new interpreter.

    python -m tests.warm DESCRIPTOR      the server, which ends when all connections are closed
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
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
from pathlib import Path
from typing import Any, NoReturn

from tests.waiting import POLL_S, STUCK_S, wait_until

REPOSITORY = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", **os.environ}
IMPORTED = (
    "accelerate.commands.launch",
    "awkward",  # what gigatoken imports in use
    "bsmeta.config.composing.compose",
    "bsmeta.tasks.causal_lm.evaluation.evaluate",
    "bsmeta.tasks.causal_lm.task",
    "bsmeta.tasks.classification.task",
    "bsmeta.tasks.disambiguation.task",
    "bsmeta.tasks.spelling.task",
    "bsmeta.training.run",
    "datasets",
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # every engine imports it, and it torch._inductor
    "gigatoken",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "scipy.stats",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "sklearn.svm",
    "torch._dynamo",  # every optimizer imports it
    "torch.distributed.checkpoint",
    "torch.distributed.run",
    "torch.utils.data",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
)
INSTALLED = sys.path[1:]  # all but the folder of the program
HANDLED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
MESSAGE = 1 << 20
FIRST_DESCRIPTOR, LAST_DESCRIPTOR = 3, 1024


class Forked:
    """A command line of Python that runs in a fork of this process; a subset of Popen.

    Args:
        command: `python [-u] script arguments…` or `python [-u] -m module arguments…`.
        env: Environment.
        folder: Working folder; None: as this process.
        streams: File descriptors that become its standard output and error; empty to share those
            of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str],
        folder: str | None = None,
        streams: Sequence[int] = (),
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            become([*map(str, command)], env, folder, streams)

    def poll(self) -> int | None:
        """Returns the exit code; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """Waits for the end; returns the exit code."""
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


def become(
    command: list[str], env: dict[str, str], folder: str | None, streams: Sequence[int]
) -> NoReturn:
    """Makes this fork the process that the command would start, and ends it."""
    gc.freeze()  # what the parent holds is never collected here: its files are closed now
    os.setsid()
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, descriptor in zip((sys.stdout, sys.stderr), streams, strict=False):
        os.dup2(descriptor, stream.fileno())
    os.closerange(FIRST_DESCRIPTOR, LAST_DESCRIPTOR)
    os.environ.clear()
    os.environ.update(env)
    if folder is not None:
        os.chdir(folder)
    code = 1
    try:
        run(command[1:])
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
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
    """Runs the arguments after `python` of a command line."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    # The ranks, too: with the environment that the launcher gives them.
    SubprocessHandler._popen = lambda _, args, env: Forked(args, env)  # type: ignore

    # The launcher looks up its own stack for each event that nobody reads: a second of the
    # processor with all the modules that are imported here.
    dynamic_rendezvous.get_method_name = lambda depth=2: "no_method_name"

    if arguments[0] == "-u":
        arguments = arguments[1:]
    if arguments[0] == "-m":
        sys.argv, sys.path = arguments[1:], [os.getcwd(), *INSTALLED]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path = arguments, [os.path.dirname(arguments[0]), *INSTALLED]
        runpy.run_path(arguments[0], run_name="__main__")


def serve(connection: socket.socket) -> None:
    """Starts the requested programs and reports how they ended, until the socket is closed."""
    started: dict[int, Forked] = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE, 2)
        if not message:  # whoever asked is gone, perhaps killed: so are the runs
            for process in started.values():
                process.send_signal(signal.SIGTERM)
            return
        asked = json.loads(message)
        if "pid" in asked:
            answer = {"code": started[asked["pid"]].poll()}
        else:
            process = Forked(asked["command"], asked["env"], asked["folder"], descriptors)
            started[process.pid] = process
            answer = {"pid": process.pid}
            for descriptor in descriptors:
                os.close(descriptor)
        connection.send(json.dumps(answer).encode())


class Warm:
    """A process that the server has started; a subset of Popen.

    Its output is read at once and kept.

    Attributes:
        pid: Process id. It leads a separate session.
    """

    def __init__(
        self, command: Sequence[str], env: dict[str, str], folder: Path = REPOSITORY
    ) -> None:
        pipes = [os.pipe(), os.pipe()]
        request = {"command": [*map(str, command)], "env": env, "folder": str(folder)}
        self.pid: int = ask(request, *(writing for _, writing in pipes))["pid"]
        self.returncode: int | None = None
        self._streams = (bytearray(), bytearray())
        self._readers = []
        for (reading, writing), stream in zip(pipes, self._streams, strict=True):
            os.close(writing)
            self._readers.append(threading.Thread(target=keep, args=(reading, stream), daemon=True))
            self._readers[-1].start()

    def poll(self) -> int | None:
        """Returns the exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = ask({"pid": self.pid})["code"]
        return self.returncode

    def communicate(self, timeout: float = STUCK_S) -> tuple[str, str]:
        """Returns output and errors once the process and its descendants have closed them."""
        deadline = time.monotonic() + timeout
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        self.wait(timeout)
        output, errors = (stream.decode(errors="replace") for stream in self._streams)
        return output, errors

    def wait(self, timeout: float = STUCK_S) -> int:
        """Waits for the end; returns the exit code."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_S)
        return code

    def kill(self) -> None:
        """Ends it, unless it has ended; the ranks of a launcher notice that it is gone."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def keep(descriptor: int, stream: bytearray) -> None:
    """Reads all that is written to a pipe."""
    while part := os.read(descriptor, 1 << 16):
        stream += part
    os.close(descriptor)


def ask(question: dict[str, Any], *descriptors: int) -> dict[str, Any]:
    """Returns the server's answer."""
    connection = server()
    socket.send_fds(connection, [json.dumps(question).encode()], descriptors)
    answer: dict[str, Any] = json.loads(connection.recv(MESSAGE))
    return answer


@functools.cache
def server() -> socket.socket:
    """Returns the connection to the server, which the first worker starts."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    address = f"\0bsmeta-warm-{run}"  # no file, and gone with its socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:  # another worker has it
            pass
        else:
            listener.listen()
            subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(listener.fileno())],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=REPOSITORY,
                env=ENVIRONMENT,
            )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wait_until(lambda: connection.connect_ex(address) == 0)  # 0: also before it accepts
    return connection


def compose_once() -> None:
    """Composes a configuration, so that the programs find parsers and schemas prepared."""
    from bsmeta.config.causal_lm import CausalLMConfig
    from bsmeta.config.composing.compose import compose_command_line

    compose_command_line(CausalLMConfig, "demo", ["seed=1"])


def main() -> None:
    """Runs the server: forks a process for each connection, and ends after all of them."""
    for module in IMPORTED:
        importlib.import_module(module)
    compose_once()
    serving: set[int] = set()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        listener.settimeout(1.0)  # between looks at who has ended
        while True:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    serve(connection)
                    return
                serving.add(pid)
                connection.close()
            ended = {pid for pid in serving if os.waitpid(pid, os.WNOHANG)[0]}
            serving -= ended
            if ended and not serving:
                return


if __name__ == "__main__":
    main()
