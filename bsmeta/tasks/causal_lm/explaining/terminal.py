"""Documents as training sees them, on a terminal.

Each metadata type has a color, and tokens without loss are faint.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.style import Style
from rich.table import Table
from rich.text import Text

from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.core.printable import make_printable
from bsmeta.core.terminal import Console
from bsmeta.tasks.causal_lm.explaining.descriptions import (
    describe_document,
    describe_packing,
    select_sequences,
)
from bsmeta.tasks.causal_lm.explaining.windows import ExplainedWindow, PackedChunk
from bsmeta.tasks.causal_lm.shown_tokens import Part, ShownToken, TokenTexts

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


def show_window(
    window: ExplainedWindow, console: Console, config: ExplainConfig, texts: TokenTexts
) -> None:
    """Prints the selected documents of a window, then its packing."""
    renderables: list[RenderableType] = []
    for document in window.documents:
        view = describe_document(document, window, texts)
        renderables.append(make_heading(document.name))
        renderables += [Text(make_printable(line), FAINT) for line in view.lines]
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
        Text(make_printable(key), choose_style(Part.TEXT, token_type, target=True))
        for token_type, key in enumerate(config.data_config.metadata_config.metadata_list, 1)
    ]
    styles = [
        Text("italic: prefix, suffix", choose_style(Part.PREFIX, 0, target=True)),
        Text("bold: metadata in the text", choose_style(Part.LOCAL, 0, target=True)),
        Text("faint: no loss is taken", choose_style(Part.TEXT, 0, target=False)),
    ]

    type_line = Text("metadata: ").append(Text(", ").join(types))
    lines = [type_line, Text("; ").join(styles)]
    if config.tokens:
        lines.append(Text(f"{BOUNDARY} begins a token; {INSIDE_CHARACTER} ends inside a character"))
    console.print(Group(Rule(style="dim"), *lines), highlight=False)


def make_heading(text: str) -> Rule:
    """Returns a horizontal rule with a title."""
    return Rule(Text(make_printable(text), "bold"), align="left", style=FAINT)


def color_tokens(tokens: Sequence[ShownToken], *, boundaries: bool) -> Text:
    """Returns the text of a chunk, styled token by token."""
    parts: list[tuple[str, Style]] = []
    for index, token in enumerate(tokens):
        text = token.text
        if boundaries:
            text = text.replace("\n", "↵\n") or INSIDE_CHARACTER
            parts.append((BOUNDARY if index else "", FAINT))
        parts.append((text, choose_style(token.part, token.token_type, target=token.target)))

    styled = Text()
    for style, group in itertools.groupby(parts, key=operator.itemgetter(1)):
        styled.append("".join(text for text, _ in group), style)
    return styled


def choose_style(part: Part, token_type: int, *, target: bool) -> Style:
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
    yield Text(make_printable(describe_packing(window)), FAINT)
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
        padding = str(window.count_padding(index))
        table.add_row(str(index + 1), draw_bar(sequence, window), padding, labels)
    yield table
    yield Text()


def draw_bar(sequence: Sequence[PackedChunk], window: ExplainedWindow) -> Text:
    """Draws a sequence to scale: full blocks for shown documents, dots for padding."""
    cells = ""
    end = 0
    for index, chunk in enumerate(sequence):
        end += chunk.budgeted_length
        block = "█" if chunk.number in window.shown_numbers else "▓▒"[index % 2]
        cells += block * (round(end * BAR_CELLS / window.capacity) - len(cells))
    return Text(cells).append("·" * (BAR_CELLS - len(cells)), FAINT)
