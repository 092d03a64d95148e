"""Tasks of lm-evaluation-harness on exported models, with and without a conditional prompt.

A conditional prompt is metadata as the model read it in training, put before the whole context
(MeCo: Gao et al. 2025, section 5). The harness runs in this process; it is an extra, and where it
is missing, `missing_harness` says why nothing is run.

`write_cloze` makes a task of held-out pages, which needs no network: each question shows the
beginning of a page; the choices are what follows there, and what follows at the same place of three
other pages.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import os
import random
import string
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.causal_lm import EvaluateConfig
from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import write_json
from bsmeta.core.model_files import refuse_unsafe
from bsmeta.core.parsing import parse_json
from bsmeta.data import derive
from bsmeta.data.text.lost_text import lossy_texts
from bsmeta.report.page import COUNT, NONE, Cell, Column, Table
from bsmeta.studies.config import DownstreamConfig, StudyConfig
from bsmeta.studies.runs import DONE, Run, digest_of, progress_of, runs_of
from bsmeta.studies.statistics import Estimate, ratio
from bsmeta.tasks.causal_lm.checkpoints import resolve_config
from bsmeta.tasks.causal_lm.documents import HeldOutDocuments
from bsmeta.tasks.checkpoints import locate

CLOZE = "bsmeta_cloze"
CHOICES = 4
SHOWN, FOLLOWING = 300, 120
"""Characters of a page that a question shows, and of each choice (up to the next blank)."""

_QUESTIONS = "questions.jsonl"
METRIC = "acc"


def write_cloze(config: DataConfig, folder: Path) -> Path:
    """Writes a cloze task and its questions, made from `validation_file`, to a folder.

    Returns:
        The task's file.

    Raises:
        DataError: If too few pages are long enough.
    """
    documents = HeldOutDocuments(config, max_documents=None, deduplicate=True)
    pages = []
    for index in range(len(documents)):
        document = documents[index]
        halves = _halves(document.text)
        if halves is not None:
            pages.append((document.url or "", *halves))
    if len({following for *_, following in pages}) < CHOICES:
        raise DataError(
            f"{documents.path}: {len(pages)} pages of at least {SHOWN + FOLLOWING} characters; "
            f"expected {CHOICES} or more for a cloze task"
        )
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(question, ensure_ascii=False) + "\n" for question in _questions(pages))
    (folder / _QUESTIONS).write_text("".join(lines), encoding="utf-8")
    settings: dict[str, Any] = {
        "task": CLOZE,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str((folder / _QUESTIONS).resolve())}},
        "test_split": "test",
        "fewshot_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{beginning}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    path = folder / f"{CLOZE}.yaml"
    path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")  # JSON is YAML
    return path


def _halves(text: str) -> tuple[str, str] | None:
    """The beginning of a text and what follows, cut before blanks; None if it is too short."""
    first = text.find(" ", SHOWN)
    second = text.find(" ", first + FOLLOWING)
    if first < 0 or second < 0 or second > SHOWN + 3 * FOLLOWING:
        return None
    return text[:first], text[first:second]


def _questions(pages: Sequence[tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
    following = sorted({page[2] for page in pages})
    for url, beginning, right in pages:
        draw = random.Random(derive("cloze", url, beginning))
        choices = draw.sample([one for one in following if one != right], CHOICES - 1)
        answer = draw.randrange(CHOICES)
        choices.insert(answer, right)
        yield {"url": url, "beginning": beginning, "choices": choices, "answer": answer}


@dataclass(frozen=True)
class Score:
    """The questions of a task, answered by one model.

    Attributes:
        shots: Examples before each question.
        prompt: The conditional prompt; empty without one.
        correct: 1.0 for each question answered correctly, otherwise 0.0; in the task's order.
        bits: Bits per byte of the right answer to each question; empty where the task does not
            say which of its choices that is.
        left_out: Questions without `bits`, because the tokenizer loses some of the right answer.
    """

    task: str
    shots: int
    prompt: str
    correct: list[float]
    bits: list[float] = field(default_factory=list)
    left_out: int = 0


def standard_error(values: Sequence[float]) -> float:
    """Of a mean; 0 for a single value."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def missing_harness() -> str | None:
    """Why no task can be run; None if the harness is installed."""
    if importlib.util.find_spec("lm_eval") is None:
        return "lm_eval is not installed: pip install -e .[downstream]"
    return None


def score_model(model: Path, settings: DownstreamConfig, device: str) -> list[Score]:
    """Runs every task with each number of examples, without and with its conditional prompt.

    Args:
        model: A folder that `from_pretrained` loads.
        device: torch's name of the device.

    Raises:
        ConfigurationError: If a task is unknown or has no accuracy, or a prompt has a field that
            its questions do not have.
    """
    if settings.include_path is not None:  # tasks of one's own are local: nothing is looked up
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=settings.include_path, include_defaults=settings.include_path is None
    )
    unknown = [task for task in settings.tasks if task not in manager.all_tasks]
    if unknown:
        raise ConfigurationError(
            f"downstream.tasks: {', '.join(unknown)} unknown; expected tasks of the harness "
            "(lm_eval ls tasks), or of include_path"
        )
    language_model = conditioned_model(model, device)
    scores = []
    for task in settings.tasks:
        prompts = [""] + ([settings.prompts[task]] if task in settings.prompts else [])
        for shots in settings.shots:
            for prompt in prompts:
                language_model.prompt = prompt
                found = simple_evaluate(
                    language_model, tasks=[task], num_fewshot=shots, limit=settings.limit,
                    task_manager=manager, bootstrap_iters=0, log_samples=True,
                )  # fmt: skip
                answers = _answers(found, task, language_model.tokenizer)
                scores.append(Score(task, shots, prompt, *answers))
    return scores


def _answers(
    found: Mapping[str, Any], task: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[float], list[float], int]:
    """The fields `correct`, `bits` and `left_out` of a score."""
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    if not samples or METRIC not in samples[0]:
        raise ConfigurationError(
            f"downstream.tasks: {task} has no accuracy ({METRIC}) of each question; expected a "
            "multiple-choice task"
        )
    bits: list[float] = []
    left_out = 0
    if all(isinstance(sample["target"], int) for sample in samples):
        answers = [sample["arguments"][sample["target"]][1] for sample in samples]
        is_lossy = lossy_texts(tokenizer, answers)
        left_out = sum(is_lossy)
        for sample, answer, loses in zip(samples, answers, is_lossy, strict=True):
            if loses:
                continue
            log_likelihood, _ = sample["filtered_resps"][sample["target"]]
            bits.append(float(-log_likelihood / math.log(2) / len(answer.encode())))
    return [float(sample[METRIC]) for sample in samples], bits, left_out


def conditioned_model(model: Path, device: str) -> Any:
    """The harness's model, with an attribute `prompt` that goes before every context."""
    from lm_eval.models.huggingface import HFLM

    class Conditioned(HFLM):
        prompt = ""

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> Any:
            return super().loglikelihood([self._shown(one) for one in requests], disable_tqdm)

        def _shown(self, request: Any) -> Any:
            if not self.prompt:
                return request
            context, *rest = request.args
            shown = copy.copy(request)
            shown.arguments = (filled(self.prompt, request.doc) + context, *rest)
            return shown

    refuse_unsafe(model)
    return Conditioned(pretrained=str(model), device=device, batch_size=8, trust_remote_code=False)


def filled(prompt: str, question: Mapping[str, Any]) -> str:
    """A prompt with the fields of a question in it: `url: {url} ||| `.

    Raises:
        ConfigurationError: If the question has no such field.
    """
    names = {name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None}
    if not names <= set(question):
        raise ConfigurationError(
            f"downstream.prompts: {prompt!r} names {', '.join(sorted(names - set(question)))}; "
            f"expected fields of the task's questions: {', '.join(sorted(question))}"
        )
    return prompt.format(**question)


def save_scores(scores: Sequence[Score], path: Path) -> None:
    """Writes the answers of a model as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, [asdict(score) for score in scores])


def load_scores(path: Path) -> list[Score]:
    """Reads what `save_scores` wrote."""
    return [Score(**one) for one in parse_json(path.read_text(encoding="utf-8"))]


def score_study(study: StudyConfig, runs: Sequence[Run], device: str) -> Iterator[str]:
    """Scores the finished models that have not been scored yet.

    Yields:
        Why none are scored, or a line for each model.
    """
    reason = missing_harness()
    if reason is not None and study.downstream.tasks:
        yield f"downstream tasks are left out: {reason}"
        return
    for run in runs:
        path = scores_path(study, run)
        is_done = progress_of(study, run).state == DONE and (run.folder / "model").exists()
        if study.downstream.tasks and is_done and not path.exists():
            with cloze_folder(study.downstream, run.folder) as settings:
                save_scores(score_model(run.folder / "model", settings, device), path)
            yield f"downstream tasks of {run.name}: done"


@contextmanager
def cloze_folder(settings: DownstreamConfig, checkpoint: Path) -> Iterator[DownstreamConfig]:
    """The settings with the cloze task, if they name it, made in a temporary folder."""
    if CLOZE not in settings.tasks or settings.include_path is not None:
        yield settings
        return
    config = resolve_config(EvaluateConfig(checkpoint=str(checkpoint)), locate(str(checkpoint)))
    with tempfile.TemporaryDirectory(prefix="bsmeta-cloze-") as folder:
        write_cloze(config.data_config, Path(folder))
        yield replace(settings, include_path=folder)


def scores_path(study: StudyConfig, run: Run) -> Path:
    """The file of a run's answers; its folder is named by the settings."""
    digest = digest_of(asdict(study.downstream))[:8]
    return Path(study.out_dir) / f"downstream-{digest}" / f"{run.folder.name}.json"


def downstream_tables(study: StudyConfig, arms: Sequence[str], seeds: Sequence[int]) -> list[Table]:
    """The table of the downstream tasks; none if a model of these arms and seeds has no scores."""
    paths = {
        (run.arm, run.seed): scores_path(study, run)
        for run in runs_of(study)
        if run.arm in arms and run.seed in seeds
    }
    if not study.downstream.tasks or not all(path.exists() for path in paths.values()):
        return []
    scores = {arm: [load_scores(paths[arm, seed]) for seed in seeds] for arm in arms}
    labels = {arm: study.arms[arm].label or arm for arm in arms}
    return [study_table(scores, labels, study.baseline)]


def model_table(name: str, scores: Sequence[Score]) -> Table:
    """The accuracies of one model, and what each conditional prompt changes."""
    note = (
        "Mean ± standard error over questions: the accuracy, and the bits per byte of the right "
        "answers, which also show what changes no answer. The difference is with the conditional "
        "prompt minus without it, paired by question."
    )
    left_out = {score.task: score.left_out for score in scores if score.left_out}
    if left_out:
        counts = ", ".join(f"{count:,} of {task}" for task, count in left_out.items())
        note += (
            " Bits per byte leave out the questions whose right answer the tokenizer loses in "
            f"part: {counts}."
        )
    columns = [
        Column("task"), Column("shots", str), Column("questions", COUNT), Column(""),
        *(Column(head, str) for head in ("without prompt", "with prompt", "difference")),
    ]  # fmt: skip
    table = Table(f"Downstream tasks: {name}", note, columns)
    prompted = {(one.task, one.shots): one for one in scores if one.prompt}
    for score in scores:
        if score.prompt:
            continue
        other = prompted.get((score.task, score.shots))
        measures = {"accuracy": (score.correct, other and other.correct)}
        if score.bits:
            measures["bits per byte"] = (score.bits, other and other.bits)
        for measure, (plain, shown) in measures.items():
            cells = [_mean(plain), NONE, NONE]
            if shown:
                cells[1:] = [_mean(shown), _mean(np.subtract(shown, plain).tolist(), "+")]
            table.rows.append([score.task, score.shots, len(score.correct), measure, *cells])
    return table


def _mean(values: Sequence[float], sign: str = "") -> str:
    return f"{np.mean(values):{sign}.3f} ± {standard_error(values):.3f}"


def study_table(
    arms: Mapping[str, Sequence[Sequence[Score]]], labels: Mapping[str, str], baseline: str
) -> Table:
    """The accuracies of the arms, paired by seed and by question.

    Args:
        arms: By arm: the scores of each seed; the same tasks in the same order in all of them.
        labels: The names of the arms in the table.
        baseline: The arm that the others are compared with, without a prompt.
    """
    note = (
        "Accuracy as mean over seeds; differences are paired by seed and by question, to the "
        f"{labels[baseline]} arm without a prompt, and of the prompt to none. In brackets: 95% "
        "intervals over seeds and questions."
    )
    columns = [
        Column("task"), Column("shots", str), Column("arm"), Column("prompt"),
        Column("accuracy", "{:.3f}".format), Column(f"to {labels[baseline]}", "{:+.3f}".format),
        Column("of the prompt", "{:+.3f}".format),
    ]  # fmt: skip
    table = Table("Downstream tasks", note, columns)
    for task, shots in dict.fromkeys((score.task, score.shots) for score in arms[baseline][0]):
        found: dict[tuple[str, str], Estimate] = {}
        for arm, seeds in arms.items():
            for place, score in enumerate(seeds[0]):
                if (score.task, score.shots) == (task, shots):
                    correct = np.array([one[place].correct for one in seeds])
                    found[arm, score.prompt] = ratio(correct, np.ones(correct.shape[1]))
        base = found[baseline, ""]
        for (arm, prompt), estimate in found.items():
            cells: list[Cell] = [
                estimate,
                None if (arm, prompt) == (baseline, "") else estimate - base,
                estimate - found[arm, ""] if prompt else None,
            ]
            names = [labels[arm], "yes" if prompt else "no"]
            table.rows.append([task, shots, *names, *cells])
    return table
