"""Checks of `task=causal_lm` (files, streams, metadata, held-out file, model, and the options for
speed), and its rows and notes in the start-up table.
"""

from __future__ import annotations

import glob
import importlib.util
import os
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

from bsmeta.config.causal_lm import CausalLMConfig, LoraKeys
from bsmeta.config.checks import missing, model_problems, uses_model_name
from bsmeta.config.composition import NOTHING, Composition
from bsmeta.config.data import (
    BY_TEXT,
    DataConfig,
    data_problems,
    in_dataset,
    local_dataset,
    metadata_room,
    source_configs,
    train_entries,
    train_files,
)
from bsmeta.config.launch import Launch
from bsmeta.config.metadata import MetadataConfig, phase_starts
from bsmeta.config.model_file import positions_in
from bsmeta.config.startup_table import evaluations
from bsmeta.config.steps import BatchPlan, decay_start
from bsmeta.config.task_entry import Row
from bsmeta.core.errors import HYDRA, Problem, look_up, show
from bsmeta.core.parsing import parse_json
from bsmeta.core.rank import checks_for_all
from bsmeta.data.stream.columns import column_problems, missing_types, type_problems
from bsmeta.metadata.checks import metadata_notes, metadata_problems, row_budget_problems
from bsmeta.tasks.causal_lm.data_rows import size_rows

FLASH, FLEX = "flash_attention_2", "flex_attention"
# Suffixes of common training data formats that are not supported.
FOREIGN = (".arrow", ".csv", ".tsv", ".warc", ".warc.gz", ".tar", ".tar.gz", ".zip")
_METADATA = "data_config.metadata_config"


def value_problems(config: CausalLMConfig, composition: Composition = NOTHING) -> Iterator[Problem]:
    """Yields problems that do not depend on the launch."""
    data = config.data_config
    yield from metadata_problems(data.metadata_config)
    yield from row_budget_problems(data)
    yield from model_name_problems(config, composition.overridden)
    if data.train_file is None and data.dataset_name is None and not data.sources:
        fix = "data_config.train_file=FOLDER/*.jsonl.gz (or a list of files, or dataset_name)"
        yield Problem("data_config.train_file", HYDRA, "null", "the training shards", fix)
    problems = list(data_problems(data))
    yield from problems
    yield from _lora(config)
    files = list(file_problems(config))
    yield from files
    if checks_for_all() and not problems:
        refused = {problem.key for problem in files}
        yield from (found for found in column_problems(data) if found.key not in refused)
        yield from type_problems(data)


def _lora(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields adapters of random weights or without their library, and keys without effect."""
    lora = config.lora
    if lora.rank == 0:
        default = LoraKeys()
        for name in ("alpha", "dropout", "targets"):
            if (value := getattr(lora, name)) != getattr(default, name):
                expected = "nothing, because there are no adapters (lora.rank=0)"
                yield Problem(f"lora.{name}", HYDRA, show(value), expected, "lora.rank=16, say")
        return
    if config.model_config_file is not None:
        expected = "0: adapters of a model whose weights are random (model_config_file)"
        fix = "model_config_file=null model_name=FOLDER, or lora.rank=0"
        yield Problem("lora.rank", HYDRA, show(lora.rank), expected, fix)
    if importlib.util.find_spec("peft") is None:
        fix = "pip install 'bsmeta[lora]', or lora.rank=0"
        yield Problem("lora.rank", HYDRA, show(lora.rank), "an installed library, peft", fix)


def start_problems(
    config: CausalLMConfig, launch: Launch, document: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields problems that depend on the launch or the DeepSpeed JSON."""
    streams, workers = config.data_config.num_streams, max(1, config.data_config.num_workers)
    readers = launch.num_processes * workers
    if streams >= 1 and streams % readers:  # every worker of every process gets equally many
        sum_ = f"{launch.num_processes} (processes) x {workers} (data_config.num_workers)"
        fix = (
            f"data_config.num_streams={-(-streams // readers) * readers}, or (on a resumed "
            "run, which must keep num_streams) other numbers of processes or workers"
        )
        expected = f"a multiple of {sum_} = {readers}"
        yield Problem("data_config.num_streams", HYDRA, str(streams), expected, fix)
    best = config.keep_best_by if config.eval_steps else None
    asked = {"keep_best_by": best, "start_with_eval": config.start_with_eval or None}
    for key, value in asked.items():
        if value is not None and config.data_config.validation_file is None:
            expected = "no evaluation, because there is no held-out file"
            fix = f"data_config.validation_file=FILE, or leave {key} out"
            yield Problem(key, HYDRA, show(value), expected, fix)
    yield from speed_problems(config, launch, document)


def speed_problems(
    config: CausalLMConfig, launch: Launch, document: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields options that cannot run here, and keys without effect."""
    yield from _attention(config, launch)
    if config.liger_kernel:
        yield from _only_on_gpus("liger_kernel", True, launch, "liger_kernel=false")
        if importlib.util.find_spec("liger_kernel") is None:
            fix = "pip install liger-kernel, or liger_kernel=false"
            yield Problem("liger_kernel", HYDRA, show(True), "an installed library", fix)
        if config.deterministic:
            # They do not ask torch, and add with atomic operations: in mixtures of experts, and in
            # LayerNorm from pull request 815 to 945 of linkedin/Liger-Kernel.
            expected = "false with deterministic=true: its kernels may add in any order"
            fix = "liger_kernel=false, or deterministic=false"
            yield Problem("liger_kernel", HYDRA, show(True), expected, fix)
    stage = None if document is None else look_up(document, "zero_optimization.stage")
    if config.torch_compile and stage == 3:
        expected = "false under ZeRO-3, which gathers weights between the compiled operations"
        fix = "torch_compile=false, or ZeRO-2"
        yield Problem("torch_compile", HYDRA, show(True), expected, fix)
    every = config.gradient_checkpointing_every
    if every > 1 and not config.gradient_checkpointing:
        key = "gradient_checkpointing_every"
        expected = "1, because gradient_checkpointing=false recomputes nothing"
        yield Problem(key, HYDRA, show(every), expected, "gradient_checkpointing=true")


def _attention(config: CausalLMConfig, launch: Launch) -> Iterator[Problem]:
    key, found = "attn_implementation", config.attn_implementation
    if found in (FLASH, FLEX):
        yield from _only_on_gpus(key, found, launch, f"{key}=sdpa")
    if found != FLASH:
        return
    if config.mixed_precision == "no":
        expected = "another one in float32: flash attention computes in bf16 or fp16"
        yield Problem(key, HYDRA, show(found), expected, f"mixed_precision=bf16, or {key}=sdpa")
    if config.torch_compile:
        expected = "another one with torch_compile: documents' borders have no fixed shape"
        fix = f"torch_compile=false, or {key}=varlen"
        yield Problem(key, HYDRA, show(found), expected, fix)
    if importlib.util.find_spec("flash_attn") is None:
        fix = f"pip install flash-attn, or {key}=varlen"
        yield Problem(key, HYDRA, show(found), "an installed library (flash_attn)", fix)


def _only_on_gpus(key: str, found: object, launch: Launch, fix: str) -> Iterator[Problem]:
    if launch.gpus == 0:
        yield Problem(key, HYDRA, show(found), "another value: there is no GPU to train on", fix)


def file_problems(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields missing model and data files; data only if it is to be read on this machine.

    The Hub and other remote file systems are not queried; the run itself does that.
    """
    yield from model_problems(config)
    yield from _positions(config)
    if config.accelerate_config_file is None and checks_for_all():
        yield from _data(config)
        yield from _missing_held_out(config)


def _data(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields missing files of the data, and files in a format that is not supported."""
    data = config.data_config
    if data.prepared is not None:
        if not Path(data.prepared).is_dir():
            fix = "make it with python -m bsmeta.data.prepare … out=FOLDER"
            yield missing("data_config.prepared", data.prepared, "a folder", fix)
        return
    folder = local_dataset(data)
    if folder is not None and not os.path.isdir(folder):
        fix = "correct it, or name a data set on the Hub (OWNER/NAME)"
        yield missing("data_config.dataset_name", folder, "the folder of the shards", fix)
        return
    start = "the working folder" if folder is None else f"data_config.dataset_name={folder}"
    for key, entry in missing_shards(config):
        fix = f"correct it; a relative path begins in {start}"
        expected = "shards: a file, a folder or a glob that matches some"
        yield missing(key, entry, expected, fix)
    entries = [*train_entries(data)]
    if data.validation_file:
        entries.append(("data_config.validation_file", data.validation_file))
    for key, entry in entries:
        if entry.lower().endswith(FOREIGN):
            expected = "lines of JSON (.jsonl.gz, .jsonl.zst or .jsonl) or Parquet"
            fix = 'write each document as a line of JSON, with its text under "text"'
            yield Problem(key, HYDRA, show(entry), expected, fix)


def _missing_held_out(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields a held-out file that is missing; a folder is none.

    Without it, its documents could not be kept out of training. Prepared data had it when it was
    made: a run on it needs the file for evaluations only.
    """
    data, key = config.data_config, "data_config.validation_file"
    held_out = data.validation_file and in_dataset(data.validation_file, data)
    if not held_out or not _is_here(held_out) or os.path.isfile(held_out):
        return
    evaluates = (
        config.eval_steps > 0 or config.start_with_eval or bool(config.extra_steps_to_eval_save_at)
    )
    if os.path.isdir(held_out):
        names = sorted(name for name in os.listdir(held_out) if ".jsonl" in name)
        fix = f"{key}={os.path.join(held_out, (names or ['FILE'])[0])}"
        yield Problem(key, HYDRA, f"{show(held_out)}, which is a folder", "one file", fix)
    elif not glob.has_magic(held_out) and (data.prepared is None or evaluates):
        expected = "the held-out file, whose documents are kept out of training"
        fix = f"correct it, or {key}=null to train without a held-out file"
        yield missing(key, held_out, expected, fix)


def missing_shards(config: CausalLMConfig) -> list[tuple[str, str]]:
    """The local entries of `train_file` that match no file on this machine, with their keys."""
    data = config.data_config
    entries = [] if data.prepared is not None else train_entries(data)
    return [
        (key, entry)
        for key, entry in entries
        if _is_here(entry)
        and not os.path.exists(entry)
        and next(glob.iglob(entry, recursive=True), None) is None
    ]


def _is_here(entry: str) -> bool:
    """Whether an entry is a path rather than an address such as hf://… or gs://…."""
    return "://" not in entry


def model_name_problems(config: CausalLMConfig, overridden: Collection[str]) -> Iterator[Problem]:
    """Yields a `model_name` of the command line that other keys of a file override."""
    if "model_name" in overridden and not uses_model_name(config):
        expected = (
            f"no such override: model_config_file ({config.model_config_file}, random weights) and "
            "tokenizer_name are set, and take the place of model_name"
        )
        fix = f"model_config_file=null tokenizer_name=null model_name={config.model_name}"
        yield Problem("model_name", HYDRA, show(config.model_name), expected, fix)


def _positions(config: CausalLMConfig) -> Iterator[Problem]:
    """Checks the positions of the model, if its config is on this disk."""
    key = "model_config_file" if config.model_config_file is not None else "model_name"
    name = getattr(config, key)
    file = os.path.join(name, "config.json") if os.path.isdir(name) else name
    try:
        shape = parse_json(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # on the Hub, or refused when it is loaded
        return
    if isinstance(shape, dict):
        yield from positions_problems(config, positions_in(shape), f"{key}={name}")


def positions_problems(
    config: CausalLMConfig, positions: int | None, source: str
) -> Iterator[Problem]:
    """Yields a problem if sequences are longer than the model has positions for.

    Args:
        positions: Positions of the model; None: unlimited.
        source: The key that names the model, and its value.
    """
    data = config.data_config
    length, room = data.metadata_config.max_seq_len, metadata_room(data)
    if positions is not None and length + room > positions:
        key = "data_config.metadata_config.max_seq_len"
        expected = f"at most {positions}, the positions of the model ({source})"
        found, fix = show(length), f"{key}={positions}"
        if room:
            expected += ", with the tokens of metadata (data_config.row_metadata_budget)"
            found += f" and {room} of metadata"
            fix = f"{key}={positions // 2} data_config.row_metadata_budget={positions // 2}"
        yield Problem(key, HYDRA, found, expected, fix)


def summary_rows(config: CausalLMConfig, launch: Launch) -> list[Row]:
    """Rows for model, data and metadata; batch and length of the run are also given in tokens."""
    data = config.data_config
    length = data.metadata_config.max_seq_len
    plan = BatchPlan.of(config, launch.num_processes)
    batch = plan.global_batch
    tokens = "text tokens" if data.row_budget == BY_TEXT else "tokens"
    model, shards = config.model_name, train_files(data)
    if config.model_config_file is not None:
        model = f"{config.model_config_file} (random weights)"
    if data.dataset_name:
        shards += f" in {local_dataset(data) or f'{data.dataset_name} (Hugging Face Hub)'}"
    if missing_shards(config):  # the launch may be on another machine; otherwise they are refused
        shards += "; not on this machine"
    return [
        ("model", model),
        ("tokenizer", config.tokenizer_name or f"{config.model_name} (that of model_name)"),
        ("training data", shards),
        *size_rows(config, launch),
        ("held-out file", data.validation_file or "– (no evaluation)"),
        (
            "metadata",
            f"{', '.join(data.metadata_config.metadata_list)}; in "
            f"{data.metadata_config.metadata_probability:.0%} of the documents",
        ),
        (
            "global batch",
            f"{plan.micro_batch} (micro-batch) x {plan.accumulation} (accumulation) x "
            f"{plan.processes} (processes) = {batch:,} sequences = {batch * length:,} {tokens} of "
            f"{length:,} a sequence",
        ),
        (
            "steps",
            f"{config.max_train_steps:,} x {batch * length:,} {tokens} = "
            f"{config.max_train_steps * batch * length:,} {tokens}",
        ),
        ("evaluation", evaluations(config) if data.validation_file else "–"),
    ]


def notes(config: CausalLMConfig, _: Composition = NOTHING) -> list[str]:
    """One line for each setting that has no effect."""
    data, metadata = config.data_config, config.data_config.metadata_config
    found = []
    if config.model_name != CausalLMConfig.model_name and not uses_model_name(config):
        found.append(
            f"model_name: {config.model_name} is not used: model_config_file and tokenizer_name "
            "are set"
        )
    found += _phases(metadata, config.max_train_steps, decay_start(config, config.max_train_steps))
    found += _excluded(data)
    columns = dict.fromkeys(name for own in source_configs(data).values() for name in own.columns)
    unused = [name for name in columns if name not in ("text", *metadata.metadata_list)]
    if unused:
        found.append(f"data_config.columns: {', '.join(unused)} not in metadata_list, so not used")
    if data.row_metadata_budget is not None and data.row_budget != BY_TEXT:
        found.append(
            f"data_config.row_metadata_budget is not used: under row_budget={data.row_budget}, "
            "metadata shares the max_seq_len tokens of a row with the text"
        )
    return [*found, *metadata_notes(metadata), *missing_types(data)]


def _phases(config: MetadataConfig, max_train_steps: int, decay_start: int | None) -> Iterator[str]:
    starts = [*phase_starts(config, max_train_steps, decay_start), max_train_steps]
    for number, (start, end) in enumerate(pairwise(starts)):
        if start == end and config.schedule:
            phase = config.schedule[number]
            reason = (
                "the learning rate of this run never decays (a run of decay_from may have it)"
                if phase.at_decay
                else f"its share of {phase.share:g} is less than one of {max_train_steps:,} steps"
            )
            yield f"{_METADATA}.schedule.{number} never takes place: {reason}"


def _excluded(config: DataConfig) -> Iterator[str]:
    """Yields the entries of `exclude` that match none of the training shards on this disk."""
    paths = [entry for _, entry in train_entries(config)]
    if not config.exclude or config.prepared or any("://" in path for path in paths):
        return
    files: list[str] = []
    for path in paths:
        pattern = os.path.join(path, "*") if os.path.isdir(path) else path
        files += glob.glob(pattern, recursive=True)
    names = [*map(os.path.basename, files), *map(os.path.abspath, files)]
    for excluded in config.exclude:
        if not any(fnmatch(name, excluded) for name in names):
            yield f"data_config.exclude: {excluded} matches none of {len(files)} training shards"
