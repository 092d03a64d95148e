"""`mode=attribute` from the configuration to the report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bsmeta.core.files import UnsafeNameError
from bsmeta.tasks.causal_lm.generation.attribute_mode import locate_report
from tests.core.hostile_names import HOSTILE_NAMES


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_report_is_written_to_its_folder(tmp_path: Path, name: str) -> None:
    with contextlib.suppress(UnsafeNameError):
        path = locate_report(tmp_path, name)
        assert path.name == f"attribution-{name}.json".rpartition("/")[2]
        assert path.resolve().is_relative_to(tmp_path)


@pytest.mark.parametrize("name", ["/../x", "../../x", "a\nb"])
def test_a_report_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafeNameError, match="^type="):
        locate_report(tmp_path, name)


def test_the_program_writes_the_report_and_prints_the_table(
    generate: Callable[..., int], run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate("mode=attribute", "bootstrap_resamples=50", "prior=empirical") == 0
    report = json.loads((run_folder / "attribution-url.json").read_text())
    assert [row["label"] for row in report["candidates"]] == ["site0.org", "site1.org", "site2.org"]
    assert report["metrics"]["documents"] == 9
    assert report["example_prefix"] == "url: https://site0.org/ |||"
    assert [row["document"] for row in report["documents"]][:2] == [
        "held-out.jsonl.gz:0",
        "held-out.jsonl.gz:1",
    ]
    printed = capsys.readouterr().out
    assert "url of 9 documents, inferred from their text (3 candidates, empirical prior)" in printed
    assert "always the majority" in printed
    out = run_folder / "of[url]"
    assert generate("mode=attribute", "bootstrap_resamples=50", f"out_dir='{out}'") == 0
    assert f"written to {out}/attribution-url.json\n" in capsys.readouterr().out
    code = generate("mode=attribute", "candidates=[a.org,b.org]", "prompt='Some text of b'")
    assert code == 0
    assert "p(value | text)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["type=html"], "type=html: expected a type with a value before the text"),
        (["type=site"], "type=site: the model was not trained with this type"),
        (["prior=flat"], 'found "flat", expected one of uniform, empirical'),
        (["windows=last"], 'found "last", expected one of first_piece, all_pieces'),
        (["candidates=[a.org]"], "expected at least two values of url"),
        (["candidates=[a.org,b.org]"], "no held-out document has one of the candidates"),
        (["candidates=[a.org,b.org]", "prompt=A"], "prompt='A': expected at least two tokens"),
        (["validation_file=none.gz"], "validation_file=none.gz does not exist"),
        (
            ["input=texts.jsonl", "compare=[{}]", "guidance=2"],
            "guidance, compare, input: no effect with mode=attribute; expected some of mode",
        ),
    ],
)
def test_wrong_requests_are_refused(
    arguments: list[str],
    message: str,
    generate: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert generate("mode=attribute", *arguments) == 2
    assert message in capsys.readouterr().err
