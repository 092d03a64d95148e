"""Encodes rendered documents into token ids, with the type and the text position of each token.

This is the middle stage of a window (read, render, encode, cut, pack). Prefix and suffix are
encoded separately from the body, so that the prefix can be repeated on each chunk, and the body has
the same tokens after any prefix. Evaluation and `explain` use the same encoder, so it also maps
tokens to characters of the original text.

The renderer returns the spans of metadata in characters, int32 [m, 2] (start, end), sorted and
disjoint, with a row for each inserted string. Token types are uint8: 0 for text, 1 + i for type
`metadata_list[i]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig, compute_metadata_room
from bsmeta.config.metadata import MetadataConfig, choose_separators
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.lost_text import LostTextFinder
from bsmeta.data.text.tokens import (
    NO_IDS,
    NO_TOKENS,
    Body,
    JointBodies,
    SeparateBodies,
    TextTokenizer,
    TokenMarks,
    Tokens,
    slice_plain_tokens,
)
from bsmeta.metadata.metadata_type import CONSTANT, RANDOM
from bsmeta.metadata.rendering import Rendered

BoolArray = NDArray[np.bool_]
Filler = Callable[[int, str], np.ndarray]
"""Returns n token ids without content (int32 [n]) for the prefix of a text, from n and the text."""

TEXT_ONLY: BoolArray = np.arange(256) == 0
"""Whether each token type is in the loss under `row_budget=text`: only 0, the text."""

FREQUENT_WORDS = [
    "about", "after", "all", "also", "and", "any", "are", "because", "been", "before", "but",
    "can", "could", "each", "even", "first", "for", "from", "good", "has", "have", "how", "into",
    "its", "just", "like", "made", "make", "many", "may", "more", "most", "much", "must", "never",
    "new", "not", "now", "off", "one", "only", "other", "our", "out", "over", "own", "same",
    "see", "she", "should", "some", "such", "take", "than", "that", "the", "their", "them",
    "then", "there", "these", "they", "this", "those", "time", "two", "under", "until", "upon",
    "very", "was", "way", "well", "were", "what", "when", "where", "which", "while", "who",
    "will", "with", "would", "year", "you",
]  # fmt: skip
"""Frequent English words, each a token of any English tokenizer."""

_MIN_TEXT_TOKENS = 2  # of a chunk, after its longest prefix


class EncodedPrefix(NamedTuple):
    """The tokens of a prefix.

    Attributes:
        ids: int32[p].
        token_types: uint8[p].
        is_cut: Whether the prefix was truncated because it was longer than allowed.
    """

    ids: np.ndarray
    token_types: np.ndarray
    is_cut: bool


NO_PREFIX = EncodedPrefix(*NO_TOKENS, is_cut=False)


def make_loss_tables(config: MetadataConfig) -> tuple[BoolArray, BoolArray]:
    """Determines which token types are in the loss: text (0) always, others as configured.

    Returns:
        Two bool [256] tables, indexed by token type: for tokens of the prefix and suffix, and for
        tokens of the body.
    """
    trained_types = config.loss_on_metadata_types
    outside_targets = np.zeros(256, np.bool_)
    outside_targets[0] = True
    for token_type, key in enumerate(config.metadata_list, start=1):
        is_trained = trained_types is None or key in trained_types
        outside_targets[token_type] = config.loss_on_metadata and is_trained

    body_targets = outside_targets.copy()
    if config.treat_local_metadata_as_regular_text:
        body_targets[:] = True
    return outside_targets, body_targets


@dataclass
class EncodedDocument:
    """A document of p prefix tokens and n other tokens: lead, body, suffix, EOS.

    Attributes:
        prefix_ids: int32[p], BOS (if enabled by `bos_token`) and the prefix, truncated to the
            allowed length; p = 0 if there is neither.
        prefix_token_types: uint8[p], 1 + the index of the type in `metadata_list`; 0 for BOS.
        prefix_targets: bool[p], whether the token's type is trained on.
        ids: int32[n], the lead that joins the body to the prefix, the body, the suffix, EOS.
        token_types: uint8[n], 0 for text and EOS, otherwise as in `prefix_token_types`.
        targets: bool[n], as in `prefix_targets`; True for text and EOS.
        runs: int32[n], -1 for text; otherwise a number that is the same for tokens between which no
            chunk may end, because they share an inserted string.
        lead_length: Number of lead tokens (the space between prefix and body, if it is a separate
            token), which are not targets.
        bos_length: Number of BOS tokens at the beginning of the prefix (0 or 1).
        separator: int32, the ids of the separator at the end of a truncated prefix.
        suffix_length: Number of tokens of appended metadata, before EOS.
        locate: Computes `text_starts` and `text_ends`, which training does not need.
        prefix_is_cut: Whether the prefix was truncated because it was longer than allowed.
        find_lost: Computes `lost`, which training does not need.
    """

    prefix_ids: np.ndarray
    prefix_token_types: np.ndarray
    prefix_targets: np.ndarray
    ids: np.ndarray
    token_types: np.ndarray
    targets: np.ndarray
    runs: np.ndarray
    lead_length: int
    locate: Callable[[], tuple[np.ndarray, np.ndarray]]
    bos_length: int = 0
    separator: np.ndarray = field(default_factory=lambda: NO_IDS)
    suffix_length: int = 0
    prefix_is_cut: bool = False
    find_lost: Callable[[], np.ndarray | None] = lambda: None

    @cached_property
    def is_text(self) -> np.ndarray:
        """bool[n], whether each token is text or EOS; the lead is not text."""
        is_text = self.token_types == 0
        is_text[: self.lead_length] = False
        return is_text

    @cached_property
    def without_prefix(self) -> EncodedDocument:
        """The same document with only BOS, or nothing, before its body."""
        return replace(
            self,
            prefix_ids=self.prefix_ids[: self.bos_length],
            prefix_token_types=self.prefix_token_types[: self.bos_length],
            prefix_targets=self.prefix_targets[: self.bos_length],
        )

    @cached_property
    def _text_spans(self) -> tuple[np.ndarray, np.ndarray]:
        return self.locate()

    @property
    def text_starts(self) -> np.ndarray:
        """int32[n], the first character of the original text that each token covers."""
        return self._text_spans[0]

    @property
    def text_ends(self) -> np.ndarray:
        """int32[n], the end of the characters that each token covers; its start if it covers none.

        Metadata, EOS and the lead cover no characters.
        """
        return self._text_spans[1]

    @cached_property
    def lost(self) -> np.ndarray | None:
        """Whether the tokenizer loses each character of the original text; None if it loses none.

        bool [characters]; see `LostTextFinder`.
        """
        return self.find_lost()

    def are_preserved(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Returns whether no character is lost in each span of the original text: bool [spans].

        Args:
            starts: int [spans], in characters.
            ends: int [spans], exclusive.
        """
        if self.lost is None:
            return np.ones(len(starts), np.bool_)

        num_lost_before = np.append(0, np.cumsum(self.lost))
        is_preserved: np.ndarray = num_lost_before[starts] == num_lost_before[ends]
        return is_preserved


class DocumentEncoder:
    """Encodes rendered documents, a batch at a time.

    Args:
        tokenizer: A fast tokenizer with an EOS token.
        backend: The tokenizer backend; see `choose_backend`.
        sample: Documents on which the backend must agree with the tokenizer.

    Raises:
        ConfigurationError: If the tokenizer has no EOS token, or a chunk would have no room for
            text after its prefix.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        config: DataConfig,
        *,
        backend: str = "hf",
        sample: Sequence[Rendered] = (),
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise ConfigurationError(
                f"tokenizer_name: {tokenizer.name_or_path} has no eos_token; every document ends "
                "in one, so name it in its tokenizer_config.json"
            )

        metadata = config.metadata_config
        by_text = config.row_budget == BY_TEXT
        sample_texts = [document.prefix for document in sample]
        if by_text:
            sample_texts += [document.text for document in sample]
        else:
            sample_texts += [document.lead + document.body for document in sample]
        self._tokenizer = TextTokenizer(
            tokenizer, backend, sample_texts, takes_written_tokens=metadata.special_tokens_in_text
        )
        self._fast_tokenizer = tokenizer.backend_tokenizer

        self._eos_ids = np.array([tokenizer.eos_token_id], np.int32)
        self._bos_ids = NO_IDS
        if metadata.bos_token and tokenizer.bos_token_id is not None:
            self._bos_ids = np.array([tokenizer.bos_token_id], np.int32)

        self._outside_targets, self._body_targets = make_loss_tables(metadata)
        self._bodies: SeparateBodies | JointBodies = JointBodies(self._tokenizer)
        if by_text:
            self._body_targets = TEXT_ONLY
            self._bodies = SeparateBodies(self._tokenizer)

        (separator,) = self._tokenizer.encode([choose_separators(metadata).prefix_end])
        self._separator = separator.ids
        self._filler = make_filler(tokenizer, metadata.metadata_values)
        self._max_prefix_length = metadata.prefix_max_tokens or metadata.max_seq_len // 2
        self._check_prefix_fits(config)

    def _check_prefix_fits(self, config: DataConfig) -> None:
        """Checks that the longest prefix fits into a chunk, with room for text.

        Raises:
            ConfigurationError: If it does not, or if only its separator fits.
        """
        metadata = config.metadata_config
        max_seq_len = metadata.max_seq_len
        max_prefix_length = self._max_prefix_length
        separator_key = "metadata_prefix_sep"
        if metadata.metadata_boundary_token:
            separator_key = "metadata_boundary_token"
        holds_metadata = max_prefix_length > len(self._separator)
        room_for_text = max_seq_len - max_prefix_length - len(self._bos_ids)
        if not holds_metadata or room_for_text < _MIN_TEXT_TOKENS:
            raise ConfigurationError(
                f"data_config.metadata_config: a prefix of up to {max_prefix_length} tokens "
                "(prefix_max_tokens, or half of max_seq_len) must hold more than "
                f"{separator_key} ({len(self._separator)} tokens) and leave {_MIN_TEXT_TOKENS} "
                f"tokens of max_seq_len={max_seq_len} for the text"
            )

        room = compute_metadata_room(config)
        if 0 < room <= len(self._separator):
            raise ConfigurationError(
                f"data_config.row_metadata_budget={room}: no prefix would fit; expected more than "
                f"{separator_key} ({len(self._separator)} tokens)"
            )

    def encode(self, rendered: Sequence[Rendered]) -> list[EncodedDocument]:
        """Encodes documents: the bodies first, then all prefixes and suffixes in one call."""
        bodies = self._bodies.encode(rendered)

        prefix_indices = [index for index, document in enumerate(rendered) if document.prefix]
        suffix_indices = [index for index, document in enumerate(rendered) if document.suffix]
        texts = [rendered[index].prefix for index in prefix_indices]
        texts += [rendered[index].suffix for index in suffix_indices]
        configured_parts = [rendered[index].prefix_configured for index in prefix_indices]
        configured_parts += [rendered[index].suffix_configured for index in suffix_indices]
        tokens = self._tokenizer.encode(texts, lambda index: configured_parts[index])
        num_prefixes = len(prefix_indices)

        prefixes = [NO_PREFIX] * len(rendered)
        for index, prefix_tokens in zip(prefix_indices, tokens[:num_prefixes], strict=True):
            prefixes[index] = self._complete_prefix(rendered[index], prefix_tokens)
        suffixes = [NO_TOKENS] * len(rendered)
        for index, suffix_tokens in zip(suffix_indices, tokens[num_prefixes:], strict=True):
            suffixes[index] = self._complete_suffix(rendered[index], suffix_tokens)

        return [
            self._join_parts(document, body, prefix, suffix)
            for document, body, prefix, suffix in zip(
                rendered, bodies, prefixes, suffixes, strict=True
            )
        ]

    @cached_property
    def _lost_text_finder(self) -> LostTextFinder:
        return LostTextFinder(self._fast_tokenizer)

    def _find_lost(self, text: str, body: Body) -> np.ndarray | None:
        """Returns whether each character of a text is lost; None if none is."""
        finder = self._lost_text_finder
        if finder.is_lossless:
            return None
        return finder.find(text, body.ids, *body.locate())

    def _complete_prefix(self, rendered: Rendered, tokens: Tokens) -> EncodedPrefix:
        """Adds the token types of a prefix, truncates it, and applies the filler to it.

        The separator at the end is kept in both.
        """
        prefix = self._truncate_prefix(tokens.ids, _find_prefix_token_types(rendered, tokens))
        num_filled = len(prefix.ids) - len(self._separator)
        if self._filler is None or num_filled <= 0:
            return prefix

        filler_ids = self._filler(num_filled, rendered.text)
        return prefix._replace(ids=np.concatenate((filler_ids, self._separator)))

    def _truncate_prefix(self, ids: np.ndarray, token_types: np.ndarray) -> EncodedPrefix:
        """Truncates a prefix to the maximum length, which includes the separator at its end."""
        if len(ids) <= self._max_prefix_length:
            return EncodedPrefix(ids, token_types, is_cut=False)

        num_kept = self._max_prefix_length - len(self._separator)
        separator_types = np.repeat(token_types[num_kept - 1], len(self._separator))
        return EncodedPrefix(
            ids=np.concatenate((ids[:num_kept], self._separator)),
            token_types=np.append(token_types[:num_kept], separator_types),
            is_cut=True,
        )

    def _complete_suffix(self, rendered: Rendered, tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids and token types of a suffix, truncated to the length of a prefix."""
        # In a suffix, a separator belongs to the record after it.
        starts, _ = tokens.locate()
        records = rendered.suffix_spans[:, 1].searchsorted(starts, side="right")
        token_types = rendered.suffix_token_types[records]
        return tokens.ids[: self._max_prefix_length], token_types[: self._max_prefix_length]

    def _mark_metadata(self, body: Body, suffix_token_types: np.ndarray) -> TokenMarks:
        """Returns the marks of body, suffix and EOS if any of their tokens is metadata."""
        length = len(body.ids) + len(suffix_token_types) + 1
        plain = slice_plain_tokens(length)
        token_types = plain.token_types.copy()  # plain marks are shared
        runs = plain.runs.copy()
        body_part = slice(len(body.ids))
        suffix_part = slice(len(body.ids), -1)

        token_types[body_part] = body.token_types
        targets = self._body_targets[token_types]
        token_types[suffix_part] = suffix_token_types
        targets[suffix_part] = self._outside_targets[suffix_token_types]

        runs[body_part] = body.runs
        runs[suffix_part] = length  # a run of its own
        return TokenMarks(token_types, runs, targets)

    def _join_parts(
        self,
        rendered: Rendered,
        body: Body,
        prefix: EncodedPrefix,
        suffix: tuple[np.ndarray, np.ndarray],
    ) -> EncodedDocument:
        """Joins the encoded parts of a document, with EOS and, if enabled, BOS."""
        prefix_ids, prefix_token_types, _ = prefix
        prefix_targets = self._outside_targets[prefix_token_types]
        if len(self._bos_ids):  # not metadata, and never a target, as it has no context
            prefix_ids = np.concatenate((self._bos_ids, prefix_ids))
            prefix_token_types = np.insert(prefix_token_types, 0, 0)
            prefix_targets = np.insert(prefix_targets, 0, False)

        suffix_ids, suffix_token_types = suffix
        ids = np.concatenate((body.ids, suffix_ids, self._eos_ids))
        token_types, runs, targets = slice_plain_tokens(len(ids))
        if len(rendered.spans) or len(suffix_ids):
            token_types, runs, targets = self._mark_metadata(body, suffix_token_types)
        if body.lead_length:
            targets = targets.copy()
            targets[: body.lead_length] = False

        return EncodedDocument(
            prefix_ids=prefix_ids,
            prefix_token_types=prefix_token_types,
            prefix_targets=prefix_targets,
            ids=ids,
            token_types=token_types,
            targets=targets,
            runs=runs,
            lead_length=body.lead_length,
            locate=partial(_locate_tokens, body, len(rendered.text), num_after=len(suffix_ids) + 1),
            bos_length=len(self._bos_ids),
            separator=self._separator,
            suffix_length=len(suffix_ids),
            prefix_is_cut=prefix.is_cut,
            find_lost=partial(self._find_lost, rendered.text, body),
        )


def _find_prefix_token_types(rendered: Rendered, tokens: Tokens) -> np.ndarray:
    """Returns the token type of each token of a prefix (uint8), by the token's last character.

    A separator (" | ") belongs to the record before it, so a token that begins in a separator and
    ends in the next record gets the type of the next record.
    """
    _, ends = tokens.locate()
    last_characters = np.maximum(ends - 1, 0)
    records = rendered.prefix_spans[:, 1].searchsorted(last_characters, side="right")
    token_types: np.ndarray = rendered.prefix_token_types[records]
    return token_types


def _locate_tokens(body: Body, text_length: int, num_after: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts and ends in the original text of the tokens of body, suffix and EOS.

    Args:
        text_length: Number of characters of the original text.
        num_after: Number of tokens after the body, which cover no characters.
    """
    text_end = np.full(num_after, text_length, np.int32)
    starts, ends = body.locate()
    return np.concatenate((starts, text_end)), np.concatenate((ends, text_end))


def make_filler(tokenizer: PreTrainedTokenizerBase, values: str) -> Filler | None:
    """Returns the filler for a value of `metadata_values`; None if metadata is rendered.

    A filled prefix keeps its length and its separator, so that the text after it has the same
    tokens, chunks and position in its sequence as after the document's own metadata. Constant
    tokens are a fixed text, repeated as often as needed. Random tokens depend only on the text, so
    they are the same in every epoch, like the text's own metadata.
    """
    if values == CONSTANT:
        text = " ".join(FREQUENT_WORDS)
        constant_ids = np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)
        return lambda count, _: np.resize(constant_ids, count)

    if values != RANDOM:
        return None

    special_ids = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    plain_ids = np.array(sorted(set(tokenizer.get_vocab().values()) - special_ids), np.int32)

    def draw_tokens(count: int, text: str) -> np.ndarray:
        seed = xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
        # NumPy guarantees that the raw output of PCG64 is stable.
        return plain_ids[np.random.PCG64(seed).random_raw(count) % len(plain_ids)]

    return draw_tokens
