"""The manifest of a folder: size and checksum of each file, so that damage is detected before use.

A bit flip in a weights file would otherwise load without an error. A checkpoint has one manifest
for all its files (written by `training.checkpoint`), and so has an exported model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import msgspec
import xxhash

from bsmeta.core.errors import CheckpointError
from bsmeta.core.files import UnsafeNameError, join_inside
from bsmeta.core.parsing import decode_json
from bsmeta.core.progress import report_progress

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the format of a standalone model folder; checkpoints have another version."""

UNCHECKED_FILES = ("README.md",)
"""Files of a model folder that users may edit, and that do not affect the model."""

_BLOCK_BYTES = 1 << 22


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest's entry for one file.

    Attributes:
        bytes: Size of the file.
        xxh3: Its 128-bit XXH3 checksum, in hexadecimal.
    """

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    xxh3: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of `manifest.json`.

    Attributes:
        format: The version of the folder's format.
        files: Sizes and checksums by path, relative to the folder.
        step: The step of a checkpoint; None for a standalone model.
    """

    format: Annotated[int, msgspec.Meta(ge=1)]
    files: dict[str, FileEntry]
    step: int | None = None


def describe_file(file: Path) -> FileEntry:
    """Computes the manifest's entry for a file."""
    digest = xxhash.xxh3_128()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            report_progress()
    return FileEntry(file.stat().st_size, digest.hexdigest())


def find_fault(file: Path, entry: FileEntry) -> str | None:
    """Describes how a file differs from its entry in the manifest; None if it does not."""
    try:
        if not file.is_file():
            return f"{file}: is missing"
        actual = describe_file(file)
    except OSError as error:  # a bad sector of the disk, or a path that is too long
        return f"{file}: cannot be read ({error})"
    if actual == entry:
        return None
    return (
        f"{file}: {actual.bytes} bytes, xxh3 {actual.xxh3}; the manifest says {entry.bytes} "
        f"bytes, xxh3 {entry.xxh3}"
    )


def read_manifest(folder: Path) -> Manifest:
    """Reads a folder's manifest, without reading the files that it lists.

    Raises:
        CheckpointError: If it is missing, unreadable or malformed, or lists files outside the
            folder.
    """
    path = folder / MANIFEST
    try:
        manifest = decode_json(path.read_bytes(), Manifest)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}); expected sizes and checksums of files"
        ) from error
    for file in manifest.files:
        try:
            join_inside(folder, file, str(path), follow_links=True)
        except UnsafeNameError as error:
            raise CheckpointError(str(error)) from error
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest of a checkpoint or a model."""
    (folder / MANIFEST).write_text(json.dumps(msgspec.to_builtins(manifest), indent=1))


def write_model_manifest(folder: Path) -> None:
    """Writes the manifest of a standalone model folder."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    excluded = (MANIFEST, *UNCHECKED_FILES)
    entries = {name: describe_file(paths[name]) for name in sorted(paths) if name not in excluded}
    write_manifest(folder, Manifest(FORMAT, entries))
