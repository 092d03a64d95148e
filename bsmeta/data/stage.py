"""Copies the data of a run to a disk: resumable, verified, and under its name only when complete.

    python -m bsmeta.data.stage --config-name v2 data_config.train_file='s3://corpora/c4/*.gz' \
        out=/local/c4

accepts every key that training accepts, and copies the shards and the held-out file of that run.
The files keep the names that they have in the run, so a run on the copy has the same documents in
the same order. Until the last file is verified, the folder is called `OUT.part`; the same call
continues there at the missing byte (a file without a listed hash, such as one on a disk, is copied
again from its beginning). Called for a complete folder, it compares every file with its hash.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from io import RawIOBase
from pathlib import Path

import msgspec
import xxhash

from bsmeta.config.causal_lm import StageConfig
from bsmeta.config.compose import run_entry_point
from bsmeta.config.data import check_data, source_configs
from bsmeta.core.errors import ConfigurationError, DataError, differing
from bsmeta.core.files import (
    file_hash,
    format_bytes,
    free_bytes,
    path_inside,
    replacing,
    writing,
)
from bsmeta.core.parsing import decode_json
from bsmeta.core.process import stoppable
from bsmeta.core.progress import Show, progress_bar
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.file_sets import complete_part
from bsmeta.data.io.files import size_of
from bsmeta.data.io.remote import CancelledError
from bsmeta.data.io.shards import (
    SUFFIXES,
    Shard,
    check_is_listed,
    list_shards,
    validation_path,
    with_samples,
)
from bsmeta.data.io.stores import read_range, store_of_file

TRAIN, HELD_OUT, MANIFEST = "train", "validation", "staged.jsonl"
BLOCK = 1 << 20
SHOWN_DIFFERENCES = 10

_PLAIN_VALUE = re.compile(r"[\w/.*?@%+-]+")  # a value that Hydra reads as it is


class Copied(msgspec.Struct, frozen=True):
    """A line of the manifest: a complete file.

    Attributes:
        name: Its path in the folder.
        content: What identified the content of the original in its listing.
        xxh3: Of the copy, in hexadecimal.
    """

    name: str
    bytes: int
    content: str
    xxh3: str


def main(config: StageConfig) -> int:
    """Copies what is missing, or checks a complete folder; 75 if a signal has ended it before."""
    if config.out is None:
        raise ConfigurationError("out is not set; expected the folder to write", ["out"])
    check_data(config.data_config)
    folder = Path(config.out).absolute()
    return stoppable(lambda: print(stage(config, folder)))


def stage(config: StageConfig, out: Path) -> str:
    """Copies the data of a run to `out`.

    Returns:
        What is there, and the keys with which a run reads it.

    Raises:
        ConfigurationError: If the folder has other data, which is left as it is.
        DataError: If a file cannot be read, or differs from its listing or its hash, or the disk
            is full.
    """
    files = [*run_files(config)]
    # The machines that share the folder may all call this at once.
    with writing(out, f"copying to {out}"):
        if out.exists():
            _check_copies(out, files)
            done = "was complete, and every file has its hash"
        else:
            part = out.with_name(f"{out.name}.part")
            _copy_files(part, files, config.parallel_files)
            part.rename(out)
            done = "is complete, and every file is verified"
    total = format_bytes(sum(file.size for file in files))
    keys = [f"  {key}={value}" for key, value in run_keys(config, out, files).items()]
    return "\n".join([f"{out} {done} ({len(files):,} files, {total}). Train with", *keys])


def run_files(config: StageConfig) -> Iterator[Shard]:
    """The files that the run reads; the name of each is its path in the folder.

    The names come from listings: `path_of` decides whether they may be joined to a folder.
    """
    data = config.data_config
    for number, source in enumerate(source_configs(data).values()):
        folder = f"{TRAIN}/{number}" if data.sources else TRAIN
        for shard in with_samples(list_shards(source)):
            yield replace(shard, name=f"{folder}/{shard.name}")
    held_out = validation_path(data)
    if held_out is not None:
        name = f"{HELD_OUT}/{os.path.basename(str(held_out))}"
        try:
            (file,) = with_samples([Shard(name, held_out, size_of(held_out))])
        except OSError as error:
            raise DataError(
                f"data_config.validation_file={held_out} cannot be read: {error.strerror}; correct "
                "the path, or set it to null"
            ) from error
        yield file


def run_keys(config: StageConfig, out: Path, files: Sequence[Shard]) -> dict[str, str]:
    """The keys with which a run reads the copies."""
    keys = {}
    sources = config.data_config.sources
    for number in range(max(1, len(sources))):
        folder = f"{TRAIN}/{number}/" if sources else f"{TRAIN}/"
        names = [file.name.removeprefix(folder) for file in files if file.name.startswith(folder)]
        is_plain = all("/" not in name and name.endswith(SUFFIXES) for name in names)
        key = f"data_config.sources.{number}.train_file" if sources else "data_config.train_file"
        keys[key] = as_argument(f"{out}/{folder}" if is_plain else f"{out}/{folder}**")
    for file in files:
        if file.name.startswith(f"{HELD_OUT}/"):
            keys["data_config.validation_file"] = as_argument(f"{out}/{file.name}")
    if config.data_config.dataset_revision is not None:  # refused where nothing is on the Hub
        keys["data_config.dataset_revision"] = "null"
    return keys


def as_argument(value: str) -> str:
    """Quotes a value for Hydra, then for the shell: a name from a listing must not run there."""
    if not _PLAIN_VALUE.fullmatch(value):
        value = json.dumps(value, ensure_ascii=False)
    return shlex.quote(value)


def _check_copies(out: Path, files: Iterable[Shard]) -> None:
    """Compares a complete folder with the listing, and its files with their hashes."""
    copies = read_manifest(out)
    if not copies:
        raise ConfigurationError(
            f"out={out} exists, and was not written by this command (it has no {MANIFEST}); name "
            "another folder",
            ["out"],
        )
    saved = {copy.name: {"bytes": copy.bytes, "content": copy.content} for copy in copies.values()}
    listed = {file.name: {"bytes": file.size, "content": content_of(file)} for file in files}
    lines = [*itertools.islice(differing(saved, listed, "there"), SHOWN_DIFFERENCES)]
    if lines:
        raise ConfigurationError(
            "\n".join([f"out={out} holds other data; name another folder, or delete it:", *lines]),
            ["out"],
        )
    with progress_bar("checking", len(copies)) as show:
        for count, copy in enumerate(copies.values(), start=1):
            path = path_inside(out, copy.name, str(out / MANIFEST))
            found = file_hash(path) if path.is_file() else "not there"
            if found != copy.xxh3:
                raise DataError(
                    f"{path} is damaged: its xxh3 is {found}, not {copy.xxh3}; delete {out}, and "
                    "copy again"
                )
            show(count, copy.name)


def read_manifest(folder: Path) -> dict[str, Copied]:
    """The complete files of a folder, by name; a line that a killed process left is ignored."""
    try:
        lines = (folder / MANIFEST).read_bytes().splitlines(keepends=True)
        found = [decode_json(line, Copied) for line in lines if line.endswith(b"\n")]
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise DataError(f"{folder / MANIFEST} is damaged: {error}; delete {folder}") from error
    return {copy.name: copy for copy in found}


def content_of(file: Shard) -> str:
    """What identifies the content of a file, with its size, wherever it is."""
    return file.path.content_id if isinstance(file.path, FileRef) else file.samples


def _copy_files(folder: Path, files: Sequence[Shard], parallel: int) -> None:
    """Copies what is missing of the files to a folder, several files at a time."""
    folder.mkdir(exist_ok=True)
    if any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ConfigurationError(
            f"{folder} exists, and was not written by this command (it has no {MANIFEST}); name "
            "another folder in out, or delete it",
            ["out"],
        )
    for file in files:  # all are checked before anything is written
        path_of(file, folder)
        path_of(file, folder, part_name(file))

    copies = read_manifest(folder)
    kept = {
        file.name: copy
        for file in files
        if (copy := copies.get(file.name)) is not None
        and (copy.bytes, copy.content) == (file.size, content_of(file))
        and path_of(file, folder).is_file()
    }
    with replacing(folder / MANIFEST) as part:
        part.write_bytes(b"".join(map(_line, kept.values())))
    missing = [file for file in files if file.name not in kept]
    wanted = {MANIFEST, *kept, *map(part_name, missing)}
    for path in folder.rglob("*"):  # what earlier calls left of other files
        if path.is_file() and path.relative_to(folder).as_posix() not in wanted:
            path.unlink()
    parts = [path_of(file, folder, part_name(file)) for file in missing]
    begun = [path for path in parts if path.exists()]
    total, complete = sum(file.size for file in files), sum(one.bytes for one in kept.values())
    needed = total - complete - sum(path.stat().st_size for path in begun)
    if needed > (free := free_bytes(folder)):
        raise DataError(
            f"{folder}: {format_bytes(needed)} are missing, and the disk has room for "
            f"{format_bytes(free)}; free some space, or name another folder"
        )
    with (
        open(folder / MANIFEST, "ab", buffering=0) as manifest,
        progress_bar("copying", total) as show,
        ThreadPoolExecutor(parallel) as pool,
    ):
        copier = Copier(folder, manifest, show, complete)
        work = [pool.submit(copier.copy, file) for file in missing]
        try:
            for copied in as_completed(work):
                copied.result()
        finally:  # after an error, or a signal
            copier.cancelled.set()
            pool.shutdown(cancel_futures=True)


def path_of(file: Shard, folder: Path, name: str = "") -> Path:
    """The path of a copy in a folder, under its own name or that of its part.

    Raises:
        UnsafeNameError: If the name in the listing would lead out of the folder.
    """
    return path_inside(folder, name or file.name, str(file.path))


def part_name(file: Shard) -> str:
    """The name of a copy until it is complete, which differs for other content."""
    return f"{file.name}.{xxhash.xxh3_64_hexdigest(content_of(file).encode())}.part"


def _line(copy: Copied) -> bytes:
    return msgspec.json.encode(copy) + b"\n"


class Copier:
    """Copies files to a folder, in any number of threads.

    Args:
        manifest: Gets a line for each complete file.
        done: Bytes of complete files.

    Attributes:
        cancelled: Set to end the copying; a later call continues it.
    """

    def __init__(self, folder: Path, manifest: RawIOBase, show: Show, done: int) -> None:
        self.cancelled = threading.Event()
        self._folder = folder
        self._manifest = manifest
        self._show = show
        self._done = done
        self._lock = threading.Lock()

    def copy(self, file: Shard) -> None:
        """Copies a file, or the rest of it, and gives it its name.

        Raises:
            DataError: If it cannot be read, or differs from its listing or its hash.
            CancelledError: If copying was cancelled.
        """
        part = path_of(file, self._folder, part_name(file))
        part.parent.mkdir(parents=True, exist_ok=True)
        is_continued = part.exists()
        found = self._complete(file, part)
        if found is None and is_continued:  # what was there may have been damaged
            found = self._complete(file, part)
        if found is None:
            raise DataError(
                f"{file.path}: what was read is not what was listed ({content_of(file)}); see "
                "whether a proxy changes it, and copy again"
            )
        # In this order: a line without its file costs nothing but reading the part again.
        with self._lock:
            self._manifest.write(_line(Copied(file.name, file.size, content_of(file), found)))
        part.rename(path_of(file, self._folder))

    def _complete(self, file: Shard, part: Path) -> str | None:
        """Appends what is missing; returns the xxh3, or None and deletes a wrong copy."""
        path = file.path
        verifier = store_of_file(path).verifier(path) if isinstance(path, FileRef) else None
        if verifier is None:  # nothing would notice that the beginning is damaged
            part.unlink(missing_ok=True)
        content, count = xxhash.xxh3_64(), 0
        for block in complete_part(part, partial(self._rest, file)):
            content.update(block)
            count += len(block)
            if verifier is not None:
                verifier.update(block)
            self._advance(len(block))
        check_is_listed(file)  # a local one may have been replaced in the meantime
        if count == file.size and (verifier is None or verifier.is_right() is not False):
            return content.hexdigest()
        part.unlink()
        self._advance(-count)
        return None

    def _rest(self, file: Shard, start: int) -> Iterator[bytes]:
        """The content of a file from a byte on."""
        if isinstance(file.path, FileRef):
            rest: Iterator[bytes] = read_range(file.path, start, file.size, self.cancelled)
        else:
            rest = _blocks_of(file.path)
        for block in rest:
            if self.cancelled.is_set():
                raise CancelledError
            yield block

    def _advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._show(self._done, format_bytes(self._done))


def _blocks_of(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            yield from iter(lambda: file.read(BLOCK), b"")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


if __name__ == "__main__":
    run_entry_point(main, StageConfig, "v2")
