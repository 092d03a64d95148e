"""The sentences of an evaluation: no difference without its strongest control."""

from __future__ import annotations

import numpy as np
import pytest

from bsmeta.tasks.causal_lm.evaluation.arms import Arm, Comparison
from bsmeta.tasks.causal_lm.evaluation.headline import make_headline
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport, Row, compute_paired_metrics
from bsmeta.tasks.causal_lm.evaluation.tables import MAIN_COLUMNS, make_comparison_table
from tests.tasks.causal_lm.evaluation.helpers import (
    HIGH,
    LN2,
    LOW,
    controlled_model,
    make_evaluated,
)


def test_the_sentence_credits_content_that_saves_bits() -> None:
    sentence = make_headline(controlled_model(LOW, {"matched": HIGH, "separator": [2.03] * 40}))
    assert sentence == (
        "With metadata (all together) the model needs 1.9850 bits per byte of text, without it "
        "2.0000: 0.0150 (0.75%) fewer (95% interval of the difference: -0.0165 to -0.0135, over 40 "
        "documents). Its strongest control (wrong, same length) changes the bits per byte by "
        "-0.0050; compared with it, the content of the metadata saves bits (-0.0100, -0.0100 to "
        "-0.0100)."
    )


def test_the_sentence_credits_form_if_shuffled_values_gain_as_much() -> None:
    other = [bits + (0.0004 if number % 4 else -0.0008) for number, bits in enumerate(LOW)]
    sentence = make_headline(controlled_model(LOW, {"shuffled": other, "form": [2.1] * 40}))
    assert sentence.endswith(
        " Its strongest control (shuffled) changes the bits per byte by -0.0149, no different "
        "from the metadata itself (-0.0001, -0.0002 to +0.0001): form, not content."
    )


def test_the_sentence_denies_content_if_a_control_is_better() -> None:
    sentence = make_headline(controlled_model(HIGH, {"separator": LOW}))
    assert sentence.endswith(
        " Its strongest control (separator alone) changes the bits per byte by -0.0150, which is "
        "better than the metadata itself (+0.0100, +0.0100 to +0.0100): not content."
    )


def test_the_sentence_reports_no_effect_of_form_and_content() -> None:
    around, mirrored = [1.99, 2.01] * 20, [2.01, 1.99] * 20
    sentence = make_headline(controlled_model(around, {"matched": mirrored}))
    assert "which includes no difference). Its strongest control (wrong, same length)" in sentence
    assert "; compared with it, no effect of the content shows (" in sentence
    assert "form, not content" not in sentence


def test_the_sentence_names_missing_controls_and_intervals() -> None:
    assert make_headline(controlled_model(LOW, {})).endswith(
        " No control was evaluated, so this does not tell content from form "
        "(controls=[matched, form, separator])."
    )
    alone = make_headline(controlled_model([1.9], {"matched": [1.95]}))
    assert "over one document, so there is no interval" in alone
    assert alone.endswith("; one document does not tell content from form.")


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


def test_the_sentence_of_an_evaluation_over_hosts_names_them() -> None:
    report = make_evaluated(by_host=True)
    sentences = make_headline(report)
    assert "-2.7412 to +2.3412, over 60 documents of 2 hosts (jackknife)" in sentences
    assert "Over the 2 hosts" not in sentences
    assert "Student's, over hosts (jackknife)" in make_comparison_table(report, MAIN_COLUMNS).note
