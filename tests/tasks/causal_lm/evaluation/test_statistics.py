"""Which bytes of two readings count, and for how much; the metrics of their sums."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.text.characters import utf8_lengths
from bsmeta.report.inference import Interval, bootstrap
from bsmeta.tasks.causal_lm.evaluation.arms import Arm, Comparison
from bsmeta.tasks.causal_lm.evaluation.headline import make_headline
from bsmeta.tasks.causal_lm.evaluation.readings import Reading, sum_paired
from bsmeta.tasks.causal_lm.evaluation.results import (
    ModelReport,
    Row,
    compute_paired_metrics,
    sign_test,
)

NAN = math.nan
WHOLE = np.array([0])


def reading(*tokens: tuple[int, int, float]) -> Reading:
    starts, ends, nats = zip(*tokens, strict=True)
    return Reading(np.array(starts), np.array(ends), np.array(nats), np.zeros(len(nats), int))


def by_position(*arguments: Any) -> list[list[float]]:
    """What `sum_paired` finds by position, without the tokens of the second reading."""
    return sum_paired(*arguments)[0, :, :4].tolist()


def test_bytes_of_characters() -> None:
    assert utf8_lengths("aé€😀").tolist() == [1, 2, 3, 4]


def test_segments_lie_between_common_boundaries() -> None:
    # without: |ab|cd|ef|, with: |abc|d|ef|; common boundaries at 0, 4, 6
    without = reading((0, 2, NAN), (2, 4, 1.0), (4, 6, 2.0))
    with_metadata = reading((0, 3, 0.5), (3, 4, 0.5), (4, 6, 1.5))
    sums = by_position(without, with_metadata, "abcdef", WHOLE)
    assert sums == [[2, 1, 2.0, 1.5]]  # "ef": 2 bytes, 1 token


def test_a_segment_split_differently_counts_as_a_whole() -> None:
    without = reading((0, 1, 1.0), (1, 3, 2.0))
    with_metadata = reading((0, 2, 0.25), (2, 3, 0.5))
    assert by_position(without, with_metadata, "a€b", WHOLE) == [[5, 2, 3.0, 0.75]]


def test_characters_that_one_reading_lacks_do_not_count() -> None:
    without = reading((0, 2, 1.0), (2, 3, 1.0))
    with_metadata = reading((2, 3, 0.5))  # its window begins later
    assert by_position(without, with_metadata, "abc", WHOLE) == [[1, 1, 1.0, 0.5]]


def test_tokens_that_share_a_character_stay_together() -> None:
    # one four-byte character in two tokens, the second of them unscored
    without = reading((0, 1, 1.0), (0, 1, 1.0), (1, 2, 1.0))
    with_metadata = reading((0, 1, 1.0), (0, 1, NAN), (1, 2, 0.0))
    assert by_position(without, with_metadata, "😀b", WHOLE) == [[1, 1, 1.0, 0.0]]


def test_bins_go_by_the_byte_at_which_a_segment_begins() -> None:
    both = reading((0, 1, 1.0), (1, 3, 2.0), (3, 4, 4.0))
    sums = by_position(both, both, "é€bc", np.array([0, 2, 6]))
    assert sums == [[2, 1, 1.0, 1.0], [4, 1, 2.0, 2.0], [1, 1, 4.0, 4.0]]


def test_context_is_the_text_that_the_window_shows_before() -> None:
    shown = reading((0, 1, 1.0), (1, 3, 2.0), (3, 4, 4.0))
    shown.shown_from[2] = 1  # the window of the last token begins with the second
    by_document, by_context = sum_paired(shown, shown, "é€bc", np.array([0, 2, 6]))
    assert by_document.tolist() == [[2, 1, 1.0, 1.0, 1], [4, 1, 2.0, 2.0, 1], [1, 1, 4.0, 4.0, 1]]
    # "c" begins at byte 6, four bytes into its window
    assert by_context.tolist() == [[2, 1, 1.0, 1.0, 1], [5, 2, 6.0, 6.0, 2], [0, 0, 0, 0, 0]]


def test_an_empty_text_has_no_bytes() -> None:
    nowhere = np.zeros(0, int)
    empty = Reading(nowhere, nowhere, np.zeros(0), nowhere)
    assert by_position(empty, empty, "", WHOLE) == [[0, 0, 0, 0]]


@st.composite
def tokenizations(draw: st.DrawFn, size: int) -> Reading:
    inner = draw(st.sets(st.integers(1, max(size - 1, 1)), max_size=size))
    marks = sorted({0, size} | {mark for mark in inner if mark < size})
    spans = list(itertools.pairwise(marks))
    nats = draw(
        st.lists(st.sampled_from([NAN, 0.5, 1.0, 3.0]), min_size=len(spans), max_size=len(spans))
    )
    return reading(*((s, e, n) for (s, e), n in zip(spans, nats, strict=True)))


@given(st.data(), st.text(alphabet="aé€😀", min_size=1, max_size=20))
def test_agrees_with_a_search_for_each_segment(data: st.DataObject, text: str) -> None:
    first = data.draw(tokenizations(len(text)))
    second = data.draw(tokenizations(len(text)))
    edges = np.array([0, 3, 9])
    expected = np.zeros((3, 4))
    common = sorted(({0, *first.ends.tolist()}) & ({0, *second.ends.tolist()}))
    for start, end in itertools.pairwise(common):
        inside = [
            [n for s, n in zip(r.starts, r.nats, strict=True) if start <= s < end]
            for r in (first, second)
        ]
        if any(math.isnan(value) for part in inside for value in part):
            continue
        offset = len(text[:start].encode())
        row = expected[sum(offset >= edge for edge in edges) - 1]
        row += [len(text[start:end].encode()), len(inside[0]), sum(inside[0]), sum(inside[1])]
    found = sum_paired(first, second, text, edges)
    np.testing.assert_allclose(found[0, :, :4], expected)
    np.testing.assert_allclose(found[1], found[0])  # all is seen from the beginning


LN2 = math.log(2)


def test_figures_are_weighted_by_bytes() -> None:
    sums = np.array(
        [
            [10.0, 2.0, 20 * LN2, 10 * LN2, 2.0],  # 2 bits a byte, then 1
            [30.0, 8.0, 30 * LN2, 30 * LN2, 8.0],  # 1 bit a byte, both times
            [0.0, 0.0, 0.0, 0.0, 0.0],  # nothing to compare
        ]
    )
    metrics, nothing = compute_paired_metrics(np.stack([sums, 0 * sums]), resamples=100, seed=1)
    assert nothing is None
    assert metrics is not None
    assert metrics.documents == 2
    assert metrics.bytes == 40
    assert metrics.tokens == 10
    assert metrics.bits_per_byte_without == pytest.approx(50 / 40)
    assert metrics.bits_per_byte_with == pytest.approx(40 / 40)
    assert metrics.difference == pytest.approx(-10 / 40)
    assert metrics.mean_document_difference == pytest.approx(-0.5)
    assert metrics.perplexity_without == pytest.approx(2 ** (50 / 10))
    assert metrics.perplexity_with == pytest.approx(2 ** (40 / 10))
    assert (metrics.documents_better, metrics.documents_worse) == (1, 0)


def test_sign_test_is_the_exact_binomial() -> None:
    assert sign_test(0, 0) == 1.0
    assert sign_test(5, 5) == 1.0
    assert sign_test(10, 0) == pytest.approx(2 / 2**10)
    assert sign_test(1, 7) == pytest.approx(2 * (1 + 8) / 2**8)
    assert sign_test(0, 40_000) == 0.0


@pytest.mark.parametrize(
    ("documents", "note"),
    [
        (1, ""),
        (4, " 4 documents are few to resample: 95% intervals over them are rough, and usually too "
            "narrow."),
        (19, " 19 documents are few to resample: 95% intervals over them are rough, and usually "
             "too narrow."),
        (20, ""),
    ],
)  # fmt: skip
def test_an_interval_over_few_documents_is_called_rough(documents: int, note: str) -> None:
    sums = np.array([[[10.0, 2.0, 20 * LN2, 10 * LN2, 2.0]] * documents])
    (metrics,) = compute_paired_metrics(sums, resamples=100, seed=1)
    row = Row(Comparison("all", "all", Arm(), Arm(("url",))), metrics)
    sentence = make_headline(ModelReport("a", "a", {}, [row], [], [], {}))
    assert sentence.endswith(f"separator]).{note}")
    assert ("rough" in sentence) == bool(note)


def test_one_document_has_no_interval() -> None:
    sums = np.array([[[10.0, 2.0, 20 * LN2, 10 * LN2, 2.0]]])
    (metrics,) = compute_paired_metrics(sums, resamples=100, seed=1, family=[0])
    assert metrics is not None
    assert metrics.difference == pytest.approx(-1.0)
    assert metrics.relative == pytest.approx(-0.5)
    assert (metrics.difference_low, metrics.difference_high) == (None, None)
    assert (metrics.simultaneous_low, metrics.simultaneous_high) == (None, None)
    assert (metrics.mean_document_difference_low, metrics.sign_test_p_holm) == (None, 1.0)


def test_a_family_is_corrected_and_the_rest_is_not() -> None:
    generator = np.random.default_rng(1)
    sums = np.ones((3, 50, 5))
    sums[:, :, 3] += generator.normal(size=(3, 50))
    first, second, outside = compute_paired_metrics(sums, resamples=500, seed=0, family=[0, 1])
    assert first is not None
    assert second is not None
    assert outside is not None
    bits = (sums[0, :, 3] - 1) / LN2
    # two at 97.5% each, 49 degrees: 2.3124 standard errors
    half = first.simultaneous_high - first.difference
    assert half == pytest.approx(2.3124 * bits.std() / math.sqrt(50), rel=0.1)
    for one in (first, second):
        assert one.simultaneous_low < one.difference_low < one.difference_high
        assert one.simultaneous_high > one.difference_high
    assert outside.simultaneous_low is None
    assert outside.sign_test_p_holm is None


def test_bootstrap_is_reproducible_and_covers_the_mean() -> None:
    generator = np.random.default_rng(0)
    bits = generator.normal(-3.0, 4.0, size=400)
    sizes = np.full(400, 2.0)
    (ratio,) = bootstrap(bits[None], sizes[None], resamples=10_000, seed=7)
    assert bootstrap(bits[None], sizes[None], resamples=10_000, seed=7) == [ratio]
    # of a mean: the normal interval, mean ± 1.96 standard errors
    center, error = bits.mean() / 2, bits.std() / 2 / math.sqrt(400)
    assert ratio.low == pytest.approx(center - 1.96 * error, abs=0.2 * error)
    assert ratio.high == pytest.approx(center + 1.96 * error, abs=0.2 * error)


def test_bootstrap_resamples_whole_documents() -> None:
    # two documents: both the first, one of each, both the second (1/4, 1/2, 1/4)
    (ratio,) = bootstrap(np.array([[0.0, 6.0]]), np.array([[1.0, 2.0]]), resamples=400, seed=0)
    assert (ratio.low, ratio.high) == (0.0, 3.0)


def test_documents_that_do_not_take_part_leave_the_others_alone() -> None:
    values, weights = np.array([[1.0, 0.0, 0.0, 0.0]]), np.array([[2.0, 0.0, 0.0, 0.0]])
    assert bootstrap(values, weights, resamples=50, seed=0) == [Interval(0.5, 0.5)]
    assert bootstrap(values * 0, weights * 0, resamples=50, seed=0) == [Interval(0.0, 0.0)]


def test_bootstrap_draws_in_parts_when_documents_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    values, weights = np.arange(50.0)[None], np.arange(1.0, 51.0)[None]
    whole = bootstrap(values, weights, resamples=64, seed=3)
    monkeypatch.setattr("bsmeta.report.inference.DRAWS_AT_ONCE", 50 * 10)
    assert bootstrap(values, weights, resamples=64, seed=3) == whole
