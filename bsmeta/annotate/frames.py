"""Raw pages for the frames of the report, cleaned so that they make no request and lead nowhere.

The frame's sandbox runs no script, and its policy loads nothing; but neither rules out that a
browser connects to a host that a page names (`<link rel=preconnect>`), or that a click navigates
the frame. So elements and attributes are removed unless they are known to do neither.
"""

from __future__ import annotations

import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

from bsmeta.annotate.page import PageError, parse_html
from bsmeta.annotate.tags import split_names

# They load, connect, navigate or embed. SVG and MathML are parsed by rules of their own, and
# `<plaintext>` reads differently each time that it is written.
_REMOVED = ", ".join(
    split_names(
        """link base meta iframe frame frameset object embed applet portal fencedframe template svg
        math plaintext"""
    )
)
_KEPT_ATTRIBUTES = split_names(
    """abbr align alt bgcolor border cellpadding cellspacing checked class clear color cols colspan
    dir disabled face frame headers height hidden hspace id label lang nowrap open reversed role
    rows rowspan rules scope selected shape size span start style summary tabindex title valign
    value vspace width wrap"""
)
_IMAGE = re.compile(r"data:image/[a-z0-9.+-]+[;,]", re.IGNORECASE)
# Addresses of images that are in the style itself stay. Other spellings, such as those with
# escapes, are left to the policy.
_ADDRESS = re.compile(r"@import|(?:image-set|src)\s*\(|url\s*\((?!\s*[\"']?data:)", re.IGNORECASE)
_MOST_PASSES = 5


def make_inert_html(html: str) -> str:
    """Removes from a page all elements and attributes that make requests or navigate.

    It is cleaned until parsing and writing no longer change it: with some errors of nesting,
    elements appear only when HTML that a parser has written is parsed.

    Raises:
        PageError: The page cannot be parsed, or never becomes stable.
    """
    for _ in range(_MOST_PASSES):
        cleaned = _clean_tree(parse_html(html))
        if cleaned == html:
            return cleaned
        html = cleaned
    raise PageError("not_stable", f"it changes with each of {_MOST_PASSES} passes of the parser")


def _clean_tree(tree: LexborHTMLParser) -> str:
    for node in reversed(tree.css(_REMOVED)):  # inner elements before the outer, which frees them
        node.decompose()
    for node in tree.css("*"):
        _clean_attributes(node)
        if node.tag == "style":
            _clean_style(node)
    return tree.html or ""


def _clean_attributes(node: LexborNode) -> None:
    for name, value in node.attributes.items():
        is_kept = name in _KEPT_ATTRIBUTES or (name == "src" and _IMAGE.match(value or ""))
        if not is_kept:
            del node.attrs[name]
        elif name == "style":
            node.attrs[name] = _ADDRESS.sub("none(", value or "")


def _clean_style(node: LexborNode) -> None:
    text = node.text()
    if node.child is not None and _ADDRESS.search(text):
        node.child.replace_with(_ADDRESS.sub("none(", text))
