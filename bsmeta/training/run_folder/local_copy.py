"""Local copies of runs in buckets, for programs that read them: evaluation, prediction, `open_run`.

A copy has the files of the run except the states of checkpoints; models are copied on request, with
the state of the data, which identifies the training data. It is kept in the cache of the user, so
that a model is downloaded once, and another file only if the ETag of its object has changed. Of a
log, only new parts are downloaded.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path, PurePosixPath

import msgspec

from bsmeta.config.run_location import RUN_ADDRESS, is_run_address, name_local_folder
from bsmeta.config.steps import CHECKPOINT_NAME
from bsmeta.core.errors import DataError
from bsmeta.core.files import join_inside, locate_user_cache, replace_atomically
from bsmeta.core.parsing import decode_json
from bsmeta.core.secrets import format_url
from bsmeta.models.manifest import MANIFEST, find_fault, read_manifest
from bsmeta.training.buckets.bucket import ObjectMissingError
from bsmeta.training.buckets.choice import open_bucket
from bsmeta.training.checkpoints.checkpoint import CONFIG_FILE, DATA_STATE_FILE
from bsmeta.training.run_folder.run_objects import RUN_OBJECTS, is_claim, join_logs, list_log_parts

MODEL = "model"
_RECORD = ".objects.json"  # in the copy: the objects of which each file was made


class _CopiedFile(msgspec.Struct, frozen=True):
    """A file of the copy.

    The record has the stamp of the file, because another process may replace it.

    Attributes:
        etags: ETags of its objects, by name: an object, or the parts of a log in order.
        bytes: Size of the file.
        mtime_ns: Its modification time.
    """

    etags: dict[str, str]
    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, etags: dict[str, str], file: Path) -> _CopiedFile:
        """Describes a file that was made of these objects."""
        status = file.stat()
        return cls(etags, status.st_size, status.st_mtime_ns)

    def is_unchanged(self, file: Path) -> bool:
        """Whether a file is as it was recorded."""
        with suppress(OSError):
            status = file.stat()
            return (status.st_size, status.st_mtime_ns) == (self.bytes, self.mtime_ns)
        return False


class RunCopy:
    """The copy of a run.

    Attributes:
        url: Address of the run.
        folder: The local folder.
        is_running: Whether a process held the prefix at the last `update`; a killed process
            continues to hold it.

    Args:
        url: Address of the run, or of a checkpoint or a model in it.

    Raises:
        UserError: If it is not an address of a bucket, or there are no credentials.
    """

    def __init__(self, url: str) -> None:
        if not is_run_address(url):
            raise DataError(
                f"{format_url(url)}: expected the address of a run, {RUN_ADDRESS}, without "
                "credentials, '=', '?' and '#'"
            )

        parts = url.rstrip("/").split("/")
        self.is_model = parts[-1] == MODEL
        if self.is_model:
            parts.pop()
        is_checkpoint = CHECKPOINT_NAME.fullmatch(parts[-1]) is not None
        self._checkpoint = parts.pop() if is_checkpoint else ""

        self.url = "/".join(parts)
        self._bucket = open_bucket(self.url)
        self.folder = locate_user_cache() / "runs" / name_local_folder(self.url)
        self.is_running = False
        self._etags: dict[str, str] = {}  # of all objects, by name
        self._record: dict[str, _CopiedFile] = {}

    def update(self) -> None:
        """Copies the small files of the run, and the manifests of its checkpoints.

        Files that the run no longer has are deleted, such as the copy of a deleted checkpoint.

        Raises:
            DataError: If there is no run at the address, or an object has the name of a folder.
        """
        etags = {entry.name: entry.etag for entry in self._bucket.list_objects()}
        if CONFIG_FILE not in etags:
            raise DataError(
                f"{self.url}: found no {CONFIG_FILE}; expected the address of a run (its out_dir)"
            )
        logs = list_log_parts(etags)
        objects = {name for name in etags if not list_log_parts([name])}
        self._check_names({*logs}, objects)
        self._etags = etags
        self.is_running = any(map(is_claim, etags))
        self._delete_others({*logs, *objects})
        self._record = self._read_record()

        for log, parts in logs.items():
            self._copy_log(log, parts)
        for name in etags:
            top = name.split("/")[0]
            is_log = top in list_log_parts([name])
            is_manifest = CHECKPOINT_NAME.fullmatch(top) and name == f"{top}/{MANIFEST}"
            is_other = not CHECKPOINT_NAME.fullmatch(top) and top not in (RUN_OBJECTS, MODEL)
            if is_manifest or (is_other and not is_log):
                self._copy_object(name)
        self._write_record()

    def _check_names(self, logs: set[str], objects: set[str]) -> None:
        """Refuses names that one folder cannot hold, such as `config.yaml` and `config.yaml/x`."""
        folders: set[str] = set()
        for name in objects:
            folders.update(map(str, PurePosixPath(name).parents))

        conflicts = (logs & objects) | ((folders - {"."}) & (logs | objects))
        if conflicts:
            name = min(conflicts)
            raise DataError(
                f"{self.url}: found the file {name}, and further objects of this name or below "
                f"{name}/; expected each name to be a file or a folder. Delete the objects that "
                "the run has not written"
            )

    def _delete_others(self, files: set[str]) -> None:
        """Deletes the other files of the copy, except unfinished ones of other processes."""
        for path in sorted(self.folder.rglob("*"), reverse=True):  # files before their folders
            if path.name.startswith("."):
                continue
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # it is not empty
                    path.rmdir()
            elif path.relative_to(self.folder).as_posix() not in files:
                path.unlink(missing_ok=True)

    def copy_model(self) -> Path:
        """Copies the model that the address names, and verifies it by its manifest.

        An address of a checkpoint names the model in it; an address of a run names its final model,
        or without one the model of its newest checkpoint that has one.

        Returns:
            The folder of the run, the checkpoint or the model.

        Raises:
            DataError: If there is no such model.
            CheckpointError: If an object has changed.
        """
        self.update()
        checkpoints = [name for name in self._list_checkpoints() if self._has_model(name)]
        if self._checkpoint:
            parent = self._checkpoint
        elif self._has_model("") or not checkpoints:
            parent = ""
        else:
            parent = checkpoints[-1]

        path = f"{parent}/{MODEL}".lstrip("/")
        if not self._has_model(parent):
            raise DataError(
                f"checkpoint={self.url}: found no {path}; checkpoints with a model: "
                f"{', '.join(checkpoints) or 'none'}"
            )
        self._copy_verified(parent or MODEL, path)
        self._copy_data_state(parent)
        if parent:
            self._write(f"{parent}/{CONFIG_FILE}", (self.folder / CONFIG_FILE).read_bytes())

        if self.is_model:
            return self.folder / path
        return self.folder / self._checkpoint

    def _copy_data_state(self, checkpoint: str) -> None:
        """Copies the state of the data of a checkpoint, or of the newest one (""), if any has."""
        names = [checkpoint] if checkpoint else self._list_checkpoints()[-1:]
        for name in names:
            if f"{name}/{DATA_STATE_FILE}" in self._etags:
                self._copy_object(f"{name}/{DATA_STATE_FILE}")
                self._write_record()

    def _list_checkpoints(self) -> list[str]:
        """Lists the names of the checkpoints, oldest first."""
        steps: dict[str, int] = {}
        for name in self._etags:
            folder, _, file = name.partition("/")
            match = CHECKPOINT_NAME.fullmatch(folder)
            if match is not None and file == MANIFEST:
                steps[folder] = int(match[1])
        return sorted(steps, key=lambda folder: steps[folder])

    def _has_model(self, parent: str) -> bool:
        """Whether a published checkpoint, or the run itself (""), has a model."""
        is_published = not parent or f"{parent}/{MANIFEST}" in self._etags
        return is_published and f"{parent}/{MODEL}/config.json".lstrip("/") in self._etags

    def _copy_verified(self, folder: str, path: str) -> None:
        """Copies the files below `path` that the manifest of `folder` lists."""
        manifest_name = f"{folder}/{MANIFEST}"
        self._copy_object(manifest_name)
        self._write_record()
        for file, entry in read_manifest(self.folder / folder).files.items():
            name = f"{folder}/{file}"
            target = self.folder / name
            if name.startswith(f"{path}/") and find_fault(target, entry) is not None:
                self._bucket.download_verified(name, target, entry)

    def _copy_object(self, name: str) -> None:
        """Copies an object if it has changed, and is not deleted meanwhile; does not verify it."""
        path = join_inside(self.folder, name, self.url)
        etags = {name: self._etags.get(name, "")}
        if self._find_copied_etags(name) == etags and all(etags.values()):
            return

        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(ObjectMissingError), replace_atomically(path) as temporary:
            self._bucket.download(name, temporary)
            self._record[name] = _CopiedFile.of(etags, temporary)

    def _copy_log(self, log: str, parts: list[str]) -> None:
        """Copies a log; reads only the parts that follow those in the copy, if they are there."""
        etags = {part: self._etags[part] for part in parts}
        copied = self._find_copied_etags(log)
        is_beginning = [*copied.items()] == [*etags.items()][: len(copied)] and all(etags.values())
        if is_beginning and len(copied) == len(parts):
            return

        content = b""
        new_parts = parts
        if is_beginning and copied:
            earlier_lines = (self.folder / log).read_bytes()
            if self._find_copied_etags(log) == copied:  # no other process has replaced it meanwhile
                content = earlier_lines
                new_parts = parts[len(copied) :]
        path = join_inside(self.folder, log, self.url)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as temporary:
            temporary.write_bytes(content + join_logs(self._bucket, new_parts))
            self._record[log] = _CopiedFile.of(etags, temporary)

    def _find_copied_etags(self, name: str) -> dict[str, str]:
        """Returns the ETags of the objects of which a file was made; {} if it has changed."""
        copied = self._record.get(name)
        if copied is None or not copied.is_unchanged(self.folder / name):
            return {}
        return copied.etags

    def _read_record(self) -> dict[str, _CopiedFile]:
        """Reads the record of the copied files; {} without one, or if it is damaged."""
        try:
            return decode_json((self.folder / _RECORD).read_bytes(), dict[str, _CopiedFile])
        except (OSError, ValueError):
            return {}

    def _write_record(self) -> None:
        """Writes the record of the files that the copy still has."""
        files = {
            name: msgspec.to_builtins(copied)
            for name, copied in self._record.items()
            if copied.is_unchanged(self.folder / name)
        }
        self._write(_RECORD, json.dumps(files).encode())

    def _write(self, name: str, content: bytes) -> None:
        """Writes a file of the copy."""
        path = join_inside(self.folder, name, self.url)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as temporary:
            temporary.write_bytes(content)
