"""Schema of an evaluation: which model, which held-out documents, which comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import load_resolved
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.keys import key
from bsmeta.core.problems import refuse_out_of_bounds

Config = TypeVar("Config", bound=RunConfig)

SLICE_KINDS = ("site", "length", "time")
WINDOWS = ("sliding", "all_pieces", "first_piece")
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(kw_only=True)
class SliceConfig:
    """Documents to report by themselves, such as `{by: length, edges: [1000, 10000]}`."""

    by: str = key(
        "site", "site: host of the address; length: bytes of text; time: year", choices=SLICE_KINDS
    )
    sites: list[str] = key([], "site: host names or patterns such as *.python.org")
    top: int = key(10, "site, where none are named: number of most frequent hosts", at_least=1)
    edges: list[int] = key([], "length, time: where one slice ends and the next begins", at_least=0)


@dataclass(kw_only=True)
class EvaluateConfig:
    """An evaluation of a trained model on held-out documents."""

    checkpoint: Any = key(
        "runs/demo",
        "a run folder (its model/, else that of its newest checkpoint with one), a checkpoint "
        "folder, a folder that from_pretrained loads, or a Hub model as hf://owner/name; or a list "
        "of them",
        is_path=True,
    )
    untrained: bool = key(
        False, "also the model that the (first) run started from, before any training"
    )
    training_config: str | None = key(
        None, "config.yaml of the run; null: found beside the model (defaults for a Hub model)"
    )
    overrides: dict[str, Any] = key(
        {}, "keys of that configuration to change: +overrides.data_config.bad_documents=skip"
    )
    out_dir: str | None = key(
        None,
        "where the report goes; null: evaluation/ in the run folder (for another validation_file "
        "than the run's: evaluation-NAME/; evaluation-NAME-FOLDER/ for a second file of that name)",
        is_path=True,
    )

    validation_file: str | None = key(
        None, "held-out shard; null: that of the training run", is_path=True
    )
    max_documents: int | None = key(None, "number of documents to use, from the first", at_least=1)
    deduplicate: bool = key(True, "use only the first of the documents with one text")
    metadata_list: list[str] | None = key(
        None, "types to evaluate; null: those of the training run"
    )
    comparisons: list[str] = key(
        ["all", "each"],
        "all: every type together; each: every type alone; left_out: all but one, for each; added: "
        "all against all but one, for each",
        choices=("all", "each", "left_out", "added"),
    )
    chosen: list[str] = key([], "further sets of types, such as url+title")
    controls: list[str] = key(
        ["matched", "form", "separator"],
        "all, each and chosen again, and compared with, values of another document: shuffled (any "
        "other), wrong (a different value), matched (wrong, of about the same length); or a prefix "
        "without content: form (the same number of junk words), "
        "separator (only what closes a prefix)",
        choices=("shuffled", "wrong", "matched", "form", "separator"),
    )
    prompt: bool = key(
        False, "all, each and chosen again in plain English (`Title: ...; URL: ....`)"
    )
    slices: list[SliceConfig] = key(
        [],
        "kinds of documents to report by themselves, such as [{by: site, top: 5}, "
        "{by: length, edges: [1000, 10000]}, {by: time, edges: [2018]}] (length in bytes)",
    )
    windows: str = key(
        "sliding",
        "sliding: overlapping windows, so that all text has context; all_pieces: the chunks that "
        "training uses, each of which begins without context (differences are then larger); "
        "first_piece: the first max_seq_len tokens",
        choices=WINDOWS,
    )
    position_edges: list[int] = key(
        [0, 256, 1024, 4096, 16384],
        "bytes at which the bins of the position curves begin (in the document, and of context)",
        at_least=0,
    )

    per_device_eval_batch_size: int | None = key(
        None, "full sequences in a batch of one process; null: that of the training run", at_least=1
    )
    precision: str = key(
        "auto", "auto: bfloat16 on a GPU if the run was trained in bf16", choices=PRECISIONS
    )
    bootstrap_resamples: int = key(
        10_000, "resamples of the documents for each interval", at_least=1
    )
    seed: int = key(42, "seed of the resamples and of the controls", at_least=0)


def refuse_other_tasks(path: Path) -> None:
    """Refuses the `config.yaml` of a run of any task other than causal_lm."""
    task = saved_task(path)
    if task != "causal_lm":
        raise ConfigurationError(f"{path}: trained with task={task}; expected causal_lm")


def saved_task(path: Path) -> str:
    """The task of a run, from its `config.yaml`; causal_lm if the file names none.

    A file that cannot be read is refused when it is used.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return "causal_lm"
    return str(values.get("task", "causal_lm")) if isinstance(values, dict) else "causal_lm"


def saved_config(
    path: Path, schemas: Mapping[str, type[RunConfig]], overrides: Mapping[str, Any]
) -> RunConfig:
    """The configuration of a training run of any task, with some keys changed."""
    task = saved_task(path)
    if task not in schemas:
        raise ConfigurationError(f"{path}: task={task}; expected one of {', '.join(schemas)}")
    return _changed(load_resolved(path, schemas[task]), overrides)


def training_config(path: Path | None, overrides: Mapping[str, Any]) -> CausalLMConfig:
    """The configuration of the training run, with some keys changed.

    Args:
        path: The run's `config.yaml`; None: the defaults of the schema.
    """
    if path is not None:
        refuse_other_tasks(path)
    config = CausalLMConfig() if path is None else load_resolved(path, CausalLMConfig)
    return _changed(config, overrides)


def _changed(config: Config, overrides: Mapping[str, Any]) -> Config:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(config), OmegaConf.create(dict(overrides)))
        changed = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(
            f"overrides={dict(overrides)}: {reason}; expected keys of the training configuration "
            "(python bsmeta/train.py --help lists them)"
        ) from error
    assert isinstance(changed, type(config))
    if overrides:
        refuse_out_of_bounds(changed, "overrides.")
    return changed


def refuse_unused(config: EvaluateConfig, used: Sequence[str], task: str) -> None:
    """Refuses keys that are set although they have no meaning for a task.

    Args:
        task: The task, as the message names it.
    """
    default = EvaluateConfig()
    names = [field.name for field in fields(config) if field.name not in used]
    unused = [name for name in names if getattr(config, name) != getattr(default, name)]
    if unused:
        raise ConfigurationError(
            f"{', '.join(unused)}: without a meaning for a checkpoint of {task}; expected some of "
            f"{', '.join(used)}"
        )
