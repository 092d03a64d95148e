"""Pages that link to each other: an anchor's text is a mention, and the page that it leads to the
entity.

A first pass over the input collects the titles of all pages in an index (SQLite, on disk); the
annotator `entity` then looks up where the links of a page lead.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import lru_cache
from html import unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urldefrag, urljoin, urlsplit

from bsmeta.annotate.page import Page
from bsmeta.core.files import building

LONGEST_MENTION = 100
LONGEST_DESCRIPTION = 500

# What sets the name of the site off from the title of a page.
_SEPARATOR = re.compile(r" (?:[-–—|·•«»]|::) ")
_SITE_SHARE = 0.05  # of the pages of a host that have a suffix in common: it names the site
_SITE_PAGES = 3
_INDEX_FILE = re.compile(r"/(?:index|default)\.(?:html?|php|aspx?|jsp)$")
_PORTS = {"http": 80, "https": 443}
_DIGEST = "CREATE TABLE made_from (digest TEXT)"
_BASE = re.compile(r'<base\s[^>]*?href="([^"]*)"')
_SCHEMA = (
    "CREATE TABLE pages (key TEXT PRIMARY KEY, title TEXT NOT NULL, description TEXT NOT NULL, "
    "site TEXT NOT NULL, section TEXT NOT NULL) WITHOUT ROWID"
)


class LinkedPage(NamedTuple):
    """A page that links may lead to.

    Attributes:
        key: Its address, see `link_key`.
        title: Its title, without the name of the site.
        description: Its first paragraph.
        site: Its host.
        section: The first part of its path; empty if it has none.
    """

    key: str
    title: str
    description: str
    site: str
    section: str


@lru_cache(maxsize=1 << 16)
def link_key(url: str) -> str | None:
    """What is equal for two addresses of one page: without scheme, its port, fragment, index file.

    None if it is not the address of a page on the web.
    """
    try:
        parts = urlsplit(urldefrag(url).url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not host:
        return None
    if port not in (None, _PORTS[parts.scheme]):
        host = f"{host}:{port}"
    path = _INDEX_FILE.sub("/", parts.path).rstrip("/")
    return f"{host}{path}?{parts.query}" if parts.query else f"{host}{path}"


def linked_page(page: Page, url: str) -> LinkedPage | None:
    """The entry of a page in the index; None without an address or a title."""
    key = link_key(url)
    if key is None or not page.title:
        return None
    site, _, path = key.partition("/")
    section = path.partition("/")[0] if "/" in path else ""
    return LinkedPage(key, page.title, _first_paragraph(page), site, section)


def _first_paragraph(page: Page) -> str:
    """The text of the first `<p>`, on one line."""
    for block in page.blocks:
        if block.name == "p" and block.end > block.start:
            return " ".join(page.text[block.start : block.end].split())[:LONGEST_DESCRIPTION]
    return ""


def write_index(path: Path, pages: Iterable[LinkedPage], digest: str) -> None:
    """Writes the index of all pages; of pages of one address the first is kept.

    Args:
        path: The file.
        pages: The pages.
        digest: Identifies from what they were collected.
    """
    with building(path) as part, closing(sqlite3.connect(part)) as database:
        database.execute(_SCHEMA)
        database.execute(_DIGEST)
        database.execute("INSERT INTO made_from VALUES (?)", (digest,))
        database.executemany("INSERT OR IGNORE INTO pages VALUES (?, ?, ?, ?, ?)", pages)
        for key, title in list(_shortened(database)):
            database.execute("UPDATE pages SET title = ? WHERE key = ?", (title, key))
        database.commit()


def _shortened(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """The titles that end with the name of their site, without it.

    The name is what follows the last separator in many titles of a site.
    """
    pages: Counter[str] = Counter()
    suffixes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for site, title in database.execute("SELECT site, title FROM pages"):
        pages[site] += 1
        suffixes[site][_parts(title)[1]] += 1
    for key, title, site in database.execute("SELECT key, title, site FROM pages"):
        name, suffix = _parts(title)
        if suffix and suffixes[site][suffix] >= max(_SITE_PAGES, _SITE_SHARE * pages[site]):
            yield key, name


def _parts(title: str) -> tuple[str, str]:
    """A title before its last separator, and after it."""
    separators = list(_SEPARATOR.finditer(title))
    if not separators:
        return title, ""
    return title[: separators[-1].start()].rstrip(), title[separators[-1].end() :]


def open_database(path: Path) -> sqlite3.Connection:
    """Opens an SQLite file that only is read."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def index_path(output: Path) -> Path:
    """Where the index of a run lies."""
    return output / "_annotation" / "pages.sqlite"


def index_digest(path: Path) -> str | None:
    """From what an index was made; None if it is not there."""
    if not path.exists():
        return None
    with closing(open_database(path)) as database:
        return str(database.execute("SELECT digest FROM made_from").fetchone()[0])


class LinkIndex:
    """The pages of a crawl by their address. Each process opens it for itself.

    Args:
        path: The file that `write_index` wrote.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self.find = lru_cache(maxsize=1 << 16)(self._find)

    def pages(self) -> Iterator[LinkedPage]:
        """All pages, sorted by their address."""
        with closing(open_database(self._path)) as database:
            yield from map(LinkedPage._make, database.execute("SELECT * FROM pages ORDER BY key"))

    def _find(self, key: str) -> LinkedPage | None:
        if self._database is None:
            self._database = open_database(self._path)
        found = self._database.execute("SELECT * FROM pages WHERE key = ?", (key,)).fetchone()
        return None if found is None else LinkedPage._make(found)


def mentions(page: Page, url: str, index: LinkIndex) -> Iterator[tuple[int, int, LinkedPage]]:
    """The links of a page that lead to another page of the crawl: start, end, and that page.

    Anchors without letters, and those longer than `LONGEST_MENTION`, are no mentions. Of nested or
    overlapping anchors, which only broken HTML has, the first counts.
    """
    own, last = link_key(url), 0
    declared = _BASE.search(page.head[0]) if page.head else None
    base = urljoin(url, unescape(declared[1])) if declared else url
    folder = urljoin(base, ".")  # to which links are relative: the same for many pages
    for link in page.links:
        start, end = _trimmed(page.text, link.start, link.end)
        is_name = 0 < end - start <= LONGEST_MENTION and any(map(str.isalpha, page.text[start:end]))
        href = link.href.strip()
        if start < last or not is_name or not href or href.startswith("#"):
            continue
        key = _target(base if href.startswith("?") else folder, href)
        target = index.find(key) if key is not None and key != own else None
        if target is not None:
            last = end
            yield start, end, target


@lru_cache(maxsize=1 << 16)
def _target(base: str, href: str) -> str | None:
    """The key of the page that a link leads to."""
    try:
        return link_key(urljoin(base, href))
    except ValueError:
        return None


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without white space at its beginning and end."""
    inside = text[start:end]
    start += len(inside) - len(inside.lstrip())
    return start, start + len(inside.strip())
