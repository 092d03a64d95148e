"""The cloze task of the sample, and the harness with and without conditional prompts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import compose
from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.studies.config import DownstreamConfig
from bsmeta.studies.downstream import (
    CLOZE,
    Score,
    filled,
    load_scores,
    missing_harness,
    model_table,
    save_scores,
    score_model,
    standard_error,
    study_table,
    write_cloze,
)
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.conftest import REPOSITORY

SAMPLE = REPOSITORY / "examples/webdocs/c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cloze")
    write_cloze(DataConfig(validation_file=str(SAMPLE)), folder)
    return folder


def questions(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]


def test_each_question_has_one_right_continuation_of_a_page(task: Path) -> None:
    found = questions(task)
    assert len(found) > 40
    assert {one["answer"] for one in found} == {0, 1, 2, 3}
    for one in found:
        assert len(set(one["choices"])) == 4
        assert 300 <= len(one["beginning"]) < 400
        assert all(choice.startswith(" ") and len(choice) >= 120 for choice in one["choices"])
        assert one["url"].startswith("https://")
    by_right = {one["choices"][one["answer"]]: one for one in found}
    assert len(by_right) > 40  # so no page lends its continuation to most others


def test_the_task_is_the_same_each_time_and_names_its_questions(task: Path, tmp_path: Path) -> None:
    path = write_cloze(DataConfig(validation_file=str(SAMPLE)), tmp_path)
    assert questions(tmp_path) == questions(task)
    settings = json.loads(path.read_text())
    assert settings["dataset_kwargs"]["data_files"]["test"] == str(tmp_path / "questions.jsonl")


def test_too_few_pages_are_refused(tmp_path: Path) -> None:
    shard = tmp_path / "test.jsonl"
    shard.write_text(json.dumps({"text": "a few words " * 60}) + "\n")
    with pytest.raises(DataError, match="1 pages of at least 420 characters; expected 4 or more"):
        write_cloze(DataConfig(validation_file=str(shard)), tmp_path / "task")


def test_a_prompt_is_filled_from_the_question() -> None:
    assert filled("url: {url} ||| ", {"url": "a.b", "text": "x"}) == "url: a.b ||| "
    with pytest.raises(ConfigurationError, match="names host; expected fields of the task's"):
        filled("{host}", {"url": "a.b"})


def test_the_table_of_a_model_has_paired_differences(tmp_path: Path) -> None:
    scores = [
        Score("cloze", 0, "", [1.0, 0.0, 0.0, 1.0], [2.0, 2.5, 2.0, 2.5]),
        Score("cloze", 0, "url: {url}", [1.0, 1.0, 0.0, 1.0], [1.9, 2.5, 1.9, 2.5]),
        Score("cloze", 5, "", [0.0, 0.0, 0.0, 1.0]),
    ]
    save_scores(scores, tmp_path / "a/scores.json")
    assert load_scores(tmp_path / "a/scores.json") == scores
    assert model_table("demo", scores).texts() == [
        ["cloze", "0", "4", "accuracy", "0.500 ± 0.289", "0.750 ± 0.250", "+0.250 ± 0.250"],
        ["cloze", "0", "4", "bits per byte", "2.250 ± 0.144", "2.200 ± 0.173", "-0.050 ± 0.029"],
        ["cloze", "5", "4", "accuracy", "0.250 ± 0.250", "–", "–"],
    ]


def test_the_table_of_a_study_pairs_seeds_and_questions() -> None:
    generator = np.random.default_rng(0)

    def answers(rate: float, easy: np.ndarray) -> list[float]:
        return (easy < rate).astype(float).tolist()

    def of_seed(plain: float, prompted: float, easy: np.ndarray) -> list[Score]:
        return [
            Score("cloze", 0, "", answers(plain, easy)),
            Score("cloze", 0, "u", answers(prompted, easy)),
        ]

    easy = [generator.random(400) for _ in range(3)]
    arms = {
        "none": [of_seed(0.4, 0.4, one)[:1] for one in easy],
        "url": [of_seed(0.5, 0.7, one) for one in easy],
    }
    labels = {"none": "text alone", "url": "URL"}
    rows = study_table(arms, labels, "none").texts()
    assert [row[:4] for row in rows] == [
        ["cloze", "0", "text alone", "no"],
        ["cloze", "0", "URL", "no"],
        ["cloze", "0", "URL", "yes"],
    ]
    assert float(rows[2][6].split()[0]) == pytest.approx(0.2, abs=0.03)
    assert float(rows[2][5].split()[0]) == pytest.approx(0.3, abs=0.03)
    assert rows[0][5:] == ["–", "–"]


@pytest.mark.slow
@pytest.mark.skipif(missing_harness() is not None, reason=str(missing_harness()))
def test_the_harness_answers_with_and_without_a_prompt(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    config = compose(CausalLMConfig, "demo", [f"out_dir={tmp_path}"])
    language_model = CausalLanguageModel(config)
    torch.manual_seed(0)
    model = language_model.build_model()
    language_model.export(model, model.state_dict(), tmp_path / "model")
    settings = DownstreamConfig(
        tasks=[CLOZE], include_path=str(task), shots=[0, 2], prompts={CLOZE: "url: {url} ||| "},
        limit=12,
    )  # fmt: skip
    scores = score_model(tmp_path / "model", settings, "cpu")
    assert [(one.shots, one.prompt) for one in scores] == [
        (0, ""), (0, "url: {url} ||| "), (2, ""), (2, "url: {url} ||| "),
    ]  # fmt: skip
    assert all(len(one.correct) == 12 and set(one.correct) <= {0.0, 1.0} for one in scores)
    assert all(len(one.bits) == 12 and 2 < min(one.bits) < max(one.bits) < 8 for one in scores)
    assert scores[0].bits != scores[1].bits  # the prompt was read
    with pytest.raises(ConfigurationError, match="no_such_task unknown"):
        score_model(
            tmp_path / "model", DownstreamConfig(tasks=["no_such_task"], include_path=str(task)),
            "cpu",
        )  # fmt: skip


def test_the_standard_error_is_that_of_a_mean() -> None:
    assert standard_error([1.0, 0.0, 1.0, 1.0]) == pytest.approx(math.sqrt(0.75 * 0.25 / 3))
    assert standard_error([1.0]) == 0
