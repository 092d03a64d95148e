"""Converts configurations of Bootleg, of both generations, into ours.

    python -m bsmeta.tasks.disambiguation.converter wiki_config.json --out configs/wiki.yaml

prints the replacement of each key, or the reason why there is none, and writes a YAML file. Train
with it by `bsmeta/train.py --config-dir configs --config-name wiki`, or convert and train at once:
`bsmeta/train.py --config_script wiki_config.json`.
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
from bsmeta.core.files import refuse_special_file
from bsmeta.core.parsing import parse_json, parse_yaml
from bsmeta.core.printable import make_printable
from bsmeta.core.process import run_and_report
from bsmeta.tasks.disambiguation.config import ENTITY_TEXT

# Defaults of Bootleg, by generation
FIRST_ENCODER = "google-bert/bert-base-cased"
FIRST_EPOCHS = 10
SECOND_EPOCHS = 1

YAML_HEADER = """\
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
"""Matches strings (group `kept`), and comments and trailing commas, which are invalid JSON.

An unclosed string or comment is kept, so that the parser reports it.
"""
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""Matches numbers that YAML 1.1 reads as strings, such as 2e-5."""


@dataclass(frozen=True)
class Row:
    """The conversion of a key of Bootleg's configuration."""

    key: str  # dotted; empty if our keys follow from a default of Bootleg
    value: Any
    ours: dict[str, Any]  # our keys and their values; empty if there is no replacement
    note: str  # the meaning of our keys, or the reason why there are none


class BootlegConfig(dict[str, Any]):
    """A configuration of Bootleg: values by dotted key.

    Attributes:
        is_first_generation: Whether it lacks the block `emmental`, which the second generation has.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(_flatten_blocks(config))
        self.is_first_generation = "emmental" not in config

    def join_data_path(self, name: str) -> str:
        """Returns the path of a file in the data folder."""
        return str(PurePosixPath(str(self.get("data_config.data_dir", "data")), name))

    def convert_defaults(self) -> Iterator[Row]:
        """Yields our keys that follow from Bootleg's defaults instead of a key."""

        def row(name: str, value: Any, note: str = "") -> Row:
            return Row("", None, {name: value}, note)

        # Emmental's batch size is per GPU if it is launched with DDP. Otherwise the batch is
        # divided among the GPUs, unless `dataparallel`, whose default is true, is false.
        note = "what Bootleg's batch_size counts"
        if self.is_first_generation:
            yield row("data_config.batch_scope", "total", note)
        else:
            note += " under DDP; if it was started without, total"
            yield row("data_config.batch_scope", "per_device", note)

        for split in ("train", "dev", "test"):
            is_named = f"data_config.{split}_dataset.file" in self
            if "data_config.data_dir" in self and not is_named:
                yield row(f"data_config.{split}_file", self.join_data_path(f"{split}.jsonl"))

        if self.is_first_generation:
            epochs_key = "run_config.max_epochs"
            epochs = FIRST_EPOCHS
        else:
            epochs_key = "emmental.n_epochs"
            epochs = SECOND_EPOCHS
        if epochs_key not in self and "emmental.n_steps" not in self:
            yield row("num_train_epochs", epochs, f"the default of {epochs_key}")

        if not self.is_first_generation:
            yield row("data_config.mention_encoding", "window", "each mention in a window")
        elif "data_config.word_embedding.bert_model" not in self:
            yield row("model_name", FIRST_ENCODER, "the encoder of that generation")


Conversion = tuple[dict[str, Any], str]
"""Our keys with their values, and a note; without keys, the reason why there are none."""
Rule = str | Callable[[Any, BootlegConfig], Conversion]
"""Our key for the same value, or a function of the value and the whole configuration."""


def _convert_entity_dir(value: Any, source: BootlegConfig) -> Conversion:
    table = f"{value}/table"
    arguments = f"table={table} entity_dir={value}"
    emb_dir = source.get("data_config.emb_dir")
    if source.is_first_generation and emb_dir:
        arguments += f" emb_dir={emb_dir}"

    for key, files in list_entity_files(source).items():
        if files:
            arguments += f" {key}=[{','.join(files)}]"
    return {"data_config.entity_table": table}, f"built by bsmeta/entities.py {arguments}"


def list_entity_files(source: BootlegConfig) -> dict[str, list[str]]:
    """Lists the named files of `types` and `relations`; type systems in the second generation."""
    if source.is_first_generation:
        return _list_first_files(source)
    return {"types": _list_second_systems(source), "relations": []}


def _list_first_files(source: BootlegConfig) -> dict[str, list[str]]:
    """Lists the files of types and relations of the first generation."""
    types: list[str] = []
    relations: list[str] = []
    for embedding in source.get("data_config.ent_embeddings") or []:
        arguments = embedding.get("args", {})
        is_relation = "kg_adj" in arguments or "relation" in str(embedding.get("key", ""))
        file = arguments.get("kg_adj", arguments.get("type_labels"))
        if file is not None:
            (relations if is_relation else types).append(file)
    return {"types": types, "relations": relations}


def _list_second_systems(source: BootlegConfig) -> list[str]:
    """Lists the type systems of the second generation."""
    folder = source.get("data_config.entity_type_data.type_symbols_dir")
    return [PurePosixPath(str(folder)).name] if folder else []


def _convert_total_eval_batch_size(value: Any, source: BootlegConfig) -> Conversion:
    gpus = int(source.get("run_config.ngpus_per_node", 1))
    gpus *= int(source.get("run_config.nodes", 1))
    if int(value) % gpus:
        raise ConfigurationError(
            f"run_config.eval_batch_size={value} is the total of {gpus} GPUs and no multiple of "
            "their number; correct it"
        )
    note = f"Bootleg's total over {gpus} GPUs; ours is per GPU"
    return {"data_config.per_device_eval_batch_size": int(value) // gpus}, note


def _convert_frequency(value: float, unit: str, name: str) -> Conversion:
    """Converts an interval to `NAME_steps`, or to `NAMEs_per_epoch`.

    Args:
        unit: Bootleg's `counter_unit`: batch or epoch.
        name: eval or save.
    """
    if unit == "batch" or value == 0:
        return {f"{name}_steps": int(value)}, ""
    if unit != "epoch":
        return {}, f"counter_unit={unit}: set {name}_steps or {name}s_per_epoch"
    per_epoch = max(1, round(1 / value))
    note = "" if math.isclose(per_epoch * value, 1) else f"every {value:g} epochs there"
    return {f"{name}s_per_epoch": per_epoch}, note


def _convert_evaluation_freq(value: Any, source: BootlegConfig) -> Conversion:
    return _convert_frequency(value, source.get("emmental.counter_unit", "epoch"), "eval")


def _convert_checkpoint_freq(value: Any, source: BootlegConfig) -> Conversion:
    """Converts a number of evaluations between checkpoints."""
    interval = float(source.get("emmental.evaluation_freq", 1)) * float(value)
    return _convert_frequency(interval, source.get("emmental.counter_unit", "epoch"), "save")


def _convert_checkpoint_metric(value: Any, source: BootlegConfig) -> Conversion:
    """Converts `NED/Bootleg/dev/final_loss/acc_notincand:max`: SLICE/METRIC at the end."""
    if isinstance(value, dict):
        if not value:
            raise ValueError("no entry")
        path = str(next(iter(value)))
    else:
        path = str(value).partition(":")[0]
    components = path.split("/")
    metric = components[-1]
    if not metric.startswith("acc") or len(components) < 2:
        name = "loss"
    elif components[-2] == "final_loss":
        name = "accuracy"
    else:
        name = f"{components[-2]}_accuracy"
    return {"keep_best_by": name, "export_best": True}, ""


def _convert_scheduler(value: Any, source: BootlegConfig) -> Conversion:
    schedules = {"linear": "linear", "cosine_annealing": "cosine", None: "constant"}
    if value not in schedules:
        return {}, "expected linear, cosine_annealing or null; set lr_scheduler_type"
    return {"lr_scheduler_type": schedules[value]}, ""


def _convert_optimizer(value: Any, source: BootlegConfig) -> Conversion:
    is_adam = str(value).lower() in ("adam", "adamw", "bert_adam")
    return {}, "AdamW is used" if is_adam else f"{value} is not offered; AdamW is used"


def _convert_writer(value: Any, source: BootlegConfig) -> Conversion:
    trackers = {"tensorboard": ["tensorboard"], "wandb": ["wandb"], "json": []}
    note = "metrics.jsonl is always written"
    if value not in trackers:
        return {"trackers": []}, f"{value} is not offered; {note}"
    return {"trackers": trackers[value]}, note


def _convert_text_switches(value: Any, source: BootlegConfig) -> Conversion:
    """Converts the three switches that together determine the text of an entity."""
    switches = {
        "types": "data_config.entity_type_data.use_entity_types",
        "relations": "data_config.entity_kg_data.use_entity_kg",
        "description": "data_config.use_entity_desc",
    }
    parts = [part for part in ENTITY_TEXT if source.get(switches.get(part, ""), True)]
    return {"data_config.entity_text": parts}, ""


def _convert_popularity_mask(value: Any, source: BootlegConfig) -> Conversion:
    if value:
        return {}, "as always: mask_rarest and mask_most_frequent"
    return {"data_config.mask_rarest": 0.0, "data_config.mask_most_frequent": 0.0}, ""


def _convert_freeze(value: Any, source: BootlegConfig) -> Conversion:
    if value:
        return {"train_layers": 0}, ""
    return {}, "as always"


def _drop_with_note(condition: Callable[[Any], bool], note: str, otherwise: str) -> Rule:
    """Returns a rule for a key without a replacement, whose note depends on the value."""
    return lambda value, _: ({}, note if condition(value) else otherwise)


def _move_path(name: str) -> Rule:
    """Returns a rule for a path in the data folder, which becomes the value of our key."""
    return lambda value, source: ({name: source.join_data_path(str(value))}, "")


def _make_drop_rule(reason: str) -> Rule:
    """Returns a rule for a key without a replacement."""
    return lambda *_: ({}, reason)


def _drop_all(keys_by_reason: Mapping[str, str]) -> dict[str, Rule]:
    """Returns the rules of keys without a replacement, given as lists of keys by reason."""
    rules: dict[str, Rule] = {}
    for reason, keys in keys_by_reason.items():
        for key in keys.split():
            rules[key] = _make_drop_rule(reason)
    return rules


_LAUNCH = "of the launch: accelerate launch --num_processes N [--num_machines M]"
_FOLDERS = "of the table's folder; built by bsmeta/entities.py"
_RESUME = "resume_from_checkpoint_dir=latest resumes out_dir, and skips what it has trained on"
_OUT_DIR = "out_dir is used as it is"
_BACKEND = "nccl on GPUs, gloo on CPUs"

_UNSCORED_WEAK_LABELS = _make_drop_rule("weak labels are never scored")

_COMMON_RULES: dict[str, Rule] = {
    "run_config.eval_slices": "eval_slices",
    "run_config.dataset_threads": "data_config.prep_workers",
    "run_config.dataloader_threads": "data_config.num_workers",
    "train_config.batch_size": "data_config.batch_size",
    "data_config.train_dataset.file": _move_path("data_config.train_file"),
    "data_config.dev_dataset.file": _move_path("data_config.dev_file"),
    "data_config.test_dataset.file": _move_path("data_config.test_file"),
    "data_config.train_dataset.use_weak_label": "data_config.use_weak_labels",
    "data_config.dev_dataset.use_weak_label": _UNSCORED_WEAK_LABELS,
    "data_config.test_dataset.use_weak_label": _UNSCORED_WEAK_LABELS,
    "data_config.data_prep_dir": _move_path("data_config.prep_dir"),
    "data_config.eval_slices": "eval_slices",
    "data_config.entity_dir": _convert_entity_dir,
    "data_config.overwrite_preprocessed_data": "data_config.overwrite_prep",
    "data_config.train_in_candidates": "train_in_candidates",
    "data_config.word_embedding.bert_model": "model_name",
    **_drop_all(
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

_ALL_EVALUATED = _drop_with_note(
    lambda value: float(value) == 1,
    "as always: all of the split",
    "evaluations always use all of the split",
)

FIRST_RULES: dict[str, Rule] = {
    **_COMMON_RULES,
    "run_config.eval_batch_size": _convert_total_eval_batch_size,
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
    "data_config.word_embedding.freeze": _convert_freeze,
    "data_config.word_embedding.freeze_sent_emb": _convert_freeze,
    **_drop_all(
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

SECOND_RULES: dict[str, Rule] = {
    **_COMMON_RULES,
    "emmental.lr": "learning_rate",
    "emmental.l2": "weight_decay",
    "emmental.n_epochs": "num_train_epochs",
    "emmental.n_steps": lambda value, _: ({"max_train_steps": value, "num_train_epochs": None}, ""),
    "emmental.optimizer": _convert_optimizer,
    "emmental.lr_scheduler": _convert_scheduler,
    "emmental.warmup_percentage": "warmup_share",
    "emmental.warmup_steps": "num_warmup_steps",
    "emmental.grad_clip": "gradient_clipping",
    "emmental.gradient_accumulation_steps": "gradient_accumulation_steps",
    "emmental.seed": "seed",
    "emmental.log_path": "out_dir",
    "emmental.writer": _convert_writer,
    "emmental.evaluation_freq": _convert_evaluation_freq,
    "emmental.checkpoint_freq": _convert_checkpoint_freq,
    "emmental.checkpoint_metric": _convert_checkpoint_metric,
    "emmental.fp16": lambda value, _: ({"mixed_precision": "fp16" if value else "no"}, ""),
    "run_config.eval_batch_size": "data_config.per_device_eval_batch_size",
    "model_config.hidden_size": "embedding_size",
    "model_config.temperature": "temperature",
    "model_config.normalize": _drop_with_note(
        bool, "as always", "embeddings are always normalized; scores are cosines"
    ),
    "data_config.max_seq_window_len": "data_config.window_length",
    "data_config.max_ent_len": "data_config.max_entity_length",
    "data_config.popularity_mask": _convert_popularity_mask,
    "data_config.entity_type_data.use_entity_types": _convert_text_switches,
    "data_config.entity_kg_data.use_entity_kg": _convert_text_switches,
    "data_config.use_entity_desc": _convert_text_switches,
    "data_config.word_embedding.context_layers": "encoder_layers",
    **_drop_all(
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


def convert_keys(config: Mapping[str, Any]) -> list[Row]:
    """Converts each key of a configuration, and the defaults of its generation.

    Raises:
        ConfigurationError: If a value cannot be converted.
    """
    source = BootlegConfig(config)
    rules = FIRST_RULES if source.is_first_generation else SECOND_RULES
    rows = []
    for key, value in source.items():
        rule = _find_rule(rules, key)
        if isinstance(rule, str):
            rows.append(Row(key, value, {rule: value}, ""))
        else:
            ours, note = _apply_rule(rule, key, value, source)
            rows.append(Row(key, value, ours, note))
    return [*rows, *source.convert_defaults()]


def _apply_rule(
    rule: Callable[[Any, BootlegConfig], Conversion], key: str, value: Any, source: BootlegConfig
) -> Conversion:
    """Applies a rule to a value of any type.

    Raises:
        ConfigurationError: If the rule cannot convert the value, or another that it depends on.
    """
    try:
        return rule(value, source)
    except ConfigurationError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise ConfigurationError(
            f"{key}={value}: cannot be converted ({error}); correct it, or the keys that belong to "
            "it, in the old configuration"
        ) from error


def _flatten_blocks(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested blocks by dotted key."""
    for name, value in config.items():
        if isinstance(value, Mapping) and name != "checkpoint_metric":
            yield from _flatten_blocks(value, f"{prefix}{name}.")
        elif isinstance(value, str) and _EXPONENT.fullmatch(value):
            yield prefix + name, float(value)
        else:
            yield prefix + name, value


def _find_rule(rules: Mapping[str, Rule], key: str) -> Rule:
    """Returns the rule of a key, or else of the innermost block around it that has a rule."""
    if key in rules:
        return rules[key]
    block = key
    while "." in block:
        block = block.rpartition(".")[0]
        if f"{block}.*" in rules:
            return rules[f"{block}.*"]
    return _make_drop_rule("unknown here; see whether you need it")


def merge_rows(rows: list[Row]) -> dict[str, Any]:
    """Returns the values of our keys, by dotted key.

    Raises:
        ConfigurationError: If two keys are converted to the same key with different values.
    """
    values: dict[str, Any] = {}
    for row in rows:
        for name, value in row.ours.items():
            if values.setdefault(name, value) != value:
                raise ConfigurationError(
                    f"{row.key}={row.value!r} becomes {name}={value!r}, but another key makes it "
                    f"{values[name]!r}; leave one of them out"
                )
    return values


def format_yaml(rows: list[Row], source: str) -> str:
    """Returns our configuration as YAML.

    Args:
        source: The name of the converted file, for the header.

    Raises:
        ConfigurationError: See `merge_rows`.
    """
    values = merge_rows(rows)
    nested: dict[str, Any] = {}
    for name in sorted(values, key=lambda name: ("." in name, name)):  # top-level keys first
        *sections, last = name.split(".")
        block = nested
        for section in sections:
            block = block.setdefault(section, {})
        block[last] = values[name]

    header = YAML_HEADER.format(source=make_printable(source, one_line=True))
    return header + yaml.safe_dump(nested, sort_keys=False)


def format_rows(rows: list[Row]) -> str:
    """Formats rows for the terminal: each key with its value, and its replacements indented."""
    lines = []
    for row in rows:
        lines.append(f"{row.key}={_format_value(row.value)}" if row.key else "(not stated there)")
        lines += [f"    -> {name}={_format_value(value)}" for name, value in row.ours.items()]
        if row.note:
            lines.append(f"    {'' if row.ours else '-> nothing: '}{row.note}")
    return "\n".join(lines)


def _format_value(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def main(arguments: list[str]) -> int:
    """Converts the file that the arguments name, prints each key, and writes the YAML.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path, help="JSON or YAML file of Bootleg")
    parser.add_argument("--out", type=Path, help="our YAML file")
    options = parser.parse_args(arguments)

    try:
        rows = convert_keys(read_config(options.config))
        text = format_yaml(rows, options.config.name)
        print(format_rows(rows))
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(text)
            print(f"written to {options.out}")
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


def read_config(path: Path) -> dict[str, Any]:
    """Reads a file of YAML, or of JSON with comments.

    Raises:
        ConfigurationError: If it cannot be read, or is neither.
        DataError: If it is a pipe, a socket or a device.
    """
    refuse_special_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(
            f"{path} cannot be read: {reason}; expected a configuration of Bootleg, JSON or YAML"
        ) from error

    is_json = text.lstrip().startswith(("{", "//", "/*"))
    try:
        if is_json:
            config = parse_json(_JSON_PARTS.sub(lambda part: part["kept"] or "", text))
        else:
            config = parse_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        form = "JSON" if is_json else "YAML"
        raise ConfigurationError(f"{path} is not valid {form}: {error}") from error

    if not isinstance(config, dict):
        raise ConfigurationError(f"{path}: expected blocks of keys, such as data_config")
    return config


if __name__ == "__main__":
    sys.exit(run_and_report(lambda: main(sys.argv[1:])))
