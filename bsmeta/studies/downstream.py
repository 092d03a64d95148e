"""Runs tasks of lm-evaluation-harness on exported models, with and without a conditional prompt.

A conditional prompt is metadata as the model read it in training, put before the whole context
(MeCo: Gao et al. 2025, section 5). The harness runs in this process. It is an optional dependency;
if it is missing, `explain_missing_harness` returns the reason why nothing is run. The tasks of
`bsmeta.studies.cloze` are generated from held-out pages for each call.
"""

from __future__ import annotations

import copy
import importlib.metadata
import importlib.util
import inspect
import itertools
import math
import os
import string
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedTokenizerBase

from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.environment import describe_environment, format_utc_now
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.model_files import refuse_unsafe_model
from bsmeta.core.progress import report_progress
from bsmeta.data.text.lost_text import find_lossy_texts
from bsmeta.report.cells import Cell
from bsmeta.report.page import COUNT, NO_VALUE, Column, Table
from bsmeta.studies.cloze import QUESTIONS, write_tasks
from bsmeta.studies.config import DownstreamConfig, StudyConfig
from bsmeta.studies.measuring import compare_with_training
from bsmeta.studies.runs import DONE, Run, hash_values, read_progress
from bsmeta.studies.statistics import Estimate, estimate_ratio
from bsmeta.studies.task_scores import (
    Score,
    TaskScores,
    find_all_scores,
    find_scores,
    hash_score_settings,
    locate_scores,
    save_scores,
)
from bsmeta.tasks.causal_lm.checkpoints import resolve_config
from bsmeta.tasks.checkpoints import locate_model

ACCURACY_METRIC = "acc"


def explain_missing_harness() -> str | None:
    """Returns why no task can be run; None if the harness is installed."""
    if importlib.util.find_spec("lm_eval") is None:
        return "lm_eval is not installed: pip install -e .[downstream]"
    return None


def score_model(
    model: Path, settings: DownstreamConfig, device: str, task_folder: Path | None = None
) -> list[Score]:
    """Runs every task with each number of examples, without and with its conditional prompt.

    Args:
        model: A folder that `from_pretrained` loads.
        device: A torch device string, such as `cuda:0`.
        task_folder: Folder of the tasks generated from held-out pages.

    Raises:
        ConfigurationError: If a task is unknown or has no accuracy, or a prompt has a field that
            its questions do not have.
    """
    manager = _open_task_manager(settings, task_folder)
    from lm_eval import simple_evaluate  # after the manager, which may forbid requests

    language_model = make_conditioned_model(model, device)
    scores = []
    for task, shots in itertools.product(settings.tasks, settings.shots):
        prompts = [""]
        if task in settings.prompts:
            prompts.append(settings.prompts[task])
        for prompt in prompts:
            language_model.prompt = prompt
            results = simple_evaluate(
                language_model,
                tasks=[task],
                num_fewshot=shots,
                limit=settings.limit,
                task_manager=manager,
                bootstrap_iters=0,
                log_samples=True,
            )
            samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
            scores.append(make_score(samples, task, shots, prompt, language_model.tokenizer))
    return scores


def _open_task_manager(settings: DownstreamConfig, task_folder: Path | None) -> Any:
    """Opens the harness's task manager; it sends no requests if all tasks are local files.

    Raises:
        ConfigurationError: If one of the tasks is unknown.
    """
    is_local = settings.include_path is not None or set(settings.tasks) <= set(QUESTIONS)
    if is_local:  # so that the harness, imported after this, sends no requests
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from lm_eval.tasks import TaskManager

    folders = [str(folder) for folder in (task_folder, settings.include_path) if folder is not None]
    manager = TaskManager(include_path=folders or None, include_defaults=not is_local)
    unknown = [task for task in settings.tasks if task not in manager.all_tasks]
    if unknown:
        raise ConfigurationError(
            f"downstream.tasks: {', '.join(unknown)} unknown; expected tasks of the harness "
            f"(lm_eval ls tasks), of include_path, or of {', '.join(QUESTIONS)}"
        )
    return manager


def make_score(
    samples: Sequence[Mapping[str, Any]],
    task: str,
    shots: int,
    prompt: str,
    tokenizer: PreTrainedTokenizerBase,
) -> Score:
    """Makes the score of a task from the harness's logged samples, one for each question.

    Raises:
        ConfigurationError: If the samples have no accuracy.
    """
    if not samples or ACCURACY_METRIC not in samples[0]:
        raise ConfigurationError(
            f"downstream.tasks: {task} has no accuracy ({ACCURACY_METRIC}) of each question; "
            "expected a multiple-choice task"
        )

    bits: list[float] = []
    sizes: list[int] = []
    if all(isinstance(sample["target"], int) for sample in samples):
        answers = [sample["arguments"][sample["target"]][1] for sample in samples]
        is_lossy = find_lossy_texts(tokenizer, answers)
        for sample, answer, loses_text in zip(samples, answers, is_lossy, strict=True):
            log_likelihood, _ = sample["filtered_resps"][sample["target"]]
            bits.append(0.0 if loses_text else float(-log_likelihood / math.log(2)))
            sizes.append(0 if loses_text else len(answer.encode()))

    hosts = [str(sample["doc"].get("host") or "") for sample in samples]
    requests = [[list(request) for request in sample["arguments"]] for sample in samples]
    return Score(
        task,
        shots,
        prompt,
        correct=[float(sample[ACCURACY_METRIC]) for sample in samples],
        bits=bits,
        sizes=sizes,
        hosts=hosts if any(hosts) else [],
        asked=hash_values(requests),
    )


def make_conditioned_model(model: Path, device: str) -> Any:
    """Loads a model for the harness, with an attribute `prompt` that is put before every context.

    It reads a context once for all of its choices; the harness itself does so only for choices of
    one token. With five examples, the choices are only a small part of the tokens of a question.
    """
    from lm_eval.models.huggingface import HFLM

    class Conditioned(HFLM):
        prompt = ""

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> Any:
            prompted = [self._add_prompt(request) for request in requests]
            return super().loglikelihood(prompted, disable_tqdm)

        def _add_prompt(self, request: Any) -> Any:
            if not self.prompt:
                return request

            context, *rest = request.args
            prompted = copy.copy(request)
            prompted.arguments = (fill_prompt(self.prompt, request.doc) + context, *rest)
            return prompted

        def _loglikelihood_tokens(
            self, requests: list[Any], disable_tqdm: bool = True, override_bs: int | None = None
        ) -> list[tuple[float, bool]]:
            answers: list[tuple[float, bool]] = []
            # Requests are (texts, tokens of the context, tokens of the choice); successive ones
            # with the same context are the choices of a question.
            for _, group in itertools.groupby(requests, key=lambda request: request[1]):
                question = list(group)
                _, context, _ = question[0]
                choices = [choice for _, _, choice in question]
                max_choice_length = max(len(choice) for choice in choices)

                scores = None
                if len(context) + max_choice_length <= self.max_length:
                    scores = score_choices(self.model, context, choices)
                if scores is None:
                    scores = super()._loglikelihood_tokens(question, True, override_bs)
                answers += scores
                report_progress()
            return answers

    refuse_unsafe_model(model)
    return Conditioned(pretrained=str(model), device=device, batch_size=8, trust_remote_code=False)


@torch.no_grad()
def score_choices(
    model: Any, context: Sequence[int], choices: Sequence[Sequence[int]]
) -> list[tuple[float, bool]] | None:
    """Computes the log-likelihood of each choice after a context, which is read only once.

    Args:
        context: Its tokens, at least one.
        choices: The tokens of each choice, at least one.

    Returns:
        For each choice its log-likelihood, in nats, and whether greedy decoding would yield it;
        None if the model's cache cannot be repeated for several choices.
    """
    takes_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
    options = {"logits_to_keep": 1} if takes_logits_to_keep else {}
    output = model(torch.tensor([context], device=model.device), use_cache=True, **options)
    cache = output.past_key_values
    if not isinstance(cache, DynamicCache):
        return None

    max_choice_length = max(len(choice) for choice in choices)
    logits = output.logits[:, -1:].expand(len(choices), -1, -1)
    if max_choice_length > 1:
        cache.batch_repeat_interleave(len(choices))
        # A causal model does not see the padding, which follows each choice.
        padded = [[*choice[:-1], *[0] * (max_choice_length - len(choice))] for choice in choices]
        tokens = torch.tensor(padded, device=model.device)
        later_logits = model(tokens, past_key_values=cache, use_cache=True).logits
        logits = torch.cat((logits, later_logits), dim=1)
    log_probabilities = torch.log_softmax(logits.float(), dim=-1)

    answers = []
    for number, choice in enumerate(choices):
        predicted = log_probabilities[number, : len(choice)]
        tokens_of_choice = torch.tensor(choice, device=model.device)
        log_likelihood = predicted.gather(1, tokens_of_choice[:, None]).sum()
        is_greedy = bool((predicted.argmax(dim=-1) == tokens_of_choice).all())
        answers.append((float(log_likelihood), is_greedy))
    return answers


def fill_prompt(prompt: str, question: Mapping[str, Any]) -> str:
    """Fills a prompt such as `url: {url} ||| ` with the fields of a question.

    Raises:
        ConfigurationError: If the prompt names a field that the question does not have.
    """
    names = {name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None}
    if not names <= set(question):
        raise ConfigurationError(
            f"downstream.prompts: {prompt!r} names {', '.join(sorted(names - set(question)))}; "
            f"expected fields of the task's questions: {', '.join(sorted(question))}"
        )
    return prompt.format(**question)


def score_study(study: StudyConfig, runs: Sequence[Run], device: str) -> Iterator[str]:
    """Scores the finished models that have not been scored yet, and writes their scores.

    Yields:
        A line for the log after each model; only the reason if the harness is missing.
    """
    unscored = _list_unscored_runs(study, runs)
    reason = explain_missing_harness()
    if reason is not None and unscored:
        yield f"downstream tasks are left out: {reason}"
        return

    for run in unscored:
        started = time.monotonic()
        task_scores = _score_run(study, run, device)
        save_scores(task_scores, locate_scores(study, run.arm, run.seed))
        yield f"downstream tasks of {run.name}: done ({time.monotonic() - started:,.0f} s)"


def _list_unscored_runs(study: StudyConfig, runs: Sequence[Run]) -> list[Run]:
    """Lists the finished runs that the study scores, but that have no scores yet."""
    settings = study.downstream
    if not settings.tasks:
        return []
    return [
        run
        for run in runs
        if (not settings.arms or run.arm in settings.arms)
        and find_scores(study, run.arm, run.seed) is None
        and read_progress(study, run).state == DONE
        and (run.folder / "model").exists()
    ]


def _score_run(study: StudyConfig, run: Run, device: str) -> TaskScores:
    """Scores the model of a run; records machine, time and versions."""
    settings = study.downstream
    started = format_utc_now()
    with generate_tasks(settings, run.folder, study.measure.validation_file) as task_folder:
        scores = score_model(run.folder / "model", settings, device, task_folder)

    facts = {
        **describe_environment(torch.device(device)),
        "lm_eval": importlib.metadata.version("lm_eval"),
        "started": started,
        "ended": format_utc_now(),
    }
    return TaskScores(hash_score_settings(study, run.arm, run.seed), {"scored": facts}, scores)


@contextmanager
def generate_tasks(
    settings: DownstreamConfig, checkpoint: Path, validation_file: str | None = None
) -> Iterator[Path | None]:
    """Generates the configured tasks on held-out pages in a temporary folder.

    Args:
        checkpoint: A run, or an exported model.
        validation_file: The pages; None: `validation_file` of the run.

    Yields:
        The folder; None if no such task is configured.

    Raises:
        DataError: If the run was trained on a page, or too few pages suit a task.
    """
    names = [name for name in settings.tasks if name in QUESTIONS]
    if not names:
        yield None
        return

    evaluation = EvaluateConfig(checkpoint=str(checkpoint), validation_file=validation_file)
    location = locate_model(str(checkpoint))
    data = resolve_config(evaluation, location).data_config
    overlap = compare_with_training(", ".join(names), evaluation, data, location)
    shots = max(settings.shots, default=0)
    with tempfile.TemporaryDirectory(prefix="bsmeta-tasks-") as folder:
        write_tasks(data, Path(folder), names, shots, training_overlap=overlap)
        yield Path(folder)


def make_downstream_tables(
    study: StudyConfig, arms: Sequence[str], seeds: Sequence[int]
) -> list[Table]:
    """Makes the table of the downstream tasks; [] unless all models of these runs have scores."""
    settings = study.downstream
    arms = [arm for arm in arms if not settings.arms or arm in settings.arms]
    all_scores = find_all_scores(study)
    has_all = all(run in all_scores for run in itertools.product(arms, seeds))
    if not settings.tasks or not has_all:
        return []

    scores_by_arm: dict[str, list[list[Score]]] = {}
    for arm in arms:
        scores_by_arm[arm] = [all_scores[arm, seed].scores for seed in seeds]
    labels = {arm: study.arms[arm].label or arm for arm in arms}
    return [make_study_table(scores_by_arm, labels, study.baseline)]


def make_model_table(name: str, scores: Sequence[Score]) -> Table:
    """Makes the table of one model's scores, and of the effect of conditional prompts on them."""
    note = (
        "Value ± standard error over questions: the accuracy, and the bits per byte of all right "
        "answers together, which also show effects too small to change an answer. The difference "
        "is with the conditional prompt minus without it, paired by question."
    )
    left_out = {score.task: score.left_out for score in scores if score.left_out}
    if left_out:
        counts = ", ".join(f"{count:,} of {task}" for task, count in left_out.items())
        note += (
            " Bits per byte leave out the questions whose right answer the tokenizer loses in "
            f"part: {counts}."
        )
    columns = [
        Column("task"),
        Column("shots", str),
        Column("questions", COUNT),
        Column(""),
        Column("without prompt", str),
        Column("with prompt", str),
        Column("difference", str),
    ]

    table = Table(f"Downstream tasks: {name}", note, columns)
    prompted_scores = {(score.task, score.shots): score for score in scores if score.prompt}
    for score in scores:
        if score.prompt:
            continue

        prompted = prompted_scores.get((score.task, score.shots))
        prompted_measures = {} if prompted is None else _list_measures(prompted)
        for name_of_measure, measure in _list_measures(score).items():
            cells = _make_prompt_cells(measure, prompted_measures.get(name_of_measure))
            questions = len(score.correct)
            table.rows.append([score.task, score.shots, questions, name_of_measure, *cells])
    return table


def _make_prompt_cells(measure: _Measure, prompted_measure: _Measure | None) -> list[str]:
    """Makes the cells of a measure: without the prompt, with it, and the difference."""
    without_prompt = estimate_ratio(np.array([measure.values]), measure.weights)
    if prompted_measure is None:
        return [_format_with_error(without_prompt), NO_VALUE, NO_VALUE]

    with_prompt = estimate_ratio(np.array([prompted_measure.values]), measure.weights)
    return [
        _format_with_error(without_prompt),
        _format_with_error(with_prompt),
        _format_with_error(with_prompt - without_prompt, "+"),
    ]


class _Measure(NamedTuple):
    """The value of each question and its weight; the measure is their ratio of sums."""

    values: list[float]
    weights: np.ndarray


def _list_measures(score: Score) -> dict[str, _Measure]:
    """Returns the measures of a score by their names in tables."""
    measures = {"accuracy": _Measure(score.correct, np.ones(len(score.correct)))}
    if any(score.sizes):
        measures["bits per byte"] = _Measure(score.bits, np.array(score.sizes, np.float64))
    return measures


def _format_with_error(estimate: Estimate, sign: str = "") -> str:
    """Formats a value ± its standard error; `sign="+"` shows the sign of positive values."""
    return f"{estimate.value:{sign}.3f} ± {estimate.document_error:.3f}"


def make_study_table(
    scores_by_arm: Mapping[str, Sequence[Sequence[Score]]],
    labels: Mapping[str, str],
    baseline: str,
) -> Table:
    """Makes the table of the accuracies of the arms, paired by seed and by question.

    Args:
        scores_by_arm: The scores of each seed of an arm; all have the same tasks in the same order.
        labels: The names of the arms in the table.
        baseline: The arm that the others are compared with, without a prompt.
    """
    note = (
        "Accuracy as mean over seeds; differences are paired by seed and by question, to the "
        f"{labels[baseline]} arm without a prompt, and of the prompt to none. In brackets: 95% "
        "intervals over seeds and questions."
    )
    columns = [
        Column("task"),
        Column("shots", str),
        Column("arm"),
        Column("prompt"),
        Column("accuracy", "{:.3f}".format),
        Column(f"to {labels[baseline]}", "{:+.3f}".format),
        Column("of the prompt", "{:+.3f}".format),
    ]

    table = Table("Downstream tasks", note, columns)
    first_scores = scores_by_arm[baseline][0]
    for task, shots in dict.fromkeys((score.task, score.shots) for score in first_scores):
        accuracies = _estimate_arm_accuracies(scores_by_arm, task, shots)
        baseline_accuracy = accuracies[baseline, ""]
        for (arm, prompt), accuracy in accuracies.items():
            cells: list[Cell] = [
                accuracy,
                None if (arm, prompt) == (baseline, "") else accuracy - baseline_accuracy,
                accuracy - accuracies[arm, ""] if prompt else None,
            ]
            names = [labels[arm], "yes" if prompt else "no"]
            table.rows.append([task, shots, *names, *cells])
    return table


def _estimate_arm_accuracies(
    scores_by_arm: Mapping[str, Sequence[Sequence[Score]]], task: str, shots: int
) -> dict[tuple[str, str], Estimate]:
    """Estimates the accuracies on a task, by arm and prompt ("" for none)."""
    accuracies: dict[tuple[str, str], Estimate] = {}
    for arm, scores_by_seed in scores_by_arm.items():
        for index, score in enumerate(scores_by_seed[0]):
            if (score.task, score.shots) == (task, shots):
                correct = np.array([scores[index].correct for scores in scores_by_seed])
                accuracies[arm, score.prompt] = estimate_ratio(correct, np.ones(correct.shape[1]))
    return accuracies
