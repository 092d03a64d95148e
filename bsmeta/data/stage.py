"""Copies the data of a run to a disk, verifies the copies, and resumes after an interruption.

    python -m bsmeta.data.stage --config-name v2 data_config.train_file='s3://corpora/c4/*.gz' \
        out=/local/c4

accepts every key that training accepts, and copies the shards and the held-out file of that run.
The files keep their names, so a run on the copies has the same documents in the same order. Until
the last file is verified, the folder is called `OUT.part`. After an interruption, rerun the same
command to resume at the first missing byte; a file without a listed hash, such as a file on a disk,
is copied from its beginning. If the folder is complete, the command compares every file with its
hash.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from io import RawIOBase
from pathlib import Path

import msgspec
import xxhash

from bsmeta.config.data import build_source_configs, check_data
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.copying import StageConfig
from bsmeta.core.errors import ConfigurationError, DataError, describe_differences
from bsmeta.core.files import (
    format_bytes,
    hash_file,
    hold_write_lock,
    join_inside,
    measure_free_bytes,
    replace_atomically,
)
from bsmeta.core.parsing import decode_json
from bsmeta.core.process import run_stoppable
from bsmeta.core.progress import Show, show_progress_bar
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.file_sets import complete_part
from bsmeta.data.io.files import measure_file
from bsmeta.data.io.remote.store import CancelledError
from bsmeta.data.io.remote.stores import find_file_store, read_range
from bsmeta.data.io.shards import (
    SUFFIXES,
    Shard,
    add_sample_hashes,
    check_is_listed,
    find_validation_path,
    list_shards,
)

TRAIN = "train"
HELD_OUT = "validation"
MANIFEST = "staged.jsonl"
BLOCK_BYTES = 1 << 20  # read at a time
MAX_DIFFERENCES_SHOWN = 10

_PLAIN_VALUE = re.compile(r"[\w/.*?@%+-]+")  # a value that Hydra does not interpret


class CopiedFile(msgspec.Struct, frozen=True):
    """A line of the manifest: a complete copy.

    Attributes:
        name: Path in the folder.
        bytes: Size of the copy.
        content: Identifier of the original's content; see `identify_content`.
        xxh3: Hash of the copy, in hexadecimal.
    """

    name: str
    bytes: int
    content: str
    xxh3: str


def main(config: StageConfig) -> int:
    """Copies the missing files, or verifies a complete folder.

    Returns:
        The exit code; 75 if a signal stopped the copying.
    """
    if config.out is None:
        raise ConfigurationError("out is not set; expected the folder to write", ["out"])
    check_data(config.data_config)
    folder = Path(config.out).absolute()
    return run_stoppable(lambda: print(stage_data(config, folder)))


def stage_data(config: StageConfig, out: Path) -> str:
    """Copies the data of a run to `out`.

    Returns:
        A message with the number of files and the keys with which a run reads the copies.

    Raises:
        ConfigurationError: If the folder contains other data, which is not changed.
        DataError: If a file cannot be read or differs from its listing or its hash, or if the disk
            is too small.
    """
    files = list(list_run_files(config))
    # Several machines that share the folder may run this at the same time.
    with hold_write_lock(out, f"copying to {out}"):
        if out.exists():
            _check_copies(out, files)
            outcome = "was complete, and every file has its hash"
        else:
            part = out.with_name(f"{out.name}.part")
            _copy_files(part, files, config.parallel_files)
            part.rename(out)
            outcome = "is complete, and every file is verified"

    total_size = format_bytes(sum(file.size for file in files))
    keys = [f"  {key}={value}" for key, value in list_run_keys(config, out, files).items()]
    return "\n".join([f"{out} {outcome} ({len(files):,} files, {total_size}). Train with", *keys])


def list_run_files(config: StageConfig) -> Iterator[Shard]:
    """Yields the files that a run reads; the name of each is its path in the folder of copies.

    The names come from listings, so they may lead out of the folder; `locate_copy` refuses these.

    Raises:
        ConfigurationError: If the configured shards or the held-out file cannot be named.
        DataError: If a file is missing or cannot be read.
    """
    data = config.data_config
    for index, source in enumerate(build_source_configs(data).values()):
        folder = f"{TRAIN}/{index}" if data.sources else TRAIN
        for shard in add_sample_hashes(list_shards(source)):
            yield replace(shard, name=f"{folder}/{shard.name}")

    held_out = find_validation_path(data)
    if held_out is not None:
        name = f"{HELD_OUT}/{os.path.basename(str(held_out))}"
        try:
            shard = Shard(name, held_out, measure_file(held_out))
            (file,) = add_sample_hashes([shard])
        except OSError as error:
            raise DataError(
                f"data_config.validation_file={held_out} cannot be read: {error.strerror}; correct "
                "the path, or set it to null"
            ) from error
        yield file


def list_run_keys(config: StageConfig, out: Path, files: Sequence[Shard]) -> dict[str, str]:
    """Returns the configuration keys with which a run reads the copies, with their values."""
    keys = {}
    sources = config.data_config.sources
    for index in range(max(1, len(sources))):
        folder = f"{TRAIN}/{index}/" if sources else f"{TRAIN}/"
        key = f"data_config.sources.{index}.train_file" if sources else "data_config.train_file"

        # The path of a folder names only the files directly in it that have the suffix of a shard.
        names = [file.name.removeprefix(folder) for file in files if file.name.startswith(folder)]
        is_flat = all("/" not in name and name.endswith(SUFFIXES) for name in names)
        keys[key] = quote_argument(f"{out}/{folder}" if is_flat else f"{out}/{folder}**")

    for file in files:
        if file.name.startswith(f"{HELD_OUT}/"):
            keys["data_config.validation_file"] = quote_argument(f"{out}/{file.name}")
    if config.data_config.dataset_revision is not None:  # refused if no file is on the Hub
        keys["data_config.dataset_revision"] = "null"
    return keys


def quote_argument(value: str) -> str:
    """Quotes a value for Hydra, then for the shell, because listed names may contain commands."""
    if not _PLAIN_VALUE.fullmatch(value):
        value = json.dumps(value, ensure_ascii=False)
    return shlex.quote(value)


def _check_copies(out: Path, files: Iterable[Shard]) -> None:
    """Checks that a complete folder has copies of the listed files, and that their hashes match.

    Raises:
        ConfigurationError: If the folder contains other data.
        DataError: If a file is missing or damaged.
    """
    copies = read_manifest(out)
    if not copies:
        raise ConfigurationError(
            f"out={out} exists, and was not written by this command (it has no {MANIFEST}); name "
            "another folder",
            ["out"],
        )

    saved = {copy.name: {"bytes": copy.bytes, "content": copy.content} for copy in copies.values()}
    listed = {file.name: {"bytes": file.size, "content": identify_content(file)} for file in files}
    all_differences = describe_differences(saved, listed, "there")
    differences = list(itertools.islice(all_differences, MAX_DIFFERENCES_SHOWN))
    if differences:
        heading = f"out={out} contains other data; name another folder, or delete it:"
        raise ConfigurationError("\n".join([heading, *differences]), ["out"])

    with show_progress_bar("checking", len(copies)) as show:
        for count, copy in enumerate(copies.values(), start=1):
            path = join_inside(out, copy.name, str(out / MANIFEST))
            xxh3 = hash_file(path) if path.is_file() else "missing"
            if xxh3 != copy.xxh3:
                raise DataError(
                    f"{path} is damaged: its xxh3 is {xxh3}, not {copy.xxh3}; delete {out}, and "
                    "copy again"
                )
            show(count, copy.name)


def read_manifest(folder: Path) -> dict[str, CopiedFile]:
    """Reads the manifest of a folder.

    An unfinished last line, which a killed process may leave, is ignored.

    Returns:
        The copies by name; empty if there is no manifest.

    Raises:
        DataError: If the manifest is damaged.
    """
    try:
        lines = (folder / MANIFEST).read_bytes().splitlines(keepends=True)
        copies = [decode_json(line, CopiedFile) for line in lines if line.endswith(b"\n")]
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise DataError(f"{folder / MANIFEST} is damaged: {error}; delete {folder}") from error
    return {copy.name: copy for copy in copies}


def identify_content(file: Shard) -> str:
    """Returns a string that identifies the content of a file, together with its size."""
    return file.path.content_id if isinstance(file.path, FileRef) else file.samples_hash


def _copy_files(folder: Path, files: Sequence[Shard], num_threads: int) -> None:
    """Copies files to a folder, several in parallel; resumes an interrupted call.

    Raises:
        DataError: If a file cannot be copied, or the disk is too small.
    """
    complete = _prepare_folder(folder, files)
    missing = [file for file in files if file.name not in complete]
    total_bytes = sum(file.size for file in files)
    complete_bytes = sum(copy.bytes for copy in complete.values())
    _check_space(folder, missing)

    with (
        open(folder / MANIFEST, "ab", buffering=0) as manifest,
        show_progress_bar("copying", total_bytes) as show,
        ThreadPoolExecutor(num_threads) as pool,
    ):
        copier = Copier(folder, manifest, show, complete_bytes)
        futures = [pool.submit(copier.copy, file) for file in missing]
        try:
            for future in as_completed(futures):
                future.result()
        finally:  # after an error, or a signal
            copier.cancelled.set()
            pool.shutdown(cancel_futures=True)


def _prepare_folder(folder: Path, files: Sequence[Shard]) -> dict[str, CopiedFile]:
    """Prepares a folder for copying: rewrites its manifest, and removes all other files.

    Returns:
        The complete copies of files in the folder, by name.

    Raises:
        ConfigurationError: If the folder was not written by this command.
        UnsafeNameError: If a name in the listing would lead out of the folder.
    """
    folder.mkdir(exist_ok=True)
    if any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ConfigurationError(
            f"{folder} exists, and was not written by this command (it has no {MANIFEST}); name "
            "another folder in out, or delete it",
            ["out"],
        )
    for file in files:  # check all names before anything is written
        locate_copy(file, folder)
        locate_part(file, folder)

    complete = _find_complete_copies(folder, files)
    with replace_atomically(folder / MANIFEST) as part:
        part.write_bytes(b"".join(map(_encode_line, complete.values())))
    parts = [name_part(file) for file in files if file.name not in complete]
    _remove_other_files(folder, {MANIFEST, *complete, *parts})
    return complete


def _find_complete_copies(folder: Path, files: Sequence[Shard]) -> dict[str, CopiedFile]:
    """Returns the complete copies of files in a folder, by name."""
    copies = read_manifest(folder)
    complete = {}
    for file in files:
        copy = copies.get(file.name)
        if copy is None or not locate_copy(file, folder).is_file():
            continue
        if copy.bytes == file.size and copy.content == identify_content(file):
            complete[file.name] = copy
    return complete


def _remove_other_files(folder: Path, names: Collection[str]) -> None:
    """Removes all files in a folder except those with the given names."""
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in names:
            path.unlink()


def _check_space(folder: Path, missing: Sequence[Shard]) -> None:
    """Checks that the disk has room for the missing bytes.

    Raises:
        DataError: If it is too small.
    """
    missing_bytes = 0
    for file in missing:
        part = locate_part(file, folder)
        copied_bytes = part.stat().st_size if part.exists() else 0
        missing_bytes += file.size - copied_bytes

    free_bytes = measure_free_bytes(folder)
    if missing_bytes > free_bytes:
        raise DataError(
            f"{folder}: {format_bytes(missing_bytes)} are missing, and the disk has room for "
            f"{format_bytes(free_bytes)}; free some space, or name another folder"
        )


def locate_copy(file: Shard, folder: Path) -> Path:
    """Returns the path of a complete copy in a folder.

    Raises:
        UnsafeNameError: If the name of the file would lead out of the folder.
    """
    return join_inside(folder, file.name, str(file.path))


def locate_part(file: Shard, folder: Path) -> Path:
    """Returns the path of an incomplete copy in a folder.

    Raises:
        UnsafeNameError: If the name of the file would lead out of the folder.
    """
    return join_inside(folder, name_part(file), str(file.path))


def name_part(file: Shard) -> str:
    """Returns the name of an incomplete copy, which depends on the content of the original."""
    return f"{file.name}.{xxhash.xxh3_64_hexdigest(identify_content(file).encode())}.part"


def _encode_line(copy: CopiedFile) -> bytes:
    """Returns the line of the manifest for a copy."""
    return msgspec.json.encode(copy) + b"\n"


class Copier:
    """Copies files to a folder; several threads may call `copy`.

    Args:
        manifest: Receives a line for each complete copy.
        show: Shows the progress in bytes.
        copied_bytes: Total size of the copies that are already complete.

    Attributes:
        cancelled: If set, all copying stops with a `CancelledError`.
    """

    def __init__(self, folder: Path, manifest: RawIOBase, show: Show, copied_bytes: int) -> None:
        self.cancelled = threading.Event()
        self._folder = folder
        self._manifest = manifest
        self._show = show
        self._copied_bytes = copied_bytes
        self._lock = threading.Lock()

    def copy(self, file: Shard) -> None:
        """Copies the missing bytes of a file, verifies the copy, and renames it.

        Raises:
            DataError: If the file cannot be read, or differs from its listing or its hash.
            CancelledError: If copying was cancelled.
        """
        part = locate_part(file, self._folder)
        part.parent.mkdir(parents=True, exist_ok=True)
        was_resumed = part.exists()
        xxh3 = self._complete_copy(file, part)
        if xxh3 is None and was_resumed:  # the bytes from an earlier call may be damaged
            xxh3 = self._complete_copy(file, part)
        if xxh3 is None:
            raise DataError(
                f"{file.path}: the content differs from the listing ({identify_content(file)}); "
                "check whether a proxy changes it, and copy again"
            )

        # The line is written before the rename: if a crash leaves a line without its file, the
        # partial copy is only verified again.
        copy = CopiedFile(file.name, file.size, identify_content(file), xxh3)
        with self._lock:
            self._manifest.write(_encode_line(copy))
        part.rename(locate_copy(file, self._folder))

    def _complete_copy(self, file: Shard, part: Path) -> str | None:
        """Appends the missing bytes to an incomplete copy, and verifies it.

        Returns:
            The xxh3 of the copy; None if the copy differed from the listing and was deleted.

        Raises:
            DataError: If the file cannot be read, or a local file has changed.
            CancelledError: If copying was cancelled.
        """
        path = file.path
        verifier = find_file_store(path).make_verifier(path) if isinstance(path, FileRef) else None
        if verifier is None:  # damage in the partial copy would not be detected
            part.unlink(missing_ok=True)

        content_hash = xxhash.xxh3_64()
        size = 0
        for block in complete_part(part, partial(self._read_from, file)):
            content_hash.update(block)
            size += len(block)
            if verifier is not None:
                verifier.update(block)
            self._advance(len(block))

        check_is_listed(file)  # a local file may have been replaced in the meantime
        if size == file.size and (verifier is None or verifier.matches_hash() is not False):
            return content_hash.hexdigest()
        part.unlink()
        self._advance(-size)
        return None

    def _read_from(self, file: Shard, start: int) -> Iterator[bytes]:
        """Yields the content of a file from byte `start` on (0 for a local file)."""
        if isinstance(file.path, FileRef):
            blocks: Iterator[bytes] = read_range(file.path, start, file.size, self.cancelled)
        else:
            assert start == 0, "a partial copy of a local file is deleted first"
            blocks = _read_blocks(file.path)
        for block in blocks:
            if self.cancelled.is_set():
                raise CancelledError
            yield block

    def _advance(self, num_bytes: int) -> None:
        """Adds copied bytes to the shown progress."""
        with self._lock:
            self._copied_bytes += num_bytes
            self._show(self._copied_bytes, format_bytes(self._copied_bytes))


def _read_blocks(path: str) -> Iterator[bytes]:
    """Yields the content of a local file in blocks.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            yield from iter(lambda: file.read(BLOCK_BYTES), b"")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


if __name__ == "__main__":
    run_entry_point(main, StageConfig, "v2")
