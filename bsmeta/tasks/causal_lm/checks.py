"""Checks of `task=causal_lm`, and its rows and notes in the start-up table."""

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
from bsmeta.config.checks.model_shape import read_local_shape
from bsmeta.config.checks.paths import describe_missing_file, find_model_problems, uses_model_name
from bsmeta.config.composing.composition import EMPTY_COMPOSITION, Composition
from bsmeta.config.data import (
    BY_TEXT,
    DataConfig,
    build_source_configs,
    compute_metadata_room,
    describe_train_files,
    find_data_problems,
    find_local_dataset,
    iterate_train_entries,
    resolve_in_dataset,
)
from bsmeta.config.launch import Launch
from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.metadata import MetadataConfig, compute_phase_starts
from bsmeta.config.model_file import read_max_positions
from bsmeta.config.startup_table import describe_evaluations
from bsmeta.config.steps import BatchPlan
from bsmeta.config.task_entry import Row
from bsmeta.core.errors import HYDRA, Problem, format_value, look_up
from bsmeta.core.rank import runs_shared_checks
from bsmeta.core.rounding import round_up_to_multiple
from bsmeta.data.stream.columns import (
    describe_missing_types,
    find_column_problems,
    find_type_problems,
)
from bsmeta.metadata.checks import (
    find_metadata_problems,
    find_row_budget_problems,
    list_metadata_notes,
)
from bsmeta.tasks.causal_lm.data_rows import list_size_rows

FLASH = "flash_attention_2"
FLEX = "flex_attention"
"""Values of `attn_implementation` that run on GPUs only."""

UNSUPPORTED_SUFFIXES = (".arrow", ".csv", ".tsv", ".warc", ".warc.gz", ".tar", ".tar.gz", ".zip")
"""Suffixes of common training data formats that are not supported."""

_METADATA_KEY = "data_config.metadata_config"


def find_value_problems(
    config: CausalLMConfig, composition: Composition = EMPTY_COMPOSITION
) -> Iterator[Problem]:
    """Yields problems of keys and files that do not depend on the launch."""
    data = config.data_config
    yield from find_metadata_problems(data.metadata_config)
    yield from find_row_budget_problems(data)
    yield from find_model_name_problems(config, composition.overridden)
    if data.train_file is None and data.dataset_name is None and not data.sources:
        fix = "data_config.train_file=FOLDER/*.jsonl.gz (or a list of files, or dataset_name)"
        yield Problem("data_config.train_file", HYDRA, "null", "the training shards", fix)

    value_problems = list(find_data_problems(data))
    yield from value_problems
    yield from _find_lora_problems(config)
    if config.gguf and importlib.util.find_spec("gguf") is None:
        fix = "pip install 'bsmeta[gguf]', or gguf=false"
        yield Problem("gguf", HYDRA, format_value(True), "an installed library, gguf", fix)
    file_problems = list(find_file_problems(config))
    yield from file_problems

    # The content of files is checked only if the keys that name them are right.
    if runs_shared_checks() and not value_problems:
        refused = {problem.key for problem in file_problems}
        for problem in find_column_problems(data):
            if problem.key not in refused:
                yield problem
        yield from find_type_problems(data)


def _find_lora_problems(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields problems with adapters: random weights, a missing library, keys without effect."""
    lora = config.lora
    if lora.rank == 0:
        default = LoraKeys()
        for name in ("alpha", "dropout", "targets"):
            value = getattr(lora, name)
            if value != getattr(default, name):
                expected = "nothing, because there are no adapters (lora.rank=0)"
                yield Problem(
                    f"lora.{name}", HYDRA, format_value(value), expected, "lora.rank=16, say"
                )
        return

    if config.model_config_file is not None:
        expected = "0: adapters of a model whose weights are random (model_config_file)"
        fix = "model_config_file=null model_name=FOLDER, or lora.rank=0"
        yield Problem("lora.rank", HYDRA, format_value(lora.rank), expected, fix)
    if importlib.util.find_spec("peft") is None:
        fix = "pip install 'bsmeta[lora]', or lora.rank=0"
        yield Problem(
            "lora.rank", HYDRA, format_value(lora.rank), "an installed library, peft", fix
        )


def find_start_problems(
    config: CausalLMConfig, launch: Launch, deepspeed_config: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields problems that depend on the launch or the DeepSpeed JSON.

    Args:
        deepspeed_config: The DeepSpeed JSON, if there is one.
    """
    num_streams = config.data_config.num_streams
    workers = max(1, config.data_config.num_workers)
    num_readers = launch.num_processes * workers
    if num_streams >= 1 and num_streams % num_readers:  # each worker reads the same number
        product = f"{launch.num_processes} (processes) x {workers} (data_config.num_workers)"
        expected = f"a multiple of {product} = {num_readers}"
        multiple = round_up_to_multiple(num_streams, num_readers)
        fix = (
            f"data_config.num_streams={multiple}, or (on a resumed run, which must keep "
            "num_streams) other numbers of processes or workers"
        )
        yield Problem("data_config.num_streams", HYDRA, str(num_streams), expected, fix)

    yield from _find_missing_evaluation_problems(config)
    yield from find_speed_problems(config, launch, deepspeed_config)


def _find_missing_evaluation_problems(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields a problem for each key that needs evaluations, if there is no held-out file."""
    values = {
        "keep_best_by": config.keep_best_by if config.eval_steps else None,
        "start_with_eval": config.start_with_eval or None,
    }
    for key, value in values.items():
        if value is not None and config.data_config.validation_file is None:
            expected = "no value, because no evaluation takes place without a held-out file"
            fix = f"data_config.validation_file=FILE, or leave {key} out"
            yield Problem(key, HYDRA, format_value(value), expected, fix)


def find_speed_problems(
    config: CausalLMConfig, launch: Launch, deepspeed_config: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields problems with options for speed that cannot run here, or have no effect.

    Args:
        deepspeed_config: The DeepSpeed JSON, if there is one.
    """
    yield from _find_attention_problems(config, launch)
    if config.liger_kernel:
        yield from _find_liger_problems(config, launch)

    stage = None
    if deepspeed_config is not None:
        stage = look_up(deepspeed_config, "zero_optimization.stage")
    if config.torch_compile and stage == 3:
        expected = "false under ZeRO-3, which gathers weights between the compiled operations"
        fix = "torch_compile=false, or ZeRO-2"
        yield Problem("torch_compile", HYDRA, format_value(True), expected, fix)

    every = config.gradient_checkpointing_every
    if every > 1 and not config.gradient_checkpointing:
        key = "gradient_checkpointing_every"
        expected = "1, because gradient_checkpointing=false recomputes nothing"
        yield Problem(key, HYDRA, format_value(every), expected, "gradient_checkpointing=true")


def _find_liger_problems(config: CausalLMConfig, launch: Launch) -> Iterator[Problem]:
    """Yields problems with `liger_kernel=true`."""
    yield from _find_missing_gpu_problems(
        "liger_kernel", value=True, launch=launch, fix="liger_kernel=false"
    )
    if importlib.util.find_spec("liger_kernel") is None:
        fix = "pip install liger-kernel, or liger_kernel=false"
        yield Problem("liger_kernel", HYDRA, format_value(True), "an installed library", fix)
    if config.deterministic:
        # The kernels do not ask torch whether to be deterministic, and add with atomic operations:
        # in mixtures of experts, and in LayerNorm from pull request 815 to 945 of
        # linkedin/Liger-Kernel.
        expected = "false with deterministic=true: its kernels may add in any order"
        fix = "liger_kernel=false, or deterministic=false"
        yield Problem("liger_kernel", HYDRA, format_value(True), expected, fix)


def _find_attention_problems(config: CausalLMConfig, launch: Launch) -> Iterator[Problem]:
    """Yields problems with an `attn_implementation` that cannot run here."""
    key = "attn_implementation"
    implementation = config.attn_implementation
    if implementation in (FLASH, FLEX):
        yield from _find_missing_gpu_problems(key, implementation, launch, f"{key}=sdpa")
    if implementation != FLASH:
        return

    if config.mixed_precision == "no":
        expected = "another one in float32: flash attention computes in bf16 or fp16"
        fix = f"mixed_precision=bf16, or {key}=sdpa"
        yield Problem(key, HYDRA, format_value(implementation), expected, fix)
    if config.torch_compile:
        expected = "another one with torch_compile: documents' borders have no fixed shape"
        fix = f"torch_compile=false, or {key}=varlen"
        yield Problem(key, HYDRA, format_value(implementation), expected, fix)
    if importlib.util.find_spec("flash_attn") is None:
        expected = "an installed library (flash_attn)"
        fix = f"pip install flash-attn, or {key}=varlen"
        yield Problem(key, HYDRA, format_value(implementation), expected, fix)


def _find_missing_gpu_problems(
    key: str, value: object, launch: Launch, fix: str
) -> Iterator[Problem]:
    """Yields a problem if a value that needs GPUs is set for a launch without any."""
    if launch.gpus == 0:
        yield Problem(
            key, HYDRA, format_value(value), "another value: there is no GPU to train on", fix
        )


def find_file_problems(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields a problem for each missing file of the model, and of data that this machine reads.

    The Hub and other remote file systems are not queried; the run itself does that.
    """
    yield from find_model_problems(config)
    yield from _find_local_positions_problems(config)
    if config.accelerate_config_file is None and runs_shared_checks():
        yield from _find_shard_problems(config)
        yield from _find_held_out_problems(config)


def _find_shard_problems(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields a problem for each missing data file, and for each in an unsupported format."""
    data = config.data_config
    if data.prepared is not None:
        if not Path(data.prepared).is_dir():
            fix = "make it with python -m bsmeta.data.prepare … out=FOLDER"
            yield describe_missing_file("data_config.prepared", data.prepared, "a folder", fix)
        return

    folder = find_local_dataset(data)
    if folder is not None and not os.path.isdir(folder):
        fix = "correct it, or name a data set on the Hub (OWNER/NAME)"
        yield describe_missing_file(
            "data_config.dataset_name", folder, "the folder of the shards", fix
        )
        return

    base = "the working folder" if folder is None else f"data_config.dataset_name={folder}"
    for key, entry in list_missing_shards(config):
        expected = "shards: a file, a folder or a glob that matches some"
        fix = f"correct it; a relative path begins in {base}"
        yield describe_missing_file(key, entry, expected, fix)

    entries = [*iterate_train_entries(data)]
    if data.validation_file:
        entries.append(("data_config.validation_file", data.validation_file))
    for key, entry in entries:
        if entry.lower().endswith(UNSUPPORTED_SUFFIXES):
            expected = "lines of JSON (.jsonl.gz, .jsonl.zst or .jsonl) or Parquet"
            fix = 'write each document as a line of JSON, with its text under "text"'
            yield Problem(key, HYDRA, format_value(entry), expected, fix)


def _find_held_out_problems(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields a problem if the held-out file is missing, or is a folder.

    Without the file, its documents could not be excluded from training. They are already excluded
    from prepared data, so a run on prepared data needs the file only for evaluations.
    """
    key = "data_config.validation_file"
    data = config.data_config
    if not data.validation_file:
        return
    held_out = resolve_in_dataset(data.validation_file, data)
    if not _is_local(held_out) or os.path.isfile(held_out):
        return

    evaluates = (
        config.eval_steps > 0 or config.start_with_eval or bool(config.extra_steps_to_eval_save_at)
    )
    if os.path.isdir(held_out):
        names = sorted(name for name in os.listdir(held_out) if ".jsonl" in name)
        example = names[0] if names else "FILE"
        fix = f"{key}={os.path.join(held_out, example)}"
        yield Problem(key, HYDRA, f"{format_value(held_out)}, which is a folder", "one file", fix)
    elif not glob.has_magic(held_out) and (data.prepared is None or evaluates):
        expected = "the held-out file, whose documents are kept out of training"
        fix = f"correct it, or {key}=null to train without a held-out file"
        yield describe_missing_file(key, held_out, expected, fix)


def list_missing_shards(config: CausalLMConfig) -> list[tuple[str, str]]:
    """Lists key and value of the local entries of `train_file` that match no file."""
    data = config.data_config
    if data.prepared is not None:
        return []

    missing = []
    for key, entry in iterate_train_entries(data):
        if not _is_local(entry) or os.path.exists(entry):
            continue
        if not any(glob.iglob(entry, recursive=True)):
            missing.append((key, entry))
    return missing


def _is_local(entry: str) -> bool:
    """Whether an entry is a path rather than an address such as hf://… or gs://…."""
    return "://" not in entry


def find_model_name_problems(
    config: CausalLMConfig, overridden: Collection[str]
) -> Iterator[Problem]:
    """Yields a problem if other keys override the `model_name` of the command line."""
    if "model_name" in overridden and not uses_model_name(config):
        expected = (
            f"no such override: model_config_file ({config.model_config_file}, random weights) and "
            "tokenizer_name are set, and take the place of model_name"
        )
        fix = f"model_config_file=null tokenizer_name=null model_name={config.model_name}"
        yield Problem("model_name", HYDRA, format_value(config.model_name), expected, fix)


def _find_local_positions_problems(config: CausalLMConfig) -> Iterator[Problem]:
    """Yields a problem if sequences are too long for a model whose config is on this disk."""
    key = "model_config_file" if config.model_config_file is not None else "model_name"
    name = getattr(config, key)
    shape = read_local_shape(name)
    if shape is not None:
        positions = read_max_positions(shape[1])
        yield from find_positions_problems(config, positions, f"{key}={name}")


def find_positions_problems(
    config: CausalLMConfig, positions: int | None, source: str
) -> Iterator[Problem]:
    """Yields a problem if sequences are longer than the model has positions for.

    Args:
        positions: Positions of the model; None: unlimited.
        source: The key that names the model, and its value.
    """
    data = config.data_config
    length = data.metadata_config.max_seq_len
    room = compute_metadata_room(data)
    if positions is None or length + room <= positions:
        return

    key = "data_config.metadata_config.max_seq_len"
    current_value = format_value(length)
    expected = f"at most {positions}, the positions of the model ({source})"
    fix = f"{key}={positions}"
    if room:
        current_value += f" and {room} of metadata"
        expected += ", with the tokens of metadata (data_config.row_metadata_budget)"
        fix = f"{key}={positions // 2} data_config.row_metadata_budget={positions // 2}"
    yield Problem(key, HYDRA, current_value, expected, fix)


def list_summary_rows(config: CausalLMConfig, launch: Launch) -> list[Row]:
    """Returns the rows for model, data, metadata, batch (also in tokens) and length of the run."""
    data = config.data_config
    metadata = data.metadata_config
    model = config.model_name
    if config.model_config_file is not None:
        model = f"{config.model_config_file} (random weights)"

    shards = describe_train_files(data)
    if data.dataset_name:
        shards += f" in {find_local_dataset(data) or f'{data.dataset_name} (Hugging Face Hub)'}"
    if list_missing_shards(config):
        # They are refused unless the launch may be on another machine.
        shards += "; not on this machine"

    plan = BatchPlan.of(config, launch.num_processes)
    batch = plan.global_batch
    length = metadata.max_seq_len
    tokens = "text tokens" if data.row_budget == BY_TEXT else "tokens"
    return [
        ("model", model),
        ("tokenizer", config.tokenizer_name or f"{config.model_name} (that of model_name)"),
        ("training data", shards),
        *list_size_rows(config, launch),
        ("held-out file", data.validation_file or "– (no evaluation)"),
        (
            "metadata",
            f"{', '.join(metadata.metadata_list)}; in {metadata.metadata_probability:.0%} of the "
            "documents",
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
        ("evaluation", describe_evaluations(config) if data.validation_file else "–"),
    ]


def list_notes(config: CausalLMConfig, _: Composition = EMPTY_COMPOSITION) -> list[str]:
    """Returns a line for each setting that has no effect, and for each type without data."""
    data = config.data_config
    metadata = data.metadata_config
    lines = []
    if config.model_name != CausalLMConfig.model_name and not uses_model_name(config):
        lines.append(
            f"model_name: {config.model_name} is not used: model_config_file and tokenizer_name "
            "are set"
        )

    start_of_decay = RatePlan.of(config, config.max_train_steps).decay_start
    lines += _describe_empty_phases(metadata, config.max_train_steps, start_of_decay)
    lines += _list_unused_exclusions(data)

    columns: dict[str, None] = {}  # an ordered set
    for source in build_source_configs(data).values():
        columns |= dict.fromkeys(source.columns)
    unused = [name for name in columns if name not in ("text", *metadata.metadata_list)]
    if unused:
        lines.append(f"data_config.columns: {', '.join(unused)} not in metadata_list, so not used")

    if data.row_metadata_budget is not None and data.row_budget != BY_TEXT:
        lines.append(
            f"data_config.row_metadata_budget is not used: under row_budget={data.row_budget}, "
            "metadata shares the max_seq_len tokens of a row with the text"
        )
    return [*lines, *list_metadata_notes(metadata), *describe_missing_types(data)]


def _describe_empty_phases(
    config: MetadataConfig, max_train_steps: int, decay_start: int | None
) -> Iterator[str]:
    """Yields a note for each phase of the metadata schedule that never takes place."""
    starts = [*compute_phase_starts(config, max_train_steps, decay_start), max_train_steps]
    for number, (start, end) in enumerate(pairwise(starts)):
        if start != end or not config.schedule:
            continue
        phase = config.schedule[number]
        if phase.at_decay:
            reason = "the learning rate of this run never decays (a run of decay_from may have it)"
        else:
            reason = f"its share of {phase.share:g} is less than one of {max_train_steps:,} steps"
        yield f"{_METADATA_KEY}.schedule.{number} never takes place: {reason}"


def _list_unused_exclusions(config: DataConfig) -> Iterator[str]:
    """Yields a note for each entry of `exclude` that matches no training shard on this disk."""
    paths = [entry for _, entry in iterate_train_entries(config)]
    if not config.exclude or config.prepared or any("://" in path for path in paths):
        return

    files: list[str] = []
    for path in paths:
        pattern = os.path.join(path, "*") if os.path.isdir(path) else path
        files += glob.glob(pattern, recursive=True)
    names = [os.path.basename(file) for file in files]
    names += [os.path.abspath(file) for file in files]
    for pattern in config.exclude:
        if not any(fnmatch(name, pattern) for name in names):
            yield f"data_config.exclude: {pattern} matches none of {len(files)} training shards"
