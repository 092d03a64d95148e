"""CSV files as they are found are read correctly."""

from __future__ import annotations

import codecs
import csv
import gzip
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.table.csv_file import BadRows, CSVFormat, detect_format, read_rows
from tests.growth import LIMIT, measure_growth

PLAIN = b"text,label\nBeat my opponent,left\nBuy this,neutral\n"
ROWS = [["Beat my opponent", "left"], ["Buy this", "neutral"]]
CAFE = "text,label\ncafé – naïve,left\nBuy “this”,neutral\n"
CAFES = [["café – naïve", "left"], ["Buy “this”", "neutral"]]
SEED_DOCUMENT = b"""text,                          label
-------------------------------------
Beat my Republican opponent!  ,left
Democrats want you to...      ,right
Buy this toothpaste!...       ,neutral
"""


def read(
    folder: Path, content: bytes, wanted: tuple[str, ...] = ("text", "label"), **more: Any
) -> tuple[CSVFormat, list[list[str]]]:
    path = folder / "table.csv"
    path.write_bytes(content)
    form = detect_format(path, wanted, **more)
    rows = list(read_rows(path, form))
    assert [row.problem for row in rows] == [None] * len(rows)
    return form, [row.cells for row in rows]


@pytest.mark.parametrize(
    ("content", "rows", "note"),
    [
        (PLAIN, ROWS, ""),
        (PLAIN.replace(b"\n", b"\r\n"), ROWS, ""),
        (PLAIN.replace(b"\n", b"\r"), ROWS, ""),
        (PLAIN.rstrip(), ROWS, ""),
        (PLAIN.replace(b"\n", b"\n\n") + b"\n  \n", ROWS, ""),
        (PLAIN.replace(b",", b";"), ROWS, "separated by a semicolon"),
        (PLAIN.replace(b",", b"\t"), ROWS, "separated by a tab"),
        (PLAIN.replace(b",", b"|"), ROWS, "separated by a pipe"),
        (b"sep=;\r\n" + PLAIN.replace(b",", b";"), ROWS, ""),
        (b"\n\n" + PLAIN, ROWS, ""),
        (gzip.compress(PLAIN), ROWS, ""),
        (codecs.BOM_UTF8 + PLAIN, ROWS, ""),
        (codecs.BOM_UTF8 + b'"text","label"\n' + PLAIN[11:], ROWS, ""),
        (CAFE.encode(), CAFES, ""),
        (CAFE.encode("utf-16"), CAFES, "utf-16, from its mark"),
        (codecs.BOM_UTF16_BE + CAFE.encode("utf-16-be"), CAFES, "utf-16, from its mark"),
        (CAFE.encode("utf-32"), CAFES, "utf-32, from its mark"),
        (PLAIN.decode().encode("utf-16-le"), ROWS, "utf-16-le, because every other byte"),
        (PLAIN.decode().encode("utf-16-be"), ROWS, "utf-16-be, because every other byte"),
        (SEED_DOCUMENT, [
            ["Beat my Republican opponent!  ", "left"],
            ["Democrats want you to...      ", "right"],
            ["Buy this toothpaste!...       ", "neutral"],
        ], ""),
        (b'text,label\n"She will, remove.", left\n', [["She will, remove.", "left"]], ""),
        (b'text, label\n"Beat it"   ,left\n', [["Beat it   ".strip(), "left"]], ""),
        (b'text,label\n"two\nlines",left\n', [["two\nlines", "left"]], ""),
        (b'text,label\n"a ""word"", and",left\n', [['a "word", and', "left"]], ""),
        (b'text,label\na 5" pipe,left\n', [['a 5" pipe', "left"]], ""),
        (b'text,label\n"a \\"word\\", and",left\n', [['a "word", and', "left"]], "a backslash"),
        (b"text,label\na,left,\nb,right,,\n", [["a", "left"], ["b", "right"]], ""),
        (b" Text of it , label\na,b\n", [["a", "b"]], ""),
        (b'text,label\n"a, b, c",x\n"d;e;f;g",y\n', [["a, b, c", "x"], ["d;e;f;g", "y"]], ""),
        (b"text;label\na, b, c;x\nd, e;y\n", [["a, b, c", "x"], ["d, e", "y"]], "semicolon"),
        (b"id,text,note,label\n1,a,,x\n", [["1", "a", "", "x"]], ""),
        (b'text,label\n"' + b"word " * 60_000 + b'",x\n', [["word " * 60_000, "x"]], ""),
    ],
)  # fmt: skip
def test_rows_of_any_dialect_are_read(
    tmp_path: Path, content: bytes, rows: list[list[str]], note: str
) -> None:
    wanted = ("Text of it", "label") if b"Text of it" in content else ("text", "label")
    form, found = read(tmp_path, content, wanted)
    assert found == rows
    assert note in "; ".join(form.notes)
    assert bool(note) == bool(form.notes)


def test_a_declared_separator_and_encoding_are_used(tmp_path: Path) -> None:
    content = "text:label\n\u0451,a\n".replace(",", ":").encode("cp1251")
    form, found = read(tmp_path, content, separator=":", encoding="cp1251")
    assert (found, form.notes) == ([["\u0451", "a"]], ())
    assert read(tmp_path, PLAIN.replace(b",", b"\t"), separator="tab")[1] == ROWS
    marked = codecs.BOM_UTF8 + b'"text","label"\n' + PLAIN[11:]
    assert read(tmp_path, marked, encoding="UTF8")[1] == ROWS


@pytest.mark.parametrize(
    ("content", "separator"),
    [
        ("text^label\na^b\n", "^"),
        ("label~text\nb~a\n", "~"),
        ('"id":"text":"label"\n"1":"a":"b"\n', ":"),
    ],
)
def test_an_unknown_separator_of_a_header_is_explained(
    tmp_path: Path, content: str, separator: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        read(tmp_path, content.encode())
    assert str(error.value).endswith(
        f'Are its columns separated by {separator}? Then csv_separator="{separator}"'
    )
    _, rows = read(tmp_path, content.encode(), separator=separator)
    assert [row[-2:] for row in rows] in ([["a", "b"]], [["b", "a"]])


def test_empty_lines_between_the_rows_of_one_column_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b'text\nfoo\n\n""\nbar\n  \nbaz\n\n\n')
    rows = list(read_rows(path, detect_format(path, ["text"])))
    assert [(row.number, row.line, row.cells) for row in rows] == [
        (1, 2, ["foo"]), (2, 3, [""]), (3, 4, [""]), (4, 5, ["bar"]), (5, 6, [""]), (6, 7, ["baz"]),
    ]  # fmt: skip


ENCODED = {
    "cp1252": ("café – naïve", "Buy “this”"),
    "shift_jis": ("減税を支持する", "この歯磨き粉を買う"),
    "gb18030": ("支持减税", "请买这个牙膏"),
    "koi8-r": ("за снижение налогов", "купите эту пасту"),
}


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("compressed", [False, True])
def test_another_encoding_is_refused_unless_it_is_declared(
    tmp_path: Path, encoding: str, compressed: bool
) -> None:
    """Each of these was read as Windows-1252 or Latin-1, with a note."""
    first, second = ENCODED[encoding]
    content = f"text,label\nplain,a\n{first},a\n{second},b\n".encode(encoding)
    content = gzip.compress(content) if compressed else content
    with pytest.raises(DataError) as error:
        read(tmp_path, content)
    assert str(error.value).endswith(
        "table.csv: not UTF-8 in lines 3, 4; declare the encoding of the file: "
        "csv_encoding=NAME, such as cp1252, shift_jis, gb18030, koi8-r"
    )
    _, rows = read(tmp_path, content, encoding=encoding)
    assert rows == [["plain", "a"], [first, "a"], [second, "b"]]


def test_a_damaged_line_is_named_and_other_lines_keep_their_encoding(tmp_path: Path) -> None:
    lines = ["text,label", *(f"naïve {number},a" for number in range(9000))]
    content = "\n".join(lines).encode()
    damaged = content.replace("naïve 4711".encode(), b"na\xefve 4711")
    with pytest.raises(DataError, match="not UTF-8 in line 4,713; other lines .* damaged: correct"):
        read(tmp_path, damaged)
    with pytest.raises(DataError, match="not UTF-8 in line 9,001; other lines"):
        read(tmp_path, content + b"\xc3")  # cut in the last character
    damaged = content.replace(b"\xc3\xaf", b"\xef", 7)
    with pytest.raises(DataError, match="not UTF-8 in lines 2, 3, 4, 5, 6 and 2 more; other"):
        read(tmp_path, damaged)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf\r\n", b"sep=;", b"sep=;\r\n\r\n"])
def test_a_file_without_a_header_is_empty(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match="is empty; expected a CSV file with a header"):
        detect_format(file, ["text"])


def test_a_quote_is_not_declared_as_the_separator(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(b'sep="\r\ntext,label\r\na,x\r\n')
    with pytest.raises((ConfigurationError, DataError), match='sep="'):
        detect_format(file, ["text"])


def test_a_single_column_of_prose_is_not_split_at_commas(tmp_path: Path) -> None:
    content = b"text\nFirst, second, third\nNo comma here\nOne, two\n"
    assert read(tmp_path, content, ("text",))[1] == [
        ["First, second, third"], ["No comma here"], ["One, two"],
    ]  # fmt: skip


def test_rows_have_their_number_and_line(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b'text,label\n"two\nlines",left\n\nmore,right\n')
    rows = list(read_rows(path, detect_format(path, ["text"])))
    assert [(row.number, row.line) for row in rows] == [(1, 2), (2, 5)]


def test_a_bad_row_does_not_swallow_the_next_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b'text,label\na,x\n"b,x\nc,y\nd "quoted" d,z\ne,z\nf,x,y\n')
    rows = list(read_rows(path, detect_format(path, ["text"])))
    assert [(row.number, row.line, row.cells) for row in rows if row.problem is None] == [
        (1, 2, ["a", "x"]),
        (3, 4, ["c", "y"]),
        (4, 5, ['d "quoted" d', "z"]),
        (5, 6, ["e", "z"]),
    ]
    assert [(row.number, row.problem) for row in rows if row.problem is not None] == [
        (2, 'a quote (") within a quoted cell is not doubled, or a quoted cell is not closed'),
        (6, "3 columns, the header has 2"),
    ]


def test_memory_does_not_follow_an_unclosed_quote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bsmeta.data.table.csv_file.MAX_RECORD_CHARS", 100)
    path = tmp_path / "table.csv"
    path.write_bytes(b'text,label\n"a,x\n' + b"b,y\n" * 50)
    rows = list(read_rows(path, detect_format(path, ["text"])))
    assert rows[0].problem == "longer than 100 characters; is a quote not closed?"
    assert [row.cells for row in rows[1:]] == [["b", "y"]] * 50


def test_the_time_of_rows_with_open_quotes_grows_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"

    def skip_rows(content: str) -> int:
        path.write_text("a,b,c\n" + content)
        bad = BadRows(path, "skip")
        for row in read_rows(path, detect_format(path, ["a"])):
            assert row.problem is not None
            bad.add(row, row.problem)
        return bad.count

    assert skip_rows('x",y,"\n' * 9) == 9
    growth = measure_growth(skip_rows, lambda rows: 'x",y,"\n' * rows, (100, 400, 1600, 3200))
    assert growth <= LIMIT


def test_a_row_after_open_quotes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('a,b,c\nx",y,"\nx",y,"\n"d" ,"e\nf", g\nh,i,j\n')
    rows = list(read_rows(path, detect_format(path, ["a"])))
    assert [(row.line, row.cells) for row in rows if row.problem is None] == [
        (4, ["d", "e\nf", "g"]),
        (6, ["h", "i", "j"]),
    ]
    assert [row.line for row in rows if row.problem is not None] == [2, 3]


def test_lines_with_escaped_ends_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('text,label\na\\\nb\\\nc,x\n"d,x\ne,x\n')
    form = replace(detect_format(path, ["text"]), escape="\\")
    rows = [(row.line, row.cells) for row in read_rows(path, form)]
    assert rows == [(2, ["a\nb\nc", "x"]), (5, []), (6, ["e", "x"])]


def test_skipped_rows_are_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"text,label\na,x\nb\nc,y\nd,x,y\n")
    bad = BadRows(path, "skip")
    for row in read_rows(path, detect_format(path, ["text"])):
        if row.problem is not None:
            bad.add(row, row.problem)
    with caplog.at_level(logging.WARNING):
        bad.close()
    assert bad.count == 2
    assert "table.csv: 2 rows left out\n  row 2 (line 3): 1 column, the header" in caplog.text


def test_refused_rows_are_listed_five_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"text,label\n" + b"a\n" * 9)
    bad = BadRows(path, "refuse")
    rows = list(read_rows(path, detect_format(path, ["text"])))
    for row in rows[:4]:
        bad.add(row, row.problem or "")
    with pytest.raises(DataError, match=r"5 bad rows and perhaps more.*\n  row 1 .*(\n.*){4}$"):
        bad.add(rows[4], rows[4].problem or "")


CELLS = st.text(
    st.sampled_from('ab,;|\t"\n\r é\\')
    | st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]),
    max_size=12,
)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=6),
    separator=st.sampled_from(",;\t|"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    compressed=st.booleans(),
)
def test_rows_of_a_csv_writer_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    separator: str,
    encoding: str,
    compressed: bool,
) -> None:
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL)
        writer.writerows([("text", "label"), *rows])
    if compressed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    found = list(read_rows(path, detect_format(path, ["text", "label"], separator=separator)))
    for row, cells in zip(found, rows, strict=True):
        assert (row.cells, row.problem) == (list(cells), None)
