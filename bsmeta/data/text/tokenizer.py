"""The tokenizer of a run, and fast backends that return the same ids.

The Hugging Face tokenizer is the reference (the oracle). tiktoken (built from its merges, pattern
and special tokens) and gigatoken are several times as fast, and a word cache makes the oracle
itself faster. Each is used only if its ids equal the oracle's on a sample of the data to encode.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence

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
from bsmeta.data.text.word_cache import Characters, WordCache, read_ids_and_characters
from bsmeta.metadata.rendering import Renderer

PROBE = "One  two\n\t3 naïve 😀 x<y"
"""A text that tokenizers split or change in different ways."""

NUM_RESERVED_TOKENS = 64
"""Number of entries that `row_budget=text` reserves in every run's vocabulary for metadata."""

logger = logging.getLogger(__name__)

Backend = Callable[[Sequence[str]], list[np.ndarray]]
"""Encodes texts into ids (int32); special tokens in a text are recognized, none are added."""

CharacterBackend = Callable[[Sequence[str]], list[tuple[np.ndarray, Characters]]]
"""Encodes texts like a `Backend`, and also returns the characters that each token covers."""

FASTER_PATTERNS = {
    GPT2_PATTERN: r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
}
"""For a pattern, an equivalent one that is faster in tiktoken (its own pattern for GPT-2)."""


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
        add_unused_tokens(tokenizer, original_size + NUM_RESERVED_TOKENS)
    return tokenizer


def list_new_special_tokens(config: CausalLMConfig) -> list[str]:
    """Returns the special tokens of the metadata that the model's tokenizer lacks."""
    vocabulary = load_tokenizer_from(config.tokenizer_name or config.model_name).get_vocab()
    special = Renderer(config.data_config.metadata_config).list_special_tokens()
    return [token for token in special if token not in vocabulary]


def add_unused_tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Adds unused special tokens until the vocabulary has the given size.

    Runs with different metadata then have embeddings of the same size with the same initial
    weights.

    Raises:
        ConfigurationError: If the vocabulary is larger.
    """
    num_missing = size - len(tokenizer)
    if num_missing < 0:
        raise ConfigurationError(
            f"data_config.metadata_config: {NUM_RESERVED_TOKENS - num_missing} special tokens (of "
            f"num_meta_tokens and the delimiters of prefix and tags); data_config.row_budget="
            f"{BY_TEXT} reserves {NUM_RESERVED_TOKENS} for the metadata of any run; use fewer"
        )

    unused = [f"<|unused_{number}|>" for number in range(num_missing)]
    tokenizer.add_special_tokens({"additional_special_tokens": unused}, False)


def load_tokenizer_from(name: str) -> PreTrainedTokenizerBase:
    """Loads a tokenizer from a folder or the Hub.

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
    """Checks that a tokenizer has more than special tokens.

    For a folder without tokenizer files, transformers builds a default tokenizer with nothing but
    the special tokens of the model's class, which encodes every text as empty.

    Args:
        name: The key that names the tokenizer, and its value, for the message.

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
    """Loads a tokenizer from a folder or the Hub; pads with the end-of-text token by default.

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


def tokenize_with_spans(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yields the token ids of each text, without special tokens, and the spans of the tokens.

    The spans are int64 [tokens, 2]: start and end in the text, in characters.
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
        verbose=False,  # does not warn about the length
    )
    for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        yield ids, np.array(offsets, np.int64).reshape(-1, 2)


def find_special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Returns the ids of the special tokens that a tokenizer adds before and after a text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    complete = tokenizer("a", add_special_tokens=True)["input_ids"]
    offsets = range(len(complete) - len(bare) + 1)
    start = next(offset for offset in offsets if complete[offset : offset + len(bare)] == bare)
    return complete[:start], complete[start + len(bare) :]


def fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns the xxh3 hash of a tokenizer's settings, in hexadecimal.

    A slow tokenizer is identified by its class name and its vocabulary.
    """
    if tokenizer.is_fast:
        content = tokenizer.backend_tokenizer.to_str()
    else:
        content = repr((type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())))
    return xxhash.xxh3_64_hexdigest(content.encode())


class Unavailable(Exception):
    """A backend that cannot replace a tokenizer; the message gives the reason."""


def make_hf_backend(tokenizer: Tokenizer) -> Backend:
    """Returns the oracle as a backend."""

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    return encode


def build_tiktoken_backend(tokenizer: Tokenizer) -> Backend:
    """Builds a tiktoken backend from the vocabulary of a tokenizer.

    Raises:
        Unavailable: If the tokenizer is not byte-level BPE with a single splitting pattern, or if
            tiktoken is not installed.
    """
    try:
        from tiktoken import Encoding
    except ImportError as error:
        raise Unavailable("it is not installed") from error

    parts = read_parts(tokenizer)
    ids_by_rank = _rank_vocabulary(parts["model"])
    added = parts["added_tokens"]
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added):
        raise Unavailable("its special tokens match depending on the surrounding text")
    names = sorted(token["content"] for token in added)
    if any(longer.startswith(name) for name, longer in itertools.pairwise(names)):
        raise Unavailable("one of its special tokens begins another")

    # tiktoken numbers entries by the rank of their merge: `ids` maps ranks to ids.
    ids = np.array([*ids_by_rank.values(), *(token["id"] for token in added)], np.int32)
    special = {token["content"]: len(ids_by_rank) + index for index, token in enumerate(added)}
    pattern = _find_split_pattern(parts)
    encoding = Encoding(
        "",
        pat_str=FASTER_PATTERNS.get(pattern, pattern),
        mergeable_ranks={entry: rank for rank, entry in enumerate(ids_by_rank)},
        special_tokens=special,
    )
    allowed = set(special)

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [ids[encoding.encode_to_numpy(text, allowed_special=allowed)] for text in texts]

    return encode


def _rank_vocabulary(model: Part) -> dict[bytes, int]:
    """Maps the entries of a byte-level vocabulary to their ids, ordered by rank.

    The single bytes come first, then the results of the merges in their order.

    Raises:
        Unavailable: If the model is not byte-level BPE.
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
    for entry, token_id in vocabulary.items():
        lengths[token_id] = len(entry)
    for entry, token_id in added.items():
        lengths[token_id] = len(entry.encode())

    # A tokenizer may still add, drop or replace characters in many ways, so its tokens of some
    # texts must have as many bytes as the texts.
    probes = [PROBE, *(f"a{entry} b" for entry in added), " a", "a "]
    encodings = tokenizer.encode_batch(probes, add_special_tokens=False)
    num_bytes = [int(lengths[encoding.ids].sum()) for encoding in encodings]
    return lengths if num_bytes == [len(probe.encode()) for probe in probes] else None


def map_byte_alphabet() -> dict[str, int]:
    """Maps each character of a byte-level vocabulary to the byte that it represents."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


def _find_split_pattern(parts: Part) -> str:
    """Returns the regular expression with which a tokenizer splits a text before merging.

    Raises:
        Unavailable: If it normalizes the text, or does not split it by a single expression.
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
    """Builds a gigatoken backend from a tokenizer.

    Raises:
        Unavailable: If gigatoken does not support the tokenizer, or is not installed.
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
        # Single-threaded: its thread pool would cost more than it saves, and not survive a fork.
        rows = fast.encode_batch(list(texts), parallel=False).layout
        ids = np.asarray(rows.content.data).astype(np.int32)
        offsets = itertools.pairwise(np.asarray(rows.offsets.data).tolist())
        return [ids[begin:end] for begin, end in offsets]

    return encode


def make_cached_backend(tokenizer: Tokenizer) -> Backend:
    """Returns the oracle as a backend, with a word cache if words do not depend on each other."""
    try:
        return WordCache(tokenizer).encode_ids
    except Inseparable as reason:
        log_missing_cache(reason)
        return make_hf_backend(tokenizer)


def make_character_backend(tokenizer: Tokenizer, sample: Sequence[str]) -> CharacterBackend:
    """Returns the oracle as a character backend, with a word cache if possible.

    Args:
        sample: Texts on which the cache must return the same as the oracle.
    """

    def encode(texts: Sequence[str]) -> list[tuple[np.ndarray, Characters]]:
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [read_ids_and_characters(encoding) for encoding in encodings]

    try:
        encode_cached = WordCache(tokenizer).encode_with_characters
    except Inseparable as reason:
        log_missing_cache(reason)
        return encode

    pairs = zip(encode_cached(sample), encode(sample), strict=True)
    num_different = sum(
        not (np.array_equal(ids, expected_ids) and np.array_equal(characters, expected_characters))
        for (ids, characters), (expected_ids, expected_characters) in pairs
    )
    if num_different:
        problem = f"differs on {num_different} of {len(sample)} texts and is not used"
        log_once(logger, logging.WARNING, f"tokenizer backend hf: its word cache {problem}")
        return encode
    return encode_cached


def log_missing_cache(reason: Inseparable) -> None:
    """Logs why a tokenizer has no word cache."""
    log_once(logger, logging.INFO, f"tokenizer backend hf has no word cache: {reason}")


BACKENDS = {
    "gigatoken": build_gigatoken_backend,
    "tiktoken": build_tiktoken_backend,
    "hf": make_cached_backend,
}
"""The backends by name, from the fastest to the oracle."""


def choose_backend(name: str, tokenizer: Tokenizer, sample: Sequence[str]) -> Backend:
    """Returns the backend with a name, or for `auto` the fastest that agrees with the oracle.

    Args:
        name: A key of `BACKENDS`, or `auto`.
        sample: Texts on which the ids must match the oracle's.

    Returns:
        The backend; the oracle itself if the ids of no candidate match.

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
            log_once(logger, logging.INFO, f"tokenizer backend {candidate} is not used: {error}")
            continue

        pairs = zip(backend(sample), expected, strict=True)
        num_different = sum(not np.array_equal(*pair) for pair in pairs)
        if not num_different:
            choice = f"tokenizer backend: {candidate} (same ids on {len(sample)} texts)"
            log_once(logger, logging.INFO, choice)
            return backend

        problem = f"differs from the oracle on {num_different} of {len(sample)} texts, so unused"
        log_once(logger, logging.WARNING, f"tokenizer backend {candidate} {problem}")
    return oracle
