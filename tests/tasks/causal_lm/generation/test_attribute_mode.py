"""`mode=attribute` from the configuration to the report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.files import UnsafeNameError
from bsmeta.tasks.causal_lm.generation.attribute_mode import locate_report
from tests.core.hostile_names import HOSTILE_NAMES
from tests.tasks.causal_lm.evaluation.conftest import documents, train_on, write_shard


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
    report = json.loads((run_folder / "evaluation/attribution-url.json").read_text())
    assert [row["label"] for row in report["candidates"]] == ["site0.org", "site1.org", "site2.org"]
    assert report["metrics"]["documents"] == 9
    assert report["left_out"] == {}
    assert report["training_overlap"] is None  # the run's own held-out file
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


def test_each_held_out_file_has_a_report_of_its_own(
    generate: Callable[..., int], run_folder: Path, tmp_path: Path
) -> None:
    arguments = ("mode=attribute", "bootstrap_resamples=50")
    assert generate(*arguments) == 0
    for name, lines in {"x/dev.jsonl.gz": documents()[:6], "y/dev.jsonl.gz": documents()}.items():
        (tmp_path / name).parent.mkdir()
        shard = write_shard(tmp_path / name, lines)
        assert generate(*arguments, f"validation_file={shard}") == 0

    numbers_of_documents = {
        file.parent.name: json.loads(file.read_text())["metrics"]["documents"]
        for file in run_folder.glob("*/attribution-url.json")
    }
    assert numbers_of_documents == {"evaluation": 9, "evaluation-dev": 5, "evaluation-dev-y": 9}
    assert not (run_folder / "attribution-url.json").exists()


def test_documents_of_training_shards_are_refused_or_left_out(
    generate: Callable[..., int],
    run_folder: Path,
    tmp_path: Path,
    data_config: DataConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = documents()
    shard = write_shard(tmp_path / "a.jsonl.gz", lines[6:8])
    train_on(run_folder, data_config, shard)
    other = write_shard(tmp_path / "other.jsonl.gz", lines)
    arguments = ("mode=attribute", "bootstrap_resamples=50", f"validation_file={other}")
    assert generate(*arguments) == 2
    assert (
        f"validation_file={other}: 2 of 11 documents are in training shards of the run of "
        f"checkpoint={run_folder}; the first: line 7 has the text of {shard}, line 1"
    ) in capsys.readouterr().err

    assert generate(*arguments, "on_training_overlap=drop") == 0
    printed = capsys.readouterr().out
    assert "(3 candidates, uniform prior); left out: 2 in_training_shards\n" in printed
    assert "Compared with 1 of 1 training shards.\n" in printed
    report = json.loads((run_folder / "evaluation-other/attribution-url.json").read_text())
    assert report["left_out"] == {"in_training_shards": 2}
    assert report["training_overlap"]["compared"] == 1
    assert report["metrics"]["documents"] == 7

    assert generate(*arguments, "overlap_check_gb=0") == 0
    assert (
        "0 of 1 training shards; the others: 1 beyond overlap_check_gb" in capsys.readouterr().out
    )
    assert generate(*arguments, "prompt='Some text'") == 0  # only the labels are read


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
        (["out_dir=/dev/null/x"], "out_dir: /dev/null/x is below /dev/null, which is a file"),
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
