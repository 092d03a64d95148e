"""`profile=published` beside the published code, on the shipped pages.

`published.json` has for each page the hashes of the text and of the tags that the code of the
published data (bigscience-workshop/metadata, 78671a6, as its `HtmlPreprocessor` calls it) gives.
White space is left out, and what its parser does otherwise: it adds no `tbody`, writes the
attributes in another order and `viewbox`, and repeats the name of an attribute without a value. It
refuses 14 of the 84 pages, which begin with an XML declaration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import xxhash

from bsmeta.annotate.annotator import Row
from bsmeta.annotate.html.tags import TagRecord
from bsmeta.annotate.inputs.sources import InputRecord
from tests.annotate.helpers import RAWPAGES, annotated, rows

PUBLISHED = Path(__file__).with_name("published.json")


def comparable(text: str, tags: list[TagRecord]) -> Iterator[list]:
    """Returns name, span in the text without white space, and attributes of each tag."""
    places = [0, *accumulate(not letter.isspace() for letter in text)]
    for tag in tags:
        if tag.value != "tbody":
            names = [name.lower() for name in tag.html_attrs.attrs]
            attributes = sorted(zip(names, map(str, tag.html_attrs.values), strict=True))
            written = [[name, value or name] for name, value in attributes]
            yield [tag.value, places[tag.char_start_idx], places[tag.char_end_idx], written]


def digest(content: object) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(content).encode())


def test_text_and_tags_equal_those_of_the_published_code() -> None:
    expected = json.loads(PUBLISHED.read_text())
    digests = {}
    for path in sorted(RAWPAGES.glob("*.jsonl.gz")):
        for page in rows(path):
            if page["url"] in expected:
                record = InputRecord(url=page["url"], html=page["html"])
                text = Row(record, "published").text
                tags = list(comparable(text, annotated(record, "html")["metadata_html"]))
                digests[page["url"]] = [digest("".join(text.split())), digest(tags)]
    assert digests == expected
    assert len(digests) == 70
