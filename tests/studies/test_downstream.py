"""Tasks on models: the harness, conditional prompts, models whose answers are known, tables."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.data import DataConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.studies import downstream
from bsmeta.studies.cloze import CLOZE, SITE, TITLE, WORD, read_pages, write_tasks
from bsmeta.studies.config import ArmConfig, DownstreamConfig, MeasureConfig, StudyConfig
from bsmeta.studies.downstream import (
    explain_missing_harness,
    fill_prompt,
    generate_tasks,
    make_conditioned_model,
    make_downstream_tables,
    make_model_table,
    make_study_table,
    score_choices,
    score_model,
    score_study,
)
from bsmeta.studies.runs import list_runs
from bsmeta.studies.task_scores import Score, find_scores
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.studies.bigram import followers, make_pages, write_model, write_pages
from tests.studies.test_cloze import SAMPLE, questions
from tests.tasks.causal_lm.evaluation.conftest import train_on, write_shard

needs_harness = pytest.mark.skipif(
    explain_missing_harness() is not None, reason=str(explain_missing_harness())
)


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.fixture(scope="module")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the demo with random weights."""
    folder = tmp_path_factory.mktemp("demo")
    language_model = CausalLanguageModel(
        compose_command_line(CausalLMConfig, "demo", [f"out_dir={folder}"])
    )
    torch.manual_seed(0)
    model = language_model.build_model()
    language_model.export(model, model.state_dict(), folder / "model")
    return folder / "model"


def test_a_prompt_is_filled_from_the_question() -> None:
    assert fill_prompt("url: {url} ||| ", {"url": "a.b", "text": "x"}) == "url: a.b ||| "
    with pytest.raises(ConfigurationError, match="names host; expected fields of the task's"):
        fill_prompt("{host}", {"url": "a.b"})


def test_the_table_of_a_model_has_paired_differences() -> None:
    scores = [
        Score("cloze", 0, "", [1.0, 0.0, 0.0, 1.0], [20.0, 25.0, 20.0, 25.0], [10] * 4),
        Score("cloze", 0, "url: {url}", [1.0, 1.0, 0.0, 1.0], [19.0, 25.0, 19.0, 25.0], [10] * 4),
        Score("cloze", 5, "", [0.0, 0.0, 0.0, 1.0]),
    ]
    assert make_model_table("demo", scores).format_cells() == [
        ["cloze", "0", "4", "accuracy", "0.500 ± 0.289", "0.750 ± 0.250", "+0.250 ± 0.250"],
        ["cloze", "0", "4", "bits per byte", "2.250 ± 0.144", "2.200 ± 0.173", "-0.050 ± 0.029"],
        ["cloze", "5", "4", "accuracy", "0.250 ± 0.250", "–", "–"],
    ]


def test_bits_per_byte_weight_answers_by_bytes_and_skip_lost_answers() -> None:
    """(10 + 60) / (10 + 30); the third answer has no countable bytes."""
    score = Score("cloze", 0, "", [1.0, 0.0, 1.0], [10.0, 60.0, 0.0], [10, 30, 0])
    table = make_model_table("demo", [score])
    assert table.format_cells()[1][4].startswith("1.750 ± ")
    assert "1 of cloze." in table.note


def test_the_table_of_a_study_pairs_seeds_and_questions() -> None:
    generator = np.random.default_rng(0)

    def answers(rate: float, difficulties: np.ndarray) -> list[float]:
        return (difficulties < rate).astype(float).tolist()

    def score_arm(plain: float, prompted: float, difficulties: np.ndarray) -> list[Score]:
        return [
            Score("cloze", 0, "", answers(plain, difficulties)),
            Score("cloze", 0, "u", answers(prompted, difficulties)),
        ]

    difficulties = [generator.random(400) for _ in range(3)]
    arms = {
        "none": [score_arm(0.4, 0.4, task)[:1] for task in difficulties],
        "url": [score_arm(0.5, 0.7, task) for task in difficulties],
    }
    labels = {"none": "text alone", "url": "URL"}
    rows = make_study_table(arms, labels, "none").format_cells()
    assert [row[:4] for row in rows] == [
        ["cloze", "0", "text alone", "no"],
        ["cloze", "0", "URL", "no"],
        ["cloze", "0", "URL", "yes"],
    ]
    assert float(rows[2][6].split()[0]) == pytest.approx(0.2, abs=0.03)
    assert float(rows[2][5].split()[0]) == pytest.approx(0.3, abs=0.03)
    assert rows[0][5:] == ["–", "–"]


def test_no_question_is_about_a_training_document(
    demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = tmp_path / "run"
    shutil.copytree(demo_model, run_folder / "model")
    (run_folder / "model" / "metadata.yaml").unlink()  # the configuration below is another run's
    (run_folder / "metrics.jsonl").write_text("")
    pages = [json.loads(line) for line in gzip.decompress(SAMPLE.read_bytes()).splitlines()]
    data = DataConfig(validation_file=str(tmp_path / "own.jsonl.gz"))
    train_on(run_folder, data, write_shard(tmp_path / "other.jsonl.gz", [{"text": "another page"}]))
    settings = DownstreamConfig(tasks=[WORD], shots=[0])
    with generate_tasks(settings, run_folder, str(SAMPLE)) as folder:
        assert folder is not None
        assert len(questions(folder, WORD)) > 50
    assert capsys.readouterr().out == f"{WORD}: Compared with 1 of 1 training shards.\n"

    shutil.rmtree(run_folder / "checkpoint-8step")
    train_on(run_folder, data, write_shard(tmp_path / "shard.jsonl.gz", pages[5:7]))
    with (
        pytest.raises(DataError, match="2 of .* documents are in training shards of the run"),
        generate_tasks(settings, run_folder, str(SAMPLE)),
    ):
        pass


@pytest.mark.slow
@needs_harness
def test_the_harness_answers_with_and_without_a_prompt(demo_model: Path, tmp_path: Path) -> None:
    data = DataConfig(validation_file=str(SAMPLE))
    write_tasks(data, tmp_path / "tasks", [CLOZE], training_overlap=None)
    settings = DownstreamConfig(
        tasks=[CLOZE], shots=[0, 2], prompts={CLOZE: "url: {url} ||| "}, limit=12,
    )  # fmt: skip
    scores = score_model(demo_model, settings, "cpu", tmp_path / "tasks")
    assert [(score.shots, score.prompt) for score in scores] == [
        (0, ""), (0, "url: {url} ||| "), (2, ""), (2, "url: {url} ||| "),
    ]  # fmt: skip
    assert all(len(score.correct) == 12 and set(score.correct) <= {0.0, 1.0} for score in scores)
    for score in scores:
        ratios = np.divide(score.bits, score.sizes)
        assert len(ratios) == 12
        assert 2 < ratios.min() < ratios.max() < 8
    assert scores[0].bits != scores[1].bits  # the prompt was read
    assert scores[0].asked == scores[1].asked != scores[2].asked == scores[3].asked
    with pytest.raises(ConfigurationError, match="no_such_task unknown"):
        score_model(
            demo_model,
            DownstreamConfig(tasks=["no_such_task", CLOZE], include_path=str(tmp_path / "tasks")),
            "cpu",
        )


@pytest.mark.slow
@needs_harness
def test_reading_a_context_once_gives_the_scores_of_the_harness(demo_model: Path) -> None:
    """With choices of one and several tokens, and a context that must be truncated."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    (page, *_), _ = read_pages(DataConfig(validation_file=str(SAMPLE)), None)
    choices = [" a", " of the class", " a template that is defined in this header", " and 0x7f"]
    requests = [
        Instance("loglikelihood", {}, (context, choice), number)
        for number, context in enumerate(("Macro", page.line[:200], page.line[:400] * 30))
        for choice in choices
    ]
    ours = make_conditioned_model(demo_model, "cpu").loglikelihood(requests)
    theirs = HFLM(pretrained=str(demo_model), device="cpu", batch_size=1).loglikelihood(requests)
    assert len({value for value, _ in ours}) == 12
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], rel=1e-4)
    assert [likeliest for _, likeliest in ours] == [likeliest for _, likeliest in theirs]


@pytest.mark.slow
@needs_harness
@pytest.mark.parametrize("probability", [0.5, None])
def test_only_a_model_that_knows_the_answers_scores_above_chance(
    probability: float | None, tmp_path: Path
) -> None:
    pages = make_pages()
    write_pages(pages, tmp_path / "test.jsonl")
    names = [WORD, TITLE, SITE]
    data = DataConfig(validation_file=str(tmp_path / "test.jsonl"))
    write_tasks(data, tmp_path / "tasks", names, 5, training_overlap=None)
    write_model(tmp_path / "model", followers(pages), probability)
    settings = DownstreamConfig(tasks=names, shots=[0, 5])
    scores = score_model(tmp_path / "model", settings, "cpu", tmp_path / "tasks")
    assert [(score.task, score.shots) for score in scores] == [
        (name, shots) for name in names for shots in (0, 5)
    ]
    assert [len(score.correct) for score in scores] == [24] * 6
    assert all(score.left_out == 0 for score in scores)
    if probability is None:
        low, high = binom.interval(0.9999, 24 * 6, 0.25)
        assert low <= sum(sum(score.correct) for score in scores) <= high
        return
    # one token of probability 1/2 is one bit; a title has two of them
    assert all(score.correct == [1.0] * 24 for score in scores)
    for score in scores:
        assert score.bits == pytest.approx([2.0 if score.task == TITLE else 1.0] * 24, abs=1e-3)
    words = [
        question["choices"][question["answer"]] for question in questions(tmp_path / "tasks", WORD)
    ]
    assert scores[0].sizes == [len(word) for word in words] == [7] * 24
    assert scores[4].hosts == [question["host"] for question in questions(tmp_path / "tasks", SITE)]


@pytest.fixture
def finished(tmp_path: Path) -> StudyConfig:
    """A study with finished runs: `url` knows the answers, the other arms answer at random."""
    pages = make_pages()
    write_pages(pages, tmp_path / "test.jsonl")
    study = StudyConfig(
        title="a study", out_dir=str(tmp_path / "out"), results_dir=str(tmp_path / "kept"),
        config="demo", baseline="none", seeds=[1],
        arms={name: ArmConfig() for name in ("none", "url", "title")},
        measure=MeasureConfig(validation_file=str(tmp_path / "test.jsonl")),
        downstream=DownstreamConfig(arms=["none", "url"], tasks=[SITE], shots=[0]),
    )  # fmt: skip
    config = compose_command_line(CausalLMConfig, "demo", [f"out_dir={tmp_path / 'run'}"])
    for run in list_runs(study):
        write_model(run.folder / "model", followers(pages), 0.5 if run.arm == "url" else None)
        (run.folder / "config.yaml").write_text(format_yaml(config))
        (run.folder / "metrics.jsonl").write_text("")
        (run.folder / "status.json").write_text('{"state": "done"}')
    return study


@pytest.mark.slow
@needs_harness
def test_a_study_scores_its_finished_models_once(finished: StudyConfig) -> None:
    runs = list_runs(finished)
    lines = list(score_study(finished, runs, "cpu"))
    assert [line.partition(": ")[0] for line in lines] == [
        "downstream tasks of none seed 1",
        "downstream tasks of url seed 1",
    ]
    kept = Path(str(finished.results_dir))
    assert {file.name for file in kept.iterdir()} == {
        "none-seed1.tasks.json", "url-seed1.tasks.json",
    }  # fmt: skip
    assert list(score_study(finished, runs, "cpu")) == []
    scores = find_scores(finished, "url", 1)
    assert scores is not None
    assert scores.scores[0].correct == [1.0] * 24
    assert scores.scores[0].bits == pytest.approx([1.0] * 24, abs=1e-3)
    assert {*scores.scores[0].hosts} == {f"host{number}.example" for number in range(6)}
    assert scores.facts["scored"]["lm_eval"] == version("lm_eval")
    (table,) = make_downstream_tables(finished, ["none", "url", "title"], [1])
    assert [row[2] for row in table.format_cells()] == ["none", "url"]
    assert make_downstream_tables(finished, ["none", "url"], [1, 2]) == []


def test_without_the_harness_a_study_with_unscored_models_warns(
    finished: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    runs = list_runs(finished)
    assert list(score_study(finished, runs, "cpu")) == [
        "downstream tasks are left out: lm_eval is not installed: pip install -e .[downstream]"
    ]
    for run in runs:
        shutil.rmtree(run.folder / "model")
    assert list(score_study(finished, runs, "cpu")) == []


@pytest.mark.slow
@needs_harness
def test_a_prompt_has_five_other_pages_with_their_answers(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[list[int]] = []

    def recorded(model: object, context: list[int], choices: list[list[int]]) -> object:
        contexts.append(context)
        return score_choices(model, context, choices)

    monkeypatch.setattr(downstream, "score_choices", recorded)
    names = [WORD, TITLE, SITE]
    data = DataConfig(validation_file=str(SAMPLE))
    write_tasks(data, tmp_path / "tasks", names, 5, training_overlap=None)
    settings = DownstreamConfig(tasks=names, shots=[5], limit=8)
    score_model(demo_model, settings, "cpu", tmp_path / "tasks")
    decode = make_conditioned_model(demo_model, "cpu").tokenizer.decode
    shown = [decode(context) for context in contexts]
    assert len(shown) == 24
    for number, name in enumerate(names):
        asked = questions(tmp_path / "tasks", name)
        solved = {
            question["beginning"] + question["choices"][question["answer"]]: question["url"]
            for question in asked
        }
        for question, text in zip(asked, shown[8 * number : 8 * number + 8], strict=False):
            *examples, last = text.split("\n\n")
            assert last == question["beginning"]
            assert len({*examples}) == 5
            assert {*examples} <= solved.keys()
            assert question["url"] not in {solved[example] for example in examples}
