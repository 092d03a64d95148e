"""The table of descriptions of websites, made from a small dump of Wikipedia."""

from __future__ import annotations

import bz2
import json
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from bsmeta.annotate.config import DescriptionsConfig
from bsmeta.annotate.descriptions import (
    DescriptionTable,
    extract_first_sentence,
    main,
    read_descriptions,
)
from bsmeta.core.errors import ConfigurationError, DataError
from tests.growth import LIMIT, measure_growth

ARTICLES = [
    ("Example.org", "Example Foundation", "#REDIRECT [[Example Foundation]]"),
    (
        "Example Foundation",
        None,
        "{{Infobox organization\n| name = Example\n| website = {{URL|https://www.example-site.org/}}"
        "\n}}\nThe '''Example Foundation''' (EF; born {{circa}} 1990) is an [[organization|old "
        "organization]] of examples.<ref>A book.</ref> It is big.",
    ),
    (
        "A show of Channel",
        None,
        "{{Infobox show|website=https://www.channel.tv/shows/a|x=1}}\nIt is one of its shows.",
    ),
    (
        "Other",
        None,
        "{{Infobox|url = http://channel.tv\n}}Another thing on this website.",
    ),
    (
        "Channel (TV)",
        None,
        "{{Infobox|url = {{url|channel.tv}}}}\nChannel is a TV station.",
    ),
    ("Talk:Channel", None, "{{Infobox|url = talk.org}} A page of another namespace."),
    ("b.net", None, "'''b.net''' is a website that is an article itself."),
    ("Empty", None, "{{Infobox|url=empty.org}}"),
]


def write_dump(path: Path) -> Path:
    pages = []
    for title, redirect, text in ARTICLES:
        namespace = 1 if title.startswith("Talk:") else 0
        target = f'<redirect title="{redirect}" />' if redirect else ""
        pages.append(
            f"<page><title>{title}</title><ns>{namespace}</ns>{target}<revision>"
            f"<text>{escape(text)}</text></revision></page>"
        )
    names = 'xmlns="http://www.mediawiki.org/xml/export-0.11/"'
    path.write_bytes(bz2.compress(f"<mediawiki {names}>{''.join(pages)}</mediawiki>".encode()))
    return path


EXPECTED = {
    "b.net": "b.net is a website that is an article itself.",
    "channel.tv": "Channel is a TV station.",
    "example-site.org": "The Example Foundation is an old organization of examples.",
    "example.org": "The Example Foundation is an old organization of examples.",
}


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".sqlite", "#1.sqlite"])
def test_a_dump_is_converted_to_a_table(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / f"sites{suffix}"
    dump = write_dump(tmp_path / "pages.xml.bz2")
    main(DescriptionsConfig(dump=str(dump), output=str(table)))
    assert capsys.readouterr().out == f"{table}: 4 domains\n"
    description_table = DescriptionTable(str(table))
    assert {domain: description_table.find(domain) for domain in EXPECTED} == EXPECTED
    assert (
        description_table.find("www.example.org")
        == description_table.find("en.m.example.org")
        == EXPECTED["example.org"]
    )
    assert (
        description_table.find("talk.org")
        is description_table.find("org")
        is description_table.find("empty.org")
        is None
    )
    if suffix == ".jsonl":
        first = json.loads(table.read_text().splitlines()[0])
        assert first == {"domain": "b.net", "description": EXPECTED["b.net"]}
    assert len(list(tmp_path.iterdir())) == 2  # nothing is left over


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{{a|{{b}}|{{c|{{d}}}}}}\n'''X''' is ''y''. More.", "X is y."),
        ("[[File:a.jpg|thumb|A [[picture]] of it.]]\nX is y.", "X is y."),
        ("{| class=x\n| a table\n|}\n* a list\nX is y (or (so) z) indeed.", "X is y indeed."),
        (
            "<!-- a note -->X is <b>the</b> [https://a.org site] of Dr. No.",
            "X is the site of Dr. No.",
        ),
        ("{{only templates}}", ""),
    ],
)
def test_a_description_is_the_first_sentence(text: str, sentence: str) -> None:
    assert extract_first_sentence(text) == sentence


@pytest.mark.parametrize("unit", ["[http://a", "[http://a ", "<ref", "<!--", "{{", "( "])
def test_the_time_of_unclosed_markup_grows_with_its_length(unit: str) -> None:
    lengths = (1 << 8, 1 << 10, 1 << 12, 1 << 14)  # of an article, 20,000 characters are read
    assert (
        measure_growth(extract_first_sentence, lambda length: unit * (length // 9), lengths)
        <= LIMIT
    )


def test_the_time_of_a_website_grows_with_its_length(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"

    def read_dump(text: str) -> None:
        page = f"<page><title>A</title><ns>0</ns><text>{text}</text></page>"
        path.write_text(f"<mediawiki>{page}</mediawiki>")
        read_descriptions(path)

    lengths = (1 << 8, 1 << 10, 1 << 12, 1 << 14)
    assert measure_growth(read_dump, lambda length: "|url=" + "!" * length, lengths) <= LIMIT


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.tsv", "no tab here\n"), ("a.jsonl", "{}\n"), ("a.sqlite", "x"), ("a.txt", "a\tb\n")],
)
def test_a_bad_table_is_named(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=rf"descriptions=.*{name} cannot be read"):
        DescriptionTable(str(tmp_path / name))


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="dump .* and output .* must be set"):
        main(DescriptionsConfig())
    with pytest.raises(ConfigurationError, match=r"a\.csv: expected a name that ends in one of"):
        main(DescriptionsConfig(dump="x", output="a.csv"))
    output = str(tmp_path / "none" / "a.sqlite")
    with pytest.raises(ConfigurationError, match=rf"output={output} cannot be written"):
        main(DescriptionsConfig(dump="not read", output=output))
    (tmp_path / "bad.xml").write_text("<mediawiki><page>")
    with pytest.raises(DataError, match=r"dump=.*bad\.xml cannot be read"):
        main(DescriptionsConfig(dump=str(tmp_path / "bad.xml"), output=str(tmp_path / "a.tsv")))
