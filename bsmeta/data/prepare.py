"""Prepares training sequences in advance, once for all runs with the same data, and reads them.

    python -m bsmeta.data.prepare --config-name v2 data_config.train_file='shards/*.jsonl.gz' \
        epochs=1 out=FOLDER

accepts every key that training accepts. Training with the same keys and
`data_config.prepared=FOLDER` has the same batches as without it, and continues live after the
prepared epochs. The folder appears only when it is complete; if it already exists, the command
verifies its content. `data_config.num_workers` streams are prepared in parallel (0: one at a time,
in this process).

The folder contains a manifest and, for each logical stream, an Arrow file that runs map into memory
(`make_stream_schema`). The file stores the output of `LogicalStream`: each sequence with the
position after it. So a run may switch between prepared and live data at any sequence.

The manifest has a hash of each record batch of a file. A run checks a batch when it first reads a
row of it: a run that hashed whole files before its first step would read terabytes at each resume.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import sys
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig, check_data, compute_row_length
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.programs.copying import PrepareConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import ConfigurationError, DataError, UserError, describe_differences
from bsmeta.core.files import hash_file
from bsmeta.core.parsing import parse_json
from bsmeta.core.progress import show_progress_bar
from bsmeta.data.io.shards import Shard, fingerprint_shards
from bsmeta.data.loader import make_loader
from bsmeta.data.stream.corpora import open_corpora
from bsmeta.data.stream.counts import list_count_names
from bsmeta.data.stream.fingerprint import collect_fingerprint, complete_saved_fingerprint
from bsmeta.data.stream.held_out import MISSING
from bsmeta.data.stream.live import LiveStreams, find_phases
from bsmeta.data.stream.lost_text import measure_sample
from bsmeta.data.stream.plan import Phases, Position
from bsmeta.data.stream.survey import Survey, survey_data
from bsmeta.data.text.chunks import PackedSequence
from bsmeta.data.text.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

FORMAT_VERSION = 8
MANIFEST = "manifest.json"
TARGET_BIT = 0x80
"""The bit of `marks` that is set for tokens that are targets; the other bits are the token type."""

WRITE_BATCH_SIZE = 256  # sequences of a record batch


class StreamEntry(msgspec.Struct):
    """A stream in the manifest: the counts, the size and the xxh3 of its file.

    Attributes:
        batches: The hash of each record batch of the file; see `hash_batch`.
    """

    sequences: int
    tokens: int
    documents: int
    bytes: int
    xxh3: str
    batches: list[str]


class Manifest(msgspec.Struct):
    """The manifest of prepared data.

    Attributes:
        format: Version of the format of the folder; see `FORMAT_VERSION`.
        epochs: Number of prepared epochs.
        fingerprint: Fingerprint of the data; see `stream.fingerprint`.
        shards: Names of the shards, to whose indices the streams' files refer.
        streams: The entry of each logical stream, in order.
    """

    format: int
    epochs: int
    fingerprint: dict[str, Any]
    shards: list[str]
    streams: list[StreamEntry]


class PreparedStreams:
    """All logical streams of a run: their prepared sequences, then live sequences.

    Args:
        survey: The survey of the data; prepared epochs can be read even if it failed.

    Raises:
        ConfigurationError: If the folder was prepared for other data, or by a different version.
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
        self._folder = Path(config.prepared or "")
        self._manifest = read_manifest(self._folder)
        self._vocabulary_size = len(tokenizer)
        self._schema = make_stream_schema(config, self._vocabulary_size)
        self._live_streams: LiveStreams | None = None
        self._open_live = partial(LiveStreams, config, tokenizer, seed, phases, survey)

        if survey.failure is not None:
            logger.info("only the prepared epochs can be trained on: %s", survey.failure)

        saved = complete_saved_fingerprint(self._manifest.fingerprint)
        shard_fingerprints = saved.get("shards", {})
        if survey.shards:
            available: list[Shard] = []
            for corpus in open_corpora(config, survey.shards):
                available += corpus.shards
            shard_fingerprints = fingerprint_shards(available)

        fingerprint = collect_fingerprint(
            config, tokenizer, seed, phases, shard_fingerprints, survey.held_out_id
        )
        self.fingerprint = _convert_like_json(fingerprint)
        # The held-out file may be missing now, because the prepared data is already filtered.
        if self.fingerprint["held_out"] == MISSING:
            self.fingerprint["held_out"] = saved.get("held_out")

        differences = "\n".join(
            describe_differences(saved, self.fingerprint, "when it was prepared")
        )
        if differences:
            raise ConfigurationError(
                f"data_config.prepared={self._folder} was prepared for other data; prepare it "
                f"again, or leave data_config.prepared out:\n{differences}"
            )

    def iterate_sequences(self, stream: int, position: Position) -> Iterator[PackedSequence]:
        """Yields the sequences of a stream from a position on.

        They never end if the shards are available.

        Raises:
            ConfigurationError: If the position does not belong to this data.
            DataError: If files are damaged, or the live stream cannot continue after the prepared
                epochs.
        """
        prepared = PreparedStream(
            self._folder, self._manifest, stream, self._schema, self._vocabulary_size
        )
        emitted = position.emitted
        if emitted <= len(prepared) and position != prepared.read_position_after(emitted - 1):
            raise ConfigurationError(
                f"data_config.prepared={self._folder}: stream {stream} is at {position}, but in "
                f"the prepared data at {prepared.read_position_after(emitted - 1)}: the run was on "
                "other data before; leave data_config.prepared out"
            )

        for index in range(emitted, len(prepared)):
            yield prepared.read_sequence(index)
        if emitted < len(prepared):
            position = prepared.read_position_after(len(prepared) - 1)

        logger.info("stream %d continues live after its prepared epochs", stream)
        yield from self._open_live_streams(stream).iterate_sequences(stream, position)

    def _open_live_streams(self, stream: int) -> LiveStreams:
        """Returns the live streams; opens them when the first prepared stream ends.

        Args:
            stream: The stream that has ended, for the message.

        Raises:
            DataError: If they cannot be opened.
        """
        if self._live_streams is None:
            try:
                self._live_streams = self._open_live()
            except UserError as error:
                raise DataError(
                    f"stream {stream} has used up the prepared epochs ({self._manifest.epochs}) "
                    f"of data_config.prepared={self._folder}, and cannot continue with the shards "
                    f"themselves: {error}; prepare more epochs, or make the shards available"
                ) from error
        return self._live_streams


class PreparedStream:
    """The prepared sequences of one stream, read from its file.

    Args:
        stream: Number of the stream.
        vocabulary_size: Number of tokens in the vocabulary of the tokenizer.

    Raises:
        DataError: If the file of the stream is damaged.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        stream: int,
        schema: pa.Schema,
        vocabulary_size: int,
    ) -> None:
        self._stream = stream
        self._vocabulary_size = vocabulary_size
        self._shards = manifest.shards
        self._path = _locate_stream_file(folder, manifest, stream)
        self._rows = _map_rows(self._path, schema)
        self._check_shards()

        self._batches = self._rows.to_batches()
        self._batch_ends = list(itertools.accumulate(batch.num_rows for batch in self._batches))
        self._batch_hashes = manifest.streams[stream].batches
        self._is_checked = [False] * len(self._batches)
        if len(self._batches) != len(self._batch_hashes):
            raise _make_damage_error(
                self._path,
                f"it has {len(self._batches)} record batches, expected {len(self._batch_hashes)}",
            )

    def _check_shards(self) -> None:
        """Checks that the indices of all shards are in the manifest's list of shards.

        Raises:
            DataError: If one is not.
        """
        for chunk in self._rows["shards"].chunks:
            indices = chunk.flatten().to_numpy()
            if len(indices) and indices.max() >= len(self._shards):
                raise _make_damage_error(self._path, f"it names shard {indices.max()}")

    def __len__(self) -> int:
        """Returns the number of sequences."""
        return int(self._rows.num_rows)

    def read_position_after(self, index: int) -> Position:
        """Returns the position after the sequence `index`; the start of the stream for -1.

        Raises:
            DataError: If the record batch of the sequence has changed since it was prepared.
        """
        if index < 0:
            return Position()
        self._check_batch(index)
        return Position(*self._rows["position"][index].as_py())

    def read_sequence(self, index: int) -> PackedSequence:
        """Reads a sequence as `LogicalStream` yielded it.

        Raises:
            DataError: If the record batch of the sequence has changed since it was prepared, or a
                token is not in the vocabulary.
        """
        self._check_batch(index)
        columns = zip(self._rows.column_names, self._rows.columns, strict=True)
        row = {name: column[index].values.to_numpy() for name, column in columns}
        if len(row["tokens"]) and row["tokens"].max() >= self._vocabulary_size:
            raise _make_damage_error(self._path, f"it has the token {row['tokens'].max()}")

        documents = zip(row["shards"].tolist(), row["numbers"].tolist(), strict=True)
        return PackedSequence(
            ids=row["tokens"].astype(np.int32),
            token_types=row["marks"] & ~np.uint8(TARGET_BIT),
            loss_mask=row["marks"] >= TARGET_BIT,
            lengths=row["lengths"].astype(np.int64),
            types=row["types"].astype(np.int32),
            documents=tuple(f"{self._shards[shard]}:{number}" for shard, number in documents),
            counts=row["counts"].astype(np.float64),
            stream=self._stream,
            position_after=self.read_position_after(index),
        )

    def _check_batch(self, index: int) -> None:
        """Checks the record batch of the sequence `index`, unless this object has checked it.

        Raises:
            DataError: If its hash differs from the hash in the manifest.
        """
        number = bisect_right(self._batch_ends, index)
        if self._is_checked[number]:
            return

        batch = self._batches[number]
        if hash_batch(batch) != self._batch_hashes[number]:
            end = self._batch_ends[number]
            raise _make_damage_error(
                self._path,
                f"the hash of its sequences {end - batch.num_rows} to {end - 1} has changed since "
                "it was prepared",
            )
        self._is_checked[number] = True


def hash_batch(batch: pa.RecordBatch) -> str:
    """Returns the xxh3 (64 bits) of a record batch as it lies in its file, in hexadecimal.

    Args:
        batch: Read from a file: the buffers of a batch in memory may be longer.
    """
    # The number of rows is in no buffer.
    content_hash = xxhash.xxh3_64(str(batch.num_rows).encode())
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                content_hash.update(buffer)
    return content_hash.hexdigest()


def _map_rows(path: Path, schema: pa.Schema) -> pa.Table:
    """Maps the rows of a stream into memory.

    The folder may come from someone else, and Arrow does not check the bounds of list offsets when
    it follows them, so all offsets are checked (8 bytes for each list), but not the tokens, which
    `PreparedStream` checks when it reads them.

    Raises:
        DataError: If the file has different columns, or cannot be read.
    """
    try:
        rows = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        if rows.schema != schema:
            raise _make_damage_error(
                path, f"its columns are {rows.schema.names}, or have other types"
            )
        rows.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise _make_damage_error(path, str(error)) from error
    return rows


def _make_damage_error(path: Path, reason: str) -> DataError:
    """Returns the error for a damaged file of prepared data."""
    return DataError(
        f"data_config.prepared: {path} is damaged ({reason}); delete the folder and "
        "prepare it again"
    )


def _name_stream_file(stream: int) -> str:
    """Returns the name of a stream's file in the folder."""
    return f"stream-{stream:05}.arrow"


def _locate_stream_file(folder: Path, manifest: Manifest, stream: int) -> Path:
    """Returns the path of a stream's file, after checking its size.

    Raises:
        DataError: If the file is missing, or does not have the size in the manifest.
    """
    path = folder / _name_stream_file(stream)
    if stream >= len(manifest.streams):
        raise _make_damage_error(folder / MANIFEST, f"it has no stream {stream}")

    if not path.exists():
        raise _make_damage_error(path, "it is missing")
    expected_size = manifest.streams[stream].bytes
    size = path.stat().st_size
    if size != expected_size:
        raise _make_damage_error(path, f"it has {size} bytes, expected {expected_size}")
    return path


class _ManifestVersion(msgspec.Struct):
    """The field that the manifests of all versions have."""

    format: int


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of prepared data.

    Raises:
        DataError: If there is none, or it is damaged.
        ConfigurationError: If a different version of bsmeta wrote it.
    """
    try:
        # msgspec's own decoder does not accept Infinity, which a configuration may have.
        content = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
        version = msgspec.convert(content, _ManifestVersion).format
        if version == FORMAT_VERSION:
            return msgspec.convert(content, Manifest)
    except (OSError, ValueError) as error:
        raise DataError(
            f"data_config.prepared={folder} contains no prepared data "
            f"(python -m bsmeta.data.prepare … out={folder} prepares it): {error}"
        ) from error

    raise ConfigurationError(
        f"data_config.prepared={folder} has format {version}; this version reads format "
        f"{FORMAT_VERSION}: delete the folder, and run python -m bsmeta.data.prepare … "
        f"out={folder} again"
    )


def _convert_like_json(value: dict[str, Any]) -> dict[str, Any]:
    """Returns a dict as it is after saving and loading it as JSON: tuples become lists."""
    return json.loads(json.dumps(value))


def make_stream_schema(config: DataConfig, vocabulary_size: int) -> pa.Schema:
    """Returns the schema of a stream's file: a row of integer lists for each sequence.

    The integers have the smallest types that suffice for the configuration.
    """
    metadata = config.metadata_config

    def make_list_type(maximum: int) -> pa.DataType:
        return pa.list_(pa.from_numpy_dtype(np.min_scalar_type(maximum)))

    return pa.schema(
        {
            "tokens": make_list_type(vocabulary_size - 1),
            "marks": make_list_type(TARGET_BIT),  # the token type, and TARGET_BIT
            "lengths": make_list_type(compute_row_length(config)),  # tokens of each chunk
            "types": make_list_type((1 << len(metadata.metadata_list)) - 1),  # of each chunk
            "shards": pa.list_(pa.uint32()),  # of each document, as an index in the manifest
            "numbers": pa.list_(pa.uint32()),  # of each document in its shard
            "position": pa.list_(pa.int64(), len(Position._fields)),  # after the sequence
            "counts": pa.list_(pa.int32(), len(list_count_names(metadata.metadata_list))),
        }
    )


class StreamWriter(Dataset):
    """A dataset that writes the file of stream k when its item k is read.

    The item is the stream's entry in the manifest. As a dataset, it lets a torch DataLoader write
    several streams in parallel. An error that the user can fix is returned as the item, so that the
    receiver raises it without the stack trace of a loader process.
    """

    def __init__(self, live: LiveStreams, schema: pa.Schema, epochs: int, folder: Path) -> None:
        self._live_streams = live
        self._schema = schema
        self._epochs = epochs
        self._folder = folder
        self._shard_indices = {shard.name: index for index, shard in enumerate(live.shards)}

    def __len__(self) -> int:
        """Returns the number of streams."""
        return len(self._live_streams)

    def __getitem__(self, stream: int) -> StreamEntry | UserError:
        if not 0 <= stream < len(self):
            raise IndexError(stream)
        try:
            return self._write(stream)
        except UserError as error:
            return error

    def _write(self, stream: int) -> StreamEntry:
        """Writes a stream's file; returns its entry in the manifest."""
        path = self._folder / _name_stream_file(stream)
        entry = StreamEntry(sequences=0, tokens=0, documents=0, bytes=0, xxh3="", batches=[])
        sequences = self._live_streams.iterate_sequences(stream, Position(), self._epochs)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, self._schema) as writer:
            while batch := list(itertools.islice(sequences, WRITE_BATCH_SIZE)):
                rows = [self._to_row(sequence) for sequence in batch]
                writer.write(pa.RecordBatch.from_pylist(rows, self._schema))
                entry.sequences += len(batch)
                entry.tokens += sum(len(sequence.ids) for sequence in batch)
                entry.documents += int(sum(sequence.counts[0] for sequence in batch))

        entry.bytes = path.stat().st_size
        entry.xxh3 = hash_file(path)
        entry.batches = [hash_batch(batch) for batch in _map_rows(path, self._schema).to_batches()]
        return entry

    def _to_row(self, sequence: PackedSequence) -> dict[str, np.ndarray]:
        """Returns a sequence as a row: the value of each column, with the types of the schema."""
        shards = []
        numbers = []
        for document in sequence.documents:
            shard, _, number = document.rpartition(":")
            shards.append(self._shard_indices[shard])
            numbers.append(int(number))
        columns: dict[str, Any] = {
            "tokens": sequence.ids,
            "marks": sequence.token_types | np.where(sequence.loss_mask, TARGET_BIT, 0),
            "lengths": sequence.lengths,
            "types": sequence.types,
            "shards": shards,
            "numbers": numbers,
            "position": sequence.position_after,
            "counts": sequence.counts,
        }

        row = {}
        for name, values in columns.items():
            value_type = self._schema.field(name).type.value_type
            row[name] = np.asarray(values, value_type.to_pandas_dtype())
            assert np.array_equal(row[name], values), f"{name} does not fit {value_type}"
        return row


def main(config: PrepareConfig) -> None:
    """Writes the folder, or verifies an existing one; prints a summary of its content."""
    check_data(config.data_config)
    if config.out is None:
        raise ConfigurationError("out is not set; expected the folder to write")
    manifest = prepare_streams(config, load_tokenizer(config), Path(config.out))
    print(summarize_folder(config, manifest))


def prepare_streams(
    config: PrepareConfig, tokenizer: PreTrainedTokenizerBase, out: Path
) -> Manifest:
    """Writes the sequences of all streams, or verifies an existing folder.

    Returns:
        The manifest of the folder.

    Raises:
        ConfigurationError: If the folder exists with other data, or cannot be written.
        DataError: If documents cannot be read or used, or the folder exists and is damaged.
    """
    data = config.data_config
    num_steps = config.max_train_steps
    global_batch = BatchPlan.of(config, config.world_size).global_batch
    decay_start = RatePlan.of(config, num_steps).decay_start
    phases = find_phases(data, num_steps, global_batch, decay_start)

    survey = survey_data(data)
    measure_sample(config, tokenizer, survey.lines)  # refuses a tokenizer that loses too much text
    live = LiveStreams(data, tokenizer, config.seed, phases, survey)
    manifest = Manifest(
        format=FORMAT_VERSION,
        epochs=config.epochs,
        fingerprint=_convert_like_json(live.fingerprint),
        shards=[shard.name for shard in live.shards],
        streams=[],
    )
    if out.exists():
        return _check_folder(out, manifest)

    _write_folder(config, live, len(tokenizer), manifest, out)
    return manifest


def _write_folder(
    config: PrepareConfig, live: LiveStreams, vocabulary_size: int, manifest: Manifest, out: Path
) -> None:
    """Writes all streams, the manifest and the configuration.

    Args:
        manifest: The manifest without streams; the streams are added to it.
        out: The folder, which appears when it is complete.

    Raises:
        ConfigurationError: If the folder cannot be written.
    """
    data = config.data_config
    partial_folder = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial_folder.mkdir(parents=True)
        schema = make_stream_schema(data, vocabulary_size)
        writer = StreamWriter(live, schema, config.epochs, partial_folder)
        manifest.streams = _write_streams(writer, data.num_workers)
        (partial_folder / "config.yaml").write_text(format_yaml(config))
        (partial_folder / MANIFEST).write_text(json.dumps(msgspec.to_builtins(manifest), indent=1))
        partial_folder.rename(out)
    except OSError as error:
        raise ConfigurationError(f"out={out} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)


def _write_streams(writer: StreamWriter, num_workers: int) -> list[StreamEntry]:
    """Writes all streams, several in parallel, and shows the progress."""
    streams: list[StreamEntry] = []
    with show_progress_bar("streams", len(writer)) as show:
        for entry in make_loader(writer, num_workers):
            if isinstance(entry, UserError):
                raise entry
            streams.append(entry)
            num_tokens = sum(stream.tokens for stream in streams)
            show(len(streams), f"{len(streams)} of {len(writer)}, {num_tokens:,} tokens")
    return streams


def _check_folder(out: Path, expected: Manifest) -> Manifest:
    """Checks that an existing folder contains this data and is intact; returns its manifest.

    Args:
        expected: The manifest for this data, without streams.

    Raises:
        ConfigurationError: If the folder has other data.
        DataError: If the folder is damaged.
    """
    manifest = read_manifest(out)
    saved = {**msgspec.to_builtins(manifest), "streams": []}
    differences = "\n".join(describe_differences(saved, msgspec.to_builtins(expected), "there"))
    if differences:
        raise ConfigurationError(
            f"out={out} contains other prepared data; name another folder, or delete it:\n"
            f"{differences}"
        )

    for stream, entry in enumerate(manifest.streams):
        path = _locate_stream_file(out, manifest, stream)
        if hash_file(path) != entry.xxh3:
            raise DataError(
                f"{path} is damaged: the hash of its content has changed since it was prepared; "
                "delete the folder and prepare it again"
            )
    print(f"{out} already exists; all its hashes match", file=sys.stderr)
    return manifest


def summarize_folder(config: PrepareConfig, manifest: Manifest) -> str:
    """Returns a one-line summary of a folder's content."""
    streams = manifest.streams
    num_sequences = sum(stream.sequences for stream in streams)
    num_tokens = sum(stream.tokens for stream in streams)
    num_documents = sum(stream.documents for stream in streams)
    megabytes = sum(stream.bytes for stream in streams) / 2**20

    capacity = num_sequences * compute_row_length(config.data_config)  # tokens
    fill = num_tokens / max(capacity, 1)
    return (
        f"{config.out}: {num_documents:,} documents in {num_sequences:,} sequences of "
        f"{len(streams)} streams, {num_tokens:,} tokens (fill {fill:.4f}), {megabytes:,.1f} MB"
    )


if __name__ == "__main__":
    run_entry_point(main, PrepareConfig, "v2")
