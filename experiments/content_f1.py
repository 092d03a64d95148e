"""Measures how well extractors find the main content of pages whose template is known.

    python experiments/content_f1.py 'pages/*.jsonl.gz' [PAGES_PER_SITE]

The pages are those of documentation generators, which put the content into a known element; it is
found by name or id, and everything else is navigation. Precision, recall and F1 count the letters
(without white space) of the text that `profile=all` gives, and are means over pages. `all` is the
whole text, `published` what `profile=published` leaves of it. Prints a Markdown table.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import xxhash

from bsmeta.annotate.content import EXTRACTORS, Span, Text
from bsmeta.annotate.page import Page, parse_page
from bsmeta.annotate.tags import TagRecord

Test = Callable[[str, dict[str, Any]], bool]


class Template(NamedTuple):
    """Where the pages of a site have their content: in an element, without some others in it."""

    content: Test
    others: Test


def _none(tag: str, attributes: dict[str, Any]) -> bool:
    return False


TEMPLATES = {
    "docs.python.org": Template(lambda tag, of: of.get("role") == "main", _none),
    "docs.djangoproject.com": Template(lambda tag, of: of.get("id") == "yui-main", _none),
    "pandas.pydata.org": Template(lambda tag, of: tag == "main", _none),
    "www.postgresql.org": Template(
        lambda tag, of: of.get("id") == "docContent",
        lambda tag, of: of.get("class") in ("navheader", "navfooter"),
    ),
    "httpd.apache.org": Template(
        lambda tag, of: of.get("id") == "page-content",
        lambda tag, of: of.get("id") == "quickview" or of.get("class") in ("toplang", "bottomlang"),
    ),
    "www.sqlite.org": Template(
        lambda tag, of: tag == "body", lambda tag, of: of.get("class") == "nosearch"
    ),
}


def main(pattern: str, pages_per_site: str = "1000000") -> None:
    """Prints the table."""
    scores: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    extractors = {name: make() for name, make in EXTRACTORS.items()}
    for site, pages in _sample(pattern, int(pages_per_site)).items():
        for html in pages:
            page = parse_page(html, profile="all")
            truth = _truth(page, TEMPLATES[site])
            if truth is None or not truth.any():
                continue
            text = Text(page.text)
            found = {name: text.align(extract(html)) for name, extract in extractors.items()}
            found["all"] = [(0, len(page.text))]
            found["published"] = text.align(parse_page(html).text)
            masks = {name: _mask(page.text, spans) for name, spans in found.items()}
            masks["union"] = masks["resiliparse"] | masks["trafilatura"]
            masks["intersection"] = masks["resiliparse"] & masks["trafilatura"]
            for name, mask in masks.items():
                scores[site, name].append(_scores(mask, truth))
    _print(scores)


def _sample(pattern: str, count: int) -> dict[str, list[str]]:
    """Pages of each site, in an order that depends only on their addresses."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for path in sorted(glob(pattern)):
        with gzip.open(path) as file:
            for line in file:
                row = json.loads(line)
                site = urlsplit(row["url"]).netloc
                if site in TEMPLATES:
                    found[site].append((xxhash.xxh3_64_intdigest(row["url"].encode()), row["html"]))
    return {site: [html for _, html in sorted(pages)[:count]] for site, pages in found.items()}


def _truth(page: Page, template: Template) -> np.ndarray | None:
    """Which letters are content; None if the page does not follow the template."""
    contents = list(_spans(page.tags, template.content))
    if len(contents) != 1:
        return None
    return _mask(page.text, contents) & ~_mask(page.text, list(_spans(page.tags, template.others)))


def _spans(tags: Sequence[TagRecord], test: Test) -> Iterator[Span]:
    for tag in tags:
        if test(tag.value, dict(zip(tag.html_attrs.attrs, tag.html_attrs.values, strict=True))):
            yield tag.char_start_idx, tag.char_end_idx


def _mask(text: str, spans: Sequence[Span]) -> np.ndarray:
    mask = np.zeros(len(text), np.bool_)
    for start, end in spans:
        mask[start:end] = True
    return mask & np.array([not letter.isspace() for letter in text], np.bool_)


def _scores(found: np.ndarray, truth: np.ndarray) -> tuple[float, float, float]:
    both = float((found & truth).sum())
    precision = both / max(1, found.sum())
    recall = both / max(1, truth.sum())
    return precision, recall, 2 * both / max(1, found.sum() + truth.sum())


def _print(scores: dict[tuple[str, str], list[tuple[float, float, float]]]) -> None:
    names = ["all", "published", "resiliparse", "trafilatura", "union", "intersection"]
    print("| site | pages | " + " | ".join(names) + " |")
    print("|---|---|" + "---|" * len(names))
    sites = sorted({site for site, _ in scores})
    for site in sites:
        means = [np.mean([f1 for _, _, f1 in scores[site, name]]) for name in names]
        cells = " | ".join(f"{mean:.3f}" for mean in means)
        print(f"| {site} | {len(scores[site, names[0]])} | {cells} |")
    for title, column in (("precision", 0), ("recall", 1), ("F1", 2)):
        columns = [[one[column] for site in sites for one in scores[site, name]] for name in names]
        cells = " | ".join(f"{np.mean(values):.3f}" for values in columns)
        print(f"| all pages: {title} | {len(columns[0])} | {cells} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
