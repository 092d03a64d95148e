"""Encodes rendered documents into token ids, with the type and the text position of each token.

Middle stage of a window (read, render, encode, cut, pack). Prefix and suffix are encoded separately
from the body, so that the prefix can be repeated on each chunk and the body has the same tokens
after any prefix. Evaluation and `explain` use the same encoder, which is why it also maps tokens to
characters of the original text.

The renderer returns the spans of metadata in characters, int32 [m, 2] (start, end), sorted and
disjoint, one row per inserted string. Token types are uint8: 0 is text, 1 + i the i-th type of
`metadata_list`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import xxhash
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig, metadata_room
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.lost_text import LostTextFinder
from bsmeta.data.text.tokens import (
    NO_IDS,
    NOTHING,
    Body,
    JointBodies,
    SeparateBodies,
    TextTokenizer,
    Tokens,
    plain_tokens,
)
from bsmeta.metadata.metadata_type import CONSTANT, RANDOM
from bsmeta.metadata.rendering import Rendered

Bools = NDArray[np.bool_]
Filler = Callable[[int, str], np.ndarray]
"""Returns n content-free token IDs (int32 [n]) in place of those of a text's prefix."""

ONLY_TEXT: Bools = np.arange(256) == 0
"""The targets of `row_budget=text`, by token type."""

WORDS = [
    "about", "after", "all", "also", "and", "any", "are", "because", "been", "before", "but",
    "can", "could", "each", "even", "first", "for", "from", "good", "has", "have", "how", "into",
    "its", "just", "like", "made", "make", "many", "may", "more", "most", "much", "must", "never",
    "new", "not", "now", "off", "one", "only", "other", "our", "out", "over", "own", "same",
    "see", "she", "should", "some", "such", "take", "than", "that", "the", "their", "them",
    "then", "there", "these", "they", "this", "those", "time", "two", "under", "until", "upon",
    "very", "was", "way", "well", "were", "what", "when", "where", "which", "while", "who",
    "will", "with", "would", "year", "you",
]  # fmt: skip
"""Frequent English words, which are in the vocabulary of any English tokenizer."""


def loss_tables(config: MetadataConfig) -> tuple[Bools, Bools]:
    """Which token types contribute to the loss: text (0) always, others as configured.

    Returns:
        Two bool [256] tables indexed by token type: for tokens of the prefix or suffix, and for
        tokens of the body.
    """
    wanted = config.loss_on_metadata_types
    outside = np.zeros(256, np.bool_)
    outside[0] = True
    for kind, key in enumerate(config.metadata_list, start=1):
        outside[kind] = config.loss_on_metadata and (wanted is None or key in wanted)
    body = outside.copy()
    if config.treat_local_metadata_as_regular_text:
        body[:] = True
    return outside, body


@dataclass
class EncodedDocument:
    """A document of p prefix tokens and n other tokens: body, suffix, EOS.

    Attributes:
        prefix_ids: int32[p], BOS (if enabled by `bos_token`) and the prefix, truncated to the
            allowed length; p = 0 without both.
        prefix_token_types: uint8[p], 1 + the index of the type in `metadata_list`; 0 for BOS.
        prefix_targets: bool[p], whether the token's type is trained on.
        ids: int32[n], the body (with the lead that joins it to the prefix), the suffix, EOS.
        token_types: uint8[n], 0 for text and EOS, otherwise as in `prefix_token_types`.
        targets: bool[n], as in `prefix_targets`; text and EOS always are.
        run: int32[n], equal for tokens between which no chunk may end (they share an inserted
            string); -1 for text.
        lead: How many of the first of the n tokens only join the prefix to the body (the space
            between them, if it is a separate token); they are not targets.
        bos: How many of the first prefix tokens are BOS (0 or 1).
        separator: int32, the ids that close a prefix which is cut.
        suffix: How many tokens before EOS are of appended metadata.
        locate: Computes `text_starts` and `text_ends`, which training does not need.
        prefix_cut: Whether the prefix was truncated because it was longer than allowed.
        find_lost: Computes `lost`, which training does not need.
    """

    prefix_ids: np.ndarray
    prefix_token_types: np.ndarray
    prefix_targets: np.ndarray
    ids: np.ndarray
    token_types: np.ndarray
    targets: np.ndarray
    run: np.ndarray
    lead: int
    locate: Callable[[], tuple[np.ndarray, np.ndarray]]
    bos: int = 0
    separator: np.ndarray = field(default_factory=lambda: NO_IDS)
    suffix: int = 0
    prefix_cut: bool = False
    find_lost: Callable[[], np.ndarray | None] = lambda: None

    @cached_property
    def is_text(self) -> np.ndarray:
        """bool[n], which of the n tokens are of the text, or EOS."""
        is_text = self.token_types == 0
        is_text[: self.lead] = False
        return is_text

    @cached_property
    def without_prefix(self) -> EncodedDocument:
        """The same document with BOS alone before it."""
        bos = slice(self.bos)
        return replace(
            self,
            prefix_ids=self.prefix_ids[bos],
            prefix_token_types=self.prefix_token_types[bos],
            prefix_targets=self.prefix_targets[bos],
        )

    @cached_property
    def _text_spans(self) -> tuple[np.ndarray, np.ndarray]:
        return self.locate()

    @property
    def text_starts(self) -> np.ndarray:
        """int32[n], first character of the original text that each token covers."""
        return self._text_spans[0]

    @property
    def text_ends(self) -> np.ndarray:
        """int32[n], end of those characters; equal to the start if there are none.

        There are none for metadata, EOS and the lead.
        """
        return self._text_spans[1]

    @cached_property
    def lost(self) -> np.ndarray | None:
        """Characters of the original text that its tokens do not give back (`LostTextFinder`).

        bool [characters]; None if there are none.
        """
        return self.find_lost()

    def gives_back(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Whether nothing of the original text in each of some spans is lost: bool [spans]."""
        if self.lost is None:
            return np.ones(len(starts), np.bool_)
        before = np.append(0, np.cumsum(self.lost))
        gives_back: np.ndarray = before[starts] == before[ends]
        return gives_back


class DocumentEncoder:
    """Encodes rendered documents, a batch at a time.

    Args:
        tokenizer: A fast tokenizer with an EOS token.
        config: `metadata_config` is used.
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
        by_text = config.row_budget == BY_TEXT
        texts = [document.prefix for document in sample]
        texts += [
            document.text if by_text else document.lead + document.body for document in sample
        ]
        metadata = config.metadata_config
        self._tokenizer = TextTokenizer(
            tokenizer, backend, texts, takes_written_tokens=metadata.special_tokens_in_text
        )
        self._fast_tokenizer = tokenizer.backend_tokenizer
        self._eos = np.array([tokenizer.eos_token_id], np.int32)
        self._bos = NO_IDS
        if metadata.bos_token and tokenizer.bos_token_id is not None:
            self._bos = np.array([tokenizer.bos_token_id], np.int32)
        self._outside_targets, self._body_targets = loss_tables(metadata)
        if by_text:
            self._body_targets = ONLY_TEXT
        self._bodies = (SeparateBodies if by_text else JointBodies)(self._tokenizer)
        (separator,) = self._tokenizer.encode([metadata.metadata_prefix_sep])
        self._separator = separator.ids
        self._filler = make_filler(tokenizer, metadata.metadata_values)
        self._most = metadata.prefix_max_tokens or metadata.max_seq_len // 2
        if not len(self._separator) < self._most <= metadata.max_seq_len - 2 - len(self._bos):
            raise ConfigurationError(
                f"data_config.metadata_config: a prefix of up to {self._most} tokens "
                "(prefix_max_tokens, or half of max_seq_len) must hold more than "
                f"metadata_prefix_sep ({len(self._separator)} tokens) and leave two tokens of "
                f"max_seq_len={metadata.max_seq_len} for the text"
            )
        room = metadata_room(config)
        if 0 < room <= len(self._separator):
            raise ConfigurationError(
                f"data_config.row_metadata_budget={room}: no prefix would fit; expected more than "
                f"metadata_prefix_sep ({len(self._separator)} tokens)"
            )

    def encode(self, rendered: Sequence[Rendered]) -> list[EncodedDocument]:
        """The documents' tokens, in a call of the tokenizer for the bodies and one for the rest."""
        bodies = self._bodies.encode(rendered)
        ends = [(document.prefix, document.prefix_own) for document in rendered]
        ends += [(document.suffix, document.suffix_own) for document in rendered]
        ends = [(text, own) for text, own in ends if text]
        texts = [text for text, _ in ends]
        tokens = iter(self._tokenizer.encode(texts, lambda number: ends[number][1]))
        prefixes = [
            self._prefix(document, next(tokens)) if document.prefix else None
            for document in rendered
        ]
        suffixes = [
            self._suffix(document, next(tokens)) if document.suffix else NOTHING
            for document in rendered
        ]
        return [
            self._document(*parts)
            for parts in zip(rendered, bodies, prefixes, suffixes, strict=True)
        ]

    @cached_property
    def _lost_text(self) -> LostTextFinder:
        return LostTextFinder(self._fast_tokenizer)

    def _find_lost(self, text: str, body: Body) -> np.ndarray | None:
        if self._lost_text.is_lossless:
            return None
        return self._lost_text.find(text, body.ids, *body.locate())

    def _prefix(self, rendered: Rendered, tokens: Tokens) -> tuple[np.ndarray, np.ndarray, bool]:
        """Ids and token types of the prefix, and whether it is truncated.

        A truncated prefix keeps its closing separator.
        """
        # A separator belongs to the record before it: a token that begins in a separator (" | ")
        # and ends in the next record gets the type of that next record.
        _, ends = tokens.characters()
        covering = rendered.prefix_spans[:, 1].searchsorted(np.maximum(ends - 1, 0), side="right")
        token_types = rendered.prefix_token_types[covering]
        ids, is_cut = tokens.ids, len(token_types) > self._most
        kept = min(len(ids), self._most) - len(self._separator)
        if self._filler is not None and kept > 0:
            ids = np.concatenate((self._filler(kept, rendered.text), self._separator))
        if not is_cut:
            return ids, token_types, False
        ids = np.concatenate((ids[:kept], self._separator))
        token_types = np.append(
            token_types[:kept], np.repeat(token_types[kept - 1], len(self._separator))
        )
        return ids, token_types, True

    def _suffix(self, rendered: Rendered, tokens: Tokens) -> tuple[np.ndarray, np.ndarray]:
        # Here a separator belongs to the record after it.
        starts, _ = tokens.characters()
        covering = rendered.suffix_spans[:, 1].searchsorted(starts, side="right")
        token_types = rendered.suffix_token_types[covering]
        return tokens.ids[: self._most], token_types[: self._most]

    def _document(
        self,
        rendered: Rendered,
        body: Body,
        prefix: tuple[np.ndarray, np.ndarray, bool] | None,
        suffix: tuple[np.ndarray, np.ndarray],
    ) -> EncodedDocument:
        prefix_ids, prefix_token_types, prefix_cut = prefix or (*NOTHING, False)
        prefix_targets = self._outside_targets[prefix_token_types]
        if len(self._bos):  # nothing predicts it, and it is not metadata
            prefix_ids = np.concatenate((self._bos, prefix_ids))
            prefix_token_types = np.insert(prefix_token_types, 0, 0)
            prefix_targets = np.insert(prefix_targets, 0, False)
        suffix_ids, suffix_token_types = suffix
        ids = np.concatenate((body.ids, suffix_ids, self._eos))
        token_types, run, targets = plain_tokens(len(ids))
        if len(rendered.spans) or len(suffix_ids):
            appended = slice(len(body.ids), -1)
            token_types, run = token_types.copy(), run.copy()
            token_types[: len(body.ids)] = body.token_types
            run[: len(body.ids)] = body.run
            targets = self._body_targets[token_types]
            token_types[appended] = suffix_token_types
            targets[appended] = self._outside_targets[suffix_token_types]
            run[appended] = len(ids)  # a separate run
        if body.lead:
            targets = targets.copy()
            targets[: body.lead] = False
        return EncodedDocument(
            prefix_ids=prefix_ids,
            prefix_token_types=prefix_token_types,
            prefix_targets=prefix_targets,
            ids=ids,
            token_types=token_types,
            targets=targets,
            run=run,
            lead=body.lead,
            locate=partial(_located, body, len(rendered.text), len(suffix_ids) + 1),
            bos=len(self._bos),
            separator=self._separator,
            suffix=len(suffix_ids),
            prefix_cut=prefix_cut,
            find_lost=partial(self._find_lost, rendered.text, body),
        )


def _located(body: Body, end: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Characters of the original text that tokens cover; none for the last `after` tokens."""
    nowhere = np.full(after, end, np.int32)
    starts, ends = body.locate()
    return np.concatenate((starts, nowhere)), np.concatenate((ends, nowhere))


def make_filler(tokenizer: PreTrainedTokenizerBase, values: str) -> Filler | None:
    """The filler of `metadata_values`; None for values that are rendered.

    A prefix keeps its length and its closing separator, so that the text after it has the same
    tokens, chunks and place in its sequence as after the document's own metadata. Constant tokens
    are the first of one text, repeated where it ends. Random ones are drawn for a text: in every
    epoch the same, as its own metadata would be.
    """
    if values == CONSTANT:
        words = np.array(tokenizer.encode(" ".join(WORDS), add_special_tokens=False), np.int32)
        return lambda count, _: np.resize(words, count)
    if values != RANDOM:
        return None
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    plain = np.array(sorted(set(tokenizer.get_vocab().values()) - special), np.int32)

    def drawn(count: int, text: str) -> np.ndarray:
        seed = xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
        # Raw words of PCG64, whose stream NumPy guarantees to be stable.
        return plain[np.random.PCG64(seed).random_raw(count) % len(plain)]

    return drawn
