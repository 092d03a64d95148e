"""Manifests: size and checksum of each file in a folder, so that damage is detected before use.

A bit flip in a weights file would otherwise load without an error. A checkpoint has one manifest
for all its files (written by `training.checkpoint`); a standalone model folder has its own. A copy
without any is recognized by the tokens that `config.json` records for its weights.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
import xxhash

from bsmeta.config.steps import CHECKPOINT_NAME
from bsmeta.core.progress import report_progress

MANIFEST = "manifest.json"
FORMAT = 1  # of a standalone model folder; checkpoints have their own version
UNCHECKED = ("README.md",)
"""Files of a model folder that users may edit, and that do not affect the model."""

TOKENS_HASH = "tokenizer_xxh3"
"""Key of an exported model's `config.json`: the hash of the tokens and ids of its tokenizer."""

_BLOCK = 1 << 22


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest's entry for one file."""

    bytes: Annotated[int, msgspec.Meta(ge=0)]
    xxh3: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of `manifest.json`.

    Attributes:
        format: The version of the folder's format.
        files: Sizes and checksums by path, relative to the folder.
        step: The step of a checkpoint.
    """

    format: Annotated[int, msgspec.Meta(ge=1)]
    files: dict[str, FileEntry]
    step: int | None = None


def describe_file(file: Path) -> FileEntry:
    """Computes the manifest's entry for a file: its size, and its xxh3 in hexadecimal."""
    digest = xxhash.xxh3_128()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            report_progress()
    return FileEntry(file.stat().st_size, digest.hexdigest())


def read_manifest(folder: Path) -> Manifest:
    """Reads a folder's manifest, without reading the files that it lists.

    Raises:
        ValueError: If it cannot be read, is malformed, or lists files outside the folder.
    """
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); expected sizes and checksums of files"
        ) from error
    for file in manifest.files:
        parts = PurePosixPath(file).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise ValueError(f"{path}: lists {file!r}, which is not below its folder")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes a folder's manifest."""
    (folder / MANIFEST).write_text(json.dumps(msgspec.to_builtins(manifest), indent=1))


def write_model_manifest(folder: Path) -> None:
    """Writes the manifest of a standalone model folder."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    entries = {
        file: describe_file(folder / file) for file in files if file not in (MANIFEST, *UNCHECKED)
    }
    write_manifest(folder, Manifest(FORMAT, entries))


def record_tokenizer(folder: Path) -> None:
    """Records the tokens of the tokenizer in a model folder in its `config.json`.

    Without a `tokenizer.json`, a record of the model that this one was trained from is removed.
    """
    config = folder / "config.json"
    if not config.is_file():
        return
    content = json.loads(config.read_text(encoding="utf-8"))
    content.pop(TOKENS_HASH, None)
    digest = _tokens_hash(folder)
    if digest is not None:
        content[TOKENS_HASH] = digest
    config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def tokenizer_faults(folder: Path) -> list[str]:
    """Describes a tokenizer in a model folder that is not the one its `config.json` records."""
    try:
        recorded = json.loads((folder / "config.json").read_text(encoding="utf-8"))[TOKENS_HASH]
        found = _tokens_hash(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return []  # not recorded, or unreadable, which is reported when it is loaded
    if found in (None, recorded):
        return []
    return [
        f"{folder / 'tokenizer.json'}: its tokens and ids (xxh3 {found}) are not those that the "
        f"model was trained with ({TOKENS_HASH} of config.json: {recorded}). Restore it; if you "
        f"changed it on purpose, delete {TOKENS_HASH} from config.json"
    ]


def _tokens_hash(folder: Path) -> str | None:
    """The hash of the tokens and ids in `tokenizer.json`, however it is formatted; None without."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    parts = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = parts["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = set(vocabulary.items())
    else:  # Unigram: pieces with their scores, in the order of their ids
        tokens = {(entry[0], number) for number, entry in enumerate(vocabulary)}
    tokens |= {(added["content"], added["id"]) for added in parts.get("added_tokens", [])}
    return xxhash.xxh3_128(json.dumps(sorted(tokens)).encode()).hexdigest()


def has_manifest(model: Path) -> bool:
    """Whether the files of a model folder are listed by its manifest or its checkpoint's."""
    above = model.resolve().parent
    return (model / MANIFEST).is_file() or CHECKPOINT_NAME.fullmatch(above.name) is not None


def model_damage(model: Path) -> list[str]:
    """Lists the faults of the files of a model folder, one line each; empty if there are none.

    The manifest is the folder's own or that of the checkpoint that contains it. A folder from
    elsewhere that has neither cannot be checked.
    """
    above = model.resolve().parent
    if (model / MANIFEST).is_file():
        root, start = model, ""
    elif CHECKPOINT_NAME.fullmatch(above.name):
        root, start = above, f"{model.resolve().name}/"
    else:
        return []
    try:
        entries = read_manifest(root).files
    except ValueError as error:
        return [str(error)]
    problems = []
    for file, entry in entries.items():
        if not file.startswith(start) or file.removeprefix(start) in UNCHECKED:
            continue
        path = root / file
        if not path.is_file():
            problems.append(f"{path}: is missing")
        elif (actual := describe_file(path)) != entry:
            problems.append(mismatch(path, actual, entry))
    return problems


def mismatch(path: Path, actual: FileEntry, entry: FileEntry) -> str:
    """Describes how a file differs from its entry."""
    return (
        f"{path}: {actual.bytes} bytes, xxh3 {actual.xxh3}; the manifest says {entry.bytes} "
        f"bytes, xxh3 {entry.xxh3}"
    )
