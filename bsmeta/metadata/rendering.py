"""Rendering: turn a document and its sampled types into the strings that a model reads.

Third stage of the flow. Global records form the prefix (or, if appended, the suffix); local records
are inserted into the text. The model reads `prefix + lead + body + suffix`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import refuse
from bsmeta.metadata.checks import metadata_problems
from bsmeta.metadata.processors import make_types
from bsmeta.metadata.records import Document, Record, local_records
from bsmeta.metadata.spans import (
    LocalTags,
    arrange,
    insert,
    record_relatives,
    record_spans,
    wrap_runs,
)

Spans = NDArray[np.int32]
TokenTypes = NDArray[np.uint8]


class RecordText(NamedTuple):
    """A string of the prefix or suffix.

    Attributes:
        token_type: Token type: 1 + the type's index in `metadata_list`.
        start: Number of leading characters that come from the configuration, not from the record.
        end: Number of trailing characters that do.
    """

    token_type: int
    text: str
    start: int
    end: int


NO_SPANS: Spans = np.zeros((0, 2), np.int32)
NO_TOKEN_TYPES: TokenTypes = np.zeros(0, np.uint8)


@dataclass(slots=True, eq=False)  # frozen, it would take four times as long to create
class Rendered:
    """A document as a model reads it: `prefix + lead + body + suffix`.

    Spans are int32 [m, 2], character offsets in their string, sorted and disjoint. Token types
    (`token_types`) are uint8 [m]: 1 + the index of the type in `metadata_list`.

    Attributes:
        text: The document's text, without any metadata.
        prefix: Global records and announcements; "" if there are none. Tokenized separately.
        prefix_spans: Its records, each with the separator after it; together they cover the prefix.
        prefix_token_types: Their token types.
        lead: Joins prefix and body; "" without a prefix. Tokenized with the body, but not part of
            the text.
        body: The text with local records inserted.
        spans: The inserted strings in `body`, one row each.
        span_token_types: Their token types.
        suffix: Appended global records with their separators; "" if there are none. Tokenized
            separately; comes before the end-of-text token.
        suffix_spans: Its records, each with the separator before it; together they cover the
            suffix.
        suffix_token_types: Their token types.
        types: The keys that were rendered, in the order of `metadata_list`.
        prefix_own: Rows as in spans: the parts of `prefix` that come from the configuration, not
            from the document. Only there is a literal special token encoded as one.
        own: The parts of `body` that come from the configuration.
        suffix_own: The parts of `suffix` that come from the configuration.
    """

    text: str
    prefix: str = ""
    prefix_spans: Spans = field(default_factory=lambda: NO_SPANS)
    prefix_token_types: TokenTypes = field(default_factory=lambda: NO_TOKEN_TYPES)
    lead: str = ""
    body: str = ""
    spans: Spans = field(default_factory=lambda: NO_SPANS)
    span_token_types: TokenTypes = field(default_factory=lambda: NO_TOKEN_TYPES)
    suffix: str = ""
    suffix_spans: Spans = field(default_factory=lambda: NO_SPANS)
    suffix_token_types: TokenTypes = field(default_factory=lambda: NO_TOKEN_TYPES)
    types: tuple[str, ...] = ()
    prefix_own: Spans = field(default_factory=lambda: NO_SPANS)
    own: Spans = field(default_factory=lambda: NO_SPANS)
    suffix_own: Spans = field(default_factory=lambda: NO_SPANS)

    @property
    def whole(self) -> str:
        """All that the model reads."""
        return self.prefix + self.lead + self.body + self.suffix

    def without_metadata(self) -> Rendered:
        """The same text without any metadata.

        The lead is kept, so that the first token is the same as with metadata.
        """
        return Rendered(self.text, lead=self.lead, body=self.text)


class Renderer:
    """Renders documents.

    Raises:
        ConfigurationError: Lists everything that is wrong with the configuration.
    """

    def __init__(self, config: MetadataConfig) -> None:
        refuse(metadata_problems(config))
        self._config = config
        self._types = make_types(config)
        self._token_types = {
            key: token_type for token_type, key in enumerate(config.metadata_list, start=1)
        }
        self._prepends = config.metadata_position != "append"
        self._appends = config.metadata_position != "prepend"
        self._announcements = config.local_metadata_special_tokens or {}
        self._before = self._by_token_type(config.local_metadata_special_token_start)
        self._after = self._by_token_type(config.local_metadata_special_token_end)

    def _by_token_type(self, strings: Mapping[str, str] | None) -> dict[int, str]:
        return {
            self._token_types[key]: string
            for key, string in (strings or {}).items()
            if string and key in self._token_types
        }

    def render(self, document: Document, types: Sequence[str]) -> Rendered:
        """Render a document with the given types.

        Args:
            types: Keys to use; `()` renders the text alone. Keys that the document lacks, or that
                are not in `metadata_list`, are ignored.
        """
        if not types:
            return Rendered(document.text, body=document.text)
        before: list[RecordText] = []
        after: list[RecordText] = []
        tags: list[LocalTags] = []
        for key, token_type in self._token_types.items():
            if key not in types:
                continue
            records = document.records(key)
            local = local_records(records)
            for text in self._global_texts(key, records if len(local) < len(records) else ()):
                record_text = RecordText(token_type, text, *self._types[key].own_ends(text))
                if self._prepends or self._types[key].prefix_only:
                    before.append(record_text)
                if self._appends and not self._types[key].prefix_only:
                    after.append(record_text)
            if local:
                tags.append(self._local_tags(key, local, document.text))
                announcement = self._announcements.get(key, key)
                if announcement and self._config.add_local_metadata_special_tokens_in_prefix:
                    before.append(RecordText(token_type, announcement, len(announcement), 0))
        return self._assemble(document.text, before, after, tags)

    def special_tokens(self) -> list[str]:
        """Strings to add to a tokenizer as special tokens, without duplicates.

        These are the wrappers of local types and the delimiters of the prefix, if enabled by
        `local_metadata_special_token_state` and `metadata_prefix_special_token_state`, and the
        special tokens of the types (meta tokens).
        """
        tokens: list[str] = []
        if self._config.metadata_prefix_special_token_state:
            tokens += [self._config.metadata_prefix_start_seq, self._config.metadata_prefix_sep]
        if self._config.local_metadata_special_token_state:
            starts = self._config.local_metadata_special_token_start or {}
            ends = self._config.local_metadata_special_token_end or {}
            for key in {**starts, **ends}:
                tokens += [starts.get(key, ""), ends.get(key, "")]
        for metadata_type in self._types.values():
            tokens += metadata_type.special_tokens
        return [token for token in dict.fromkeys(tokens) if token]

    def _global_texts(self, key: str, records: Sequence[Record]) -> list[str]:
        metadata_type = self._types[key]
        if metadata_type.always_present:
            records = [Record(value="")]
        texts = [metadata_type.global_text(record) for record in records if not record.is_local()]
        return [text for text in texts if text]

    def _local_tags(self, key: str, records: Sequence[Record], text: str) -> LocalTags:
        """The insertions of a type's local records, without the records that the type drops."""
        spans = record_spans(key, records, len(text))
        relative = record_relatives(key, records)
        lengths = (spans[:, 1] - spans[:, 0]).tolist()
        inserted = self._types[key].local_texts(records, lengths)
        strings = [pair for pair in inserted if pair is not None]
        if len(strings) < len(inserted):
            kept = np.array([pair is not None for pair in inserted])
            spans = spans[kept]
            relative = None if relative is None else relative[kept]
        openings = [opening for opening, _ in strings]
        closings = [closing for _, closing in strings]
        return LocalTags(self._token_types[key], spans, relative, openings, closings)

    def _assemble(
        self,
        text: str,
        before: list[RecordText],
        after: list[RecordText],
        tags: list[LocalTags],
    ) -> Rendered:
        config = self._config
        prefix, prefix_spans, prefix_token_types, prefix_own = self._prefix(before)
        suffix, suffix_spans, suffix_token_types, suffix_own = self._suffix(after)
        body, spans, span_token_types, own = text, NO_SPANS, NO_TOKEN_TYPES, NO_SPANS
        if tags:
            insertions = wrap_runs(arrange(tags), self._before, self._after)
            body, spans = insert(text, insertions)
            span_token_types = insertions.token_types
            if insertions.is_wrapper is not None:
                own = spans[insertions.is_wrapper]
        used = set(span_token_types.tobytes()).union(
            record.token_type for record in (*before, *after)
        )
        return Rendered(
            text=text,
            prefix=prefix,
            prefix_spans=prefix_spans,
            prefix_token_types=prefix_token_types,
            lead=config.metadata_text_sep if prefix else "",
            body=body,
            spans=spans,
            span_token_types=span_token_types,
            suffix=suffix,
            suffix_spans=suffix_spans,
            suffix_token_types=suffix_token_types,
            types=tuple(key for key, token_type in self._token_types.items() if token_type in used),
            prefix_own=prefix_own,
            own=own,
            suffix_own=suffix_own,
        )

    def _prefix(self, records: list[RecordText]) -> tuple[str, Spans, TokenTypes, Spans]:
        if not records:
            return "", NO_SPANS, NO_TOKEN_TYPES, NO_SPANS
        config = self._config
        before = [config.metadata_prefix_start_seq] + [""] * (len(records) - 1)
        after = [config.metadata_sep] * (len(records) - 1) + [config.metadata_prefix_sep]
        return _joined(before, records, after)

    def _suffix(self, records: list[RecordText]) -> tuple[str, Spans, TokenTypes, Spans]:
        if not records:
            return "", NO_SPANS, NO_TOKEN_TYPES, NO_SPANS
        config = self._config
        before = [config.metadata_suffix_start_seq] + [config.metadata_sep] * (len(records) - 1)
        return _joined(before, records, [""] * len(records))


def _joined(
    before: list[str], records: list[RecordText], after: list[str]
) -> tuple[str, Spans, TokenTypes, Spans]:
    """Join the records into one string, each with its `before` and `after` strings.

    Returns:
        The string; the span of each record, including the strings around it; the token type of
        each record; and the parts that come from the configuration.
    """
    strings: list[str] = []
    spans: list[int] = []
    own = [0]  # alternating starts and ends of parts from the configuration
    begin = 0
    for sep, record, after_it in zip(before, records, after, strict=True):
        string = sep + record.text + after_it
        end = begin + len(string)
        strings.append(string)
        spans += begin, end
        own += begin + len(sep) + record.start, end - len(after_it) - record.end
        begin = end
    own.append(begin)
    token_types = np.array([record.token_type for record in records], np.uint8)
    return (
        "".join(strings),
        np.array(spans, np.int32).reshape(-1, 2),
        token_types,
        np.array(own, np.int32).reshape(-1, 2),
    )
