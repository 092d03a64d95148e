"""The folder of one run: locked while the run exists, and rebuilt if it is deleted meanwhile."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import write_text
from bsmeta.core.parsing import parse_json
from bsmeta.training.checkpoints import checkpoint
from bsmeta.training.checkpoints.checkpoint import CONFIG_FILE
from bsmeta.training.ranks.shared_folder import TOKEN
from bsmeta.training.run_folder.events import METRICS
from bsmeta.training.run_folder.lock import OWNER, FolderLock, make_replaced_error
from bsmeta.training.run_folder.logs import Log, ProcessLog
from bsmeta.training.run_folder.status import LOCK, STATUS, write_status
from bsmeta.training.run_folder.store import RunStore

if TYPE_CHECKING:  # imports torch, which is slow; a run that is refused should fail fast
    from bsmeta.training.ranks.processes import Processes

MARK = ".bsmeta-run"  # in every folder that a run created; only such folders are ever emptied
_MARK_TEXT = "A run of bsmeta made this folder: overwrite_out_dir=true deletes its content.\n"
_FILES_OF_REFUSED_STARTS = {LOCK, OWNER, STATUS}

logger = logging.getLogger(__name__)


class RunFolder:
    """The folder of one run; opened by rank 0, and locked until the process ends.

    A run in a bucket may have a folder on each machine, which the first rank there opens.

    If it is deleted during the run, the next write of rank 0 rebuilds it: the lock, the small files
    and everything logged so far. Other ranks restore their logs when they next call
    `rebuild_with_logs`; until then they write their lines to the deleted files, from which the logs
    are restored. Only the earlier checkpoints are lost.

    Attributes:
        store: Publishes the folder; by default, the folder is its own publication.
        leaders: For each rank, the lowest rank with the same folder, as in `Processes`.
        process_log: The log of this process, which is restored with the folder.
    """

    def __init__(self, path: Path, store: RunStore | None = None) -> None:
        self.path = path
        self.store = store or RunStore(path)
        self.leaders: tuple[int, ...] = ()
        self.process_log: ProcessLog | None = None

        self._lock = FolderLock(path)
        self._remembered_texts = {OWNER: self._lock.owner}  # the small files, by name
        self._logs: list[Log] = []
        self._was_rebuilt = False  # since the last call of `rebuild_with_logs`
        self._access = threading.RLock()  # the thread of an asynchronous save writes, too

    def open(self, config: Any, *, resume: bool, overwrite: bool) -> None:
        """Locks the folder for this run.

        Raises:
            ConfigurationError: If another run has locked it, if it holds files that belong to no
                run, if it holds an earlier run that this one neither resumes nor may overwrite, or
                if it is not writable.
        """
        with self._explain_os_errors():
            if self.store.uploads:  # the bucket decides whether there is an earlier run
                self._claim(resume=True, overwrite=False)
            else:
                self._claim(resume=resume, overwrite=overwrite)
            checkpoint.remove_leftovers(self.path)
            self.store.open(resume=resume, overwrite=overwrite)
            if not (self.path / CONFIG_FILE).exists():
                write_text(self.path / CONFIG_FILE, format_yaml(config))
            self._lock.record_owner()

    def join(self, processes: Processes, *, resume: bool) -> None:
        """Opens the folders of ranks that do not share rank 0's. All ranks call it.

        Raises:
            ConfigurationError: If such a folder cannot be used; see `open`.
        """

        def open_copy() -> None:
            if processes.is_main or not processes.is_leader:
                return
            with self._explain_os_errors():
                self._claim(resume=True, overwrite=False)
                checkpoint.remove_leftovers(self.path)
                self.store.stage(resume=resume)
                self._lock.record_owner()

        self.leaders = processes.leaders
        processes.run_on_all(open_copy)
        self.store.join(processes)

    @contextmanager
    def _explain_os_errors(self) -> Iterator[None]:
        """Context that raises a ConfigurationError for a folder that cannot be used."""
        try:
            yield
        except OSError as error:
            raise ConfigurationError(
                f"out_dir: {self.path} cannot be used: {error.strerror or error}; expected a "
                "folder that can be written, or a new name"
            ) from error

    def _claim(self, *, resume: bool, overwrite: bool) -> None:
        """Checks that this run may use the folder, locks it, and deletes an earlier run in it."""
        has_checkpoints = bool(checkpoint.list_checkpoints(self.path))
        foreign_files = list_foreign_files(self.path)
        if foreign_files and not (resume and has_checkpoints):  # copied checkpoints may be resumed
            raise ConfigurationError(
                f"out_dir: {self.path} holds {_list_first_names(foreign_files)}, and no {MARK} of "
                "an earlier run; expected a new or empty folder, or that of a run, because "
                "overwrite_out_dir=true deletes all of it. Choose another out_dir, or move these "
                "files"
            )

        self._lock.acquire()
        if not foreign_files and not (self.path / MARK).exists():
            (self.path / MARK).write_text(_MARK_TEXT)
        self.remember_file(MARK)

        has_earlier_run = has_checkpoints or (self.path / METRICS).exists()
        if has_earlier_run and not resume:
            if not overwrite:
                raise self._make_earlier_run_error(can_resume=has_checkpoints)
            self._delete_content()

    def _make_earlier_run_error(self, *, can_resume: bool) -> ConfigurationError:
        """Makes the error for a folder that holds an earlier run."""
        replacement = "Replace it"
        if can_resume:
            replacement = "Resume it (resume_from_checkpoint_dir=latest), replace it"
        return ConfigurationError(
            f"out_dir: {self.path} holds an earlier run; expected an empty folder. "
            f"{replacement} (overwrite_out_dir=true), or choose another out_dir"
        )

    def begin(self, config: Any, step: int) -> None:
        """Prepares the folder for a run that continues after `step`, with this configuration.

        Called after all checks: until then the folder remains as the earlier run left it.
        """
        self.rebuild_if_deleted()
        self.store.delete_later(step)
        checkpoint.set_aside_newer(self.path, step)
        self._cut_logs(step)

        write_text(self.path / CONFIG_FILE, format_yaml(config))
        self.remember_file(CONFIG_FILE)
        self.store.begin()

    def _cut_logs(self, step: int) -> None:
        """Drops the lines of all steps after `step`, which the run repeats."""
        for file in [self.path / METRICS, *self.path.glob("documents-rank*.jsonl")]:
            if file.exists():
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                lines_until_step = [line for line in lines if _is_up_to_step(line, step)]
                write_text(file, "".join(line + "\n" for line in lines_until_step))

    def open_log(self, name: str) -> Log:
        """Opens a log of this process, which is restored if the folder is deleted."""
        log = Log(self.path / name, self.rebuild_if_deleted)
        self._logs.append(log)
        return log

    def remember_file(self, name: str) -> None:
        """Remembers the content of a small file, to restore it if the folder is deleted.

        A file that does not exist is ignored.
        """
        with suppress(FileNotFoundError):
            text = (self.path / name).read_text(encoding="utf-8", errors="replace")
            self._remembered_texts[name] = text

    def write_status(self, state: str, step: int, exit_code: int | None, message: str = "") -> None:
        """Writes `status.json`; raises a TrainingError if the folder belongs to another run now."""
        with self._access:
            self.rebuild_if_deleted()
            status = write_status(self.path, state, step, exit_code, message)
            self._remembered_texts[STATUS] = status

    # --- a folder that is deleted during the run ----------------------------------------------

    def rebuild_with_logs(self, processes: Processes) -> bool:
        """Rebuilds the folder if it was deleted, with the logs of all ranks. All ranks call it.

        Returns:
            Whether it was rebuilt since the last call; its checkpoints are then lost.

        Raises:
            TrainingError: If the folder now belongs to another run.
        """

        def rebuild() -> bool:
            self.rebuild_if_deleted()
            was_rebuilt = self._was_rebuilt
            self._was_rebuilt = False
            return was_rebuilt

        was_rebuilt = processes.on_leaders(rebuild)
        with suppress(FileNotFoundError):  # deleted once more, which rank 0 will notice
            self._restore_logs()
        return was_rebuilt

    def rebuild_if_deleted(self) -> None:
        """Rebuilds the folder if it was deleted since this process (rank 0) opened it.

        Raises:
            TrainingError: If the folder now belongs to another run.
        """
        with self._access:
            if not self._lock.is_held:
                return

            try:
                is_lock_gone = self._lock.is_gone()
                if not is_lock_gone:
                    self._lock.check_owner()
            except OSError:
                return

            try:
                if is_lock_gone:
                    self._lock_again()
                self._restore_small_files()
                has_restored_logs = self._restore_logs()
            except FileNotFoundError:  # it is being deleted now: the next write tries again
                return

            if is_lock_gone or has_restored_logs:
                self._was_rebuilt = True
                logger.warning(
                    "out_dir: %s was deleted during the run; it was rebuilt with everything logged "
                    "so far, but the earlier checkpoints are lost",
                    self.path,
                )

    def is_replaced(self) -> bool:
        """Whether the folder belongs to another run now."""
        return self._lock.is_replaced()

    def _lock_again(self) -> None:
        """Locks the folder after its lock was deleted, alone or with the folder.

        Raises:
            TrainingError: If the folder now belongs to another run.
        """
        if self._lock.is_in_other_folder():
            if (self.path / MARK).exists():
                raise make_replaced_error(self.path)
            # Without its mark, files of the user in the new folder are never deleted.
            if list_foreign_files(self.path):
                self._remembered_texts.pop(MARK, None)
        self._lock.acquire_again()

    def _restore_small_files(self) -> None:
        """Writes the remembered files that do not exist."""
        for name, text in self._remembered_texts.items():
            if not (self.path / name).exists():
                write_text(self.path / name, text)

    def _restore_logs(self) -> bool:
        """Restores the deleted logs of this process; returns whether any was restored."""
        logs = list(self._logs)
        if self.process_log is not None and self.process_log.file is not None:
            logs.append(self.process_log.file)
        were_restored = [log.restore() for log in logs]
        return any(were_restored)

    def _delete_content(self) -> None:
        """Deletes the content of the folder, except its lock and its mark.

        Raises:
            ConfigurationError: If it contains folders of other runs.
        """
        other_runs = [
            str(mark.parent) for mark in self.path.rglob(MARK) if mark.parent != self.path
        ]
        if other_runs:
            raise ConfigurationError(
                f"overwrite_out_dir: {self.path} also holds {_list_first_names(other_runs)}, which "
                "belong to other runs; expected one run. Delete or move them, or choose another "
                "out_dir"
            )

        for entry in self.path.iterdir():
            if entry.name in (LOCK, MARK):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def list_foreign_files(out_dir: Path) -> list[str]:
    """Lists the entries of a folder that no run created; [] for a run folder or a missing one."""
    if not out_dir.exists():
        return []
    names = {entry.name for entry in out_dir.iterdir()}
    if MARK in names:
        return []
    others = names - _FILES_OF_REFUSED_STARTS
    return sorted(name for name in others if not name.startswith(TOKEN))


def _list_first_names(names: list[str], limit: int = 3) -> str:
    """Lists the first names, and the number of the others."""
    num_others = len(names) - limit
    others = f" and {num_others} more" if num_others > 0 else ""
    return ", ".join(names[:limit]) + others


def _is_up_to_step(line: str, step: int) -> bool:
    """Whether a logged line is complete and belongs to a step up to `step`."""
    try:
        return int(parse_json(line)["step"]) <= step
    except (ValueError, KeyError, TypeError, OverflowError):
        return False  # the last line of a killed process may be truncated
