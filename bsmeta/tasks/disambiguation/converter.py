"""Converts configurations of Bootleg, of both generations, into ours.

    python -m bsmeta.tasks.disambiguation.converter wiki_config.json --out configs/wiki.yaml

prints what each key becomes, or why nothing corresponds to it, and writes the YAML, with which
`bsmeta/train.py --config-dir configs --config-name wiki` trains.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.tasks.disambiguation.config import ENTITY_TEXT

ENCODER_OF_FIRST = "google-bert/bert-base-cased"
EPOCHS_OF_FIRST, EPOCHS_OF_SECOND = 10, 1
"""What the generations train without a key that says it."""
HEADER = """\
# Converted from {source} by python -m bsmeta.tasks.disambiguation.converter
defaults:
  - disambiguation_config
  - _self_
  - optimizer: null
  - schedule: null

"""
_JSON_PARTS = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/|,(?=(?>\s+|//[^\n]*|/\*.*?\*/)*+[}\]])', re.DOTALL
)
"""Strings, and what JSON does not have: comments, and commas before a closing bracket."""
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""A number that YAML 1.1 takes for a text, such as 2e-5."""


@dataclass(frozen=True)
class Converted:
    """Our keys for a key, and a note; without keys, why nothing corresponds to it."""

    ours: tuple[tuple[str, Any], ...]
    note: str


@dataclass(frozen=True)
class Source:
    """A configuration of Bootleg.

    Attributes:
        values: Its values by dotted key.
        is_first: Whether it is of the first generation.
    """

    values: dict[str, Any]
    is_first: bool

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        return self.values.get(key, default)

    def path(self, name: str) -> str:
        """A path in the data folder."""
        return str(PurePosixPath(str(self.get("data_config.data_dir", "data")), name))

    def implied(self) -> list[tuple[tuple[str, Any], str]]:
        """Our keys that follow from the generation or its defaults, not from a key, with notes."""
        is_total = self.is_first or self.get("emmental.dataparallel") is True
        scope = ("data_config.batch_scope", "total" if is_total else "per_device")
        pairs: list[tuple[tuple[str, Any], str]] = [(scope, "what batch_size counts there")]
        for split in ("train", "dev", "test"):
            if "data_config.data_dir" in self.values and not self._has_file(split):
                pairs.append(((f"data_config.{split}_file", self.path(f"{split}.jsonl")), ""))
        epochs = "run_config.max_epochs" if self.is_first else "emmental.n_epochs"
        if epochs not in self.values and "emmental.n_steps" not in self.values:
            count = EPOCHS_OF_FIRST if self.is_first else EPOCHS_OF_SECOND
            pairs.append((("num_train_epochs", count), f"the default of {epochs}"))
        if not self.is_first:
            pairs.append((("data_config.mention_encoding", "window"), "each mention in a window"))
        elif "data_config.word_embedding.bert_model" not in self.values:
            pairs.append((("model_name", ENCODER_OF_FIRST), "the encoder of that generation"))
        return pairs

    def _has_file(self, split: str) -> bool:
        return f"data_config.{split}_dataset.file" in self.values


Rule = Callable[[Any, Source], Converted]


def _to(name: str, note: str = "") -> Rule:
    """The same value under another name."""
    return lambda value, _: Converted(((name, value),), note)


def _no(reason: str) -> Rule:
    return lambda *_: Converted((), reason)


def _file(split: str) -> Rule:
    name = f"data_config.{split}_file"
    return lambda value, source: Converted(((name, source.path(str(value))),), "")


def _weak_labels(value: Any, source: Source) -> Converted:
    if value is False:
        return Converted((), "leave out the mentions with gold=false: they are trained on")
    return Converted((), "as always: weak labels are trained on, and never scored")


def _entity_dir(value: Any, source: Source) -> Converted:
    table = f"{value}/table"
    build = f"table={table} entity_dir={value}"
    types, relations = _first_files(source) if source.is_first else _second_systems(source)
    emb_dir = source.get("data_config.emb_dir")
    if source.is_first and emb_dir:
        build += f" emb_dir={emb_dir}"
    for name, files in (("types", types), ("relations", relations)):
        if files:
            build += f" {name}=[{','.join(files)}]"
    note = f"built by bsmeta/entities.py {build}"
    return Converted((("data_config.entity_table", table),), note)


def _first_files(source: Source) -> tuple[list[str], list[str]]:
    """The files of types and of relations that embeddings name."""
    types: list[str] = []
    relations: list[str] = []
    for embedding in source.get("data_config.ent_embeddings") or []:
        arguments = embedding.get("args", {})
        if "kg_adj" in arguments:
            relations.append(arguments["kg_adj"])
        elif "type_labels" in arguments:
            is_relation = "relation" in str(embedding.get("key", ""))
            (relations if is_relation else types).append(arguments["type_labels"])
    return types, relations


def _second_systems(source: Source) -> tuple[list[str], list[str]]:
    """The type system that is used."""
    folder = source.get("data_config.entity_type_data.type_symbols_dir")
    return ([PurePosixPath(str(folder)).name], []) if folder else ([], [])


def _total_eval_batch_size(value: Any, source: Source) -> Converted:
    gpus = int(source.get("run_config.ngpus_per_node", 1))
    gpus *= int(source.get("run_config.nodes", 1))
    if int(value) % gpus:
        raise ConfigurationError(
            f"run_config.eval_batch_size={value} is the total of {gpus} GPUs and no multiple of "
            "their number; correct it"
        )
    note = f"a total, of {gpus} GPUs: ours is that of each"
    return Converted((("data_config.per_device_eval_batch_size", int(value) // gpus),), note)


def _evaluation_freq(value: Any, source: Source) -> Converted:
    unit = source.get("emmental.counter_unit", "epoch")
    if unit == "batch" or value == 0:
        return Converted((("eval_steps", int(value)),), "")
    if unit != "epoch":
        return Converted((), f"counter_unit={unit}: set eval_steps or evals_per_epoch")
    return Converted((("evals_per_epoch", max(1, round(1 / value))),), "")


def _checkpoint_freq(value: Any, source: Source) -> Converted:
    """Counts evaluations."""
    every = float(source.get("emmental.evaluation_freq", 1)) * float(value)
    unit = source.get("emmental.counter_unit", "epoch")
    if unit == "batch" or every == 0:
        return Converted((("save_steps", int(every)),), "")
    if unit != "epoch":
        return Converted((), f"counter_unit={unit}: set save_steps or saves_per_epoch")
    return Converted((("saves_per_epoch", max(1, round(1 / every))),), "")


def _checkpoint_metric(value: Any, source: Source) -> Converted:
    """`NED/Bootleg/dev/final_loss/acc_notincand:max`: the slice is the last part but one."""
    path = next(iter(value)) if isinstance(value, dict) else str(value).partition(":")[0]
    parts = path.split("/")
    if not parts[-1].startswith("acc") or len(parts) < 2:
        return Converted((("keep_best_by", "loss"), ("export_best", True)), "")
    name = "accuracy" if parts[-2] == "final_loss" else f"{parts[-2]}_accuracy"
    return Converted((("keep_best_by", name), ("export_best", True)), "")


def _scheduler(value: Any, source: Source) -> Converted:
    known = {"linear": "linear", "cosine_annealing": "cosine", None: "constant"}
    if value not in known:
        return Converted((), "expected linear, cosine_annealing or null; set lr_scheduler_type")
    return Converted((("lr_scheduler_type", known[value]),), "")


def _optimizer(value: Any, source: Source) -> Converted:
    note = "AdamW is used" if str(value).lower() in ("adam", "adamw", "bert_adam") else (
        f"{value} is not offered; AdamW is used"
    )  # fmt: skip
    return Converted((), note)


def _fp16(value: Any, source: Source) -> Converted:
    return Converted((("mixed_precision", "fp16" if value else "no"),), "")


def _writer(value: Any, source: Source) -> Converted:
    known = {"tensorboard": ["tensorboard"], "wandb": ["wandb"], "json": []}
    return Converted((("trackers", known.get(value, [])),), "metrics.jsonl is always written")


def _steps(value: Any, source: Source) -> Converted:
    return Converted((("max_train_steps", value), ("num_train_epochs", None)), "")


def _text_part(value: Any, source: Source) -> Converted:
    """The three switches together say what the text of an entity has."""
    parts = {
        "types": "data_config.entity_type_data.use_entity_types",
        "relations": "data_config.entity_kg_data.use_entity_kg",
        "description": "data_config.use_entity_desc",
    }
    chosen = [part for part in ENTITY_TEXT if source.get(parts.get(part, ""), True)]
    return Converted((("data_config.entity_text", chosen),), "")


def _normalize(value: Any, source: Source) -> Converted:
    if value:
        return Converted((), "as always")
    return Converted((), "embeddings are always normalized; scores are cosines")


def _share_evaluated(value: Any, source: Source) -> Converted:
    if float(value) == 1:
        return Converted((), "as always: all of the split")
    return Converted((), "evaluations always use all of the split")


def _frozen(value: Any, source: Source) -> Converted:
    if value:
        return Converted((("train_layers", 0),), "")
    return Converted((), "as always")


def _popularity_mask(value: Any, source: Source) -> Converted:
    if value:
        return Converted((), "as always: mask_rarest and mask_most_frequent")
    names = ("data_config.mask_rarest", "data_config.mask_most_frequent")
    return Converted(tuple((name, 0.0) for name in names), "")


_LAUNCH = _no("of the launch: accelerate launch --num_processes N [--num_machines M]")
_FOLDERS = _no("of the table's folder; built by bsmeta/entities.py")
_CACHE = _no("the environment: HF_HOME")
_OUTPUT = _no("evaluations write mentions.jsonl; predict.py predicts new texts")
_RESUME = _no("resume_from_checkpoint_dir=latest resumes out_dir, and skips what it has trained on")
_OWN_MODEL = _no("the first generation's model only")

_BOTH: dict[str, Rule] = {
    "run_config.eval_slices": _to("eval_slices"),
    "run_config.dataset_threads": _to("data_config.prep_workers"),
    "run_config.dataloader_threads": _to("data_config.num_workers"),
    "run_config.spawn_method": _no("loader processes are forked"),
    "run_config.log_level": _no("the progress is in metrics.jsonl"),
    "run_config.loglevel": _no("the progress is in metrics.jsonl"),
    "run_config.overwrite_eval_dumps": _OUTPUT,
    "run_config.dump_preds_accumulation_steps": _OUTPUT,
    "run_config.dump_preds_num_data_splits": _OUTPUT,
    "run_config.result_label_file": _OUTPUT,
    "run_config.result_emb_file": _OUTPUT,
    "run_config.dump_embs": _OUTPUT,
    "run_config.ngpus_per_node": _LAUNCH,
    "train_config.batch_size": _to("data_config.batch_size"),
    "data_config.data_dir": _no("the folder of the files of the splits"),
    "data_config.train_dataset.file": _file("train"),
    "data_config.dev_dataset.file": _file("dev"),
    "data_config.test_dataset.file": _file("test"),
    "data_config.train_dataset.use_weak_label": _weak_labels,
    "data_config.dev_dataset.use_weak_label": _weak_labels,
    "data_config.test_dataset.use_weak_label": _weak_labels,
    "data_config.data_prep_dir": lambda value, source: Converted(
        (("data_config.prep_dir", source.path(str(value))),), ""
    ),
    "data_config.eval_slices": _to("eval_slices"),
    "data_config.entity_dir": _entity_dir,
    "data_config.entity_map_dir": _FOLDERS,
    "data_config.entity_prep_dir": _FOLDERS,
    "data_config.alias_cand_map": _FOLDERS,
    "data_config.alias_idx_map": _FOLDERS,
    "data_config.overwrite_preprocessed_data": _to("data_config.overwrite_prep"),
    "data_config.print_examples_prep": _no("not offered"),
    "data_config.train_in_candidates": _to("train_in_candidates"),
    "data_config.word_embedding.cache_dir": _CACHE,
    "data_config.word_embedding.bert_model": _to("model_name"),
}

FIRST: dict[str, Rule] = {
    **_BOTH,
    "run_config.distributed": _LAUNCH,
    "run_config.nodes": _LAUNCH,
    "run_config.node_rank": _LAUNCH,
    "run_config.gpu": _LAUNCH,
    "run_config.dist_backend": _no("nccl on GPUs, gloo on CPUs"),
    "run_config.eval_batch_size": _total_eval_batch_size,
    "run_config.nr": _LAUNCH,
    "run_config.cpu": _LAUNCH,
    "run_config.dist_url": _LAUNCH,
    "run_config.eval_steps": _to("eval_steps"),
    "run_config.perc_eval": _share_evaluated,
    "run_config.min_eval_size": _share_evaluated,
    "run_config.save_every_k_eval": _no("save_steps or saves_per_epoch, whatever is evaluated"),
    "run_config.topk": _no("always 5 (top5)"),
    "run_config.timestamp": _no("out_dir is used as it is"),
    "run_config.model_suffix": _no("out_dir is used as it is"),
    "run_config.log_every": _to("logging_steps"),
    "run_config.log_steps": _to("logging_steps"),
    "run_config.max_epochs": _to("num_train_epochs"),
    "run_config.save_dir": _to("out_dir"),
    "run_config.seed": _to("seed"),
    "run_config.init_checkpoint": _RESUME,
    "train_config.load_optimizer_from_ckpt": _RESUME,
    "train_config.softmax_temp": _OWN_MODEL,
    "train_config.slice_method": _OWN_MODEL,
    "train_config.train_heads": _OWN_MODEL,
    "train_config.random_nil": _no("train_in_candidates=false makes NIL a candidate"),
    "train_config.random_nil_perc": _no("train_in_candidates=false makes NIL a candidate"),
    "train_config.lr": _to("learning_rate"),
    "train_config.weight_decay": _to("weight_decay"),
    "train_config.seed": _to("seed"),
    "train_config.dropout": _no("that of the encoder's own configuration"),
    "model_config.*": _no("the model is the bi-encoder of Bootleg 1.1, for both generations"),
    "prep_config.*": _no("prep follows the keys of data_config"),
    "data_config.emb_dir": _no("types and relations are in the table of entities"),
    "data_config.ent_embeddings": _no(
        "entities are encoded from their texts, with the types and relations of these files"
    ),
    "data_config.type_prediction.*": _OWN_MODEL,
    "data_config.max_aliases": _to("data_config.max_mentions"),
    "data_config.max_word_token_len": _to("data_config.max_words"),
    "data_config.word_embedding.layers": _to("encoder_layers"),
    "data_config.word_embedding.freeze": _frozen,
    "data_config.word_embedding.freeze_sent_emb": _frozen,
    "data_config.word_embedding.freeze_word_emb": _no("train_layers never trains the embeddings"),
    "data_config.word_embedding.use_lower_case": _no("the tokenizer of model_name decides"),
    "data_config.word_embedding.*": _no("the encoder is that of model_name"),
}

SECOND: dict[str, Rule] = {
    **_BOTH,
    "emmental.lr": _to("learning_rate"),
    "emmental.l2": _to("weight_decay"),
    "emmental.n_epochs": _to("num_train_epochs"),
    "emmental.n_steps": _steps,
    "emmental.optimizer": _optimizer,
    "emmental.lr_scheduler": _scheduler,
    "emmental.warmup_percentage": _to("warmup_share"),
    "emmental.warmup_steps": _to("num_warmup_steps"),
    "emmental.grad_clip": _to("gradient_clipping"),
    "emmental.gradient_accumulation_steps": _to("gradient_accumulation_steps"),
    "emmental.seed": _to("seed"),
    "emmental.log_path": _to("out_dir"),
    "emmental.use_exact_log_path": _no("out_dir is used as it is"),
    "emmental.writer": _writer,
    "emmental.counter_unit": _no("the unit of evaluation_freq"),
    "emmental.evaluation_freq": _evaluation_freq,
    "emmental.checkpointing": _no("a run always saves; save_steps=0: only at its end"),
    "emmental.checkpoint_freq": _checkpoint_freq,
    "emmental.checkpoint_metric": _checkpoint_metric,
    "emmental.checkpoint_all": _no("keep_last_checkpoints says how many are kept"),
    "emmental.clear_intermediate_checkpoints": _no("keep_last_checkpoints says how many are kept"),
    "emmental.distributed_backend": _no("nccl on GPUs, gloo on CPUs"),
    "emmental.fp16": _fp16,
    "emmental.dataparallel": _no("processes are started by the launch; see batch_scope"),
    "emmental.online_eval": _no("evaluations follow eval_steps or evals_per_epoch"),
    "emmental.device": _LAUNCH,
    "emmental.model_path": _RESUME,
    "emmental.steps_learned": _RESUME,
    "emmental.epochs_learned": _RESUME,
    "emmental.skip_learned_data": _RESUME,
    "run_config.eval_batch_size": _to("data_config.per_device_eval_batch_size"),
    "model_config.hidden_size": _to("embedding_size"),
    "model_config.temperature": _to("temperature"),
    "model_config.normalize": _normalize,
    "data_config.max_seq_len": _no("rows are limited by max_words and by the encoder"),
    "data_config.max_seq_window_len": _to("data_config.window_length"),
    "data_config.max_ent_len": _to("data_config.max_entity_length"),
    "data_config.context_mask_perc": _no("only mentions are masked, not the words around them"),
    "data_config.popularity_mask": _popularity_mask,
    "data_config.qid_cnt_map": _no("entities are counted in the training data"),
    "data_config.entity_type_data.use_entity_types": _text_part,
    "data_config.entity_kg_data.use_entity_kg": _text_part,
    "data_config.use_entity_desc": _text_part,
    "data_config.entity_type_data.*": _FOLDERS,
    "data_config.entity_kg_data.*": _FOLDERS,
    "data_config.word_embedding.context_layers": _to("encoder_layers"),
    "data_config.word_embedding.entity_layers": _no("entities have all layers of their encoder"),
}


@dataclass(frozen=True)
class Row:
    """What a key of the old configuration became.

    Attributes:
        key: The dotted key.
        value: Its value.
        ours: Our keys and their values; empty if nothing corresponds to it.
        note: What else there is to know: what it means, or why nothing corresponds to it.
    """

    key: str
    value: Any
    ours: tuple[tuple[str, Any], ...]
    note: str


def convert(config: Mapping[str, Any]) -> list[Row]:
    """What each key of a configuration becomes.

    Args:
        config: The configuration; with the block `emmental`, it is of the second generation.

    Raises:
        ConfigurationError: If a value cannot be converted.
    """
    source = Source(dict(_leaves(config)), is_first="emmental" not in config)
    rules = FIRST if source.is_first else SECOND
    rows = []
    for key, value in source.values.items():
        rule = next((rules[name] for name in _names(key) if name in rules), _unknown)
        converted = rule(value, source)
        rows.append(Row(key, value, converted.ours, converted.note))
    implied = source.implied()
    return rows + [Row("", None, (pair,), note) for pair, note in implied]


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and name != "checkpoint_metric":
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, str) and _EXPONENT.fullmatch(value):
            yield prefix + name, float(value)
        else:
            yield prefix + name, value


def _names(key: str) -> Iterator[str]:
    """The rules that a key may have: its own, then those of the blocks around it."""
    yield key
    while "." in key:
        key = key.rpartition(".")[0]
        yield f"{key}.*"


def _unknown(value: Any, source: Source) -> Converted:
    return Converted((), "unknown here; see whether you need it")


def as_yaml(rows: list[Row], source: str) -> str:
    """Our configuration.

    Raises:
        ConfigurationError: If two keys become one with different values.
    """
    found: dict[str, Any] = {}
    for row in rows:
        for name, value in row.ours:
            if found.setdefault(name, value) != value:
                raise ConfigurationError(
                    f"{row.key}={row.value!r} becomes {name}={value!r}, but another key makes it "
                    f"{found[name]!r}; leave one of them out"
                )
    nested: dict[str, Any] = {}
    for name in sorted(found, key=lambda name: ("." in name, name)):
        *sections, last = name.split(".")
        section = nested
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = found[name]
    return HEADER.format(source=source) + yaml.safe_dump(nested, sort_keys=False)


def as_text(rows: list[Row]) -> str:
    """The rows: each key with its value, and indented what it becomes."""
    return "\n".join("\n    ".join([_stated(row), *_becomes(row)]) for row in rows)


def _stated(row: Row) -> str:
    return f"{row.key}={_shown(row.value)}" if row.key else "(not stated there)"


def _becomes(row: Row) -> list[str]:
    if not row.ours:
        return [f"-> nothing: {row.note}"]
    return [*(f"-> {name}={_shown(value)}" for name, value in row.ours), *filter(None, [row.note])]


def _shown(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()
    )


def main(arguments: list[str]) -> int:
    """Prints the rows and writes the YAML; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, help="JSON or YAML file of Bootleg")
    parser.add_argument("--out", type=Path, help="our YAML file")
    chosen = parser.parse_args(arguments)
    try:
        rows = convert(_read(chosen.config))
        text = as_yaml(rows, chosen.config.name)
        print(as_text(rows))
        if chosen.out is not None:
            chosen.out.parent.mkdir(parents=True, exist_ok=True)
            chosen.out.write_text(text)
            print(f"written to {chosen.out}")
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _read(path: Path) -> dict[str, Any]:
    """The content of a file: YAML, or JSON with comments.

    Raises:
        ConfigurationError: If it is neither.
    """
    text = path.read_text(encoding="utf-8")
    is_json = text.lstrip().startswith(("{", "//", "/*"))
    try:
        config = json.loads(_JSON_PARTS.sub(_as_json, text)) if is_json else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        form = "JSON" if is_json else "YAML"
        raise ConfigurationError(f"{path} is no {form}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path}: expected blocks of keys, such as data_config")
    return config


def _as_json(part: re.Match[str]) -> str:
    return part[0] if part[0].startswith('"') else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
