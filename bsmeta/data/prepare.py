"""Prepares the training sequences in advance, once for all runs with the same data, and reads them.

    python -m bsmeta.data.prepare --config-name v2 data_config.train_file='shards/*.jsonl.gz' \
        epochs=1 out=FOLDER

accepts every key that training accepts. Training with the same keys and
`data_config.prepared=FOLDER` then has the same batches as without it, and continues live after the
prepared epochs. The folder appears only when it is complete. Called again for an existing folder,
it checks the content. `data_config.num_workers` streams are prepared at a time (0: one, in this
process).

A folder contains a manifest and, for each logical stream, one memory-mapped file per array
(`columns_of`). They store the output of `LogicalStream`: each sequence with the position after it.
So a run may switch between prepared and live data at any sequence.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase

from bsmeta.config.causal_lm import PrepareConfig
from bsmeta.config.compose import run_entry_point
from bsmeta.config.data import DataConfig, check_data, row_length
from bsmeta.config.steps import BatchPlan, decay_start
from bsmeta.config.values import to_yaml
from bsmeta.core.errors import ConfigurationError, DataError, UserError, differing
from bsmeta.core.files import file_hash
from bsmeta.core.progress import progress_bar
from bsmeta.data.io.shards import shards_fingerprint
from bsmeta.data.stream.held_out import NOT_THERE
from bsmeta.data.stream.live import LiveStreams, fingerprint, open_corpora, phases_of
from bsmeta.data.stream.plan import Phases, Position
from bsmeta.data.stream.survey import Survey, survey_data
from bsmeta.data.stream.windows import count_names
from bsmeta.data.text.chunks import PackedSequence
from bsmeta.data.text.tokenizer import load_tokenizer

log = logging.getLogger(__name__)

FORMAT = 6
MANIFEST = "manifest.json"
TARGET = 0x80
"""Set in `marks` for tokens that are targets; the other bits are the token type."""

BUFFER = 1 << 20


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
        self.fingerprint = _as_saved(facts)
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


class PreparedStream:
    """The sequences of one stream."""

    def __init__(self, folder: Path, manifest: dict[str, Any], stream: int) -> None:
        self._stream = stream
        self._shards: list[str] = manifest["shards"]
        files = manifest["streams"][stream]["files"]
        self._arrays = {name: _mapped(folder, manifest, stream, name) for name in files}

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._arrays["rows"])

    def position_after(self, index: int) -> Position:
        """The position after a sequence; the beginning for -1."""
        positions = self._arrays["positions"]
        return Position(*positions[index].tolist()) if index >= 0 else Position()

    def sequence(self, index: int) -> PackedSequence:
        """A sequence, as `LogicalStream` yielded it."""
        arrays = self._arrays
        begins = arrays["rows"][index - 1].tolist() if index else [0, 0, 0]
        tokens, chunks, documents = map(slice, begins, arrays["rows"][index].tolist())
        marks = arrays["marks"][tokens]
        return PackedSequence(
            ids=arrays["tokens"][tokens].astype(np.int32),
            token_types=marks & ~np.uint8(TARGET),
            loss_mask=marks >= TARGET,
            lengths=arrays["lengths"][chunks].astype(np.int64),
            types=arrays["types"][chunks].astype(np.int32),
            documents=tuple(
                f"{self._shards[shard]}:{number}"
                for shard, number in arrays["documents"][documents].tolist()
            ),
            counts=arrays["counts"][index].astype(np.float64),
            stream=self._stream,
            position_after=self.position_after(index),
        )


def _file_name(stream: int, column: str) -> str:
    return f"stream-{stream:05}.{column}"


def _mapped(folder: Path, manifest: dict[str, Any], stream: int, column: str) -> np.ndarray:
    """An array of a stream, mapped into memory."""
    path = folder / _file_name(stream, column)
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


def _as_saved(value: dict[str, Any]) -> dict[str, Any]:
    """A dict as it reads back after saving."""
    return json.loads(json.dumps(value))


def columns_of(config: DataConfig, vocabulary: int) -> dict[str, dict[str, Any]]:
    """The arrays of a stream: the smallest dtype of each, and its number of values per row."""
    metadata = config.metadata_config
    kinds: dict[str, tuple[Any, int]] = {
        "tokens": (np.min_scalar_type(vocabulary - 1), 1),
        "marks": (np.uint8, 1),  # the token type, and TARGET
        "lengths": (np.min_scalar_type(row_length(config)), 1),  # of chunks, in tokens
        "types": (np.min_scalar_type((1 << len(metadata.metadata_list)) - 1), 1),  # of chunks
        "documents": (np.uint32, 2),  # the shard (its place in the manifest), and the number in it
        "rows": (np.int64, 3),  # where the tokens, chunks and documents of each sequence end
        "positions": (np.int64, len(Position._fields)),  # after each sequence
        "counts": (np.int32, len(count_names(metadata.metadata_list))),  # of each sequence
    }
    return {
        name: {"dtype": np.dtype(kind).newbyteorder("<").str, "width": width}
        for name, (kind, width) in kinds.items()
    }


class ColumnFiles:
    """The files of one stream, written row by row."""

    def __init__(self, folder: Path, stream: int, columns: dict[str, dict[str, Any]]) -> None:
        self._dtypes = {name: np.dtype(column["dtype"]) for name, column in columns.items()}
        self._hashes = {name: xxhash.xxh3_64() for name in columns}
        self._sizes = dict.fromkeys(columns, 0)
        self._files = {
            name: open(folder / _file_name(stream, name), "xb", BUFFER)  # noqa: SIM115 (see __exit__)
            for name in columns
        }

    def __enter__(self) -> ColumnFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def add(self, **values: Any) -> None:
        """Appends to each array."""
        for name, value in values.items():
            array = np.asarray(value)
            kept = array.astype(self._dtypes[name])
            assert np.array_equal(kept, array), f"{name} does not fit {self._dtypes[name]}"
            data = kept.tobytes()
            self._files[name].write(data)
            self._hashes[name].update(data)
            self._sizes[name] += len(data)

    def facts(self) -> dict[str, dict[str, Any]]:
        """Size and hash of each file, for the manifest."""
        return {
            name: {"bytes": size, "xxh3": self._hashes[name].hexdigest()}
            for name, size in self._sizes.items()
        }


class StreamWriter(Dataset):
    """Writes stream k when item k is requested; the item is the stream's entry in the manifest.

    This way a torch DataLoader writes several streams at a time. An error that the user can fix is
    also returned as an item and raised by the receiver, without a loader process's stack trace.
    """

    def __init__(
        self, live: LiveStreams, columns: dict[str, dict[str, Any]], epochs: int, folder: Path
    ) -> None:
        self._live = live
        self._columns = columns
        self._epochs = epochs
        self._folder = folder
        self._shards = {shard.name: place for place, shard in enumerate(live.shards)}

    def __len__(self) -> int:
        """Number of streams."""
        return len(self._live)

    def __getitem__(self, stream: int) -> dict[str, Any] | UserError:
        if not 0 <= stream < len(self):
            raise IndexError(stream)
        try:
            return self._write(stream)
        except UserError as error:
            return error

    def _write(self, stream: int) -> dict[str, Any]:
        ends = np.zeros(3, np.int64)
        facts = {"sequences": 0, "tokens": 0, "documents": 0}
        with ColumnFiles(self._folder, stream, self._columns) as files:
            for sequence in self._live.sequences(stream, Position(), self._epochs):
                ends += (len(sequence.ids), len(sequence.lengths), len(sequence.documents))
                targets = np.where(sequence.loss_mask, TARGET, 0).astype(np.uint8)
                files.add(
                    tokens=sequence.ids,
                    marks=sequence.token_types | targets,
                    lengths=sequence.lengths,
                    types=sequence.types,
                    documents=self._numbers(sequence.documents),
                    rows=ends,
                    positions=sequence.position_after,
                    counts=sequence.counts,
                )
                facts["sequences"] += 1
                facts["documents"] += int(sequence.counts[0])
            facts["tokens"] = int(ends[0])
        return {**facts, "files": files.facts()}

    def _numbers(self, documents: Sequence[str]) -> list[tuple[int, int]]:
        """Names of documents as pairs of numbers: of the shard, and of the document in it."""
        parts = [name.rpartition(":") for name in documents]
        return [(self._shards[shard], int(number)) for shard, _, number in parts]


def main(config: PrepareConfig) -> None:
    """Writes the folder, or checks an existing one, and prints a summary of its content."""
    check_data(config.data_config)
    if config.out is None:
        raise ConfigurationError("out is not set; expected the folder to write")
    manifest = prepare(config, load_tokenizer(config), Path(config.out))
    print(summary(config, manifest))


def prepare(config: PrepareConfig, tokenizer: PreTrainedTokenizerBase, out: Path) -> dict[str, Any]:
    """Writes the sequences of all streams.

    Returns:
        The manifest.

    Raises:
        ConfigurationError: If the folder exists with other data, or cannot be written.
        DataError: If documents cannot be read or used, or the folder exists and is damaged.
    """
    data = config.data_config
    plan = BatchPlan.of(config, config.world_size)
    steps = config.max_train_steps
    phases = phases_of(data, steps, plan.global_batch, decay_start(config, steps))
    live = LiveStreams(data, tokenizer, config.seed, phases, survey_data(data))
    columns = columns_of(data, len(tokenizer))
    manifest = {
        "format": FORMAT,
        "epochs": config.epochs,
        "fingerprint": live.fingerprint,
        "columns": columns,
        "shards": [shard.name for shard in live.shards],
    }
    if out.exists():
        return _check_folder(out, _as_saved(manifest))
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        writer = StreamWriter(live, columns, config.epochs, partial)
        manifest["streams"] = _write_streams(writer, data.num_workers)
        (partial / "config.yaml").write_text(to_yaml(config))
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1))
        partial.rename(out)
    except OSError as error:
        raise ConfigurationError(f"out={out} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _write_streams(writer: StreamWriter, num_workers: int) -> list[dict[str, Any]]:
    """Writes all streams, several at a time, and shows the progress."""
    streams = []
    with progress_bar("streams", len(writer)) as show:
        for written in DataLoader(writer, batch_size=None, num_workers=num_workers):
            if isinstance(written, UserError):
                raise written
            streams.append(written)
            tokens = sum(entry["tokens"] for entry in streams)
            show(len(streams), f"{len(streams)} of {len(writer)}, {tokens:,} tokens")
    return streams


def _check_folder(out: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an existing folder, after checking that it is of this data, and intact."""
    manifest = read_manifest(out)
    saved = {name: manifest[name] for name in expected}
    differences = "\n".join(differing(saved, expected, "there"))
    if differences:
        raise ConfigurationError(
            f"out={out} holds other prepared data; name another folder, or delete it:\n"
            f"{differences}"
        )
    for stream, entry in enumerate(manifest["streams"]):
        for column, facts in entry["files"].items():
            _mapped(out, manifest, stream, column)  # raises if missing or of the wrong size
            path = out / _file_name(stream, column)
            if file_hash(path) != facts["xxh3"]:
                raise DataError(
                    f"{path} is damaged: its content has another "
                    "hash than when it was prepared; delete the folder and prepare it again"
                )
    print(f"{out} is there already; all its hashes are right", file=sys.stderr)
    return manifest


def summary(config: PrepareConfig, manifest: dict[str, Any]) -> str:
    """A one-line summary of a folder's content."""
    streams: Sequence[dict[str, Any]] = manifest["streams"]
    sequences, tokens, documents = (
        sum(stream[name] for stream in streams) for name in ("sequences", "tokens", "documents")
    )
    size = sum(file["bytes"] for stream in streams for file in stream["files"].values())
    places = sequences * row_length(config.data_config)
    return (
        f"{config.out}: {documents:,} documents in {sequences:,} sequences of {len(streams)} "
        f"streams, {tokens:,} tokens (fill {tokens / max(places, 1):.4f}), {size / 2**20:,.1f} MB"
    )


if __name__ == "__main__":
    run_entry_point(main, PrepareConfig, "v2")
