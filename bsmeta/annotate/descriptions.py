"""Makes a table of website descriptions from a dump of Wikipedia, and reads such tables.

    python -m bsmeta.annotate.descriptions dump=enwiki-pages-articles.xml.bz2 output=sites.sqlite

The dump is streamed once. An article describes a domain if its infobox names the domain as
`website` or `url` (without a path), or if a redirect to the article has the domain as its title
("Example.com"). If both exist, the redirect counts.
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
_TITLE_DOMAIN = re.compile(_DOMAIN, re.IGNORECASE)
_WEBSITE = re.compile(r"\|\s*+(?:website|homepage|url)\s*+=(?P<value>[^|\n]*+)", re.IGNORECASE)
_WHOLE_DOMAIN = rf"{_DOMAIN}/?(?=[\s|}}\]]|$)"
# Begins only at the first label: if a domain does not end a value, its later labels do not either.
_IN_VALUE = re.compile(rf"(?<![a-z0-9-])(?<![a-z0-9-]\.)-*+{_WHOLE_DOMAIN}", re.IGNORECASE)
_AFTER_VALUE = re.compile(rf"\W*+(?:https?://)?{_WHOLE_DOMAIN}", re.IGNORECASE)
_CONTENTLESS_ELEMENT = re.compile(
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
_MARKUP_LINE_STARTS = tuple("=*#:;|!{}[<")  # of lines that are not prose
_MAX_NESTING = 20  # depth of templates in templates
_MAX_HOST_CHARS = 253  # RFC 1035
_MAX_INTRODUCTION_CHARS = 20_000  # beginning of an article, searched for its first sentence

_DESCRIPTION_WORDS = range(5, 51)
_DISAMBIGUATION_PAGE = re.compile(r"refers? to\b|^\[\[\w+:")

FORMATS = (".tsv", ".jsonl", ".sqlite")
_SCHEMA = "CREATE TABLE descriptions (domain TEXT PRIMARY KEY, description TEXT) WITHOUT ROWID"


def read_descriptions(path: Path) -> dict[str, str]:
    """Returns the first sentence of the article about each domain.

    The first sentences of all articles are kept in a temporary file, because a redirect may come
    before or after its article.

    Args:
        path: A dump, `pages-articles.xml`, plain or compressed.

    Raises:
        DataError: If it cannot be read.
    """
    descriptions: dict[str, str] = {}
    with closing(sqlite3.connect("")) as database:  # temporary, on the disk
        database.execute("CREATE TABLE sentences (title TEXT PRIMARY KEY, sentence TEXT)")
        titles = _collect_titles(path, database)
        query = "SELECT sentence FROM sentences WHERE title = ?"
        for domain, title in titles.items():
            row = database.execute(query, (title,)).fetchone()
            if row and row[0]:
                descriptions[domain] = row[0]
    return descriptions


def _collect_titles(path: Path, database: sqlite3.Connection) -> dict[str, str]:
    """Reads a dump; returns the title of the article about each domain.

    Args:
        database: Receives the first sentence of every article, in the table `sentences`.
    """
    redirect_targets: dict[str, str] = {}  # titles of articles by domain
    naming_articles: dict[str, _NamingArticle] = {}  # by domain
    for article in _read_articles(path):
        title = article.title
        title_domain = _TITLE_DOMAIN.fullmatch(title)
        if title_domain is not None:
            target = title if article.target is None else article.target
            redirect_targets[title_domain[1].lower()] = target
        if article.target is not None:
            continue

        values = (title, extract_first_sentence(article.text))
        database.execute("INSERT OR IGNORE INTO sentences VALUES (?, ?)", values)
        title_letters = re.sub(r"\W", "", title).lower()
        for domain in _find_websites(article.text[:_MAX_INTRODUCTION_CHARS]):
            _record_article(naming_articles, domain.lower(), title, title_letters)

    titles = {domain: article.title for domain, article in naming_articles.items()}
    return titles | redirect_targets


def _find_websites(text: str) -> Iterator[str]:
    """Yields the domains in the website fields of an article's infoboxes.

    Only the first domain of a value counts. If a value has none, the domain may be in the argument
    or the line after it.
    """
    for field in _WEBSITE.finditer(text):
        start, end = field.span("value")
        domain = _IN_VALUE.search(text, start, end) or _AFTER_VALUE.match(text, end)
        if domain is not None:
            yield domain[1]


class _NamingArticle(NamedTuple):
    """An article whose infobox names a website.

    Attributes:
        matches_domain: Whether the title contains the name of the domain.
    """

    title: str
    matches_domain: bool


def _record_article(
    naming_articles: dict[str, _NamingArticle], domain: str, title: str, title_letters: str
) -> None:
    """Records an article for a domain unless an earlier one matches it at least as well.

    A title that contains the name of the domain matches better than one that does not.

    Args:
        naming_articles: The recorded articles by domain.
        title_letters: The letters and digits of the title, in lower case. They are computed by the
            caller, once per article: the title may be as long as the list of websites.
    """
    matches_domain = domain.partition(".")[0].replace("-", "") in title_letters
    earlier = naming_articles.get(domain)
    if earlier is None or (matches_domain and not earlier.matches_domain):
        naming_articles[domain] = _NamingArticle(title, matches_domain)


class _Article(NamedTuple):
    """An article of the dump, or a redirect.

    Attributes:
        target: The title that a redirect leads to; None for an article.
        text: The wikitext.
    """

    title: str
    target: str | None
    text: str


def _read_articles(path: Path) -> Iterator[_Article]:
    """Yields the articles and redirects of a dump; other namespaces are skipped.

    Raises:
        DataError: If the dump cannot be read.
    """
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
    """Opens a dump for reading; one that ends in `.bz2` or `.gz` is decompressed."""
    if path.suffix == ".bz2":
        return bz2.open(path)
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    return path.open("rb")


def extract_first_sentence(text: str) -> str:
    """Returns the first sentence of an article in wikitext, without markup and parentheses.

    Returns "" if the article has none.
    """
    text = replace_enclosed(text[:_MAX_INTRODUCTION_CHARS], _CONTENTLESS_ELEMENT, _remove_content)
    text = _remove_nested(_TEMPLATE, "{", text)
    text = _remove_nested(_FILE, "[[", text)
    text = _remove_nested(_LINK, "[[", text, r"\1")
    text = _remove_markup(_label_links(text))
    text = _remove_nested(_PARENTHESES, "(", text)

    for line in text.splitlines():
        line = " ".join(line.split())
        if line and not line.startswith(_MARKUP_LINE_STARTS):
            start, end = next(find_sentences(line, "rules"))
            return line[start:end]
    return ""


def _remove_content(match: re.Match[str], finder: Finder) -> tuple[int, str] | None:
    """Removes a comment, a footnote, or an element without prose; see `replace_enclosed`."""
    if match["whole"]:  # a footnote without inner elements, the usual case
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
    """Removes HTML tags, bold and italic quotes, and magic words from wikitext."""
    if "<" not in text:  # the usual case
        return _MARKUP_EXCEPT_TAGS.sub("", text)
    return replace_enclosed(text, _MARKUP, _remove_mark)


def _remove_mark(match: re.Match[str], finder: Finder) -> tuple[int, str] | None:
    """Removes a tag up to its `>`, or the matched markup; see `replace_enclosed`."""
    if not match["tag"]:
        return match.end(), ""
    end = finder.find(">", match.end())
    return None if end is None else (end[1], "")


def _label_links(text: str) -> str:
    """Replaces the links to other sites in a text with their labels.

    A label ends at the first `]` after the address. Without one, the link has no label, and ends at
    the last `]` of the text.
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
    for _ in range(_MAX_NESTING):
        if opening not in text:  # ten times as fast as searching for the pattern
            break
        text, count = pattern.subn(replacement, text)
        if not count:
            break
    return text


def is_description(text: str) -> bool:
    """Whether a text has 5 to 50 words and does not describe a disambiguation page."""
    return len(text.split()) in _DESCRIPTION_WORDS and not _DISAMBIGUATION_PAGE.search(text)


class DescriptionTable:
    """A table of descriptions by domain.

    A `.tsv` (domain, tab, description) or `.jsonl` (objects with `domain` and `description`) file
    is loaded into memory; an `.sqlite` file (table `descriptions` with these columns) is queried on
    disk.

    Attributes:
        content_hash: Hash of the file.

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
        """Returns the description of a host, or of its closest parent domain; None without one."""
        host = host.removeprefix("www.")
        if len(host) > _MAX_HOST_CHARS:
            return None

        while "." in host:
            description = self._find_domain(host)
            if description:
                return description
            host = host.partition(".")[2]
        return None

    def _open_table(self) -> Callable[[str], str | None]:
        """Opens the file; returns a function from domain to description (None: it has none).

        Raises:
            OSError, ValueError, KeyError, TypeError, sqlite3.Error: If it is not such a table.
        """
        if self._path.suffix == ".sqlite":
            with closing(open_database(self._path)) as database:
                database.execute("SELECT domain, description FROM descriptions LIMIT 1")
            return lru_cache(maxsize=1 << 16)(self._query_database)

        with self._path.open(encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in file if line.strip()]
        if self._path.suffix == ".jsonl":
            rows = [parse_json(line) for line in lines]
            return {row["domain"]: row["description"] for row in rows}.get
        if self._path.suffix == ".tsv":
            return dict(_split_line(line) for line in lines).get
        raise ValueError(f"its name ends in none of {FORMATS}")

    def _query_database(self, domain: str) -> str | None:
        """Returns the description of a domain in an SQLite table; None without one."""
        query = "SELECT description FROM descriptions WHERE domain = ?"
        with closing(open_database(self._path)) as database:
            row = database.execute(query, (domain,)).fetchone()
        return row[0] if row else None


def _split_line(line: str) -> tuple[str, str]:
    """Splits a line of a `.tsv` into domain and description.

    Raises:
        ValueError: If it has no tab.
    """
    domain, tab, description = line.partition("\t")
    if not tab:
        raise ValueError(f"a line without a tab: {line[:80]!r}")
    return domain, description


def main(config: DescriptionsConfig) -> None:
    """Makes the table of a dump, and prints its number of domains.

    Raises:
        ConfigurationError: If a key is missing, or the table cannot be written.
        DataError: If the dump cannot be read.
    """
    if config.dump is None or config.output is None:
        raise ConfigurationError(
            "dump (the file to read) and output (the table to write) must be set"
        )
    output = Path(config.output)
    if output.suffix not in FORMATS:
        raise ConfigurationError(f"output={output}: expected a name that ends in one of {FORMATS}")

    try:
        with build_atomically(output) as part:
            part.touch()  # fails at once if the path cannot be written, not after hours
            descriptions = read_descriptions(Path(config.dump))
            write_table(part, output.suffix, sorted(descriptions.items()))
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"output={output} cannot be written: {error}") from error
    print(f"{output}: {len(descriptions):,} domains")


def write_table(path: Path, suffix: str, rows: Iterable[tuple[str, str]]) -> None:
    """Writes domains and descriptions as a table.

    Args:
        suffix: The format, one of `FORMATS`.
    """
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
