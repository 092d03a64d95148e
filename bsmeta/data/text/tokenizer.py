"""The tokenizer of a run, and fast backends that return the same ids.

The Hugging Face tokenizer is the reference (the oracle). tiktoken (built from its merges, pattern
and special tokens) and gigatoken are several times as fast, and a cache of words makes the oracle
itself faster. Each is used only if its ids equal the oracle's on a sample of the data to encode.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import BY_TEXT
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.log_once import log_once
from bsmeta.core.model_files import read_tokenizer
from bsmeta.data.text.lossless import keeps_text
from bsmeta.data.text.tokenizer_parts import Part, list_pre_tokenizers, read_parts
from bsmeta.data.text.word_bounds import GPT2_PATTERN, Inseparable
from bsmeta.data.text.word_cache import Characters, WordCache, ids_and_characters
from bsmeta.metadata.rendering import Renderer

PROBE = "One  two\n\t3 naïve 😀 x<y"
"""A text that tokenizers split or change in different ways."""

RESERVED_TOKENS = 64
"""Number of special tokens that every run's vocabulary has room for under `row_budget=text`."""

logger = logging.getLogger(__name__)

Backend = Callable[[Sequence[str]], list[np.ndarray]]
"""Encodes texts into ids (int32); special tokens in a text are recognized, none are added."""

CharacterBackend = Callable[[Sequence[str]], list[tuple[np.ndarray, Characters]]]
"""Encodes texts like a `Backend`, and returns the characters that each token covers."""

WITHOUT_GOING_BACK = {
    GPT2_PATTERN: r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
}
"""Equivalent patterns that are faster in tiktoken (this is its own pattern for GPT-2)."""


def load_tokenizer(config: CausalLMConfig) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a run, and adds the special tokens of the metadata.

    Raises:
        ConfigurationError: If it cannot be loaded, or has no end-of-text token.
    """
    name = config.tokenizer_name or config.model_name
    tokenizer = load_tokenizer_from(name)
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(
            f"tokenizer_name: {name} has no end-of-text token; every document ends with it. Name "
            "a tokenizer that has an eos_token"
        )

    special = Renderer(config.data_config.metadata_config).list_special_tokens()
    original_size = len(tokenizer)
    # If the list were replaced, an exported tokenizer would lack its original special tokens.
    tokenizer.add_special_tokens(
        {"additional_special_tokens": special}, replace_extra_special_tokens=False
    )
    if config.data_config.row_budget == BY_TEXT:
        fill_up(tokenizer, original_size + RESERVED_TOKENS)
    return tokenizer


def list_new_special_tokens(config: CausalLMConfig) -> list[str]:
    """Lists the special tokens of the metadata that the model's tokenizer does not have yet."""
    vocabulary = load_tokenizer_from(config.tokenizer_name or config.model_name).get_vocab()
    special = Renderer(config.data_config.metadata_config).list_special_tokens()
    return [token for token in special if token not in vocabulary]


def fill_up(tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Adds unused special tokens until the vocabulary has the given size.

    Runs with different metadata then have embeddings of the same size and with the same initial
    weights.

    Raises:
        ConfigurationError: If the vocabulary is larger.
    """
    missing = size - len(tokenizer)
    if missing < 0:
        raise ConfigurationError(
            f"data_config.metadata_config: {RESERVED_TOKENS - missing} special tokens (of "
            f"num_meta_tokens and the delimiters of prefix and tags); data_config.row_budget="
            f"{BY_TEXT} reserves {RESERVED_TOKENS} for the metadata of any run; use fewer"
        )

    unused = [f"<|unused_{number}|>" for number in range(missing)]
    tokenizer.add_special_tokens({"additional_special_tokens": unused}, False)


def load_tokenizer_from(name: str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer in a folder or on the Hub.

    Raises:
        ConfigurationError: If it cannot be loaded, or has no vocabulary.
    """
    try:
        tokenizer = read_tokenizer(name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"tokenizer_name: {name} cannot be loaded: {error}. Expected a folder, or a name on "
            "the Hub"
        ) from error
    check_vocabulary(tokenizer, f"tokenizer_name: {name}")
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Rejects the default tokenizer that transformers builds for a folder without tokenizer files.

    It only has the special tokens of the model's class, and encodes every text as empty.

    Args:
        name: The key that names the tokenizer, and its value.

    Raises:
        ConfigurationError: If the tokenizer is such a default.
    """
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ConfigurationError(
            f"{name}: there is no tokenizer (it would have {len(tokenizer)} tokens, all special "
            "ones). Expected its files (tokenizer.json, tokenizer_config.json) beside the model: "
            "copy them there"
        )


def load_padded_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a folder or Hub name, with a padding token.

    Raises:
        ConfigurationError: If it cannot be loaded, or has no token to pad with.
    """
    tokenizer = load_tokenizer_from(name)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ConfigurationError(
                f"tokenizer_name: {name} has neither a padding nor an end-of-text token; name a "
                "tokenizer that has a pad_token"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tokenize_with_places(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yields the ids of each text, without special tokens, and their characters.

    The characters are int64 [tokens, 2]: start and end in the text.
    """
    if not texts:
        return

    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=True,
        split_special_tokens=True,  # "[SEP]" in a text is text
        verbose=False,  # no warning about the length
    )
    for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        yield ids, np.array(offsets, np.int64).reshape(-1, 2)


def find_special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Finds the special tokens that a model expects before and after a text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    complete = tokenizer("a", add_special_tokens=True)["input_ids"]
    offsets = range(len(complete) - len(bare) + 1)
    begin = next(n for n in offsets if complete[n : n + len(bare)] == bare)
    return complete[:begin], complete[begin + len(bare) :]


def fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hashes a tokenizer (xxh3, hexadecimal); a slow one by its class and vocabulary."""
    if tokenizer.is_fast:
        content = tokenizer.backend_tokenizer.to_str()
    else:
        content = repr((type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())))
    return xxhash.xxh3_64_hexdigest(content.encode())


class Unavailable(Exception):
    """A backend cannot replace this tokenizer; the message gives the reason."""


def make_hf_backend(tokenizer: Tokenizer) -> Backend:
    """Returns the oracle itself, in batches and without character offsets."""

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    return encode


def build_tiktoken_backend(tokenizer: Tokenizer) -> Backend:
    """Builds tiktoken with the tokenizer's vocabulary.

    Raises:
        Unavailable: If the tokenizer is not a byte-level BPE with a single splitting pattern.
    """
    try:
        from tiktoken import Encoding
    except ImportError as error:
        raise Unavailable("it is not installed") from error

    parts = read_parts(tokenizer)
    ranks = _merge_ranks(parts["model"])
    added = parts["added_tokens"]
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added):
        raise Unavailable("its special tokens match depending on the surrounding text")
    names = sorted(token["content"] for token in added)
    if any(longer.startswith(name) for name, longer in itertools.pairwise(names)):
        raise Unavailable("one of its special tokens begins another")

    # tiktoken numbers entries by the rank of their merge: `ids` maps ranks to ids.
    ids = np.array([*ranks.values(), *(token["id"] for token in added)], np.int32)
    special = {token["content"]: len(ranks) + i for i, token in enumerate(added)}
    pattern = _split_pattern(parts)
    encoding = Encoding(
        "",
        pat_str=WITHOUT_GOING_BACK.get(pattern, pattern),
        mergeable_ranks={entry: rank for rank, entry in enumerate(ranks)},
        special_tokens=special,
    )
    allowed = set(special)

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [ids[encoding.encode_to_numpy(text, allowed_special=allowed)] for text in texts]

    return encode


def _merge_ranks(model: dict[str, Any]) -> dict[bytes, int]:
    """Maps a byte-level vocabulary's entries to their ids in rank order: bytes, then merges.

    Raises:
        Unavailable: If it is not a byte-level BPE.
    """
    if model["type"] != "BPE":
        raise Unavailable("it is not BPE")
    vocabulary = model["vocab"]
    alphabet = map_byte_alphabet()
    if not all(character in vocabulary for character in alphabet):
        raise Unavailable("its vocabulary lacks a byte")

    ids = {bytes([byte]): vocabulary[character] for character, byte in alphabet.items()}
    for left, right in model["merges"]:
        entry = bytes(alphabet[character] for character in left + right)
        ids.setdefault(entry, vocabulary[left + right])
    return ids


def compute_byte_lengths(tokenizer: Tokenizer) -> np.ndarray | None:
    """Computes the byte length of each entry of a byte-level BPE vocabulary (int32).

    A byte-level vocabulary represents each byte as one character, so the byte length of an entry is
    its number of characters.

    Returns:
        None for other tokenizers.
    """
    parts = read_parts(tokenizer)
    steps = list_pre_tokenizers(parts["pre_tokenizer"])
    if parts["model"]["type"] != "BPE" or "ByteLevel" not in [step["type"] for step in steps]:
        return None
    if not all(map(keeps_text, steps)):
        return None

    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = {token["content"]: token["id"] for token in parts["added_tokens"]}
    lengths = np.zeros(max([*vocabulary.values(), *added.values()]) + 1, np.int32)
    for entry, number in vocabulary.items():
        lengths[number] = len(entry)
    for entry, number in added.items():
        lengths[number] = len(entry.encode())

    # A tokenizer may still add, drop or replace characters in many ways.
    probes = [PROBE, *(f"a{entry} b" for entry in added), " a", "a "]
    encodings = tokenizer.encode_batch(probes, add_special_tokens=False)
    totals = [int(lengths[encoding.ids].sum()) for encoding in encodings]
    return lengths if totals == [len(probe.encode()) for probe in probes] else None


def map_byte_alphabet() -> dict[str, int]:
    """Maps each character of a byte-level vocabulary to the byte that it represents."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


def _split_pattern(parts: Part) -> str:
    """Returns the regular expression by which a tokenizer splits a text before merging.

    Raises:
        Unavailable: If it normalizes the text, or splits it in another way.
    """
    if parts["normalizer"] is not None:
        raise Unavailable("it normalizes the text")

    pre_tokenizer = parts["pre_tokenizer"] or {}
    match pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
            return GPT2_PATTERN
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"} as split,
            {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False},
        ] if not split["invert"]:
            return pattern
    raise Unavailable("it does not split the text by one pattern")


def build_gigatoken_backend(tokenizer: Tokenizer) -> Backend:
    """Builds gigatoken with the tokenizer's vocabulary.

    Raises:
        Unavailable: If gigatoken does not support it, or is not installed.
    """
    try:
        from gigatoken import Tokenizer as Gigatoken
    except ImportError as error:
        raise Unavailable("it is not installed") from error
    try:
        fast = Gigatoken.from_json(tokenizer.to_str())
    except ValueError as error:
        raise Unavailable(str(error)) from error

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        # One thread: its pool would cost more than it saves, and does not survive a fork.
        rows = fast.encode_batch(list(texts), parallel=False).layout
        ids = np.asarray(rows.content.data).astype(np.int32)
        offsets = itertools.pairwise(np.asarray(rows.offsets.data).tolist())
        return [ids[begin:end] for begin, end in offsets]

    return encode


def make_cached_backend(tokenizer: Tokenizer) -> Backend:
    """Returns the oracle, with a cache of words if they do not depend on each other."""
    try:
        return WordCache(tokenizer).encode_ids
    except Inseparable as reason:
        log_without_cache(reason)
        return make_hf_backend(tokenizer)


def make_character_backend(tokenizer: Tokenizer, sample: Sequence[str]) -> CharacterBackend:
    """Returns the oracle with the characters of each token, and with a cache of words if possible.

    Args:
        sample: Texts on which the cache must return the same as the oracle.
    """

    def oracle(texts: Sequence[str]) -> list[tuple[np.ndarray, Characters]]:
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [ids_and_characters(encoding) for encoding in encodings]

    try:
        cached = WordCache(tokenizer).ids_and_characters
    except Inseparable as reason:
        log_without_cache(reason)
        return oracle

    pairs = zip(cached(sample), oracle(sample), strict=True)
    different = sum(
        not (np.array_equal(ids, expected_ids) and np.array_equal(characters, expected_characters))
        for (ids, characters), (expected_ids, expected_characters) in pairs
    )
    if different:
        problem = f"differs on {different} of {len(sample)} texts and is left out"
        log_once(logger, logging.WARNING, f"tokenizer backend hf: its cache of words {problem}")
        return oracle
    return cached


def log_without_cache(reason: Inseparable) -> None:
    """Logs why a tokenizer encodes every word, including repeated ones."""
    log_once(logger, logging.INFO, f"tokenizer backend hf has no cache of words: {reason}")


BACKENDS = {
    "gigatoken": build_gigatoken_backend,
    "tiktoken": build_tiktoken_backend,
    "hf": make_cached_backend,
}
"""The backends by name, from the fastest to the oracle."""


def choose_backend(name: str, tokenizer: Tokenizer, sample: Sequence[str]) -> Backend:
    """Selects the backend of that name, or for `auto` the fastest that agrees with the oracle.

    Args:
        name: A key of `BACKENDS`, or `auto`.
        sample: Texts on which the ids must match the oracle's.

    Returns:
        The backend; if none agrees, the oracle itself.

    Raises:
        ConfigurationError: If the requested backend cannot be built for this tokenizer.
    """
    oracle = make_hf_backend(tokenizer)
    expected = oracle(sample)
    for candidate in BACKENDS if name == "auto" else (name,):
        try:
            backend = BACKENDS[candidate](tokenizer)
        except Unavailable as error:
            if name != "auto":
                raise ConfigurationError(
                    f"data_config.tokenizer_backend={name} cannot be used for this tokenizer: "
                    f"{error}; use auto or hf"
                ) from error
            log_once(logger, logging.INFO, f"tokenizer backend {candidate} is left out: {error}")
            continue

        pairs = zip(backend(sample), expected, strict=True)
        different = sum(not np.array_equal(*pair) for pair in pairs)
        if not different:
            choice = f"tokenizer backend: {candidate} (same ids on {len(sample)} texts)"
            log_once(logger, logging.INFO, choice)
            return backend

        problem = f"differs from the oracle on {different} of {len(sample)} texts and is left out"
        log_once(logger, logging.WARNING, f"tokenizer backend {candidate} {problem}")
    return oracle
