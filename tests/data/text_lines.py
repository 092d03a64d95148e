"""Documents of given texts, as lines of JSON."""

from __future__ import annotations

import json


def lines(rows: list[str]) -> bytes:
    return "".join(f"{json.dumps({'text': text})}\n" for text in rows).encode()
