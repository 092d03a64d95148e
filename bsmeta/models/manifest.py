"""Manifests: size and checksum of each file of a folder, so that damage is found before it is used.

A bit flip in a weights file would otherwise load without a word. A checkpoint has one for all that
it holds (`training.checkpoint` writes it), a model folder that stands alone one of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import xxhash

MANIFEST = "manifest.json"
FORMAT = 1
UNCHECKED = ("README.md",)
"""Files of a model folder that people edit, and that nothing is computed from."""

_CHECKPOINT = re.compile(r"checkpoint-(\d+)step")
_BLOCK = 1 << 22


def describe_file(file: Path) -> dict[str, Any]:
    """The manifest's entry for a file: its size, and its xxh3 in hexadecimal."""
    digest = xxhash.xxh3_128()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return {"bytes": file.stat().st_size, "xxh3": digest.hexdigest()}


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of a folder's manifest by file.

    Raises:
        ValueError: It cannot be read, or has another format.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        entries, manifest_format = manifest["files"], manifest["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    if manifest_format != FORMAT:
        raise ValueError(f"{path}: format {manifest_format}, but this code reads {FORMAT}")
    return dict(entries)


def write_model_manifest(folder: Path) -> None:
    """Writes the manifest of a model folder that stands alone."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    entries = {
        file: describe_file(folder / file) for file in files if file not in (MANIFEST, *UNCHECKED)
    }
    text = json.dumps({"format": FORMAT, "files": entries}, indent=1)
    (folder / MANIFEST).write_text(text)


def model_damage(model: Path) -> list[str]:
    """What is wrong with the files of a model folder, one line each; empty: nothing.

    The manifest is the folder's own or that of the checkpoint around it. A folder with neither,
    from elsewhere, has nothing to be compared with.
    """
    above = model.resolve().parent
    if (model / MANIFEST).is_file():
        root, start = model, ""
    elif _CHECKPOINT.fullmatch(above.name):
        root, start = above, f"{model.resolve().name}/"
    else:
        return []
    try:
        entries = read_manifest(root)
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


def mismatch(path: Path, actual: dict[str, Any], entry: dict[str, Any]) -> str:
    """How a file differs from its entry."""
    return (
        f"{path}: {actual['bytes']} bytes, xxh3 {actual['xxh3']}; the "
        f"manifest says {entry['bytes']} bytes, xxh3 {entry['xxh3']}"
    )
