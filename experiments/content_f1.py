"""Measures how well extractors find the main content of pages whose content is known.

    python experiments/content_f1.py 'pages/*.jsonl.gz' [PAGES_PER_SITE]

Pages with a column `article` were marked by hand: the text that is trained on for each value of
`data_config.content`, and that of the extractors alone, is compared with it by runs of four words,
over bags, as in the article extraction benchmark (github.com/scrapinghub/
article-extraction-benchmark): the counts of a page are divided by their sum, and added up over
pages. Then follow the pages whose extract has no spans, and the CPU time of the alignment.

Other pages are those of documentation generators, which put the content into a known element; it
is found by name or id, and everything else is navigation. Precision, recall and F1 count the
letters (without white space) of the text that `profile=all` gives, and are means over pages. `all`
is the whole text, `published` what `profile=published` leaves of it.

Prints a Markdown table.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import glob
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import xxhash

from bsmeta.annotate.content import EXTRACTORS, Extractor, Span, Text
from bsmeta.annotate.html.page import Page, parse_page
from bsmeta.annotate.html.tags import TagRecord
from bsmeta.core.process import run_and_report
from bsmeta.metadata.annotated_columns import CONTENT_SPANS
from bsmeta.metadata.content import KeptText, read_content_spans

_WORD = re.compile(r"\w+")
_SHINGLE = 4
_RESAMPLES = 1000

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
    rows = list(_rows(pattern))
    if not rows:
        sys.exit(f"{pattern}: no pages")
    extractors = {name: make() for name, make in EXTRACTORS.items()}
    if "article" in rows[0]:
        _compare_articles(rows, extractors)
    else:
        _compare_elements(rows, extractors, int(pages_per_site))


def _rows(pattern: str) -> Iterator[dict[str, Any]]:
    for path in sorted(glob(pattern)):
        with gzip.open(path) as file:
            yield from map(json.loads, file)


def _compare_articles(rows: Sequence[dict[str, Any]], extractors: Mapping[str, Extractor]) -> None:
    counts: dict[str, list[np.ndarray]] = defaultdict(list)
    empty, seconds = 0, 0.0
    for row in rows:
        text = parse_page(row["html"], profile="all").text
        extracts = {name: extract(row["html"]) for name, extract in extractors.items()}
        begin = time.process_time()
        aligned = Text(text)
        spans = {name: aligned.align_extract(extract) for name, extract in extracts.items()}
        seconds += time.process_time() - begin
        empty += sum(
            bool(extract.strip()) and not spans[name] for name, extract in extracts.items()
        )
        texts = {"all": text} | {f"{name} alone": extract for name, extract in extracts.items()}
        line = json.dumps({CONTENT_SPANS: spans}).encode()
        for content in (*extractors, "union", "intersection"):
            texts[content] = KeptText(text, read_content_spans(line, content)).text
        for name, kept in texts.items():
            counts[name].append(_shingle_counts(kept, row["article"]))
    print(f"| {len(rows)} pages | precision | recall | F1 | 95% interval |\n|---|---|---|---|---|")
    for name, of_pages in counts.items():
        precision, recall, f1 = _ratios(np.sum(of_pages, axis=0))
        low, high = _interval(np.array(of_pages))
        print(f"| {name} | {precision:.4f} | {recall:.4f} | {f1:.4f} | {low:.3f} to {high:.3f} |")
    print(f"\nextracts without spans: {empty}")
    print(f"alignment: {1000 * seconds / len(rows):.2f} ms of CPU per page")


def _shingle_counts(found: str, truth: str) -> np.ndarray:
    """Runs of words that are right, wrong, and missing, divided by their sum."""
    bags = []
    for text in (found, truth):
        words = _WORD.findall(text)
        runs = [words[start : start + _SHINGLE] for start in range(len(words) - _SHINGLE + 1)]
        bags.append(Counter(map(tuple, runs or [words])))
    right = (bags[0] & bags[1]).total()
    sums = np.array([right, bags[0].total() - right, bags[1].total() - right], np.float64)
    return sums / sums.sum()


def _ratios(counts: np.ndarray) -> tuple[float, float, float]:
    """Precision, recall and F1."""
    right, wrong, missing = counts
    return (
        right / (right + wrong),
        right / (right + missing),
        2 * right / (2 * right + wrong + missing),
    )


def _interval(counts: np.ndarray) -> tuple[float, float]:
    """The bootstrap interval of F1 over pages."""
    rng = np.random.default_rng(0)
    samples = rng.integers(len(counts), size=(_RESAMPLES, len(counts)))
    scores = [_ratios(counts[sample].sum(axis=0))[2] for sample in samples]
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(low), float(high)


def _compare_elements(
    rows: Sequence[dict[str, Any]], extractors: Mapping[str, Extractor], pages_per_site: int
) -> None:
    scores: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for site, pages in _sample(rows, pages_per_site).items():
        for html in pages:
            page = parse_page(html, profile="all")
            truth = _truth(page, TEMPLATES[site])
            if truth is None or not truth.any():
                continue
            text = Text(page.text)
            found = {
                name: text.align_extract(extract(html)) for name, extract in extractors.items()
            }
            found["all"] = [(0, len(page.text))]
            found["published"] = text.align_extract(parse_page(html).text)
            masks = {name: _mask(page.text, spans) for name, spans in found.items()}
            masks["union"] = masks["resiliparse"] | masks["trafilatura"]
            masks["intersection"] = masks["resiliparse"] & masks["trafilatura"]
            for name, mask in masks.items():
                scores[site, name].append(_scores(mask, truth))
    _print(scores)


def _sample(rows: Iterable[dict[str, Any]], count: int) -> dict[str, list[str]]:
    """Pages of each site, in an order that depends only on their addresses."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in rows:
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
    if len(sys.argv) not in (2, 3) or sys.argv[1] in ("-h", "--help"):
        sys.exit("usage: python experiments/content_f1.py 'pages/*.jsonl.gz' [PAGES_PER_SITE]")
    sys.exit(run_and_report(lambda: main(*sys.argv[1:])))
