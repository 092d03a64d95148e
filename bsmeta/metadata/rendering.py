"""Renders a document with some of its metadata types: the text that a model reads.

Third stage of the flow (line -> document -> sampled types -> rendered text). Global records form
the prefix (or, if appended, the suffix); local records are inserted into the text. The model reads
`prefix + lead + body + suffix`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bsmeta.config.metadata import MetadataConfig, choose_separators
from bsmeta.core.errors import raise_problems
from bsmeta.metadata.checks import find_metadata_problems
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import make_types
from bsmeta.metadata.records import Record, select_local_records
from bsmeta.metadata.spans import (
    LocalTags,
    arrange_insertions,
    insert_strings,
    read_relative_positions,
    read_spans,
    wrap_runs,
)

Spans = NDArray[np.int32]
TokenTypes = NDArray[np.uint8]

NO_SPANS: Spans = np.zeros((0, 2), np.int32)
NO_TOKEN_TYPES: TokenTypes = np.zeros(0, np.uint8)


@dataclass(slots=True, eq=False)  # not frozen: that would take four times as long to create
class Rendered:
    """A document as a model reads it: `prefix + lead + body + suffix`.

    Spans are int32 [m, 2], character offsets in their string, sorted and disjoint. Token types
    (`token_types`) are uint8 [m]: 1 + the index of the type in `metadata_list`.

    The configuration determines some parts of a string (the spans in `prefix_configured`,
    `configured` and `suffix_configured`), the document all others. A special token that is spelled
    out is encoded as such only in configured parts.

    Attributes:
        text: The document's text, without any metadata.
        prefix: Global records and announcements; "" if there are none. Tokenized separately.
        prefix_spans: The records in `prefix`, each with the separator after it; together they cover
            the prefix.
        prefix_token_types: The token type of each record in `prefix`.
        lead: Joins prefix and body; "" without a prefix. Tokenized with the body, but not part of
            the text.
        body: The text with local records inserted.
        spans: The inserted strings in `body`, one row each.
        span_token_types: The token type of each inserted string.
        suffix: Appended global records with their separators; "" if there are none. Tokenized
            separately; comes before the end-of-text token.
        suffix_spans: The records in `suffix`, each with the separator before it; together they
            cover the suffix.
        suffix_token_types: The token type of each record in `suffix`.
        types: The keys that were rendered, in the order of `metadata_list`.
        prefix_configured: The configured parts of `prefix`.
        configured: The configured parts of `body`.
        suffix_configured: The configured parts of `suffix`.
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
    prefix_configured: Spans = field(default_factory=lambda: NO_SPANS)
    configured: Spans = field(default_factory=lambda: NO_SPANS)
    suffix_configured: Spans = field(default_factory=lambda: NO_SPANS)

    @property
    def full_text(self) -> str:
        """The text that the model reads, with its metadata."""
        return self.prefix + self.lead + self.body + self.suffix

    def without_metadata(self) -> Rendered:
        """Returns the document rendered without any metadata.

        The lead is kept, so that the first token is the same as with metadata.
        """
        return Rendered(self.text, lead=self.lead, body=self.text)


class RecordText(NamedTuple):
    """A rendered record, or an announcement, of the prefix or suffix.

    Attributes:
        token_type: 1 + the type's index in `metadata_list`.
        num_leading: Number of leading characters that come from the configuration.
        num_trailing: Number of trailing characters that come from the configuration.
    """

    token_type: int
    text: str
    num_leading: int
    num_trailing: int


class GlobalTexts(NamedTuple):
    """The rendered records of a document's prefix and suffix, in their order."""

    prefix: list[RecordText]
    suffix: list[RecordText]


class JoinedTexts(NamedTuple):
    """The rendered records of a prefix or suffix, joined into one string.

    Attributes:
        text: The whole prefix or suffix.
        spans: The span of each record, including the separators around it.
        token_types: The token type of each record.
        configured: The spans that come from the configuration.
    """

    text: str
    spans: Spans
    token_types: TokenTypes
    configured: Spans


class Renderer:
    """Renders documents.

    Raises:
        ConfigurationError: Listing all invalid settings of the metadata.
    """

    def __init__(self, config: MetadataConfig) -> None:
        raise_problems(find_metadata_problems(config))
        self._config = config
        self._types = make_types(config)
        self._token_types = {
            key: token_type for token_type, key in enumerate(config.metadata_list, start=1)
        }

        self._separators = choose_separators(config)
        self._prepends = config.metadata_position != "append"
        self._appends = config.metadata_position != "prepend"
        self._announcements = config.local_metadata_special_tokens or {}
        self._wrappers_before = self._map_strings_by_type(config.local_metadata_special_token_start)
        self._wrappers_after = self._map_strings_by_type(config.local_metadata_special_token_end)

    def _map_strings_by_type(self, strings: Mapping[str, str] | None) -> dict[int, str]:
        """Returns the strings of the types in `metadata_list` by token type, except empty ones."""
        return {
            self._token_types[key]: string
            for key, string in (strings or {}).items()
            if string and key in self._token_types
        }

    def render(self, document: Document, types: Sequence[str]) -> Rendered:
        """Renders a document with the given types.

        Args:
            types: Keys to use; `()` renders the text alone. Keys that the document lacks, or that
                are not in `metadata_list`, are ignored.

        Raises:
            BadDocument: If a record that is rendered is invalid.
        """
        if not types:
            return Rendered(document.text, body=document.text)

        global_texts = GlobalTexts(prefix=[], suffix=[])
        tags: list[LocalTags] = []
        for key in self._types:
            if key not in types:
                continue

            records = document.records(key)
            local_records = select_local_records(records)
            has_global_records = len(local_records) < len(records)
            self._add_global_records(key, records if has_global_records else (), global_texts)
            if local_records:
                tags.append(self._render_local_tags(key, local_records, document.text))
                self._add_announcement(key, global_texts)
        return self._assemble(document.text, global_texts, tags)

    def list_special_tokens(self) -> list[str]:
        """Lists the strings to add to a tokenizer as special tokens, without duplicates.

        These are the wrappers of local types and the delimiters of the prefix, if enabled by
        `local_metadata_special_token_state` and `metadata_prefix_special_token_state`, the
        boundary token, and the special tokens of the types (meta tokens).
        """
        tokens: list[str] = []
        if self._config.metadata_prefix_special_token_state:
            tokens += [self._config.metadata_prefix_start_seq, self._separators.prefix_end]
        tokens.append(self._config.metadata_boundary_token)
        if self._config.local_metadata_special_token_state:
            starts = self._config.local_metadata_special_token_start or {}
            ends = self._config.local_metadata_special_token_end or {}
            for key in {**starts, **ends}:
                tokens += [starts.get(key, ""), ends.get(key, "")]
        for metadata_type in self._types.values():
            tokens += metadata_type.special_tokens
        return [token for token in dict.fromkeys(tokens) if token]

    def _add_global_records(self, key: str, records: Sequence[Record], texts: GlobalTexts) -> None:
        """Renders the global records of a type, and adds them to the prefix, the suffix or both."""
        metadata_type = self._types[key]
        if metadata_type.always_present:
            records = [Record(value="")]

        for record in records:
            text = None if record.is_local() else metadata_type.render_global(record)
            if not text:
                continue

            num_leading, num_trailing = metadata_type.count_literal_ends(text)
            record_text = RecordText(self._token_types[key], text, num_leading, num_trailing)
            if self._prepends or metadata_type.prefix_only:
                texts.prefix.append(record_text)
            if self._appends and not metadata_type.prefix_only:
                texts.suffix.append(record_text)

    def _add_announcement(self, key: str, texts: GlobalTexts) -> None:
        """Adds the announcement of a local type to the prefix, if the configuration has one."""
        announcement = self._announcements.get(key, key)
        if announcement and self._config.add_local_metadata_special_tokens_in_prefix:
            num_leading = len(announcement)
            texts.prefix.append(RecordText(self._token_types[key], announcement, num_leading, 0))

    def _render_local_tags(self, key: str, records: Sequence[Record], text: str) -> LocalTags:
        """Renders the strings of a type's local records, without the records that it drops."""
        spans = read_spans(key, records, len(text))
        relative = read_relative_positions(key, records)
        lengths = (spans[:, 1] - spans[:, 0]).tolist()
        pairs = self._types[key].render_locals(records, lengths)
        kept_pairs = [pair for pair in pairs if pair is not None]
        if len(kept_pairs) < len(pairs):
            is_kept = np.array([pair is not None for pair in pairs])
            spans = spans[is_kept]
            relative = None if relative is None else relative[is_kept]

        openings = [opening for opening, _ in kept_pairs]
        closings = [closing for _, closing in kept_pairs]
        return LocalTags(self._token_types[key], spans, relative, openings, closings)

    def _assemble(self, text: str, global_texts: GlobalTexts, tags: list[LocalTags]) -> Rendered:
        """Joins the records of prefix and suffix, and inserts the tags into the text."""
        rendered = Rendered(text, body=text)
        if global_texts.prefix:
            self._add_prefix(rendered, global_texts.prefix)
        if global_texts.suffix:
            self._add_suffix(rendered, global_texts.suffix)
        if tags:
            self._insert_tags(rendered, tags)

        # A type is rendered if a record of it is: tags without a string are not inserted.
        token_types = set(rendered.span_token_types.tobytes())
        token_types.update(record.token_type for record in global_texts.prefix)
        token_types.update(record.token_type for record in global_texts.suffix)
        rendered.types = tuple(
            key for key, token_type in self._token_types.items() if token_type in token_types
        )
        return rendered

    def _add_prefix(self, rendered: Rendered, records: list[RecordText]) -> None:
        """Joins the records of the prefix, with the configured start, separators and end."""
        config = self._config
        prefix = _join_records(
            [config.metadata_prefix_start_seq] + [""] * (len(records) - 1),
            records,
            [config.metadata_sep] * (len(records) - 1) + [self._separators.prefix_end],
        )
        rendered.prefix = prefix.text
        rendered.prefix_spans = prefix.spans
        rendered.prefix_token_types = prefix.token_types
        rendered.prefix_configured = prefix.configured
        rendered.lead = self._separators.lead if prefix.text else ""

    def _add_suffix(self, rendered: Rendered, records: list[RecordText]) -> None:
        """Joins the records of the suffix, with the configured start and separators."""
        config = self._config
        suffix = _join_records(
            [self._separators.suffix_start] + [config.metadata_sep] * (len(records) - 1),
            records,
            [""] * len(records),
        )
        rendered.suffix = suffix.text
        rendered.suffix_spans = suffix.spans
        rendered.suffix_token_types = suffix.token_types
        rendered.suffix_configured = suffix.configured

    def _insert_tags(self, rendered: Rendered, tags: list[LocalTags]) -> None:
        """Inserts local tags into the text, and the wrappers of their types around runs of tags."""
        insertions = wrap_runs(
            arrange_insertions(tags), self._wrappers_before, self._wrappers_after
        )
        rendered.body, rendered.spans = insert_strings(rendered.text, insertions)
        rendered.span_token_types = insertions.token_types
        if insertions.is_wrapper is not None:
            rendered.configured = rendered.spans[insertions.is_wrapper]


def _join_records(before: list[str], records: list[RecordText], after: list[str]) -> JoinedTexts:
    """Joins records into one string, each between its strings in `before` and `after`."""
    strings: list[str] = []
    spans: list[int] = []  # alternating starts and ends
    configured = [0]  # alternating starts and ends
    start = 0
    for separator_before, record, separator_after in zip(before, records, after, strict=True):
        string = separator_before + record.text + separator_after
        end = start + len(string)
        strings.append(string)
        spans += start, end

        value_start = start + len(separator_before) + record.num_leading
        value_end = end - len(separator_after) - record.num_trailing
        configured += value_start, value_end
        start = end
    configured.append(start)

    return JoinedTexts(
        "".join(strings),
        np.array(spans, np.int32).reshape(-1, 2),
        np.array([record.token_type for record in records], np.uint8),
        np.array(configured, np.int32).reshape(-1, 2),
    )
