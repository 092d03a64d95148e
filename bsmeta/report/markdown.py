r"""Builds GitHub's Markdown from texts; data stays text, whatever it contains.

Every writer of Markdown uses these functions. `escape_inline` escapes all characters that could
begin an element (HTML, links, images, emphasis, formulas, autolinks, cells). It uses backslashes,
but entities for `<`, `>` and `&`, because some renderers pass HTML after a backslash. Sentences of
reports have two kinds of markup, `**strong**` and backticks (`split_sentence`), which every form of
a report shows.

Specification: https://github.github.com/gfm (0.29).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum

from bsmeta.core.printable import make_printable

LINE_END = "↵"
"""Replaces a line end, which would begin a new line of the document."""

_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
# A bracket is part of a link only before the characters of its lookahead, and an underscore inside
# a word begins no emphasis. The last line matches in web and mail addresses, which become links
# without any markup.
_MARKUP_CHARACTER = re.compile(
    r"[\\`*{|~$<>&]|\](?=[\[(:])|\[(?=\^)|(?<![^\W_])_|_(?![^\W_])"
    r"|(?<=http):(?=//)|(?<=https):(?=//)|(?<=ftp):(?=//)|(?<=\bwww)\.|(?<=\w)@(?=\w)",
    re.IGNORECASE,
)
_LINE_ENDS = re.compile("\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
# The beginnings of a heading, a link target, a list item and a horizontal rule.
_BLOCK_START = re.compile(r"(?=[#\[])|(?=([-+])(?:\s|$|\1))|(\d{1,9})(?=[.)](?:\s|$))")
_MARKUP = re.compile(r"\*\*(?P<strong>.+?)\*\*|`(?P<code>[^`]+)`")


class Part(Enum):
    """The markup of a part of a sentence."""

    TEXT = "text"
    STRONG = "strong"
    CODE = "code"


def split_sentence(sentence: str) -> Iterator[tuple[Part, str]]:
    """Splits a sentence at `**strong**` and backticks; yields the markup and text of each part."""
    end = 0
    for match in _MARKUP.finditer(sentence):
        if match.start() > end:
            yield Part.TEXT, sentence[end : match.start()]
        part = Part.STRONG if match["code"] is None else Part.CODE
        yield part, match[part.value]
        end = match.end()
    if end < len(sentence):
        yield Part.TEXT, sentence[end:]


def join_lines(text: str) -> str:
    """Makes a text printable and replaces its line ends; white space around it is removed."""
    return make_printable(_LINE_ENDS.sub(LINE_END, text).replace("\t", " ")).strip()


def escape_inline(text: str) -> str:
    """Escapes a text inside a line, so that no part of it is read as markup."""
    return _MARKUP_CHARACTER.sub(_escape_character, join_lines(text))


def escape_paragraph(text: str) -> str:
    """Escapes a text for the beginning of a line, where it could begin a list or heading."""
    return _begin_paragraph(escape_inline(text))


def escape_sentence(text: str) -> str:
    """Escapes a sentence for the beginning of a line; `**strong**` and backticks stay markup."""
    escaped = []
    for part, part_text in split_sentence(join_lines(text)):
        if part is Part.CODE:
            escaped.append(format_code(part_text))
        elif part is Part.STRONG:
            escaped.append(f"**{escape_inline(part_text)}**")
        else:
            # Not by `escape_inline`, which would strip the white space around other parts.
            escaped.append(_MARKUP_CHARACTER.sub(_escape_character, part_text))
    return _begin_paragraph("".join(escaped))


def format_code(text: str) -> str:
    """Formats a text as a code span; an empty text stays empty."""
    text = join_lines(text)
    if not text:
        return ""

    fence = "`" * (_count_longest_backticks(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def format_code_block(text: str, language: str = "") -> str:
    """Formats lines of text as a code block.

    Args:
        language: Name of the language, for highlighting.
    """
    fence = "`" * max(_count_longest_backticks(text) + 1, 3)  # longer than any in the text
    lines = make_printable(text).replace("\r\n", "\n").rstrip("\n")
    return f"{fence}{language}\n{lines}\n{fence}"


def format_heading(text: str, level: int) -> str:
    """Formats a heading; level 1 is the title of a document."""
    return f"{'#' * level} {escape_inline(text)}"


def format_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], are_numbers: Sequence[bool]
) -> str:
    """Formats a table of cells that are already Markdown.

    Args:
        heads: The head of each column.
        rows: The cells of each row.
        are_numbers: Whether each column has numbers, which are aligned to the right.
    """
    alignments = ["---:" if is_number else "---" for is_number in are_numbers]
    lines = [_format_row(heads), f"|{'|'.join(alignments)}|"]
    lines += [_format_row(cells) for cells in rows]
    return "\n".join(lines)


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def format_code_cell(text: str) -> str:
    """Formats a text as a code span in a table, where an unescaped bar would end the cell."""
    return format_code(text).replace("|", "\\|")


def explain_undrawn(name: str, problem: str) -> str:
    """Returns the sentence that replaces a figure that could not be drawn."""
    return f"The figure {format_code(name)} could not be drawn: {escape_inline(problem)}"


def _escape_character(character: re.Match[str]) -> str:
    return _ENTITIES.get(character[0], f"\\{character[0]}")


def _begin_paragraph(escaped: str) -> str:
    """Escapes the start of a line that would otherwise begin another block than a paragraph."""
    if not _BLOCK_START.match(escaped):
        return escaped
    return _BLOCK_START.sub(r"\2\\", escaped, count=1)


def _count_longest_backticks(text: str) -> int:
    """Counts the backticks in the longest run of them."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
