"""Claims the folder of a result: `data/`, `tokenizer/`, both runs, the evaluation and the answer.

A folder belongs to one set of pages and settings, identified by their hash. The same command
continues it, and any other is refused, so that no report mixes two of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import delete_path, write_json, write_text
from bsmeta.core.parsing import parse_json
from bsmeta.quick.config import QuickConfig
from bsmeta.quick.documents import Page

MARK = ".bsmeta-quick"
"""The file with the hash of pages and settings; only folders that have it are ever replaced."""

PLAN = "plan.json"
"""The file with the sizes of both models."""

_KEYS_WITHOUT_EFFECT = ("pages", "out_dir", "overwrite_out_dir", "check_only")
_VERSION = 1  # of the files; increment when an interrupted result cannot be continued


@contextmanager
def open_folder(config: QuickConfig) -> Iterator[Path]:
    """Yields the folder of the result; for `check_only`, a temporary one."""
    if not config.check_only:
        yield Path(config.out_dir)
        return
    with tempfile.TemporaryDirectory(prefix="bsmeta-quick-") as folder:
        yield Path(folder)


def claim_folder(config: QuickConfig, folder: Path, pages: Sequence[Page]) -> None:
    """Creates the folder of a result, or checks that it belongs to these pages and settings.

    An earlier result is deleted with `overwrite_out_dir=true`.

    Raises:
        ConfigurationError: If the folder holds anything else, or cannot be written.
    """
    identity = identify_result(config, pages)
    try:
        content = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        earlier_identity = None
        if MARK in content:
            earlier_identity = (folder / MARK).read_text(encoding="utf-8").strip()
        if earlier_identity == identity and not config.overwrite_out_dir:
            return

        # Without a plan, an earlier start was refused before it trained anything.
        if earlier_identity is None or PLAN in content:
            _check_content(config, folder, content)
        for name in content:
            delete_path(folder / name)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / MARK, f"{identity}\n")
    except OSError as error:
        raise ConfigurationError(
            f"out_dir={folder}: cannot be used: {error.strerror or error}; expected a folder that "
            "can be written",
            ["out_dir"],
        ) from error


def _check_content(config: QuickConfig, folder: Path, content: Sequence[str]) -> None:
    """Refuses to replace the content of a folder, except an earlier result if this is allowed."""
    if content and MARK not in content:
        raise ConfigurationError(
            f"out_dir={folder}: holds {', '.join(content[:3])}, and no {MARK} of an earlier "
            "result; expected a new or empty folder; choose another out_dir, or move these files",
            ["out_dir"],
        )
    if content and not config.overwrite_out_dir:
        raise ConfigurationError(
            f"out_dir={folder}: holds the result of other pages or settings; expected the same "
            "(which it continues), or a new folder; choose another out_dir, or replace it "
            "(overwrite_out_dir=true)",
            ["out_dir"],
        )


def identify_result(config: QuickConfig, pages: Sequence[Page]) -> str:
    """Hashes everything that a result depends on, except the machine."""
    settings = {
        name: value for name, value in asdict(config).items() if name not in _KEYS_WITHOUT_EFFECT
    }
    digest = xxhash.xxh3_128(msgspec.json.encode([_VERSION, settings]))
    for page in pages:
        digest.update(page.encode_line())
    return digest.hexdigest()


def read_sizes(folder: Path) -> dict[str, Any] | None:
    """Reads the sizes that an earlier start has chosen; None if there are none.

    Raises:
        DataError: If the file is damaged.
    """
    try:
        plan = parse_json((folder / PLAN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _make_damage_error(folder / PLAN, str(error)) from error
    if not isinstance(plan, dict):
        raise _make_damage_error(folder / PLAN, "not a JSON object")
    return plan


def write_sizes(folder: Path, sizes: dict[str, Any]) -> None:
    """Writes the sizes, so that the same command keeps them after an interruption."""
    write_json(folder / PLAN, sizes)


def _make_damage_error(file: Path, reason: str) -> DataError:
    return DataError(f"{file} is damaged: {reason}; set overwrite_out_dir=true to start over")
