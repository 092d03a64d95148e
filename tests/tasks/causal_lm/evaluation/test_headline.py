"""The sentences of an evaluation: no difference without its strongest control."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from bsmeta.tasks.causal_lm.evaluation.arms import AGAINST, Arm, Comparison
from bsmeta.tasks.causal_lm.evaluation.headline import make_headline
from bsmeta.tasks.causal_lm.evaluation.report import print_report, write_report
from bsmeta.tasks.causal_lm.evaluation.results import (
    ModelReport,
    Report,
    Row,
    compute_paired_metrics,
)

LN2 = math.log(2)
OWN = Arm(("url",))
BYTES = 100.0
"""Of each document."""


def model(own: Sequence[float], controls: Mapping[str, Sequence[float]]) -> ModelReport:
    """A model by its bits per byte for each document: 2.0 without metadata, as given with it."""
    text = [2.0] * len(own)
    pairs = {("all", "all"): (text, own)}
    for name, bits in controls.items():
        pairs[name, f"{name}/all"] = (text, bits)
        pairs[AGAINST + name, f"{AGAINST}{name}/all"] = (bits, own)

    sums = np.array(
        [
            [
                [BYTES, 20, BYTES * before * LN2, BYTES * after * LN2, 20]
                for before, after in zip(*pair, strict=True)
            ]
            for pair in pairs.values()
        ]
    )
    metrics = compute_paired_metrics(sums, resamples=1_000, seed=1)
    rows = [
        Row(
            Comparison(name, group, Arm(), OWN),
            row_metrics,
            text_bytes=int(BYTES) * len(own),
            positions={0: row_metrics},
            contexts={0: row_metrics},
        )
        for (group, name), row_metrics in zip(pairs, metrics, strict=True)
    ]
    data = {"documents": len(own), "file": "held-out", "left_out": {}, "max_seq_len": 64}
    return ModelReport("runs/a", "runs/a/model", data, rows, [], [], {})


LOW, HIGH = [1.98, 1.99] * 20, [1.99, 2.0] * 20
"""Two models that save .015 and .005 bits per byte, with an interval of about .0015."""


def test_content_that_saves_bits() -> None:
    sentence = make_headline(model(LOW, {"matched": HIGH, "separator": [2.03] * 40}))
    assert sentence == (
        "With metadata (all together) the model needs 1.9850 bits per byte of text, without it "
        "2.0000: 0.0150 (0.75%) fewer (95% interval of the difference: -0.0165 to -0.0135, over 40 "
        "documents). Its strongest control (wrong, same length) changes the bits per byte by "
        "-0.0050; compared with it, the content of the metadata saves bits (-0.0100, -0.0100 to "
        "-0.0100)."
    )


def test_the_url_of_another_page_gains_as_much() -> None:
    other = [bits + (0.0004 if number % 4 else -0.0008) for number, bits in enumerate(LOW)]
    sentence = make_headline(model(LOW, {"shuffled": other, "form": [2.1] * 40}))
    assert sentence.endswith(
        " Its strongest control (shuffled) changes the bits per byte by -0.0149, no different "
        "from the metadata itself (-0.0001, -0.0002 to +0.0001): form, not content."
    )


def test_a_control_that_is_better() -> None:
    sentence = make_headline(model(HIGH, {"separator": LOW}))
    assert sentence.endswith(
        " Its strongest control (separator alone) changes the bits per byte by -0.0150, which is "
        "better than the metadata itself (+0.0100, +0.0100 to +0.0100): not content."
    )


def test_neither_has_an_effect() -> None:
    around, mirrored = [1.99, 2.01] * 20, [2.01, 1.99] * 20
    sentence = make_headline(model(around, {"matched": mirrored}))
    assert "which includes no difference). Its strongest control (wrong, same length)" in sentence
    assert "; compared with it, no effect of the content shows (" in sentence
    assert "form, not content" not in sentence


def test_without_controls_and_without_an_interval() -> None:
    assert make_headline(model(LOW, {})).endswith(
        " No control was evaluated, so this does not tell content from form "
        "(controls=[matched, form, separator])."
    )
    alone = make_headline(model([1.9], {"matched": [1.95]}))
    assert "over one document, so there is no interval" in alone
    assert alone.endswith("; one document does not tell content from form.")


def test_the_sentence_is_in_every_form_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated = model(LOW, {"matched": LOW, "separator": HIGH})
    report = Report({"bootstrap_resamples": 1_000, "seed": 1, "windows": "sliding"}, [evaluated])
    files = write_report(report, tmp_path, None)
    print_report(report, files)

    words = "Its strongest control (wrong, same length) changes the bits per byte by -0.0150"

    printed = " ".join(capsys.readouterr().out.split())
    assert words in printed
    assert words in (tmp_path / "evaluation.md").read_text()
    assert words in (tmp_path / "report.html").read_text()
    (answer,) = json.loads((tmp_path / "evaluation.json").read_text())["answers"]
    assert answer == make_headline(evaluated)
