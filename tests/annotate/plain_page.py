"""The rules by which a page becomes text and tags, applied one after the other to a plain tree.

Slow and simple: each rule is a pass over a tree of Python objects, and the text of each element is
joined again. `bsmeta.annotate.html.page` does all of it in one pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from selectolax.lexbor import LexborHTMLParser, LexborNode


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NOT_TEXT = words("script style template iframe noembed noframes")
REMOVED = NOT_TEXT | words("header footer form")
REMOVED_IF_SHORT = words("body div p section table ul ol dl")
BLOCKS = words(
    """address article aside blockquote body button canvas caption col colgroup dd div dl dt embed
    fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li map noscript object
    ol output p pre progress section table tbody textarea tfoot th thead tr ul video"""
)
SPACED = words(
    """address cite details datalist iframe img input label legend optgroup option q select summary
    svg tbody td time"""
)
HTML_IN_DRAWING = words("foreignobject title desc")


@dataclass
class Element:
    """An element.

    Attributes:
        in_drawing: Whether it belongs to an SVG, and not to HTML, which may be within an SVG.
        gone: Whether a rule removed it, leaving a space.
        folded: Number of enclosing elements into which it is folded; it then has no tag.
    """

    name: str
    attributes: list[tuple[str, str]]
    children: list[Element | str] = field(default_factory=list)
    in_drawing: bool = False
    gone: bool = False
    folded: int = 0

    @property
    def elements(self) -> list[Element]:
        return [child for child in self.children if isinstance(child, Element)]


def rendered(html: str, profile: str = "published") -> tuple[str, str]:
    """Returns the text of a page, and the text with its tags as the renderer inserts them."""
    body = copied(LexborHTMLParser(html).body)
    if profile == "published":
        fold(body)
        remove(body)
    else:
        empty(body)
    layout = Layout(body)
    return layout.text, layout.html


def copied(node: LexborNode, in_drawing: bool = False) -> Element:
    attributes = [(name, value or "") for name, value in node.attributes.items()]
    element = Element(node.tag.lower(), attributes, in_drawing=in_drawing)
    is_drawing = element.name not in HTML_IN_DRAWING if in_drawing else element.name == "svg"
    for child in node.iter(include_text=True):
        if child.tag == "-text":
            element.children.append(child.text_content or "")
        elif not child.tag.startswith("-"):
            element.children.append(copied(child, is_drawing))
    return element


def fold(element: Element) -> None:
    """Folds from the outside in; three elements become one."""
    for child in element.elements:
        is_only = len(element.elements) == 1 and element.name == child.name == "div"
        child.folded = element.folded + 1 if is_only and element.folded < 2 else 0
        fold(child)


def remove(element: Element) -> None:
    """Removes from the outside in; text in elements that are removed later counts, too."""
    is_short = element.name in REMOVED_IF_SHORT and not element.folded
    if element.name in REMOVED or (is_short and len(raw_text(element)) <= 64):
        element.gone = True
        return
    for child in element.elements:
        remove(child)


def raw_text(element: Element, in_pre: bool = False) -> str:
    """Returns the text of an element with the white space of HTML collapsed."""
    in_pre = in_pre or element.name in ("pre", "script", "style")
    parts = []
    for child in element.children:
        if isinstance(child, Element):
            parts.append(raw_text(child, in_pre))
        else:
            parts.append(child if in_pre else re.sub(r"[ \t\n\f\r]+", " ", child))
    return "".join(parts)


def empty(element: Element) -> None:
    if element.name in NOT_TEXT:
        element.children = []
    for child in element.elements:
        empty(child)


def attributes(element: Element) -> list[tuple[str, str]]:
    """Returns the attributes of an element and of the elements folded into it."""
    both = dict(element.attributes)
    inner = element.elements[0] if len(element.elements) == 1 else None
    if inner is not None and inner.folded:
        for name, value in attributes(inner):
            both[name] = f"{both[name]} {value}" if name in both else value
    return list(both.items())


class Layout:
    """A page laid out.

    Attributes:
        text: The text.
        html: The text with tags.
        spans: Span of each element in the text, by its id.
    """

    def __init__(self, body: Element) -> None:
        self.text = self.html = ""
        self.spans: dict[int, tuple[int, int]] = {}
        self._separator = ""  # a space or line breaks, before the next text
        self._begun: list[Element] = []  # without content so far
        if not body.gone:
            self._visit(body, in_pre=False)

    def _visit(self, element: Element, in_pre: bool) -> None:
        in_pre = in_pre or element.name == "pre"
        self._begun.append(element)
        self._separate(element)
        for child in element.children:
            if isinstance(child, str):
                self._read(child, in_pre)
            elif child.name == "br":
                self._separator = self._separator.strip(" ") + "\n"
            elif child.gone:
                self._separator = self._separator or " "
            else:
                self._visit(child, in_pre)
        self._begin()
        self.spans[id(element)] = self.spans[id(element)][0], len(self.text)
        self.html += "" if element.folded else f"</{element.name}>"
        self._separate(element)

    def _separate(self, element: Element) -> None:
        if element.name in BLOCKS and "\n" not in self._separator:
            self._separator = "\n"
        elif element.name in SPACED or element.in_drawing:
            self._separator = self._separator or " "

    def _read(self, text: str, in_pre: bool) -> None:
        if in_pre:
            self._write(text)
        elif text.strip():
            if text[0].isspace():
                self._separator = self._separator or " "
            self._write(" ".join(text.split()))
            self._separator = " " if text[-1].isspace() else ""
        else:
            self._separator = self._separator or " "

    def _write(self, text: str) -> None:
        if not text:
            return
        if not self.text or (self._separator == " " and self.text[-1].isspace()):
            self._separator = ""
        elif self.text[-1] == "\n":
            self._separator = self._separator[1:]
        self.text += self._separator
        self.html += self._separator
        self._separator = ""
        self._begin()
        self.text += text
        self.html += text

    def _begin(self) -> None:
        for element in self._begun:
            self.spans[id(element)] = len(self.text), -1
            values = "".join(f" {name}:{value}" for name, value in attributes(element))
            self.html += "" if element.folded else f"<{element.name}{values}>"
        self._begun = []
