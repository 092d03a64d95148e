"""Cleans raw pages for the frames of the report, so that they send no requests and do not navigate.

The sandbox of a frame runs no scripts, and its policy loads nothing. Neither prevents a browser
from connecting to a host that the page names (`<link rel=preconnect>`), or a click from navigating
the frame. Therefore elements that load, connect, navigate or embed are removed, and so are all
attributes that are not known to be harmless.
"""

from __future__ import annotations

import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

from bsmeta.annotate.html.page import PageError, parse_html
from bsmeta.annotate.html.tags import split_names

# Most of them load, connect, navigate or embed. SVG and MathML are parsed by other rules, and
# `<plaintext>` changes each time that it is parsed and serialized.
_REMOVED_ELEMENTS = ", ".join(
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
_INLINE_IMAGE = re.compile(r"data:image/[a-z0-9.+-]+[;,]", re.IGNORECASE)
# `data:` URLs are kept, as they make no request. Other spellings, such as escapes, are left to the
# policy.
_STYLE_REQUEST = re.compile(
    r"@import|(?:image-set|src)\s*\(|url\s*\((?!\s*[\"']?data:)", re.IGNORECASE
)
_MAX_PASSES = 5


def make_inert_html(html: str) -> str:
    """Removes all elements and attributes of a page that send requests or navigate.

    The page is cleaned until parsing and serializing no longer change it, because the serialization
    of badly nested HTML may yield further elements when it is parsed again.

    Raises:
        PageError: If the page cannot be parsed, or changes with each pass.
    """
    for _ in range(_MAX_PASSES):
        cleaned = _clean_tree(parse_html(html))
        if cleaned == html:
            return cleaned
        html = cleaned
    raise PageError("not_stable", f"it changes with each of {_MAX_PASSES} passes of the parser")


def _clean_tree(tree: LexborHTMLParser) -> str:
    """Cleans all elements of a tree, and serializes it."""
    # Inner elements first: an outer one would free them.
    for node in reversed(tree.css(_REMOVED_ELEMENTS)):
        node.decompose()
    for node in tree.css("*"):
        _clean_attributes(node)
        if node.tag == "style":
            _clean_style(node)
    return tree.html or ""


def _clean_attributes(node: LexborNode) -> None:
    """Removes the attributes of an element that are not known to be harmless."""
    for name, value in node.attributes.items():
        is_inline_image = name == "src" and _INLINE_IMAGE.match(value or "")
        if name not in _KEPT_ATTRIBUTES and not is_inline_image:
            del node.attrs[name]
        elif name == "style":
            node.attrs[name] = _STYLE_REQUEST.sub("none(", value or "")


def _clean_style(node: LexborNode) -> None:
    """Disables the requests in the text of a `<style>`."""
    text = node.text()
    if node.child is not None and _STYLE_REQUEST.search(text):
        node.child.replace_with(_STYLE_REQUEST.sub("none(", text))
