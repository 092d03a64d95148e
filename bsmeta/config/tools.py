"""Schemas of the programs beside `train.py`; and the configuration of a run, as they read it.

`EvaluateConfig` is that of `evaluate.py`; the others are those of `generate.py`, `download.py`,
`entities.py` and `predict.py`.
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
from bsmeta.config.compose import load_resolved
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import TaskEntry
from bsmeta.core.errors import ConfigurationError, refuse_out_of_bounds
from bsmeta.core.keys import key

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


@dataclass(kw_only=True)
class DownloadConfig:
    """Downloads the files of a manifest, verifies and unpacks them."""

    manifest: str | None = key(
        None,
        "JSON or YAML file with `files`: each `path`, `address`, `bytes`, `sha256`, and of an "
        "archive `unpack` (a folder) and `unpacked_bytes`",
        is_path=True,
    )
    folder: str | None = key(None, "where the files go", is_path=True)
    mirror: str | None = key(
        None,
        "what relative addresses begin with: http(s):// or file://; null: the folder of the "
        "manifest",
    )
    keep_archives: bool = key(False, "keep archives that were unpacked")
    retries: int = key(
        8, "failures in a row after which a download is given up; progress starts over", at_least=0
    )
    timeout: float = key(60.0, "seconds without data after which a request is repeated", above=0)


@dataclass(kw_only=True)
class EntitiesConfig:
    """The table of the entities that mentions may mean: built, added to, or described."""

    table: str | None = key(None, "folder of the table", is_path=True)
    profiles: str | None = key(
        None, "build the table from profiles: .jsonl(.gz, .zst), an entity each line", is_path=True
    )
    entity_dir: str | None = key(
        None,
        "build the table from the entity files of Bootleg: the folder that has entity_mappings/ "
        "(in the second generation also type_mappings/ and kg_mappings/)",
        is_path=True,
    )
    emb_dir: str | None = key(
        None,
        "the first generation's folder of types and relations",
        is_path=True,
    )
    types: list[str] | None = key(
        None,
        "files of emb_dir with types: FILE, or FILE:VOCABULARY if that is not type_vocab.json; or "
        "the systems of type_mappings/; null: qid2types.json, or all systems; []: none",
    )
    relations: list[str] | None = key(
        None,
        "files of emb_dir or kg_mappings/ with relations: FILE, or FILE:VOCABULARY if that is not "
        "relation_vocab.json; null: qid2relations.json and kg_conn.txt, or qid2relations; []: none",
    )
    max_candidates: int | None = key(
        None,
        "candidates that an alias keeps: those with the highest scores; null: 30, or what "
        "entity_mappings/config.json says",
        at_least=1,
    )
    add: str | None = key(
        None, "profiles of entities to add to the table, which keeps its numbers", is_path=True
    )
    checkpoint: str | None = key(
        None,
        "a run folder or a checkpoint, whose model encodes the added entities at once; null: each "
        "when it is first a candidate",
        is_path=True,
    )


@dataclass(kw_only=True)
class PredictConfig:
    """The predictions of a trained model for new records."""

    checkpoint: str = key(
        "runs/classification",
        "a run folder (its model/, else that of its newest checkpoint with one), or a checkpoint "
        "folder",
        is_path=True,
    )
    overrides: dict[str, Any] = key(
        {},
        "keys of the training configuration to change, such as "
        "+overrides.data_config.text_column=body",
    )
    input: str | None = key(
        None,
        "records: .csv, .tsv or .jsonl, also .gz, with the columns of the training; or, for a "
        "spelling task, a text: any other file, or - for standard input",
        is_path=True,
    )
    output: str | None = key(
        None,
        "the records with their predictions: .csv or .jsonl. OUTPUT.part until it is complete; the "
        "same call continues it (for a text: null prints the result)",
        is_path=True,
    )
    show: str = key(
        "auto",
        "what is made of a text: text: the corrected text alone; color: the text, with errors in "
        "red and corrections in green; json: each change with its character offsets; diff: the "
        "corrections, for `patch`; auto: color on a terminal, otherwise text (a detector has "
        "neither text nor diff)",
        choices=("auto", "text", "color", "json", "diff"),
    )
    csv_separator: str = key("auto", "character between columns; auto: , ; tab or |")
    csv_encoding: str = key("auto", "encoding of a CSV file; auto: UTF-8, UTF-16 or UTF-32")
    on_bad_row: str = key(
        "refuse",
        "a record without text, or that cannot be read; skip: leave it out, and count",
        choices=("refuse", "skip"),
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
