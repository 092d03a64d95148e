"""Windows: process some documents of a shard from lines to packed sequences.

Most of the stream's time is spent here: `live` selects the window, this module decodes its
lines, samples and renders metadata, encodes, cuts and packs. The result depends only on (seed,
epoch, shard, document numbers), so a window can be rebuilt at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig, metadata_room
from bsmeta.config.metadata import phase_configs
from bsmeta.core.errors import DataError, refuse
from bsmeta.data.io.shards import Shard, numbered
from bsmeta.data.seeds import derive, document_generator
from bsmeta.data.stream.counts import (
    EMPTY_TEXT,
    TEST_OVERLAP,
    Rejecter,
    check_length,
    document_counts,
    reason_of,
)
from bsmeta.data.stream.held_out import HeldOutFingerprints
from bsmeta.data.stream.packing import ChunkTable, PackedWindow
from bsmeta.data.text.chunks import Chunk, cut, cut_alike
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.checks import row_budget_problems
from bsmeta.metadata.decoding import Decoder, make_decoder
from bsmeta.metadata.records import BadDocument, Document, Line
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.metadata.sampling import SHUFFLED, Donors, TypeSampler

ENCODED_AT_ONCE = 8_000_000  # characters


@dataclass(frozen=True, slots=True)
class Window:
    """Some documents of a shard that are turned into sequences together.

    Attributes:
        epoch: The epoch of the stream that reads them.
        numbers: Shard-level numbers of the documents that belong to it, increasing.
        lines: One document each, for the first of those numbers: fewer if the shard ends.
        damage: Why the shard cannot be read beyond them; empty if it can.
    """

    epoch: int
    shard: Shard
    numbers: Sequence[int]
    lines: Sequence[Line]
    damage: str = ""

    @property
    def first(self) -> int:
        """Number in the shard of the first document."""
        return self.numbers[0]


PlacedWindow = tuple[int, int, Window]
"""Index of the share in the order of its epoch, index of the window in its share, the window."""


@dataclass(slots=True)
class WindowDocument:
    """A document of a window.

    Attributes:
        number: Its number in the shard.
        rendered: The document with the metadata that was drawn for it.
        chunks: The chunks to train on, in order.
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
        self._bits = {key: 1 << i for i, key in enumerate(self._metadata.metadata_list)}
        self.decoder = make_decoder(self._metadata, config.columns, source, config.content)
        self._text_decoder: Decoder | None = None
        if config.row_budget == BY_TEXT:
            text = replace(self._metadata, metadata_list=[], metadata_column_list=None)
            self._text_decoder = make_decoder(text, config.columns, content=config.content)
        self._renderer = Renderer(self._metadata)
        self._encoder = DocumentEncoder(
            tokenizer,
            config,
            backend=config.tokenizer_backend,
            sample=[one for line in sample if (one := self._with_everything(line))],
        )

    def documents(
        self, window: Window, phase: int = 0, leave_out: Collection[int] = ()
    ) -> tuple[list[WindowDocument], Counter[str]]:
        """The good documents of a window, and how many were skipped, by reason.

        Args:
            phase: The phase of the metadata schedule to sample metadata with.

        Raises:
            DataError: If a document is bad or the shard is damaged, and `bad_documents` is strict;
                or if a document is held out, and `on_test_overlap` is error.
        """
        rejecter = Rejecter(self._config, window.shard)
        numbers, rendered = [], []
        for number, document in self._render(window, rejecter, self._samplers[phase]):
            if number not in leave_out:
                numbers.append(number)
                rendered.append(document)
        if window.damage:
            read = len(window.lines)
            line = window.numbers[read] if read < len(window.numbers) else window.numbers[-1] + 1
            rejecter.reject(line, BadDocument("damaged_file", window.damage))
        parts = zip(numbers, rendered, self._cut(rendered), strict=True)
        return [WindowDocument(*part) for part in parts], rejecter.counts

    def pack(self, window: Window, documents: Sequence[WindowDocument]) -> PackedWindow:
        """The sequences that hold the chunks of a window's documents."""
        cuts = [document.chunks for document in documents]
        owner = np.repeat(np.arange(len(cuts)), [len(chunks) for chunks in cuts])
        types = np.array([self._type_bits(document.rendered) for document in documents], np.int32)[
            owner
        ]
        table = ChunkTable(
            document=np.array([document.number for document in documents], np.int64)[owner],
            types=types,
            counts=document_counts(
                types, np.diff(owner, prepend=-1) > 0, self._metadata.metadata_list
            ),
        )
        return PackedWindow(
            [chunk for chunks in cuts for chunk in chunks],
            table,
            shard=window.shard.name,
            packing=self._config.packing,
            capacity=self._metadata.max_seq_len,
            metadata_room=(
                metadata_room(self._config) if self._config.row_budget == BY_TEXT else None
            ),
            seed=derive(self._seed, "window", window.epoch, window.shard.name, window.first),
        )

    def _with_everything(self, line: bytes) -> Rendered | None:
        """A document rendered with all of its metadata; None if it is bad."""
        try:
            document = self.decoder.decode(line)
            rendered = self._renderer.render(document, self._metadata.metadata_list)
            check_length(rendered, self._config)
        except BadDocument:
            return None
        return rendered

    def _render(
        self, window: Window, rejecter: Rejecter, sampler: TypeSampler
    ) -> Iterator[tuple[int, Rendered]]:
        """The good documents, each with its number in the shard."""
        donors = self._donors(window)
        for index, (number, line) in enumerate(zip(window.numbers, window.lines, strict=False)):
            rendered: Rendered | None = None
            try:
                document = self._admitted(self.decoder, line, window, number, rejecter)
                if document is not None:
                    generator = document_generator(
                        self._seed, window.epoch, window.shard.name, number
                    )
                    types = sampler.draw(document, generator)
                    if donors is not None:
                        document = donors.with_values(index, document, SHUFFLED)
                    rendered = self._renderer.render(document, types)
                    check_length(rendered, self._config)
            except BadDocument as error:
                rejecter.reject(number, reason_of(line, error))
                rendered = self._text_alone(line, window, number, rejecter)
            if rendered is not None:
                yield number, rendered

    def _admitted(
        self, decoder: Decoder, line: Line, window: Window, number: int, rejecter: Rejecter
    ) -> Document | None:
        """The document of a line; None if it has no text or is held out, which is counted."""
        document = decoder.decode(line)
        if not document.text:
            rejecter.counts[EMPTY_TEXT] += 1
        elif self._is_held_out(document, window, number):
            rejecter.counts[TEST_OVERLAP] += 1
        else:
            return document
        return None

    def _text_alone(
        self, line: Line, window: Window, number: int, rejecter: Rejecter
    ) -> Rendered | None:
        """The text of a rejected document under `row_budget=text`, if only its metadata is bad.

        Which documents are trained on must not depend on the metadata that is read.
        """
        if self._text_decoder is None:
            return None
        try:
            document = self._admitted(self._text_decoder, line, window, number, rejecter)
            if document is None:
                return None
            rendered = self._renderer.render(document, ())
            check_length(rendered, self._config)
        except BadDocument:
            return None
        return rendered

    def _donors(self, window: Window) -> Donors | None:
        """The documents whose values those of the window get, if values are shuffled."""
        if self._metadata.metadata_values != SHUFFLED:
            return None
        documents = [self._lender(line) for line in window.lines]
        seed = derive(self._seed, "shuffled", window.epoch, window.shard.name, window.first)
        return Donors(documents, self._metadata.metadata_list, seed)

    def _lender(self, line: Line) -> Document:
        """A document that lends its values; without any if it is bad, which is reported later."""
        try:
            document = self.decoder.decode(line)
            records = {key: document.records(key) for key in self._metadata.metadata_list}
        except BadDocument:
            return Document("", None, {})
        return Document("", None, {key: list(found) for key, found in records.items() if found})

    def _is_held_out(self, document: Document, window: Window, number: int) -> bool:
        if self._held_out is None:
            return False
        shared = self._held_out.overlap(document)
        if shared and self._config.on_test_overlap == "error":
            where = f"{window.shard.path}, {numbered(window.shard.path, number)}"
            raise DataError(
                f"{where}: the document has the {shared} of one in "
                f"data_config.validation_file={self._config.validation_file}; leave the shard out "
                "(data_config.exclude), or set data_config.on_test_overlap=drop"
            )
        return bool(shared)

    def _type_bits(self, rendered: Rendered) -> int:
        if self._metadata.without_metadata_same_context:
            return 0
        return sum(self._bits[key] for key in rendered.types)

    def _cut(self, rendered: Sequence[Rendered]) -> list[list[Chunk]]:
        """The chunks of each document that are trained on."""
        return [chunks for batch in batches_of(rendered) for chunks in self._cut_batch(batch)]

    def _cut_batch(self, rendered: Sequence[Rendered]) -> list[list[Chunk]]:
        cuts = [cut(encoded, self._config) for encoded in self._encoder.encode(rendered)]
        if self._metadata.without_metadata_same_context:
            plain = self._encoder.encode([document.without_metadata() for document in rendered])
            cuts = [
                cut_alike(document, chunks, self._config)
                for document, chunks in zip(plain, cuts, strict=True)
            ]
        if self._metadata.long_documents == "truncate":
            return [chunks[:1] for chunks in cuts]
        return cuts


def batches_of(rendered: Sequence[Rendered]) -> Iterator[Sequence[Rendered]]:
    """Documents in batches of about `ENCODED_AT_ONCE` characters, or of one longer document.

    A tokenizer needs 10 to 80 bytes of memory per character of a batch, which for a whole window
    of long documents would be many gigabytes.
    """
    begin = size = 0
    for place, document in enumerate(rendered):
        length = len(document.body)
        if place > begin and size + length > ENCODED_AT_ONCE:
            yield rendered[begin:place]
            begin, size = place, 0
        size += length
    if begin < len(rendered):
        yield rendered[begin:]
