"""The walk over a page's tree, which writes its text and its tags.

One pass in document order, without recursion, in time linear in the tree: a `_Writer` appends text
and tags, and takes back the end of what it wrote when an element turns out to be too short to keep.

White space outside `pre` is collapsed, and a separator (a space or line breaks) is held back until
the next text. So the text neither begins nor ends with white space, and a tag starts at its first
character.
"""

from __future__ import annotations

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from bsmeta.annotate.rules import BREAK, HOLLOW, KEEP, LINE, NOTHING, SPACE, TEXT, Rule, Rules
from bsmeta.metadata.processors import HtmlAttributes

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


_Mark = tuple[list[int], int, int, int, int, int]
"""The state of a `_Writer` when an element began.

The fields: a list that holds the offset of the element's start once that is known; the numbers of
tags, of starts and ends, and of pieces of text; the length of the text; the separator held back.
"""

_TEXT_ID = next(LexborHTMLParser("x").css("body")[0].iter(include_text=True)).tag_id


class _Writer:
    """Appends to a text and its tags; plain tuples and few calls, for speed.

    Attributes:
        pending: The separator to write before the next text.
    """

    __slots__ = (
        "_folded", "_length", "_offsets", "_pieces", "_start", "_tags", "_wrote_pre", "pending",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pending = NOTHING
        self._pieces: list[str] = []
        self._length = 0
        self._wrote_pre = False
        self._tags: list[TagRecord] = []  # without a value: folded into the tag before
        self._offsets: list[int] = []  # of the starts and ends in document order; -1: folded
        self._start: list[int] | None = None  # shared by the elements begun since the last text
        self._folded: dict[int, tuple[TagRecord, list[HtmlAttributes]]] = {}

    def write(self, text: str, is_pre: int) -> int:
        """Appends text that is not empty, and outside `pre` not blank; returns where it starts.

        Args:
            text: The text.
            is_pre: Whether its white space is kept.
        """
        pending = self.pending
        if is_pre:
            words, self.pending, self._wrote_pre = text, NOTHING, True
        else:
            parts = text.split()
            words = parts[0] if len(parts) == 1 else " ".join(parts)
            self.pending = NOTHING
            if len(words) < len(text):
                if not pending and text[0] != words[0]:
                    pending = SPACE
                if text[-1] != words[-1]:
                    self.pending = SPACE
        start = self._length
        if pending and start:
            separator = " " if pending == SPACE else "\n" * (pending - 1)
            if self._wrote_pre:
                last = self._pieces[-1][-1]
                if last == "\n" or (pending == SPACE and last.isspace()):
                    separator = separator[1:]
            self._pieces.append(separator)
            start += len(separator)
        if self._start is not None:
            self._start.append(start)
            self._start = None
        self._pieces.append(words)
        self._length = start + len(words)
        return start

    def open(self, rule: Rule, attributes: dict[str, str | None]) -> _Mark:
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
        html_attrs = _html_attributes(attributes) if attributes else _NO_ATTRIBUTES
        self._tags.append(TagRecord(name, 0, place, 0, 0, html_attrs))
        self._offsets.append(0)
        return mark

    def add(self, rule: Rule, attributes: dict[str, str | None], text: str, is_pre: int) -> None:
        """Adds an element that has only text and is kept; faster than to begin and end it.

        Args:
            rule: Its rule.
            attributes: Its attributes.
            text: As in `write`.
            is_pre: As in `write`.
        """
        _, name, separator, _, _, _ = rule
        if separator > self.pending:
            self.pending = separator
        start = self.write(text, is_pre)
        end, place = self._length, len(self._offsets)
        html_attrs = _html_attributes(attributes) if attributes else _NO_ATTRIBUTES
        self._tags.append(TagRecord(name, start, place, end, place + 1, html_attrs))
        self._offsets += start, end
        if separator > self.pending:
            self.pending = separator

    def close(self, rule: Rule, mark: _Mark) -> None:
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
    is_open: list[tuple[LexborNode, Rule, _Mark]] = []
    in_pre = 0
    node = root
    while True:
        try:
            rule = rules[node.tag_id]
        except KeyError:
            rule = rules.rule(node)
        action = rule[0]
        if action == TEXT:
            text = node.text_content
            if in_pre and text:
                writer.write(text, True)
            elif text and not text.isspace():
                writer.write(text, False)
            elif not writer.pending:
                writer.pending = SPACE
        elif action <= HOLLOW:
            child = node.first_child if action == KEEP else None
            if child is None:
                writer.close(rule, writer.open(rule, node.attributes))
            elif (
                child.tag_id == _TEXT_ID
                and child.next is None
                and not rule[3]
                and not rule[4]
                and (text := child.text_content)
                and (in_pre or not text.isspace())
            ):
                writer.add(rule, node.attributes, text, in_pre)
            else:
                is_open.append((node, rule, writer.open(rule, node.attributes)))
                in_pre += rule[4]
                node = child
                continue
        elif action == BREAK:
            writer.pending = max(LINE, writer.pending + 1)
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


def _html_attributes(attributes: dict[str, str | None]) -> HtmlAttributes:
    values: list[str | int | float | None] = [*attributes.values()]
    if None in values:
        values = [value or "" for value in values]
    return HtmlAttributes([*attributes], values)


def _joined(chain: list[HtmlAttributes]) -> HtmlAttributes:
    """The attributes of nested elements, innermost first, as those of one element."""
    joined: dict[str, list[str]] = {}
    for attributes in reversed(chain):
        for name, value in zip(attributes.attrs, attributes.values, strict=True):
            joined.setdefault(name, []).append(str(value))
    return HtmlAttributes(list(joined), [" ".join(values) for values in joined.values()])
