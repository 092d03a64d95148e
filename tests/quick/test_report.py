"""The table and the sentence for known differences."""

from __future__ import annotations

import pytest

from bsmeta.quick.comparison import Result, collect_readings
from bsmeta.quick.report import make_result_table, summarize_result
from tests.quick.reports import make_reports


def make_result(documents: int = 40, spread: float = 0.01, **bits_per_byte: float) -> Result:
    reports = make_reports(bits_per_byte, hosts=["a"] * documents, spread=spread)
    result = collect_readings(*reports)
    assert result is not None
    return result


def test_every_reading_has_a_row() -> None:
    table = make_result_table(make_result(own=1.5, text=1.9, separator=1.7))
    cells = [[row[0], row[1], row[2], row[3], row[7]] for row in table.format_cells()]
    assert cells == [
        ["text alone", "text alone", "2.0000", "–", "-0.5000"],
        ["with metadata", "its metadata", "1.5000", "-0.5000", "–"],
        ["with metadata", "text alone", "1.9000", "-0.1000", "-0.4000"],
        ["with metadata", "wrong, same length", "2.0000", "+0.0000", "-0.5000"],
        ["with metadata", "junk words", "2.0000", "+0.0000", "-0.5000"],
        ["with metadata", "separator alone", "1.7000", "-0.3000", "-0.2000"],
    ]
    assert table.heads[5] == "documents better"
    assert table.note.endswith("Intervals are over documents of 1 known sites (jackknife).")


@pytest.mark.parametrize(
    ("bits_per_byte", "verdict"),
    [
        ({"own": 1.5}, "the content of the metadata saves bits (-0.5"),
        ({"own": 1.5, "form": 1.4}, "the metadata does worse: not its content (+0.1"),
        ({"own": 1.5, "form": 1.5}, "the metadata does no better: form, not content (+0.0"),
        ({}, "no effect of the content shows ("),
    ],
)
def test_the_sentence_distinguishes_content_from_form(
    bits_per_byte: dict[str, float], verdict: str
) -> None:
    sentence = summarize_result(make_result(**bits_per_byte), ["url", "title"], 200, 40)
    assert "compared with its strongest control (" in sentence
    assert verdict in sentence
    assert "both models have one seed" in sentence
    assert sentence.startswith("Trained and read with metadata (url, title), the model needs ")
    assert sentence.count(". ") == 0  # one sentence
    assert sentence.endswith("(bsmeta study).")


def test_the_sentence_states_a_clear_difference() -> None:
    result = make_result(own=1.5, separator=1.7)
    interval = result.main_difference.interval
    assert interval is not None
    gain = result.compare(result.with_metadata, result.controls["separator alone"]).interval
    assert gain is not None
    assert summarize_result(result, ["url"], 200, 40) == (
        "Trained and read with metadata (url), the model needs 1.5000 bits per byte of the 40 "
        "held-out pages, without it 2.0000: 0.5000 (25.00%) fewer (95% interval over 40 documents: "
        f"{interval.low:+.4f} to {interval.high:+.4f}); compared with its strongest control "
        "(separator alone), the content of the metadata saves bits (-0.2000, "
        f"{gain.low:+.4f} to {gain.high:+.4f}); both models have one seed, and another may differ "
        "by more than metadata does (reading text alone, these two differ by +0.0000); to "
        "show a difference of this size with a power of 80%, 2 "
        "held-out documents suffice, and it would take 5 seeds if it varies over seeds by half of "
        "its size (standard deviation), 10 if by all of it (bsmeta study)."
    )


def test_a_difference_also_present_without_metadata_may_be_chance() -> None:
    """The interval over pages excludes 0, and more pages would not help."""
    result = make_result(own=1.5, text=1.6)
    assert result.main_difference.excludes_zero
    sentence = summarize_result(result, ["url"], 200, 40)
    assert (
        "both models have one seed, and much of their difference (-0.4000) is already there where "
        "both read text alone: it may be chance, which the interval over held-out pages does not "
        "include; more pages do not show whether it is; with a power of 80%, it would take 5 seeds "
        "if it varies"
    ) in sentence
    assert "suffice" not in sentence

    sentence = summarize_result(make_result(own=1.5, text=1.8), ["url"], 200, 40)
    assert "another may differ by more than metadata does" in sentence
    assert "held-out documents suffice" in sentence


def test_a_small_difference_names_the_number_of_pages_needed() -> None:
    sentence = summarize_result(make_result(own=1.995, spread=0.05), ["url"], 200, 40)
    assert "which includes no difference" in sentence
    assert "held-out documents instead of 40 (about " in sentence
    assert "pages like these 200, 40 of which were held out)" in sentence


def test_few_pages_allow_no_conclusion() -> None:
    sentence = summarize_result(make_result(documents=6, own=1.5), ["url"], 30, 6)
    assert sentence.startswith(
        "No conclusion is possible: 6 held-out pages are too few (expected: at least 20). Trained "
    )
    single = summarize_result(make_result(documents=1, own=1.5), ["url"], 30, 1)
    assert "from one page, so there is no interval" in single
    assert "one page does not tell content from form" in single
