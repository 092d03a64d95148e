"""Recognize shards by samples of their content, wherever and whenever they were copied.

One rank samples all shards of a run. The hashes are in the fingerprint of the run, and in the cache
folder, from which a restart takes those of the shards that have not changed. Whoever opens a shard
compares it with its hash: another machine may have another file of that name.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import xxhash

from bsmeta.core.errors import DataError
from bsmeta.core.files import replacing
from bsmeta.core.progress import report_progress
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.files import open_file
from bsmeta.data.io.remote import FileRef
from bsmeta.data.io.shards import Shard, in_threads

log = logging.getLogger(__name__)

SAMPLES, SAMPLE_BYTES = 4, 1 << 14
FOLDER = "samples"

Opened = Callable[[str], BinaryIO]
"""Opens a shard that is not remote."""

Kept = list[tuple[int, int, str]]
"""Of each shard: size in bytes, time of the last change (see `Shard`), and hash."""


def with_samples(
    shards: Sequence[Shard], opened: Opened = open_file, cache: Cache | None = None
) -> list[Shard]:
    """The shards, those that are not remote with the hash of their samples.

    The hash is equal for a copy of the file, wherever and whenever it was made, and almost surely
    differs for other content of the same size (a gzip file ends with a checksum of its content).

    Args:
        cache: Where the hashes of the same shards may be found, and are kept.

    Raises:
        DataError: If a shard cannot be read.
    """
    local = [shard for shard in shards if not isinstance(shard.path, FileRef)]
    file = None if cache is None else cache.folder / FOLDER / listing_name(local)
    kept = [] if file is None else load(file)
    known = kept if len(kept) == len(local) else [(0, 0, "")] * len(local)
    hashes = {
        shard.name: found
        for shard, (size, changed, found) in zip(local, known, strict=True)
        if shard.changed and (size, changed) == (shard.size, shard.changed)
    }
    others = [shard for shard in local if shard.name not in hashes]
    found = in_threads(lambda shard: sampled_hash(shard, opened), others)
    hashes |= {shard.name: one for shard, one in zip(others, found, strict=True)}
    if file is not None and others:
        save(file, [(shard.size, shard.changed, hashes[shard.name]) for shard in local])
    return [replace(shard, samples=hashes.get(shard.name, "")) for shard in shards]


def shards_fingerprint(shards: Sequence[Shard]) -> dict[str, Any]:
    """The facts about shards that must not change before a run is resumed; JSON-serializable.

    Remote shards are identified by their listing (`FileRef.identity`), others by their size and the
    hash of their samples.

    Args:
        shards: Those that are not remote come from `with_samples`.
    """
    facts: dict[str, Any] = {}
    for shard in shards:
        if isinstance(shard.path, FileRef):
            facts |= shard.path.identity(shard.name)
        else:
            facts[shard.name] = {"bytes": shard.size, "sampled_xxh3": shard.samples}
    return facts


def check_is_listed(shard: Shard, opened: Opened = open_file) -> None:
    """Refuses a file that is not the one that was listed, or no longer.

    Raises:
        DataError: If it is another one, or cannot be read.
    """
    if shard.samples and sampled_hash(shard, opened) != shard.samples:
        raise _other_file(shard)


def sampled_hash(shard: Shard, opened: Opened = open_file) -> str:
    """The xxh3 (hexadecimal) of the beginning and end of a shard and a few places in between.

    Raises:
        DataError: If the file has another size than the shard, or cannot be read.
    """
    found = xxhash.xxh3_64()
    last = max(shard.size - SAMPLE_BYTES, 0)
    try:
        with opened(str(shard.path)) as file:
            for place in range(SAMPLES):
                file.seek(last * place // (SAMPLES - 1))
                found.update(file.read(SAMPLE_BYTES))
                report_progress()
            file.seek(0, os.SEEK_END)
            size = file.tell()
    except OSError as error:
        raise DataError(f"data_config.train_file: {shard.path} cannot be read: {error}") from error
    if size != shard.size:
        raise _other_file(shard)
    return found.hexdigest()


def _other_file(shard: Shard) -> DataError:
    return DataError(
        f"data_config.train_file: {shard.path} on {socket.gethostname()} is not the file that was "
        f"listed at the start (of {shard.size:,} bytes); expected the same files on all machines, "
        "unchanged during a run: copy it there again, or start the run again"
    )


def listing_name(shards: Sequence[Shard]) -> str:
    """The name of the file that keeps the hashes of some shards."""
    paths = "\n".join(str(shard.path) for shard in shards)
    return xxhash.xxh3_128_hexdigest(os.fsencode(paths))


def load(path: Path) -> Kept:
    """The kept hashes; none if there are none, or they are damaged."""
    try:
        checksum, _, content = path.read_bytes().partition(b"\n")
        if checksum.decode() != xxhash.xxh3_64_hexdigest(content):
            raise ValueError("its checksum does not match")
        return msgspec.json.decode(content, type=Kept)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.warning("%s cannot be read and is rebuilt: %s", path, error)
        return []


def save(path: Path, found: Kept) -> None:
    """Writes hashes to the cache atomically, after a checksum."""
    content = msgspec.json.encode(found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(xxhash.xxh3_64_hexdigest(content).encode() + b"\n" + content)
    except OSError as error:  # a read-only home folder only costs time
        log.warning("the hashes of the shards are not kept: %s", error)
