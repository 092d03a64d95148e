"""Documents as training sees them: as one self-contained HTML page, on a terminal, or as JSON.

Each token is decoded from its own bytes, not by decoding the chunk, so that a view shows exactly
the model's input. The page needs no scripts, fonts or network access. In the terminal, each
metadata type has a color, and tokens without loss are faint.
"""

from __future__ import annotations

import codecs
import itertools
import json
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.style import Style
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import train_files
from bsmeta.config.explaining import ExplainConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.printable import printable
from bsmeta.core.terminal import Console
from bsmeta.data.text.chunks import Chunk
from bsmeta.data.text.tokenizer import byte_alphabet, byte_lengths
from bsmeta.report.page import load_template
from bsmeta.tasks.causal_lm.explaining import ExplainedDocument, ExplainedWindow, PackedChunk

# The terminal's palette colors, which its theme makes readable on its background.
COLORS = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "bright_blue",
    "red",
    "bright_cyan",
    "bright_magenta",
)

FAINT = Style(dim=True)
BOUNDARY = "│"
INSIDE_CHARACTER = "·"
BAR_CELLS = 32


class Part(Enum):
    """The part of a document that a token belongs to."""

    PREFIX = "prefix"
    TEXT = "text"
    LOCAL = "in the text"
    SUFFIX = "suffix"
    END = "end of the document"


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token to show.

    Attributes:
        text: Its text, `printable`; "" if it ends inside a character, which then appears in the
            character's last token.
        part: The part of the document that it belongs to.
        token_type: Its token type: 0 for text, 1 + i for metadata of type metadata_list[i].
        target: Whether it contributes to the loss.
    """

    id: int
    text: str
    part: Part
    token_type: int
    target: bool


class TokenTexts:
    """Decodes the tokens of a fast tokenizer one by one.

    If it is not byte-level BPE, the text of a token is its entry in the vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        fast = tokenizer.backend_tokenizer
        self._names = {number: entry for entry, number in fast.get_vocab().items()}
        self._added = {
            number: token.content for number, token in fast.get_added_tokens_decoder().items()
        }
        self._alphabet = None if byte_lengths(fast) is None else byte_alphabet()

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each of these consecutive tokens."""
        if self._alphabet is None:
            return [self._names[number].replace("\u2581", " ") for number in ids]

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(self._bytes(number, self._alphabet)) for number in ids]
        if texts:  # the chunk may end inside a character
            texts[-1] += decoder.decode(b"", final=True)
        return texts

    def _bytes(self, number: int, alphabet: dict[str, int]) -> bytes:
        if number in self._added:
            return self._added[number].encode()
        return bytes(alphabet[character] for character in self._names[number])


def decode_tokens(chunk: Chunk, texts: TokenTexts) -> list[ShownToken]:
    """Returns the tokens of a chunk, including its prefix."""
    ids = chunk.ids.tolist()
    token_types = chunk.token_types.tolist()
    targets = chunk.loss_mask.tolist()
    printable_texts = map(printable, texts(ids))
    return list(map(ShownToken, ids, printable_texts, _find_parts(chunk), token_types, targets))


def metadata_mask(chunk: Chunk, config: MetadataConfig) -> np.ndarray:
    """Returns the mask of the tokens with at least one character of metadata: bool [len(chunk)].

    With `treat_local_metadata_as_regular_text`, it has only tokens of the prefix and the suffix.
    """
    mask = chunk.token_types > 0
    if config.treat_local_metadata_as_regular_text:
        mask &= [part in (Part.PREFIX, Part.SUFFIX) for part in _find_parts(chunk)]
    return mask


def _find_parts(chunk: Chunk) -> list[Part]:
    """Returns the part of the document to which each token of a chunk belongs."""
    encoded = chunk.document
    token_types = encoded.token_types[chunk.start : chunk.stop].tolist()
    parts = [Part.LOCAL if token_type else Part.TEXT for token_type in token_types]

    if encoded.suffix:  # before the end-of-text token
        end = len(encoded.ids) - 1
        for index in range(max(end - encoded.suffix, chunk.start), min(end, chunk.stop)):
            parts[index - chunk.start] = Part.SUFFIX
    if chunk.stop == len(encoded.ids):
        parts[-1] = Part.END
    return [Part.PREFIX] * chunk.prefix_length + parts


@dataclass(frozen=True, slots=True)
class DocumentView:
    """A document to show.

    Attributes:
        lines: Two lines about its metadata and its length.
        chunks: The caption and the tokens of each chunk.
    """

    lines: list[str]
    chunks: list[tuple[str, list[ShownToken]]]


def describe_document(
    document: ExplainedDocument, window: ExplainedWindow, texts: TokenTexts
) -> DocumentView:
    """Describes a document, and decodes and describes its chunks."""
    chunks = [decode_tokens(chunk, texts) for chunk in document.chunks]
    length = (
        f"{format_count(len(document.rendered.text), 'character')} of text, "
        f"{format_count(sum(map(len, chunks)), 'token')} in {format_count(len(chunks), 'chunk')}, "
        f"loss on {sum(map(_count_targets, chunks)):,}"
    )

    captioned_chunks = []
    for index, tokens in enumerate(chunks):
        numbers = Counter(token.part for token in tokens)
        parts = ", ".join(f"{part.value} {numbers[part]:,}" for part in Part if numbers[part])
        caption = (
            f"chunk {index + 1} of {len(chunks)}: {format_count(len(tokens), 'token')} ({parts}), "
            f"loss on {_count_targets(tokens):,}; "
            f"sequence {document.sequences[index] + 1:,} of {len(window.sequences):,}"
        )
        captioned_chunks.append((caption, tokens))
    return DocumentView([_describe_metadata(document), length], captioned_chunks)


def _count_targets(tokens: Sequence[ShownToken]) -> int:
    return sum(token.target for token in tokens)


def _describe_metadata(document: ExplainedDocument) -> str:
    """Lists the types of a document: rendered, present but not rendered, and lacking."""
    types = document.rendered.types
    description = f"metadata: {', '.join(types) or 'none'}"
    others = [name for name in document.present if name not in types]
    if others:
        description += f"; it also has {', '.join(others)}"
    if document.lacking:
        description += f"; no record of {', '.join(document.lacking)}"
    return description


def describe_packing(window: ExplainedWindow) -> str:
    """Describes how densely a window is packed."""
    chunks = list(itertools.chain.from_iterable(window.sequences))
    counted = sum(chunk.counted for chunk in chunks)
    room = max(len(window.sequences) * window.capacity, 1)

    documents = f"documents {window.first} to {window.last} of {window.shard}"
    if window.count <= window.last - window.first:
        documents = f"{window.count:,} of {documents} (the others are in windows of other streams)"
    return (
        f"{documents} are one window: "
        f"{format_count(len(chunks), 'chunk')} in "
        f"{format_count(len(window.sequences), 'sequence')} of "
        f"{window.capacity:,} tokens{' of text' if window.by_text else ''}, "
        f"{counted / room:.1%} full"
    )


def select_sequences(window: ExplainedWindow, limit: int) -> list[int]:
    """Selects the first `limit` sequences, and at most `limit` others of shown documents."""
    of_documents: set[int] = set()
    for document in window.documents:
        of_documents.update(document.sequences)
    others = sorted(index for index in of_documents if index >= limit)
    return [*range(min(limit, len(window.sequences))), *others[:limit]]


def format_count(number: int, name: str) -> str:
    """Returns a number with its noun: `1 chunk`, `2,000 chunks`."""
    return f"{number:,} {name}" + ("" if number == 1 else "s")


def json_line(document: ExplainedDocument, config: MetadataConfig) -> str:
    """Returns one document as a line of JSON, without the newline.

    `text` is the whole text that the model reads, including `prefix` (untruncated, even if it is
    truncated in the chunks). The lists of a chunk have one entry per token; masks are 0 or 1.
    """
    chunks = [
        {
            "input_ids": chunk.ids.tolist(),
            "metadata_mask": metadata_mask(chunk, config).astype(int).tolist(),
            "loss_mask": chunk.loss_mask.astype(int).tolist(),
        }
        for chunk in document.chunks
    ]
    return json.dumps(
        {
            "document": document.name,
            "text": document.rendered.whole,
            "prefix": document.rendered.prefix,
            "pieces": chunks,
        }
    )


def page(windows: Sequence[ExplainedWindow], config: ExplainConfig, texts: TokenTexts) -> str:
    """Returns the page as HTML source."""
    return load_template("tasks/causal_lm/explained.html.j2").render(
        windows=windows,
        config=config,
        data=config.data_config,
        files=train_files(config.data_config),
        keys=config.data_config.metadata_config.metadata_list,
        describe_document=partial(describe_document, texts=texts),
        describe_packing=describe_packing,
        select_sequences=select_sequences,
    )


def show(
    window: ExplainedWindow, console: Console, config: ExplainConfig, texts: TokenTexts
) -> None:
    """Prints the documents to show of a window, then its packing."""
    renderables: list[RenderableType] = []
    for document in window.documents:
        view = describe_document(document, window, texts)
        renderables.append(make_heading(document.name))
        renderables += [Text(printable(line), FAINT) for line in view.lines]
        for caption, tokens in view.chunks:
            renderables.append(Text(f"\n{caption}", FAINT))
            renderables.append(color_tokens(tokens, boundaries=config.tokens))
        renderables.append(Text())
    if config.sequences:
        renderables += render_packing(window, config.sequences)
    console.print(Group(*renderables), highlight=False)


def show_legend(console: Console, config: ExplainConfig) -> None:
    """Prints the meaning of the colors and styles."""
    types = [
        Text(printable(key), style_of(Part.TEXT, token_type, target=True))
        for token_type, key in enumerate(config.data_config.metadata_config.metadata_list, 1)
    ]
    styles = [
        Text("italic: prefix, suffix", style_of(Part.PREFIX, 0, target=True)),
        Text("bold: metadata in the text", style_of(Part.LOCAL, 0, target=True)),
        Text("faint: no loss is taken", style_of(Part.TEXT, 0, target=False)),
    ]

    lines = [Text("metadata: ").append(Text(", ").join(types)), Text("; ").join(styles)]
    if config.tokens:
        lines.append(Text(f"{BOUNDARY} begins a token; {INSIDE_CHARACTER} ends inside a character"))
    console.print(Group(Rule(style="dim"), *lines), highlight=False)


def make_heading(text: str) -> Rule:
    """Returns a horizontal rule with a title."""
    return Rule(Text(printable(text), "bold"), align="left", style=FAINT)


def color_tokens(tokens: Sequence[ShownToken], *, boundaries: bool) -> Text:
    """Returns the text of a chunk, styled token by token."""
    parts: list[tuple[str, Style]] = []
    for index, token in enumerate(tokens):
        text = token.text
        if boundaries:
            text = text.replace("\n", "↵\n") or INSIDE_CHARACTER
            parts.append((BOUNDARY if index else "", FAINT))
        parts.append((text, style_of(token.part, token.token_type, target=token.target)))

    styled = Text()
    for style, alike in itertools.groupby(parts, key=operator.itemgetter(1)):
        styled.append("".join(text for text, _ in alike), style)
    return styled


def style_of(part: Part, token_type: int, *, target: bool) -> Style:
    """Returns the style of a token."""
    return Style(
        color=COLORS[(token_type - 1) % len(COLORS)] if token_type else None,
        bold=part in (Part.LOCAL, Part.END),
        italic=part in (Part.PREFIX, Part.SUFFIX),
        dim=not target,
    )


def render_packing(window: ExplainedWindow, limit: int) -> Iterator[RenderableType]:
    """Yields a table of the sequences: the documents that share each, and its padding.

    Args:
        limit: As in `select_sequences`.
    """
    yield make_heading("packing")
    yield Text(printable(describe_packing(window)), FAINT)
    yield Text("the first sequences, and those with documents from above (bold):\n", FAINT)

    table = Table(box=None, pad_edge=False, header_style=FAINT)
    table.add_column("sequence", justify="right")
    table.add_column("to scale", no_wrap=True)
    table.add_column("padding", justify="right")
    table.add_column("document (chunk): tokens")
    for index in select_sequences(window, limit):
        sequence = window.sequences[index]
        labels = Text(" · ").join(
            Text(chunk.label, Style(bold=chunk.number in window.shown_numbers))
            for chunk in sequence
        )
        padding = str(window.padding(index))
        table.add_row(str(index + 1), draw_bar(sequence, window), padding, labels)
    yield table
    yield Text()


def draw_bar(sequence: Sequence[PackedChunk], window: ExplainedWindow) -> Text:
    """Draws a sequence to scale: full blocks for shown documents, dots for padding."""
    cells = ""
    end = 0
    for index, chunk in enumerate(sequence):
        end += chunk.counted
        block = "█" if chunk.number in window.shown_numbers else "▓▒"[index % 2]
        cells += block * (round(end * BAR_CELLS / window.capacity) - len(cells))
    return Text(cells).append("·" * (BAR_CELLS - len(cells)), FAINT)
