"""Sequences prepared in advance (by `prepare`), instead of those of `live`.

A folder contains a manifest and, for each logical stream, one memory-mapped file per array
(`prepare.columns_of`). They store the output of `LogicalStream`: each sequence with the position
after it. So a run may switch between prepared and live data at any sequence.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError, UserError, differing
from bsmeta.core.files import file_hash
from bsmeta.data.io.shards import shards_fingerprint
from bsmeta.data.stream.fingerprint import NOT_THERE, fingerprint
from bsmeta.data.stream.live import LiveStreams
from bsmeta.data.stream.packing import PackedSequence
from bsmeta.data.stream.plan import Phases, Position
from bsmeta.data.stream.sources import Survey, open_corpora

log = logging.getLogger(__name__)

FORMAT = 6
MANIFEST = "manifest.json"
TARGET = 0x80
"""Set in `marks` for tokens that are targets; the other bits are the token type."""


class PreparedStream:
    """The sequences of one stream.

    Raises:
        DataError: If a file is missing or has the wrong size.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], stream: int) -> None:
        self._stream = stream
        self._shards: list[str] = manifest["shards"]
        files = manifest["streams"][stream]["files"]
        columns = {name: mapped(folder, manifest, stream, name) for name in files}
        self._tokens, self._marks = columns["tokens"], columns["marks"]
        self._lengths, self._types = columns["lengths"], columns["types"]
        self._documents, self._counts = columns["documents"], columns["counts"]
        self._rows, self._positions = columns["rows"], columns["positions"]

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._rows)

    def position_after(self, index: int) -> Position:
        """The position after a sequence; the beginning for -1."""
        return Position(*self._positions[index].tolist()) if index >= 0 else Position()

    def sequence(self, index: int) -> PackedSequence:
        """A sequence, as `LogicalStream` yielded it."""
        begins = self._rows[index - 1].tolist() if index else [0, 0, 0]
        tokens, chunks, documents = map(slice, begins, self._rows[index].tolist())
        marks = self._marks[tokens]
        return PackedSequence(
            ids=self._tokens[tokens].astype(np.int32),
            token_types=marks & ~np.uint8(TARGET),
            loss_mask=marks >= TARGET,
            lengths=self._lengths[chunks].astype(np.int64),
            types=self._types[chunks].astype(np.int32),
            documents=tuple(
                f"{self._shards[shard]}:{number}"
                for shard, number in self._documents[documents].tolist()
            ),
            counts=self._counts[index].astype(np.float64),
            stream=self._stream,
            position_after=self.position_after(index),
        )


class PreparedStreams:
    """All logical streams of a run: prepared first, then live.

    Raises:
        ConfigurationError: If the folder was prepared for other data, or by another version.
        DataError: If there is no prepared data.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        phases: Phases,
        survey: Survey,
    ) -> None:
        self._arguments = (config, tokenizer, seed, phases, survey)
        self._folder = Path(config.prepared or "")
        self._manifest = read_manifest(self._folder)
        self._live: LiveStreams | None = None
        saved = self._manifest["fingerprint"]
        if survey.failure is not None:
            log.info("only the prepared epochs can be trained on: %s", survey.failure)
        shards = saved["shards"]
        if survey.shards:
            corpora = open_corpora(config, survey.shards)
            shards = shards_fingerprint([shard for one in corpora for shard in one.shards])
        facts = fingerprint(config, tokenizer, seed, phases, shards, survey.held_out)
        self.fingerprint = as_saved(facts)
        if self.fingerprint["held_out"] == NOT_THERE:  # the prepared data was filtered by it
            self.fingerprint["held_out"] = saved["held_out"]
        differences = "\n".join(differing(saved, self.fingerprint, "when it was prepared"))
        if differences:
            raise ConfigurationError(
                f"data_config.prepared={self._folder} was prepared for other data; prepare it "
                f"again, or leave data_config.prepared out:\n{differences}"
            )

    def sequences(self, stream: int, position: Position) -> Iterator[PackedSequence]:
        """The sequences of a stream from a position on; endless if the shards are available.

        Raises:
            ConfigurationError: If the position does not belong to this data.
            DataError: If files are damaged, or the prepared epochs are used up and no live stream
                can continue.
        """
        prepared = PreparedStream(self._folder, self._manifest, stream)
        done = position.emitted
        if done <= len(prepared) and position != prepared.position_after(done - 1):
            raise ConfigurationError(
                f"data_config.prepared={self._folder}: stream {stream} is at {position}, where "
                f"the prepared one is at {prepared.position_after(done - 1)}: the run was on other "
                "data before; leave data_config.prepared out"
            )
        for index in range(done, len(prepared)):
            yield prepared.sequence(index)
        if done < len(prepared):
            position = prepared.position_after(len(prepared) - 1)
        log.info("stream %d continues live after its prepared epochs", stream)
        yield from self._live_streams(stream).sequences(stream, position)

    def _live_streams(self, stream: int) -> LiveStreams:
        if self._live is None:
            try:
                self._live = LiveStreams(*self._arguments)
            except UserError as error:
                raise DataError(
                    f"stream {stream} has used up the prepared epochs ({self._manifest['epochs']}) "
                    f"of data_config.prepared={self._folder}, and cannot continue with the shards "
                    f"themselves: {error}; prepare more epochs, or make the shards available"
                ) from error
        return self._live


def file_name(stream: int, column: str) -> str:
    """The file of a stream's array, relative to the folder."""
    return f"stream-{stream:05}.{column}"


def mapped(folder: Path, manifest: dict[str, Any], stream: int, column: str) -> np.ndarray:
    """An array of a stream, mapped into memory.

    Raises:
        DataError: If its file is missing or of another size.
    """
    path = folder / file_name(stream, column)
    expected = manifest["streams"][stream]["files"][column]["bytes"]
    found = path.stat().st_size if path.exists() else None
    if found != expected:
        raise DataError(
            f"data_config.prepared: {path} has {found} bytes, expected {expected}; it is damaged, "
            "prepare it again"
        )
    kind, width = manifest["columns"][column]["dtype"], manifest["columns"][column]["width"]
    array = np.memmap(path, kind, "r") if expected else np.zeros(0, kind)
    return array.reshape(-1, width) if width > 1 else array


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of prepared data."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if not isinstance(manifest, dict) or "format" not in manifest:
            raise ValueError(f"its {MANIFEST} is of something else")
    except (OSError, ValueError) as error:
        raise DataError(
            f"data_config.prepared={folder} holds no prepared data "
            f"(python -m bsmeta.data.prepare … out={folder} makes it): {error}"
        ) from error
    if manifest["format"] != FORMAT:
        raise ConfigurationError(
            f"data_config.prepared={folder} has format {manifest['format']}; this version reads "
            f"format {FORMAT}: delete the folder, and run python -m bsmeta.data.prepare … "
            f"out={folder} again"
        )
    return manifest


def verify(folder: Path, manifest: dict[str, Any]) -> None:
    """Compares all files with their hashes in the manifest; refuses the first that differs."""
    for stream, entry in enumerate(manifest["streams"]):
        for column, facts in entry["files"].items():
            mapped(folder, manifest, stream, column)  # raises if missing or of the wrong size
            path = folder / file_name(stream, column)
            if file_hash(path) != facts["xxh3"]:
                raise DataError(
                    f"{path} is damaged: its content has another "
                    "hash than when it was prepared; delete the folder and prepare it again"
                )


def as_saved(value: dict[str, Any]) -> dict[str, Any]:
    """A dict as it reads back after saving."""
    return json.loads(json.dumps(value))
