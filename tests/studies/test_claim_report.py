"""The words and tables of declared claims."""

from __future__ import annotations

from dataclasses import replace

from bsmeta.studies.claim_report import (
    answer_claims,
    format_sentences,
    make_claim_tables,
    make_declared_table,
)
from bsmeta.studies.config import ClaimConfig, StudyConfig
from bsmeta.studies.report import make_effect_table, make_exploratory_tables
from bsmeta.studies.results import compute_results


def test_a_report_has_the_sentences_and_tables_of_the_claims(kept: StudyConfig) -> None:
    results = compute_results(kept)
    words = format_sentences(results)
    assert len(words) == 3
    assert words[0].startswith("**Supported**: URL beats text alone: -0.4990 bits per byte")
    assert words[0].endswith("after correction for 3 claims.")
    # with metadata -0.25 more, and the control at half the tokens: at the same text tokens
    assert words[1].startswith("**Open**: URL beats its control: shuffled was trained on 2,000")
    assert words[2].startswith("**Supported**: the control beats text alone: -0.99")
    claims, declared, precision = make_claim_tables(results)
    assert answer_claims(results) == "3 claims are declared: 2 supported, 1 open."
    assert claims.format_cells()[0][5] == "supported"
    assert claims.format_cells()[1][1:] == ["–", "–", "–", "–", "open"]
    assert declared.format_cells()[0] == ["URL beats text alone", "0.1000", "0.0200, 0.0000", "72%",
                                "URL, without metadata", "text alone"]  # fmt: skip
    assert precision.format_cells()[1][1:] == ["–", "–", "–"]
    rows = make_effect_table(results).format_cells()  # the largest gain first
    assert [row[:2] for row in rows] == [
        ["shuffled", "without"], ["shuffled", "with"], ["URL", "with"], ["URL", "without"],
    ]  # fmt: skip
    assert rows[3][2].startswith("-0.4990 (")
    assert rows[3][4] == "above 0%"
    assert rows[0][4].startswith("50%")
    assert results.shared[1] == (
        "shuffled: the same initial weights; the same documents in 100% of the steps; 0.50 times "
        "the text tokens; 0.50 times the total tokens, 0.50 times the FLOPs, 0.50 times the steps."
    )
    assert results.shared[0].startswith(
        "URL: the same initial weights; the same documents in 100% of the steps; the same text "
        "tokens after every logged step; 1.00 times the total tokens"
    )


def test_without_claims_nothing_is_decided(kept: StudyConfig) -> None:
    results = compute_results(replace(kept, claims={}))
    assert format_sentences(results) == [
        "No claim was declared: nothing is tested, and everything below is exploratory."
    ]
    assert make_claim_tables(results) == []
    assert make_exploratory_tables(results)[0].title == "Bits per byte"


def test_declared_claims_are_listed_before_any_run(study: StudyConfig) -> None:
    saving = ClaimConfig(
        label="saves a tenth", arm="url", at=0.5, saves=0.1, bytes=[100], minus_bytes=[0, 100],
        smallest_difference=0.02,
    )  # fmt: skip
    (row,) = make_declared_table(replace(study, claims={"a": saving})).format_cells()
    assert row == [
        "saves a tenth",
        "0.0200",
        "–",
        "–",
        "URL, without metadata, after 50% of the text tokens, bytes from 100 on minus bytes 0 to "
        "99",
        "text alone, after 56% of the text tokens",
    ]
