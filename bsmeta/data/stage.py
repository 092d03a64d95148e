"""Copies the data of a run to a disk, with verification, and resumes an interrupted copy.

    python -m bsmeta.data.stage --config-name v2 data_config.train_file='s3://corpora/c4/*.gz' \
        out=/local/c4

accepts every key that training accepts, and copies the shards and the held-out file of that run.
The files keep the names that they have in the run, so a run on the copy has the same documents in
the same order. Until the last file is verified, the folder is called `OUT.part`. After an
interruption, rerun the same command to resume at the first missing byte; a file without a listed
hash, such as one on a disk, is copied from its beginning. For a complete folder, the command
compares every file with its hash.
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

from bsmeta.config.copying import StageConfig
from bsmeta.config.data import build_source_configs, check_data
from bsmeta.config.entry_point import run_entry_point
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
from bsmeta.data.io.remote import CancelledError
from bsmeta.data.io.shards import (
    SUFFIXES,
    Shard,
    add_sample_hashes,
    check_is_listed,
    find_validation_path,
    list_shards,
)
from bsmeta.data.io.stores import read_range, store_of_file

TRAIN = "train"
HELD_OUT = "validation"
MANIFEST = "staged.jsonl"
BLOCK_BYTES = 1 << 20
MAX_DIFFERENCES_SHOWN = 10

_PLAIN_VALUE = re.compile(r"[\w/.*?@%+-]+")  # a value that Hydra does not interpret


class Copied(msgspec.Struct, frozen=True):
    """A line of the manifest, for a complete file.

    Attributes:
        name: Path in the folder.
        bytes: Size of the file.
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
    files = [*list_run_files(config)]
    # Several machines that share the folder may run this at the same time.
    with hold_write_lock(out, f"copying to {out}"):
        if out.exists():
            _check_copies(out, files)
            state = "was complete, and every file has its hash"
        else:
            part = out.with_name(f"{out.name}.part")
            _copy_files(part, files, config.parallel_files)
            part.rename(out)
            state = "is complete, and every file is verified"

    total_size = format_bytes(sum(file.size for file in files))
    keys = [f"  {key}={value}" for key, value in list_run_keys(config, out, files).items()]
    return "\n".join([f"{out} {state} ({len(files):,} files, {total_size}). Train with", *keys])


def list_run_files(config: StageConfig) -> Iterator[Shard]:
    """Yields the files that a run reads, each with its path in the folder as its name.

    The names come from listings: `locate_copy` refuses those that lead out of the folder.
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
            (file,) = add_sample_hashes([Shard(name, held_out, measure_file(held_out))])
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

        # As a path, a folder stands only for the files directly in it that have a shard's suffix.
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
    """Quotes a value for Hydra, then for the shell, as a name in a listing may contain commands."""
    if not _PLAIN_VALUE.fullmatch(value):
        value = json.dumps(value, ensure_ascii=False)
    return shlex.quote(value)


def _check_copies(out: Path, files: Iterable[Shard]) -> None:
    """Compares the manifest of a complete folder with the listing, and its files with their hashes.

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
    listing = {file.name: {"bytes": file.size, "content": identify_content(file)} for file in files}
    differences = describe_differences(saved, listing, "there")
    lines = [*itertools.islice(differences, MAX_DIFFERENCES_SHOWN)]
    if lines:
        raise ConfigurationError(
            "\n".join(
                [f"out={out} contains other data; name another folder, or delete it:", *lines]
            ),
            ["out"],
        )

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


def read_manifest(folder: Path) -> dict[str, Copied]:
    """Returns the entries of a folder's manifest, by name; empty if there is none.

    An unfinished last line, which a killed process may leave, is ignored.

    Raises:
        DataError: If the manifest is damaged.
    """
    try:
        lines = (folder / MANIFEST).read_bytes().splitlines(keepends=True)
        copies = [decode_json(line, Copied) for line in lines if line.endswith(b"\n")]
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise DataError(f"{folder / MANIFEST} is damaged: {error}; delete {folder}") from error
    return {copy.name: copy for copy in copies}


def identify_content(file: Shard) -> str:
    """Returns a string that, with the size, identifies the content of a local or remote file."""
    return file.path.content_id if isinstance(file.path, FileRef) else file.samples


def _copy_files(folder: Path, files: Sequence[Shard], parallel: int) -> None:
    """Copies files to a folder, several in parallel; resumes an interrupted call."""
    complete = _prepare_folder(folder, files)
    missing = [file for file in files if file.name not in complete]
    num_bytes = sum(file.size for file in files)
    num_complete_bytes = sum(copy.bytes for copy in complete.values())
    _check_space(folder, missing)

    with (
        open(folder / MANIFEST, "ab", buffering=0) as manifest,
        show_progress_bar("copying", num_bytes) as show,
        ThreadPoolExecutor(parallel) as pool,
    ):
        copier = Copier(folder, manifest, show, num_complete_bytes)
        futures = [pool.submit(copier.copy, file) for file in missing]
        try:
            for future in as_completed(futures):
                future.result()
        finally:  # after an error, or a signal
            copier.cancelled.set()
            pool.shutdown(cancel_futures=True)


def _prepare_folder(folder: Path, files: Sequence[Shard]) -> dict[str, Copied]:
    """Prepares a folder for copying: rewrites its manifest, and removes files of other listings.

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
    for file in files:  # all names are checked before anything is written
        locate_copy(file, folder)
        locate_part(file, folder)

    complete = _find_complete(folder, files)
    with replace_atomically(folder / MANIFEST) as part:
        part.write_bytes(b"".join(map(_encode_line, complete.values())))
    missing = [file for file in files if file.name not in complete]
    _remove_other_files(folder, {MANIFEST, *complete, *map(name_part, missing)})
    return complete


def _find_complete(folder: Path, files: Sequence[Shard]) -> dict[str, Copied]:
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
        DataError: If it has not.
    """
    num_missing = 0
    for file in missing:
        part = locate_part(file, folder)
        num_copied = part.stat().st_size if part.exists() else 0
        num_missing += file.size - num_copied

    num_free = measure_free_bytes(folder)
    if num_missing > num_free:
        raise DataError(
            f"{folder}: {format_bytes(num_missing)} are missing, and the disk has room for "
            f"{format_bytes(num_free)}; free some space, or name another folder"
        )


def locate_copy(file: Shard, folder: Path) -> Path:
    """Returns the path of a complete copy in a folder.

    Raises:
        UnsafeNameError: If the name in the listing would lead out of the folder.
    """
    return join_inside(folder, file.name, str(file.path))


def locate_part(file: Shard, folder: Path) -> Path:
    """Returns the path of an incomplete copy in a folder; raises the error of `locate_copy`."""
    return join_inside(folder, name_part(file), str(file.path))


def name_part(file: Shard) -> str:
    """Returns the name of an incomplete copy, which depends on the content of the original."""
    return f"{file.name}.{xxhash.xxh3_64_hexdigest(identify_content(file).encode())}.part"


def _encode_line(copy: Copied) -> bytes:
    """Returns the line of the manifest for a copy."""
    return msgspec.json.encode(copy) + b"\n"


class Copier:
    """Copies files to a folder; its methods may be called from several threads.

    Args:
        manifest: Receives a line for each complete file.
        show: Shows the progress in bytes.
        num_copied: Number of bytes of the files that are already complete.

    Attributes:
        cancelled: Set to stop the copying, which a later call resumes.
    """

    def __init__(self, folder: Path, manifest: RawIOBase, show: Show, num_copied: int) -> None:
        self.cancelled = threading.Event()
        self._folder = folder
        self._manifest = manifest
        self._show = show
        self._num_copied = num_copied
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
        xxh3 = self._complete(file, part)
        if xxh3 is None and was_resumed:  # the bytes from an earlier call may be damaged
            xxh3 = self._complete(file, part)
        if xxh3 is None:
            raise DataError(
                f"{file.path}: the content differs from the listing ({identify_content(file)}); "
                "check whether a proxy changes it, and copy again"
            )

        # The line is written before the rename: after a crash, a line without its file only causes
        # the partial copy to be read again.
        copy = Copied(file.name, file.size, identify_content(file), xxh3)
        with self._lock:
            self._manifest.write(_encode_line(copy))
        part.rename(locate_copy(file, self._folder))

    def _complete(self, file: Shard, part: Path) -> str | None:
        """Appends the missing bytes to an incomplete copy, and verifies it.

        Returns:
            The xxh3 of the copy; None if the copy was wrong and has been deleted.
        """
        path = file.path
        verifier = store_of_file(path).verifier(path) if isinstance(path, FileRef) else None
        if verifier is None:  # damage in the existing bytes would not be detected
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
        if size == file.size and (verifier is None or verifier.is_right() is not False):
            return content_hash.hexdigest()
        part.unlink()
        self._advance(-size)
        return None

    def _read_from(self, file: Shard, start: int) -> Iterator[bytes]:
        """Yields the content of a file from byte `start` on; 0 for a local file."""
        if isinstance(file.path, FileRef):
            blocks: Iterator[bytes] = read_range(file.path, start, file.size, self.cancelled)
        else:
            assert start == 0, "the partial copy of a local file is deleted before it is copied"
            blocks = _read_blocks(file.path)
        for block in blocks:
            if self.cancelled.is_set():
                raise CancelledError
            yield block

    def _advance(self, count: int) -> None:
        """Adds a number of bytes to the progress, which several threads report."""
        with self._lock:
            self._num_copied += count
            self._show(self._num_copied, format_bytes(self._num_copied))


def _read_blocks(path: str) -> Iterator[bytes]:
    """Yields the content of a local file in blocks."""
    try:
        with open(path, "rb") as file:
            yield from iter(lambda: file.read(BLOCK_BYTES), b"")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


if __name__ == "__main__":
    run_entry_point(main, StageConfig, "v2")
