"""What `make docs` adds to MkDocs.

In the tables of GitHub's Markdown, a vertical bar inside code is written with a backslash, which
Python-Markdown would show.
"""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """The page without the backslashes before bars in cells of tables."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)
