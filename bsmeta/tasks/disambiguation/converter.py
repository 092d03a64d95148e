"""Converts configurations of Bootleg, of both generations, into ours.

    python -m bsmeta.tasks.disambiguation.converter wiki_config.json --out configs/wiki.yaml

prints what each key becomes, or why nothing corresponds to it, and writes the YAML, with which
`bsmeta/train.py --config-dir configs --config-name wiki` trains.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.core.exit_codes import EXIT_USER_ERROR
from bsmeta.core.parsing import parse_json, parse_yaml
from bsmeta.core.printable import printable
from bsmeta.core.process import exit_code
from bsmeta.tasks.disambiguation.config import ENTITY_TEXT

ENCODER_OF_FIRST = "google-bert/bert-base-cased"
EPOCHS_OF_FIRST, EPOCHS_OF_SECOND = 10, 1  # what the generations train without a key that says it
HEADER = """\
# Converted from {source} by python -m bsmeta.tasks.disambiguation.converter
defaults:
  - disambiguation_config
  - _self_
  - optimizer: null
  - schedule: null

"""
_JSON_PARTS = re.compile(
    r"""
    (?P<kept> "(?:\\.|[^"\\])*+"? | /\*(?!.*?\*/).* )
    | //[^\n]* | /\*.*?\*/ | ,(?=(?>\s+|//[^\n]*|/\*.*?\*/)*+[}\]])
    """,
    re.DOTALL | re.VERBOSE,
)
"""Strings, and what JSON does not have: comments, and commas before a closing bracket.

What is not closed, which is no JSON either, is kept up to the end.
"""
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""A number that YAML 1.1 takes for a text, such as 2e-5."""


@dataclass(frozen=True)
class Row:
    """What a key of the old configuration became."""

    key: str  # dotted; empty if our keys follow from what is not stated there
    value: Any
    ours: dict[str, Any]  # our keys and their values; empty if nothing corresponds to it
    note: str  # what it means, or why nothing corresponds to it


class Source(dict[str, Any]):
    """A configuration of Bootleg: values by dotted key.

    With the block `emmental`, it is of the second generation.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(_leaves(config))
        self.is_first = "emmental" not in config

    def path(self, name: str) -> str:
        """A path in the data folder."""
        return str(PurePosixPath(str(self.get("data_config.data_dir", "data")), name))

    def implied(self) -> Iterator[Row]:
        """Our keys that follow from the generation or its defaults, not from a key."""

        def row(name: str, value: Any, note: str = "") -> Row:
            return Row("", None, {name: value}, note)

        # Emmental's batch is that of each GPU if it is launched with DDP. Otherwise the batch is
        # divided among the GPUs, unless `dataparallel`, whose default is true, is false.
        scope, note = "total", "what batch_size counts there"
        if not self.is_first:
            scope, note = "per_device", f"{note} under DDP; if it was started without, total"
        yield row("data_config.batch_scope", scope, note)
        for split in ("train", "dev", "test"):
            is_named = f"data_config.{split}_dataset.file" in self
            if "data_config.data_dir" in self and not is_named:
                yield row(f"data_config.{split}_file", self.path(f"{split}.jsonl"))
        epochs = "run_config.max_epochs" if self.is_first else "emmental.n_epochs"
        if epochs not in self and "emmental.n_steps" not in self:
            count = EPOCHS_OF_FIRST if self.is_first else EPOCHS_OF_SECOND
            yield row("num_train_epochs", count, f"the default of {epochs}")
        if not self.is_first:
            yield row("data_config.mention_encoding", "window", "each mention in a window")
        elif "data_config.word_embedding.bert_model" not in self:
            yield row("model_name", ENCODER_OF_FIRST, "the encoder of that generation")


Converted = tuple[dict[str, Any], str]
"""Our keys for a key, and a note; without keys, why nothing corresponds to it."""
Rule = str | Callable[[Any, Source], Converted]
"""What becomes of a key: our key of the same meaning, or what is to be done with its value."""


def _entity_dir(value: Any, source: Source) -> Converted:
    table = f"{value}/table"
    build = f"table={table} entity_dir={value}"
    emb_dir = source.get("data_config.emb_dir")
    if source.is_first and emb_dir:
        build += f" emb_dir={emb_dir}"
    chosen = _first_files(source) if source.is_first else _second_systems(source)
    for name, files in chosen.items():
        if files:
            build += f" {name}=[{','.join(files)}]"
    return {"data_config.entity_table": table}, f"built by bsmeta/entities.py {build}"


def _first_files(source: Source) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"types": [], "relations": []}
    for embedding in source.get("data_config.ent_embeddings") or []:
        arguments = embedding.get("args", {})
        is_relation = "kg_adj" in arguments or "relation" in str(embedding.get("key", ""))
        file = arguments.get("kg_adj", arguments.get("type_labels"))
        if file is not None:
            found["relations" if is_relation else "types"].append(file)
    return found


def _second_systems(source: Source) -> dict[str, list[str]]:
    folder = source.get("data_config.entity_type_data.type_symbols_dir")
    return {"types": [PurePosixPath(str(folder)).name] if folder else []}


def _total_eval_batch_size(value: Any, source: Source) -> Converted:
    gpus = int(source.get("run_config.ngpus_per_node", 1))
    gpus *= int(source.get("run_config.nodes", 1))
    if int(value) % gpus:
        raise ConfigurationError(
            f"run_config.eval_batch_size={value} is the total of {gpus} GPUs and no multiple of "
            "their number; correct it"
        )
    note = f"a total, of {gpus} GPUs: ours is that of each"
    return {"data_config.per_device_eval_batch_size": int(value) // gpus}, note


def _frequency(value: float, unit: str, name: str) -> Converted:
    """The interval in steps, or the number per epoch; `name` is eval or save."""
    if unit == "batch" or value == 0:
        return {f"{name}_steps": int(value)}, ""
    if unit != "epoch":
        return {}, f"counter_unit={unit}: set {name}_steps or {name}s_per_epoch"
    return {f"{name}s_per_epoch": max(1, round(1 / value))}, ""


def _evaluation_freq(value: Any, source: Source) -> Converted:
    return _frequency(value, source.get("emmental.counter_unit", "epoch"), "eval")


def _checkpoint_freq(value: Any, source: Source) -> Converted:
    """Counts evaluations."""
    every = float(source.get("emmental.evaluation_freq", 1)) * float(value)
    return _frequency(every, source.get("emmental.counter_unit", "epoch"), "save")


def _checkpoint_metric(value: Any, source: Source) -> Converted:
    """`NED/Bootleg/dev/final_loss/acc_notincand:max`: the slice is the last part but one."""
    path = next(iter(value)) if isinstance(value, dict) else str(value).partition(":")[0]
    parts = path.split("/")
    name = "loss"
    if parts[-1].startswith("acc") and len(parts) > 1:
        name = "accuracy" if parts[-2] == "final_loss" else f"{parts[-2]}_accuracy"
    return {"keep_best_by": name, "export_best": True}, ""


def _scheduler(value: Any, source: Source) -> Converted:
    known = {"linear": "linear", "cosine_annealing": "cosine", None: "constant"}
    if value not in known:
        return {}, "expected linear, cosine_annealing or null; set lr_scheduler_type"
    return {"lr_scheduler_type": known[value]}, ""


def _optimizer(value: Any, source: Source) -> Converted:
    is_adam = str(value).lower() in ("adam", "adamw", "bert_adam")
    return {}, "AdamW is used" if is_adam else f"{value} is not offered; AdamW is used"


def _writer(value: Any, source: Source) -> Converted:
    known = {"tensorboard": ["tensorboard"], "wandb": ["wandb"], "json": []}
    return {"trackers": known.get(value, [])}, "metrics.jsonl is always written"


def _text_part(value: Any, source: Source) -> Converted:
    """The three switches together say what the text of an entity has."""
    switches = {
        "types": "data_config.entity_type_data.use_entity_types",
        "relations": "data_config.entity_kg_data.use_entity_kg",
        "description": "data_config.use_entity_desc",
    }
    chosen = [part for part in ENTITY_TEXT if source.get(switches.get(part, ""), True)]
    return {"data_config.entity_text": chosen}, ""


def _popularity_mask(value: Any, source: Source) -> Converted:
    if value:
        return {}, "as always: mask_rarest and mask_most_frequent"
    return dict.fromkeys(("data_config.mask_rarest", "data_config.mask_most_frequent"), 0.0), ""


def _frozen(value: Any, source: Source) -> Converted:
    return ({"train_layers": 0}, "") if value else ({}, "as always")


def _if(condition: Callable[[Any], bool], note: str, otherwise: str) -> Rule:
    """Nothing corresponds to the key: a note on values that agree with ours, and on others."""
    return lambda value, _: ({}, note if condition(value) else otherwise)


def _renamed_path(name: str) -> Rule:
    return lambda value, source: ({name: source.path(str(value))}, "")


def _no(reason: str) -> Rule:
    return lambda *_: ({}, reason)


def _nothing(reasons: Mapping[str, str]) -> dict[str, Rule]:
    """The rules of keys to which nothing corresponds, from the keys that each reason is of."""
    return {key: _no(reason) for reason, keys in reasons.items() for key in keys.split()}


_LAUNCH = "of the launch: accelerate launch --num_processes N [--num_machines M]"
_FOLDERS = "of the table's folder; built by bsmeta/entities.py"
_RESUME = "resume_from_checkpoint_dir=latest resumes out_dir, and skips what it has trained on"
_OUT_DIR = "out_dir is used as it is"
_BACKEND = "nccl on GPUs, gloo on CPUs"

_WEAK_LABELS = _if(
    lambda value: value is not False,
    "as always: weak labels are trained on, and never scored",
    "leave out the mentions with gold=false: they are trained on",
)

_BOTH: dict[str, Rule] = {
    "run_config.eval_slices": "eval_slices",
    "run_config.dataset_threads": "data_config.prep_workers",
    "run_config.dataloader_threads": "data_config.num_workers",
    "train_config.batch_size": "data_config.batch_size",
    "data_config.train_dataset.file": _renamed_path("data_config.train_file"),
    "data_config.dev_dataset.file": _renamed_path("data_config.dev_file"),
    "data_config.test_dataset.file": _renamed_path("data_config.test_file"),
    "data_config.train_dataset.use_weak_label": _WEAK_LABELS,
    "data_config.dev_dataset.use_weak_label": _WEAK_LABELS,
    "data_config.test_dataset.use_weak_label": _WEAK_LABELS,
    "data_config.data_prep_dir": _renamed_path("data_config.prep_dir"),
    "data_config.eval_slices": "eval_slices",
    "data_config.entity_dir": _entity_dir,
    "data_config.overwrite_preprocessed_data": "data_config.overwrite_prep",
    "data_config.train_in_candidates": "train_in_candidates",
    "data_config.word_embedding.bert_model": "model_name",
    **_nothing(
        {
            "loader processes are forked": "run_config.spawn_method",
            "the progress is in metrics.jsonl": "run_config.log_level run_config.loglevel",
            "evaluations write mentions.jsonl; predict.py predicts new texts": """
                run_config.overwrite_eval_dumps run_config.dump_preds_accumulation_steps
                run_config.dump_preds_num_data_splits run_config.result_label_file
                run_config.result_emb_file run_config.dump_embs""",
            _LAUNCH: "run_config.ngpus_per_node",
            "the folder of the files of the splits": "data_config.data_dir",
            _FOLDERS: """
                data_config.entity_map_dir data_config.entity_prep_dir data_config.alias_cand_map
                data_config.alias_idx_map""",
            "not offered": "data_config.print_examples_prep",
            "the environment: HF_HOME": "data_config.word_embedding.cache_dir",
        }
    ),
}

_ALL_EVALUATED = _if(
    lambda value: float(value) == 1,
    "as always: all of the split",
    "evaluations always use all of the split",
)

FIRST: dict[str, Rule] = {
    **_BOTH,
    "run_config.eval_batch_size": _total_eval_batch_size,
    "run_config.eval_steps": "eval_steps",
    "run_config.perc_eval": _ALL_EVALUATED,
    "run_config.min_eval_size": _ALL_EVALUATED,
    "run_config.log_every": "logging_steps",
    "run_config.log_steps": "logging_steps",
    "run_config.max_epochs": "num_train_epochs",
    "run_config.save_dir": "out_dir",
    "run_config.seed": "seed",
    "train_config.lr": "learning_rate",
    "train_config.weight_decay": "weight_decay",
    "train_config.seed": "seed",
    "data_config.max_aliases": "data_config.max_mentions",
    "data_config.max_word_token_len": "data_config.max_words",
    "data_config.word_embedding.layers": "encoder_layers",
    "data_config.word_embedding.freeze": _frozen,
    "data_config.word_embedding.freeze_sent_emb": _frozen,
    **_nothing(
        {
            _LAUNCH: """
                run_config.distributed run_config.nodes run_config.node_rank run_config.gpu
                run_config.nr run_config.cpu run_config.dist_url""",
            _BACKEND: "run_config.dist_backend",
            "save_steps or saves_per_epoch, whatever is evaluated": "run_config.save_every_k_eval",
            "always 5 (top5)": "run_config.topk",
            _OUT_DIR: "run_config.timestamp run_config.model_suffix",
            _RESUME: "run_config.init_checkpoint train_config.load_optimizer_from_ckpt",
            "the first generation's model only": """
                train_config.softmax_temp train_config.slice_method train_config.train_heads
                data_config.type_prediction.*""",
            "train_in_candidates=false makes NIL a candidate": """
                train_config.random_nil train_config.random_nil_perc""",
            "that of the encoder's own configuration": "train_config.dropout",
            "the model is the bi-encoder of Bootleg 1.1, for both generations": "model_config.*",
            "prep follows the keys of data_config": "prep_config.*",
            "types and relations are in the table of entities": "data_config.emb_dir",
            "entities are encoded from their texts, with the types and relations of these files": (
                "data_config.ent_embeddings"
            ),
            "train_layers never trains the embeddings": (
                "data_config.word_embedding.freeze_word_emb"
            ),
            "the tokenizer of model_name decides": "data_config.word_embedding.use_lower_case",
            "the encoder is that of model_name": "data_config.word_embedding.*",
        }
    ),
}

SECOND: dict[str, Rule] = {
    **_BOTH,
    "emmental.lr": "learning_rate",
    "emmental.l2": "weight_decay",
    "emmental.n_epochs": "num_train_epochs",
    "emmental.n_steps": lambda value, _: ({"max_train_steps": value, "num_train_epochs": None}, ""),
    "emmental.optimizer": _optimizer,
    "emmental.lr_scheduler": _scheduler,
    "emmental.warmup_percentage": "warmup_share",
    "emmental.warmup_steps": "num_warmup_steps",
    "emmental.grad_clip": "gradient_clipping",
    "emmental.gradient_accumulation_steps": "gradient_accumulation_steps",
    "emmental.seed": "seed",
    "emmental.log_path": "out_dir",
    "emmental.writer": _writer,
    "emmental.evaluation_freq": _evaluation_freq,
    "emmental.checkpoint_freq": _checkpoint_freq,
    "emmental.checkpoint_metric": _checkpoint_metric,
    "emmental.fp16": lambda value, _: ({"mixed_precision": "fp16" if value else "no"}, ""),
    "run_config.eval_batch_size": "data_config.per_device_eval_batch_size",
    "model_config.hidden_size": "embedding_size",
    "model_config.temperature": "temperature",
    "model_config.normalize": _if(
        bool, "as always", "embeddings are always normalized; scores are cosines"
    ),
    "data_config.max_seq_window_len": "data_config.window_length",
    "data_config.max_ent_len": "data_config.max_entity_length",
    "data_config.popularity_mask": _popularity_mask,
    "data_config.entity_type_data.use_entity_types": _text_part,
    "data_config.entity_kg_data.use_entity_kg": _text_part,
    "data_config.use_entity_desc": _text_part,
    "data_config.word_embedding.context_layers": "encoder_layers",
    **_nothing(
        {
            _OUT_DIR: "emmental.use_exact_log_path",
            "the unit of evaluation_freq": "emmental.counter_unit",
            "a run always saves; save_steps=0: only at its end": "emmental.checkpointing",
            "keep_last_checkpoints says how many are kept": """
                emmental.checkpoint_all emmental.clear_intermediate_checkpoints""",
            _BACKEND: "emmental.distributed_backend",
            "without DDP there, batch_size is the total, for which batch_scope=total": (
                "emmental.dataparallel"
            ),
            "evaluations follow eval_steps or evals_per_epoch": "emmental.online_eval",
            _LAUNCH: "emmental.device",
            _RESUME: """
                emmental.model_path emmental.steps_learned emmental.epochs_learned
                emmental.skip_learned_data""",
            "rows are limited by max_words and by the encoder": "data_config.max_seq_len",
            "only mentions are masked, not the words around them": "data_config.context_mask_perc",
            "entities are counted in the training data": "data_config.qid_cnt_map",
            _FOLDERS: "data_config.entity_type_data.* data_config.entity_kg_data.*",
            "entities have all layers of their encoder": (
                "data_config.word_embedding.entity_layers"
            ),
        }
    ),
}


def convert(config: Mapping[str, Any]) -> list[Row]:
    """What each key of a configuration becomes.

    Raises:
        ConfigurationError: If a value cannot be converted.
    """
    source = Source(config)
    rules = FIRST if source.is_first else SECOND
    rows = []
    for key, value in source.items():
        unknown = _no("unknown here; see whether you need it")
        rule = next((rules[name] for name in _names(key) if name in rules), unknown)
        ours, note = ({rule: value}, "") if isinstance(rule, str) else rule(value, source)
        rows.append(Row(key, value, ours, note))
    return [*rows, *source.implied()]


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


def as_yaml(rows: list[Row], source: str) -> str:
    """Our configuration.

    Raises:
        ConfigurationError: If two keys become one with different values.
    """
    found: dict[str, Any] = {}
    for row in rows:
        for name, value in row.ours.items():
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
    header = HEADER.format(source=printable(source, one_line=True))
    return header + yaml.safe_dump(nested, sort_keys=False)


def as_text(rows: list[Row]) -> str:
    """The rows: each key with its value, and indented what it becomes."""
    lines = []
    for row in rows:
        lines.append(f"{row.key}={_shown(row.value)}" if row.key else "(not stated there)")
        lines += [f"    -> {name}={_shown(value)}" for name, value in row.ours.items()]
        if row.note:
            lines.append(f"    {'' if row.ours else '-> nothing: '}{row.note}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()


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
        return EXIT_USER_ERROR
    return 0


def _read(path: Path) -> dict[str, Any]:
    """The content of a file: YAML, or JSON with comments.

    Raises:
        ConfigurationError: If it is neither.
    """
    text = path.read_text(encoding="utf-8")
    is_json = text.lstrip().startswith(("{", "//", "/*"))
    try:
        if is_json:
            text = _JSON_PARTS.sub(lambda part: part["kept"] or "", text)
        config = parse_json(text) if is_json else parse_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        form = "JSON" if is_json else "YAML"
        raise ConfigurationError(f"{path} is no {form}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path}: expected blocks of keys, such as data_config")
    return config


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
