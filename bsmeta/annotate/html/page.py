"""Decodes a page, and parses its HTML into text, tags with offsets, and declarations.

Annotators read the parsed `Page`; none of them parses the HTML again.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5
from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser, LexborNode, SelectolaxError

from bsmeta.annotate.html.declared_charset import find_declared_charset
from bsmeta.annotate.html.json_ld import decode_json_ld
from bsmeta.annotate.html.tags import (
    BREAK,
    HOLLOW,
    KEEP,
    LINE,
    MAX_SHORT_CHARS,
    OpenElement,
    Profile,
    Rules,
    TagRecord,
    TagWriter,
    measure_raw_text,
    split_names,
)

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MAX_DETECTOR_BYTES = 1 << 17
# The HTML standard decodes these encodings with extensions, which Python has as other codecs.
_SUPERSETS = {"shift_jis": "cp932", "gbk": "gb18030", "euc_kr": "cp949", "big5": "big5hkscs"}
_ISO_2022_ESCAPE = b"\x1b"  # without it, text in ISO-2022 is ASCII

VERSION = 4  # increment it when parsing changes the text or tags of a page

PARAGRAPHS = split_names(
    """p div li ul ol hr pre blockquote dt dd dl menu figcaption figure h1 h2 h3 h4 h5 h6 nav
    article main section address aside"""
)
_DECLARATIONS = 'meta, time, title, footer, script[type^="application/ld+json" i]'

MAX_DEPTH = 5_000
MAX_ATTRIBUTES = 10_000
# The parser's time is quadratic in depth and in the attributes of a tag: about a second for the
# worst page within these limits, whose depth and attributes are not counted. Browsers stop nesting
# at a depth of 512.
_MAX_UNEXAMINED_TAGS = 20_000
_MAX_UNEXAMINED_TAG_CHARS = 50_000
_QUOTED_VALUE = re.compile(r""""[^"]*"|'[^']*'""")
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_WITHOUT_END_TAG = split_names(
    """area base br col embed hr img input link meta param source track wbr html head body p li dt
    dd option optgroup tr td th thead tbody tfoot colgroup rt rp"""
)

# Maximum number of elements that an element is folded into, as in the published data; the next
# element begins a new chain.
_MAX_FOLDS = 2
_RULES: dict[Profile, Rules] = {"published": Rules("published"), "all": Rules("all")}


def decode_html(html: bytes, http_charset: str | None = None) -> str:
    """Decodes a page with the first of these encodings that succeeds.

    1. The encoding of a byte order mark
    2. UTF-8, whatever the page declares
    3. The charset of the HTTP header
    4. The charset of a `<meta>`
    5. The encoding that resiliparse detects, with U+FFFD for invalid bytes
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if html.startswith(mark):
            return html[len(mark) :].decode(encoding, "replace")

    for encoding in _list_candidate_encodings(html, http_charset):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            return html.decode(encoding)

    detected = detect_encoding(html, _MAX_DETECTOR_BYTES) or "utf-8"
    return html.decode(_SUPERSETS.get(detected, detected), "replace")


def _list_candidate_encodings(html: bytes, http_charset: str | None) -> Iterator[str]:
    """Yields the encodings to try, in order; one is used if it decodes the page without errors."""
    # UTF-16 without a byte order mark: every other byte of the first tag is zero.
    if html[:2] == b"<\0" and html[3:4] == b"\0":
        yield "utf-16-le"
    elif html[:3] == b"\0<\0":
        yield "utf-16-be"
    if _ISO_2022_ESCAPE not in html:
        yield "utf-8"

    header_encoding = None
    if http_charset:
        header_encoding = map_encoding_to_html5(http_charset, fallback_utf8=False)
    for encoding in (header_encoding, find_declared_charset(html)):
        # As in a browser: a page whose declaration can be read as ASCII is not in UTF-16.
        if encoding is not None and not encoding.startswith("utf-16"):
            yield _SUPERSETS.get(encoding, encoding)


class PageError(ValueError):
    """Raised for a page that cannot be parsed.

    Attributes:
        reason: A slug such as `too_deep`, by which such pages are counted.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Link(NamedTuple):
    """A hyperlink.

    Attributes:
        start: First character of the anchor in the text.
        end: End of the anchor, excluded.
    """

    href: str
    start: int
    end: int


@dataclass
class Declared:
    """Metadata that a page declares about itself.

    Attributes:
        meta: The first value of each name or property of a `<meta>`.
        json_ld: The decoded blocks of JSON-LD.
        times: The `datetime` of each `<time>`, or its text.
        base: The `href` of `<base>` in the head, to which links are relative; empty without one.
    """

    meta: dict[str, str] = field(default_factory=dict)
    json_ld: list[Any] = field(default_factory=list)
    times: list[str] = field(default_factory=list)
    base: str = ""


@dataclass
class Page:
    """A parsed page.

    If elements are nested in an element of the same name, only the outermost is serialized.

    Attributes:
        text: The text, to which all offsets refer.
        tags: The records of `metadata_html`, in document order.
        title: The title in one line; None without one.
        head: The column `html_head`.
        footer: The column `html_footer`.
        title_tags: The column `html_title`.
        declared: Metadata that the page declares.
    """

    text: str
    tags: list[TagRecord]
    title: str | None = None
    head: list[str] = field(default_factory=list)
    footer: list[str] = field(default_factory=list)
    title_tags: list[str] = field(default_factory=list)
    declared: Declared = field(default_factory=Declared)

    @property
    def links(self) -> list[Link]:
        """The hyperlinks in the text, in document order."""
        links = []
        for tag in self.tags:
            if tag.value == "a" and "href" in tag.html_attrs.attrs:
                href = tag.html_attrs.values[tag.html_attrs.attrs.index("href")]
                links.append(Link(str(href), tag.char_start_idx, tag.char_end_idx))
        return links


def parse_page(html: str, *, profile: Profile = "published") -> Page:
    """Parses a page into its text, tags and declarations.

    Args:
        profile: `published` removes the elements that the published data lack; `all` removes none.

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
        page.text, page.tags = extract_text(tree.body, _RULES[profile])
    return page


def parse_html(html: str) -> LexborHTMLParser:
    """Parses a page into a tree.

    Raises:
        PageError: `too_deep`, `too_many_attributes` or `not_parsed`.
    """
    _refuse_many_attributes(html)
    _refuse_deep_nesting(html)
    try:
        return LexborHTMLParser(html, options=LexborDocumentOptions.WO_EVENTS)
    except SelectolaxError as error:  # usually for lack of memory
        raise PageError("not_parsed", str(error)) from error


def _refuse_many_attributes(html: str) -> None:
    """Refuses a page that has a tag with more than `MAX_ATTRIBUTES`."""
    if not _has_long_tag(html):
        return

    for tag in html.split("<"):
        if len(tag) <= _MAX_UNEXAMINED_TAG_CHARS:
            continue

        words = _QUOTED_VALUE.sub(" ", tag).partition(">")[0].split()
        attributes = len(words) - 1
        if attributes > MAX_ATTRIBUTES:
            raise PageError("too_many_attributes", f"{attributes} in <{words[0][:20]}")


def _refuse_deep_nesting(html: str) -> None:
    """Refuses a page whose elements are nested deeper than `MAX_DEPTH`, judged by its tags."""
    if len(html) <= _MAX_UNEXAMINED_TAGS * len("<b>") or html.count("<") <= _MAX_UNEXAMINED_TAGS:
        return

    depth = 0
    open_tags: Counter[str] = Counter()
    for slash, name in _TAG.findall(html):
        name = name.lower()
        if name in _WITHOUT_END_TAG:
            continue

        if not slash:
            open_tags[name] += 1
            depth += 1
        elif open_tags[name]:
            open_tags[name] -= 1
            depth -= 1
        if depth > MAX_DEPTH:
            raise PageError("too_deep", f"more than {MAX_DEPTH} elements within each other")


def _has_long_tag(html: str) -> bool:
    """Whether `_MAX_UNEXAMINED_TAG_CHARS` consecutive characters contain no `<`."""
    position = 0
    while len(html) - position > _MAX_UNEXAMINED_TAG_CHARS:
        next_bracket = html.rfind("<", position + 1, position + 1 + _MAX_UNEXAMINED_TAG_CHARS)
        if next_bracket < 0:
            return True
        position = next_bracket
    return False


def _read_declarations(tree: LexborHTMLParser, page: Page) -> None:
    """Fills the declarations, titles and footers of a page from its tree."""
    meta = page.declared.meta
    ancestors = _Ancestors()
    for node in tree.css(_DECLARATIONS):
        match node.tag:
            case "meta":
                attributes = node.attributes
                content = attributes.get("content")
                for attribute in ("name", "property", "itemprop", "http-equiv"):
                    name = attributes.get(attribute)
                    if name and content:
                        meta.setdefault(name.lower(), content)

            case "time":
                page.declared.times.append(node.attributes.get("datetime") or node.text().strip())

            case "script":
                page.declared.json_ld += decode_json_ld(node.text())

            case "footer" if not ancestors.include("footer", node):
                page.footer.append(node.html or "")

            case "title" if not ancestors.include("title", node):
                page.title_tags.append(node.html or "")
                if page.title is None and not ancestors.include("svg", node):
                    page.title = " ".join(node.text().split()) or None


class _Ancestors:
    """Tests whether nodes have an ancestor of a given name.

    Results are cached, so that no path is walked twice.
    """

    def __init__(self) -> None:
        self._is_within: dict[tuple[str, int], bool] = {}  # by name and the id of an ancestor

    def include(self, tag: str, node: LexborNode) -> bool:
        """Whether a node has an ancestor with this name."""
        is_within = False
        path = []
        parent = node.parent
        while parent is not None:
            key = (tag, parent.mem_id)
            if key in self._is_within:
                is_within = self._is_within[key]
                break
            path.append(key)
            if parent.tag == tag:
                is_within = True
                break
            parent = parent.parent
        self._is_within.update(dict.fromkeys(path, is_within))
        return is_within


def extract_text(root: LexborNode, rules: Rules) -> tuple[str, list[TagRecord]]:
    """Returns the part of an element's text that the rules keep, and its tags in document order.

    The tree is walked without recursion, because pages may be deeper than Python's stack, and in
    one function, because a call for each node would dominate the time.
    """
    writer = TagWriter()
    rule = rules.get(root.tag_id) or rules.add_rule(root)
    outer_rules: list[Rules] = []  # rules to return to when elements with content rules end
    open_elements = [writer.open_element(root, rule)]
    pre_depth = 0  # number of `pre` around the node
    node = root.first_child
    while True:
        # After the last child: close elements until one has a next sibling.
        while node is None:
            element = open_elements.pop()
            writer.close_element(element)
            if not open_elements:
                return writer.finish_text()
            pre_depth -= element.rule.keeps_space
            if element.rule.content_rules is not None:
                rules = outer_rules.pop()
            node = element.node.next

        text = node.text_content
        if text is not None:
            if text and (pre_depth or not text.isspace()):
                writer.write_text(text, pre_depth)
            else:
                writer.note_space(text)
            node = node.next
            continue

        try:
            rule = rules[node.tag_id]
        except KeyError:
            rule = rules.add_rule(node)
        action, _, separator, min_length, keeps_space, is_folded, content_rules = rule
        if action <= HOLLOW:  # `KEEP` or `HOLLOW`
            child = node.first_child if action == KEEP else None
            folds = _count_folds(node, open_elements[-1]) if is_folded else 0
            if child is None:
                writer.close_element(writer.open_element(node, rule, folds))
            elif (
                not min_length
                and not keeps_space
                and (text := child.text_content)
                and child.next is None
                and (pre_depth or not text.isspace())
            ):
                writer.add_text_element(rule, node, text, pre_depth)
            else:
                open_elements.append(writer.open_element(node, rule, folds))
                pre_depth += keeps_space
                if content_rules is not None:
                    outer_rules.append(rules)
                    rules = content_rules
                node = child
                continue
        elif action == BREAK:
            writer.pending = max(LINE, writer.pending + 1)
        elif separator:
            writer.raw += _measure_removed_text(node)
            writer.pending = writer.pending or separator
        node = node.next


def _count_folds(node: LexborNode, parent: OpenElement) -> int:
    """Counts the enclosing elements that an element is folded into; 0: it is not folded.

    An element is folded if its parent has the same name and no other child element.
    """
    if not parent.rule.is_folded or parent.folds >= _MAX_FOLDS:
        return 0
    for direction in ("prev", "next"):
        sibling = getattr(node, direction)
        while sibling is not None:
            if sibling.is_element_node:
                return 0
            sibling = getattr(sibling, direction)
    return parent.folds + 1


def _measure_removed_text(node: LexborNode) -> int:
    """Returns the raw length of a removed element's text, or some number above `MAX_SHORT_CHARS`.

    Counting stops above this number, because all enclosing elements are then long enough to keep.
    """
    is_code = node.tag in ("script", "style")
    length = 0
    for descendant in node.traverse(include_text=True):
        text = descendant.text_content
        if text:
            length += len(text) if is_code else measure_raw_text(text)
            if length > MAX_SHORT_CHARS:
                break
    return length
