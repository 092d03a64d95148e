"""A run in a bucket: its local folder is uploaded to a prefix, whose objects `run_objects` names.

A checkpoint exists in the bucket exactly if its manifest does. Locally, older checkpoints shrink to
stubs: the manifest, the states in JSON and the configuration. `fetch` completes a stub again.

Machines need not share the run folder: each rank uploads files of its own folder, and each machine
downloads all files of a checkpoint that is read. Rank 0 alone claims the prefix, uploads manifests
and deletes objects. The leader of each folder (`Processes.leaders`) publishes its ranks' logs.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bsmeta.config.steps import CHECKPOINT_NAME
from bsmeta.core.errors import CheckpointError, ConfigurationError, DataError, TrainingError
from bsmeta.core.files import format_bytes, measure_free_bytes, replace_atomically
from bsmeta.core.parsing import parse_json
from bsmeta.core.secrets import format_url
from bsmeta.models.manifest import MANIFEST, find_fault, read_manifest
from bsmeta.training.buckets.bucket import ObjectExistsError, ObjectMissingError, RunBucket
from bsmeta.training.checkpoints.checkpoint import (
    CONFIG_FILE,
    DATA_STATE_FILE,
    KEEP_FILE,
    TRAINER_STATE_FILE,
    Checkpoint,
    list_checkpoints,
    name_folder,
)
from bsmeta.training.ranks.file_shares import divide_files, select_unique_files
from bsmeta.training.run_folder.run_objects import (
    CLAIM,
    LOG,
    LOG_PART,
    MARK_OBJECT,
    REHEARSAL_OBJECTS,
    RUN_OBJECTS,
    is_claim,
    is_internal,
    join_logs,
    list_log_parts,
)
from bsmeta.training.run_folder.store import RunStore

if TYPE_CHECKING:  # imports torch, which is slow; a run that is refused should fail fast
    from bsmeta.training.ranks.processes import Processes

PUBLISH_INTERVAL_S = 60.0
"""Seconds between uploads of the logs while no checkpoint is saved."""

_RANK_FILE = re.compile(r".+-rank(\d+)\.[a-z]+")  # of the rank that writes it
_STUB_FILES = (MANIFEST, TRAINER_STATE_FILE, DATA_STATE_FILE, CONFIG_FILE)
_NUM_REQUESTS = 4  # objects that a rank downloads or deletes at a time

logger = logging.getLogger(__name__)


class BucketStore(RunStore):
    """A run in a bucket, with a local staging folder.

    Args:
        max_bytes: Size limit of the staging folder; None: the free disk space.
    """

    uploads = True

    def __init__(self, folder: Path, bucket: RunBucket, max_bytes: int | None = None) -> None:
        super().__init__(folder)
        self._bucket = bucket
        self._max_bytes = max_bytes
        self._claim_name: str | None = None
        host = socket.gethostname()
        claim = {"host": host, "process": os.getpid(), "id": uuid.uuid4().hex}
        self._claim = json.dumps(claim).encode()
        self._rank = 0
        self._leaders: tuple[int, ...] = ()  # as in `Processes`

        self._committed: set[str] = set()  # names of the checkpoints with a manifest
        self._stamps: dict[str, tuple[int, int]] = {}  # of the other files, when uploaded
        self._log_start = 1  # number of this start of the run
        self._log_parts: dict[str, int] = {}
        self._log_positions: dict[str, int] = {}  # bytes that are uploaded
        self._access = threading.RLock()
        self._has_ended = threading.Event()
        self._publisher: threading.Thread | None = None

    # --- the start of a run -----------------------------------------------------------------

    def open(self, *, resume: bool, overwrite: bool) -> None:
        """See `RunStore`.

        Raises:
            ConfigurationError: If another run holds the prefix, if it has objects that belong to no
                run, if it has an earlier run that this one neither resumes nor may overwrite, or if
                a request is refused.
        """
        names = [entry.name for entry in self._bucket.list_objects()]
        claims = sorted(filter(is_claim, names))
        self._check_prefix(names, claims, resume=resume, overwrite=overwrite)
        if not resume:
            self._check_other_runs(names)
        self._claim_prefix(claims)

        if not resume:
            manifests = [name for name in names if name.endswith(f"/{MANIFEST}")]
            others = (name for name in names if name not in (*manifests, MARK_OBJECT, *claims))
            self._bucket.delete(*manifests, *others)
        self.stage(resume=resume)

    def _check_prefix(
        self, names: list[str], claims: list[str], *, resume: bool, overwrite: bool
    ) -> None:
        """Refuses a prefix that this run may not use."""
        url = self._bucket.url
        if names and MARK_OBJECT not in names:
            raise ConfigurationError(
                f"out_dir={url}: found objects such as {names[0]}, and no {MARK_OBJECT} of an "
                "earlier run; expected an empty prefix. Choose another out_dir"
            )

        if claims:
            holder = self._read_holder(claims[-1])
            if _is_alive(holder) or not (resume or overwrite):
                raise ConfigurationError(
                    f"out_dir={url}: it is held by process {holder.get('process')} on "
                    f"{holder.get('host')}; expected a prefix of its own for each run. If that "
                    "process was killed, resume it (resume_from_checkpoint_dir=latest), or replace "
                    "it (overwrite_out_dir=true)"
                )
        has_earlier_run = any(
            name.endswith(f"step/{MANIFEST}") or name.startswith("metrics.jsonl/") for name in names
        )
        if has_earlier_run and not (resume or overwrite):
            raise ConfigurationError(
                f"out_dir={url}: it holds an earlier run; expected an empty prefix. Resume it "
                "(resume_from_checkpoint_dir=latest), replace it (overwrite_out_dir=true), or "
                "choose another out_dir"
            )

    def _check_other_runs(self, names: list[str]) -> None:
        """Refuses to delete other runs below the prefix, and to begin a run below another one."""
        outer_url = self._bucket.find_parent_with(MARK_OBJECT)
        if outer_url is not None:
            raise ConfigurationError(
                f"out_dir={self._bucket.url}: it is below {format_url(outer_url)}, which belongs "
                "to another run; expected a prefix outside of it. Choose another out_dir"
            )

        marks = [name for name in names if name.endswith(f"/{MARK_OBJECT}")]
        if marks:
            raise ConfigurationError(
                f"out_dir={self._bucket.url}: it also holds {marks[0].removesuffix(MARK_OBJECT)}, "
                "which belongs to another run, and would be deleted; expected one run. Move or "
                "delete that run, or choose another out_dir"
            )

    def _read_holder(self, claim: str) -> dict[str, object]:
        """Reads the process of a claim; {} if it has just been released, or cannot be read."""
        with suppress(ValueError):
            holder = parse_json(self._bucket.read(claim) or b"{}")
            if isinstance(holder, dict):
                return holder
        return {}

    def _claim_prefix(self, claims: list[str]) -> None:
        """Claims the prefix; the holder of an earlier claim then ends at its next save."""
        match = CLAIM.fullmatch(claims[-1]) if claims else None
        number = int(match[1]) + 1 if match is not None else 1
        name = f"{RUN_OBJECTS}/claim-{number:06d}"
        self._bucket.write(MARK_OBJECT, b"A run of bsmeta writes to this prefix.\n")
        try:
            self._bucket.write(name, self._claim, is_new=True)
        except ObjectExistsError:
            raise ConfigurationError(
                f"out_dir={self._bucket.url}: another run has just claimed it; expected a prefix "
                "of its own for each run. Choose another out_dir"
            ) from None
        self._claim_name = name
        self._bucket.delete(*claims)

    def _check_claim(self) -> None:
        """Raises a TrainingError if another run has claimed the prefix since."""
        name = self._claim_name
        assert name is not None
        if self._bucket.read(name) != self._claim:
            raise TrainingError(
                f"out_dir={self._bucket.url}: another process has resumed or replaced this run, "
                "which therefore ends; nothing more was uploaded"
            )

    def _clear_folder(self) -> None:
        """Deletes the staged files of an earlier run."""
        for entry in self.folder.iterdir():
            if entry.name.startswith(".") or entry.name == CONFIG_FILE:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def stage(self, *, resume: bool) -> None:
        """See `RunStore`."""
        if not resume:
            self._clear_folder()
            return

        names = [entry.name for entry in self._bucket.list_objects()]
        manifests = (name for name in names if name.endswith(f"/{MANIFEST}"))
        folders = (name.removesuffix(f"/{MANIFEST}") for name in manifests)
        self._committed = {*filter(CHECKPOINT_NAME.fullmatch, folders)}
        self._stage_objects(names)

    def _stage_objects(self, names: list[str]) -> None:
        """Stages the stubs of all checkpoints and the logs, and removes stale checkpoints.

        A stub without one of its objects, or with a malformed manifest, remains a damaged
        checkpoint: `fetch` reports it.
        """
        for saved in list_checkpoints(self.folder):
            manifest = saved.folder / MANIFEST
            is_committed = saved.folder.name in self._committed
            if (
                not is_committed
                or not manifest.is_file()
                or (manifest.read_bytes() != self._bucket.read(f"{saved.folder.name}/{MANIFEST}"))
            ):
                shutil.rmtree(saved.folder)

        existing = set(names)
        for folder in self._committed:
            (self.folder / folder).mkdir(exist_ok=True)
            for file in _STUB_FILES:
                name = f"{folder}/{file}"
                if name in existing and not (self.folder / name).exists():
                    self._download(name)
            # `lacks_model` looks for the folder of the model.
            with suppress(CheckpointError):
                for file in read_manifest(self.folder / folder).files:
                    (self.folder / folder / file).parent.mkdir(parents=True, exist_ok=True)
        self._stage_marks(names)

        for log, parts in list_log_parts(names).items():
            (self.folder / log).write_bytes(join_logs(self._bucket, parts))
            match = LOG_PART.fullmatch(parts[0])
            assert match is not None
            self._log_start = max(self._log_start, int(match[2]) + 1)

    def join(self, processes: Processes) -> None:
        """See `RunStore`; a leader publishes the logs of its ranks only while the claim is held."""
        self._rank = processes.rank
        self._leaders = processes.leaders
        claim = (self._claim_name, self._claim, self._log_start)
        self._claim_name, self._claim, self._log_start = processes.broadcast(claim)

    def _stage_marks(self, names: Iterable[str]) -> None:
        """Stages the KEEP files that users have put into the bucket."""
        for name in names:
            folder, _, file = name.partition("/")
            if file == KEEP_FILE and folder in self._committed:
                (self.folder / folder / KEEP_FILE).touch()

    def _download(self, name: str) -> None:
        """Downloads an object into the staging folder, if it exists, without verifying it."""
        with suppress(ObjectMissingError), replace_atomically(self.folder / name) as temporary:
            self._bucket.download(name, temporary)

    def delete_later(self, step: int) -> None:
        """See `RunStore`. Later checkpoints are damaged; the next start would resume from them."""
        for folder in sorted(self._committed):
            match = CHECKPOINT_NAME.fullmatch(folder)
            if match is not None and int(match[1]) > step:
                if self._rank == 0:
                    logger.warning(
                        "resuming from step %d: the later %s/%s is deleted",
                        step,
                        self._bucket.url,
                        folder,
                    )
                    self._delete_objects(folder)
                shutil.rmtree(self.folder / folder, ignore_errors=True)

    def begin(self) -> None:
        """See `RunStore`; remnants of checkpoints are deleted, and a thread uploads new lines."""
        old_parts = []
        remnants = []
        for entry in self._bucket.list_objects():
            match = LOG_PART.fullmatch(entry.name)
            if match is not None and self._publishes(match[1]):
                old_parts.append(entry.name)
            elif self._rank == 0 and self._is_remnant(entry.name):
                remnants.append(entry.name)
        self.publish_files()
        self._bucket.delete(*old_parts, *remnants)

        self._publisher = threading.Thread(target=self._publish_regularly, daemon=True)
        self._publisher.start()

    def _is_remnant(self, name: str) -> bool:
        """Whether an object is left of a checkpoint whose upload or deletion was interrupted."""
        folder = name.partition("/")[0]
        return CHECKPOINT_NAME.fullmatch(folder) is not None and folder not in self._committed

    def check_room(self, checkpoint_bytes: int) -> None:
        """See `RunStore`; while one checkpoint is uploaded, the next may be written.

        Raises:
            ConfigurationError: If two checkpoints do not fit.
        """
        required = 2 * checkpoint_bytes
        free = measure_free_bytes(self.folder)
        if free < required:
            raise ConfigurationError(
                f"staging_dir: {self.folder} has {format_bytes(free)} free; expected "
                f"{format_bytes(required)} for two checkpoints. Free space, or choose another "
                "staging_dir"
            )
        if self._max_bytes is not None and self._max_bytes < required:
            raise ConfigurationError(
                f"staging_max_gb={self._max_bytes / 1e9:g}: found {format_bytes(self._max_bytes)}, "
                f"expected at least {format_bytes(required)} for two checkpoints; raise it, or "
                "train a smaller model"
            )

    # --- checkpoints ------------------------------------------------------------------------

    def holds(self, saved: Checkpoint) -> bool:
        return saved.folder.name in self._committed

    def fetch_newest(self, processes: Processes, last_step: int | None = None) -> None:
        steps = processes.on_main(lambda: [saved.step for saved in list_checkpoints(self.folder)])
        for step in reversed(steps):
            if last_step is not None and step > last_step:
                continue
            try:
                self.fetch(Checkpoint(self.folder / name_folder(step), step), processes)
            except CheckpointError as error:
                if processes.is_main:
                    logger.warning("%s", error)
            else:
                return

    def fetch(self, saved: Checkpoint, processes: Processes, part: str = "") -> None:
        """See `RunStore`.

        Raises:
            CheckpointError: If an object is missing or differs from the manifest.
        """
        if processes.on_main(lambda: self.holds(saved)):
            self._fetch_files(saved, saved.folder.name, processes, part)

    def exchange(self, rehearsed: Checkpoint, processes: Processes) -> None:
        """See `RunStore`; the objects are deleted again."""
        if not processes.leaders:
            return

        self._upload_files(rehearsed, REHEARSAL_OBJECTS, processes)
        self._fetch_files(rehearsed, REHEARSAL_OBJECTS, processes)
        processes.barrier()  # every rank has downloaded its files
        processes.on_main(lambda: self._delete_objects(REHEARSAL_OBJECTS))

    def _fetch_files(
        self, saved: Checkpoint, source: str, processes: Processes, part: str = ""
    ) -> None:
        """Completes the local copies of a checkpoint; the ranks of a folder divide its files.

        Args:
            source: The folder in the bucket.
            part: The folder in the checkpoint whose files are needed; "": all of them.
        """

        def read_content() -> bytes:
            read_manifest(saved.folder)  # raises an error if it is malformed
            return (saved.folder / MANIFEST).read_bytes()

        content = processes.on_main(read_content)
        processes.on_leaders(lambda: _write_manifest_copy(saved.folder, content))

        def fetch_share() -> None:
            entries = read_manifest(saved.folder).files
            sizes = {
                file: entry.bytes
                for file, entry in entries.items()
                if not part or file.startswith(f"{part}/")
            }

            def fetch_file(file: str) -> None:
                path = saved.folder / file
                if find_fault(path, entries[file]) is not None:
                    self._bucket.download_verified(f"{source}/{file}", path, entries[file])

            self._call_each(fetch_file, divide_files(sizes, processes))

        processes.run_on_all(fetch_share)

    def publish(self, saved: Checkpoint, processes: Processes) -> None:
        """See `RunStore`; an error of one rank is raised on every rank, without a manifest.

        Raises:
            TrainingError: If another run has claimed the prefix.
            DataError: If the server keeps failing; the previous checkpoints are kept.
        """
        name = saved.folder.name

        def prepare() -> None:
            self._check_claim()
            if name in self._committed:  # a rollback has repeated the step
                self._delete_objects(name)

        processes.on_main(prepare)
        self._upload_files(saved, name, processes)
        processes.on_main(lambda: self._commit(saved))
        processes.on_leaders(lambda: self._publish_rest(saved))

    def _upload_files(self, saved: Checkpoint, target: str, processes: Processes) -> None:
        """Uploads the files of a checkpoint; each rank uploads a share of those in its folder.

        Args:
            target: The folder in the bucket.
        """
        entries = processes.on_main(lambda: read_manifest(saved.folder).files)

        def measure_files() -> dict[str, int]:
            return {
                file: entry.bytes
                for file, entry in entries.items()
                if (saved.folder / file).is_file()
            }

        share = divide_files(select_unique_files(measure_files, processes), processes)
        files = {f"{target}/{file}": saved.folder / file for file in share}

        def upload_share() -> list[str]:
            self._bucket.upload_all(files)
            return [*files]

        shares = processes.run_on_all(upload_share)
        uploaded = {name for share in shares for name in share}
        missing = sorted({f"{target}/{file}" for file in entries} - uploaded)
        if missing:
            raise FileNotFoundError(f"{saved.folder}: {missing[0]} was deleted before its upload")

    def _commit(self, saved: Checkpoint) -> None:
        """Uploads the manifest of a checkpoint, unless another process has written it (rank 0)."""
        name = saved.folder.name
        self._check_claim()
        try:
            content = (saved.folder / MANIFEST).read_bytes()
            self._bucket.write(f"{name}/{MANIFEST}", content, is_new=True)
        except ObjectExistsError as error:
            raise TrainingError(
                f"{error} was written by another process during this run, which therefore ends"
            ) from None
        self._committed.add(name)
        self._stage_marks(entry.name for entry in self._bucket.list_objects("checkpoint-"))

    def _publish_rest(self, newest: Checkpoint) -> None:
        """Shrinks or deletes the local copies of older checkpoints, and publishes other files."""
        if self._rank == 0:
            self._shrink_others(newest)
        else:
            for saved in list_checkpoints(self.folder):
                if saved.step < newest.step:
                    shutil.rmtree(saved.folder)
        self.publish_files()

    def _shrink_others(self, newest: Checkpoint) -> None:
        """Shrinks the local copies of older published checkpoints to stubs."""
        for saved in list_checkpoints(self.folder):
            if saved.step >= newest.step or not self.holds(saved):
                continue
            for path in saved.folder.rglob("*"):
                if path.is_file() and str(path.relative_to(saved.folder)) not in (
                    *_STUB_FILES,
                    KEEP_FILE,
                ):
                    path.unlink()

    def delete(self, saved: Checkpoint) -> None:
        """See `RunStore`; the manifest is deleted first."""
        try:
            self._delete_objects(saved.folder.name)
        except (ConfigurationError, DataError) as error:
            logger.warning("%s could not be deleted: %s", saved.folder.name, error)
            return
        super().delete(saved)

    def _delete_objects(self, folder: str) -> None:
        """Deletes the objects of a checkpoint, the manifest first."""
        self._bucket.delete(f"{folder}/{MANIFEST}")
        self._committed.discard(folder)
        names = [entry.name for entry in self._bucket.list_objects(f"{folder}/")]
        self._call_each(self._bucket.delete, names)

    def _call_each(self, action: Callable[[str], None], names: list[str]) -> None:
        """Calls `action` for several objects at a time; raises the first error."""
        with ThreadPoolExecutor(_NUM_REQUESTS, "bucket") as pool:
            for call in [pool.submit(action, name) for name in names]:
                call.result()

    # --- other files ------------------------------------------------------------------------

    def publish_files(self) -> None:
        """Uploads the new lines of logs, and other files that have changed."""
        with self._access:
            for path in sorted(self.folder.rglob("*")):
                name = str(path.relative_to(self.folder))
                if is_internal(name) or not self._publishes(name):
                    continue
                if path.is_symlink() or not path.is_file():
                    continue
                if LOG.fullmatch(name):
                    self._publish_lines(name)
                else:
                    self._publish_file(name)

    def _publishes(self, name: str) -> bool:
        """Whether this rank publishes a file.

        The leader of each folder publishes the logs of its ranks. Rank 0 also publishes the logs of
        ranks that a resumed run no longer has, and all other files.
        """
        match = _RANK_FILE.fullmatch(name)
        writer = 0 if match is None else int(match[1])
        leader = self._leaders[writer] if writer < len(self._leaders) else 0
        return leader == self._rank

    def _publish_lines(self, name: str) -> None:
        """Uploads the complete lines that were added to a log since the last call."""
        position = self._log_positions.get(name, 0)
        with (self.folder / name).open("rb") as stream:
            stream.seek(position)
            lines = stream.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        if not lines:
            return

        part = self._log_parts.get(name, 0) + 1
        self._bucket.write(f"{name}/{self._log_start:06d}-{part:06d}", lines)
        self._log_parts[name] = part
        self._log_positions[name] = position + len(lines)

    def _publish_file(self, name: str) -> None:
        """Uploads a file if it has changed since the last call."""
        with suppress(FileNotFoundError):  # replaced or deleted meanwhile
            status = (self.folder / name).stat()
            stamp = (status.st_size, status.st_mtime_ns)
            if self._stamps.get(name) != stamp:
                self._bucket.upload(name, self.folder / name)
                self._stamps[name] = stamp

    def _publish_regularly(self) -> None:
        """Publishes the logs until the run ends; a failure is left to the next save."""
        while not self._has_ended.wait(PUBLISH_INTERVAL_S):
            try:
                self._check_claim()
                self.publish_files()
            except (ConfigurationError, DataError, TrainingError) as error:
                logger.warning("%s", error)

    def close(self) -> None:
        """See `RunStore`; a run that has not claimed the prefix changes nothing."""
        self._has_ended.set()
        if self._publisher is not None:
            self._publisher.join()
        if self._claim_name is None:
            return

        is_open = self._publisher is not None
        if self._rank != 0:  # rank 0 may have released the claim
            if is_open and self._bucket.read(self._claim_name) == self._claim:
                self.publish_files()
            return
        if is_open:
            self._check_claim()
            self.publish_files()
        elif self._bucket.read(self._claim_name) != self._claim:
            return
        self._bucket.delete(self._claim_name)


def _write_manifest_copy(folder: Path, content: bytes) -> None:
    """Writes the manifest of a checkpoint to a run folder other than rank 0's."""
    manifest = folder / MANIFEST
    if not manifest.is_file() or manifest.read_bytes() != content:
        folder.mkdir(exist_ok=True)
        with replace_atomically(manifest) as temporary:
            temporary.write_bytes(content)


def _is_alive(holder: dict[str, object]) -> bool:
    """Whether the process of a claim runs on this machine; False for one of another machine."""
    process = holder.get("process")
    if holder.get("host") != socket.gethostname() or not isinstance(process, int):
        return False
    try:
        # In a container without an init process, nobody waits for the ranks of a killed launcher.
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, ValueError):  # ValueError: a negative number
        return False
    except psutil.Error:
        return True
