"""A page: its HTML parsed once into text, tags with offsets, and what the page says about itself.

Everything that annotators need of a page's HTML comes from here; no annotator parses it again. A
page that comes as bytes is decoded here, too.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5
from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser, LexborNode, SelectolaxError

from bsmeta.annotate.tags import (
    BREAK,
    HOLLOW,
    KEEP,
    LINE,
    LONGEST_REMOVED,
    Open,
    Profile,
    Rules,
    TagRecord,
    TagWriter,
    names,
    raw_length,
)
from bsmeta.core.parsing import decode_json

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META = re.compile(
    rb"""<meta[^>]{0,1000}?charset\s*+=\s*+["']?\s*+([\w.:-]{1,40})""", re.IGNORECASE
)
_META_BYTES = 4096  # a browser reads the first 1,024
_DETECTOR_BYTES = 1 << 17
_SUPERSETS = {"shift_jis": "cp932", "gbk": "gb18030", "euc_kr": "cp949", "big5": "big5hkscs"}
_ESCAPE = b"\x1b"  # begins the sequences of ISO-2022, which is ASCII and thus UTF-8 otherwise

VERSION = 2  # to be increased when the same page would give another text or other tags

PARAGRAPHS = names(
    """p div li ul ol hr pre blockquote dt dd dl menu figcaption figure h1 h2 h3 h4 h5 h6 nav
    article main section address aside"""
)
_DECLARATIONS = 'meta, time, title, footer, script[type="application/ld+json"]'

MAX_DEPTH = 5_000
MAX_ATTRIBUTES = 10_000
# The parser's time is quadratic in depth and in the attributes of a tag: about a second for a page
# that just escapes being examined. Browsers stop nesting at a depth of 512.
_EXAMINED_TAGS = 20_000
_LONG_TAG = 50_000
_QUOTED = re.compile(r""""[^"]*"|'[^']*'""")
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_WITHOUT_END_TAG = names(
    """area base br col embed hr img input link meta param source track wbr html head body p li dt
    dd option optgroup tr td th thead tbody tfoot colgroup rt rp"""
)

_MOST_FOLDED = 2  # elements, into the one around them; as published, the next begins a chain
_RULES: dict[Profile, Rules] = {"published": Rules("published"), "all": Rules("all")}


def decode_html(html: bytes, http_charset: str | None = None) -> str:
    """Decodes a page by the first of these with which it can be decoded.

    A byte order mark; UTF-8, whatever the page says; the charset of the HTTP header; that of a
    `<meta>`; what resiliparse's detector finds, with U+FFFD for invalid bytes.
    """
    for mark, encoding in _MARKS:
        if html.startswith(mark):
            return html[len(mark) :].decode(encoding, "replace")
    for encoding in _candidates(html, http_charset):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return html.decode(encoding)
    found = detect_encoding(html, _DETECTOR_BYTES) or "utf-8"
    return html.decode(_SUPERSETS.get(found, found), "replace")


def _candidates(html: bytes, http_charset: str | None) -> Iterator[str]:
    """The encodings to try strictly."""
    # UTF-16 without a byte order mark: every other byte of the first tag is zero.
    if html[:2] == b"<\0" and html[3:4] == b"\0":
        yield "utf-16-le"
    elif html[:3] == b"\0<\0":
        yield "utf-16-be"
    if _ESCAPE not in html:
        yield "utf-8"
    declared = _META.search(html, 0, _META_BYTES)
    for label in (http_charset, declared and declared[1].decode("ascii", "replace")):
        encoding = map_encoding_to_html5(label, fallback_utf8=False) if label else None
        # A page whose declaration can be read as ASCII is not in UTF-16, as in a browser.
        if encoding is not None and not encoding.startswith("utf-16"):
            yield _SUPERSETS.get(encoding, encoding)


class PageError(ValueError):
    """A page that cannot be used; `reason` is a slug used as a counter key, such as `too_deep`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Link(NamedTuple):
    """A hyperlink: where it leads, and its span in the text."""

    href: str
    start: int
    end: int


@dataclass
class Declared:
    """What a page declares about itself."""

    meta: dict[str, str] = field(default_factory=dict)  # of each name or property, the first
    json_ld: list[Any] = field(default_factory=list)  # decoded
    times: list[str] = field(default_factory=list)  # `datetime` of each `<time>`, or its text
    base: str = ""  # `href` of `<base>` in the head, to which links are relative


@dataclass
class Page:
    """A parsed page; its serialized elements are none within another of their name."""

    text: str  # all offsets refer to it
    tags: list[TagRecord]  # the records of `metadata_html`, in document order
    title: str | None = None  # on one line
    head: list[str] = field(default_factory=list)  # `html_head`
    footer: list[str] = field(default_factory=list)  # `html_footer`
    title_tags: list[str] = field(default_factory=list)  # `html_title`
    declared: Declared = field(default_factory=Declared)

    @property
    def links(self) -> list[Link]:
        """The hyperlinks in the text, in document order."""
        found = []
        for tag in self.tags:
            if tag.value == "a" and "href" in tag.html_attrs.attrs:
                href = tag.html_attrs.values[tag.html_attrs.attrs.index("href")]
                found.append(Link(str(href), tag.char_start_idx, tag.char_end_idx))
        return found


def parse_page(html: str, *, profile: Profile = "published") -> Page:
    """Parses a page; `published` removes what the published data do not have, `all` nothing.

    Raises:
        PageError: `too_deep`, `too_many_attributes` or `not_parsed`.
    """
    tree = parse_html(html)
    page = Page("", [])
    if tree.head is not None:
        page.head.append(tree.head.html or "")
        base = tree.head.css_first("base[href]")
        page.declared.base = (base.attributes["href"] or "") if base is not None else ""
    _read_declarations(tree, page)
    if tree.body is not None:  # a page of frames has none
        page.text, page.tags = walk(tree.body, _RULES[profile])
    return page


def parse_html(html: str) -> LexborHTMLParser:
    """The tree of a page.

    Raises:
        PageError: `too_deep`, `too_many_attributes` or `not_parsed`.
    """
    _refuse_slow(html)
    try:
        return LexborHTMLParser(html, options=LexborDocumentOptions.WO_EVENTS)
    except SelectolaxError as error:  # usually for lack of memory
        raise PageError("not_parsed", str(error)) from error


def _refuse_slow(html: str) -> None:
    """Refuses a page on which the parser would spend minutes."""
    if _has_long_tag(html):
        for tag in html.split("<"):
            if len(tag) <= _LONG_TAG:
                continue
            words = _QUOTED.sub(" ", tag).partition(">")[0].split()
            if len(words) - 1 > MAX_ATTRIBUTES:
                found = f"{len(words) - 1} in <{words[0][:20]}"
                raise PageError("too_many_attributes", found)
    if len(html) <= _EXAMINED_TAGS * len("<b>") or html.count("<") <= _EXAMINED_TAGS:
        return
    depth = 0
    is_open: Counter[str] = Counter()
    for slash, name in _TAG.findall(html):
        name = name.lower()
        if name in _WITHOUT_END_TAG:
            continue
        if not slash:
            is_open[name] += 1
            depth += 1
        elif is_open[name]:
            is_open[name] -= 1
            depth -= 1
        if depth > MAX_DEPTH:
            raise PageError("too_deep", f"more than {MAX_DEPTH} elements within each other")


def _has_long_tag(html: str) -> bool:
    """Whether `_LONG_TAG` characters follow each other without a `<`."""
    position = 0
    while len(html) - position > _LONG_TAG:
        following = html.rfind("<", position + 1, position + 1 + _LONG_TAG)
        if following < 0:
            return True
        position = following
    return False


def _read_declarations(tree: LexborHTMLParser, page: Page) -> None:
    meta = page.declared.meta
    ancestors = _Ancestors()
    for node in tree.css(_DECLARATIONS):
        match node.tag:
            case "meta":
                attributes = node.attributes
                content = attributes.get("content")
                for kind in ("name", "property", "itemprop", "http-equiv"):
                    name = attributes.get(kind)
                    if name and content:
                        meta.setdefault(name.lower(), content)
            case "time":
                page.declared.times.append(node.attributes.get("datetime") or node.text().strip())
            case "script":
                with contextlib.suppress(msgspec.DecodeError):
                    page.declared.json_ld.append(decode_json(node.text()))
            case "footer" if not ancestors.include("footer", node):
                page.footer.append(node.html or "")
            case "title" if not ancestors.include("title", node):
                page.title_tags.append(node.html or "")
                if page.title is None and not ancestors.include("svg", node):
                    page.title = " ".join(node.text().split()) or None


class _Ancestors:
    """Whether nodes lie within elements of some name. The path above a node is walked once."""

    def __init__(self) -> None:
        self._is_within: dict[tuple[str, int], bool] = {}

    def include(self, tag: str, node: LexborNode) -> bool:
        """Whether a node is within an element of a name."""
        is_within = False
        walked = []
        parent = node.parent
        while parent is not None:
            key = tag, parent.mem_id
            if key in self._is_within:
                is_within = self._is_within[key]
                break
            walked.append(key)
            if parent.tag == tag:
                is_within = True
                break
            parent = parent.parent
        self._is_within.update(dict.fromkeys(walked, is_within))
        return is_within


def walk(root: LexborNode, rules: Rules) -> tuple[str, list[TagRecord]]:
    """The text of an element, which the rules keep, and its tags in document order.

    Without recursion: pages may be deeper than Python's stack.
    """
    writer = TagWriter()
    rule = rules.get(root.tag_id) or rules.rule(root)
    is_open = [writer.open(root, rule)]
    in_pre = 0
    node = root.first_child
    while True:
        while node is None:
            element = is_open.pop()
            writer.close(element)
            if not is_open:
                return writer.result()
            in_pre -= element[1][4]
            node = element[0].next
        text = node.text_content
        if text is not None:
            if text and (in_pre or not text.isspace()):
                writer.write(text, in_pre)
            else:
                writer.blank(text)
            node = node.next
            continue
        try:
            rule = rules[node.tag_id]
        except KeyError:
            rule = rules.rule(node)
        action, _, separator, least, is_pre, folds = rule
        if action <= HOLLOW:
            child = node.first_child if action == KEEP else None
            folded = _folded(node, is_open[-1]) if folds else 0
            if child is None:
                writer.close(writer.open(node, rule, folded))
            elif (
                not least
                and not is_pre
                and (text := child.text_content)
                and child.next is None
                and (in_pre or not text.isspace())
            ):
                writer.add(rule, node, text, in_pre)
            else:
                is_open.append(writer.open(node, rule, folded))
                in_pre += is_pre
                node = child
                continue
        elif action == BREAK:
            writer.pending = max(LINE, writer.pending + 1)
        elif separator:
            writer.raw += _raw_length(node)
            writer.pending = writer.pending or separator
        node = node.next


def _folded(node: LexborNode, around: Open) -> int:
    """How many elements around it an element is folded into; it begins a chain with 0.

    It is folded if the element around it is of its name and has no other element in it.
    """
    _, rule, *_, folded = around
    if not rule[5] or folded >= _MOST_FOLDED:
        return 0
    for sibling in ("prev", "next"):
        other = getattr(node, sibling)
        while other is not None:
            if other.is_element_node:
                return 0
            other = getattr(other, sibling)
    return folded + 1


def _raw_length(node: LexborNode) -> int:
    """The raw length of the text of an element that is removed, as far as it matters."""
    is_code = node.tag in ("script", "style")
    length = 0
    for inner in node.traverse(include_text=True):
        text = inner.text_content
        if text:
            length += len(text) if is_code else raw_length(text)
            if length > LONGEST_REMOVED:
                break
    return length
