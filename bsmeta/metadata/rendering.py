"""What a document is rendered with, and how: types, values, and the strings that a model reads.

Second and third stage of the flow (line -> document -> sampled types -> rendered text). Every
choice of types is drawn from the generator passed in (one per document); none depends on the
content of the records. Global records form the prefix (or, if appended, the suffix); local records
are inserted into the text. The model reads `prefix + lead + body + suffix`.

Values of other documents show what the content of metadata is worth. A shuffled value is another
document's (and may happen to be the same); a wrong value is another document's and differs from
this document's; a matched value is a wrong value of similar length, so that it takes up a similar
share of the context. A model can be trained on shuffled values (`metadata_values`), but not on the
others: where a type has few values, a wrong one gives away the right one. Constant and random
tokens replace the tokens of a prefix one by one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import refuse
from bsmeta.metadata.checks import metadata_problems
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import MATCHED, OWN, SHUFFLED
from bsmeta.metadata.processors import make_types, type_of
from bsmeta.metadata.records import Record, local_records
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

NO_SPANS: Spans = np.zeros((0, 2), np.int32)
NO_TOKEN_TYPES: TokenTypes = np.zeros(0, np.uint8)


class TypeSampler:
    """Draws the metadata types of documents."""

    def __init__(self, config: MetadataConfig) -> None:
        self._probability = config.metadata_probability
        self._draws_some = config.random_sample_metadata
        self._chances = [  # computed once: sampling runs for every document
            (key, type_of(key).always_present, chance["left_out"], chance["weight"])
            for key, chance in chances(config).items()
        ]

    def draw(self, document: Document, rng: random.Random) -> tuple[str, ...]:
        """The types that a document is rendered with.

        The document gets any metadata with probability `metadata_probability`. Then
        `metadata_dropout` and the type's own sample rate each drop types at random; of the n
        remaining types, k (uniform in 1..n) are drawn without replacement, with probability
        proportional to `random_sample_metadata_weights`.

        Args:
            document: Its candidate types are those that it has records of.

        Returns:
            Keys in the order of `metadata_list`; `()` for none.
        """
        if rng.random() >= self._probability:
            return ()
        present = [
            (key, weight)
            for key, always, dropout, weight in self._chances
            if (always or document.has(key)) and rng.random() >= dropout
        ]
        if not self._draws_some:
            return tuple(key for key, _ in present)
        drawable = [(key, weight) for key, weight in present if weight > 0]
        if not drawable:
            return ()
        count = rng.randint(1, len(drawable))
        # Sequential weighted draws without replacement are equivalent to taking the smallest of
        # exponential variables with those rates (Efraimidis and Spirakis 2006).
        arrival = {key: -math.log(1.0 - rng.random()) / weight for key, weight in drawable}
        drawn = frozenset(sorted(arrival, key=arrival.__getitem__)[:count])
        return tuple(key for key, _ in present if key in drawn)


def chances(config: MetadataConfig) -> dict[str, dict[str, float]]:
    """The sampling weight of each type and its probability of being left out, as configured."""
    return {
        key: {
            "weight": type_of(key).weight(key, config),
            "left_out": type_of(key).dropout(key, config),
        }
        for key in config.metadata_list
    }


class Documents(Protocol):
    """Documents by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Document: ...


class Donors:
    """Chooses the document (the donor) that each metadata type of a document is taken from.

    The documents form a random cycle; each document takes each type from the next document in the
    cycle that has it (so if all documents have all types, all values come from one document).

    Args:
        documents: Read once.
    """

    def __init__(self, documents: Documents, types: Sequence[str], seed: int) -> None:
        self._documents = documents
        self._types = tuple(types)
        self._order = np.random.default_rng(seed).permutation(len(documents))
        self._place = np.argsort(self._order)
        self._digests = np.zeros((len(self._types), len(documents)), dtype=np.uint64)
        self._lengths = np.zeros((len(self._types), len(documents)), dtype=np.int64)
        for index in range(len(documents)):
            document = documents[index]
            for row, key in enumerate(self._types):
                records = document.records(key)
                self._digests[row, index] = _digest(records)
                self._lengths[row, index] = sum(len(str(record.value)) for record in records)

    def with_values(self, index: int, document: Document, values: str) -> Document:
        """The document with its own, shuffled, wrong or matched values.

        A type for which no other document can be the donor is left out.
        """
        if values == OWN:
            return document
        records = {}
        for row, key in enumerate(self._types):
            if not document.has(key):
                continue
            donor = self._donor(row, index, values)
            if donor is not None:
                lent = self._documents[donor].records(key)
                records[key] = _lend(document.records(key), lent)
        return Document(document.text, document.url, {k: v for k, v in records.items() if v})

    def _donor(self, row: int, index: int, values: str) -> int | None:
        place = int(self._place[index])
        circle = np.roll(self._order, -place)[1:]  # starts at the next document
        digests = self._digests[row]
        usable = digests[circle] != 0
        if values != SHUFFLED:
            usable &= digests[circle] != digests[index]
        donors = circle[usable]
        if not len(donors):
            return None
        if values == MATCHED:
            distances = np.abs(self._lengths[row, donors] - self._lengths[row, index])
            return int(donors[np.argmin(distances)])
        return int(donors[0])


def _digest(records: Sequence[Record]) -> int:
    """A hash of the values of a type; 0 if there are none."""
    if not records:
        return 0
    values: list[Any] = [(record.value, record.html_attrs) for record in records]
    return xxhash.xxh3_64_intdigest(msgspec.json.encode(values)) or 1


def _lend(own: Sequence[Record], lent: Sequence[Record]) -> list[Record]:
    """The donor's global records, and its local values, in turn, at the document's own spans."""
    local = local_records(lent)
    records = [record for record in lent if not record.is_local()]
    for number, record in enumerate(local_records(own) if local else ()):
        source = local[number % len(local)]
        records.append(
            msgspec.structs.replace(record, value=source.value, html_attrs=source.html_attrs)
        )
    return records


@dataclass(slots=True, eq=False)  # frozen, it would take four times as long to create
class Rendered:
    """A document as a model reads it: `prefix + lead + body + suffix`.

    Spans are int32 [m, 2], character offsets in their string, sorted and disjoint. Token types
    (`token_types`) are uint8 [m]: 1 + the index of the type in `metadata_list`.

    Attributes:
        text: The document's text, without any metadata.
        prefix: Global records and announcements; "" if there are none. Tokenized separately.
        prefix_spans: Its records, each with the separator after it; together they cover the prefix.
        lead: Joins prefix and body; "" without a prefix. Tokenized with the body, but not part of
            the text.
        body: The text with local records inserted.
        spans: The inserted strings in `body`, one row each.
        suffix: Appended global records with their separators; "" if there are none. Tokenized
            separately; comes before the end-of-text token.
        suffix_spans: Its records, each with the separator before it; together they cover the
            suffix.
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


class RecordText(NamedTuple):
    """A string of the prefix or suffix.

    Attributes:
        token_type: 1 + the type's index in `metadata_list`.
        start: Number of leading characters that come from the configuration, not from the record.
        end: Number of trailing characters that do.
    """

    token_type: int
    text: str
    start: int
    end: int


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
        rendered = Rendered(text, body=text)
        if before:
            (
                rendered.prefix,
                rendered.prefix_spans,
                rendered.prefix_token_types,
                rendered.prefix_own,
            ) = _joined(
                [config.metadata_prefix_start_seq] + [""] * (len(before) - 1),
                before,
                [config.metadata_sep] * (len(before) - 1) + [config.metadata_prefix_sep],
            )
            rendered.lead = config.metadata_text_sep if rendered.prefix else ""
        if after:
            (
                rendered.suffix,
                rendered.suffix_spans,
                rendered.suffix_token_types,
                rendered.suffix_own,
            ) = _joined(
                [config.metadata_suffix_start_seq] + [config.metadata_sep] * (len(after) - 1),
                after,
                [""] * len(after),
            )
        if tags:
            insertions = wrap_runs(arrange(tags), self._before, self._after)
            rendered.body, rendered.spans = insert(text, insertions)
            rendered.span_token_types = insertions.token_types
            if insertions.is_wrapper is not None:
                rendered.own = rendered.spans[insertions.is_wrapper]
        used = set(rendered.span_token_types.tobytes())
        used.update(record.token_type for record in (*before, *after))
        rendered.types = tuple(key for key, kind in self._token_types.items() if kind in used)
        return rendered


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
    return (
        "".join(strings),
        np.array(spans, np.int32).reshape(-1, 2),
        np.array([record.token_type for record in records], np.uint8),
        np.array(own, np.int32).reshape(-1, 2),
    )
