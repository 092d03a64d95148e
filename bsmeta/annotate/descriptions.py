"""Descriptions of websites: a table of domains, and how it is made from a dump of Wikipedia.

    python -m bsmeta.annotate.descriptions dump=enwiki-pages-articles.xml.bz2 output=sites.sqlite

The dump is read once, in a stream. An article describes a domain if an infobox names it as its
`website` or `url`, or if a redirect to the article has the domain as its title ("Example.com").
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import xxhash

from bsmeta.annotate.wikipedia import descriptions_of_dump
from bsmeta.config.annotate import DescriptionsConfig
from bsmeta.config.compose import run_entry_point
from bsmeta.config.errors import ConfigurationError, DataError

WORDS = range(5, 51)
_NO_DESCRIPTION = re.compile(r"refers? to\b|^\[\[\w+:")

FORMATS = (".tsv", ".jsonl", ".sqlite")
_SCHEMA = "CREATE TABLE descriptions (domain TEXT PRIMARY KEY, description TEXT) WITHOUT ROWID"


def is_description(text: str) -> bool:
    """Whether a text is worth to be a description: 5 to 50 words, and no disambiguation page."""
    return len(text.split()) in WORDS and not _NO_DESCRIPTION.search(text)


class DescriptionTable:
    """Descriptions by domain.

    Args:
        path: `.tsv` (domain, tab, description), `.jsonl` ({"domain", "description"}), both read
            into memory, or `.sqlite` (table `descriptions` of these columns), read where needed.

    Raises:
        DataError: If the file is missing or damaged.

    Attributes:
        content_hash: The hash of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        try:
            self.content_hash = _file_hash(self._path)
            self._find = self._lookup()
        except (OSError, ValueError, KeyError, TypeError, sqlite3.Error) as error:
            raise DataError(
                f"descriptions={path} cannot be read: {error}; expected a table "
                f"{', '.join(FORMATS)} of domains and descriptions"
            ) from error

    def find(self, host: str) -> str | None:
        """The description of a host, or else of the domain that it belongs to."""
        host = host.removeprefix("www.")
        while host.count("."):
            found = self._find(host)
            if found:
                return found
            host = host.partition(".")[2]
        return None

    def _lookup(self) -> Callable[[str], str | None]:
        if self._path.suffix == ".sqlite":
            with closing(_connect(self._path)) as database:
                database.execute("SELECT domain, description FROM descriptions LIMIT 1")
            return lru_cache(maxsize=1 << 16)(self._from_database)
        with self._path.open(encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in file if line.strip()]
        if self._path.suffix == ".jsonl":
            objects = map(json.loads, lines)
            return {one["domain"]: one["description"] for one in objects}.get
        if self._path.suffix == ".tsv":
            return dict(_two_fields(line) for line in lines).get
        raise ValueError(f"its name ends in none of {FORMATS}")

    def _from_database(self, domain: str) -> str | None:
        query = "SELECT description FROM descriptions WHERE domain = ?"
        with closing(_connect(self._path)) as database:
            found = database.execute(query, (domain,)).fetchone()
        return found[0] if found else None


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True)


def _two_fields(line: str) -> tuple[str, str]:
    domain, tab, description = line.partition("\t")
    if not tab:
        raise ValueError(f"a line without a tab: {line[:80]!r}")
    return domain, description


def _file_hash(path: Path) -> str:
    found = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def main(config: DescriptionsConfig) -> None:
    """Writes the table, and prints how many domains it has."""
    if config.dump is None or config.output is None:
        raise ConfigurationError(
            "dump (the file to read) and output (the table to write) must be set"
        )
    output = Path(config.output)
    if output.suffix not in FORMATS:
        raise ConfigurationError(f"output={output}: expected a name that ends in one of {FORMATS}")
    found = descriptions_of_dump(Path(config.dump))
    partial = output.with_name(output.name + ".part")
    try:
        write_table(partial, output.suffix, sorted(found.items()))
        partial.replace(output)
    except OSError as error:
        raise ConfigurationError(f"output={output} cannot be written: {error}") from error
    print(f"{output}: {len(found):,} domains")


def write_table(path: Path, suffix: str, rows: Iterable[tuple[str, str]]) -> None:
    """Writes a table in the format of a suffix."""
    path.unlink(missing_ok=True)
    if suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as database:
            database.execute(_SCHEMA)
            database.executemany("INSERT INTO descriptions VALUES (?, ?)", rows)
            database.commit()
        return
    with path.open("w", encoding="utf-8") as file:
        for domain, description in rows:
            row = {"domain": domain, "description": description}
            is_tsv = suffix == ".tsv"
            text = f"{domain}\t{description}" if is_tsv else json.dumps(row, ensure_ascii=False)
            file.write(text + "\n")


if __name__ == "__main__":
    run_entry_point(main, DescriptionsConfig, "descriptions")
