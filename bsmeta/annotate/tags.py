"""The rules for the elements of a page, and the text and tags that are written by them.

`Rules` has what becomes of an element, by its name. A `TagWriter` appends text and tags while the
tree is walked in document order. It takes linear time, and takes back the end of what it wrote when
an element turns out to be too short to keep.

White space outside `pre` is collapsed, and a separator (a space or line breaks) is held back until
the next text. So the text neither begins nor ends with white space, and a tag starts at its first
character.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from selectolax.lexbor import LexborNode

from bsmeta.metadata.processors import HtmlAttributes

Profile = Literal["published", "all"]

LONGEST_REMOVED = 64  # characters of an element that is removed for being short

NOTHING, SPACE, LINE = range(3)  # separators; each number above LINE adds an empty line

KEEP, HOLLOW, BREAK, SKIP = range(4)

Rule = tuple[int, str, int, int, bool, bool]
"""How nodes of one name (not text) are handled.

The action (`KEEP`, `HOLLOW` to keep the tag without its content, `BREAK`, `SKIP` with everything in
it); the name; the separator that sets the element off, or what is removed; the number of characters
below which it is removed, counted before anything in it is; whether white space in it is kept;
whether it is folded with an element of its name that is the only one in it.
"""

_KNOWN_IDS = 1000  # lexbor's numbers of the names that it knows; other numbers differ by page
_NO_ATTRIBUTES = HtmlAttributes([], [])

Open = tuple[LexborNode, Rule, list[int], int, int, int, int, int, int, int, int]
"""An element that has begun, its rule, and the state of its `TagWriter` then.

Where it starts, as in `_start`; the numbers of tags and of chunks of text; the count of starts and
ends, in all and before the end of the text; the length of the text; the separator held back; the
raw length; and how many elements around it it is folded into.
"""

_SPACES = re.compile(r"[ \t\n\f\r]+")


def names(words: str) -> frozenset[str]:
    """A set of element names, from a string of them."""
    return frozenset(words.split())


_NOT_TEXT = names("script style template iframe noembed noframes")
_REMOVED = names("header footer form")
_REMOVED_IF_SHORT = names("body div p section table ul ol dl")
_FOLDED = names("div")
_BLOCKS = names(
    """address article aside blockquote body button canvas caption col colgroup dd div dl dt embed
    fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li map noscript object
    ol output p pre progress section table tbody textarea tfoot th thead tr ul video"""
)
_SPACED = names(
    """address cite details datalist iframe img input label legend optgroup q select summary tbody
    td time"""
)


class Rules(dict[int, Rule]):
    """The rules of a profile for the names that lexbor numbers; see `parse_page`."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self._removes = profile == "published"

    def rule(self, node: LexborNode) -> Rule:
        """The rule for a node that has none yet."""
        name = (node.tag or "-").lower()
        separator = LINE if name in _BLOCKS else SPACE if name in _SPACED else NOTHING
        action, least = KEEP, 0
        if name == "br":
            action = BREAK
        elif name.startswith("-"):  # a comment, or another node that is not an element
            action = SKIP
        elif name in _NOT_TEXT:
            action = SKIP if self._removes else HOLLOW
        elif self._removes and name in _REMOVED:
            action = SKIP
        elif self._removes and name in _REMOVED_IF_SHORT:
            least = LONGEST_REMOVED + 1
        if action == SKIP and not name.startswith("-"):
            separator = SPACE
        folds = self._removes and name in _FOLDED
        rule = action, name, separator, least, name == "pre", folds
        if node.tag_id < _KNOWN_IDS:
            self[node.tag_id] = rule
        return rule


class TagRecord(msgspec.Struct, gc=False):
    """An html tag in the form of a record of the `metadata_html` column.

    The relative positions are the places of its start and of its end among all starts and ends at
    that offset. The attributes are not to be changed, because tags share them.
    """

    value: str
    char_start_idx: int
    relative_start_pos: int
    char_end_idx: int
    relative_end_pos: int
    html_attrs: HtmlAttributes
    key: str = "html"
    type: str = "local"


_OPEN_TAG = TagRecord("", 0, 0, 0, 0, _NO_ATTRIBUTES)


def raw_length(text: str) -> int:
    """The length of a text with the white space of HTML collapsed; a no-break space is none."""
    return len(_SPACES.sub(" ", text))


class TagWriter:
    """Appends to a text and its tags; plain lists and few calls, for speed.

    Starts and ends are counted in document order, and only text moves the offset: a relative
    position is this count, less what it was before the first start or end at the same offset.
    """

    __slots__ = (
        "_base", "_chunks", "_count", "_folded", "_length", "_single", "_start", "_tags",
        "_wrote_pre", "pending", "raw",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pending = NOTHING
        self.raw = 0
        self._chunks: list[str] = []
        self._length = 0
        self._wrote_pre = False
        self._tags: list[TagRecord] = []  # `_OPEN_TAG` while open
        self._count = 0  # of starts and ends
        self._base = 0  # how many of them are before the end of the text
        # Shared by the elements begun since the last text, which start at one offset: the count
        # before the first of them and, once known, the offset and the count before it.
        self._start: list[int] | None = None
        self._single: dict[tuple[str, str | None], HtmlAttributes] = {}
        self._folded: list[HtmlAttributes] = []  # of ended elements, for the one around them

    def write(self, text: str, is_pre: int) -> tuple[int, int]:
        """Appends text that is not empty, and outside `pre` not blank.

        Returns:
            Where it starts, and the count of starts and ends before that offset.
        """
        pending = self.pending
        if is_pre:
            words, self.pending, self._wrote_pre = text, NOTHING, True
            self.raw += len(text)
        else:
            words = " ".join(text.split())
            self.pending = NOTHING
            self.raw += len(words)
            if len(words) < len(text):
                is_set_off, is_followed = text[0] != words[0], text[-1] != words[-1]
                self.raw += is_set_off + is_followed
                if "\xa0" in text:
                    self.raw += raw_length(text) - len(words) - is_set_off - is_followed
                if is_set_off and not pending:
                    pending = SPACE
                if is_followed:
                    self.pending = SPACE
        start = length = self._length
        if pending and length:
            separator = " " if pending == SPACE else "\n" * (pending - 1)
            if self._wrote_pre:
                last = self._chunks[-1][-1]
                if last == "\n" or (pending == SPACE and last.isspace()):
                    separator = separator[1:]
            self._chunks.append(separator)
            start += len(separator)
        if self._start is None:
            base = self._base if start == length else self._count
        else:
            base = self._base if start == length else self._start[0]
            self._start += start, base
            self._start = None
        self._chunks.append(words)
        self._length = start + len(words)
        self._base = self._count
        return start, base

    def add(self, rule: Rule, node: LexborNode, text: str, is_pre: int) -> None:
        """Adds an element that has only text and is kept; faster than to begin and end it."""
        _, name, separator, _, _, _ = rule
        if separator > self.pending:
            self.pending = separator
        start, base = self.write(text, is_pre)
        count = self._count
        self._base = count + 1
        self._count = count + 2
        attributes = self._attributes(node)
        self._tags.append(TagRecord(name, start, count - base, self._length, 0, attributes))
        if separator > self.pending:
            self.pending = separator

    def blank(self, text: str) -> None:
        """Notes white space."""
        self.raw += raw_length(text) if "\xa0" in text else 1
        if not self.pending:
            self.pending = SPACE

    def open(self, node: LexborNode, rule: Rule, folded: int = 0) -> Open:
        """Begins an element; one that is folded becomes no tag."""
        separator = rule[2]
        count = self._count
        start = self._start
        if start is None:
            start = self._start = [count]
        pending = self.pending
        tags = self._tags
        element = (
            node, rule, start, len(tags), len(self._chunks), count, self._base, self._length,
            pending, self.raw, folded,
        )  # fmt: skip
        if separator > pending:
            self.pending = separator
        if not folded:
            tags.append(_OPEN_TAG)
            self._count = count + 1
        return element

    def close(self, element: Open) -> None:
        """Ends an element, and removes it if it is too short."""
        node, rule, start, row, _, place, _, _, _, raw, folded = element
        _, name, separator, least, _, _ = rule
        if folded:
            self._folded.append(self._attributes(node))
        elif self.raw - raw < least:
            self._take_back(element)
            return
        else:
            length = self._length
            if len(start) == 1:
                start += length, self._base
            self._start = None
            _, first, base = start
            count = self._count
            attributes = self._attributes(node)
            if self._folded:
                attributes = _joined([*self._folded, attributes])
                self._folded = []
            self._tags[row] = TagRecord(
                name, first, place - base, length, count - self._base, attributes
            )
            self._count = count + 1
        if separator > self.pending:
            self.pending = separator

    def _attributes(self, node: LexborNode) -> HtmlAttributes:
        attributes = node.attributes
        if not attributes:
            return _NO_ATTRIBUTES
        if len(attributes) == 1:  # often the same, such as a class
            attribute = attributes.popitem()
            shared = self._single.get(attribute)
            if shared is None:
                name, value = attribute
                shared = self._single[attribute] = HtmlAttributes([name], [value or ""])
            return shared
        values: list[str | int | float | None] = [*attributes.values()]
        if None in values:
            values = [value or "" for value in values]
        return HtmlAttributes([*attributes], values)

    def _take_back(self, element: Open) -> None:
        _, _, start, tags, chunks, self._count, self._base, self._length, pending, _, _ = element
        self.pending = pending or SPACE
        self._folded = []
        del self._tags[tags:], self._chunks[chunks:]
        del start[1:]  # also of the elements around it that begin with it
        self._start = start

    def result(self) -> tuple[str, list[TagRecord]]:
        """The text, and the tags in document order, after the last element ended."""
        return "".join(self._chunks), self._tags


def _joined(chain: list[HtmlAttributes]) -> HtmlAttributes:
    """The attributes of nested elements, innermost first, as those of one element."""
    joined: dict[str, list[str]] = {}
    for attributes in reversed(chain):
        for name, value in zip(attributes.attrs, attributes.values, strict=True):
            joined.setdefault(name, []).append(str(value))
    return HtmlAttributes(list(joined), [" ".join(values) for values in joined.values()])
