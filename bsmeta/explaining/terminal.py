"""Prints documents to a terminal: a color per metadata type, tokens without loss are faint."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Container, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.style import Style
from rich.table import Table
from rich.text import Text

from bsmeta.config.causal_lm import ExplainConfig
from bsmeta.explaining.facts import (
    Part,
    ShownToken,
    TokenTexts,
    chunk_facts,
    chunk_name,
    document_facts,
    harmless,
    packing_facts,
    padding,
    shown_sequences,
    shown_tokens,
)
from bsmeta.explaining.selection import ExplainedDocument, ExplainedWindow, PackedChunk

# The terminal's palette colors, which its theme makes readable on its background.
COLOURS = (
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


class TerminalView:
    """Prints documents and windows.

    Args:
        config: The configuration; `tokens`, `sequences` and `metadata_list` are used.
    """

    def __init__(self, console: Console, config: ExplainConfig, texts: TokenTexts) -> None:
        self._console = console
        self._keys = config.data_config.metadata_config.metadata_list
        self._texts = texts
        self._boundaries = config.tokens
        self._sequences = config.sequences

    def show(self, window: ExplainedWindow) -> None:
        """Print the documents to show of a window, then its packing."""
        for document in window.documents:
            self._print(*self._document(document, len(window.sequences)))
        if self._sequences:
            self._print(*packing(window, self._sequences))

    def show_legend(self) -> None:
        """Print the meaning of the colors."""
        self._print(Rule(style="dim"), *legend(self._keys, boundaries=self._boundaries))

    def _print(self, *parts: RenderableType) -> None:
        self._console.print(Group(*parts), highlight=False)

    def _document(self, document: ExplainedDocument, sequences: int) -> Iterator[RenderableType]:
        yield heading(document.name)
        chunks = [shown_tokens(chunk, document.rendered, self._texts) for chunk in document.chunks]
        for line in document_facts(document, chunks):
            yield Text(line, FAINT)
        for place, tokens in enumerate(chunks):
            yield Text(f"\n{chunk_facts(document, place, tokens, sequences)}", FAINT)
            yield coloured(tokens, boundaries=self._boundaries)
        yield Text()


def heading(text: str) -> Rule:
    """A horizontal rule with a title."""
    return Rule(Text(text, "bold"), align="left", style=FAINT)


def coloured(tokens: Sequence[ShownToken], *, boundaries: bool) -> Text:
    """The text of a chunk, styled token by token."""
    parts: list[tuple[str, Style]] = []
    for place, token in enumerate(tokens):
        text = harmless(token.text)
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
        color=COLOURS[(token_type - 1) % len(COLOURS)] if token_type else None,
        bold=part in (Part.LOCAL, Part.END),
        italic=part in (Part.PREFIX, Part.SUFFIX),
        dim=not target,
    )


def legend(keys: Sequence[str], *, boundaries: bool) -> Iterator[Text]:
    """Yield the lines that explain the colors and styles."""
    types = [
        Text(key, style_of(Part.TEXT, token_type, target=True))
        for token_type, key in enumerate(keys, 1)
    ]
    yield Text("metadata: ").append(Text(", ").join(types))
    styles = [
        Text("italic: prefix, suffix", style_of(Part.PREFIX, 0, target=True)),
        Text("bold: metadata in the text", style_of(Part.LOCAL, 0, target=True)),
        Text("faint: no loss is taken", style_of(Part.TEXT, 0, target=False)),
    ]
    yield Text("; ").join(styles)
    if boundaries:
        yield Text(f"{BOUNDARY} begins a token; {INSIDE_CHARACTER} ends inside a character")


def packing(window: ExplainedWindow, most: int) -> Iterator[RenderableType]:
    """Yield a table of the sequences: the documents that share each, and its padding."""
    yield heading("packing")
    yield Text(packing_facts(window), FAINT)
    yield Text("the first sequences, and those with documents from above (bold):\n", FAINT)
    table = Table(box=None, pad_edge=False, header_style=FAINT)
    table.add_column("sequence", justify="right")
    table.add_column("to scale", no_wrap=True)
    table.add_column("padding", justify="right")
    table.add_column("document (chunk): tokens")
    shown = {int(document.name.rpartition(":")[2]) for document in window.documents}
    for place in shown_sequences(window, most):
        sequence = window.sequences[place]
        chunks = Text(" · ").join(
            Text(chunk_name(chunk), Style(bold=chunk.number in shown)) for chunk in sequence
        )
        left = padding(sequence, window.capacity)
        table.add_row(str(place + 1), bar(sequence, window.capacity, shown), str(left), chunks)
    yield table
    yield Text()


def bar(sequence: Sequence[PackedChunk], capacity: int, shown: Container[int]) -> Text:
    """A bar with a sequence to scale: full blocks for shown documents, dots for padding."""
    cells, end = "", 0
    for place, chunk in enumerate(sequence):
        end += chunk.length
        block = "█" if chunk.number in shown else "▓▒"[place % 2]
        cells += block * (round(end * BAR_CELLS / capacity) - len(cells))
    return Text(cells).append("·" * (BAR_CELLS - len(cells)), FAINT)
