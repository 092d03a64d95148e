"""Schema of a study: arms × seeds, what is measured, and which claims are tested."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.checks.problems import bound_lines
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.evaluation import WINDOWS
from bsmeta.config.keys import key
from bsmeta.config.schema import LARGEST_SEED

SCRIPTS = ("train.sh", "several_machines.sh")
OWN_KEYS = (
    "seed", "out_dir", "resume_from_checkpoint_dir", "overwrite_out_dir", "log_documents",
    "extra_steps_to_eval_save_at", "keep_last_checkpoints",
)  # fmt: skip
"""Keys of a training run that the study sets itself."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(kw_only=True)
class ArmConfig:
    """One way to train, with every seed."""

    overrides: list[str] = key([], "keys of the training run, in Hydra's syntax")
    label: str = key("", "its name in tables and plots; empty: that of the arm")
    control_of: str | None = key(
        None, "the arm whose metadata it has without their content; what it gains is no content"
    )
    text_tokens_of: str | None = key(
        None,
        "train on as many text tokens as this arm with the same seed did (max_train_steps follows "
        "from the text tokens that a step of the baseline has)",
    )


@dataclass(kw_only=True)
class MeasureConfig:
    """How each checkpoint is measured: on the same bytes for all arms."""

    validation_file: str | None = key(None, "held-out shard; null: that of the runs", is_path=True)
    windows: str = key("sliding", "as windows of evaluate.py", choices=WINDOWS)
    max_documents: int | None = key(None, "only the first so many documents", at_least=1)
    max_characters: int | None = key(
        None,
        "score only the first so many characters of each document; its metadata stays whole",
        at_least=1,
    )
    each_type: bool = key(True, "at the last checkpoint, also each type of metadata by itself")
    position_edges: list[int] = key(
        [0, 256, 1024, 4096], "bytes at which the bins of the gain by position begin", at_least=0
    )
    length_edges: list[int] = key(
        [1000, 4000],
        "bytes at which the groups of the gain by length of a document begin",
        at_least=0,
    )
    sites: int = key(5, "most frequent hosts with a gain of their own", at_least=0)
    resamples: int = key(10_000, "resamples of seeds and documents for each interval", at_least=100)
    seed: int = key(1, "seed of the resamples", at_least=0)


@dataclass(kw_only=True)
class DownstreamConfig:
    """Tasks of lm-evaluation-harness, on the finished models."""

    tasks: list[str] = key([], "their names; empty: none are run")
    include_path: str | None = key(None, "folder with task files of your own", is_path=True)
    shots: list[int] = key([0, 5], "numbers of examples before the question", at_least=0)
    prompts: dict[str, str] = key(
        {}, "task: the text that conditions it (`URL: en.wikipedia.org`), compared with none"
    )
    limit: int | None = key(None, "only the first so many questions of a task", at_least=1)


@dataclass(kw_only=True)
class StudyConfig:
    """A study: every arm is trained with every seed, and compared with the baseline."""

    title: str = key("", "heading of the report; empty: the name of the file")
    out_dir: str = key("", "folder of the study (required)", is_path=True)
    config: str = key("", "configuration of the runs, as BSMETA_CONFIG (required)")
    launch: str = key("train.sh", "script of experiments/ that starts a run", choices=SCRIPTS)
    overrides: list[str] = key([], "keys of every run, in Hydra's syntax")
    seeds: list[int] = key(
        [1, 2, 3], "seeds of the runs of each arm", at_least=0, at_most=LARGEST_SEED
    )
    baseline: str = key("", "the arm that all others are compared with (required)")
    arms: dict[str, ArmConfig] = key({}, "the arms, in the order of the report (required)")
    curve: list[float] = key(
        [0.1, 0.2, 0.4, 0.7, 1.0],
        "shares of each run after which its model is kept and measured",
        above=0,
        at_most=1,
    )
    measure: MeasureConfig = key(MeasureConfig, "how checkpoints are measured")
    downstream: DownstreamConfig = key(DownstreamConfig, "tasks for the finished models")


def load_study(path: Path) -> StudyConfig:
    """Reads the file of a study.

    Raises:
        ConfigurationError: If it cannot be read or does not fit; lists all that is wrong.
    """
    try:
        values = OmegaConf.create(_shielded(yaml.safe_load(path.read_text(encoding="utf-8")) or {}))
        study = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(StudyConfig), values))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}; expected a study's file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not YAML: {error}") from error
    except (OmegaConfBaseException, ValueError) as error:
        known = ", ".join(one.name for one in fields(StudyConfig))
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"{path}: {reason}; expected the keys {known}") from error
    assert isinstance(study, StudyConfig)
    problems = list(_problems(study))
    if problems:
        raise ConfigurationError("\n".join(f"{path}: {one}" for one in problems))
    study.title = study.title or path.stem
    return study


def _shielded(values: Any) -> Any:
    """The values with the interpolations of overrides escaped: the runs are to resolve them."""
    if isinstance(values, dict):
        return {
            name: [str(one).replace("${", "\\${") for one in value]
            if name == "overrides" and isinstance(value, list)
            else _shielded(value)
            for name, value in values.items()
        }
    return values


def _problems(study: StudyConfig) -> list[str]:
    found = bound_lines(study)
    for name in ("out_dir", "config", "baseline", "arms", "seeds", "curve"):
        if not getattr(study, name):
            found.append(f"{name} is missing")
    arms = study.arms
    found += [f"arms: {name}: expected a name that a folder can have" for name in arms
              if not _NAME.fullmatch(name)]  # fmt: skip
    if study.baseline and study.baseline not in arms:
        found.append(f"baseline={study.baseline}: expected one of the arms {', '.join(arms)}")
    for name, arm in arms.items():
        for relation in ("control_of", "text_tokens_of"):
            other = getattr(arm, relation)
            if other is not None and (other not in arms or other == name):
                found.append(f"arms.{name}.{relation}={other}: expected another of the arms")
        if arm.text_tokens_of is not None and (
            name == study.baseline or arms.get(arm.text_tokens_of, arm).text_tokens_of is not None
        ):
            found.append(f"arms.{name}.text_tokens_of: expected an arm that is trained before it")
    if len(set(study.seeds)) < len(study.seeds):
        found.append(f"seeds={study.seeds}: expected different ones")
    for override in [*study.overrides, *(one for arm in arms.values() for one in arm.overrides)]:
        if override.lstrip("+").partition("=")[0] in OWN_KEYS:
            found.append(f"{override}: the study sets it itself; leave it out")
    return found
