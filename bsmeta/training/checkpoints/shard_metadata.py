"""Reads `.metadata`, the description of a folder of shards, without trusting it.

Torch pickles the description. Only classes that describe tensors are built from it, and the parts
of each tensor must lie in files of the folder and hold each of its elements exactly once.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)

from bsmeta.core.progress import report_progress
from bsmeta.training.checkpoints.checkpoint import name_damaged_file
from bsmeta.training.checkpoints.pickled_enums import NAMES_OF_GETATTR, make_member_reader

_METADATA_FILE = ".metadata"

# Classes and functions in a description of tensors, beside dtypes. They are listed one by one,
# because their module also has `os`.
_ALLOWED_GLOBALS = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
}  # fmt: skip

# Opcodes in the pickles that Python writes for such a description.
_ALLOWED_OPCODES = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD",
    "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE",
    "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_TUPLE",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT",
    "SETITEM", "SETITEMS",
})  # fmt: skip

_OPCODES_PER_REPORT = 1 << 20  # between reports of progress


def read_metadata(folder: Path) -> Metadata:
    """Reads the description of a folder without trusting it.

    Raises:
        CheckpointError: If it is damaged, or describes anything but tensors in files of the folder.
    """
    file = folder / _METADATA_FILE
    with name_damaged_file(file):
        metadata = read_pickled_description(file.read_bytes())
        if not isinstance(metadata, Metadata):
            raise ValueError(f"found a {type(metadata).__name__}, expected a Metadata")
        _check_tensors(metadata.state_dict_metadata)
        _check_storage(metadata.storage_data)

        described_bytes = sum(
            math.prod(entry.size) * entry.properties.dtype.itemsize
            for entry in list_tensor_entries(metadata).values()
        )
        stored_bytes = sum(shards.stat().st_size for shards in folder.glob("*.distcp"))
        if described_bytes > stored_bytes:
            raise ValueError(
                f"describes {described_bytes:,} bytes of tensors, but its files have "
                f"{stored_bytes:,}"
            )
        _check_parts(metadata)
    return metadata


def read_pickled_description(content: bytes) -> Any:
    """Reads a pickled description of tensors, or a part of one, without trusting it.

    Raises:
        UnpicklingError: If the pickle does more than build such values.
    """
    _check_opcodes(content)
    return _Unpickler(io.BytesIO(content)).load()


def _check_opcodes(content: bytes) -> None:
    """Refuses a pickle that does more than build values, or that would fill the memory.

    A PUT opcode stores an object at an index, and Python's table grows to the largest index.
    """
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in _ALLOWED_OPCODES:
            raise pickle.UnpicklingError(f"{opcode.name} does not describe a tensor")
        if opcode.name.endswith("PUT") and int(argument or 0) > count:
            raise pickle.UnpicklingError(f"{opcode.name} {argument} after {count} steps")
        if count % _OPCODES_PER_REPORT == 0:
            report_progress()


class _Unpickler(pickle.Unpickler):
    """Unpickler that refuses every class and function except those that describe tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in NAMES_OF_GETATTR:
            return make_member_reader(_MEM_FORMAT_ENCODING)
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _ALLOWED_GLOBALS.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not describe a tensor")


def list_tensor_entries(metadata: Metadata) -> dict[str, TensorStorageMetadata]:
    """Returns the entries of checked metadata by name; all describe tensors."""
    entries = metadata.state_dict_metadata
    return {
        name: entry for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)
    }


def _check_tensors(entries: Any) -> None:
    """Refuses anything but descriptions of tensors, because torch would unpickle other entries."""
    if type(entries) is not dict or any(type(name) is not str for name in entries):
        raise ValueError("found no names of tensors")
    for name, entry in entries.items():
        if type(entry) is not TensorStorageMetadata:
            raise ValueError(
                f"{name}: found more than tensors; expected only descriptions of tensors"
            )
        is_shape = isinstance(entry.size, torch.Size)
        if not is_shape or not isinstance(entry.properties.dtype, torch.dtype):
            raise ValueError(f"{name}: found no shape or no type")
        if min(entry.size, default=0) < 0:
            raise ValueError(f"{name}: found the shape {list(entry.size)}")


def _check_storage(storage: Any) -> None:
    """Refuses parts that are not plain ranges of bytes in files of the folder."""
    if type(storage) is not dict:
        raise ValueError("found no parts of tensors")
    for shard in storage.values():
        name = shard.relative_path
        if type(name) is not str or Path(name).name != name:
            raise ValueError(f"names {name}, outside of its folder")
        if type(shard.offset) is not int or type(shard.length) is not int or shard.offset < 0:
            raise ValueError(f"{name}: found no offset or no length")
        if shard.transform_descriptors:  # such as a compression, which nothing here writes
            raise ValueError(f"{name}: is transformed by {shard.transform_descriptors}")


def _check_parts(metadata: Metadata) -> None:
    """Refuses a tensor whose parts do not hold each of its elements exactly once.

    A load reads the parts that are listed; other elements would keep what the memory holds.
    """
    for name, entry in list_tensor_entries(metadata).items():
        for part in entry.chunks:
            if type(part) is not ChunkStorageMetadata:
                raise ValueError(f"{name}: found a {type(part).__name__}, expected a part")
            if not len(part.offsets) == len(part.sizes) == len(entry.size):
                raise ValueError(f"{name}: found a part with another number of dimensions")

            for offset, length, size in zip(part.offsets, part.sizes, entry.size, strict=True):
                if offset < 0 or length < 0 or offset + length > size:
                    raise ValueError(f"{name}: found a part outside of the shape")

        numel = math.prod(entry.size)
        part_numel = sum(math.prod(part.sizes) for part in entry.chunks)
        if part_numel != numel:
            raise ValueError(f"{name}: its parts have {part_numel:,} elements, expected {numel:,}")
        if _has_overlaps(entry.chunks):
            raise ValueError(f"{name}: found parts that overlap")


def _has_overlaps(parts: list[ChunkStorageMetadata]) -> bool:
    """Whether any two parts of a tensor share an element.

    The parts are visited in the order of their beginnings in one dimension, and compared with the
    earlier ones that have not ended there.
    """
    parts = [part for part in parts if math.prod(part.sizes) > 0]
    if len(parts) < 2:
        return False

    dimensions = range(len(parts[0].sizes))
    sweep = max(dimensions, key=lambda dim: len({part.offsets[dim] for part in parts}), default=0)
    open_parts: list[ChunkStorageMetadata] = []
    for part in sorted(parts, key=lambda part: part.offsets[sweep]):
        start = part.offsets[sweep]
        open_parts = [
            other for other in open_parts if other.offsets[sweep] + other.sizes[sweep] > start
        ]
        if any(_do_overlap(part, other) for other in open_parts):
            return True
        open_parts.append(part)
    return False


def _do_overlap(first: ChunkStorageMetadata, second: ChunkStorageMetadata) -> bool:
    """Whether these two parts of a tensor share an element."""
    return all(
        first.offsets[dim] < second.offsets[dim] + second.sizes[dim]
        and second.offsets[dim] < first.offsets[dim] + first.sizes[dim]
        for dim in range(len(first.sizes))
    )
