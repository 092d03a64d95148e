"""The tokenizer of a run, and fast backends that return the same ids.

The Hugging Face tokenizer is the reference (the oracle). tiktoken (built from the oracle's merges,
pattern and special tokens) and gigatoken are several times as fast, and a word cache makes the
oracle itself faster. A backend is used only if its ids equal the oracle's on a sample of the data.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter

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
from bsmeta.data.text.word_bounds import GPT2_PATTERN, InseparableError
from bsmeta.data.text.word_cache import Characters, WordCache, read_ids_and_characters
from bsmeta.metadata.rendering import Renderer

PROBE = "One  two\n\t3 naïve 😀 x<y"
"""A text that different tokenizers split or change differently."""

NUM_RESERVED_TOKENS = 64
"""Number of vocabulary entries that every run with `row_budget=text` reserves for metadata."""

_MAX_DIFFERENCES_SHOWN = 3  # in a message

logger = logging.getLogger(__name__)

Backend = Callable[[Sequence[str]], list[np.ndarray]]
"""Encodes texts into ids (int32); recognizes special tokens in a text, and adds none."""

CharacterBackend = Callable[[Sequence[str]], list[tuple[np.ndarray, Characters]]]
"""Encodes texts like a `Backend`, and also returns the characters that each token covers."""

FASTER_PATTERNS = {
    GPT2_PATTERN: r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
}
"""Equivalent patterns that are faster in tiktoken, by pattern; for GPT-2, tiktoken's own one."""


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

    metadata_tokens = Renderer(config.data_config.metadata_config).list_special_tokens()
    original_size = len(tokenizer)
    # If its list were replaced, an exported tokenizer would lack the original special tokens.
    tokenizer.add_special_tokens(
        {"additional_special_tokens": metadata_tokens}, replace_extra_special_tokens=False
    )
    if config.data_config.row_budget == BY_TEXT:
        add_unused_tokens(tokenizer, original_size + NUM_RESERVED_TOKENS)
    return tokenizer


def list_new_tokens(config: CausalLMConfig) -> list[str]:
    """Returns the tokens of a run that its model has not been trained on.

    They are the tokens of `tokenizer_name` and the special tokens of the metadata that the
    tokenizer saved with the model lacks. Tokens that `row_budget=text` reserves do not count.
    """
    tokenizer_vocabulary = load_tokenizer_from(
        config.tokenizer_name or config.model_name
    ).get_vocab()
    trained_vocabulary = read_trained_vocabulary(config.model_name) or tokenizer_vocabulary
    tokens = sorted(tokenizer_vocabulary, key=tokenizer_vocabulary.__getitem__)
    tokens += Renderer(config.data_config.metadata_config).list_special_tokens()
    return [token for token in dict.fromkeys(tokens) if token not in trained_vocabulary]


def read_trained_vocabulary(model_name: str) -> dict[str, int] | None:
    """Reads the ids of the tokens that a pretrained model was trained with.

    Args:
        model_name: A folder, or a name on the Hub.

    Returns:
        The ids by token, as the tokenizer beside the weights has them; None without a tokenizer.
    """
    try:
        tokenizer = read_tokenizer(model_name)
        check_vocabulary(tokenizer, model_name)
    except (OSError, ValueError):
        return None
    return tokenizer.get_vocab()


def count_trained_tokens(
    model_name: str, tokenizer_name: str | None, tokenizer: PreTrainedTokenizerBase
) -> int | None:
    """Returns the number of ids that a pretrained model was trained with.

    Args:
        model_name: A folder, or a name on the Hub.
        tokenizer_name: The key of this name; None: the tokenizer is the model's own.
        tokenizer: The tokenizer of the run, whose further tokens are new to the model.

    Returns:
        None if no tokenizer is saved with the model.

    Raises:
        ConfigurationError: If `tokenizer` has another token at one of these ids.
    """
    trained_vocabulary = read_trained_vocabulary(model_name)
    if trained_vocabulary is None:
        return None
    refuse_other_ids(model_name, tokenizer_name, tokenizer, trained_vocabulary)
    return max(trained_vocabulary.values()) + 1


def refuse_other_ids(
    model_name: str,
    tokenizer_name: str | None,
    tokenizer: PreTrainedTokenizerBase,
    trained_vocabulary: Mapping[str, int] | None,
) -> None:
    """Refuses a tokenizer with another token at an id that a pretrained model was trained with.

    Args:
        model_name: A folder, or a name on the Hub.
        tokenizer_name: The key of this name; None: the tokenizer is the model's own.
        tokenizer: The tokenizer of the run.
        trained_vocabulary: The result of `read_trained_vocabulary`.

    Raises:
        ConfigurationError: With the first such ids.
    """
    if tokenizer_name is None or trained_vocabulary is None:
        return

    token_by_id = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    differences = []
    for token, token_id in sorted(trained_vocabulary.items(), key=itemgetter(1)):
        other_token = token_by_id.get(token_id, token)
        if other_token != token:
            differences.append(f"{token_id}: {other_token!r} instead of {token!r}")
    if not differences:
        return

    shown = ", ".join(differences[:_MAX_DIFFERENCES_SHOWN])
    raise ConfigurationError(
        f"tokenizer_name: {tokenizer_name} has other tokens than the tokenizer in {model_name} at "
        f"{len(differences):,} of {len(trained_vocabulary):,} ids ({shown}), so the model would "
        "take its tokens for others. Expected the same token at each id, and new tokens after "
        "them. Fix: tokenizer_name=null; or model_config_file, for random weights",
        ["tokenizer_name"],
    )


def add_unused_tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Adds unused special tokens until the vocabulary has the given size.

    So runs with different metadata have embeddings of the same size and with the same initial
    weights.

    Raises:
        ConfigurationError: If the vocabulary is already larger.
    """
    num_missing = size - len(tokenizer)
    if num_missing < 0:
        raise ConfigurationError(
            f"data_config.metadata_config: {NUM_RESERVED_TOKENS - num_missing} special tokens (of "
            f"num_meta_tokens and the delimiters of prefix and tags); data_config.row_budget="
            f"{BY_TEXT} reserves {NUM_RESERVED_TOKENS} for the metadata of any run; use fewer"
        )

    unused = [f"<|unused_{number}|>" for number in range(num_missing)]
    tokenizer.add_special_tokens(
        {"additional_special_tokens": unused}, replace_extra_special_tokens=False
    )


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
    """Checks that a tokenizer has tokens other than special tokens.

    For a folder without tokenizer files, transformers builds a default tokenizer that has only the
    special tokens of the model's class, and encodes every text to no tokens.

    Args:
        name: The configuration key of the tokenizer with its value, for the message.

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
    """Loads a tokenizer that can pad; without a padding token, it pads with the end-of-text token.

    Args:
        name: A folder, or a name on the Hub.

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
    """Yields the token ids of each text, and the spans of the tokens in the text.

    No special tokens are added. The spans are int64 [tokens, 2]: start and end in characters.
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
    text_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    all_ids = tokenizer("a", add_special_tokens=True)["input_ids"]
    starts = range(len(all_ids) - len(text_ids) + 1)
    start = next(start for start in starts if all_ids[start : start + len(text_ids)] == text_ids)
    return all_ids[:start], all_ids[start + len(text_ids) :]


def fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns the xxh3 of a tokenizer's settings, in hexadecimal.

    The settings of a slow tokenizer are its class name and its vocabulary.
    """
    if tokenizer.is_fast:
        content = tokenizer.backend_tokenizer.to_str()
    else:
        content = repr((type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())))
    return xxhash.xxh3_64_hexdigest(content.encode())


class UnavailableBackendError(Exception):
    """A backend cannot replace a tokenizer; the message states the reason."""


def make_hf_backend(tokenizer: Tokenizer) -> Backend:
    """Returns the oracle as a backend."""

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    return encode


def build_tiktoken_backend(tokenizer: Tokenizer) -> Backend:
    """Builds a tiktoken backend from the vocabulary of a tokenizer.

    Raises:
        UnavailableBackendError: If the tokenizer is not byte-level BPE with a single splitting
            pattern, or tiktoken is not installed.
    """
    try:
        from tiktoken import Encoding
    except ImportError as error:
        raise UnavailableBackendError("it is not installed") from error

    parts = read_parts(tokenizer)
    entry_ids = _rank_vocabulary(parts["model"])
    added = parts["added_tokens"]
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added):
        raise UnavailableBackendError("its special tokens match depending on the surrounding text")
    names = sorted(token["content"] for token in added)
    if any(longer.startswith(name) for name, longer in itertools.pairwise(names)):
        raise UnavailableBackendError("one of its special tokens begins another")

    # tiktoken numbers entries by the rank of their merge, then the special tokens.
    added_ids = [token["id"] for token in added]
    ids = np.array([*entry_ids.values(), *added_ids], np.int32)  # by tiktoken's number
    special_numbers = {
        token["content"]: number for number, token in enumerate(added, start=len(entry_ids))
    }
    pattern = _find_split_pattern(parts)
    encoding = Encoding(
        "",
        pat_str=FASTER_PATTERNS.get(pattern, pattern),
        mergeable_ranks={entry: rank for rank, entry in enumerate(entry_ids)},
        special_tokens=special_numbers,
    )
    allowed_special = set(special_numbers)

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [
            ids[encoding.encode_to_numpy(text, allowed_special=allowed_special)] for text in texts
        ]

    return encode


def _rank_vocabulary(model: Part) -> dict[bytes, int]:
    """Maps the entries of a byte-level vocabulary to their ids, in the order of their rank.

    The single bytes come first, then the results of the merges in order.

    Raises:
        UnavailableBackendError: If the model is not byte-level BPE.
    """
    if model["type"] != "BPE":
        raise UnavailableBackendError("it is not BPE")
    vocabulary = model["vocab"]
    alphabet = map_byte_alphabet()
    if not all(character in vocabulary for character in alphabet):
        raise UnavailableBackendError("its vocabulary lacks a byte")

    ids = {bytes([byte]): vocabulary[character] for character, byte in alphabet.items()}
    for left, right in model["merges"]:
        entry = bytes(alphabet[character] for character in left + right)
        ids.setdefault(entry, vocabulary[left + right])
    return ids


def compute_byte_lengths(tokenizer: Tokenizer) -> np.ndarray | None:
    """Computes the byte length of each entry of a byte-level BPE vocabulary.

    Such a vocabulary represents each byte as one character, so the byte length of an entry is its
    number of characters.

    Returns:
        int32 [vocabulary]; None for other tokenizers.
    """
    parts = read_parts(tokenizer)
    steps = list_pre_tokenizers(parts["pre_tokenizer"])
    is_byte_level = any(step["type"] == "ByteLevel" for step in steps)
    if parts["model"]["type"] != "BPE" or not is_byte_level or not all(map(keeps_text, steps)):
        return None

    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = {token["content"]: token["id"] for token in parts["added_tokens"]}
    lengths = np.zeros(max([*vocabulary.values(), *added.values()]) + 1, np.int32)
    for entry, token_id in vocabulary.items():
        lengths[token_id] = len(entry)
    for entry, token_id in added.items():
        lengths[token_id] = len(entry.encode())

    # A tokenizer may still add, drop or replace characters in many ways: check that the tokens of
    # some texts have the length of the texts.
    probes = [PROBE, *(f"a{entry} b" for entry in added), " a", "a "]
    encodings = tokenizer.encode_batch(probes, add_special_tokens=False)
    for probe, encoding in zip(probes, encodings, strict=True):
        if lengths[encoding.ids].sum() != len(probe.encode()):
            return None
    return lengths


def map_byte_alphabet() -> dict[str, int]:
    """Maps each character of a byte-level vocabulary to the byte that it represents."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


def _find_split_pattern(parts: Part) -> str:
    """Returns the pattern by which a tokenizer splits a text before merging.

    Raises:
        UnavailableBackendError: If it normalizes the text, or does not split by a single pattern.
    """
    if parts["normalizer"] is not None:
        raise UnavailableBackendError("it normalizes the text")

    pre_tokenizer = parts["pre_tokenizer"] or {}
    match pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
            return GPT2_PATTERN
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"} as split,
            {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False},
        ] if not split["invert"]:
            return pattern
    raise UnavailableBackendError("it does not split the text by one pattern")


def build_gigatoken_backend(tokenizer: Tokenizer) -> Backend:
    """Builds a gigatoken backend from a tokenizer.

    Raises:
        UnavailableBackendError: If gigatoken does not support the tokenizer, or is not installed.
    """
    try:
        from gigatoken import Tokenizer as Gigatoken
    except ImportError as error:
        raise UnavailableBackendError("it is not installed") from error
    try:
        gigatoken = Gigatoken.from_json(tokenizer.to_str())
    except ValueError as error:
        raise UnavailableBackendError(str(error)) from error

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        # Single-threaded: its thread pool would cost more than it saves, and not survive a fork.
        layout = gigatoken.encode_batch(list(texts), parallel=False).layout
        ids = np.asarray(layout.content.data).astype(np.int32)
        bounds = np.asarray(layout.offsets.data).tolist()
        return [ids[start:end] for start, end in itertools.pairwise(bounds)]

    return encode


def make_cached_backend(tokenizer: Tokenizer) -> Backend:
    """Returns the oracle as a backend, with a word cache if words do not depend on each other."""
    try:
        return WordCache(tokenizer).encode_ids
    except InseparableError as reason:
        log_missing_cache(reason)
        return make_hf_backend(tokenizer)


def make_character_backend(tokenizer: Tokenizer, sample: Sequence[str]) -> CharacterBackend:
    """Returns the oracle as a character backend, with a word cache if possible.

    Args:
        sample: Texts on which the word cache must return the same results as the oracle.
    """

    def encode(texts: Sequence[str]) -> list[tuple[np.ndarray, Characters]]:
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [read_ids_and_characters(encoding) for encoding in encodings]

    try:
        encode_cached = WordCache(tokenizer).encode_with_characters
    except InseparableError as reason:
        log_missing_cache(reason)
        return encode

    num_different = 0
    pairs = zip(encode_cached(sample), encode(sample), strict=True)
    for (ids, characters), (expected_ids, expected_characters) in pairs:
        has_same_ids = np.array_equal(ids, expected_ids)
        if not has_same_ids or not np.array_equal(characters, expected_characters):
            num_different += 1

    if num_different:
        problem = f"differs on {num_different} of {len(sample)} texts and is not used"
        log_once(logger, logging.WARNING, f"tokenizer backend hf: its word cache {problem}")
        return encode
    return encode_cached


def log_missing_cache(reason: InseparableError) -> None:
    """Logs why a tokenizer has no word cache."""
    log_once(logger, logging.INFO, f"tokenizer backend hf has no word cache: {reason}")


BACKENDS = {
    "gigatoken": build_gigatoken_backend,
    "tiktoken": build_tiktoken_backend,
    "hf": make_cached_backend,
}
"""The backends by name, from the fastest to the oracle."""


def choose_backend(name: str, tokenizer: Tokenizer, sample: Sequence[str]) -> Backend:
    """Chooses a backend that returns the same ids as a tokenizer.

    Args:
        name: A key of `BACKENDS`, or `auto` for the fastest that agrees with the tokenizer.
        tokenizer: The oracle.
        sample: Texts on which the ids of the backend and of the oracle must be equal.

    Returns:
        The backend; the oracle itself if no candidate agrees with it.

    Raises:
        ConfigurationError: If the named backend cannot be built for this tokenizer.
    """
    oracle = make_hf_backend(tokenizer)
    expected = oracle(sample)
    for candidate in BACKENDS if name == "auto" else (name,):
        try:
            backend = BACKENDS[candidate](tokenizer)
        except UnavailableBackendError as error:
            if name != "auto":
                raise ConfigurationError(
                    f"data_config.tokenizer_backend={name} cannot be used for this tokenizer: "
                    f"{error}; use auto or hf"
                ) from error
            log_once(logger, logging.INFO, f"tokenizer backend {candidate} is not used: {error}")
            continue

        num_different = 0
        for ids, expected_ids in zip(backend(sample), expected, strict=True):
            if not np.array_equal(ids, expected_ids):
                num_different += 1
        if not num_different:
            choice = f"tokenizer backend: {candidate} (same ids on {len(sample)} texts)"
            log_once(logger, logging.INFO, choice)
            return backend

        problem = f"differs from the oracle on {num_different} of {len(sample)} texts, so unused"
        log_once(logger, logging.WARNING, f"tokenizer backend {candidate} {problem}")
    return oracle
