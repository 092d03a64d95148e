r"""GitHub's Markdown from texts: what is data stays text, whatever it contains.

Every writer of Markdown builds on these functions. `inline` escapes all that could begin an element
(HTML, links, images, emphasis, formulas, autolinks, cells) with a backslash, or as an entity: `<`
and `&`, because some renderers pass HTML after a backslash. Sentences of reports have a markup of
their own, `**strong**` and backticks (`parts`), which every form of a report shows.

Specification: https://github.github.com/gfm (0.29).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

from bsmeta.core.printable import printable

LINE_END = "↵"
"""Stands for a line end, which would begin a new line of the document."""

_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
# Without what follows them, brackets are part of no link; an underscore inside a word begins no
# emphasis. The last parts are of addresses of pages and mail, which are links without any markup.
_ACTIVE = re.compile(
    r"[\\`*{|~$<>&]|\](?=[\[(:])|\[(?=\^)|(?<![^\W_])_|_(?![^\W_])"
    r"|(?<=http):(?=//)|(?<=https):(?=//)|(?<=ftp):(?=//)|(?<=\bwww)\.|(?<=\w)@(?=\w)",
    re.IGNORECASE,
)
_LINE_ENDS = re.compile("\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
# A heading, the target of a link, an item of a list, a line across.
_BLOCK_START = re.compile(r"(?=[#\[])|(?=([-+])(?:\s|$|\1))|(\d{1,9})(?=[.)](?:\s|$))")
_MARKUP = re.compile(r"\*\*(?P<strong>.+?)\*\*|`(?P<code>[^`]+)`")


class Part(Enum):
    """What a part of a sentence is."""

    TEXT = "text"
    STRONG = "strong"
    CODE = "code"


def parts(sentence: str) -> Iterator[tuple[Part, str]]:
    """Yields the parts of a sentence: those between `**` or backticks, and the text around them."""
    end = 0
    for match in _MARKUP.finditer(sentence):
        if match.start() > end:
            yield Part.TEXT, sentence[end : match.start()]
        part = Part.STRONG if match["code"] is None else Part.CODE
        yield part, match[part.value]
        end = match.end()
    if end < len(sentence):
        yield Part.TEXT, sentence[end:]


def in_one_line(text: str) -> str:
    """A text that is printable, without line ends, and without white space around it."""
    return printable(_LINE_ENDS.sub(LINE_END, text).replace("\t", " ")).strip()


def inline(text: str) -> str:
    """A text inside a line; nothing in it is markup."""
    return _ACTIVE.sub(_escape, in_one_line(text))


def paragraph(text: str) -> str:
    """A text at the beginning of a line; it begins no other block than a paragraph."""
    return _begin_paragraph(inline(text))


def sentence(text: str) -> str:
    """A sentence at the beginning of a line; its `**strong**` and its backticks are markup."""
    written = []
    for part, own in parts(in_one_line(text)):
        if part is Part.CODE:
            written.append(code(own))
        elif part is Part.STRONG:
            written.append(f"**{inline(own)}**")
        else:
            written.append(_ACTIVE.sub(_escape, own))  # white space at its ends stays
    return _begin_paragraph("".join(written))


def code(text: str) -> str:
    """A text as a code span; nothing if it is empty."""
    text = in_one_line(text)
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def fenced(text: str, language: str = "") -> str:
    """Lines of text as a block of code, which they cannot end."""
    fence = "`" * max(_longest_run(text) + 1, 3)
    lines = printable(text).replace("\r\n", "\n").rstrip("\n")
    return f"{fence}{language}\n{lines}\n{fence}"


def heading(text: str, level: int) -> str:
    """A heading."""
    return f"{'#' * level} {inline(text)}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> str:
    """A table of cells that are Markdown already.

    Args:
        heads: The head of each column.
        rows: The cells of each row.
        numbers: Whether each column has numbers, which are aligned to the right.
    """
    marks = ["---:" if is_number else "---" for is_number in numbers]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(marks)}|", *lines[1:]])


def code_cell(text: str) -> str:
    """A text as a code span in a table, where a bar would end the cell."""
    return code(text).replace("|", "\\|")


def undrawn(name: str, problem: str) -> str:
    """A sentence in the place of a figure that could not be drawn."""
    return f"The figure {code(name)} could not be drawn: {inline(problem)}"


def _escape(character: re.Match[str]) -> str:
    return _ENTITIES.get(character[0], f"\\{character[0]}")


def _begin_paragraph(escaped: str) -> str:
    return _BLOCK_START.sub(r"\2\\", escaped, count=1) if _BLOCK_START.match(escaped) else escaped


def _longest_run(text: str) -> int:
    """The number of backticks in the longest run of them."""
    return max(map(len, re.findall("`+", text)), default=0)
