"""Windows: process some documents of a shard from lines to packed sequences.

Most of the stream's time is spent here: `corpora` reads the window, this module decodes its lines,
samples and renders metadata, encodes, cuts and packs. The result depends only on (seed, epoch,
shard, document numbers), so a window can be rebuilt at any time.

`bad_documents` decides whether a document that cannot be used stops the run (strict), or is skipped
and counted. The metadata package detects problems in the JSON object, this module problems in the
file and the line. The counts (all documents, by metadata type, skipped by reason) are an array in
the order of `count_names`, from the window to the micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig, metadata_room
from bsmeta.config.metadata import phase_configs
from bsmeta.core.errors import ConfigurationError, DataError, refuse
from bsmeta.data import derive, document_generator
from bsmeta.data.io.file_start import check_has_document
from bsmeta.data.io.files import refuse_bad_copy
from bsmeta.data.io.lines import BYTE_ORDER_MARK, LONGEST_LINE, OVERLONG
from bsmeta.data.io.shards import Shard, numbered
from bsmeta.data.text.chunks import Chunk, PackedWindow, cut, cut_alike
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.checks import row_budget_problems
from bsmeta.metadata.decoding import Decoder, make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import SHUFFLED
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import BadDocument, Line
from bsmeta.metadata.rendering import Donors, Rendered, Renderer, TypeSampler

if TYPE_CHECKING:
    from bsmeta.data.stream.held_out import HeldOutFingerprints

REASONS = (  # common to all types; a metadata type lists its own in `MetadataType.reasons`
    "bad_content_spans",
    "blank_line",
    "byte_order_mark",
    "damaged_file",
    "document_too_long",
    "end_before_start",
    "html_attributes_mismatch",
    "line_too_long",
    "missing_position",
    "missing_text",
    "negative_position",
    "no_content_spans",
    "not_a_number",
    "not_a_timestamp",
    "not_an_object",
    "not_json",
    "not_utf8",
    "position_beyond_text",
    "relative_position_too_large",
    "text_not_string",
    "wrong_type",
)

TEST_OVERLAP = "test_overlap"
"""Training documents dropped because they are held out."""

EMPTY_TEXT = "empty_text"
"""Documents without text: pages may be empty, which is not an error in the data."""

HALF_USED = "half_used_at_phase_switch"
"""Documents whose unused part was dropped when the metadata schedule switched phases."""

NOT_BAD = (TEST_OVERLAP, EMPTY_TEXT, HALF_USED)
"""Reasons why good documents, or parts of them, are left out."""

LEFT_OUT = "metadata_tokens_left_out"
"""Metadata tokens that did not fit into their row (`row_budget=text`)."""

WITH_METADATA = "documents_with_metadata"
"""Documents that got at least one metadata type."""

ENCODED_AT_ONCE = 8_000_000
"""Approximate characters of the documents that one call of the tokenizer encodes."""

# Columns of the counts; see `count_names`.
_DOCUMENTS = 0
_WITH_METADATA = 1
_FIRST_TYPE = 2


def reasons_of(keys: Sequence[str]) -> list[str]:
    """Lists the reasons of bad documents, including the reasons of the metadata types `keys`."""
    reasons = dict.fromkeys(REASONS)
    for key in keys:
        reasons |= dict.fromkeys(type_of(key).reasons)
    return [*reasons]


def number_bad(skipped: Counter[str]) -> int:
    """Counts the skipped documents that are bad, for whatever reason."""
    return skipped.total() - sum(skipped[reason] for reason in NOT_BAD)


def count_names(keys: Sequence[str]) -> list[str]:
    """Lists the names of the counts; the same in every batch of a run."""
    types = [f"documents/{key}" for key in keys]
    bad = [f"bad_documents/{reason}" for reason in reasons_of(keys)]
    return ["documents", WITH_METADATA, *types, *bad, *NOT_BAD, LEFT_OUT]


def _document_counts(types: np.ndarray, opens: np.ndarray, keys: Sequence[str]) -> np.ndarray:
    """Computes each chunk's contribution to the counts: a document counts with its first chunk.

    Args:
        types: int32[chunks], metadata types of each chunk's document (bit i: keys[i]).
        opens: bool[chunks], whether the chunk is its document's first.

    Returns:
        float64[chunks, counts].
    """
    counts = np.zeros((len(types), len(count_names(keys))))
    counts[:, _DOCUMENTS] = opens
    counts[:, _WITH_METADATA] = opens & (types != 0)
    bits = np.arange(len(keys), dtype=np.int32)
    has_type = types[:, None] >> bits & 1
    counts[:, _FIRST_TYPE : _FIRST_TYPE + len(keys)] = has_type * opens[:, None]
    return counts


def skipped_counts(skipped: Counter[str], keys: Sequence[str]) -> np.ndarray:
    """Returns the counts of skipped documents alone (float64[counts])."""
    by_reason = [float(skipped[reason]) for reason in (*reasons_of(keys), *NOT_BAD)]
    assert sum(by_reason) == skipped.total(), skipped
    metadata_tokens_left_out = 0.0
    return np.array([0.0] * (_FIRST_TYPE + len(keys)) + by_reason + [metadata_tokens_left_out])


class Rejecter:
    """Decides which documents of one window are left out, and counts them.

    Attributes:
        counts: Number of documents left out, by reason.
    """

    def __init__(
        self, config: DataConfig, shard: Shard, held_out: HeldOutFingerprints | None
    ) -> None:
        self._config = config
        self._path = shard.path
        self._held_out = held_out
        self._reasons = frozenset(reasons_of(config.metadata_config.metadata_list))
        self.counts: Counter[str] = Counter()

    def admits(self, document: Document, number: int) -> bool:
        """Whether a document has text and is not held out; otherwise it is counted.

        Raises:
            DataError: If it is held out, and `on_test_overlap` is error.
        """
        if not document.text:
            self.counts[EMPTY_TEXT] += 1
            return False

        shared = self._held_out.overlap(document) if self._held_out else ""
        if shared and self._config.on_test_overlap == "error":
            raise DataError(
                f"{self._path}, {numbered(self._path, number)}: the document has the {shared} of "
                f"one in data_config.validation_file={self._config.validation_file}; leave the "
                "shard out (data_config.exclude), or set data_config.on_test_overlap=drop"
            )
        if shared:
            self.counts[TEST_OVERLAP] += 1
        return not shared

    def reject(self, number: int, error: BadDocument) -> None:
        """Counts a document that cannot be used and is skipped.

        Raises:
            ConfigurationError: If a metadata type gives a reason that it does not list.
            DataError: In strict mode, naming file, line (or row) and reason.
        """
        if error.reason not in self._reasons:
            raise ConfigurationError(
                f"{self._path}, {numbered(self._path, number)}: a metadata type refuses the "
                f'document with the reason "{error.reason}" ({error.detail}), for which there is '
                f'no count; add reasons = ("{error.reason}",) to the class of the type'
            )

        if self._config.bad_documents == "strict":
            refuse_bad_copy(self._path)
            if number == 0:
                check_has_document(self._path, "data_config.train_file")
            raise DataError(
                f"{self._path}, {numbered(self._path, number)}: {error.reason}: {error.detail} "
                "(data_config.bad_documents=skip counts such documents and continues)"
            )

        self.counts[error.reason] += 1


def reason_of(line: Line, error: BadDocument) -> BadDocument:
    """Returns a more specific error if the line itself shows why it is not JSON."""
    if error.reason != "not_json":
        return error

    line = bytes(line)
    if line == OVERLONG:
        return BadDocument("line_too_long", f"expected {LONGEST_LINE:,} bytes at most")
    if not line.strip():
        return BadDocument("blank_line", "expected a JSON object")
    if line.startswith(BYTE_ORDER_MARK):
        return BadDocument("byte_order_mark", "the line begins with a UTF-8 byte order mark")
    try:
        line.decode()
    except UnicodeDecodeError as problem:
        return BadDocument("not_utf8", str(problem))
    return error


def check_length(rendered: Rendered, config: DataConfig) -> None:
    """Refuses a document that would take too much memory to encode.

    Raises:
        BadDocument: `document_too_long`.
    """
    length = sum(map(len, (rendered.prefix, rendered.body, rendered.suffix)))
    if length > config.max_document_chars:
        raise BadDocument(
            "document_too_long",
            f"text and metadata have {length:,} characters, more than "
            f"data_config.max_document_chars={config.max_document_chars}",
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Some documents of a shard that are turned into sequences together.

    Attributes:
        epoch: The epoch of the stream that reads them.
        numbers: Shard-level numbers of the documents that belong to it, increasing.
        lines: One document each, for the first of those numbers: fewer if the shard ends.
        damage: Why the shard cannot be read after these lines; empty if it can.
    """

    epoch: int
    shard: Shard
    numbers: Sequence[int]
    lines: Sequence[Line]
    damage: str = ""

    def seed(self, seed: int, purpose: str) -> int:
        """Derives the seed of a choice about the whole window from the seed of the run."""
        return derive(seed, purpose, self.epoch, self.shard.name, self.numbers[0])


class PlacedWindow(NamedTuple):
    """A window and its position in the epoch.

    Attributes:
        share: Index of the share in the order of its epoch.
        number: Index of the window in its share.
    """

    share: int
    number: int
    window: Window


@dataclass(slots=True)
class WindowDocument:
    """A document of a window, rendered with the metadata drawn for it, and its chunks.

    Attributes:
        number: Its number in the shard.
    """

    number: int
    rendered: Rendered
    chunks: list[Chunk]


class WindowMaker:
    """Turns windows into sequences.

    Args:
        tokenizer: A fast tokenizer with an EOS token.
        source: Name of the source in a mixture.
        held_out: Documents that must not be trained on.
        sample: Lines on which `tokenizer_backend` must agree with the tokenizer.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        *,
        source: str = "",
        held_out: HeldOutFingerprints | None = None,
        sample: Sequence[bytes] = (),
    ) -> None:
        refuse(row_budget_problems(config))
        self._config = config
        self._seed = seed
        self._held_out = held_out
        self._metadata = config.metadata_config

        self._samplers = [TypeSampler(phase) for phase in phase_configs(self._metadata)]
        self._bits: dict[str, int] = {}
        if not self._metadata.without_metadata_same_context:
            self._bits = {key: 1 << i for i, key in enumerate(self._metadata.metadata_list)}

        self.decoder = make_decoder(self._metadata, config.columns, source, config.content)
        self._text_decoder: Decoder | None = None
        if config.row_budget == BY_TEXT:
            text = replace(self._metadata, metadata_list=[], metadata_column_list=None)
            self._text_decoder = make_decoder(text, config.columns, content=config.content)

        self._renderer = Renderer(self._metadata)
        rendered_sample = [self._render_all_types(line) for line in sample]
        self._encoder = DocumentEncoder(
            tokenizer,
            config,
            backend=config.tokenizer_backend,
            sample=[rendered for rendered in rendered_sample if rendered is not None],
        )

    def documents(
        self, window: Window, phase: int = 0, leave_out: Collection[int] = ()
    ) -> tuple[list[WindowDocument], Counter[str]]:
        """Prepares the good documents of a window, and counts the skipped ones by reason.

        Args:
            phase: The phase of the metadata schedule to sample metadata with.
            leave_out: Numbers of documents that are not prepared.

        Raises:
            DataError: If a document is bad or the shard is damaged, and `bad_documents` is strict;
                or if a document is held out, and `on_test_overlap` is error.
        """
        rejecter = Rejecter(self._config, window.shard, self._held_out)
        numbers: list[int] = []
        documents: list[Rendered] = []
        for number, rendered in self._render_window(window, rejecter, self._samplers[phase]):
            if number not in leave_out:
                numbers.append(number)
                documents.append(rendered)

        if window.damage:
            read = len(window.lines)
            line = window.numbers[read] if read < len(window.numbers) else window.numbers[-1] + 1
            rejecter.reject(line, BadDocument("damaged_file", window.damage))

        chunks: list[list[Chunk]] = []
        for batch in _batches(documents):
            chunks += self._cut(batch)
        prepared = [
            WindowDocument(number, rendered, cuts)
            for number, rendered, cuts in zip(numbers, documents, chunks, strict=True)
        ]
        return prepared, rejecter.counts

    def pack(self, window: Window, documents: Sequence[WindowDocument]) -> PackedWindow:
        """Packs the chunks of a window's documents into sequences."""
        chunks: list[Chunk] = []
        for document in documents:
            chunks += document.chunks

        # Index of each chunk's document.
        owner = np.repeat(
            np.arange(len(documents)), [len(document.chunks) for document in documents]
        )
        opens = np.diff(owner, prepend=-1) > 0
        numbers = np.array([document.number for document in documents], np.int64)
        bits = np.array([self._type_bits(document) for document in documents], np.int32)
        types = bits[owner]

        by_text = self._config.row_budget == BY_TEXT
        return PackedWindow(
            chunks,
            numbers[owner],
            types,
            _document_counts(types, opens, self._metadata.metadata_list),
            shard=window.shard.name,
            packing=self._config.packing,
            capacity=self._metadata.max_seq_len,
            metadata_room=metadata_room(self._config) if by_text else None,
            seed=window.seed(self._seed, "window"),
        )

    def _type_bits(self, document: WindowDocument) -> int:
        """The metadata types of a document: bit i stands for `metadata_list[i]`."""
        return sum(self._bits.get(key, 0) for key in document.rendered.types)

    def _render_all_types(self, line: bytes) -> Rendered | None:
        """Renders a document with all of its metadata; None if it is bad."""
        try:
            document = self.decoder.decode(line)
            return self._render(document, self._metadata.metadata_list)
        except BadDocument:
            return None

    def _render(self, document: Document, types: Sequence[str]) -> Rendered:
        """Renders a document with some types, and checks its length."""
        rendered = self._renderer.render(document, types)
        check_length(rendered, self._config)
        return rendered

    def _render_window(
        self, window: Window, rejecter: Rejecter, sampler: TypeSampler
    ) -> Iterator[tuple[int, Rendered]]:
        """Yields the good documents, each with its number in the shard."""
        donors = self._make_donors(window)
        for index, (number, line) in enumerate(zip(window.numbers, window.lines, strict=False)):
            try:
                document = self.decoder.decode(line)
                if rejecter.admits(document, number):
                    generator = document_generator(
                        self._seed, window.epoch, window.shard.name, number
                    )
                    types = sampler.draw(document, generator)
                    if donors is not None:
                        document = donors.with_values(index, document, SHUFFLED)
                    yield number, self._render(document, types)
            except BadDocument as error:
                rejecter.reject(number, reason_of(line, error))
                text = self._render_text_alone(line, number, rejecter)
                if text is not None:
                    yield number, text

    def _render_text_alone(self, line: Line, number: int, rejecter: Rejecter) -> Rendered | None:
        """Renders the text of a rejected document under `row_budget=text`.

        None if more than its metadata is bad. The choice of training documents must not depend on
        which metadata is read.
        """
        if self._text_decoder is None:
            return None

        try:
            document = self._text_decoder.decode(line)
            return self._render(document, ()) if rejecter.admits(document, number) else None
        except BadDocument:
            return None

    def _make_donors(self, window: Window) -> Donors | None:
        """Returns the window's documents as donors of metadata values, if values are shuffled."""
        if self._metadata.metadata_values != SHUFFLED:
            return None

        documents = [self._read_values(line) for line in window.lines]
        return Donors(documents, self._metadata.metadata_list, window.seed(self._seed, SHUFFLED))

    def _read_values(self, line: Line) -> Document:
        """Reads only the metadata of a document: none if it is bad, which is reported later."""
        try:
            document = self.decoder.decode(line)
            records = {key: document.records(key) for key in self._metadata.metadata_list}
        except BadDocument:
            return Document("", None, {})

        return Document("", None, {key: list(values) for key, values in records.items() if values})

    def _cut(self, documents: Sequence[Rendered]) -> list[list[Chunk]]:
        """Cuts documents into the chunks that are trained on."""
        cuts = [cut(encoded, self._config) for encoded in self._encoder.encode(documents)]
        if self._metadata.without_metadata_same_context:
            plain = self._encoder.encode([document.without_metadata() for document in documents])
            cuts = [
                cut_alike(document, chunks, self._config)
                for document, chunks in zip(plain, cuts, strict=True)
            ]

        if self._metadata.long_documents == "truncate":
            return [chunks[:1] for chunks in cuts]
        return cuts


def _batches(documents: Sequence[Rendered]) -> Iterator[Sequence[Rendered]]:
    """Yields documents in batches of about `ENCODED_AT_ONCE` characters, or of one longer document.

    A tokenizer needs 10 to 80 bytes of memory per character of a batch, which for a whole window
    of long documents would be many gigabytes.
    """
    begin = 0
    size = 0
    for index, document in enumerate(documents):
        length = len(document.body)
        if index > begin and size + length > ENCODED_AT_ONCE:
            yield documents[begin:index]
            begin = index
            size = 0
        size += length

    if begin < len(documents):
        yield documents[begin:]
