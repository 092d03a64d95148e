"""The walk over a page's tree, which writes its text and its tags.

One pass in document order, without recursion, in time linear in the tree: a `_Writer` appends text
and tags, and takes back the end of what it wrote when an element turns out to be too short to keep.

White space outside `pre` is collapsed, and a separator (a space or line breaks) is held back until
the next text. So the text neither begins nor ends with white space, and a tag starts at its first
character.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from selectolax.lexbor import LexborNode

from bsmeta.metadata.processors import HtmlAttributes

Profile = Literal["published", "all"]


def names(words: str) -> frozenset[str]:
    """A set of element names, from a string of them."""
    return frozenset(words.split())


_NOT_TEXT = names("script style template iframe noembed noframes")
_REMOVED = names("header footer form")
_REMOVED_IF_SHORT = names("body div p section table ul ol dl")
_LONGEST_REMOVED = 64
_BLOCKS = names(
    """address article aside blockquote body button canvas caption col colgroup dd div dl dt embed
    fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li map noscript object
    ol output p pre progress section table tbody textarea tfoot th thead tr ul video"""
)
_SPACED = names(
    """address cite details datalist iframe img input label legend optgroup q select summary tbody
    td time"""
)

_NOTHING, _SPACE, _LINE = range(3)  # separators; each number above _LINE adds an empty line

_NO_ATTRIBUTES = HtmlAttributes([], [])


class TagRecord(msgspec.Struct, gc=False):
    """An html tag in the form of a record of the `metadata_html` column.

    Attributes:
        value: The tag's name.
        char_start_idx: Start of its span in the text.
        relative_start_pos: The place of its start among all starts and ends at that offset.
        char_end_idx: End of its span.
        relative_end_pos: The place of its end among them.
        html_attrs: Its attributes; not to be changed, because tags share them.
    """

    value: str
    char_start_idx: int
    relative_start_pos: int
    char_end_idx: int
    relative_end_pos: int
    html_attrs: HtmlAttributes
    key: str = "html"
    type: str = "local"


_TEXT, _KEEP, _HOLLOW, _BREAK, _SKIP = range(5)

_Rule = tuple[int, str, int, int, bool, bool]
"""What is done with the nodes of a name.

The fields: the action (`_TEXT`, `_BREAK`, `_SKIP` with everything in it, `_HOLLOW` to keep the tag
without its content, `_KEEP`); the name; the separator that sets the element off; the number of
characters below which it is removed; whether white space in it is kept; whether it is folded into
an element of its name that has nothing else in it.
"""

_Mark = tuple[list[int], int, int, int, int, int]
"""The state of a `_Writer` when an element began.

The fields: a list that holds the offset of the element's start once that is known; the numbers of
tags, of starts and ends, and of pieces of text; the length of the text; the separator held back.
"""

_KNOWN_IDS = 1000  # lexbor's numbers of the names that it knows; other numbers differ by page


class Rules(dict[int, _Rule]):
    """The rules for the names that lexbor numbers.

    Args:
        profile: `published` removes what the annotators of the published data remove; `all` keeps
            every tag.
    """

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self._removes = profile == "published"

    def rule(self, node: LexborNode) -> _Rule:
        """The rule for a node that has none yet."""
        name = (node.tag or "-").lower()
        separator = _LINE if name in _BLOCKS else _SPACE if name in _SPACED else _NOTHING
        action, least = _KEEP, 0
        if name == "-text":
            action = _TEXT
        elif name == "br":
            action = _BREAK
        elif name.startswith("-"):  # a comment, or another node that is not an element
            action = _SKIP
        elif name in _NOT_TEXT:
            action = _SKIP if self._removes else _HOLLOW
        elif self._removes and name in _REMOVED:
            action = _SKIP
        elif self._removes and name in _REMOVED_IF_SHORT:
            least = _LONGEST_REMOVED + 1
        rule = action, name, separator, least, name == "pre", self._removes and name == "div"
        if node.tag_id < _KNOWN_IDS:
            self[node.tag_id] = rule
        return rule


class _Writer:
    """Appends to a text and its tags; plain tuples and few calls, for speed.

    Attributes:
        pending: The separator to write before the next text.
    """

    __slots__ = (
        "_folded", "_length", "_offsets", "_pieces", "_start", "_tags", "_wrote_pre", "pending",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pending = _NOTHING
        self._pieces: list[str] = []
        self._length = 0
        self._wrote_pre = False
        self._tags: list[TagRecord] = []  # without a value: folded into the tag before
        self._offsets: list[int] = []  # of the starts and ends in document order; -1: folded
        self._start: list[int] | None = None  # shared by the elements begun since the last text
        self._folded: dict[int, tuple[TagRecord, list[HtmlAttributes]]] = {}

    def write(self, text: str, is_pre: int) -> None:
        """Appends text that is not empty; outside `pre` it is not blank, either.

        Args:
            text: The text.
            is_pre: Whether its white space is kept.
        """
        pending = self.pending
        if is_pre:
            words, self.pending, self._wrote_pre = text, _NOTHING, True
        else:
            words = " ".join(text.split())
            self.pending = _NOTHING
            if len(words) < len(text):
                if not pending and text[0] != words[0]:
                    pending = _SPACE
                if text[-1] != words[-1]:
                    self.pending = _SPACE
        start = self._length
        if pending and start:
            separator = " " if pending == _SPACE else "\n" * (pending - 1)
            if self._wrote_pre:
                last = self._pieces[-1][-1]
                if last == "\n" or (pending == _SPACE and last.isspace()):
                    separator = separator[1:]
            self._pieces.append(separator)
            start += len(separator)
        if self._start is not None:
            self._start.append(start)
            self._start = None
        self._pieces.append(words)
        self._length = start + len(words)

    def open(self, rule: _Rule, attributes: dict[str, str | None]) -> _Mark:
        """Begins an element."""
        start = self._start
        if start is None:
            start = self._start = []
        _, name, separator, _, _, _ = rule
        place = len(self._offsets)
        pending = self.pending
        mark = start, len(self._tags), place, len(self._pieces), self._length, pending
        if separator > pending:
            self.pending = separator
        if attributes:
            values: list[str | int | float | None] = [*attributes.values()]
            if None in values:
                values = [value or "" for value in values]
            html_attrs = HtmlAttributes([*attributes], values)
        else:
            html_attrs = _NO_ATTRIBUTES
        self._tags.append(TagRecord(name, 0, place, 0, 0, html_attrs))
        self._offsets.append(0)
        return mark

    def close(self, rule: _Rule, mark: _Mark) -> None:
        """Ends an element, and removes it if it is too short."""
        _, _, separator, least, _, folds = rule
        start, row, place, _, _, _ = mark
        length = self._length
        first = start[0] if start else length
        if length - first < least:
            self._take_back(mark)
        else:
            if not start:
                start.append(first)
                self._start = None
            tag = self._tags[row]
            self._offsets[place] = tag.char_start_idx = first
            tag.char_end_idx = length
            if not (folds and self._fold(tag, row + 1, place + 1)):
                tag.relative_end_pos = len(self._offsets)
                self._offsets.append(length)
        if separator > self.pending:
            self.pending = separator

    def _take_back(self, mark: _Mark) -> None:
        self._start, tags, offsets, pieces, self._length, self.pending = mark
        del self._tags[tags:], self._offsets[offsets:], self._pieces[pieces:]
        self._start.clear()  # also for the elements around it that begin with it

    def _fold(self, tag: TagRecord, row: int, place: int) -> bool:
        """Folds the content of an element into it, if that is one element of the same name."""
        if row == len(self._tags):
            return False
        child = self._tags[row]
        if (
            child.value != tag.value
            or child.relative_start_pos != place
            or child.relative_end_pos != len(self._offsets) - 1
            or child.char_start_idx != tag.char_start_idx
            or child.char_end_idx != tag.char_end_idx
        ):
            return False
        _, chain = self._folded.pop(id(child), (child, [child.html_attrs]))
        chain.append(tag.html_attrs)
        self._folded[id(tag)] = tag, chain
        tag.relative_end_pos = child.relative_end_pos
        child.value = ""
        self._offsets[place] = -1
        return True

    def result(self) -> tuple[str, list[TagRecord]]:
        """The text, and the tags in document order, after the last element ended."""
        places: list[int] = []
        previous, place = -1, 0
        for offset in self._offsets:
            if offset == previous:
                place += 1
            elif offset >= 0:
                previous, place = offset, 0
            places.append(place)
        for tag, chain in self._folded.values():
            tag.html_attrs = _joined(chain)
        tags = [tag for tag in self._tags if tag.value]
        for tag in tags:
            tag.relative_start_pos = places[tag.relative_start_pos]
            tag.relative_end_pos = places[tag.relative_end_pos]
        return "".join(self._pieces), tags


def walk(root: LexborNode, rules: Rules) -> tuple[str, list[TagRecord]]:
    """The text of an element, and its tags in document order.

    Args:
        root: The element.
        rules: What is removed.
    """
    writer = _Writer()
    is_open: list[tuple[LexborNode, _Rule, _Mark]] = []
    in_pre = 0
    known = rules.get
    node = root
    while True:
        rule = known(node.tag_id) or rules.rule(node)
        action = rule[0]
        if action == _TEXT:
            text = node.text_content
            if in_pre and text:
                writer.write(text, True)
            elif text and not text.isspace():
                writer.write(text, False)
            elif not writer.pending:
                writer.pending = _SPACE
        elif action <= _HOLLOW:
            mark = writer.open(rule, node.attributes)
            child = node.first_child if action == _KEEP else None
            if child is not None:
                is_open.append((node, rule, mark))
                in_pre += rule[4]
                node = child
                continue
            writer.close(rule, mark)
        elif action == _BREAK:
            writer.pending = max(_LINE, writer.pending + 1)
        else:
            writer.pending = max(writer.pending, rule[2])
        following = node.next if is_open else None
        while following is None:
            if not is_open:
                return writer.result()
            node, rule, mark = is_open.pop()
            in_pre -= rule[4]
            writer.close(rule, mark)
            following = node.next if is_open else None
        node = following


def _joined(chain: list[HtmlAttributes]) -> HtmlAttributes:
    """The attributes of nested elements, innermost first, as those of one element."""
    joined: dict[str, list[str]] = {}
    for attributes in reversed(chain):
        for name, value in zip(attributes.attrs, attributes.values, strict=True):
            joined.setdefault(name, []).append(str(value))
    return HtmlAttributes(list(joined), [" ".join(values) for values in joined.values()])
