"""Descriptions of websites: a table of domains, made from a dump of Wikipedia.

    python -m bsmeta.annotate.descriptions dump=enwiki-pages-articles.xml.bz2 output=sites.sqlite

The dump is read once, in a stream. An article describes a domain if an infobox names it as its
`website` or `url` (without a path), or if a redirect to the article has the domain as its title
("Example.com"); a redirect wins.
"""

from __future__ import annotations

import bz2
import gzip
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple, cast
from xml.etree import ElementTree

from bsmeta.annotate.config import DescriptionsConfig
from bsmeta.annotate.links import open_database
from bsmeta.config.entry_point import run_entry_point
from bsmeta.core.enclosed import Finder, replace_enclosed
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import build_atomically, hash_file
from bsmeta.core.parsing import parse_json
from bsmeta.data.text.sentences import find_sentences

_DOMAIN = r"(?:www\.)?((?:[a-z0-9-]++\.)++[a-z]{2,}+)"
_DOMAIN_TITLE = re.compile(_DOMAIN, re.IGNORECASE)
_WEBSITE = re.compile(r"\|\s*+(?:website|homepage|url)\s*+=(?P<value>[^|\n]*+)", re.IGNORECASE)
_WHOLE_DOMAIN = rf"{_DOMAIN}/?(?=[\s|}}\]]|$)"
# Begins only at the first label: if a domain does not end a value, its later labels do not either.
_IN_VALUE = re.compile(rf"(?<![a-z0-9-])(?<![a-z0-9-]\.)-*+{_WHOLE_DOMAIN}", re.IGNORECASE)
_AFTER_VALUE = re.compile(rf"\W*+(?:https?://)?{_WHOLE_DOMAIN}", re.IGNORECASE)
_NO_CONTENT = re.compile(
    r"<(?:(?P<whole>ref[^<>]*+(?:(?<=/)>|>[^<]*+</ref>))|!--|ref|(?P<element>gallery|math|table)\b)"
)
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*?\|\}", re.DOTALL)
_FILE = re.compile(r"\[\[(?:file|image|category)[^\[\]]*\]\]", re.IGNORECASE)
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_SCHEME = "[http"
_OUTSIDE_LINK = re.compile(r"\[https?://(?=\S)")
_SPACE = re.compile(r"\s")
_MARKUP = re.compile(r"'{2,}|__[A-Z]+__|(?P<tag><)(?=[^>])")
_MARKUP_EXCEPT_TAGS = re.compile(r"'{2,}|__[A-Z]+__")
# Begins at the first of the spaces before parentheses. The class at the beginning makes it fast.
_PARENTHESES = re.compile(r"[\s(](?:(?<=\()|(?<=\s)(?<!\s\s)\s*+\()[^()]*+\)")
_NO_PROSE = tuple("=*#:;|!{}[<")
_DEEPEST = 20  # templates in templates, and so on
_LONGEST_HOST = 253  # characters, of RFC 1035
_INTRODUCTION = 20_000  # characters of an article that are searched for its first sentence

WORDS = range(5, 51)
_NO_DESCRIPTION = re.compile(r"refers? to\b|^\[\[\w+:")

FORMATS = (".tsv", ".jsonl", ".sqlite")
_SCHEMA = "CREATE TABLE descriptions (domain TEXT PRIMARY KEY, description TEXT) WITHOUT ROWID"


def read_descriptions(path: Path) -> dict[str, str]:
    """Returns the first sentence of the article about each domain.

    The dump (`pages-articles.xml`, plain or compressed) is read once, in a stream; the first
    sentences of all articles are kept in a temporary file, because a redirect may stand before or
    after its article.

    Raises:
        DataError: If it cannot be read.
    """
    redirects: dict[str, str] = {}
    named: dict[str, _NamingArticle] = {}
    descriptions: dict[str, str] = {}
    with closing(sqlite3.connect("")) as database:  # temporary, on the disk
        database.execute("CREATE TABLE sentences (title TEXT PRIMARY KEY, sentence TEXT)")
        for article in _read_articles(path):
            title = article.title
            if match := _DOMAIN_TITLE.fullmatch(title):
                redirects[match[1].lower()] = title if article.target is None else article.target
            if article.target is not None:
                continue

            values = title, extract_first_sentence(article.text)
            database.execute("INSERT OR IGNORE INTO sentences VALUES (?, ?)", values)
            letters = re.sub(r"\W", "", title).lower()
            for domain in _find_websites(article.text[:_INTRODUCTION]):
                _keep_nearer(named, domain.lower(), title, letters)

        titles = {domain: article.title for domain, article in named.items()} | redirects
        query = "SELECT sentence FROM sentences WHERE title = ?"
        for domain, title in titles.items():
            row = database.execute(query, (title,)).fetchone()
            if row and row[0]:
                descriptions[domain] = row[0]
    return descriptions


def _find_websites(text: str) -> Iterator[str]:
    """Yields the domains that the infoboxes of an article name as its website.

    Only the first domain of a value counts. If a value has none, the domain may be in the argument
    or the line after it.
    """
    for field in _WEBSITE.finditer(text):
        start, end = field.span("value")
        domain = _IN_VALUE.search(text, start, end) or _AFTER_VALUE.match(text, end)
        if domain is not None:
            yield domain[1]


class _NamingArticle(NamedTuple):
    """The title of an article that names a website, and whether it is like the domain."""

    title: str
    is_near: bool


def _keep_nearer(named: dict[str, _NamingArticle], domain: str, title: str, letters: str) -> None:
    """Records an article for a domain unless an earlier one matches it at least as well.

    A title that contains the name of the domain matches better than one that does not.

    Args:
        letters: The letters of the title, in lower case.
    """
    is_near = domain.partition(".")[0].replace("-", "") in letters
    if domain not in named or (is_near and not named[domain].is_near):
        named[domain] = _NamingArticle(title, is_near)


class _Article(NamedTuple):
    """An article of the dump, or a redirect."""

    title: str
    target: str | None  # the title of the article that a redirect leads to
    text: str


def _read_articles(path: Path) -> Iterator[_Article]:
    """Yields the articles and redirects of a dump."""
    try:
        with _open_dump(path) as file:
            events = ElementTree.iterparse(file, events=("start", "end"))
            _, root = next(events)
            for event, element in events:
                if event != "end" or element.tag.rpartition("}")[2] != "page":
                    continue
                fields = {child.tag.rpartition("}")[2]: child for child in element.iter()}
                if fields["ns"].text == "0":
                    target = fields["redirect"].get("title") if "redirect" in fields else None
                    text = fields["text"].text if "text" in fields else None
                    yield _Article(fields["title"].text or "", target, text or "")
                root.clear()
    except (OSError, EOFError, StopIteration, KeyError, ElementTree.ParseError) as error:
        raise DataError(
            f"dump={path} cannot be read: {error!r}; expected pages-articles.xml of Wikipedia"
        ) from error


def _open_dump(path: Path) -> IO[bytes]:
    if path.suffix == ".bz2":
        return bz2.open(path)
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    return path.open("rb")


def extract_first_sentence(text: str) -> str:
    """Returns the first sentence of an article in wikitext, without markup and parentheses."""
    text = replace_enclosed(text[:_INTRODUCTION], _NO_CONTENT, _remove_content)
    text = _remove_nested(_TEMPLATE, "{", text)
    text = _remove_nested(_FILE, "[[", text)
    text = _remove_nested(_LINK, "[[", text, r"\1")
    text = _remove_markup(_label_links(text))
    text = _remove_nested(_PARENTHESES, "(", text)

    for line in text.splitlines():
        line = " ".join(line.split())
        if line and not line.startswith(_NO_PROSE):
            start, end = next(find_sentences(line, "rules"))
            return line[start:end]
    return ""


def _remove_content(match: re.Match[str], finder: Finder) -> tuple[int, str] | None:
    """Removes a comment, a footnote, or an element without prose; see `replace_enclosed`."""
    if match["whole"]:  # a footnote without other elements, as most are
        return match.end(), ""

    if match[0] == "<!--":
        mark = "-->"
    elif match["element"]:
        mark = f"</{match['element']}>"
    else:
        mark = "</ref>"
        bracket = finder.find(">", match.end())
        if bracket is not None and match.string[match.end() : bracket[0]].endswith("/"):
            return bracket[1], ""

    end = finder.find(mark, match.end())
    return None if end is None else (end[1], "")


def _remove_markup(text: str) -> str:
    """Removes tags and other marks from a text."""
    if "<" not in text:  # as in most articles
        return _MARKUP_EXCEPT_TAGS.sub("", text)
    return replace_enclosed(text, _MARKUP, _remove_mark)


def _remove_mark(match: re.Match[str], finder: Finder) -> tuple[int, str] | None:
    """Removes a tag, or other markup, which ends where the match ends."""
    if not match["tag"]:
        return match.end(), ""
    end = finder.find(">", match.end())
    return None if end is None else (end[1], "")


def _label_links(text: str) -> str:
    """Replaces the links to other sites in a text by their labels.

    A label ends at the first bracket after the address. If there is none, the address ends at the
    last bracket, and has no label.
    """
    if _SCHEME not in text:
        return text
    last_bracket = text.rfind("]")

    def replace(match: re.Match[str], finder: Finder) -> tuple[int, str] | None:
        space = finder.find(_SPACE, match.end())
        end = len(text) if space is None else space[0]
        bracket = finder.find("]", end)
        if bracket is not None:
            return bracket[1], text[end : bracket[0]].removeprefix(" ")
        return (last_bracket + 1, "") if last_bracket > match.end() else None

    return replace_enclosed(text, _OUTSIDE_LINK, replace)


def _remove_nested(pattern: re.Pattern[str], opening: str, text: str, replacement: str = "") -> str:
    """Replaces a nested pattern in a text, from the inside out.

    Args:
        opening: A string that every match of the pattern contains.
    """
    for _ in range(_DEEPEST):
        if opening not in text:  # ten times as fast as the pattern
            break
        text, count = pattern.subn(replacement, text)
        if not count:
            break
    return text


def is_description(text: str) -> bool:
    """Returns whether a text can serve as a description: 5 to 50 words, no disambiguation page."""
    return len(text.split()) in WORDS and not _NO_DESCRIPTION.search(text)


class DescriptionTable:
    """Descriptions by domain.

    From `.tsv` (domain, tab, description) or `.jsonl` ({"domain", "description"}), in memory, or
    from `.sqlite` (table `descriptions` of these columns), read where needed.

    Raises:
        DataError: If the file is missing or damaged.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            self.content_hash = hash_file(self._path)
            self._find_domain = self._open_table()
        except (OSError, ValueError, KeyError, TypeError, sqlite3.Error) as error:
            raise DataError(
                f"descriptions={path} cannot be read: {error}; expected a table "
                f"{', '.join(FORMATS)} of domains and descriptions"
            ) from error

    def find(self, host: str) -> str | None:
        """Returns the description of a host, or else of the domain that it belongs to."""
        host = host.removeprefix("www.")
        if len(host) > _LONGEST_HOST:
            return None
        while host.count("."):
            description = self._find_domain(host)
            if description:
                return description
            host = host.partition(".")[2]
        return None

    def _open_table(self) -> Callable[[str], str | None]:
        """Opens the file; returns the function that finds the description of a domain."""
        if self._path.suffix == ".sqlite":
            with closing(open_database(self._path)) as database:
                database.execute("SELECT domain, description FROM descriptions LIMIT 1")
            return lru_cache(maxsize=1 << 16)(self._query_database)

        with self._path.open(encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in file if line.strip()]
        if self._path.suffix == ".jsonl":
            rows = map(parse_json, lines)
            return {row["domain"]: row["description"] for row in rows}.get
        if self._path.suffix == ".tsv":
            return dict(_split_line(line) for line in lines).get
        raise ValueError(f"its name ends in none of {FORMATS}")

    def _query_database(self, domain: str) -> str | None:
        query = "SELECT description FROM descriptions WHERE domain = ?"
        with closing(open_database(self._path)) as database:
            row = database.execute(query, (domain,)).fetchone()
        return row[0] if row else None


def _split_line(line: str) -> tuple[str, str]:
    domain, tab, description = line.partition("\t")
    if not tab:
        raise ValueError(f"a line without a tab: {line[:80]!r}")
    return domain, description


def main(config: DescriptionsConfig) -> None:
    """Writes the table, and prints its number of domains."""
    if config.dump is None or config.output is None:
        raise ConfigurationError(
            "dump (the file to read) and output (the table to write) must be set"
        )
    output = Path(config.output)
    if output.suffix not in FORMATS:
        raise ConfigurationError(f"output={output}: expected a name that ends in one of {FORMATS}")

    try:
        with build_atomically(output) as part:
            part.touch()  # so that a path that cannot be written fails before hours of reading
            descriptions = read_descriptions(Path(config.dump))
            write_table(part, output.suffix, sorted(descriptions.items()))
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"output={output} cannot be written: {error}") from error
    print(f"{output}: {len(descriptions):,} domains")


def write_table(path: Path, suffix: str, rows: Iterable[tuple[str, str]]) -> None:
    """Writes a table in the format of a suffix."""
    if suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as database:
            database.execute(_SCHEMA)
            database.executemany("INSERT INTO descriptions VALUES (?, ?)", rows)
            database.commit()
        return

    with path.open("w", encoding="utf-8") as file:
        for domain, description in rows:
            line = f"{domain}\t{description}"
            if suffix == ".jsonl":
                row = {"domain": domain, "description": description}
                line = json.dumps(row, ensure_ascii=False)
            file.write(line + "\n")


if __name__ == "__main__":
    run_entry_point(main, DescriptionsConfig, "descriptions")
