"""The walk over a parsed page: serialized HTML becomes text and tag records.

lexbor serializes its tree in a canonical form: every start tag has its end tag (void elements have
none), attributes are in double quotes, and `<` and `>` appear only around tags. So one pass over
the string, split at `<`, visits the tree in document order, in linear time and without recursion,
and a tag that was seen before costs one look-up.

White space outside `pre` is collapsed, and a separator (a space or a line break) is held back until
the next text: the text neither begins nor ends with white space, and a tag starts at its first
character. An element is removed at its end, when the length of what is left in it is known.
"""

from __future__ import annotations

import html as entities
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from bsmeta.metadata.processors import HtmlAttributes

Profile = Literal["published", "all"]

NEVER_TEXT = ("script", "style", "template", "iframe", "noembed", "noframes", "plaintext")
"""Elements whose content is not text of the page: code, or what a browser does not show."""


def names(words: str) -> frozenset[str]:
    """A set of element names, from a string of them."""
    return frozenset(words.split())


_REMOVED = ("header", "footer", "form")
_SHORTEST_KEPT = dict.fromkeys(("body", "div", "p", "section", "table", "ul", "ol", "dl"), 65)
_BLOCKS = names(
    """address article aside blockquote body button canvas caption col colgroup dd div dl dt embed
    fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li map noscript object
    ol output p pre progress section table tbody textarea tfoot th thead tr ul video"""
)
_SPACED = names(
    """address cite details datalist iframe img input label legend optgroup q select summary tbody
    td time"""
)
_VOID = names(
    """area base basefont bgsound br col embed frame hr img input keygen link meta param source
    track wbr"""
)

_NOTHING, _SPACE, _LINE = range(3)  # separators; from _LINE on, each more is an empty line

_ATTRIBUTE = re.compile(r' ([^ ]+?)="([^"]*)"')
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_RAW_TEXT = re.compile(r"(<xmp(?: [^>]*)?>)(.*?)(?=</xmp>)", re.DOTALL)
_KNOWN_TAGS = 1 << 14
_LONGEST_KNOWN_TAG = 256


class TagRecord(msgspec.Struct, gc=False):
    """An html tag as a record of the `metadata_html` column: it encodes to that form.

    Attributes:
        value: The tag's name.
        char_start_idx: Its span in the text.
        relative_start_pos: The place of its start among all starts and ends at that offset.
    """

    value: str
    char_start_idx: int
    relative_start_pos: int
    char_end_idx: int
    relative_end_pos: int
    html_attrs: HtmlAttributes
    key: str = "html"
    type: str = "local"


class _Tag(NamedTuple):
    """What a start tag means to the walk.

    Attributes:
        name: The element's name.
        attributes: Its attributes.
        separator: What sets the element off from the text before and after it.
        shortest: The element is removed if fewer characters are left in it.
    """

    name: str
    attributes: HtmlAttributes
    separator: int
    shortest: int


class _Found(msgspec.Struct, gc=False):
    """A tag whose element ended and was kept; `start` and `end` count starts and ends."""

    start: int
    end: int
    tag: _Tag
    char_start: int
    char_end: int
    folded: list[HtmlAttributes] | None = None


@dataclass
class Walk:
    """Text and tags of a page.

    Attributes:
        text: The text.
        tags: Its tags, in document order.
    """

    text: str
    tags: list[TagRecord] = field(default_factory=list)


class Rules:
    """What a profile removes, with the tags that were seen.

    Args:
        profile: `published` removes as the annotators of the published data do; `all` keeps every
            element.
    """

    def __init__(self, profile: Profile) -> None:
        self.without_content = (*NEVER_TEXT, *_REMOVED) if profile == "published" else ()
        self.folds = profile == "published"
        self._shortest = _SHORTEST_KEPT if profile == "published" else {}
        self._known: dict[str, _Tag] = {}

    def tag(self, source: str) -> _Tag:
        """Reads the source of a start tag, without `<` and `>`."""
        tag = self._known.get(source)
        if tag is not None:
            return tag
        name, _, rest = source.partition(" ")
        names, values = [], []
        for attribute, value in _ATTRIBUTE.findall(" " + rest) if rest else ():
            names.append(attribute)
            values.append(entities.unescape(value) if "&" in value else value)
        separator = _LINE if name in _BLOCKS else _SPACE if name in _SPACED else _NOTHING
        tag = _Tag(name, HtmlAttributes(names, values), separator, self._shortest.get(name, 0))
        if len(source) <= _LONGEST_KNOWN_TAG:
            if len(self._known) >= _KNOWN_TAGS:
                self._known.clear()
            self._known[source] = tag
        return tag


def walk(html: str, rules: Rules) -> Walk:  # noqa: PLR0915
    """Reads text and tags from a serialized element.

    Args:
        html: As lexbor serializes an element that contains none of the elements of `NEVER_TEXT`,
            or only empty ones.
        rules: What is removed.
    """
    pieces: list[str] = []
    length = 0
    pending = _NOTHING
    in_pre = 0
    # An offset for each start and end in document order. The starts since the last text share a
    # list, which is empty until the offset is known; a removed tag leaves None.
    events: list[int | list[int] | None] = []
    unknown: list[int] | None = None
    found: list[_Found] = []
    is_open: list[tuple[_Tag, list[int], int, int, int, int, int]] = []
    known = rules.tag
    for tag_source, text in _tokens(html):
        if tag_source[0] == "/":
            name = tag_source[1:]
            if name in _VOID:
                continue
            tag, offset, number, kept_pieces, kept_length, kept_pending, kept_found = is_open.pop()
            if name == "pre":
                in_pre -= 1
            separator = tag.separator
            start = offset[0] if offset else length
            if length - start < tag.shortest:
                del pieces[kept_pieces:], found[kept_found:], events[number:]
                length = kept_length
                pending = max(kept_pending, separator)
                offset.clear()
                unknown = offset
            else:
                if not offset:
                    offset.append(length)
                    unknown = None
                pending = max(pending, separator)
                last = found[-1] if found else None
                if (
                    rules.folds
                    and name == "div"
                    and last is not None
                    and last.tag.name == "div"
                    and last.start == number + 1
                    and last.end == len(events) - 1
                    and last.char_start == start
                    and last.char_end == length
                ):
                    last.folded = last.folded or [last.tag.attributes]
                    last.folded.append(tag.attributes)
                    last.start = number
                    events[number + 1] = None
                else:
                    found.append(_Found(number, len(events), tag, start, length))
                    events.append(length)
        else:
            tag = known(tag_source)
            name = tag.name
            if name == "br":
                pending = max(_LINE, pending + 1)
            elif name in _VOID:
                if unknown is not None:
                    unknown.append(length)
                    unknown = None
                found.append(_Found(len(events), len(events) + 1, tag, length, length))
                events += (length, length)
                pending = max(pending, tag.separator)
            else:
                if unknown is None:
                    unknown = []
                is_open.append(
                    (tag, unknown, len(events), len(pieces), length, pending, len(found))
                )
                events.append(unknown)
                pending = max(pending, tag.separator)
                if name == "pre":
                    in_pre += 1
        if not text:
            continue
        if "&" in text:
            text = _unescaped(text)
        after = _NOTHING
        if not in_pre:
            words = " ".join(text.split())
            if not words:
                pending = pending or _SPACE
                continue
            if text[0] != words[0]:
                pending = pending or _SPACE
            if text[-1] != words[-1]:
                after = _SPACE
            text = words
        separator_text = _separator(pending, pieces)
        length += len(separator_text)
        if unknown is not None:
            unknown.append(length)
            unknown = None
        pieces.append(separator_text + text)
        length += len(text)
        pending = after
    return Walk("".join(pieces), _records(found, events))


def _tokens(html: str) -> Iterator[tuple[str, str]]:
    """The tags of serialized HTML, each without `<` and `>`, with the text after it."""
    if "<!--" in html:
        html = _COMMENT.sub("", html)
    if "<xmp" in html:
        html = _RAW_TEXT.sub(lambda raw: raw[1] + entities.escape(raw[2], quote=False), html)
    cut = ""
    for token in html.split("<")[1:]:
        tag, end, text = (cut + token).partition(">")
        if end:
            cut = ""
            yield tag, text
        else:  # a name that contains `<`
            cut += token + "<"


def _unescaped(text: str) -> str:
    """Text without the entities that a serializer writes."""
    text = text.replace("&nbsp;", "\u00a0").replace("&lt;", "<").replace("&gt;", ">")
    return text.replace("&amp;", "&")


def _separator(pending: int, pieces: list[str]) -> str:
    """What goes between the text so far and the next."""
    if pending == _NOTHING or not pieces:
        return ""
    last = pieces[-1][-1]
    if pending == _SPACE:
        return "" if last.isspace() else " "
    return "\n" * (pending - 1 - (last == "\n"))


def _records(found: list[_Found], events: list[int | list[int] | None]) -> list[TagRecord]:
    """The tags in document order, with their places among the starts and ends at an offset."""
    places: list[int] = []
    previous, place = -1, 0
    for event in events:
        if event is None:
            places.append(0)
            continue
        offset = event if type(event) is int else event[0]  # type: ignore[index]
        place = place + 1 if offset == previous else 0
        previous = offset
        places.append(place)
    found.sort(key=_start_of)
    return [
        TagRecord(
            tag.tag.name,
            tag.char_start,
            places[tag.start],
            tag.char_end,
            places[tag.end],
            tag.tag.attributes if tag.folded is None else _joined(tag.folded),
        )
        for tag in found
    ]


def _start_of(tag: _Found) -> int:
    return tag.start


def _joined(folded: list[HtmlAttributes]) -> HtmlAttributes:
    """The attributes of nested elements, innermost first, as those of one element."""
    joined: dict[str, list[str]] = {}
    for attributes in reversed(folded):
        for name, value in zip(attributes.attrs, attributes.values, strict=True):
            joined.setdefault(name, []).append(str(value))
    return HtmlAttributes(list(joined), [" ".join(values) for values in joined.values()])
