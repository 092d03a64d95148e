"""Measures how much text the tokenizer of a run loses, on the first training documents.

Unknown tokens, lower-casing and other changes are not errors by themselves: a run may lose up to
the fraction `data_config.max_lost_text` of the bytes. The checks before a run read only files on
this machine; the run itself also reads remote files.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from huggingface_hub import try_to_load_from_cache
from tokenizers import Tokenizer

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig, build_source_configs
from bsmeta.config.task_entry import Row
from bsmeta.core.errors import HYDRA, Problem, UserError, format_value, raise_problems
from bsmeta.data.io.shard_lines import read_first_lines
from bsmeta.data.io.shards import select_shards
from bsmeta.data.stream.columns import list_local_shards
from bsmeta.data.text.lossless import is_lossless
from bsmeta.data.text.lost_share import LostShare
from bsmeta.metadata.decoding import make_decoder
from bsmeta.metadata.records import BadDocument

if TYPE_CHECKING:  # slow to import; the check of a run with a lossless tokenizer does not need it
    from transformers import PreTrainedTokenizerBase

LIMIT_KEY = "data_config.max_lost_text"

LINES_PER_SHARD = 8
"""Number of lines that are read at the beginning of each sampled shard."""

TOKENIZER_FILE_SUFFIXES = ("tokenizer.json", "vocab.json", "vocab.txt", ".model")
"""Suffixes of the names of files that contain the vocabulary of a tokenizer."""

MAX_SAMPLE_CHARS = 100_000
"""Maximum number of characters that are measured of a text."""


def sample_texts(config: DataConfig, lines: Mapping[str, Sequence[bytes]]) -> list[str]:
    """Returns the beginnings of the texts in some lines; skips bad documents.

    Args:
        lines: Some lines of each source, by its name.
    """
    texts = []
    for name, source_config in build_source_configs(config).items():
        decoder = make_decoder(
            source_config.metadata_config, source_config.columns, name, source_config.content
        )
        for line in lines.get(name, ()):
            with contextlib.suppress(BadDocument):
                texts.append(decoder.decode(line).text[:MAX_SAMPLE_CHARS])
    return texts


def measure_sample(
    config: CausalLMConfig,
    tokenizer: PreTrainedTokenizerBase,
    lines: Mapping[str, Sequence[bytes]],
) -> LostShare:
    """Measures the share of the bytes of a sample that the tokenizer of a run loses.

    Args:
        lines: The sample: some lines of each source, by its name.

    Raises:
        ConfigurationError: If the share exceeds `max_lost_text`.
    """
    from bsmeta.data.text.lost_text import measure_lost_text

    lost = measure_lost_text(
        tokenizer,
        sample_texts(config.data_config, lines),
        takes_written_tokens=config.data_config.metadata_config.special_tokens_in_text,
    )
    raise_problems(list(_find_lost_share_problems(config, lost)))
    return lost


def _find_lost_share_problems(config: CausalLMConfig, lost: LostShare) -> Iterator[Problem]:
    """Yields a problem if the lost share exceeds `max_lost_text`."""
    limit = config.data_config.max_lost_text
    if lost.share <= limit:
        return

    name = config.tokenizer_name or config.model_name
    measured = f"{format_value(limit)}, but the tokenizer {name} loses {lost}"
    expected = (
        f"a tokenizer that preserves at least {100 * (1 - limit):g}% of the bytes: the model "
        "cannot learn lost text, and evaluations leave it out"
    )
    raised_limit = min(math.ceil(lost.share * 100) / 100, 1.0)
    fix = (
        "tokenizer_name of a byte-level tokenizer, such as gpt2, which loses nothing; or "
        f"{LIMIT_KEY}={raised_limit:g} to train nevertheless"
    )
    yield Problem(LIMIT_KEY, HYDRA, measured, expected, fix)


def list_lost_text_rows(config: CausalLMConfig) -> list[Row]:
    """Returns the row of the start-up table on lost text, in a list.

    Only files on this machine are read; the run itself measures remote shards when it starts.

    Raises:
        ConfigurationError: If the tokenizer loses more than `max_lost_text`, or cannot be loaded.
    """
    data = config.data_config
    lines = read_local_lines(data)
    file = _find_tokenizer_file(config.tokenizer_name or config.model_name)
    if file is None or not any(lines.values()):
        return [("lost text", "not measured before the run reads its data")]

    if _is_lossless(file):
        lost = LostShare.without_loss(sample_texts(data, lines))
    else:
        lost = measure_sample(config, _load_local_tokenizer(config, file), lines)
    return [("lost text", f"{lost}; at most {100 * data.max_lost_text:g}% ({LIMIT_KEY})")]


def _is_lossless(file: str) -> bool:
    """Returns whether a `tokenizer.json` is certainly lossless; False if it cannot be read."""
    try:
        return is_lossless(Tokenizer.from_file(file))
    except Exception:  # a damaged file may raise anything; it is reported when it is loaded
        return False


def read_local_lines(config: DataConfig) -> dict[str, list[bytes]]:
    """Reads some of the first lines of each source whose shards are on a local disk.

    Shards that cannot be read are skipped: the run itself reports them.

    Returns:
        The lines of each source, by its name; empty if any of its shards is remote.
    """
    lines: dict[str, list[bytes]] = {}
    for name, source_config in build_source_configs(config).items():
        lines[name] = []
        for shard in select_shards(list_local_shards(source_config)):
            with contextlib.suppress(UserError, OSError, EOFError):
                lines[name] += read_first_lines(shard.path, LINES_PER_SHARD)
    return lines


def _find_tokenizer_file(name: str) -> str | None:
    """Returns the path of a tokenizer's file in a folder or in the Hub's cache; None if missing.

    The file is `tokenizer.json` or, in a folder, a vocabulary that transformers converts.

    Args:
        name: The folder, or the name on the Hub.
    """
    if os.path.isdir(name):
        files = sorted(file for file in os.listdir(name) if file.endswith(TOKENIZER_FILE_SUFFIXES))
        return os.path.join(name, files[0]) if files else None

    try:
        cached = try_to_load_from_cache(name, "tokenizer.json")
    except ValueError:  # not a valid name on the Hub
        return None
    return cached if isinstance(cached, str) else None


def _load_local_tokenizer(config: CausalLMConfig, file: str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a run without requests to the Hub."""
    from transformers import PreTrainedTokenizerFast

    from bsmeta.data.text.tokenizer import load_tokenizer

    if os.path.isdir(config.tokenizer_name or config.model_name):
        return load_tokenizer(config)
    return PreTrainedTokenizerFast(tokenizer_file=file)
