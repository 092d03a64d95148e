"""What `make docs` adds to MkDocs: bars in tables, and an index of the pages for language models.

In the tables of GitHub's Markdown, a vertical bar inside code is written with a backslash, which
Python-Markdown would show.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """Returns the page without the backslashes before bars in cells of tables."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)


def on_post_build(config: Any, **_: Any) -> None:
    """Writes `llms.txt` (llmstxt.org): the pages of the navigation by section."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    lines += _list_pages(config.nav, Path(config.docs_dir))
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _list_pages(entries: list[Any], folder: Path, sections: tuple[str, ...] = ()) -> list[str]:
    """Lists the pages of a part of the navigation, with a heading for each section."""
    lines: list[str] = []
    for entry in entries:
        ((title, content),) = entry.items() if isinstance(entry, dict) else (("", entry),)
        if isinstance(content, list):
            names = (*sections, title)
            lines += [f"## {': '.join(names)}", "", *_list_pages(content, folder, names), ""]
            continue
        with (folder / content).open(encoding="utf-8") as file:
            heading = file.readline().lstrip("# ").rstrip()
        page = content.removesuffix(".md") + ".html"
        lines.append(f"- [{title or heading}]({page})" + (f": {heading}" if title else ""))
    return lines
