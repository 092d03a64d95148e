"""Every function of the package that takes texts of strangers apart, and how it is called."""

from __future__ import annotations

import ast
import contextlib
import gzip
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from types import FrameType
from typing import Any
from xml.sax.saxutils import escape

import msgspec
import yaml

from bsmeta.annotate.annotator import AnnotationError, Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.content import Text
from bsmeta.annotate.dates import (
    list_dates_in_url,
    list_declared_dates,
    list_visible_dates,
    parse_crawl_time,
    read_latest_moment,
)
from bsmeta.annotate.descriptions import (
    DescriptionTable,
    extract_first_sentence,
    is_description,
    read_descriptions,
)
from bsmeta.annotate.duplicates.shingles import split_words
from bsmeta.annotate.html.declared_charset import find_declared_charset
from bsmeta.annotate.html.frames import make_inert_html
from bsmeta.annotate.html.json_ld import decode_json_ld
from bsmeta.annotate.html.page import Declared, PageError, decode_html, parse_page
from bsmeta.annotate.inputs import warc
from bsmeta.annotate.inputs.http_response import parse_response
from bsmeta.annotate.inputs.sources import InputRecord, decode_line
from bsmeta.annotate.links import (
    LinkedPage,
    LinkIndex,
    list_mentions,
    locate_index,
    make_linked_page,
    normalize_address,
    write_index,
    write_linked_sets,
)
from bsmeta.annotate.plan import make_annotators
from bsmeta.annotate.spans import split_paragraphs
from bsmeta.config.composing.overrides import quote_home, quote_mapping
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.saved import parse_saved
from bsmeta.core.enclosed import remove_enclosed
from bsmeta.core.errors import DataError, UserError
from bsmeta.core.parsing import decode_json, parse_json, parse_yaml
from bsmeta.core.secret_names import looks_mixed, looks_random
from bsmeta.core.secrets import format_url, redact, redact_values
from bsmeta.core.token_forms import find_tokens
from bsmeta.data.io.lines import LineReader
from bsmeta.data.io.remote.store import Pattern
from bsmeta.data.stream.same_document import iterate_fingerprints, normalize_url
from bsmeta.data.table.csv_file import BadRows, CSVFormat, detect_format, read_rows
from bsmeta.data.table.csv_file import Row as TableRow
from bsmeta.data.table.records import (
    RecordWriter,
    escape_spreadsheet_cell,
    find_complete_rows,
    flatten_record,
    read_records,
)
from bsmeta.data.table.text_file import detect_encoding, refuse_non_text
from bsmeta.data.text.caseless import CaselessText, make_caseless
from bsmeta.data.text.same_text import hash_text
from bsmeta.data.text.sentences import (
    cut_text,
    divide_compound,
    find_sentences,
    find_word_core,
    find_words,
)
from bsmeta.data.text.word_edges import find_word_edges, has_word
from bsmeta.metadata.decoding import DocumentDecoder, cut_column
from bsmeta.metadata.document import Document
from bsmeta.metadata.metadata_type import Bucketing, format_year_and_month, make_url_readable
from bsmeta.metadata.records import BadDocument
from bsmeta.quick.columns import ColumnChoice, find_columns, make_column_table
from bsmeta.quick.documents import Page, list_repeated_types
from bsmeta.report.page import Column, Table, render_sentence
from bsmeta.tasks.classification.config import ClassificationDataConfig
from bsmeta.tasks.classification.label_cells import BadLabelsError, LabelCells
from bsmeta.tasks.disambiguation import converter
from bsmeta.tasks.disambiguation.dictionary import AliasDictionary, count_forms
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import find_word_spans
from bsmeta.tasks.spelling.candidates import Candidates
from bsmeta.tasks.spelling.config import NoiseConfig, SecConfig
from bsmeta.tasks.spelling.corrections import (
    Correction,
    align_chunks,
    highlight_corrections,
    render_changes,
    restrict_corrections,
)
from bsmeta.tasks.spelling.evaluate import Dictionary, read_test_sets
from bsmeta.tasks.spelling.false_alarms import count_false_alarms
from bsmeta.tasks.spelling.kept_words import KeptWords
from bsmeta.tasks.spelling.lexicon import (
    build_lexicon,
    parse_token,
    read_word_list,
    remove_possessive,
)
from bsmeta.tasks.spelling.noise import Noise, invert_dictionary
from bsmeta.tasks.spelling.samples import compute_prose_share, read_samples
from bsmeta.tasks.spelling.training_lines import count_training_lines
from bsmeta.tasks.spelling.word_scripts import WordScripts
from tests.hostile_texts import Shape
from tests.patterns import METHODS, PACKAGE, Module
from tests.tasks.disambiguation.helpers import write_world
from tests.tasks.spelling.helpers import lexicon

Run = Callable[[str, Path], object]
"""Takes a text, and a folder for files."""


@dataclass(frozen=True)
class Splitter:
    """A way to call functions that split texts.

    Attributes:
        shapes: Texts that are hard for them, besides the repetitions of `GENERAL`.
        lengths: Characters of the texts, if they are not those of the others.
    """

    run: Run
    shapes: tuple[Shape, ...] = ()
    lengths: tuple[int, ...] = ()


EXAMPLE = (
    'He said: "It is so." See http://www.example.org/2019/05/a-b_c?d=e#f, i.e. [[a|b]] (c) it’s '
    "Mr. X\n\nwrong->right, other\n|url=www.example.com\n<p class='a'>A <b>b</b> &amp; c</p>"
    "<!-- x --> **d** `e` 12 {a: 1} [http://a.org b]\n<form>a\u00a0b</form>"
)
"""A text on which each splitter is called once, to see which functions it calls."""

COLUMNS = ("text", "label")


def in_file(name: str, read: Callable[[Path], object]) -> Run:
    """Reads the text from a file; refusals are as good as rows."""

    def run(text: str, folder: Path) -> None:
        path = folder / name
        path.write_text(text, encoding="utf-8", errors="replace", newline="")
        with contextlib.suppress(UserError):
            read(path)

    return run


def csv_rows(escape_character: str | None) -> Callable[[Path], object]:
    form = CSVFormat("utf-8", ",", escape_character, COLUMNS, 0, ())
    return lambda path: list(read_rows(path, form))


def skipped_records(path: Path) -> None:
    bad = BadRows(path, "skip")
    list(read_records(path, COLUMNS, bad))
    bad.close()


def read_label_cell(text: str) -> object:
    """Reads a cell with as many labels as the text has words."""
    table = Path("labels.csv")
    config = ClassificationDataConfig(csv=str(table), label_separator=" ")
    return LabelCells(table, config).read(text, TableRow(1, 2, []))


def wide_records(text: str, folder: Path) -> None:
    """Reads as many columns as the text has characters."""
    path = folder / "wide.csv"
    path.write_text(",".join(f"{number}{ord(character)}" for number, character in enumerate(text)))
    with contextlib.suppress(UserError):
        list(read_records(path, ("text",), BadRows(path, "skip")))
    output = folder / "out.csv"
    writer = RecordWriter(output, {})
    writer.write(dict.fromkeys(map(str, range(len(text))), ""))
    writer.write(dict.fromkeys(map(str, range(len(text))), ""))
    writer.finish()
    output.unlink()


def nested_record(text: str, _: Path) -> None:
    """Reads a long key above many, and a chain of objects."""
    inner: Any = {f"{number}": number for number in range(len(text))}
    for _ in range(100):
        inner = {"a": inner, "b": 0}
    flatten_record({text: inner})


def page_of(profile: Any) -> Run:
    def run(text: str, _: Path) -> None:
        with contextlib.suppress(PageError):
            page = parse_page(f"<body>{text}</body>", profile=profile)
            make_linked_page(page, "https://a.org/b")
            assert page.links is not None

    return run


def annotated(name: str, record: Callable[[str], InputRecord], **settings: Any) -> Run:
    """Returns a function that annotates a text."""
    config = AnnotateConfig(annotators=[name], **settings)
    (annotator,) = make_annotators(config)

    def run(text: str, _: Path) -> None:
        with contextlib.suppress(AnnotationError, PageError):
            annotator.annotate(Row(record(text), config.profile))

    return run


def links_of(text: str, folder: Path) -> None:
    path = folder / "pages.sqlite"
    if not path.exists():
        write_index(path, [], "")
    base = escape(text, {'"': "&quot;"})
    page = parse_page(f'<head><base href="{base}"></head><a href="/b">a</a>')
    with contextlib.suppress(ValueError):
        list(list_mentions(page, "https://a.org/b", LinkIndex(path)))


def linked_sets(text: str, folder: Path) -> None:
    """Makes training data of a disambiguator from a crawl of two pages."""
    locate_index(folder).parent.mkdir(exist_ok=True)
    titles = [f"{text} - a", f"{text} | b"]
    pages = [LinkedPage(f"a.org/{n}", title, "", "a.org", "") for n, title in enumerate(titles)]
    write_index(locate_index(folder), pages, "")
    entity = {"value": "a", "char_start_idx": 0, "char_end_idx": 1, "url": "a.org/1"}
    row = {"text": text, "url": "https://a.org/0", "metadata_entity": [entity]}
    shard = folder / "shard.jsonl"
    shard.write_bytes(msgspec.json.encode(row) + b"\n")
    write_linked_sets([shard], folder, folder / "sets", 0.0, lambda *_: None)


def training_lines(text: str, folder: Path) -> None:
    line = {
        "sentence": text, "sent_idx_unq": 0, "aliases": ["bass"], "qids": ["Q1"], "gold": [True],
        "spans": [[0, 1]],
    }  # fmt: skip
    path = folder / "lines.jsonl"
    path.write_bytes(msgspec.json.encode(line) + b"\n")
    with contextlib.suppress(DataError):
        count_forms(path, table(folder), "text")


def spelling_samples(text: str, folder: Path) -> None:
    files = [folder / "samples.txt", folder / "samples.jsonl"]
    files[0].write_text(text, encoding="utf-8")
    files[1].write_bytes(msgspec.json.encode({"text": text, "target": text}) + b"\n")
    with contextlib.suppress(DataError):
        list(read_samples(SecConfig(target_column="target"), files))


def spelling_test_set(text: str, folder: Path) -> None:
    files = folder / "sed_words" / "group" / "split"
    files.mkdir(parents=True, exist_ok=True)
    for name in ("corrupt.txt", "correct.txt"):
        (files / name).write_text(text, encoding="utf-8")
    with contextlib.suppress(DataError):
        read_test_sets(folder, "sed_words")


def dump(text: str, folder: Path) -> None:
    path = folder / "dump.xml"
    content = escape(re.sub(r"[^\t\n\x20-\ud7ff]", "", text))
    page = f"<page><title>{content}</title><ns>0</ns><text>{content}</text></page>"
    path.write_text(f"<mediawiki>{page}</mediawiki>", encoding="utf-8")
    read_descriptions(path)


def description_of(text: str, folder: Path) -> None:
    path = folder / "sites.tsv"
    path.write_text("a.org\tA site.\n")
    DescriptionTable(str(path)).find(text)


def bucketed(text: str, _: Path) -> None:
    with contextlib.suppress(BadDocument):
        Bucketing("quality", MetadataConfig(value_bucket_scale={"quality": 10})).render(text)


def refused(run: Callable[[str], object], *errors: type[Exception]) -> Run:
    """Calls a function, which may refuse the text."""

    def suppressed(text: str, _: Path) -> None:
        with contextlib.suppress(*errors):
            run(text)

    return suppressed


def decoded_line(text: str, _: Path) -> None:
    line = msgspec.json.encode(
        {"text": text, "metadata_url": [{"value": text}], "metadata_html": [{"value": text}]}
    )
    document = DocumentDecoder(MetadataConfig(metadata_list=["html", "url"])).decode(line)
    with contextlib.suppress(BadDocument):
        document.records("html")
    cut_column(text.encode(), b'"')
    decode_line(line)


@cache
def table(folder: Path) -> EntityTable:
    write_world(folder)
    return EntityTable.open(folder / "entities")


@cache
def alias_dictionary(folder: Path) -> AliasDictionary:
    return AliasDictionary(table(folder))


def noisy(method: str) -> Run:
    def run(text: str, _: Path) -> None:
        config = NoiseConfig(method=method, word_probability=1.0)
        noise = Noise(config, {"receive": ("recieve",), "the": ("teh",)})
        noise.corrupt(text, seed=0, epoch=0, sample=0)

    return run


@cache
def candidates() -> Candidates:
    return Candidates(lexicon())


def corrected(text: str, _: Path) -> None:
    chunks = cut_text(text, 100)
    changes = align_chunks(chunks, [chunk.upper() for chunk in chunks])
    restrict_corrections(text, changes, [True] * len(find_words(text)))
    for form in ("color", "json", "text", "diff"):
        render_changes(text, changes, form, "name", corrects=True)
    highlight_corrections(text, [Correction(0, len(text), text, text)])


def spelled(text: str, _: Path) -> None:
    found = [(candidates().find_spelled_part(word).core, True) for word in text.split()]
    candidates().find(found[:100])
    parse_token.__wrapped__(text)
    if text.split():
        compute_prose_share(text)


@cache
def dictionary(folder: Path) -> Dictionary:
    path = folder / "words.txt"
    path.write_text("the 10\nof 5\n")
    return Dictionary(str(path))


def tabled(text: str, _: Path) -> None:
    list(Table(text, text, [Column(text)], [[text]]).iterate_markdown())
    render_sentence(text)


def all_of(iterate: Callable[[str], Iterable[object]]) -> Run:
    return lambda text, _: list(iterate(text))


def read_archive(text: str, _: Path) -> None:
    list(warc.read_records(BytesIO(text.encode()), 1 << 20))


def read_compressed_archive(text: str, _: Path) -> None:
    """Reads the text in gzip members of a few bytes, some of them damaged."""
    data = text.encode()
    members = [gzip.compress(data[start : start + 40]) for start in range(0, len(data), 40)]
    damaged = [member[:-9] if number % 5 == 4 else member for number, member in enumerate(members)]
    list(warc.read_records(BytesIO(b"".join(damaged)), 1 << 20))


def columns_of_pages(text: str) -> object:
    """Reads a text as text, address and column name of pages."""
    rows = [{"body": f"{text} {number}", "url": text, text or "a": text} for number in range(2)]
    with contextlib.suppress(UserError):
        find_columns(rows, {})
    choice = ColumnChoice("a", None, 1, "", text)
    page = Page(text, {"title": text})
    return make_column_table([choice], 1), list_repeated_types([page], ["title"])


def of(run: Callable[[str], object]) -> Run:
    return lambda text, _: run(text)


RUNS: dict[str, Run] = {
    "sentences by rules": all_of(lambda text: find_sentences(text, "rules")),
    "sentences by full stops": all_of(lambda text: find_sentences(text, "full_stops")),
    "chunks": of(lambda text: cut_text(text, 50)),
    "words": of(find_words),
    "cell of a spreadsheet": of(escape_spreadsheet_cell),
    "core of a word": of(find_word_core),
    "parts of a word": of(divide_compound),
    "tags": of(lambda text: remove_enclosed(text, "<", ">")),
    "secrets": of(lambda text: redact_values({"token": text, "a": text})),
    "secrets in a text": of(lambda text: (redact(text), find_tokens(text))),
    "value that may be a secret": of(lambda text: (looks_random(text), looks_mixed(text))),
    "URL in a message": of(lambda text: format_url(f"https://{text}")),
    "JSON": refused(parse_json, ValueError),
    "JSON of msgspec": refused(decode_json, ValueError),
    "YAML": refused(parse_yaml, yaml.YAMLError),
    "saved configuration": refused(lambda text: parse_saved(text, "a"), UserError),
    "override": of(lambda text: (quote_home(text), quote_mapping(f"a={text}"))),
    "cell of labels": refused(read_label_cell, BadLabelsError),
    "glob": of(Pattern("hf", "a/b", "a*/**/b*b*b*.gz").matches),
    "lines": in_file("lines.jsonl", lambda path: LineReader(str(path)).read(0, 1 << 20)),
    "CSV": in_file("rows.csv", csv_rows(None)),
    "CSV with escapes": in_file("rows.csv", csv_rows("\\")),
    "format of a CSV file": in_file("format.csv", lambda path: detect_format(path, COLUMNS)),
    "other formats": in_file("other.csv", refuse_non_text),
    "encoding": in_file("encoding.csv", detect_encoding),
    "records of JSON": in_file("records.jsonl", skipped_records),
    "complete rows": in_file("rows.csv", lambda path: find_complete_rows(path, quoted=True)),
    "wide records": wide_records,
    "nested records": nested_record,
    "line of a shard": decoded_line,
    "bucket": bucketed,
    "time": refused(format_year_and_month.__wrapped__, BadDocument),
    "URL of a held-out document": of(normalize_url),
    "columns of pages": of(columns_of_pages),
    **{
        f"URL by {granularity}": of(lambda text, by=granularity: make_url_readable(text, by))
        for granularity in ("full", "host", "path", "hash", "registered_domain")
    },
    "key of a link": of(lambda text: normalize_address.__wrapped__(f"https://a.org/{text}")),
    "links": links_of,
    "linked sets": linked_sets,
    "page as published": page_of("published"),
    "whole page": page_of("all"),
    "encoding of a page": of(lambda text: decode_html(b"\xff" + text.encode())),
    "title": annotated(
        "title", lambda text: InputRecord(url="a", text="b", columns={"html_title": [text]})
    ),
    "data source": annotated(
        "datasource", lambda text: InputRecord(url=f"https://a.org/{text}", text="b")
    ),
    "description": annotated(
        "website_description",
        lambda text: InputRecord(
            url="https://a.org", html=f'<meta name=description content="{text}">'
        ),
        description_sources=["meta"],
    ),
    "language": annotated("language", lambda text: InputRecord(url="a", text=text)),
    "lengths": annotated("length", lambda text: InputRecord(url="a", text=text)),
    "paragraphs": all_of(lambda text: split_paragraphs(Row(InputRecord(text=text), "published"))),
    "words of duplicates": of(split_words),
    "records of a WARC file": read_archive,
    "compressed WARC file": read_compressed_archive,
    "HTTP response": of(lambda text: parse_response(text.encode(), 1 << 20)),
    "main content": of(lambda text: Text(text).align_extract(text[::-1] + text[: len(text) // 2])),
    "moved content": of(
        lambda text: Text(text).align_extract(f"{text[len(text) // 2 :]} {text[: len(text) // 2]}")
    ),
    "dates of a URL": all_of(list_dates_in_url),
    "time of a crawl": of(lambda text: (parse_crawl_time(text), read_latest_moment(text))),
    "dates of a page": all_of(
        lambda text: list_declared_dates(Declared({"date": text}, [[text]], [text]))
    ),
    "visible dates": all_of(lambda text: list_visible_dates(text, read_latest_moment(None))),
    "declared charset": of(lambda text: find_declared_charset(text.encode())),
    "JSON-LD": of(decode_json_ld),
    "first sentence of an article": of(extract_first_sentence),
    "websites of articles": dump,
    "host": description_of,
    "kind of a description": of(is_description),
    "key of a text": of(hash_text),
    "words of a sentence": of(find_word_spans),
    "caseless text": of(lambda text: (make_caseless(text), CaselessText.from_text(text))),
    "mentions": lambda text, folder: alias_dictionary(folder)(text),
    "words of any script": of(lambda text: (find_word_edges(text), has_word(text))),
    "training lines": training_lines,
    "configuration of Bootleg": in_file("a.json", lambda path: converter.main([str(path)])),
    "artificial noise": noisy("artificial"),
    "realistic noise": noisy("realistic"),
    "corrections": corrected,
    "spelled words": spelled,
    "misspellings": refused(lambda text: invert_dictionary(text.splitlines()), UserError),
    "words of a model": of(lambda text: build_lexicon([text], [], {})),
    "word list": in_file("list.txt", lambda path: read_word_list(str(path))),
    "scripts of words": of(lambda text: WordScripts([text]).find_unknown(text)),
    "dictionary": lambda text, folder: (
        dictionary(folder).correct(text),
        dictionary(folder).flags(text),
    ),
    "possessive": of(remove_possessive),
    "kept words": in_file("kept.txt", lambda path: "the" in KeptWords([str(path)])),
    "token among kept words": of(lambda text: text in KeptWords(["the"])),
    "kinds of flagged words": of(
        lambda text: count_false_alarms([text], [[1] * len(text.split())])
    ),
    "samples of spelling": spelling_samples,
    "test set of spelling": spelling_test_set,
    "test lines in training texts": of(lambda text: count_training_lines({"a": [(text,)]}, [text])),
    "text of a held-out document": of(
        lambda text: [*iterate_fingerprints(Document(text, None, {}))]
    ),
    "text of a report": tabled,
    "page in a frame of a report": refused(make_inert_html, PageError),
}

_TAG_SHAPES = tuple(
    Shape(beginning, unit, "")
    for beginning, unit in [
        ("", "<p>x"),
        ("", "<a href=x>a</a> "),
        ("", "<title>x</title>"),
        ("", "<svg><title>x</title></svg>"),
        ("", "<footer>x</footer>"),
        ("", "<meta name=a content=b>"),
        ("", "<script type='application/ld+json'>{}</script>"),
        ("", "<!-- x --><div></div>"),
        ("", "<div> <!-- x --></div>"),
        ("", "<form><p>x</form>"),
        ("<pre>", " x\n"),
        ("<table>", "x<td>"),
        ("<p ", "a=b "),
        ("", "&amp"),
    ]
)

_SCRIPT_SHAPES = tuple(
    Shape(beginning, unit, "")
    for beginning, unit in [
        ("", "京"),
        ("", "京 \n"),
        ("京", " "),
        ("京", "\ufe0f"),
        ("ก", "\u200b"),
        ("", "เ"),
        ("", "ก\u0e49"),
        ("ក", "\u17d2"),
        ("", "ក្"),
        ("", "🇫"),
        ("", "❤\u200d"),
        ("❤", "🏽"),
        ("", "a\u0301京"),
        ("京", "\u0301"),
    ]
)

SHAPES: dict[str, tuple[Shape, ...]] = {
    "sentences by rules": (
        Shape("", "the cat sat on the mat. ", ""),
        Shape("", "e.g. ", ""),
        Shape("", ".\"'", "x"),
        Shape("A", "\n ", "x"),
    ),
    "chunks": (Shape(" ", "a. A. ", ""), Shape("", "a\n\n\n ", ""), Shape(" " * 9999, "a ", "")),
    "tags": (Shape("", "<a", ""), Shape("", "<a>", "<")),
    "CSV": (
        Shape("", '"" ,x",y,"\n', ""),
        Shape("", '"a" ,"\n', ""),
        Shape('"', "a,b\n", ""),
        Shape('"', 'x",y,"\n', 'x" y\n'),
        Shape("", '"a\nb",c\n', '"'),
    ),
    "CSV with escapes": (
        Shape("", "x\\\n", ""),
        Shape('"', "x\\\n", ""),
        Shape("", 'x\\\n",y,"\n', ""),
        Shape("", '"\\",y\n', ""),
    ),
    "format of a CSV file": (
        Shape("", "text ", ""),
        Shape("", "text,", "\n"),
        Shape("", "-=", "\n"),
    ),
    "records of JSON": (
        Shape("", '{"text": "a", "label": "b"}\n', ""),
        Shape("", "[" * 3000 + "\n", ""),
    ),
    "JSON": (Shape("[", "[],", "[]]"), Shape('{"a": 1', ', "a": 2', "}"), Shape("[", "1", "]")),
    "JSON of msgspec": (Shape("[", "[],", "[]]"), Shape("[", "1", "]")),
    "YAML": (
        Shape("", "1:", "1"),
        Shape("", "- a\n", ""),
        Shape("", "a: b\n", ""),
        Shape("- &a b\n", "- *a\n", ""),
        Shape("", "? a\n", ""),
        Shape("[", "a, ", "a]"),
        Shape("", "# a\n", ""),
    ),
    "time": (Shape("1", "0", ""), Shape("2019-01-01", " a", "")),
    "bucket": (Shape("", "9", ""), Shape("1e", "9", ""), Shape("0.", "9", "")),
    "host": (Shape("", "a.", "org"),),
    "dates of a URL": (
        Shape("https://a.org", "/2019/02/30", ""),
        Shape("", "/2019/nov", ""),
        Shape("", "20-nov-", "2019"),
    ),
    "visible dates": (
        *_TAG_SHAPES,
        Shape("", "<span class=date>x</span>", ""),
        Shape("", "<span class=date>30.02.2019</span>", ""),
        Shape("", "<div class=date>1 ", ""),
        Shape("", "<time datetime=2019-02-30>x</time>", ""),
        Shape("", "30.02.2019 ", ""),
        Shape("<script>", "2019-11-", "</script>"),
    ),
    "declared charset": (
        Shape("", "<meta charset=x>", ""),
        Shape("<meta ", "a=b ", "charset=x>"),
        Shape("<meta http-equiv=content-type content='", "charset ", "'>"),
        Shape("", "<!-- -->", ""),
        Shape("", "<a b='", ""),
    ),
    "JSON-LD": (
        Shape("<!-- {", '"a": "\n",', "} -->"),
        Shape("", '"a":\n', ""),
        Shape("{", '"a": "b" ', "}"),
        Shape("", "\n", "x"),
        Shape("{}", "//", ""),
        Shape("{}", "]]>*/\n", ""),
    ),
    "page as published": _TAG_SHAPES,
    "whole page": _TAG_SHAPES,
    "first sentence of an article": (
        Shape("", "[http://a", ""),
        Shape("", "[http://a b", ""),
        Shape("", "<ref", ""),
        Shape("", "<ref name=a>", ""),
        Shape("", "<gallery>", ""),
        Shape("", "{{a", ""),
        Shape("", "{{", "a" + "}}" * 999),
        Shape("", " (", ")"),
    ),
    "websites of articles": (
        Shape("", "|url=!!!", ""),
        Shape("|url=", "a.", "_"),
        Shape("|url=", "=", ""),
        Shape("|url=\n", "| ", ""),
        Shape("", "|website=a.org ", ""),
    ),
    "configuration of Bootleg": (
        Shape("{", "/*a*/", "}"),
        Shape("{", ",/*a*/", "}"),
        Shape('{"a": [', '"a", // b\n', "]}"),
        Shape("{", '"\\', "}"),
    ),
    "moved content": (Shape("", "a b c d e f ", ""), Shape("x y ", "a1 b2 c3. ", "")),
    "possessive": (Shape("", "'s", ""), Shape("a", "'", "s")),
    "token among kept words": (Shape("", "a-", "b"), Shape("", "'s", "")),
    "spelled words": (Shape("", "cat the ", ""), Shape("", "catthe", "")),
    "page in a frame of a report": (
        Shape("<style>", "@import url( ", "</style>"),
        Shape("<style>", " ", "</style>"),
        Shape("", "<a style='url( b)'>", ""),
    ),
    "caseless text": _SCRIPT_SHAPES,
    "mentions": _SCRIPT_SHAPES,
    "words of any script": _SCRIPT_SHAPES,
    "misspellings": (Shape("a->b", ", c", ""), Shape("", "a->b\n", "")),
    "override": (Shape("a=", "~", ""), Shape("a=", '"\\', "")),
    "glob": (Shape("a/", "b/", "x.gz"), Shape("a/", "b", ".gz")),
    "paragraphs": (Shape("", "a\n\n", ""),),
    "data source": (Shape("", "1.", ""), Shape("", "1.", "a"), Shape("a", ".1", "")),
    "records of a WARC file": (
        Shape("WARC/1.0\nWARC-Type: a\nContent-Length: 9\n\n", "\nWARC/1.0", ""),
        Shape("WARC/1.0\na: b\n", "c: d\n", "\n"),
        Shape("", "WARC/1.0\n\n", ""),
        Shape("", "WARC/1.0\nContent-Length: 99\n\na\n", ""),
        Shape("", "\n", "a"),
    ),
    "compressed WARC file": (Shape("", "WARC/1.0\nContent-Length: 9\n\n123456789", ""),),
    "HTTP response": (
        Shape("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", "1\na\n", ""),
        Shape("HTTP/1.1 200 OK\nContent-Type: text/html; charset=", " ", "\n\n"),
        Shape("HTTP/1.1 200 OK\nContent-Encoding: ", "gzip,", "\n\na"),
    ),
    "key of a link": (Shape("", "/index.html", "x"), Shape("?", "a=b&", "")),
}
"""What is hard for some of them; found by reading them."""

LENGTHS: dict[str, tuple[int, ...]] = {
    # The time of an alignment grows with the square up to some thousand characters: blocks of
    # chunks, whose size does not depend on the text, are aligned one after the other.
    "corrections": (1 << 13, 1 << 15),
    # The scanner of PyYAML reads up to 1,024 characters ahead for each bracket, before the depth
    # of the values is known.
    "saved configuration": (1 << 11, 1 << 13),
}
"""Where other lengths are judged than usually, and why."""


# Modules, and folders of them, that take apart none but these strings. Each function of the other
# modules that takes one apart must be called by a splitter.
OTHER_MODULES = {
    "api/": "paths that a program gives",
    "config/": "the configuration of the user; `config/saved.py` has a splitter",
    "core/errors.py": "keys of the configuration",
    "core/changed_values.py": "keys of the configuration",
    "core/keys.py": "keys of the configuration, and docstrings",
    "annotate/plan.py": "constants",
    "annotate/pool.py": "messages of this program",
    "annotate/shard.py": "files of this program",
    "annotate/html/tags.py": "constants",
    "data/io/remote/azure_account.py": "variables of the environment",
    "data/io/remote/azure_blobs.py": "names and hashes in a listing",
    "data/io/file_sets.py": "paths in the configuration",
    "data/io/file_start.py": "the first `_HEAD` bytes of a file",
    "data/io/remote/hub.py": "names and answers of the Hub",
    "data/io/remote/objects.py": "addresses in the configuration, and headers of a server",
    "data/io/parquet.py": "names of columns",
    "data/io/remote/store.py": "addresses in the configuration, and headers of a server",
    "data/io/shards.py": "paths in the configuration",
    "data/io/remote/stores.py": "addresses in the configuration",
    "data/io/remote/tensorflow_files.py": "options of an address in the configuration",
    "data/prepare.py": "names of metadata types",
    "data/stage.py": "paths of this program",
    "data/stream/columns.py": "names of columns",
    "models/": "names of models and weights",
    "reference.py": "docstrings",
    "report/figures.py": "names of what is drawn",
    "studies/": "the file of a study, and names of runs",
    "tasks/causal_lm/": "requests of the user, and texts of a window",
    "tasks/checkpoints.py": "paths in the configuration",
    "tasks/classification/examples.py": "places in a table",
    "tasks/classification/results.py": "places in a table",
    "tasks/classification/store.py": "keys and labels; `hash_text` has a splitter",
    "tasks/disambiguation/data.py": "names of splits",
    "tasks/disambiguation/entity_files.py": "names of files and tables",
    "tasks/disambiguation/evaluate.py": "names of splits",
    "tasks/disambiguation/prep.py": "tokens, with a vocabulary",
    "tasks/disambiguation/profiles.py": "names in tables that are looked up",
    "tasks/disambiguation/task.py": "names of files",
    "tasks/disambiguation/texts.py": "names in tables that are looked up",
    "tasks/model_card.py": "names of metrics",
    "tasks/spelling/config.py": "paths in the configuration",
    "tasks/spelling/correction.py": "words of a line, once; needs a model",
    "tasks/spelling/corrector.py": "words of a line, once; needs a model",
    "tasks/spelling/inputs.py": "words of a line, once; needs a model",
    "tasks/spelling/seq2seq_correction.py": "words of a line, once; needs a model",
    "tasks/spelling/task.py": "words of a line, once; needs a model",
    "training/": "names of files, devices and metrics",
}

_TAKES_APART = METHODS | {"split", "rsplit", "splitlines", "partition", "rpartition"}
_TAKES_APART |= {"find", "rfind", "readline", "readlines"}

# Functions of the other modules that are not called, and why.
OTHERS = {
    "tasks/disambiguation/config_script.py:_take_option": "the command line",
    "tasks/disambiguation/config_script.py:apply_config_script": "the command line",
    "tasks/disambiguation/entities.py:EntityTable.find_entity": "looks up a name",
    "tasks/disambiguation/table_changes.py:TableChanges._find_score_problems": "looks up names",
    "annotate/about_page.py:WebsiteDescription._find_in_table": "a host: `DescriptionTable.find`",
    "annotate/decisions.py:read_duplicates": "a file of this program",
    "annotate/decisions.py:read_identity": "a file of this program",
    "annotate/links.py:_read_first_line": "a file of this program",
    "annotate/spans.py:Spelling.annotate": "needs a model; reads at most `MAX_SAMPLE_CHARS`",
    "completion.py:_find_module": "names of the programs of this package",
    "core/environment.py:_describe_processor": "the processor's name, from a file of the system",
    "core/secrets.py:_list_written_forms": "a secret of the environment, once",
    "core/secrets.py:declare_secrets_in_arguments": "the command line",
    "core/secrets.py:declare_secrets_in": "the configuration",
    "core/token_forms.py:_make_form": "constants",
    "data/stream/data_size.py:_read_first_content": "the first `_NUM_SAMPLE_BYTES` of a shard",
    "metadata/checks.py:_find_prefix_problems": "a key of the configuration",
    "data/text/encoding.py:DocumentEncoder._find_lost": "calls `LostTextFinder.find`",
    "data/text/lost_text.py:LostTextFinder._decode_group": "needs a tokenizer; tokens",
    "data/text/lost_text.py:find_lossy_texts": "calls `LostTextFinder.find`",
    "data/text/lost_text.py:measure_lost_text": "calls `LostTextFinder.find`",
    "data/text/tokens.py:SpecialTokens.encode": "needs a tokenizer; its pattern is tested",
    "data/text/tokens.py:SpecialTokens.find": "needs a tokenizer; its pattern is tested",
    "data/text/tokens.py:TextTokenizer.encode": "needs a tokenizer; calls `SpecialTokens.find`",
    "data/text/word_cache.py:SpecialPatterns.find_spans": "needs a tokenizer; pattern is tested",
    "data/text/word_cache.py:SpecialPatterns.split": "needs a tokenizer; its pattern is tested",
    "data/text/word_cache.py:_mark_texts": "needs a tokenizer; calls `SpecialPatterns.split`",
    "metadata/decoding.py:_add_leaf": "paths in the configuration",
    "metadata/decoding.py:_make_getter": "paths in the configuration",
    "quick/documents.py:read_pages": "the paths of columns, once each",
    "ready/paragraphs.py:_iterate_paragraphs": "the shipped pages",
    "ready/training.py:_read_state": "a log of this program",
    "tasks/disambiguation/converter.py:_convert_checkpoint_metric": "one value of a configuration",
    "tasks/disambiguation/converter.py:_drop_all": "one key of a configuration",
    "tasks/spelling/candidates.py:_is_spelled": "calls the `match` of a lexicon",
    "tasks/spelling/corrections.py:count_correction_outcomes": "see `count_corrections`",
    "tasks/spelling/corrections.py:count_corrections": "a published measure, which is quadratic",
    "tasks/spelling/evaluate.py:_flag_words": "see `Dictionary`",
    "tasks/spelling/context.py:ContextModel.read": "words beside a model, divided once",
    "tasks/spelling/false_alarms.py:flag_changed_words": "aligns as `count_corrections` does",
    "tasks/spelling/lexicon.py:Lexicon.read": "a file of this program",
    "tasks/spelling/noise.py:_read_codespell": "a file of a package",
}


def splitting_functions(modules: Iterable[Module]) -> Iterator[str]:
    """Yields the functions that split strings, except those of `OTHER_MODULES`.

    Each is FILE:NAME.
    """
    for module in modules:
        if module.file.startswith(tuple(OTHER_MODULES)):
            continue
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef) and _takes_apart(node):
                yield f"{module.file}:{_qualified_name(module, node)}"


def _takes_apart(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _TAKES_APART
        for node in ast.walk(function)
    )


def _qualified_name(module: Module, node: ast.FunctionDef) -> str:
    names = [node.name]
    parent = module.parents.get(node)
    while parent is not None:
        if isinstance(parent, ast.FunctionDef):
            names += ["<locals>", parent.name]
        elif isinstance(parent, ast.ClassDef):
            names.append(parent.name)
        parent = module.parents.get(parent)
    return ".".join(reversed(names))


def forget_results() -> None:
    """Clears the caches of functions, so that they are called again after other tests."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("bsmeta."):
            for function in vars(module).values():
                if hasattr(function, "cache_clear"):
                    function.cache_clear()


def called_functions(run: Callable[[], object]) -> set[str]:
    """Returns the functions of the package that are called, as FILE:NAME."""
    forget_results()
    called: set[str] = set()
    folder = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder):
            called.add(f"{code.co_filename.removeprefix(folder)}:{code.co_qualname}")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return called


def splitters() -> dict[str, Splitter]:
    assert {*SHAPES} | {*LENGTHS} <= {*RUNS}
    return {
        name: Splitter(run, SHAPES.get(name, ()), LENGTHS.get(name, ()))
        for name, run in RUNS.items()
    }
