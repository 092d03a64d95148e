"""The folder of one run: its lock, its configuration, its status, and its logs across resumes.

If it is deleted during the run, it is rebuilt. A deleted file exists until the last process closes
it, so everything that was written to a log can be copied to a new file of the same name.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from bsmeta.config.schema import RunConfig
from bsmeta.config.values import to_yaml
from bsmeta.core.errors import ConfigurationError, TrainingError, UserError
from bsmeta.core.exit_codes import EXIT_PREEMPTED, EXIT_USER_ERROR
from bsmeta.core.files import is_full, replacing, write_text
from bsmeta.core.parsing import parse_json
from bsmeta.core.printable import printable
from bsmeta.core.rank import rank
from bsmeta.core.secrets import redact
from bsmeta.training import checkpoint
from bsmeta.training.checkpoint import CONFIG

if TYPE_CHECKING:  # imports torch, which is slow; a run that is refused should fail fast
    from bsmeta.training.processes import Processes

METRICS = "metrics.jsonl"
STATUS = "status.json"
ENVIRONMENT = "environment.jsonl"
"""A line for each start of the run, with its machine and versions, and one for each end."""

MARK = ".bsmeta-run"  # in every folder that a run created; only such folders are ever emptied
_LOCK = ".lock"
_OWNER = ".owner"  # names the process that holds the lock
_READERS_S = 0.5  # a reader of the status holds the lock for a moment
_MARK_TEXT = "A run of bsmeta made this folder: overwrite_out_dir=true deletes its content.\n"
_OF_REFUSED_STARTS = {_LOCK, _OWNER, STATUS}

logger = logging.getLogger(__name__)


def read_events(metrics: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; the last line of a killed process may be truncated."""
    with metrics.open(encoding="utf-8", errors="replace") as lines:
        return [event for line in lines if (event := _read_line(line)) is not None]


def _read_line(line: str) -> dict[str, Any] | None:
    """A line of a log; None if it is truncated, or anything else."""
    try:
        event = parse_json(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def last_events(metrics: Path) -> dict[str, dict[str, Any]]:
    """The last `step` event and the last `eval` event that a run logged; skips truncated lines."""
    found: dict[str, str] = {}
    if metrics.is_file():
        with metrics.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                for kind in ("step", "eval"):
                    if line.startswith(f'{{"event": "{kind}"') and line.endswith("}\n"):
                        found[kind] = line
    events = {kind: _read_line(line) for kind, line in found.items()}
    return {kind: event for kind, event in events.items() if event is not None}


def steps_and_evaluations(metrics: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The steps with a loss, and the evaluations, of a `metrics.jsonl`."""
    events = read_events(metrics)
    steps = [event for event in events if event.get("event") == "step" and "loss" in event]
    return steps, [event for event in events if event.get("event") == "eval"]


def read_environments(out_dir: Path) -> list[dict[str, Any]]:
    """The starts of a run, in order: `describe_environment`, `step`, `started` and `ended`.

    `ended` is None if the process died. Empty for a run that is older than the record.
    """
    starts: list[dict[str, Any]] = []
    if not (out_dir / ENVIRONMENT).exists():
        return starts
    for event in read_events(out_dir / ENVIRONMENT):
        values = {name: value for name, value in event.items() if name != "event"}
        if event.get("event") == "start":
            starts.append({**values, "ended": None})
        elif event.get("event") == "end" and starts:
            starts[-1]["ended"] = values.get("ended")
    return starts


def write_status(
    out_dir: Path, state: str, step: int, exit_code: int | None, message: str = ""
) -> str:
    """Writes `status.json` atomically; a launch script reads it to decide about requeueing.

    The state is `running`, `done`, `preempted` or `failed`. Returns the content of the file.
    """
    value = {"state": state, "step": step, "exit_code": exit_code, "message": redact(message)}
    text = json.dumps(value) + "\n"
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        write_text(out_dir / STATUS, text)
    except OSError as error:
        if not is_full(error) or not _overwrite(out_dir / STATUS, text):
            raise
    return text


def _overwrite(file: Path, text: str) -> bool:
    """Writes over the content of a file, which takes no room on a full disk; whether it worked.

    A message that is too long for the room of the file is cut.
    """
    room = file.stat().st_blocks * 512 if file.exists() else 0
    value = json.loads(text)
    while len(text.encode()) > room and value["message"]:
        value["message"] = value["message"][: len(value["message"]) // 2]
        text = json.dumps(value) + "\n"
    if len(text.encode()) > room:
        return False
    with open(file, "r+b") as stream:
        stream.write(text.encode())
        stream.truncate()
    return True


def read_status(out_dir: Path) -> dict[str, Any]:
    """The content of `status.json`; `running` only while a process holds the folder's lock.

    A killed process leaves `running` in the file: its state is `failed`, without an exit code.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If it is damaged.
    """
    status = parse_json((out_dir / STATUS).read_text(encoding="utf-8"))
    if not isinstance(status, dict):
        raise ValueError("expected a JSON object")
    if status.get("state") == "running" and not _is_held(out_dir):
        ended = "the process ended without writing its status: it was killed, or its machine failed"
        status |= {"state": "failed", "message": ended}
    return status


def _is_held(out_dir: Path) -> bool:
    """Whether a process holds the lock of a run folder; true if that cannot be found out."""
    try:
        with open(out_dir / _LOCK, "rb") as file:
            # Shared, so that several readers do not take each other for the run.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is locked, or the file system has no locks
        return True
    return False


def write_refusal(out_dir: Path, message: str) -> None:
    """Records in `status.json` that a run was refused before it began (exit code 2).

    Otherwise the status of an earlier run would be mistaken for that of this one. A finished run, a
    run in progress in the folder, and a folder that no run created are left unchanged.
    """
    _write_of_start(out_dir, lambda: write_status(out_dir, "failed", 0, EXIT_USER_ERROR, message))


@contextmanager
def refusal_in_status(config: RunConfig) -> Iterator[None]:
    """Records a user error in the status of the run, if the run writes one."""
    try:
        yield
    except UserError as error:
        keys = error.keys if isinstance(error, ConfigurationError) else ()
        is_run = not config.check_only and not config.estimate
        if rank() == 0 and is_run and "out_dir" not in keys:
            write_refusal(Path(config.out_dir), str(error))
        raise


def _write_of_start(out_dir: Path, write: Callable[[], object]) -> None:
    try:
        if _foreign(out_dir) or _is_done(out_dir):
            return
        out_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(out_dir / _LOCK, timeout=0):
            write()
    except Timeout:
        return
    except OSError as error:  # the message itself is more important
        logger.warning("%s: status.json could not be written: %s", out_dir, error)


def note_early_stop(out_dir: Path, name: str) -> int:
    """Records that a signal ended a run before it had locked its folder; returns the exit code.

    What `write_refusal` leaves unchanged is left unchanged here as well.
    """
    if rank() == 0:
        _write_of_start(out_dir, lambda: write_stopped_start(out_dir, name))
    return EXIT_PREEMPTED


def write_stopped_start(out_dir: Path, name: str) -> None:
    """Records in `status.json` that a signal ended a run before its first step (exit code 75)."""
    checkpoints = checkpoint.list_checkpoints(out_dir)
    step = checkpoints[-1].step if checkpoints else 0
    message = f"stopped by {name} before the first step of this start"
    write_status(out_dir, "preempted", step, EXIT_PREEMPTED, message)


class RunFolder:
    """The folder of one run; opened by rank 0 only, and locked until the process ends.

    If it is deleted during the run, the next write of rank 0 rebuilds it: the lock, the small files
    and everything logged so far. Other ranks restore their logs when they next call `share`; until
    then their lines go to the deleted files, from which they are restored. Only the earlier
    checkpoints are lost.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log: ProcessLog | None = None  # of this process; restored with the folder
        self._lock = FileLock(path / _LOCK)
        self._lock_file: tuple[int, int] | None = None  # its identity, in the process that holds it
        self._owner = f"process {os.getpid()} on {socket.gethostname()}, {uuid.uuid4().hex}\n"
        self._owner_file: tuple[int, int] | None = None  # its identity, likewise
        self._directory = -1  # kept open, so that no other folder gets its inode
        self._texts: dict[str, str] = {}  # the small files, by name
        self._logs: list[Log] = []
        self._rebuilt = False  # since the last call of `share`
        self._access = threading.RLock()  # the thread of an asynchronous save writes, too

    def open(self, config: Any, *, resume: bool, overwrite: bool) -> None:
        """Locks the folder for this run.

        Raises:
            ConfigurationError: If another run has locked it, if it holds files that belong to no
                run, if it holds an earlier run that this one neither resumes nor may overwrite, or
                if it is not writable.
        """
        try:
            self._take(resume=resume, overwrite=overwrite)
            checkpoint.remove_leftovers(self.path)
            if not (self.path / CONFIG).exists():
                write_text(self.path / CONFIG, to_yaml(config))
            self._hold()
        except OSError as error:
            raise ConfigurationError(
                f"out_dir: {self.path} cannot be used: {error.strerror or error}; expected a "
                "folder that can be written, or a new name"
            ) from error

    def _take(self, *, resume: bool, overwrite: bool) -> None:
        checkpoints = checkpoint.list_checkpoints(self.path)
        foreign = _foreign(self.path)
        if foreign and not (resume and checkpoints):  # copied checkpoints may be resumed
            raise ConfigurationError(
                f"out_dir: {self.path} holds {_listed(foreign)}, and no {MARK} of an earlier run; "
                "expected a new or empty folder, or that of a run, because overwrite_out_dir=true "
                "deletes all of it. Choose another out_dir, or move these files"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=_READERS_S, poll_interval=0.05)
        except Timeout:
            raise ConfigurationError(
                f"out_dir: {self.path} is held by another run that is in progress; choose another "
                "folder for this one"
            ) from None
        if not foreign and not (self.path / MARK).exists():
            (self.path / MARK).write_text(_MARK_TEXT)
        self.remember(MARK)
        if (checkpoints or (self.path / METRICS).exists()) and not resume:
            if not overwrite:
                resuming = "Resume it (resume_from_checkpoint_dir=latest), replace"
                raise ConfigurationError(
                    f"out_dir: {self.path} holds an earlier run; expected an empty folder. "
                    f"{resuming if checkpoints else 'Replace'} it (overwrite_out_dir=true), or "
                    "choose another out_dir"
                )
            self._empty()

    def begin(self, config: Any, step: int) -> None:
        """Prepares the folder for a run that continues after `step`, with this configuration.

        Called after all checks: until then the folder remains as the earlier run left it.
        """
        self.keep()
        checkpoint.set_aside_newer(self.path, step)
        for file in [self.path / METRICS, *self.path.glob("documents-rank*.jsonl")]:
            if file.exists():  # drop what was logged after this step: those steps are repeated
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                kept = [line for line in lines if _is_before(line, step)]
                write_text(file, "".join(line + "\n" for line in kept))
        write_text(self.path / CONFIG, to_yaml(config))
        self.remember(CONFIG)

    def open_log(self, name: str) -> Log:
        """Opens a log of this process; it is restored with the folder."""
        log = Log(self.path / name, self.keep)
        self._logs.append(log)
        return log

    def remember(self, name: str) -> None:
        """Restores this small file, as it is now, with the folder; ignored if it does not exist."""
        with suppress(FileNotFoundError):
            self._texts[name] = (self.path / name).read_text(encoding="utf-8", errors="replace")

    def write_status(self, state: str, step: int, exit_code: int | None, message: str = "") -> None:
        """Writes `status.json`; raises a TrainingError if the folder belongs to another run now."""
        with self._access:
            self.keep()
            self._texts[STATUS] = write_status(self.path, state, step, exit_code, message)

    # --- a folder that is deleted during the run ----------------------------------------------

    def share(self, processes: Processes) -> bool:
        """Rebuilds the folder if it was deleted, with the logs of all ranks; all call it together.

        Returns:
            Whether it was rebuilt since the last call: then its checkpoints are gone.

        Raises:
            TrainingError: If another run has taken its place.
        """

        def keep() -> bool:
            self.keep()
            rebuilt, self._rebuilt = self._rebuilt, False
            return rebuilt

        rebuilt = processes.on_main(keep)
        with suppress(FileNotFoundError):  # deleted once more, which rank 0 will notice
            self._restore_logs()
        return rebuilt

    def keep(self) -> None:
        """Rebuilds the folder if it was deleted since this process (rank 0) opened it.

        Raises:
            TrainingError: If another run has taken its place.
        """
        with self._access:
            if self._lock_file is None:
                return
            try:
                replaced = _identity(self.path / _LOCK) != self._lock_file
                taken_by = None if replaced else self._other_owner()
            except OSError:
                return
            if taken_by is not None:
                raise TrainingError(
                    f"out_dir: {self.path} is also used by the run of {taken_by}, which the lock "
                    "did not keep out: its file system has no locks between machines. Nothing more "
                    "was written. Give each run an out_dir of its own; what both have logged is "
                    "mixed since the later one began"
                )
            try:
                if replaced:
                    self._lock_again()
                for name, text in self._texts.items():
                    if not (self.path / name).exists():
                        write_text(self.path / name, text)
                restored = self._restore_logs()
            except FileNotFoundError:  # it is being deleted now: the next write tries again
                return
            if replaced or restored:
                self._rebuilt = True
                logger.warning(
                    "out_dir: %s was deleted during the run; it was rebuilt with everything logged "
                    "so far, but the earlier checkpoints are lost", self.path,
                )  # fmt: skip

    def is_replaced(self) -> bool:
        """Whether the folder belongs to another run now."""
        if self._lock_file is None:
            return False
        with suppress(OSError):
            present = _identity(self.path / _LOCK)
            if present == self._lock_file:
                return self._other_owner() is not None
            return present is not None
        return False

    def _other_owner(self) -> str | None:
        """The process, on whatever machine, that has opened the folder after this one; or None.

        On some network file systems, a lock only holds on one machine.
        """
        owner_file = _identity(self.path / _OWNER)
        if owner_file in (None, self._owner_file):
            return None
        owner = (self.path / _OWNER).read_text(encoding="utf-8", errors="replace")
        if owner == self._owner:
            self._owner_file = owner_file  # written again with the folder
            return None
        return owner.partition(",")[0]

    def _restore_logs(self) -> bool:
        own = [] if self.log is None or self.log.file is None else [self.log.file]
        restored = [log.restore() for log in (*self._logs, *own)]
        return any(restored)

    def _lock_again(self) -> None:
        held = os.fstat(self._directory)
        is_new = _identity(self.path) != (held.st_dev, held.st_ino)
        if is_new and (self.path / MARK).exists():
            raise self._taken()
        if is_new and _foreign(self.path):  # the user's own files, which may never be deleted
            self._texts.pop(MARK, None)
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / _LOCK, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise self._taken() from None
        self._lock = lock
        self._hold()

    def _hold(self) -> None:
        if self._directory >= 0:
            os.close(self._directory)
        self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self._lock_file = _identity(self.path / _LOCK)

        write_text(self.path / _OWNER, self._owner)
        self._owner_file = _identity(self.path / _OWNER)
        self._texts[_OWNER] = self._owner

    def _taken(self) -> TrainingError:
        return TrainingError(
            f"out_dir: {self.path} was replaced during the run: the folder there is now that of "
            "another run, or a copy of this one, and nothing was written to it. Start this run "
            "again in another out_dir"
        )

    def _empty(self) -> None:
        others = [mark.parent for mark in self.path.rglob(MARK) if mark.parent != self.path]
        if others:
            raise ConfigurationError(
                f"overwrite_out_dir: {self.path} also holds {_listed([*map(str, others)])}, which "
                "belong to other runs; expected one run. Delete or move them, or choose another "
                "out_dir"
            )
        for entry in self.path.iterdir():
            if entry.name in (_LOCK, MARK):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _foreign(out_dir: Path) -> list[str]:
    """Lists the entries of a folder that no run created; [] for a run folder or a missing one."""
    names = {entry.name for entry in out_dir.iterdir()} if out_dir.exists() else set()
    return [] if MARK in names else sorted(names - _OF_REFUSED_STARTS)


def _is_done(out_dir: Path) -> bool:
    try:
        return bool(parse_json((out_dir / STATUS).read_text())["state"] == "done")
    except (OSError, ValueError, KeyError, TypeError):  # missing or unreadable
        return False


def _listed(names: list[str], limit: int = 3) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none.

    Raises an OSError if a network file system does not respond, for example.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _is_before(line: str, step: int) -> bool:
    """Whether a logged line is complete and belongs to a step up to `step`."""
    try:
        return int(parse_json(line)["step"]) <= step
    except (ValueError, KeyError, TypeError, OverflowError):
        return False  # the last line of a killed process may be truncated


class Log:
    """A text file, flushed after every line, so that a killed process loses no line.

    `keep_folder` first rebuilds its folder if that was deleted.
    """

    def __init__(self, path: Path, keep_folder: Callable[[], object] = lambda: None) -> None:
        self._path = path
        self._keep_folder = keep_folder
        self._stream = path.open("a+b")
        self._access = threading.RLock()  # the thread of an asynchronous save may restore it

    def write(self, value: dict[str, Any]) -> None:
        """Writes a line of JSON, null for NaN and infinity, and ? for half a surrogate pair."""
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        plain = json.loads(text, parse_constant=lambda _: None)
        self.append(redact(json.dumps(plain)))

    def append(self, line: str) -> None:
        self._keep_folder()
        with self._access:
            self._stream.write(line.encode() + b"\n")
            self._stream.flush()

    def restore(self) -> bool:
        """Writes the file again with all its lines if it was deleted; returns whether it was.

        Raises a FileNotFoundError if its folder does not exist.
        """
        with self._access:
            if self._stream.closed or self._path.exists():
                return False
            content = b""
            with suppress(OSError):  # a network file system may have lost the deleted file
                self._stream.seek(0)
                content = self._stream.read()
            with replacing(self._path) as part:
                part.write_bytes(content)
            restored = self._path.open("a+b")
            with suppress(OSError):
                self._stream.close()
            self._stream = restored
            return True

    def close(self) -> None:
        try:
            self._keep_folder()
        finally:
            with self._access:
                self._stream.close()


class ProcessLog(logging.Handler):
    """The log of a process, `log-rank{r}.txt` in the run folder, across resumes.

    It has everything that the process logs, also what ranks other than 0 do not print. The folder
    of a refused start stays as it is: lines are held back until the checks have passed. Used as a
    context, it also records the error that ends the process.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._rank = rank
        self._world_size = world_size
        self._held_back: list[str] = []
        self.file: Log | None = None

    def open(self, folder: Path) -> None:
        """Begins to write, with the lines so far."""
        name = f"log-rank{self._rank}.txt"
        try:
            self.file = Log(folder / name)
        except OSError as error:
            logger.warning("%s cannot be written: %s", name, error)
            return
        host, process = socket.gethostname(), os.getpid()
        first = f"rank {self._rank} of {self._world_size} on {host}, process {process}"
        for line in (first, *self._held_back):
            self._write(line)
        self._held_back.clear()

    def emit(self, record: logging.LogRecord) -> None:
        line = printable(redact(self.format(record)))
        if self.file is None:
            self._held_back.append(line)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        """Writes a line; on a full disk it is lost, and the run ends where it needs the space."""
        if self.file is not None:
            with suppress(OSError):
                self.file.append(line)

    def __enter__(self) -> ProcessLog:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            trace = (type(error), error, error.__traceback__)
            values = (logger.name, logging.ERROR, __file__, 0, "the run ends:", (), trace)
            self.handle(logging.LogRecord(*values))
        logging.getLogger().removeHandler(self)
        if self.file is not None:
            with suppress(OSError):
                self.file.close()
