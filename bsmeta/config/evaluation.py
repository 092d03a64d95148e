"""Schemas of the programs on trained models, and the configuration of a run, as they read it.

`EvaluateConfig` is that of `evaluate.py`, `GenerateConfig` of `generate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks import TaskEntry
from bsmeta.config.compose import load_resolved
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.keys import key, refuse_out_of_bounds

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
        None,
        "config.yaml of the run; null: found beside the model (defaults for a Hub model)",
        is_path=True,
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
        "without content: form (junk words, to about the length of the document's own prefix in "
        "characters), separator (only what closes a prefix)",
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


@dataclass(kw_only=True)
class GenerateConfig:
    """Text under given metadata (mode=text), or metadata of given text (mode=attribute)."""

    mode: str = key(
        "text",
        "text: generate under metadata; attribute: infer metadata from text",
        choices=("text", "attribute"),
    )
    checkpoint: str = key(
        "runs/demo",
        "a run folder (its model/, else that of its newest checkpoint with one), a checkpoint "
        "folder, a folder that from_pretrained loads, or a Hub model as hf://owner/name",
        is_path=True,
    )
    training_config: str | None = key(
        None,
        "config.yaml of the run; null: found beside the model (defaults for a Hub model)",
        is_path=True,
    )
    overrides: dict[str, Any] = key({}, "keys of that configuration to change")
    precision: str = key(
        "auto", "auto: bfloat16 on a GPU if the run was trained in bf16", choices=PRECISIONS
    )

    metadata: dict[str, Any] = key(
        {},
        "values of global types, such as {url: 'https://docs.python.org/', title: Sets}; a local "
        "type can be announced: {html: true}",
    )
    prompt: str = key(
        "",
        "text to continue (without metadata and prompt, the first word is a guess: training takes "
        "no loss on it); in mode=attribute: the text, instead of a file's",
    )
    null_metadata: dict[str, Any] = key({}, "metadata of the context that guidance leads away from")
    guidance: float = key(
        1.0,
        "g in `null + g (metadata - null)` of log-probabilities: 1 plain, above 1 stronger",
        finite=True,
    )
    max_new_tokens: int = key(
        100, "tokens to write at most; ends at the end-of-text token, too", at_least=1
    )
    temperature: float = key(
        0.8, "0: always the most likely token; 1: as the model says", at_least=0, finite=True
    )
    top_p: float = key(
        0.95, "draw from the smallest set of tokens that has this probability", above=0, at_most=1
    )
    seed: int = key(42, "seed of the first sample; the next one has the next number", at_least=0)
    num_samples: int = key(1, "texts to write under the same metadata", at_least=1)
    batch_size: int = key(
        16, "texts written, or scored under all candidates, at one time", at_least=1
    )

    compare: list[dict[str, Any]] = key(
        [], "metadata to see side by side from the same seeds, such as [{}, {title: Sets}]"
    )
    interactive: bool = key(False, "read prompts and key=value lines from standard input")
    input: str | None = key(
        None,
        "JSON lines of requests: metadata, prompt, and any key that says how to draw",
        is_path=True,
    )
    output: str | None = key(
        None, "JSON lines to write: the requests with their samples", is_path=True
    )

    type: str = key("url", "attribute: the metadata type to infer")
    candidates: list[str] = key(
        [], "attribute: its values (url: hosts, timestamp: years); []: those of the held-out file"
    )
    prior: str = key(
        "uniform",
        "attribute: of the candidates; empirical: how often each is in the file",
        choices=("uniform", "empirical"),
    )
    windows: str = key(
        "first_piece",
        "attribute: how much of the text is read",
        choices=("first_piece", "all_pieces"),
    )
    validation_file: str | None = key(
        None, "attribute: held-out shard; null: that of the training run", is_path=True
    )
    max_documents: int | None = key(
        None, "attribute: number of documents to use, from the first", at_least=1
    )
    bootstrap_resamples: int = key(10_000, "attribute: resamples for each interval", at_least=1)
    out_dir: str | None = key(
        None, "attribute: where attribution-{type}.json goes; null: the run folder", is_path=True
    )


def saved_task(path: Path) -> str:
    """The task of a run, from its `config.yaml`; causal_lm if the file names none.

    A file that cannot be read is refused when it is used.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return "causal_lm"
    return str(values.get("task", "causal_lm")) if isinstance(values, dict) else "causal_lm"


def refuse_other_tasks(path: Path) -> None:
    """Refuses the `config.yaml` of a run of any task other than causal_lm."""
    task = saved_task(path)
    if task != "causal_lm":
        raise ConfigurationError(f"{path}: trained with task={task}; expected causal_lm")


def saved_config(
    path: Path, tasks: Mapping[str, TaskEntry], overrides: Mapping[str, Any]
) -> RunConfig:
    """The configuration of a training run of one of some tasks, with some keys changed."""
    task = saved_task(path)
    if task not in tasks:
        raise ConfigurationError(f"{path}: task={task}; expected one of {', '.join(tasks)}")
    return _changed(load_resolved(path, tasks[task].config), overrides)


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


def refuse_unused(
    config: EvaluateConfig | GenerateConfig, used: Sequence[str], purpose: str
) -> None:
    """Refuses keys that are set although they have no meaning for a purpose.

    Args:
        purpose: As the message names it, such as `mode=text`.
    """
    default = type(config)()
    names = [field.name for field in fields(config) if field.name not in used]
    unused = [name for name in names if getattr(config, name) != getattr(default, name)]
    if unused:
        raise ConfigurationError(
            f"{', '.join(unused)}: without a meaning for {purpose}; expected some of "
            f"{', '.join(used)}"
        )
