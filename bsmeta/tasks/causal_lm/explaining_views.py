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
    "cyan", "magenta", "green", "yellow", "bright_blue", "red", "bright_cyan", "bright_magenta"
)  # fmt: skip

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
        text: Its text, `printable`; "" if it ends inside a character, which is then part of the
            text of the character's last token.
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
        """The text of each of these consecutive tokens."""
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


def shown_tokens(chunk: Chunk, texts: TokenTexts) -> list[ShownToken]:
    """The tokens of a chunk, including its prefix."""
    ids = chunk.ids.tolist()
    types, targets = chunk.token_types.tolist(), chunk.loss_mask.tolist()
    shown = map(printable, texts(ids))
    return list(map(ShownToken, ids, shown, _parts(chunk), types, targets))


def metadata_mask(chunk: Chunk, config: MetadataConfig) -> np.ndarray:
    """Mask of the tokens that contain at least one character of metadata: bool [len(chunk)].

    With `treat_local_metadata_as_regular_text`, only tokens of the prefix and the suffix.
    """
    mask = chunk.token_types > 0
    if config.treat_local_metadata_as_regular_text:
        mask &= [part in (Part.PREFIX, Part.SUFFIX) for part in _parts(chunk)]
    return mask


def _parts(chunk: Chunk) -> list[Part]:
    encoded, part = chunk.document, slice(chunk.start, chunk.stop)
    parts = [
        Part.LOCAL if token_type else Part.TEXT for token_type in encoded.token_types[part].tolist()
    ]
    if encoded.suffix:  # before the end-of-text token
        end = len(encoded.ids) - 1
        for place in range(max(end - encoded.suffix, chunk.start), min(end, chunk.stop)):
            parts[place - chunk.start] = Part.SUFFIX
    if chunk.stop == len(encoded.ids):
        parts[-1] = Part.END
    return [Part.PREFIX] * chunk.prefix_length + parts


def described(
    document: ExplainedDocument, window: ExplainedWindow, texts: TokenTexts
) -> tuple[list[str], list[tuple[str, list[ShownToken]]]]:
    """Two lines about a document, and each of its chunks: what it consists of, and its tokens."""
    chunks = [shown_tokens(chunk, texts) for chunk in document.chunks]
    given = document.rendered.types
    others = [name for name in document.present if name not in given]
    metadata = f"metadata: {', '.join(given) or 'none'}"
    if others:
        metadata += f"; it also has {', '.join(others)}"
    if document.lacking:
        metadata += f"; no record of {', '.join(document.lacking)}"
    losses = [sum(token.target for token in tokens) for tokens in chunks]
    lengths = (
        f"{count(len(document.rendered.text), 'character')} of text, "
        f"{count(sum(map(len, chunks)), 'token')} in {count(len(chunks), 'chunk')}, "
        f"loss on {sum(losses):,}"
    )
    shown = []
    for place, (tokens, loss) in enumerate(zip(chunks, losses, strict=True)):
        numbers = Counter(token.part for token in tokens)
        parts = ", ".join(f"{part.value} {numbers[part]:,}" for part in Part if numbers[part])
        caption = (
            f"chunk {place + 1} of {len(chunks)}: {count(len(tokens), 'token')} ({parts}), "
            f"loss on {loss:,}; "
            f"sequence {document.sequences[place] + 1:,} of {len(window.sequences):,}"
        )
        shown.append((caption, tokens))
    return [metadata, lengths], shown


def packing_facts(window: ExplainedWindow) -> str:
    """Describes how densely a window is packed."""
    chunks = sum(map(len, window.sequences))
    used = sum(chunk.counted for sequence in window.sequences for chunk in sequence)
    places = max(len(window.sequences) * window.capacity, 1)
    which = f"documents {window.first} to {window.last} of {window.shard}"
    if window.count <= window.last - window.first:
        which = f"{window.count:,} of {which} (the others are in windows of other streams)"
    return (
        f"{which} are one window: "
        f"{count(chunks, 'chunk')} in {count(len(window.sequences), 'sequence')} of "
        f"{window.capacity:,} tokens{' of text' if window.by_text else ''}, "
        f"{used / places:.1%} full"
    )


def shown_sequences(window: ExplainedWindow, most: int) -> list[int]:
    """Indices of the first `most` sequences, and of at most `most` others of shown documents."""
    own = {place for document in window.documents for place in document.sequences}
    others = sorted(place for place in own if place >= most)
    return [*range(min(most, len(window.sequences))), *others[:most]]


def count(number: int, name: str) -> str:
    """`1 chunk`, `2,000 chunks`."""
    return f"{number:,} {name}" + ("" if number == 1 else "s")


def json_line(document: ExplainedDocument, config: MetadataConfig) -> str:
    """One document as a line of JSON, without the newline.

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
    text, prefix = document.rendered.whole, document.rendered.prefix
    return json.dumps({"document": document.name, "text": text, "prefix": prefix, "pieces": chunks})


def page(windows: Sequence[ExplainedWindow], config: ExplainConfig, texts: TokenTexts) -> str:
    """The page as HTML source."""
    return load_template("tasks/causal_lm/explained.html.j2").render(
        windows=windows,
        config=config,
        data=config.data_config,
        files=train_files(config.data_config),
        keys=config.data_config.metadata_config.metadata_list,
        described=partial(described, texts=texts),
        packing_facts=packing_facts,
        shown_sequences=shown_sequences,
    )


def show(
    window: ExplainedWindow, console: Console, config: ExplainConfig, texts: TokenTexts
) -> None:
    """Print the documents to show of a window, then its packing."""
    parts: list[RenderableType] = []
    for document in window.documents:
        lines, chunks = described(document, window, texts)
        parts += [heading(document.name), *(Text(printable(line), FAINT) for line in lines)]
        for caption, tokens in chunks:
            parts += [Text(f"\n{caption}", FAINT), colored(tokens, boundaries=config.tokens)]
        parts.append(Text())
    if config.sequences:
        parts += packing(window, config.sequences)
    console.print(Group(*parts), highlight=False)


def show_legend(console: Console, config: ExplainConfig) -> None:
    """Print the meaning of the colors and styles."""
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


def heading(text: str) -> Rule:
    """A horizontal rule with a title."""
    return Rule(Text(printable(text), "bold"), align="left", style=FAINT)


def colored(tokens: Sequence[ShownToken], *, boundaries: bool) -> Text:
    """The text of a chunk, styled token by token."""
    parts: list[tuple[str, Style]] = []
    for place, token in enumerate(tokens):
        text = token.text
        if boundaries:
            text = text.replace("\n", "↵\n") or INSIDE_CHARACTER
            parts.append((BOUNDARY if place else "", FAINT))
        parts.append((text, style_of(token.part, token.token_type, target=token.target)))
    shown = Text()
    for style, alike in itertools.groupby(parts, key=operator.itemgetter(1)):
        shown.append("".join(text for text, _ in alike), style)
    return shown


def style_of(part: Part, token_type: int, *, target: bool) -> Style:
    """The style of a token."""
    return Style(
        color=COLORS[(token_type - 1) % len(COLORS)] if token_type else None,
        bold=part in (Part.LOCAL, Part.END),
        italic=part in (Part.PREFIX, Part.SUFFIX),
        dim=not target,
    )


def packing(window: ExplainedWindow, most: int) -> Iterator[RenderableType]:
    """Yield a table of the sequences: the documents that share each, and its padding."""
    yield heading("packing")
    yield Text(printable(packing_facts(window)), FAINT)
    yield Text("the first sequences, and those with documents from above (bold):\n", FAINT)
    table = Table(box=None, pad_edge=False, header_style=FAINT)
    table.add_column("sequence", justify="right")
    table.add_column("to scale", no_wrap=True)
    table.add_column("padding", justify="right")
    table.add_column("document (chunk): tokens")
    for place in shown_sequences(window, most):
        sequence = window.sequences[place]
        chunks = Text(" · ").join(
            Text(chunk.label, Style(bold=chunk.number in window.shown)) for chunk in sequence
        )
        left = window.padding(place)
        table.add_row(str(place + 1), bar(sequence, window), str(left), chunks)
    yield table
    yield Text()


def bar(sequence: Sequence[PackedChunk], window: ExplainedWindow) -> Text:
    """A bar with a sequence to scale: full blocks for shown documents, dots for padding."""
    cells, end = "", 0
    for place, chunk in enumerate(sequence):
        end += chunk.counted
        block = "█" if chunk.number in window.shown else "▓▒"[place % 2]
        cells += block * (round(end * BAR_CELLS / window.capacity) - len(cells))
    return Text(cells).append("·" * (BAR_CELLS - len(cells)), FAINT)
