"""Saves and loads scores on downstream tasks, and computes the differences of claims about them.

The scores of a run are one small file beside its measurement, with an entry for each question; a
claim about a task needs nothing else. A claim compares two arms by the bits per byte of the right
answers, or by accuracy, paired by seed and by question; seeds and questions (or hosts) are its
sources of error, as seeds and documents are for other claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bsmeta.core.errors import DataError
from bsmeta.core.files import write_text
from bsmeta.core.parsing import decode_json
from bsmeta.report.inference import assign_host_clusters
from bsmeta.studies.config import ACCURACY, HOST, ClaimConfig, StudyConfig
from bsmeta.studies.runs import (
    hash_settings,
    hash_values,
    list_runs,
    locate_results,
    refuse_other_settings,
)
from bsmeta.studies.statistics import Estimate, estimate_ratio, estimate_ratio_over_clusters

QUESTION = "question"
_NUM_DECIMALS = 4
"""Decimals of the bits of an answer in a file."""


@dataclass(frozen=True)
class Score:
    """The questions of a task, answered by one model.

    Attributes:
        shots: Number of examples before each question.
        prompt: The conditional prompt; empty without one.
        correct: 1.0 for each question answered correctly, otherwise 0.0; in the task's order.
        bits: Bits of the right answer to each question, 0 if it is left out; an empty list if the
            task does not define which choice is right.
        sizes: UTF-8 bytes of the right answer to each question; 0 if it is left out because the
            tokenizer loses some of it. As long as `bits`.
        hosts: Host of the page of each question, "" if unknown; an empty list if all are unknown.
        asked: Hash of all questions with their examples and choices.
    """

    task: str
    shots: int
    prompt: str
    correct: list[float]
    bits: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    asked: str = ""

    @property
    def left_out(self) -> int:
        """Number of questions without bits because the tokenizer loses some of the right answer."""
        return self.sizes.count(0)


@dataclass(frozen=True)
class TaskScores:
    """The scores of a run's model.

    Attributes:
        settings: Hash of the settings of the run and of its scores.
        facts: Where, when and with which versions the model was scored.
    """

    settings: str
    facts: dict[str, Any]
    scores: list[Score]

    def get(self, task: str, shots: int | None, prompt: str) -> Score | None:
        """Returns the score of a task with a number of examples and a prompt; None if missing."""
        for score in self.scores:
            if (score.task, score.shots, score.prompt) == (task, shots, prompt):
                return score
        return None


ScoredRuns = Mapping[tuple[str, int], TaskScores]
"""The scores of each run (arm, seed) that has been scored."""


def select_task_settings(study: StudyConfig) -> dict[str, Any]:
    """Returns the settings of `downstream` that affect the scores of a model."""
    return {name: value for name, value in asdict(study.downstream).items() if name != "arms"}


def hash_score_settings(study: StudyConfig, arm: str, seed: int) -> str:
    """Hashes the settings of a run and of its scores."""
    return hash_values(
        {"run": hash_settings(study, arm, seed), "downstream": select_task_settings(study)}
    )


def locate_scores(study: StudyConfig, arm: str, seed: int) -> Path:
    """Returns the path of a run's scores.

    It is in `results_dir` if that is set, otherwise in a folder named by the hash of the settings.
    """
    folder = locate_results(study)
    if study.results_dir is None:
        settings_hash = hash_values(select_task_settings(study))
        folder = Path(study.out_dir) / f"downstream-{settings_hash[:8]}"
    return folder / f"{arm}-seed{seed}.tasks.json"


def save_scores(scores: TaskScores, path: Path) -> None:
    """Writes the scores of a model as JSON; bits are kept with four decimals."""
    values = asdict(scores)
    for score in values["scores"]:
        score["correct"] = [int(answer) for answer in score["correct"]]
        score["bits"] = [round(bits, _NUM_DECIMALS) for bits in score["bits"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, msgspec.json.encode(values).decode() + "\n")


def load_scores(path: Path) -> TaskScores:
    """Reads a file that `save_scores` wrote.

    Raises:
        DataError: If it is damaged.
    """
    try:
        scores = decode_json(path.read_bytes(), TaskScores)
        for score in scores.scores:
            _check_answers(score)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: not scores that can be read ({error}); delete the file, and the model is "
            "scored again"
        ) from error
    return scores


def _check_answers(score: Score) -> None:
    """Checks the lists of a score.

    Raises:
        ValueError: If their lengths differ, or a value is impossible.
    """
    count = len(score.correct)
    lists = (score.bits, score.sizes, score.hosts)
    if any(values and len(values) != count for values in lists):
        raise ValueError(f"{score.task}: lists of different lengths")
    if len(score.bits) != len(score.sizes):
        raise ValueError(f"{score.task}: bits and sizes of different numbers of answers")

    is_binary = set(score.correct) <= {0.0, 1.0}
    if not is_binary or min([*score.bits, *score.sizes], default=0) < 0:
        raise ValueError(f"{score.task}: a value that no answer has")


def find_scores(study: StudyConfig, arm: str, seed: int) -> TaskScores | None:
    """Reads the scores of a run; None if it has not been scored.

    Raises:
        DataError: If the file is damaged, or was made with other settings.
    """
    path = locate_scores(study, arm, seed)
    if not path.exists():
        return None
    scores = load_scores(path)
    parts = "config, overrides, curve, measure or downstream"
    refuse_other_settings(path, scores.settings, hash_score_settings(study, arm, seed), parts)
    return scores


def find_all_scores(study: StudyConfig) -> dict[tuple[str, int], TaskScores]:
    """Reads the scores of all runs that have been scored, by arm and seed.

    Raises:
        DataError: If a file is damaged, or was made with other settings.
    """
    all_scores: dict[tuple[str, int], TaskScores] = {}
    if not study.downstream.tasks:
        return all_scores

    for run in list_runs(study):
        scores = find_scores(study, run.arm, run.seed)
        if scores is not None:
            all_scores[run.arm, run.seed] = scores
    return all_scores


@dataclass(frozen=True)
class TaskEffect:
    """The difference of a claim about a task.

    Attributes:
        effect: The difference, negative if it is as claimed (so for accuracy, the other arm minus
            this one); None if it cannot be computed.
        reason: Why the claim cannot be decided; empty if it can.
        seeds: The seeds of the difference.
        unit: `question` or `host`, the sampling unit of the questions.
        hosts: Number of known hosts of the questions.
        without_host: Number of questions whose host is unknown.
        questions: Number of questions of the task.
        left_out: Number of questions that are excluded because a tokenizer loses some of their
            answer.
    """

    effect: Estimate | None
    reason: str
    seeds: list[int] = field(default_factory=list)
    unit: str = QUESTION
    hosts: int = 0
    without_host: int = 0
    questions: int = 0
    left_out: int = 0


def compute_task_effect(
    study: StudyConfig, claim: ClaimConfig, scored: ScoredRuns, cluster: str
) -> TaskEffect:
    """Computes the difference of a claim about a task.

    Args:
        scored: The scores of all runs.
        cluster: The declared sampling unit: `document`, or `host`, which falls back to questions if
            none of their hosts are known.

    Raises:
        DataError: If two runs answered different questions, or the claim's prompt is missing.
    """
    against = claim.against or study.baseline
    scores_by_seed = _read_arm_scores(study, claim, claim.arm, claim.prompt, scored)
    other_scores_by_seed = _read_arm_scores(study, claim, against, claim.against_prompt, scored)
    for arm, scores_of_arm in ((claim.arm, scores_by_seed), (against, other_scores_by_seed)):
        if not scores_of_arm:
            return TaskEffect(None, f"{arm} has no scores of {claim.task}")

    seeds = sorted(set(study.seeds) & scores_by_seed.keys() & other_scores_by_seed.keys())
    if not seeds:
        return TaskEffect(None, f"no seed has scores of both arms on {claim.task}")

    scores = [scores_by_seed[seed] for seed in seeds]
    other_scores = [other_scores_by_seed[seed] for seed in seeds]
    _refuse_other_questions(claim, [*scores, *other_scores])
    weights = _compute_weights(claim, [*scores, *other_scores])
    if not weights.any():
        return TaskEffect(
            None, f"{claim.task} has no bits of right answers that the tokenizers keep", seeds
        )

    hosts = scores[0].hosts
    known_hosts = set(hosts) - {""}
    is_by_host = cluster == HOST and bool(known_hosts)
    clusters = assign_host_clusters(hosts) if is_by_host else None
    effect = _estimate_effect(claim, scores, other_scores, weights, clusters)
    unit = HOST if is_by_host else QUESTION
    return TaskEffect(
        effect,
        reason=_describe_reason(study, claim, seeds, effect, unit),
        seeds=seeds,
        unit=unit,
        hosts=len(known_hosts),
        without_host=hosts.count(""),
        questions=len(weights),
        left_out=int((weights == 0).sum()),
    )


def _read_arm_scores(
    study: StudyConfig, claim: ClaimConfig, arm: str, has_prompt: bool, scored: ScoredRuns
) -> dict[int, Score]:
    """Returns the scores of one side of a claim by seed.

    Raises:
        DataError: If the declaration has no prompt for the task of a claim that needs one.
    """
    prompts = study.downstream.prompts
    if has_prompt and claim.task not in prompts:
        raise DataError(
            f"downstream.prompts: found {', '.join(prompts) or 'none'}, expected one for "
            f"{claim.task}, which a declared claim is asked with; restore it in the declaration"
        )
    prompt = prompts[claim.task] if has_prompt else ""

    scores: dict[int, Score] = {}
    for (name, seed), run in scored.items():
        score = run.get(claim.task, claim.shots, prompt) if name == arm else None
        if score is not None:
            scores[seed] = score
    return scores


def _refuse_other_questions(claim: ClaimConfig, scores: Sequence[Score]) -> None:
    """Refuses scores that are not all about the same questions."""
    if len({(score.asked, len(score.correct)) for score in scores}) > 1:
        raise DataError(
            f"the runs answered different questions of {claim.task} with {claim.shots} examples "
            "(other held-out file, task files, or version of lm_eval); expected the same in all "
            "arms and seeds: delete the .tasks.json files that are wrong, and score these again"
        )


def _compute_weights(claim: ClaimConfig, scores: Sequence[Score]) -> np.ndarray:
    """Computes the weight of each question, float64 [questions].

    For accuracy it is 1. For bits it is the bytes of the right answer, or 0 if any of the scores
    leaves the question out.
    """
    if claim.score == ACCURACY:
        return np.ones(len(scores[0].correct))
    if any(not score.sizes for score in scores):
        return np.zeros(len(scores[0].correct))
    return np.min([score.sizes for score in scores], axis=0).astype(np.float64)


def _estimate_effect(
    claim: ClaimConfig,
    scores: Sequence[Score],
    other_scores: Sequence[Score],
    weights: np.ndarray,
    clusters: np.ndarray | None,
) -> Estimate:
    """Estimates the difference of both sides, negative if it is as claimed."""
    estimate = _estimate_side(claim, scores, weights, clusters)
    other_estimate = _estimate_side(claim, other_scores, weights, clusters)
    if claim.score == ACCURACY:  # higher is better
        return other_estimate - estimate
    return estimate - other_estimate


def _estimate_side(
    claim: ClaimConfig, scores: Sequence[Score], weights: np.ndarray, clusters: np.ndarray | None
) -> Estimate:
    """Estimates the accuracy, or the bits per byte, of one side of a claim."""
    values = [score.correct if claim.score == ACCURACY else score.bits for score in scores]
    if clusters is None:
        return estimate_ratio(np.array(values), weights)
    return estimate_ratio_over_clusters(np.array(values), weights, clusters)


def _describe_reason(
    study: StudyConfig, claim: ClaimConfig, seeds: Sequence[int], effect: Estimate, unit: str
) -> str:
    """Explains why a difference cannot decide its claim yet; "" if it can."""
    if len(seeds) < len(study.seeds):
        return f"{len(seeds)} of {len(study.seeds)} declared seeds have scores of {claim.task}"
    if len(study.seeds) < 2:
        return "one seed, which shows no variation over seeds"
    if unit == HOST and effect.units < 2:
        return "questions of one host, which show no variation over hosts"
    if effect.units < 2:
        return "one question, which shows no variation over questions"
    return ""
