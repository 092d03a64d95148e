"""Pages that link to each other: an anchor's text is a mention, and the page that it leads to the
entity.

Before the shards are made, a first pass over the input collects the titles of all pages. Those of
an input file are kept in `_annotation/NAME.pages`, so that a killed run continues after the last
complete file; together they become an index (SQLite, on disk), in which the annotator `entity`
looks up where the links of a page lead.

After, if a folder is named for it, the shards become training data of a disambiguator:

    profiles.jsonl          the pages that links may lead to: title, description, types, relations
    train.jsonl, dev.jsonl  sentences with mentions; the mention is an anchor, the gold entity the
                            page that it leads to; a page's sentences are in one of the two

The scores of mentions are counts in the training pages; a page's title is an alias of it, too.
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
from bsmeta.annotate.page import VERSION, Page, PageError, parse_page
from bsmeta.annotate.shard import FOLDER, Counts, ShardFiles, damaged_shard
from bsmeta.annotate.sources import InputFile, counted, decode
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import building
from bsmeta.core.parsing import JSONDecoder
from bsmeta.data.io.lines import LineReader
from bsmeta.data.text.caseless import caseless
from bsmeta.data.text.sentences import sentences

LONGEST_MENTION = 100
LONGEST_DESCRIPTION = 500
PROFILES, TRAIN, DEV = "profiles.jsonl", "train.jsonl", "dev.jsonl"
TITLE_SCORE = 0.5
"""Score added to the count of a page's title as its alias: less than that of any mention."""
RELATION = "links_to"

# What sets the name of the site off from the title of a page.
_SEPARATOR = re.compile(r" (?:[-–—|·•«»]|::) ")
_SITE_SHARE = 0.05  # of the pages of a host that have a suffix in common: it names the site
_SITE_PAGES = 3
_INDEX_FILE = re.compile(r"/(?:index|default)\.(?:html?|php|aspx?|jsp)$")
_PORTS = {"http": 80, "https": 443}
_SCHEMA = (
    "CREATE TABLE pages (key TEXT PRIMARY KEY, title TEXT NOT NULL, description TEXT NOT NULL, "
    "site TEXT NOT NULL, section TEXT NOT NULL) WITHOUT ROWID"
)
_DIGEST = "CREATE TABLE made_from (digest TEXT)"


class LinkedPage(NamedTuple):
    """A page that links may lead to."""

    key: str  # its address, see `link_key`
    title: str  # without the name of the site
    description: str  # its first paragraph
    site: str  # its host
    section: str  # the first part of its path; empty if it has none


_PAGE = JSONDecoder(LinkedPage)


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
    spans = ((tag.char_start_idx, tag.char_end_idx) for tag in page.tags if tag.value == "p")
    start, end = next((span for span in spans if span[0] < span[1]), (0, 0))
    description = " ".join(page.text[start:end].split())[:LONGEST_DESCRIPTION]
    return LinkedPage(key, page.title, description, site, section)


def write_index(path: Path, pages: Iterable[LinkedPage], digest: str) -> None:
    """Writes the index of all pages; of pages of one address the first is kept.

    `digest` identifies from what they were collected.
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
    return output / FOLDER / "pages.sqlite"


def index_digest(path: Path) -> str | None:
    """From what an index was made; None if it is not there."""
    if not path.exists():
        return None
    with closing(open_database(path)) as database:
        return str(database.execute("SELECT digest FROM made_from").fetchone()[0])


class LinkIndex:
    """The pages of a crawl by their address. Each process opens it for itself."""

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
    base = urljoin(url, page.declared.base)
    folder = urljoin(base, ".")  # to which links are relative: the same for many pages
    for link in page.links:
        anchor = page.text[link.start : link.end]
        start = link.start + len(anchor) - len(anchor.lstrip())
        anchor = anchor.strip()
        is_name = 0 < len(anchor) <= LONGEST_MENTION and any(map(str.isalpha, anchor))
        href = link.href.strip()
        if start < last or not is_name or not href or href.startswith("#"):
            continue
        key = _target(base if href.startswith("?") else folder, href)
        target = index.find(key) if key is not None and key != own else None
        if target is not None:
            last = start + len(anchor)
            yield start, last, target


@lru_cache(maxsize=1 << 16)
def _target(base: str, href: str) -> str | None:
    try:
        return link_key(urljoin(base, href))
    except ValueError:
        return None


def make_index(
    config: AnnotateConfig, files: Sequence[InputFile], output: Path, advance: pool.Advance
) -> None:
    """Makes the index of the pages of all files, as far as it is not there.

    Raises DataError if a file is damaged, and Stopped if a signal arrives.
    """
    (output / FOLDER).mkdir(exist_ok=True)
    page_bytes = int(config.page_mb * 1e6)
    paths = [ShardFiles(output, file.name).pages for file in files]
    # The first line of the pages of a file: from what they were collected.
    made_from = [f"{file.xxh3} {file.bytes} {VERSION} {page_bytes}\n".encode() for file in files]

    def chunks() -> Iterator[pool.Chunk]:
        done = 0
        for number, file in enumerate(files):
            if _first_line(paths[number]) != made_from[number]:
                yield from pool.chunks_of_file(config, pool.Chunk(number, position=done), file)
                done += file.bytes

    with pool.Pool(config, partial(collect, page_bytes)) as workers:
        for number, found in groupby(workers.map(chunks()), lambda result: result[0].shard):
            with building(paths[number]) as part, part.open("wb") as file:
                file.write(made_from[number])
                for chunk, lines in found:
                    if chunk.problem:
                        raise DataError(chunk.problem)
                    if lines is not None:
                        file.write(lines)
                        advance(chunk.position, Counts(pages=len(chunk.items)))
    digest = xxhash.xxh3_64_hexdigest(b"".join(made_from))
    if index_digest(index_path(output)) != digest:
        write_index(index_path(output), chain.from_iterable(map(_collected, paths)), digest)


def collect(
    page_bytes: int, chunk: pool.Chunk, failures: pool.Failures, status: pool.Status
) -> bytes:
    """The pages of a chunk as JSON lines; those that fail are counted by `annotator.Annotation`."""
    lines = []
    for number, item in enumerate(chunk.items):
        if (number, pool.PAGE_STEP) in failures:
            continue
        status.begin(number)
        record = decode(item, page_bytes)
        if not record.problem and record.html is not None:
            with suppress(PageError, MemoryError):
                page = linked_page(parse_page(record.html), record.url)
                lines += [msgspec.json.encode(page) + b"\n"] if page else []
    return b"".join(lines)


def _first_line(path: Path) -> bytes | None:
    try:
        with path.open("rb") as lines:
            return lines.readline()
    except FileNotFoundError:
        return None


def _collected(path: Path) -> Iterator[LinkedPage]:
    with path.open("rb") as lines:
        next(lines)
        yield from map(_PAGE.decode, lines)


class _Entity(msgspec.Struct):
    value: str
    char_start_idx: int
    char_end_idx: int
    url: str = ""


class _Row(msgspec.Struct):
    text: str
    url: str
    metadata_entity: list[_Entity] = []


_ROW = JSONDecoder(_Row)


def write_linked_sets(
    shards: Iterable[Path], output: Path, folder: Path, dev_share: float, advance: pool.Advance
) -> str:
    """Writes the training data of a disambiguator to a folder; returns a summary.

    It is made from the annotated shards, and the index of pages in their folder `output`; the
    sentences of `dev_share` of the pages are held out.

    Raises:
        ConfigurationError: If they cannot be written.
        DataError: If a shard is damaged.
    """
    scores: defaultdict[str, Counter[str]] = defaultdict(Counter)
    relations: defaultdict[str, dict[str, None]] = defaultdict(dict)
    written: Counter[str] = Counter()
    numbers = count()
    names = (PROFILES, TRAIN, DEV)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            parts = [stack.enter_context(building(folder / name)) for name in names]
            opened = [stack.enter_context(part.open("w", encoding="utf-8")) for part in parts]
            files = dict(zip(names, opened, strict=True))
            for row in _rows(shards, advance):
                name = DEV if is_held_out(row.url, dev_share) else TRAIN
                for line in _lines(row):
                    _write(files[name], {"sent_idx_unq": next(numbers), **line})
                    written[name] += 1
                    if name == TRAIN:
                        for alias, page in zip(line["aliases"], line["qids"], strict=True):
                            scores[page][alias] += 1
                            relations[link_key(row.url) or ""][page] = None
            for page in LinkIndex(index_path(output)).pages():
                _write(files[PROFILES], _profile(page, scores[page.key], relations[page.key]))
                written[PROFILES] += 1
    except OSError as error:
        raise ConfigurationError(f"disambiguation={folder} cannot be written: {error}") from error
    return f"{folder}: " + ", ".join(f"{name} ({counted(written[name], 'line')})" for name in names)


def is_held_out(url: str, share: float) -> bool:
    """Whether the sentences of a page are held out: its address alone decides."""
    return xxhash.xxh3_64_intdigest(url.encode()) < share * 2**64


def _rows(shards: Iterable[Path], advance: pool.Advance) -> Iterator[_Row]:
    done = 0
    for shard in shards:
        number = 0
        with closing(LineReader(str(shard))) as reader:
            while lines := reader.read(number, 1):
                number += 1
                yield _ROW.decode(lines[0])
        if reader.damage:
            raise damaged_shard(shard, reader.damage)
        done += shard.stat().st_size
        advance(done, Counts(pages=number))


def _lines(row: _Row) -> Iterator[dict[str, Any]]:
    """A line for each sentence that has mentions; of a paragraph without full stops: for that."""
    entities = deque(sorted(row.metadata_entity, key=lambda entity: entity.char_start_idx))
    for start, end in _spans(row.text):
        begun = []
        while entities and entities[0].char_start_idx < end:
            begun.append(entities.popleft())
        found = [one for one in begun if one.char_start_idx >= start and one.char_end_idx <= end]
        if found:
            sentence = row.text[start:end]
            spans = [(one.char_start_idx - start, one.char_end_idx - start) for one in found]
            yield {
                "sentence": sentence,
                "aliases": [caseless(sentence[first:last]) for first, last in spans],
                "qids": [one.url for one in found],
                "char_spans": spans,
                "gold": [True] * len(found),
                "document": row.url,
            }


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """The spans of the sentences of each line."""
    start = 0
    for line in text.splitlines(keepends=True):
        for first, last in sentences(line, "rules"):
            yield start + first, start + last
        start += len(line)


def _profile(page: LinkedPage, counts: Counter[str], links: Iterable[str]) -> dict[str, Any]:
    scores = Counter({caseless(page.title): TITLE_SCORE}) + counts
    return {
        "entity_id": page.key,
        "mentions": sorted(scores.items(), key=lambda item: (-item[1], item[0])),
        "title": page.title,
        "description": page.description,
        "types": {"site": [page.site], "section": [page.section] if page.section else []},
        "relations": [{"relation": RELATION, "object": page} for page in links],
    }


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, ensure_ascii=False) + "\n")
