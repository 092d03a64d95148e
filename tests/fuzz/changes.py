"""Inputs that a reader may get from someone with bad intent, made from one that is right.

Bytes are changed at random (`tests.hostile.random_changes`). Of JSON and YAML, values are exchanged
for others, too: random bytes hardly ever leave a document that can be parsed, and then its reader
has not yet begun.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

WORDS = (
    # Depth, length and size
    b"[" * 5000,
    b'{"a":' * 5000,
    b"(" * 5000,
    b"<b>" * 5000,
    b"- " * 5000,
    b"a" * 70_000,
    b"9" * 5000,
    b"1e999",
    b"-1e999",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"0.1e-400",
    b"NaN",
    b"-Infinity",
    # Text that is none
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\\u0000",
    b"\xf4\x90\x80\x80",
    b"\xe2\x80\xae",
    b"\x1b]52;c;eA==\x07",
    b"\x85",
    b"\xe2\x80\xa8",
    # Ends of lines, fields and tags
    b"\n",
    b"\r",
    b"\r\n",
    b'"',
    b"'",
    b",",
    b"\t",
    b"<",
    b">",
    b"&",
    b";",
    b"#",
    b"\\",
    b"<!--",
    b"]]>",
    b"<![CDATA[",
    b"</",
    b"&#x110000;",
    b"--",
    b"%",
    b"%zz",
    b"://",
    b"[::",
    b"@",
    # Names and references
    b"..",
    b"../../../../etc/passwd",
    b"/",
    b"${oc.env:HOME}",
    b"${",
    b"*a",
    b"&a [*a, *a]",
    b"!!python/object:os.system",
    # Times
    b"9999-12-31",
    b"0000-00-00",
    b"253402300800",
    b"-62135596801",
    b"2019-02-30T25:61:61Z",
)
"""Put into a file, or in place of a part of it."""

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    0.5,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "..",
    "/etc/passwd",
    "\0",
    "\ud800",
    "é" * 300,
    "${oc.env:HOME}",
    "1",
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"b": {}}},
    [0] * 100,
    "9" * 5000,
    "2019-02-30",
    "http://[::",
    "https://user:word@host/",
    [{"key": 1}],
    "<b>",
    [1, "a", None, {}],
)
"""Put in place of a value of a JSON or YAML document."""

Change = Callable[[random.Random], bytes]


def put_words(content: bytes, source: random.Random) -> bytes:
    """Returns the content with words inserted or replaced at random positions."""
    for _ in range(source.randint(1, 3)):
        begin = source.randrange(len(content) + 1)
        end = begin + source.choice((0, 0, 1, 4, 16))
        content = content[:begin] + source.choice(WORDS) + content[end:]
    return content


def change_document(document: Any, source: random.Random) -> Any:
    """Returns a JSON or YAML document with one to three values changed, removed, or moved."""
    document = copy.deepcopy(document)
    for _ in range(source.randint(1, 3)):
        parents = [node for node in _nodes(document) if node]
        if not parents:
            return source.choice(VALUES)
        parent = source.choice(parents)
        key = source.choice([*parent] if isinstance(parent, dict) else [*range(len(parent))])
        match source.randrange(6):
            case 0:
                del parent[key]
            case 1:
                parent[key] = copy.deepcopy(source.choice(parents))
            case 2 if isinstance(parent, dict):
                parent[source.choice(("", "..", "x", "\ud800", "a.b", f"{key}x"))] = parent.pop(key)
            case 3 if isinstance(parent, list):
                parent.insert(key, parent[key])
            case _:
                parent[key] = copy.deepcopy(source.choice(VALUES))
    return document


def _nodes(node: Any) -> Iterator[dict[Any, Any] | list[Any]]:
    """Returns all mappings and lists of a document."""
    if isinstance(node, (dict, list)):
        yield node
        for inner in [*(node.values() if isinstance(node, dict) else node)]:
            yield from _nodes(inner)


def change_json(content: bytes, source: random.Random) -> bytes:
    """Returns a JSON document with other values."""
    return json.dumps(change_document(json.loads(content), source)).encode("utf-8", "surrogatepass")


def change_json_lines(content: bytes, source: random.Random) -> bytes:
    """Returns JSON lines with other values in one line."""
    lines = content.splitlines()
    number = source.randrange(len(lines))
    lines[number] = change_json(lines[number], source)
    return b"\n".join([*lines, b""])


def change_yaml(content: bytes, source: random.Random) -> bytes:
    """Returns a YAML document with other values."""
    document = change_document(yaml.safe_load(content), source)
    try:
        return yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass")
    except yaml.YAMLError:  # what cannot be written cannot come either
        return content
