"""Finds links between pages: the text of a link is a mention, and the target page is the entity.

Before the shards are made, a first pass over the input collects the titles of all pages. The
titles of an input file are kept in `_annotation/NAME.pages`, so that a killed run continues after
the last complete file. Together they become an index (SQLite, on disk), in which the annotator
`entity` looks up the targets of links.

Afterwards, if `disambiguation` names a folder, training data of a disambiguator is made from the
shards:

    profiles.jsonl          all pages of the index: title, description, types, relations
    train.jsonl, dev.jsonl  sentences with mentions, whose gold entities are the targets of the
                            links; all sentences of a page are in the same file

The scores of aliases are counts of mentions in the training pages; a page's title is an alias, too.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import lru_cache, partial
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from urllib.parse import urldefrag, urljoin, urlsplit

import msgspec
import xxhash

from bsmeta.annotate import pool
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.html.page import VERSION, Page, PageError, parse_page
from bsmeta.annotate.inputs.sources import InputFile, decode_record, format_count
from bsmeta.annotate.shard import FOLDER, Counts, ShardFiles, make_damaged_shard_error
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import build_atomically
from bsmeta.core.foreign_json import ForeignDecoder
from bsmeta.core.parsing import JSONDecoder
from bsmeta.data.io.lines import LineReader
from bsmeta.data.text.caseless import make_caseless
from bsmeta.data.text.sentences import find_sentences
from bsmeta.metadata.annotated_columns import decode_local_records
from bsmeta.metadata.records import UNREADABLE, BadDocument

INDEX_VERSION = 2
"""Version of the saved pages, increased when `make_linked_page` changes."""

MAX_MENTION_CHARS = 100
MAX_DESCRIPTION_CHARS = 500
PROFILES = "profiles.jsonl"
TRAIN = "train.jsonl"
DEV = "dev.jsonl"
TITLE_SCORE = 0.5
"""Score of a page's title as its alias, beside the counts of mentions: less than one mention."""
RELATION = "links_to"

# Separates the title of a page from the name of its site.
_TITLE_SEPARATOR = re.compile(r" (?:[-–—|·•«»]|::) ")
# Minimum number and share of the pages of a host whose titles end with the name of the site.
_MIN_SITE_PAGES = 3
_MIN_SITE_SHARE = 0.05
_INDEX_FILE = re.compile(r"/(?:index|default)\.(?:html?|php|aspx?|jsp)$")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SCHEMA = (
    "CREATE TABLE pages (key TEXT PRIMARY KEY, title TEXT NOT NULL, description TEXT NOT NULL, "
    "site TEXT NOT NULL, section TEXT NOT NULL) WITHOUT ROWID"
)
_DIGEST_SCHEMA = "CREATE TABLE made_from (digest TEXT)"


class LinkedPage(NamedTuple):
    """An entry of the index: a page that links may lead to.

    Attributes:
        key: Its address, normalized by `normalize_address`.
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


_PAGE_DECODER = JSONDecoder(LinkedPage)


@lru_cache(maxsize=1 << 16)
def normalize_address(url: str) -> str | None:
    """Normalizes the address of a page, so that equivalent addresses become equal.

    Removes the scheme, the user, the default port, the fragment, the name of an index file and
    slashes at the end. The host is in lower case.

    Returns:
        The address; None if it is not a valid http(s) URL with a host.
    """
    try:
        parts = urlsplit(urldefrag(url).url)
        host = parts.hostname
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not host:
        return None

    if port not in (None, _DEFAULT_PORTS[parts.scheme]):
        host = f"{host}:{port}"
    path = _INDEX_FILE.sub("/", parts.path).rstrip("/")
    return f"{host}{path}?{parts.query}" if parts.query else f"{host}{path}"


def make_linked_page(page: Page, url: str) -> LinkedPage | None:
    """Makes the index entry of a page; returns None without an address or a title."""
    key = normalize_address(url)
    if key is None or not page.title:
        return None

    site, _, path = key.partition("?")[0].partition("/")
    section = path.partition("/")[0] if "/" in path else ""
    description = " ".join(_find_first_paragraph(page).split())[:MAX_DESCRIPTION_CHARS]
    return LinkedPage(key, page.title, description, site, section)


def _find_first_paragraph(page: Page) -> str:
    """Returns the first nonempty paragraph of a page; "" if there is none."""
    for tag in page.tags:
        if tag.value == "p" and tag.char_start_idx < tag.char_end_idx:
            return page.text[tag.char_start_idx : tag.char_end_idx]
    return ""


def write_index(path: Path, pages: Iterable[LinkedPage], digest: str) -> None:
    """Writes the index of all pages; among pages with the same address, the first is kept.

    Args:
        path: The SQLite file.
        digest: Identifies the input that the pages were collected from.
    """
    with build_atomically(path) as part, closing(sqlite3.connect(part)) as database:
        database.execute(_SCHEMA)
        database.execute(_DIGEST_SCHEMA)
        database.execute("INSERT INTO made_from VALUES (?)", (digest,))
        database.executemany("INSERT OR IGNORE INTO pages VALUES (?, ?, ?, ?, ?)", pages)
        for key, title in list(_shorten_titles(database)):
            database.execute("UPDATE pages SET title = ? WHERE key = ?", (title, key))
        database.commit()


def _shorten_titles(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yields the key and the shortened title of each page whose title ends with the site's name.

    The text after the last separator of a title is the site's name if many titles of the site have
    it.
    """
    page_counts: Counter[str] = Counter()
    suffix_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for site, title in database.execute("SELECT site, title FROM pages"):
        _, suffix = _split_title(title)
        page_counts[site] += 1
        suffix_counts[site][suffix] += 1

    for key, title, site in database.execute("SELECT key, title, site FROM pages"):
        name, suffix = _split_title(title)
        min_count = max(_MIN_SITE_PAGES, _MIN_SITE_SHARE * page_counts[site])
        if suffix and suffix_counts[site][suffix] >= min_count:
            yield key, name


def _split_title(title: str) -> tuple[str, str]:
    """Splits a title at its last separator; without one, the second part is empty."""
    separators = list(_TITLE_SEPARATOR.finditer(title))
    if not separators:
        return title, ""

    last = separators[-1]
    return title[: last.start()].rstrip(), title[last.end() :]


def open_database(path: Path) -> sqlite3.Connection:
    """Opens an SQLite file read-only."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def locate_index(output: Path) -> Path:
    """Returns the path of the index in the folder of the shards."""
    return output / FOLDER / "pages.sqlite"


def read_index_digest(path: Path) -> str | None:
    """Returns the digest of the input that an index was made from; None if there is no index."""
    if not path.exists():
        return None

    with closing(open_database(path)) as database:
        return str(database.execute("SELECT digest FROM made_from").fetchone()[0])


class LinkIndex:
    """Looks up pages in the index by their normalized address.

    The file is opened on the first lookup, so each worker process has its own connection.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self.find = lru_cache(maxsize=1 << 16)(self._find)

    def iterate_pages(self) -> Iterator[LinkedPage]:
        """Yields all pages, sorted by their address."""
        with closing(open_database(self._path)) as database:
            for row in database.execute("SELECT * FROM pages ORDER BY key"):
                yield LinkedPage(*row)

    def _find(self, key: str) -> LinkedPage | None:
        """Returns the page with an address; None if there is none. Cached as `find`."""
        if self._database is None:
            self._database = open_database(self._path)
        row = self._database.execute("SELECT * FROM pages WHERE key = ?", (key,)).fetchone()
        return None if row is None else LinkedPage(*row)


class PageMention(NamedTuple):
    """A link to another page of the crawl.

    Attributes:
        start: First character of the anchor in the text.
        end: End of the anchor, excluded.
        page: The target.
    """

    start: int
    end: int
    page: LinkedPage


def list_mentions(page: Page, url: str, index: LinkIndex) -> Iterator[PageMention]:
    """Yields the links of a page to other pages of the crawl.

    Anchors without letters, and anchors longer than `MAX_MENTION_CHARS`, are skipped. Among nested
    or overlapping anchors, which only broken HTML has, the first counts.

    Args:
        url: The address of the page.
    """
    page_key = normalize_address(url)
    base = urljoin(url, page.declared.base)
    folder = urljoin(base, ".")  # the base of relative links, which many pages share
    last_end = 0
    for link in page.links:
        anchor = page.text[link.start : link.end]
        start = link.start + len(anchor) - len(anchor.lstrip())
        anchor = anchor.strip()
        is_short = len(anchor) <= MAX_MENTION_CHARS
        is_name = is_short and any(character.isalpha() for character in anchor)
        href = link.href.strip()
        if start < last_end or not is_name or not href or href.startswith("#"):
            continue

        key = _resolve_link(base if href.startswith("?") else folder, href)
        target = index.find(key) if key is not None and key != page_key else None
        if target is not None:
            last_end = start + len(anchor)
            yield PageMention(start, last_end, target)


@lru_cache(maxsize=1 << 16)
def _resolve_link(base: str, href: str) -> str | None:
    """Returns the normalized address that a link leads to; None if it is invalid."""
    try:
        return normalize_address(urljoin(base, href))
    except ValueError:
        return None


def make_index(
    config: AnnotateConfig, files: Sequence[InputFile], output: Path, advance: pool.Advance
) -> None:
    """Makes the index of the pages of all files, unless it is up to date.

    Raises:
        DataError: If a file is damaged.
        Stopped: If a signal arrives; the next call continues after the last complete file.
    """
    (output / FOLDER).mkdir(exist_ok=True)
    page_bytes = int(config.page_mb * 1e6)
    paths = [ShardFiles(output, file.name).pages for file in files]
    # The first line of the pages of a file identifies the input that they were collected from.
    headers = [
        f"{file.xxh3} {file.bytes} {VERSION} {INDEX_VERSION} {page_bytes}\n".encode()
        for file in files
    ]

    def read_chunks() -> Iterator[pool.Chunk]:
        done_bytes = 0
        for number, file in enumerate(files):
            if _read_first_line(paths[number]) != headers[number]:
                template = pool.Chunk(number, position=done_bytes)
                yield from pool.read_chunks(config, template, file)
                done_bytes += file.bytes

    with pool.Pool(config, partial(collect_pages, page_bytes)) as workers:
        results_by_file = groupby(workers.map(read_chunks()), lambda result: result[0].shard)
        for number, results in results_by_file:
            with build_atomically(paths[number]) as part, part.open("wb") as file:
                file.write(headers[number])
                for chunk, lines in results:
                    if chunk.problem:
                        raise DataError(chunk.problem)
                    if lines is not None:
                        file.write(lines)
                        advance(chunk.position, Counts(pages=len(chunk.items)))

    digest = xxhash.xxh3_64_hexdigest(b"".join(headers))
    if read_index_digest(locate_index(output)) != digest:
        pages = chain.from_iterable(_read_pages(path) for path in paths)
        write_index(locate_index(output), pages, digest)


def collect_pages(
    page_bytes: int, chunk: pool.Chunk, failures: pool.Failures, status: pool.Status
) -> bytes:
    """Returns the index entries of the pages of a chunk as JSON lines.

    Pages that cannot be parsed are skipped; `annotator.Annotation` counts them.

    Args:
        page_bytes: Maximum size of a page.
        failures: Pages and steps that failed in an earlier worker; such pages are skipped.
        status: Updated to the current page.
    """
    lines = []
    for number, item in enumerate(chunk.items):
        if (number, pool.PAGE_STEP) in failures:
            continue

        status.begin_page(number)
        record = decode_record(item, page_bytes)
        if not record.problem and record.html is not None:
            with suppress(PageError, MemoryError):
                page = make_linked_page(parse_page(record.html), record.url)
                if page is not None:
                    lines.append(msgspec.json.encode(page) + b"\n")
    return b"".join(lines)


def _read_first_line(path: Path) -> bytes | None:
    """Reads the first line of a file; None if the file does not exist."""
    try:
        with path.open("rb") as lines:
            return lines.readline()
    except FileNotFoundError:
        return None


def _read_pages(path: Path) -> Iterator[LinkedPage]:
    """Reads the index entries of an input file."""
    with path.open("rb") as lines:
        next(lines)  # the header, see `make_index`
        for line in lines:
            yield _PAGE_DECODER.decode(line)


class _Entity(msgspec.Struct):
    """A record of `metadata_entity`; `url` is the key of the target page."""

    char_start_idx: int
    char_end_idx: int
    url: str = ""


_ENTITIES_DECODER = ForeignDecoder(list[_Entity] | None)


class _Row(msgspec.Struct):
    """The columns of a shard's row from which sentences with mentions are made."""

    text: str
    url: str
    metadata_entity: msgspec.Raw = msgspec.Raw(b"null")

    def read_entities(self) -> list[_Entity]:
        """Decodes the mentions; [] if the input had a column of this name with other content."""
        try:
            decode_local_records("metadata_entity", self.metadata_entity, len(self.text))
            return _ENTITIES_DECODER.decode(self.metadata_entity) or []
        except (BadDocument, *UNREADABLE):
            return []


_ROW_DECODER = ForeignDecoder(_Row)


def write_linked_sets(
    shards: Iterable[Path], output: Path, folder: Path, dev_share: float, advance: pool.Advance
) -> str:
    """Writes the training data of a disambiguator to a folder; returns a summary.

    Args:
        shards: Annotated shards.
        output: The folder of the shards, which has the index of pages.
        dev_share: Share of the pages whose sentences are held out, in `DEV`.

    Raises:
        ConfigurationError: If the files cannot be written.
        DataError: If a shard is damaged.
    """
    names = (PROFILES, TRAIN, DEV)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            parts = [stack.enter_context(build_atomically(folder / name)) for name in names]
            open_files = [stack.enter_context(part.open("w", encoding="utf-8")) for part in parts]
            writer = _LinkedSetWriter(dict(zip(names, open_files, strict=True)))
            for row in _read_rows(shards, advance):
                writer.write_sentences(row, DEV if is_held_out(row.url, dev_share) else TRAIN)
            for page in LinkIndex(locate_index(output)).iterate_pages():
                writer.write_profile(page)
    except OSError as error:
        raise ConfigurationError(f"disambiguation={folder} cannot be written: {error}") from error

    counts = writer.line_counts
    summaries = [f"{name} ({format_count(counts[name], 'line')})" for name in names]
    return f"{folder}: {', '.join(summaries)}"


class _LinkedSetWriter:
    """Writes the files of the training data, and counts the mentions in the training pages.

    Args:
        files: `PROFILES`, `TRAIN` and `DEV`, open for writing.

    Attributes:
        line_counts: Number of lines written to each file.
    """

    def __init__(self, files: dict[str, TextIO]) -> None:
        self.line_counts: Counter[str] = Counter()
        self._files = files
        self._sentence_numbers = count()
        # By the key of a page: the counts of its aliases, and the pages that it links to, in order.
        self._alias_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._links: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def write_sentences(self, row: _Row, name: str) -> None:
        """Writes the sentences with mentions of a page.

        Args:
            name: The file, `TRAIN` or `DEV`.
        """
        for sentence in _find_linked_sentences(row):
            self._write_line(name, {"sent_idx_unq": next(self._sentence_numbers), **sentence})
            if name == TRAIN:
                for alias, key in zip(sentence["aliases"], sentence["qids"], strict=True):
                    self._alias_counts[key][alias] += 1
                    self._links[normalize_address(row.url) or ""][key] = None

    def write_profile(self, page: LinkedPage) -> None:
        """Writes the profile of a page; call it after all training sentences are written."""
        profile = _make_page_profile(page, self._alias_counts[page.key], self._links[page.key])
        self._write_line(PROFILES, profile)

    def _write_line(self, name: str, line: dict[str, Any]) -> None:
        self._files[name].write(json.dumps(line, ensure_ascii=False) + "\n")
        self.line_counts[name] += 1


def is_held_out(url: str, share: float) -> bool:
    """Whether the sentences of a page are held out, which depends on its address alone.

    Args:
        share: Share of all pages that is held out.
    """
    return xxhash.xxh3_64_intdigest(url.encode()) < share * 2**64


def _read_rows(shards: Iterable[Path], advance: pool.Advance) -> Iterator[_Row]:
    """Yields the rows of shards.

    Raises:
        DataError: If a shard is damaged.
    """
    done_bytes = 0
    for shard in shards:
        num_rows = 0
        with closing(LineReader(str(shard))) as reader:
            while lines := reader.read(num_rows, 1):
                num_rows += 1
                yield _ROW_DECODER.decode(lines[0])
        if reader.damage:
            raise make_damaged_shard_error(shard, reader.damage)

        done_bytes += shard.stat().st_size
        advance(done_bytes, Counts(pages=num_rows))


def _find_linked_sentences(row: _Row) -> Iterator[dict[str, Any]]:
    """Yields a line of the training data for each sentence with mentions.

    A line of the text without full stops counts as a sentence. Mentions that extend beyond a
    sentence are skipped.
    """
    entities = deque(sorted(row.read_entities(), key=lambda entity: entity.char_start_idx))
    for start, end in _find_sentence_spans(row.text):
        inside = []
        while entities and entities[0].char_start_idx < end:
            entity = entities.popleft()
            if entity.char_start_idx >= start and entity.char_end_idx <= end:
                inside.append(entity)
        if not inside:
            continue

        sentence = row.text[start:end]
        spans = [(entity.char_start_idx - start, entity.char_end_idx - start) for entity in inside]
        yield {
            "sentence": sentence,
            "aliases": [make_caseless(sentence[first:last]) for first, last in spans],
            "qids": [entity.url for entity in inside],
            "char_spans": spans,
            "gold": [True] * len(inside),
            "document": row.url,
        }


def _find_sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yields the spans of the sentences of each line."""
    start = 0
    for line in text.splitlines(keepends=True):
        for first, last in find_sentences(line, "rules"):
            yield start + first, start + last
        start += len(line)


def _make_page_profile(
    page: LinkedPage, mention_counts: Counter[str], links: Iterable[str]
) -> dict[str, Any]:
    """Makes the line of a page in `PROFILES`.

    Args:
        mention_counts: Number of mentions of the page by alias.
        links: Keys of the pages that it links to.
    """
    scores = Counter({make_caseless(page.title): TITLE_SCORE}) + mention_counts
    return {
        "entity_id": page.key,
        "mentions": sorted(scores.items(), key=lambda item: (-item[1], item[0])),
        "title": page.title,
        "description": page.description,
        "types": {"site": [page.site], "section": [page.section] if page.section else []},
        "relations": [{"relation": RELATION, "object": key} for key in links],
    }
