"""Which of Wikipedia's articles describe websites, and their first sentences, from a dump.

An article describes a domain if an infobox names it as its `website` or `url` (without a path), or
if a redirect to the article has the domain as its title ("Example.com"); a redirect wins.
"""

from __future__ import annotations

import bz2
import gzip
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, NamedTuple, cast
from xml.etree import ElementTree

from bsmeta.config.errors import DataError
from bsmeta.data.text.sentences import sentences

_DOMAIN = r"(?:www\.)?((?:[a-z0-9-]+\.)+[a-z]{2,})"
_DOMAIN_TITLE = re.compile(_DOMAIN, re.IGNORECASE)
_WEBSITE = re.compile(
    rf"\|\s*(?:website|homepage|url)\s*=[^|\n]*?(?:url\|)?\W*(?:https?://)?{_DOMAIN}/?(?=[\s|}}\]]|$)",
    re.IGNORECASE,
)
_WITHOUT_CONTENT = re.compile(
    r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>|<(gallery|math|table)\b.*?</\1>", re.DOTALL
)
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*?\|\}", re.DOTALL)
_FILE = re.compile(r"\[\[(?:file|image|category)[^\[\]]*\]\]", re.IGNORECASE)
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_OUTSIDE_LINK = re.compile(r"\[https?://\S+ ?([^\]]*)\]")
_MARKUP = re.compile(r"'{2,}|<[^>]+>|__[A-Z]+__")
_PARENTHESES = re.compile(r"\s*\([^()]*\)")
_NO_PROSE = tuple("=*#:;|!{}[<")
_DEEPEST = 20  # templates in templates, and so on
_INTRODUCTION = 20_000  # characters of an article among which its first sentence is


class Article(NamedTuple):
    """An article of the dump; `redirect` is the title that it leads to, if it is only that."""

    title: str
    redirect: str | None
    text: str


def descriptions_of_dump(path: Path) -> dict[str, str]:
    """The first sentence of the article about each domain.

    The dump is read once, in a stream; the first sentences of all articles are kept in a temporary
    file, because a redirect may stand before or after its article.

    Args:
        path: `pages-articles.xml`, plain or compressed (.bz2, .gz).

    Raises:
        DataError: If it cannot be read.
    """
    redirects: dict[str, str] = {}
    named: dict[str, str] = {}
    with closing(sqlite3.connect("")) as database:  # temporary, on the disk
        database.execute("CREATE TABLE sentences (title TEXT PRIMARY KEY, sentence TEXT)")
        for article in articles(path):
            match = _DOMAIN_TITLE.fullmatch(article.title)
            if article.redirect is not None:
                if match:
                    redirects[match[1].lower()] = article.redirect
                continue
            row = article.title, first_sentence(article.text)
            database.execute("INSERT OR IGNORE INTO sentences VALUES (?, ?)", row)
            if match:
                redirects[match[1].lower()] = article.title
            for domain in _WEBSITE.findall(article.text[:_INTRODUCTION]):
                _keep_nearer(named, domain.lower(), article.title)
        titles = {**named, **redirects}
        query = "SELECT sentence FROM sentences WHERE title = ?"
        found = {
            domain: database.execute(query, (title,)).fetchone() for domain, title in titles.items()
        }
    return {domain: row[0] for domain, row in found.items() if row and row[0]}


def _keep_nearer(named: dict[str, str], domain: str, title: str) -> None:
    """Keeps, of articles that name one website, the first whose title is like the domain."""
    label = domain.partition(".")[0].replace("-", "")
    is_near = label in re.sub(r"\W", "", title).lower()
    if domain not in named or (is_near and label not in re.sub(r"\W", "", named[domain]).lower()):
        named[domain] = title


def articles(path: Path) -> Iterator[Article]:
    """The articles and redirects of a dump.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        with _opened(path) as file:
            events = ElementTree.iterparse(file, events=("start", "end"))
            _, root = next(events)
            for event, element in events:
                if event == "end" and element.tag.rpartition("}")[2] == "page":
                    fields = {one.tag.rpartition("}")[2]: one for one in element.iter()}
                    if fields["ns"].text == "0":
                        redirect = fields["redirect"].get("title") if "redirect" in fields else None
                        text = fields["text"].text if "text" in fields else None
                        yield Article(fields["title"].text or "", redirect, text or "")
                    root.clear()
    except (OSError, EOFError, StopIteration, KeyError, ElementTree.ParseError) as error:
        raise DataError(
            f"dump={path} cannot be read: {error!r}; expected pages-articles.xml of Wikipedia"
        ) from error


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".bz2":
        return bz2.open(path)
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def first_sentence(text: str) -> str:
    """The first sentence of an article in wikitext, without markup and parentheses."""
    text = _WITHOUT_CONTENT.sub("", text[:_INTRODUCTION])
    for pattern, replacement in ((_TEMPLATE, ""), (_FILE, ""), (_LINK, r"\1")):
        for _ in range(_DEEPEST):
            text, count = pattern.subn(replacement, text)
            if not count:
                break
    text = _MARKUP.sub("", _OUTSIDE_LINK.sub(r"\1", text))
    for _ in range(_DEEPEST):
        text, count = _PARENTHESES.subn("", text)
        if not count:
            break
    for line in text.splitlines():
        line = " ".join(line.split())
        if line and not line.startswith(_NO_PROSE):
            start, end = next(sentences(line, "rules"))
            return line[start:end]
    return ""
