"""Writes the text and the tags of a page, by rules for its elements.

`Rules` maps element names to rules. A `TagWriter` appends text and tags while the tree is walked in
document order. It takes linear time; if an element turns out to be too short to keep, its text and
tags are truncated.

White space outside `pre` is collapsed, and a separator (a space or line breaks) is held back until
the next text. Therefore the text neither begins nor ends with white space, and a tag starts at the
first character of its text.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec
from selectolax.lexbor import LexborNode

from bsmeta.metadata.processors import HtmlAttributes

Profile = Literal["published", "all"]

MAX_SHORT_CHARS = 64
"""Maximum characters of an element that is removed for being short."""

NOTHING, SPACE, LINE = range(3)  # separators; each number above LINE adds an empty line

KEEP, HOLLOW, BREAK, SKIP = range(4)


class Rule(NamedTuple):
    """The handling of all elements with one name.

    Attributes:
        action: `KEEP`, `HOLLOW` (keep the tag without its content), `BREAK` (a line break) or
            `SKIP` (remove the element and its content).
        separator: The separator around the element, or in its place if it is removed.
        min_length: Shorter elements are removed; the text of removed inner elements counts, too.
        keeps_space: Whether white space in the element is kept.
        is_folded: Whether the element merges with its only child element of the same name.
        content_rules: The rules for inner elements; None: the same rules.
    """

    action: int
    name: str
    separator: int
    min_length: int
    keeps_space: bool
    is_folded: bool
    content_rules: Rules | None


_KNOWN_IDS = 1000  # lexbor's numbers of the names that it knows; other numbers differ by page
_NO_ATTRIBUTES = HtmlAttributes([], [])


class OpenElement(msgspec.Struct, gc=False):
    """An open element, and the state of the `TagWriter` at its start.

    Attributes:
        start: See `TagWriter._start`.
        tag_count: Number of tags.
        chunk_count: Number of chunks of text.
        edge_count: Number of edges (starts and ends of elements).
        edges_before_end: Number of edges before the end of the text.
        length: Length of the text.
        pending: The separator held back.
        raw_length: Length of the text, including removed text.
        folds: Number of enclosing elements that the element is folded into.
    """

    node: LexborNode
    rule: Rule
    start: list[int]
    tag_count: int
    chunk_count: int
    edge_count: int
    edges_before_end: int
    length: int
    pending: int
    raw_length: int
    folds: int


_SPACES = re.compile(r"[ \t\n\f\r]+")


def split_names(words: str) -> frozenset[str]:
    """Splits a string of element names into a set."""
    return frozenset(words.split())


_NOT_TEXT = split_names("script style template iframe noembed noframes")
_REMOVED = split_names("header footer form")
_REMOVED_IF_SHORT = split_names("body div p section table ul ol dl")
_FOLDED = split_names("div")
_BLOCKS = split_names(
    """address article aside blockquote body button canvas caption col colgroup dd div dl dt embed
    fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li map noscript object
    ol output p pre progress section table tbody textarea tfoot th thead tr ul video"""
)
_SPACED = split_names(
    """address cite details datalist iframe img input label legend optgroup option q select summary
    svg tbody td time"""
)
_DRAWING = "svg"
# Elements of a drawing whose content is HTML: "HTML integration points" of the HTML standard
_HTML_IN_DRAWING = split_names("foreignobject title desc")


class Rules(dict[int, Rule]):
    """The rules of a profile, by lexbor's numbers of element names.

    Args:
        profile: See `parse_page`.
        html_rules: For the elements of a drawing (SVG), the rules of the HTML around it; None for
            the rules of HTML. Elements of a drawing are separated by spaces, because each has its
            own position.
    """

    def __init__(self, profile: Profile, html_rules: Rules | None = None) -> None:
        super().__init__()
        self._removes = profile == "published"
        self._html_rules = html_rules
        self._drawing_rules = Rules(profile, self) if html_rules is None else None

    def add_rule(self, node: LexborNode) -> Rule:
        """Adds the rule for a node whose name has none yet, and returns it."""
        name = (node.tag or "-").lower()
        is_element = not name.startswith("-")  # other nodes are comments, for example
        action = self._choose_action(name) if is_element else SKIP
        if action == SKIP and is_element:
            separator = SPACE
        elif name in _BLOCKS:
            separator = LINE
        elif name in _SPACED or (self._html_rules is not None and is_element):
            separator = SPACE
        else:
            separator = NOTHING

        is_removed_if_short = action == KEEP and self._removes and name in _REMOVED_IF_SHORT
        min_length = MAX_SHORT_CHARS + 1 if is_removed_if_short else 0
        is_folded = self._removes and name in _FOLDED
        content_rules = None
        if self._html_rules is None:
            content_rules = self._drawing_rules if name == _DRAWING else None
        elif name in _HTML_IN_DRAWING:
            content_rules = self._html_rules

        rule = Rule(action, name, separator, min_length, name == "pre", is_folded, content_rules)
        if node.tag_id < _KNOWN_IDS:
            self[node.tag_id] = rule
        return rule

    def _choose_action(self, name: str) -> int:
        """Returns the action for elements of a name."""
        if name == "br":
            return BREAK
        if name in _NOT_TEXT:
            return SKIP if self._removes else HOLLOW
        return SKIP if self._removes and name in _REMOVED else KEEP


class TagRecord(msgspec.Struct, gc=False):
    """An HTML tag as a record of the `metadata_html` column.

    `relative_start_pos` and `relative_end_pos` order the starts and ends of tags at the same
    offset. Tags may share one `html_attrs`, which must not be modified.
    """

    value: str
    char_start_idx: int
    relative_start_pos: int
    char_end_idx: int
    relative_end_pos: int
    html_attrs: HtmlAttributes
    key: str = "html"
    type: str = "local"


_UNCLOSED_PLACEHOLDER = TagRecord("", 0, 0, 0, 0, _NO_ATTRIBUTES)


def measure_raw_text(text: str) -> int:
    """Returns the length of a text after runs of HTML white space are collapsed.

    A no-break space is not HTML white space.
    """
    return len(_SPACES.sub(" ", text))


class TagWriter:
    """Appends to a text and its tags, with plain lists and few calls for speed.

    The edges (starts and ends) of elements are counted in document order. The relative position of
    an edge is its index among the edges at the same offset of the text: this count, minus the count
    before the first edge at that offset.

    Attributes:
        pending: The separator held back: `NOTHING`, `SPACE`, or `LINE` and above.
        raw: Length of all text so far, including removed text.
    """

    __slots__ = (
        "_chunks",
        "_edge_count",
        "_edges_before_end",
        "_folded",
        "_length",
        "_single_attributes",
        "_start",
        "_tags",
        "_wrote_pre",
        "pending",
        "raw",
    )

    def __init__(self) -> None:
        self.pending = NOTHING
        self.raw = 0
        self._chunks: list[str] = []
        self._length = 0
        self._wrote_pre = False
        self._tags: list[TagRecord] = []  # `_UNCLOSED_PLACEHOLDER` for open elements
        self._edge_count = 0
        self._edges_before_end = 0  # edges before the end of the text
        # Shared by all elements opened since the last text, because they start at the same offset:
        # [edges before the first of them], to which the next text or end appends that offset and
        # the number of edges before it.
        self._start: list[int] | None = None
        self._single_attributes: dict[tuple[str, str | None], HtmlAttributes] = {}
        self._folded: list[HtmlAttributes] = []  # of folded elements, for the enclosing one

    def write_text(self, text: str, is_pre: int) -> tuple[int, int]:
        """Appends text, which must not be empty nor, outside `pre`, blank.

        Args:
            is_pre: Nonzero within `pre`.

        Returns:
            The offset at which the text starts, and the number of edges before it.
        """
        separator = self.pending
        if is_pre:
            words = text
            self.pending = NOTHING
            self._wrote_pre = True
            self.raw += len(text)
        else:
            words = " ".join(text.split())
            self.pending = NOTHING
            self.raw += len(words)
            if len(words) < len(text):
                has_space_before = text[0] != words[0]
                has_space_after = text[-1] != words[-1]
                self.raw += has_space_before + has_space_after
                if "\xa0" in text:
                    self.raw += (
                        measure_raw_text(text) - len(words) - has_space_before - has_space_after
                    )
                if has_space_before and not separator:
                    separator = SPACE
                if has_space_after:
                    self.pending = SPACE

        start = length = self._length
        if separator and length:
            space = " " if separator == SPACE else "\n" * (separator - 1)
            if self._wrote_pre:  # white space at its end replaces the separator
                last = self._chunks[-1][-1]
                if last == "\n" or (separator == SPACE and last.isspace()):
                    space = space[1:]
            self._chunks.append(space)
            start += len(space)

        if self._start is None:
            edges_before = self._edges_before_end if start == length else self._edge_count
        else:
            edges_before = self._edges_before_end if start == length else self._start[0]
            self._start += start, edges_before
            self._start = None

        self._chunks.append(words)
        self._length = start + len(words)
        self._edges_before_end = self._edge_count
        return start, edges_before

    def add_text_element(self, rule: Rule, node: LexborNode, text: str, is_pre: int) -> None:
        """Adds a kept element that contains only text; faster than opening and closing it."""
        separator = rule.separator
        if separator > self.pending:
            self.pending = separator
        start, edges_before = self.write_text(text, is_pre)
        edge_count = self._edge_count
        self._edges_before_end = edge_count + 1
        self._edge_count = edge_count + 2
        attributes = self._convert_attributes(node)
        self._tags.append(
            TagRecord(rule.name, start, edge_count - edges_before, self._length, 0, attributes)
        )
        if separator > self.pending:
            self.pending = separator

    def note_space(self, text: str) -> None:
        """Counts white space, and holds back a space."""
        self.raw += measure_raw_text(text) if "\xa0" in text else 1
        if not self.pending:
            self.pending = SPACE

    def open_element(self, node: LexborNode, rule: Rule, folds: int = 0) -> OpenElement:
        """Opens an element.

        Args:
            folds: Number of enclosing elements that it is folded into; if any, it gets no tag.
        """
        edge_count = self._edge_count
        start = self._start
        if start is None:
            start = self._start = [edge_count]
        pending = self.pending
        tags = self._tags
        element = OpenElement(
            node,
            rule,
            start,
            len(tags),
            len(self._chunks),
            edge_count,
            self._edges_before_end,
            self._length,
            pending,
            self.raw,
            folds,
        )

        separator = rule.separator
        if separator > pending:
            self.pending = separator
        if not folds:
            tags.append(_UNCLOSED_PLACEHOLDER)
            self._edge_count = edge_count + 1
        return element

    def close_element(self, element: OpenElement) -> None:
        """Closes the innermost open element, and removes it if it is too short."""
        rule = element.rule
        if element.folds:
            self._folded.append(self._convert_attributes(element.node))
        elif self.raw - element.raw_length < rule.min_length:
            self._remove_element(element)
            return
        else:
            length = self._length
            start = element.start
            if len(start) == 1:
                start += length, self._edges_before_end
            self._start = None
            _, offset, edges_before = start

            attributes = self._convert_attributes(element.node)
            if self._folded:
                attributes = _join_attributes([*self._folded, attributes])
                self._folded = []

            edge_count = self._edge_count
            self._tags[element.tag_count] = TagRecord(
                rule.name,
                offset,
                element.edge_count - edges_before,
                length,
                edge_count - self._edges_before_end,
                attributes,
            )
            self._edge_count = edge_count + 1

        if rule.separator > self.pending:
            self.pending = rule.separator

    def _convert_attributes(self, node: LexborNode) -> HtmlAttributes:
        """Converts the attributes of an element; elements with the same single one share it."""
        attributes = node.attributes
        if not attributes:
            return _NO_ATTRIBUTES
        if len(attributes) == 1:  # often the same, such as a class
            attribute = attributes.popitem()
            shared = self._single_attributes.get(attribute)
            if shared is None:
                name, value = attribute
                shared = self._single_attributes[attribute] = HtmlAttributes([name], [value or ""])
            return shared

        values: list[str | int | float | None] = list(attributes.values())
        if None in values:
            values = [value or "" for value in values]
        return HtmlAttributes(list(attributes), values)

    def _remove_element(self, element: OpenElement) -> None:
        """Restores the state of the writer at the start of an element."""
        self._edge_count = element.edge_count
        self._edges_before_end = element.edges_before_end
        self._length = element.length
        self.pending = element.pending or SPACE
        self._folded = []
        del self._tags[element.tag_count :]
        del self._chunks[element.chunk_count :]
        del element.start[1:]  # also for enclosing elements that start at the same offset
        self._start = element.start

    def finish_text(self) -> tuple[str, list[TagRecord]]:
        """Returns the text, and the tags in document order; all elements must be closed."""
        return "".join(self._chunks), self._tags


def _join_attributes(innermost_first: list[HtmlAttributes]) -> HtmlAttributes:
    """Merges the attributes of nested elements; values of the same attribute are joined."""
    values_by_name: dict[str, list[str]] = {}
    for attributes in reversed(innermost_first):
        for name, value in zip(attributes.attrs, attributes.values, strict=True):
            values_by_name.setdefault(name, []).append(str(value))

    return HtmlAttributes(
        list(values_by_name), [" ".join(values) for values in values_by_name.values()]
    )
