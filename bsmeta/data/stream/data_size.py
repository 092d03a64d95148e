"""Estimates the number of documents, bytes and tokens of a run's data from samples of a few shards.

The summary before a run uses this, so it imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bsmeta.config.data import DataConfig, build_source_configs
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import UserError
from bsmeta.data.io.compression import DamagedFileError
from bsmeta.data.io.files import open_file, read_shard_content
from bsmeta.data.io.shards import Shard, is_parquet, select_shards
from bsmeta.data.stream.columns import list_local_shards
from bsmeta.metadata.decoding import Decoder, make_decoder
from bsmeta.metadata.records import BadDocument

NUM_SAMPLED_SHARDS = 3
"""Maximum number of sampled shards per source."""

BYTES_PER_TOKEN = 4.0
"""Assumed number of bytes per token if no tokenizer is available: about the mean of English text
for vocabularies of 30,000 to 130,000 entries."""

_NUM_SAMPLE_BYTES = 2 << 20
"""Approximate number of bytes of a shard's content that are read."""

_NUM_SAMPLE_ROWS = 512
"""Number of rows of a Parquet file that are read."""

_NUM_SAMPLE_CHARS = 200_000
"""Approximate number of characters per shard that are tokenized."""


@dataclass(frozen=True, slots=True)
class DataSize:
    """The estimated size of the training data.

    Attributes:
        num_documents: Number of documents.
        text_bytes: Size of their text in bytes of UTF-8.
        num_tokens: Number of tokens of their text, without metadata.
        is_exact: Whether all shards were read completely, so that only `num_tokens` is estimated.
        is_tokenized: Whether samples were tokenized; otherwise, `BYTES_PER_TOKEN` is assumed.
    """

    num_documents: float
    text_bytes: float
    num_tokens: float
    is_exact: bool
    is_tokenized: bool


@dataclass(slots=True)
class _Sample:
    """The beginning of a shard.

    Attributes:
        num_documents: Number of documents read.
        text_bytes: Size of their text in bytes of UTF-8.
        share: The fraction of the shard that was read.
        texts: Some of their texts.
    """

    num_documents: int
    text_bytes: int
    share: float
    texts: list[str]


def estimate_data_size(config: DataConfig, tokenizer_folder: str | None = None) -> DataSize | None:
    """Estimates the size of the training data; None if a source has no readable local shard.

    Args:
        tokenizer_folder: The folder of the run's tokenizer; None if it is not on this machine.
    """
    num_documents = 0.0
    text_bytes = 0.0
    is_exact = True
    texts: list[str] = []
    for source_config in build_source_configs(config).values():
        shards = list_local_shards(source_config)
        samples: list[_Sample] = []
        sampled_bytes = 0.0  # of the files, not of their text
        for shard in select_shards(shards, NUM_SAMPLED_SHARDS):
            sample = _sample_shard(shard, source_config)
            if sample is not None:
                samples.append(sample)
                sampled_bytes += sample.share * shard.size
        if not samples:
            return None

        scale = sum(shard.size for shard in shards) / max(sampled_bytes, 1.0)
        num_documents += scale * sum(sample.num_documents for sample in samples)
        text_bytes += scale * sum(sample.text_bytes for sample in samples)
        is_exact &= len(samples) == len(shards) and all(sample.share == 1 for sample in samples)
        for sample in samples:
            texts += sample.texts

    if text_bytes == 0:
        return None

    bytes_per_token = _measure_bytes_per_token(tokenizer_folder, texts)
    is_tokenized = bytes_per_token is not None
    num_tokens = text_bytes / (bytes_per_token or BYTES_PER_TOKEN)
    return DataSize(num_documents, text_bytes, num_tokens, is_exact, is_tokenized)


def _sample_shard(shard: Shard, config: DataConfig) -> _Sample | None:
    """Reads the first documents of a shard; None if it cannot be read, which the run reports."""
    decoder = make_decoder(MetadataConfig(metadata_list=[]), config.columns, content=config.content)
    with contextlib.suppress(UserError, DamagedFileError, OSError, EOFError):
        if is_parquet(shard.path):
            lines, share = _read_first_rows(shard, decoder)
        else:
            lines, share = _read_first_content(shard)
        return _measure_lines(lines, share, decoder)
    return None


def _read_first_rows(shard: Shard, decoder: Decoder) -> tuple[Sequence[bytes], float]:
    """Returns the first rows of a Parquet file as lines, and the fraction of the rows read.

    Raises:
        DamagedFileError: If the file is damaged.
    """
    from bsmeta.data.io.parquet import ParquetReader

    with contextlib.closing(ParquetReader(shard.path, decoder.columns)) as reader:
        lines = [bytes(line) for line in reader.read(0, _NUM_SAMPLE_ROWS)]
        if reader.damage:
            raise DamagedFileError(reader.damage)
        return lines, len(lines) / max(reader.num_rows, 1)


def _read_first_content(shard: Shard) -> tuple[Sequence[bytes], float]:
    """Returns the first whole lines of a shard, and the fraction of its bytes read."""
    content = bytearray()
    position = 0  # in the file, when the content so far was complete
    with open_file(shard.path) as file:
        for block in read_shard_content(shard.path, file):
            new_position = file.tell()
            # Once the file is read further, the content holds everything before `position`.
            if new_position > position and position and len(content) >= _NUM_SAMPLE_BYTES:
                end = content.rfind(b"\n") + 1
                share = position / shard.size * end / len(content)
                return bytes(content[:end]).splitlines(), share

            position = new_position
            content += block
    return bytes(content).splitlines(), 1.0


def _measure_lines(lines: Sequence[bytes], share: float, decoder: Decoder) -> _Sample:
    """Counts the documents in lines and the bytes of their text; keeps some of the texts.

    Args:
        share: The fraction of the shard that was read.
    """
    num_documents = 0
    text_bytes = 0
    texts: list[str] = []
    num_chars = 0
    for line in lines:
        with contextlib.suppress(BadDocument):
            text = decoder.decode(bytes(line)).text
            num_documents += 1
            text_bytes += len(text.encode("utf-8", "surrogatepass"))
            if num_chars < _NUM_SAMPLE_CHARS:
                texts.append(text[:_NUM_SAMPLE_CHARS])
                num_chars += len(text)
    return _Sample(num_documents, text_bytes, share, texts)


def _measure_bytes_per_token(folder: str | None, texts: Sequence[str]) -> float | None:
    """Measures the mean number of bytes per token; None if no `tokenizer.json` can be used.

    Args:
        folder: The folder of the tokenizer; None if it is not on this machine.
    """
    file = Path(folder or "") / "tokenizer.json"
    if folder is None or not file.is_file():
        return None

    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
        encoded = tokenizer.encode_batch(texts)
    except Exception:  # the library has no error class of its own; the run itself reports the file
        return None

    num_tokens = sum(len(encoding.ids) for encoding in encoded)
    num_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return num_bytes / num_tokens if num_tokens else None
