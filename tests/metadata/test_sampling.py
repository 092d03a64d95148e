"""Which types a document is given: the rates are those of the configuration."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from bsmeta.metadata.sampling import TypeSampler
from tests.metadata.helpers import config, document, global_record, html

KEYS = ["html", "url", "title"]
DRAWS = 4000


def count_draws(keys: list[str] = KEYS, **changes: Any) -> Counter[tuple[str, ...]]:
    """Counts each choice of types for a document that has html, url and title."""
    settings = config(keys, **changes)
    records = (global_record("title", "T"), global_record("url", "u"), html("b", 0, 1, 0, 0))
    read = document(settings, "Text.", *records)
    rng = random.Random(7)
    return Counter(TypeSampler(settings).draw(read, rng) for _ in range(DRAWS))


def compute_share(counts: Counter[tuple[str, ...]], key: str) -> float:
    return sum(count for types, count in counts.items() if key in types) / counts.total()


def test_by_default_every_present_type_is_drawn_in_the_order_of_the_list() -> None:
    assert count_draws(["title", "length", "url"]) == Counter({("title", "url"): DRAWS})


def test_metadata_probability_is_the_share_of_documents_with_metadata() -> None:
    counts = count_draws(metadata_probability=0.3)
    assert set(counts) == {(), tuple(KEYS)}
    assert counts[tuple(KEYS)] / DRAWS == pytest.approx(0.3, abs=0.03)


def test_random_sampling_is_uniform_in_the_number_of_types() -> None:
    counts = count_draws(random_sample_metadata=True)
    sizes = Counter[int]()
    for types, count in counts.items():
        sizes[len(types)] += count
    assert {size: round(count / DRAWS, 1) for size, count in sizes.items()} == {
        1: 0.3,
        2: 0.3,
        3: 0.3,
    }
    assert set(counts) == {
        ("html",),
        ("url",),
        ("title",),
        ("html", "url"),
        ("html", "title"),
        ("url", "title"),
        ("html", "url", "title"),
    }


def test_weights_decide_the_draw() -> None:
    weights = {"html": 6.0, "url": 3.0, "title": 1.0}
    counts = count_draws(random_sample_metadata=True, random_sample_metadata_weights=weights)
    singles = sum(count for types, count in counts.items() if len(types) == 1)
    assert counts[("html",)] / singles == pytest.approx(0.6, abs=0.05)
    assert counts[("title",)] / singles == pytest.approx(0.1, abs=0.03)
    # Of two draws without replacement, url misses out if the two are html and title.
    pairs = sum(count for types, count in counts.items() if len(types) == 2)
    missing_url = 0.6 * (0.1 / 0.4) + 0.1 * (0.6 / 0.9)
    assert counts[("html", "title")] / pairs == pytest.approx(missing_url, abs=0.04)


def test_a_weight_of_zero_is_never_drawn_and_columns_name_their_keys() -> None:
    weights = {"html": 0.0, "website_desc": 0.0}
    settings = config(
        ["html", "website_description", "url"],
        random_sample_metadata=True,
        random_sample_metadata_weights=weights,
    )
    records = (
        global_record("website_description", "D"),
        global_record("url", "u"),
        html("b", 0, 1, 0, 0),
    )
    read = document(settings, "Text.", *records)
    rng = random.Random(1)
    assert {TypeSampler(settings).draw(read, rng) for _ in range(200)} == {("url",)}


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_html_is_drawn_at_its_overall_sample_rate(rate: float) -> None:
    counts = count_draws(html_overall_sample_rate=rate)
    assert compute_share(counts, "html") == pytest.approx(rate, abs=0.03)
    assert compute_share(counts, "url") == 1.0


def test_each_type_is_dropped_at_its_own_rate() -> None:
    counts = count_draws(metadata_dropout={"url": 0.1, "html": 0.5}, html_overall_sample_rate=0.5)
    assert compute_share(counts, "url") == pytest.approx(0.9, abs=0.03)
    assert compute_share(counts, "html") == pytest.approx(0.25, abs=0.03)
    assert compute_share(counts, "title") == 1.0


def test_a_document_without_metadata_draws_no_types() -> None:
    settings = config(KEYS, random_sample_metadata=True)
    assert TypeSampler(settings).draw(document(settings, "Text."), random.Random(0)) == ()
