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
from html import escape

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.style import Style
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from bsmeta.config.causal_lm import ExplainConfig
from bsmeta.config.data import BY_TEXT, train_files
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.chunks import Chunk
from bsmeta.data.text.tokenizer import byte_alphabet, byte_lengths
from bsmeta.tasks.causal_lm.explaining import ExplainedDocument, ExplainedWindow, PackedChunk

# Characters that would move the cursor, color the terminal or change the text direction.
_CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}

STYLE = """
:root { color-scheme: light dark; --text: #1d2025; --faint: #666b72; --ground: #fff;
        --panel: #f5f6f7; --line: #c9ccd1; --chunk: #dfe2e6; --own: #8fc7a8;
        --cut: #2f7fd0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e6e9; --faint: #8d939b; --ground: #16181c; --panel: #202329; --line: #454a52;
          --chunk: #343941; --own: #2f6b4b; --cut: #7db4ec; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground);
       max-width: 66rem; margin: 0 auto; padding: 1rem 1.5rem 5rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 2.5rem 0 .3rem; word-break: break-all; }
h3 { font-size: .85rem; font-weight: normal; color: var(--faint); margin: 1.2rem 0 .3rem; }
p { margin: .2rem 0; } .facts { color: var(--faint); font-size: .9rem; }
.legend { position: sticky; top: 0; background: var(--ground); padding: .6rem 0; z-index: 1;
          border-bottom: 1px solid var(--line); font-size: .85rem; }
.legend span { margin-right: .4rem; padding: .1rem .35rem; border-radius: .2rem; }
.legend label { margin-right: 1.2rem; white-space: nowrap; }
.chunk { font: 13.5px/1.75 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
         white-space: pre-wrap; overflow-wrap: anywhere; background: var(--panel);
         padding: .7rem .9rem; border-radius: .4rem; }
.out { font-style: italic; } .in, .end { font-weight: bold; }
.newline { color: var(--line); font-weight: normal; user-select: none; }
body:has(#loss:checked) .no { color: var(--faint);
  text-decoration: underline dotted var(--faint) 1px; text-underline-offset: .25em; }
body:has(#tokens:checked) .chunk i { border-left: 1px solid var(--cut);
  margin-left: 1px; padding-left: 1px; }
.chunk i { font-style: inherit; } .chunk i.out { font-style: italic; }
[data-t]:hover { outline: 1px solid var(--text); }
[data-t]:hover::after { content: attr(data-t); position: fixed; left: 0; right: 0; bottom: 0;
  font: 14px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; color: var(--ground);
  background: var(--text); padding: .6rem 1.5rem; white-space: pre-wrap; z-index: 2; }
table { border-collapse: collapse; width: 100%; font-size: .8rem; margin-top: .5rem;
        font-variant-numeric: tabular-nums; }
th { font-weight: normal; color: var(--faint); text-align: right; }
td { padding: .12rem 0 .12rem .6rem; text-align: right; } td:nth-child(2) { width: 85%; }
.bar { display: flex; height: 1.5rem; gap: 1px; }
.bar span { background: var(--chunk); overflow: hidden; white-space: nowrap; text-align: left;
            padding: .1rem 0 0 .3rem; min-width: 0; box-sizing: border-box; }
.bar .own { font-weight: bold; background: var(--own); }
.bar .padding { background:
  repeating-linear-gradient(45deg, var(--line) 0 1px, transparent 1px 6px); }
"""

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
        text: Its text; "" if it ends inside a character, which is then part of the text of the
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
    return list(map(ShownToken, ids, texts(ids), _parts(chunk), types, targets))


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


def harmless(text: str) -> str:
    """The text with control characters other than tab and newline made visible."""
    return text.translate(_CONTROLS)


def document_facts(
    document: ExplainedDocument, chunks: Sequence[Sequence[ShownToken]]
) -> tuple[str, str]:
    """Describes a document's metadata, and its lengths."""
    given = document.rendered.types
    others = [name for name in document.present if name not in given]
    metadata = f"metadata: {', '.join(given) or 'none'}"
    if others:
        metadata += f"; it also has {', '.join(others)}"
    if document.lacking:
        metadata += f"; no record of {', '.join(document.lacking)}"
    tokens = sum(map(len, chunks))
    targets = sum(token.target for chunk in chunks for token in chunk)
    lengths = (
        f"{count(len(document.rendered.text), 'character')} of text, {count(tokens, 'token')} in "
        f"{count(len(chunks), 'chunk')}, loss on {targets:,}"
    )
    return metadata, lengths


def chunk_facts(
    document: ExplainedDocument, place: int, tokens: Sequence[ShownToken], sequences: int
) -> str:
    """Describes the lengths of a chunk, by its index, and the sequence that it is packed into."""
    lengths = Counter(token.part for token in tokens)
    parts = ", ".join(f"{part.value} {lengths[part]:,}" for part in Part if lengths[part])
    return (
        f"chunk {place + 1} of {len(document.chunks)}: {count(len(tokens), 'token')} ({parts}), "
        f"loss on {sum(token.target for token in tokens):,}; "
        f"sequence {document.sequences[place] + 1:,} of {sequences:,}"
    )


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
    """Indices of the sequences to show: the first, then as many others with shown documents."""
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


PART_CLASSES = {
    Part.PREFIX: "out", Part.SUFFIX: "out", Part.LOCAL: "in", Part.END: "end", Part.TEXT: ""
}  # fmt: skip


def page(windows: Sequence[ExplainedWindow], config: ExplainConfig, texts: TokenTexts) -> str:
    """The page as HTML source."""
    data = config.data_config
    keys = data.metadata_config.metadata_list
    # Backgrounds that work in light and dark mode; the golden angle spreads the hues.
    colors = [
        f".k{number} {{ background: hsl({(number * 137.5 + 70) % 360:g} 75% 50% / .25); }}"
        for number in range(1, len(keys) + 1)
    ]
    choice = "drawn as in training" if config.types is None else f"types={config.types}"
    introduction = (
        f'<p class="facts">{escape(train_files(data))}; tokenizer '
        f"{escape(config.tokenizer_name or config.model_name)}; sequences of "
        f"{data.metadata_config.max_seq_len:,} tokens"
        f"{' of text' if data.row_budget == BY_TEXT else ''}; "
        f"seed {config.seed}, epoch {config.epoch}; "
        f"metadata {escape(choice)}</p>"
    )
    types = "".join(f'<span class="k{i}">{escape(key)}</span>' for i, key in enumerate(keys, 1))
    legend = (
        '<div class="legend">'
        '<label><input type="checkbox" id="tokens"> token boundaries</label>'
        '<label><input type="checkbox" id="loss" checked> mark tokens without loss '
        '<span class="no">like this</span></label>'
        '<label><span class="out">prefix, suffix</span><span class="in">metadata in the text'
        f"</span><span>text</span></label><br>metadata: {types}</div>"
    )
    body = ["<h1>Documents as the model sees them</h1>", introduction, legend]
    for window in windows:
        for document in window.documents:
            body += document_parts(document, len(window.sequences), keys, texts)
        if config.sequences:
            body += html_packing(window, config.sequences)
    inside = "\n".join(body)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<title>Documents as the model sees them</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}{' '.join(colors)}</style></head>\n<body>\n{inside}\n</body></html>\n"
    )


def document_parts(
    document: ExplainedDocument, sequences: int, keys: Sequence[str], texts: TokenTexts
) -> Iterator[str]:
    """Yield the HTML of a document: its description, and each of its chunks token by token."""
    yield f"<h2>{escape(document.name)}</h2>"
    chunks = [shown_tokens(chunk, texts) for chunk in document.chunks]
    for line in document_facts(document, chunks):
        yield f'<p class="facts">{escape(line)}</p>'
    for place, tokens in enumerate(chunks):
        yield f"<h3>{escape(chunk_facts(document, place, tokens, sequences))}</h3>"
        inside = "".join(token_part(i, token, keys) for i, token in enumerate(tokens))
        yield f'<div class="chunk">{inside}</div>'


def token_part(place: int, token: ShownToken, keys: Sequence[str]) -> str:
    """The HTML of a token, with the details that are shown on hover."""
    what, token_type = token.part.value, ""
    if token.token_type:
        what = f"{keys[token.token_type - 1]} ({what})"
        token_type = f"k{token.token_type}"
    possible = (PART_CLASSES[token.part], token_type, "" if token.target else "no")
    classes = [name for name in possible if name]
    named = f' class="{" ".join(classes)}"' if classes else ""
    plain = harmless(token.text)
    loss = "loss" if token.target else "no loss"
    about = escape(f"token {place}: id {token.id}, {what}, {loss}  {plain!r}")
    text = (escape(plain) or "·").replace("\n", '<span class="newline">↵</span>\n')
    return f'<i{named} data-t="{about}">{text}</i>'


def html_packing(window: ExplainedWindow, most: int) -> Iterator[str]:
    """Yield the HTML of the packing: the documents in each sequence, to scale."""
    yield f'<h2>Packing</h2><p class="facts">{escape(packing_facts(window))}; the first sequences, '
    yield "and those with documents from above (bold)</p>"
    yield "<table><tr><th>sequence<th><th>padding"
    for place in shown_sequences(window, most):
        parts = []
        for chunk in window.sequences[place]:
            own = ' class="own"' if chunk.number in window.shown else ""
            name = chunk.label
            parts.append(
                f'<span{own} style="flex:{chunk.counted} 0 0" '
                f'data-t="document {name} tokens">{name}</span>'
            )
        left = window.padding(place)
        if left:
            parts.append(
                f'<span class="padding" style="flex:{left} 0 0" data-t="padding: {left}"></span>'
            )
        yield f'<tr><td>{place + 1}<td><div class="bar">{"".join(parts)}</div><td>{left}'
    yield "</table>"


class TerminalView:
    """Prints documents and windows."""

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
            self._print(*rich_packing(window, self._sequences))

    def show_legend(self) -> None:
        """Print the meaning of the colors and styles."""
        types = [
            Text(key, style_of(Part.TEXT, token_type, target=True))
            for token_type, key in enumerate(self._keys, 1)
        ]
        styles = [
            Text("italic: prefix, suffix", style_of(Part.PREFIX, 0, target=True)),
            Text("bold: metadata in the text", style_of(Part.LOCAL, 0, target=True)),
            Text("faint: no loss is taken", style_of(Part.TEXT, 0, target=False)),
        ]
        lines = [Text("metadata: ").append(Text(", ").join(types)), Text("; ").join(styles)]
        if self._boundaries:
            ends = f"{BOUNDARY} begins a token; {INSIDE_CHARACTER} ends inside a character"
            lines.append(Text(ends))
        self._print(Rule(style="dim"), *lines)

    def _print(self, *parts: RenderableType) -> None:
        self._console.print(Group(*parts), highlight=False)

    def _document(self, document: ExplainedDocument, sequences: int) -> Iterator[RenderableType]:
        yield heading(document.name)
        chunks = [shown_tokens(chunk, self._texts) for chunk in document.chunks]
        for line in document_facts(document, chunks):
            yield Text(line, FAINT)
        for place, tokens in enumerate(chunks):
            yield Text(f"\n{chunk_facts(document, place, tokens, sequences)}", FAINT)
            yield colored(tokens, boundaries=self._boundaries)
        yield Text()


def heading(text: str) -> Rule:
    """A horizontal rule with a title."""
    return Rule(Text(text, "bold"), align="left", style=FAINT)


def colored(tokens: Sequence[ShownToken], *, boundaries: bool) -> Text:
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
        color=COLORS[(token_type - 1) % len(COLORS)] if token_type else None,
        bold=part in (Part.LOCAL, Part.END),
        italic=part in (Part.PREFIX, Part.SUFFIX),
        dim=not target,
    )


def rich_packing(window: ExplainedWindow, most: int) -> Iterator[RenderableType]:
    """Yield a table of the sequences: the documents that share each, and its padding."""
    yield heading("packing")
    yield Text(packing_facts(window), FAINT)
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
