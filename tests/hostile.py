"""Reads hostile or damaged files in child processes, and reports how each read ended.

A reader is a function of a module (or a `functools.partial` of one) that reads the file at a path
to its end, the way the package does. It raises what the package raises:

    def read_lines(path: Path) -> None:
        for _ in first_lines(str(path), 1000):
            pass

    def test_damaged_lines() -> None:
        inputs = changed_bytes(intact)
        assert failures(read_all(read_lines, inputs, intact=intact, name="a.jsonl.gz")) == []

`read_all` yields an `Outcome` for each input, in order; `failures` describes those that are neither
read (`Ending.OK`) nor refused with an error of the package (`Ending.REFUSED`), each with the input
as a literal that can be pasted into a test. Inputs come from `changed_bytes` (each byte of a file,
in turn), `random_changes` (anything, reproducibly) or the test.

A child reads many inputs, one after the other: reading costs no new process unless it ends badly.
Each child first reads the intact file, which must succeed: it loads whatever is imported late, so
that memory is measured from there. A child that dies names the input that it was reading; a new
child continues with the next. The children are forks of a fresh interpreter that has imported the
reader's module and has no threads, never of the process of pytest.

To read a folder, put all but the damaged file of it in a folder, which is copied for each child,
and give that as `beside`; the reader uses the path's parent.
"""

from __future__ import annotations

import enum
import faulthandler
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

import psutil

from bsmeta.core.errors import UserError

Reader = Callable[[Path], object]

VALUES = (0x00, 0x01, 0x15, 0x7F, 0x80, 0xFF)
"""Values that `changed_bytes` tries by default: ends, signs, and lengths that do not fit."""

_BATCH = 1000  # inputs of a child
_BATCH_BYTES = 16 << 20  # ... and bytes
_ADDRESS_SPACE = 4 << 30  # more than at the start: protects the machine, not what is measured
_LOOK_S = 1.0  # between looks at a child that is reading
_KEPT_SHARE = 0.25  # of the limit of memory: a child that has kept more of it is replaced
_DETAIL = 4000  # characters at the end of a traceback or of what a child printed


class Ending(enum.StrEnum):
    """How a read ended."""

    OK = "ok"
    REFUSED = "refused"  # with an error of the package
    TRACEBACK = "traceback"  # with any other exception, `SystemExit` included
    ABORTED = "aborted"  # the process died
    HUNG = "hung"  # it used too much time of the processor, or waited without an end
    MEMORY = "memory"  # it used too much memory, or raised `MemoryError`


@dataclass(frozen=True)
class Limits:
    """What reading one input may use.

    Attributes:
        memory_bytes: Growth of the resident memory, at its peak, after reading the intact file.
        cpu_s: Seconds of the processor, of all threads.
        idle_s: Seconds of sleep without any processor time, as in an endless wait.
        refusals: The exceptions that refuse an input.
    """

    memory_bytes: int = 100 << 20
    cpu_s: int = 20
    idle_s: float = 60.0
    refusals: tuple[type[BaseException], ...] = (UserError,)


@dataclass(frozen=True)
class Outcome:
    """How the read of an input ended.

    Attributes:
        number: The number of the input, from 0.
        content: The input.
        detail: The message of a refusal, the traceback, or how the process died and what it last
            printed; empty if the input was read.
        peak_bytes: Growth of the resident memory at its peak; 0 if the process died.
    """

    number: int
    content: bytes = field(repr=False)
    ending: Ending
    detail: str = ""
    peak_bytes: int = 0


@dataclass(frozen=True)
class _Job:
    """The job of every child: the arguments of `read_all`, and its folder for writing."""

    reader: Reader
    name: str
    intact: bytes
    beside: Path | None
    limits: Limits
    folder: Path


@dataclass(frozen=True)
class _Report:
    """Sent by a child after each input."""

    ending: Ending
    detail: str
    peak_bytes: int


@dataclass(frozen=True)
class _End:
    """Sent at the end of a child; `OK` if it ended by itself, perhaps before its last input."""

    ending: Ending
    detail: str = ""


_READY = "the intact file was read"


def read_all(
    reader: Reader,
    inputs: Iterable[bytes],
    *,
    intact: bytes,
    name: str,
    beside: Path | None = None,
    limits: Limits = Limits(),
) -> Iterator[Outcome]:
    """Reads each input as a file of this name.

    Args:
        intact: A file that the reader accepts.
        name: The name of the file, with the suffix by which readers know formats.
        beside: A folder of other files, which are beside the file when it is read.

    Raises:
        AssertionError: If the reader does not accept the intact file.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        connection, theirs = context.Pipe()
        job = _Job(reader, name, intact, beside, limits, Path(folder))
        server = context.Process(target=_serve, args=(theirs, job), daemon=True)
        server.start()
        theirs.close()
        try:
            yield from _outcomes(connection, inputs)
        finally:
            connection.close()
            server.terminate()
            server.join()


def failures(outcomes: Iterable[Outcome], limit: int = 10) -> list[str]:
    """Describes the inputs that were neither read nor refused; at most `limit` of them."""
    bad = (outcome for outcome in outcomes if outcome.ending not in (Ending.OK, Ending.REFUSED))
    return [
        f"input {outcome.number}: {outcome.ending} (peak of {outcome.peak_bytes:,} bytes)\n"
        f"{outcome.content[:2000]!r}\n{outcome.detail}"
        for outcome in itertools.islice(bad, limit)
    ]


def changed_bytes(content: bytes, values: Sequence[int] = VALUES) -> Iterator[bytes]:
    """A file with one byte changed, for each byte: to each value, and with each bit flipped."""
    for offset, byte in enumerate(content):
        others = {*values, *(byte ^ 1 << bit for bit in range(8))} - {byte}
        for value in sorted(others):
            yield content[:offset] + bytes([value]) + content[offset + 1 :]


def random_changes(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Files with one to four random changes each, which depend on the seed alone."""
    source = random.Random(seed)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(source.randint(1, 4)):
            _change(changed, source)
        yield bytes(changed)


def _change(content: bytearray, source: random.Random) -> None:
    """Changes a file at one position, like a bad disk, a broken copy or an attacker."""
    begin = source.randrange(len(content) + 1)
    size = min(source.choice((1, 1, 2, 4, 8, 64, 512)), len(content) - begin)
    end = begin + size
    match source.randrange(8):
        case 0:
            content[begin:end] = source.randbytes(size)
        case 1:
            content[begin:end] = bytes([source.choice(VALUES)]) * size
        case 2:
            content[begin:end] = (source.choice(content or b"\0") for _ in range(size))
        case 3:
            del content[begin:end]
        case 4:
            content[begin:begin] = source.randbytes(size)
        case 5:
            content[begin:begin] = content[begin:end]
        case 6:
            limit = source.choice((1 << 31, 1 << 63, 1 << 16, 1 << 28)) - source.randint(0, 1)
            content[begin : begin + 8] = limit.to_bytes(8, source.choice(("little", "big")))
        case 7:
            if source.random() < 0.2:
                del content[begin:]
            elif size:
                content[begin] ^= 1 << source.randrange(8)


def _outcomes(connection: Connection, inputs: Iterable[bytes]) -> Iterator[Outcome]:
    number = 0
    for batch in _batches(inputs):
        while batch:
            connection.send(batch)
            reports, end = _receive(connection)
            for content, report in zip(batch, reports, strict=False):
                yield Outcome(number, content, report.ending, report.detail, report.peak_bytes)
                number += 1

            batch = batch[len(reports) :]
            if end.ending is not Ending.OK:
                yield Outcome(number, batch[0], end.ending, end.detail)
                number += 1
                batch = batch[1:]


def _receive(connection: Connection) -> tuple[list[_Report], _End]:
    """Receives all messages of a child, which must never wait for the consumer of outcomes."""
    message = connection.recv()
    assert message == _READY, f"the intact file is not read: {message}"

    reports = []
    while isinstance(message := connection.recv(), _Report):
        reports.append(message)
    return reports, message


def _batches(inputs: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for content in inputs:
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(content)
        size += len(content)
    if batch:
        yield batch


def _serve(connection: Connection, job: _Job) -> None:
    """Main loop of the interpreter that imported the reader: forks a child for each batch."""
    while True:
        try:
            batch = connection.recv()
        except EOFError:
            return
        output = job.folder / "output"
        output.write_bytes(b"")
        pid = os.fork()
        if pid == 0:
            _read_batch(connection, job, batch)
        is_idle = _kill_if_idle(pid, job.limits.idle_s)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.send(_end_of(code, output, is_idle=is_idle))


def _kill_if_idle(pid: int, idle_s: float) -> bool:
    """Waits for the end of a child; returns whether it was idle for so long that it was killed."""
    descriptor = os.pidfd_open(pid)
    try:
        process = psutil.Process(pid)
        used, since = -1.0, time.monotonic()
        while not wait([descriptor], _LOOK_S):
            times = process.cpu_times()
            if times.user + times.system > used or process.status() != psutil.STATUS_SLEEPING:
                used, since = times.user + times.system, time.monotonic()
            elif time.monotonic() > since + idle_s:
                process.kill()
                return True
    finally:
        os.close(descriptor)
    return False


def _end_of(code: int, output: Path, *, is_idle: bool) -> _End:
    if code == 0:
        return _End(Ending.OK)
    printed = output.read_text(errors="replace")[-_DETAIL:]
    if is_idle:
        return _End(Ending.HUNG, f"it waited without an end\n{printed}")
    if code == -signal.SIGXCPU:
        return _End(Ending.HUNG, f"it used too much time of the processor\n{printed}")
    reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return _End(Ending.ABORTED, f"{reason}\n{printed}")


def _read_batch(connection: Connection, job: _Job, batch: Sequence[bytes]) -> None:
    """Reads inputs until one may have left something; then exits."""
    code = 1  # if the intact file is not read
    try:
        output = os.open(job.folder / "output", os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable(2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with tempfile.TemporaryDirectory(dir=job.folder) as folder:
            _read_inputs(connection, job, batch, Path(folder) / "read")
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _read_inputs(connection: Connection, job: _Job, batch: Sequence[bytes], folder: Path) -> None:
    if job.beside is None:
        folder.mkdir()
    else:
        shutil.copytree(job.beside, folder)
    path = folder / job.name
    path.write_bytes(job.intact)
    job.reader(path)
    connection.send(_READY)

    begin = _resident("VmRSS")
    _limit_address_space()
    for content in batch:
        path.write_bytes(content)
        _limit_processor(job.limits.cpu_s)
        _reset_peak()
        ending, detail = _read(job, path)
        peak = max(_resident("VmHWM") - begin, 0)
        if peak > job.limits.memory_bytes:
            ending, detail = Ending.MEMORY, f"{peak:,} bytes; {ending}: {detail}"
        connection.send(_Report(ending, detail, peak))
        is_large = _resident("VmRSS") - begin > job.limits.memory_bytes * _KEPT_SHARE
        if is_large or ending not in (Ending.OK, Ending.REFUSED):
            return  # the next input is read by a fresh child


def _read(job: _Job, path: Path) -> tuple[Ending, str]:
    try:
        job.reader(path)
    except job.limits.refusals as error:
        return Ending.REFUSED, str(error)
    except MemoryError:
        return Ending.MEMORY, traceback.format_exc()[-_DETAIL:]
    except BaseException:
        return Ending.TRACEBACK, traceback.format_exc()[-_DETAIL:]
    return Ending.OK, ""


def _resident(name: str) -> int:
    """Returns a number of bytes of /proc/self/status: `VmRSS`, or its peak, `VmHWM`."""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def _reset_peak() -> None:
    """Resets the peak of the resident memory to its present value; see proc(5), `clear_refs`."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _limit_address_space() -> None:
    limit = psutil.Process().memory_info().vms + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _limit_processor(seconds: int) -> None:
    """Ends this process with SIGXCPU after `seconds` more processor seconds."""
    limit = int(time.process_time()) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
