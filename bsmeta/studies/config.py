"""Defines and checks the file of a study: arms × seeds, measurements, and the tested claims."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.composing.structures import merge_into_structure
from bsmeta.config.programs.evaluating import WINDOWS
from bsmeta.config.schema import MAX_SEED
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import refuse_special_file
from bsmeta.core.keys import find_path_problems, key, list_bound_lines
from bsmeta.core.parsing import parse_yaml

SCRIPTS = ("train.sh", "several_machines.sh")
TEXT = "text tokens"
TOKENS = "all tokens"
FLOPS = "FLOPs"
AXES = (TEXT, TOKENS, FLOPS)
WITHOUT = "without"
WITH = "with"
DOCUMENT = "document"
HOST = "host"
CLUSTERS = (DOCUMENT, HOST)
BITS_SCORE = "bits"
ACCURACY = "accuracy"
SCORES = (BITS_SCORE, ACCURACY)
OWN_KEYS = (
    "seed",
    "out_dir",
    "resume_from_checkpoint_dir",
    "overwrite_out_dir",
    "log_documents",
    "extra_steps_to_eval_save_at",
    "keep_last_checkpoints",
    "export_steps",
    "decay_from",
)
"""Keys of a training run that the study sets itself."""

TASK_KEYS = ("task", "shots", "prompt", "against_prompt", "score")
"""Keys of a claim about a task."""
_SHARED_KEYS = (
    "label",
    "arm",
    "against",
    "smallest_difference",
    "pilot_deviation",
    "pilot_document_error",
)
"""Keys of claims of both kinds; all others are about held-out text."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class ArmConfig:
    """One way to train, with every seed."""

    overrides: list[str] = key([], "keys of the training run, in Hydra's syntax")
    label: str = key("", "name in tables and plots; empty: the name of the arm")
    control_of: str | None = key(
        None,
        "arm that this one controls for: same fields with the content removed, so any gain is form",
    )
    text_tokens_of: str | None = key(
        None,
        "train on the number of text tokens of this arm with the same seed (max_train_steps "
        "follows from the text tokens per step of the baseline)",
    )
    branch_of: str | None = key(
        None,
        "arm to branch from: each seed starts at a checkpoint of that run, keeps its overrides, "
        "and only decays the learning rate (decay_from)",
    )
    branch_at: int | None = key(None, "branch_of: step of the checkpoint", at_least=1)
    decay_steps: int | None = key(
        None, "branch_of: number of steps of the decay, which follow branch_at", at_least=1
    )

    def list_needed_arms(self) -> list[str]:
        """Lists the arms whose runs come before the run of this one with the same seed."""
        return [arm for arm in (self.branch_of, self.text_tokens_of) if arm is not None]


@dataclass(frozen=True, kw_only=True)
class ClaimConfig:
    """Claim that one arm needs fewer bits per byte of held-out text than another.

    With `task`, the claim is about the answers to the questions of a downstream task.
    """

    label: str = key("", "the claim as a sentence, without a full stop (required)")
    arm: str = key("", "the arm that needs fewer bits (required)")
    metadata: str = key(
        "without",
        "metadata at inference: without, with (as in training), or types joined by + (title+url)",
    )
    at: float = key(1.0, "share of the arm's run; one of `curve`", above=0, at_most=1)
    against: str = key("", "the other arm; empty: the baseline")
    against_metadata: str = key("without", "metadata at inference of the other arm")
    equal: str = key("text tokens", "quantity of training that is equal in both", choices=AXES)
    saves: float = key(
        0.0,
        "compare with the other arm after 1 / (1 - saves) times the training: claims that at least "
        "this share of the data is saved",
        at_least=0,
        below=1,
    )
    bytes: list[int] = key(
        [], "range of bytes of each document: from the first number up to the second (none: end)"
    )
    minus_bytes: list[int] = key(
        [], "subtract the difference over these bytes: a contrast between parts of documents"
    )
    minus_arm: str = key(
        "",
        "subtract the difference of two other arms, a contrast between settings such as lengths of "
        "training: first of the two",
    )
    minus_against: str = key("", "second arm of this contrast")
    task: str = key("", "downstream task of the claim, one of downstream.tasks")
    shots: int | None = key(
        None,
        "task: number of examples before a question, one of downstream.shots (required)",
        at_least=0,
    )
    prompt: bool = key(False, "task: the arm gets the text of downstream.prompts")
    against_prompt: bool = key(False, "task: the other arm gets this text")
    score: str = key(
        BITS_SCORE,
        "task: bits (bits per byte of the correct answers; lower is better) or accuracy (share of "
        "the questions; higher is better)",
        choices=SCORES,
    )
    smallest_difference: float | None = key(
        None, "smallest difference of interest in bits per byte, or in accuracy (required)", above=0
    )
    pilot_deviation: float | None = key(
        None, "pilot estimate of the standard deviation of the difference over seeds", above=0
    )
    pilot_document_error: float = key(
        0.0, "pilot estimate of the standard error of the difference over documents", at_least=0
    )


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """Settings of the measurements. All arms are measured on the same bytes."""

    validation_file: str | None = key(
        None,
        "held-out shard; null: validation_file of the runs",
        is_path=True,
        takes_addresses=True,
    )
    windows: str = key("sliding", "windows of evaluate.py", choices=WINDOWS)
    max_documents: int | None = key(
        None, "number of documents to score, from the first", at_least=1
    )
    max_characters: int | None = key(
        None,
        "number of characters to score per document, from the first; metadata is not cut",
        at_least=1,
    )
    each_type: bool = key(True, "at the last checkpoint, also measure each metadata type alone")
    combinations: list[str] = key(
        [], "each_type: also measure these combinations, joined by + (title+url)"
    )
    position_edges: list[int] = key(
        [0, 256, 1024, 4096], "first bytes of the bins of the gain by position", at_least=0
    )
    length_edges: list[int] = key(
        [1000, 4000],
        "numbers of bytes that separate the groups of documents in the gain by length",
        at_least=0,
    )
    sites: int = key(5, "number of hosts, the most frequent first, whose gain is shown", at_least=0)
    seed: int = key(1, "seed of shuffled metadata values", at_least=0)
    average_last: int = key(
        1,
        "also measure the mean of the weights of this many last checkpoints, without metadata; 1: "
        "off",
        at_least=1,
    )


@dataclass(frozen=True, kw_only=True)
class DownstreamConfig:
    """Tasks of lm-evaluation-harness, on the finished models."""

    arms: list[str] = key([], "arms to score, with the baseline; empty: all")
    tasks: list[str] = key([], "names of tasks; empty: none")
    include_path: str | None = key(None, "folder of your own task files", is_path=True)
    shots: list[int] = key([0, 5], "numbers of examples before a question", at_least=0)
    prompts: dict[str, str] = key(
        {}, "task: text before its questions (`URL: en.wikipedia.org`), compared with no text"
    )
    limit: int | None = key(None, "number of questions per task, from the first", at_least=1)


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """A study: every arm is trained with every seed, and declared claims are tested."""

    title: str = key("", "heading of the report; empty: the name of the file")
    out_dir: str = key("", "folder of the study (required)", is_path=True)
    results_dir: str | None = key(
        None,
        "folder of the measurements, one small file per run; if kept under version control, any "
        "machine can continue the study and anyone can recompute the report; null: in out_dir",
        is_path=True,
    )
    config: str = key("", "configuration of the runs, as BSMETA_CONFIG (required)")
    launch: str = key("train.sh", "script of experiments/ that starts a run", choices=SCRIPTS)
    overrides: list[str] = key([], "keys of every run, in Hydra's syntax")
    seeds: list[int] = key([1, 2, 3], "seeds of the runs of each arm", at_least=0, at_most=MAX_SEED)
    random_order: bool = key(
        True,
        "train the seeds in random order, so that their numbers are independent of changes of "
        "machines or software over time; the arms of a seed follow each other (a study declared "
        "before this key existed keeps the order of its file)",
    )
    baseline: str = key("", "arm with which all others are compared (required)")
    arms: dict[str, ArmConfig] = key({}, "the arms, in the order of the report (required)")
    curve: list[float] = key(
        [0.1, 0.2, 0.4, 0.7, 1.0],
        "shares of each run at which a checkpoint is kept and measured",
        above=0,
        at_most=1,
    )
    setting: str = key(
        "", "setting of the verdicts (cooldown, steps), named in each of their sentences"
    )
    claims: dict[str, ClaimConfig] = key(
        {}, "claims that the study tests, declared before its first run"
    )
    cluster: str = key(
        DOCUMENT,
        "sampling unit of held-out text: document (verdicts generalize to other documents of these "
        "hosts) or host (to other hosts)",
        choices=CLUSTERS,
    )
    measure: MeasureConfig = key(MeasureConfig, "how checkpoints are measured")
    downstream: DownstreamConfig = key(DownstreamConfig, "tasks for the finished models")


def load_study(path: Path) -> StudyConfig:
    """Reads the file of a study.

    Raises:
        ConfigurationError: If it cannot be read or is invalid; lists all problems.
        DataError: If it is a pipe, a socket or a device.
    """
    refuse_special_file(path)
    try:
        content = parse_yaml(path.read_text(encoding="utf-8")) or {}
        values = OmegaConf.create(_escape_overrides(content))
        study = OmegaConf.to_object(merge_into_structure(StudyConfig, values))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; expected a study's file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not YAML: {error}") from error
    except (OmegaConfBaseException, ValueError) as error:
        section = getattr(error, "object_type", None)
        schema = section if is_dataclass(section) else StudyConfig
        names = ", ".join(field_.name for field_ in fields(schema))
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"{path}: {reason}; expected the keys {names}") from error

    assert isinstance(study, StudyConfig)
    problems = list(_find_shape_problems(study)) or list(_find_problems(study))
    if problems:
        raise ConfigurationError("\n".join(f"{path}: {problem}" for problem in problems))
    return study if study.title else replace(study, title=path.stem)


def _escape_overrides(values: Any) -> Any:
    """Escapes the interpolations in overrides, which the runs resolve, not the study's file."""
    if not isinstance(values, dict):
        return values

    escaped = {}
    for name, value in values.items():
        if name == "overrides" and isinstance(value, list):
            escaped[name] = [str(override).replace("${", "\\${") for override in value]
        else:
            escaped[name] = _escape_overrides(value)
    return escaped


def _find_shape_problems(section: Any, prefix: str = "") -> Iterator[str]:
    """Yields a problem for each list or mapping in place of a single value, and vice versa.

    OmegaConf checks this, too, but not for interpolated values.

    Args:
        prefix: Begins the names of the section's keys.
    """
    types = get_type_hints(type(section))
    for field_ in fields(section):
        name = f"{prefix}{field_.name}"
        value = getattr(section, field_.name)
        field_type = types[field_.name]
        container = get_origin(field_type)
        if is_dataclass(value):
            yield from _find_shape_problems(value, f"{name}.")
        elif container is dict and isinstance(value, dict):
            _, entry_type = get_args(field_type)
            yield from _find_shape_problems_of_entries(value, entry_type, name)
        elif container is list and isinstance(value, list):
            if not all(isinstance(entry, int | float | str) for entry in value):
                yield f"{name}={value}: expected a list of numbers or texts"
        elif container in (dict, list) or isinstance(value, dict | list):
            expected = {dict: "a mapping", list: "a list"}.get(container, "a single value")
            yield f"{name}={value}: expected {expected}"


def _find_shape_problems_of_entries(
    entries: dict[str, Any], entry_type: type, name: str
) -> Iterator[str]:
    """Yields the problems of the entries of a mapping, such as `arms`.

    Args:
        name: The key of the mapping.
    """
    for entry_name, entry in entries.items():
        if not isinstance(entry, entry_type):
            expected = "its keys" if is_dataclass(entry_type) else "a text"
            yield f"{name}.{entry_name}={entry}: expected {expected}"
        elif is_dataclass(entry):
            yield from _find_shape_problems(entry, f"{name}.{entry_name}.")


def _find_problems(study: StudyConfig) -> Iterator[str]:
    """Yields the problems of a study whose values have the right types."""
    yield from list_bound_lines(study)
    for problem in find_path_problems(study):
        yield f"{problem.key}={problem.found}: expected {problem.expected}; {problem.fix}"
    for name in ("out_dir", "config", "baseline", "arms", "seeds", "curve"):
        if not getattr(study, name):
            yield f"{name} is missing"
    if len(set(study.seeds)) < len(study.seeds):
        yield f"seeds={study.seeds}: expected different ones"

    yield from _find_problems_of_measurements(study.measure)
    tasks = study.downstream.tasks
    unknown = sorted(set(study.downstream.prompts) - set(tasks))
    if unknown:
        yield f"downstream.prompts: {', '.join(unknown)}; expected some of tasks {tasks}"

    yield from _find_problems_of_arms(study)
    yield from _find_problems_of_scored_arms(study)
    for name, claim in study.claims.items():
        for claim_problem in _find_problems_of_claim(study, claim):
            yield f"claims.{name}.{claim_problem}"


def _find_problems_of_measurements(measure: MeasureConfig) -> Iterator[str]:
    """Yields the problems of the settings for measuring checkpoints."""
    if measure.combinations and not measure.each_type:
        yield "measure.combinations: expected none, or measure.each_type=true"

    positions = list(measure.position_edges)
    if positions[:1] != [0] or positions != sorted(set(positions)):
        yield f"measure.position_edges={positions}: expected rising numbers that begin with 0"
    lengths = list(measure.length_edges)
    if lengths != sorted(set(lengths)):
        yield f"measure.length_edges={lengths}: expected rising numbers"


def _find_problems_of_arms(study: StudyConfig) -> Iterator[str]:
    """Yields the problems of the arms, of their relations, and of the overrides of all runs."""
    arms = study.arms
    if study.baseline and study.baseline not in arms:
        yield f"baseline={study.baseline}: expected one of the arms {', '.join(arms)}"

    overrides = list(study.overrides)
    for name, arm in arms.items():
        overrides += arm.overrides
        if not _NAME.fullmatch(name):
            yield f"arms: {name}: expected a name that a folder can have"
        for relation in ("control_of", "text_tokens_of"):
            other = getattr(arm, relation)
            if other is not None and (other not in arms or other == name):
                yield f"arms.{name}.{relation}={other}: expected another of the arms"
        if arm.text_tokens_of is not None:
            reference = arms.get(arm.text_tokens_of, arm)
            if name == study.baseline or reference.text_tokens_of is not None:
                yield f"arms.{name}.text_tokens_of: expected an arm that is trained before it"
        yield from _find_problems_of_branch(study, name)

    try:
        TopologicalSorter({name: arm.list_needed_arms() for name, arm in arms.items()}).prepare()
    except CycleError as error:
        names = " -> ".join(error.args[1])
        yield f"arms: each of {names} is needed by the next one (branch_of, text_tokens_of)"

    for override in overrides:
        if override.lstrip("+").partition("=")[0] in OWN_KEYS:
            yield f"{override}: the study sets it itself; leave it out"


def _find_problems_of_branch(study: StudyConfig, name: str) -> Iterator[str]:
    """Yields the problems of an arm's `branch_of`, `branch_at` and `decay_steps`."""
    arm = study.arms[name]
    if arm.branch_of is None:
        for key_name in ("branch_at", "decay_steps"):
            if getattr(arm, key_name) is not None:
                yield f"arms.{name}.{key_name}: expected branch_of, the arm that it branches from"
        return

    for key_name in ("branch_at", "decay_steps"):
        if getattr(arm, key_name) is None:
            yield f"arms.{name}.{key_name} is missing, because branch_of is set"

    trunk = study.arms.get(arm.branch_of)
    if trunk is None or arm.branch_of == name:
        yield f"arms.{name}.branch_of={arm.branch_of}: expected another of the arms"
    elif trunk.branch_of is not None:
        yield f"arms.{name}.branch_of={arm.branch_of}: expected an arm that is not itself a branch"
    if arm.text_tokens_of is not None:
        yield f"arms.{name}.text_tokens_of: expected none, because decay_steps sets the length"


def _find_problems_of_scored_arms(study: StudyConfig) -> Iterator[str]:
    """Yields the problems of `downstream.arms`."""
    scored_arms = study.downstream.arms
    for name in scored_arms:
        if name not in study.arms:
            yield f"downstream.arms: {name}: expected some of the arms {', '.join(study.arms)}"
    if scored_arms and study.baseline not in scored_arms:
        yield f"downstream.arms={scored_arms}: expected the baseline {study.baseline} among them"


def _find_problems_of_claim(study: StudyConfig, claim: ClaimConfig) -> Iterator[str]:
    """Yields the problems of a claim, each beginning with the key without `claims.NAME.`."""
    for name in ("label", "smallest_difference"):
        if not getattr(claim, name):
            yield f"{name} is missing"
    if claim.arm not in study.arms:
        yield f"arm={claim.arm}: expected one of the arms {', '.join(study.arms)}"
    if claim.against and claim.against not in study.arms:
        yield f"against={claim.against}: expected one of the arms {', '.join(study.arms)}"

    if claim.task:
        yield from _find_problems_of_task_claim(study, claim)
    else:
        yield from _find_problems_of_text_claim(study, claim)


def _find_problems_of_text_claim(study: StudyConfig, claim: ClaimConfig) -> Iterator[str]:
    """Yields the problems of a claim about held-out text."""
    for name in _list_changed_keys(claim, TASK_KEYS):
        value = getattr(claim, name)
        yield f"{name}={value}: expected a claim with task; add it, or leave it out"

    for name in ("minus_arm", "minus_against"):
        arm = getattr(claim, name)
        if arm and arm not in study.arms:
            yield f"{name}={arm}: expected one of the arms {', '.join(study.arms)}"
    if bool(claim.minus_arm) != bool(claim.minus_against):
        yield "minus_arm and minus_against: expected both, or neither"
    if claim.at not in (*study.curve, 1.0):
        yield f"at={claim.at}: expected 1.0 or a share of curve={study.curve}"

    for name in ("metadata", "against_metadata"):
        types = getattr(claim, name)
        if types in (WITHOUT, WITH):
            continue

        if "+" in types and types not in study.measure.combinations:
            yield f"{name}={types}: expected without, with, a type or one of measure.combinations"
        elif "+" not in types and not study.measure.each_type:
            yield f"{name}={types}: expected without or with; types need measure.each_type=true"
        if claim.at != 1 or claim.saves:
            yield f"{name}={types}: types are measured at the end of a run: expected at=1, saves=0"

    edges = study.measure.position_edges
    for name in ("bytes", "minus_bytes"):
        byte_range = getattr(claim, name)
        is_rising = byte_range == sorted(set(byte_range))
        if len(byte_range) > 2 or not is_rising or not set(byte_range) <= set(edges):
            yield f"{name}={byte_range}: expected one or two rising numbers of {list(edges)}"


def _find_problems_of_task_claim(study: StudyConfig, claim: ClaimConfig) -> Iterator[str]:
    """Yields the problems of a claim about a downstream task."""
    task = claim.task
    text_keys = [
        field_.name for field_ in fields(claim) if field_.name not in (*TASK_KEYS, *_SHARED_KEYS)
    ]
    for name in _list_changed_keys(claim, text_keys):
        yield (
            f"{name}={getattr(claim, name)}: makes no sense with task={task}, whose questions are "
            "answered by finished models; leave it out"
        )

    settings = study.downstream
    if task not in settings.tasks:
        yield f"task={task}: expected one of downstream.tasks={list(settings.tasks)}"
    if claim.shots is None:
        yield f"shots is missing; expected one of downstream.shots={list(settings.shots)}"
    elif claim.shots not in settings.shots:
        yield f"shots={claim.shots}: expected one of downstream.shots={list(settings.shots)}"
    for name in ("prompt", "against_prompt"):
        if getattr(claim, name) and task not in settings.prompts:
            yield f"{name}=true: expected a text for {task} in downstream.prompts"

    against = claim.against or study.baseline
    for name, arm in (("arm", claim.arm), ("against", against)):
        if settings.arms and arm not in settings.arms:
            yield f"{name}={arm}: expected one of downstream.arms={list(settings.arms)}"
    if (claim.arm, claim.prompt) == (against, claim.against_prompt):
        yield (
            f"against={against}: compares the arm with itself; expected another arm, or prompt and "
            "against_prompt that differ"
        )
    if claim.score == ACCURACY and (claim.smallest_difference or 0) >= 1:
        yield (
            f"smallest_difference={claim.smallest_difference}: expected a number below 1, because "
            "accuracy is a share of the questions"
        )


def _list_changed_keys(claim: ClaimConfig, names: Sequence[str]) -> list[str]:
    """Lists the keys of a claim, among `names`, that differ from their defaults."""
    defaults = ClaimConfig()
    return [name for name in names if getattr(claim, name) != getattr(defaults, name)]
