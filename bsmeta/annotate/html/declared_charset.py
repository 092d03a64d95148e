"""Finds the charset that the first bytes of a page declare, as browsers do.

"Prescan a byte stream to determine its encoding" of the HTML standard (section 13.2.3.2): comments
and the attributes of other elements declare nothing, whatever they contain.
"""

from __future__ import annotations

import re

from resiliparse.parse.encoding import map_encoding_to_html5

PRESCAN_BYTES = 4096
"""Number of bytes, from the beginning of a page, that are searched; browsers search 1,024."""

_SPACE = rb"[\t\n\f\r ]"
_MARKUP = re.compile(
    rb"(?P<comment><!--)|(?P<meta><meta(?=[\t\n\f\r /]))|(?P<tag></?[a-z][^\t\n\f\r >]*+)"
    rb"|(?P<other><[!/?])",
    re.IGNORECASE,
)
_ATTRIBUTE = re.compile(
    rb"[\t\n\f\r /]*+(?P<name>[^\t\n\f\r />][^\t\n\f\r />=]*+)"
    rb"(?:" + _SPACE + rb"*+(?P<equals>=)" + _SPACE + rb"*+"
    rb"(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<bare>(?![\"'])[^\t\n\f\r >]*+)))?+"
)
_UNTERMINATED = re.compile(_SPACE + rb"*+=" + _SPACE + rb"*+[\"']")
_MEDIA_TYPE = re.compile(_SPACE + rb"*+[a-z]++/[a-z+.-]++" + _SPACE + rb"*+;")
_CHARSET = re.compile(
    rb"charset" + _SPACE + rb"*+=" + _SPACE + rb"*+"
    rb"(?:\"([^\"]*+)\"|'([^']*+)'|([^\t\n\f\r ;\"'][^\t\n\f\r ;]*+))",
    re.IGNORECASE,
)


def find_declared_charset(html: bytes) -> str | None:
    """Finds the encoding that a page declares in a `<meta>`.

    The first `<meta>` with a known charset counts. The charset is its `charset`, or part of its
    `content` if `http-equiv=Content-Type`. Beyond the standard, a `content` that begins with a
    media type counts without `http-equiv`, and a slash after the charset is ignored.

    Returns:
        Python's name of the encoding; None if there is no such declaration.
    """
    html = html[:PRESCAN_BYTES]
    markup = _MARKUP.search(html)
    while markup is not None:
        start = markup.end()
        if markup["comment"]:
            # The end may share the dashes of the beginning: `<!-->` is a comment.
            end = html.find(b"-->", start - len(b"--"))
        elif markup["other"]:
            end = html.find(b">", start)
        else:
            attributes, end = _read_attributes(html, start)
            if markup["meta"] and end >= 0:
                encoding = _read_encoding(attributes)
                if encoding is not None:
                    return encoding

        if end < 0:  # a comment or tag without an end contains the rest
            return None
        markup = _MARKUP.search(html, end)
    return None


def _read_attributes(html: bytes, position: int) -> tuple[dict[bytes, bytes], int]:
    """Reads the attributes of a tag.

    Args:
        position: The position after the name of the tag.

    Returns:
        The attributes in lower case (of several with the same name, the first), and the position of
        the tag's `>`, or -1 if it has none.
    """
    attributes: dict[bytes, bytes] = {}
    attribute = _ATTRIBUTE.match(html, position)
    while attribute is not None:
        position = attribute.end()
        if not attribute["equals"] and _UNTERMINATED.match(html, position):
            return attributes, -1

        value = attribute["double"] or attribute["single"] or attribute["bare"] or b""
        attributes.setdefault(attribute["name"].lower(), value.lower())
        attribute = _ATTRIBUTE.match(html, position)
    return attributes, html.find(b">", position)


def _read_encoding(attributes: dict[bytes, bytes]) -> str | None:
    """Returns Python's name of the encoding that a `<meta>` declares; None if it declares none."""
    label = attributes.get(b"charset")
    content = attributes.get(b"content", b"")
    is_content_type = attributes.get(b"http-equiv") == b"content-type"
    if label is None and (is_content_type or _MEDIA_TYPE.match(content)):
        charset = _CHARSET.search(content)
        if charset is not None:
            label = charset[1] or charset[2] or charset[3]
    if not label:
        return None

    name = label.decode("ascii", "replace").strip().rstrip("/")
    return map_encoding_to_html5(name, fallback_utf8=False)
