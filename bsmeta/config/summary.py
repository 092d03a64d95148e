"""The start-up table: what this run will do, as sums that a person can check."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bsmeta.config.batch import BatchPlan
from bsmeta.config.checks.files import missing_shards
from bsmeta.config.data import DataConfig, local_dataset
from bsmeta.config.launch import Launch
from bsmeta.config.schema import TrainConfig


def summary(
    config: TrainConfig, launch: Launch, files: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Rows of name and value; sizes in sequences and tokens, steps in updates.

    Args:
        config: The run.
        launch: How it is started.
        files: What the configuration was composed of.
    """
    data = config.data_config
    length = data.metadata_config.max_seq_len
    plan = BatchPlan.of(config, launch.num_processes)
    batch = plan.global_batch
    return [
        ("configuration", ", ".join(files) or "–"),
        ("run folder", config.out_dir),
        ("resume from", config.resume_from_checkpoint_dir or "– (a fresh start)"),
        ("model", _model(config)),
        ("tokenizer", config.tokenizer_name or f"{config.model_name} (that of model_name)"),
        ("training data", _shards(data) + _not_here(config)),
        ("held-out file", data.validation_file or "– (no evaluation)"),
        (
            "metadata",
            f"{', '.join(data.metadata_config.metadata_list)}; in "
            f"{data.metadata_config.metadata_probability:.0%} of the documents",
        ),
        ("launch", _launch(config, launch)),
        (
            "global batch",
            f"{plan.micro_batch} (micro-batch) x {plan.accumulation} (accumulation) x "
            f"{plan.processes} (processes) = {batch:,} sequences = {batch * length:,} tokens of "
            f"{length:,} a sequence",
        ),
        (
            "updates",
            f"{config.max_train_steps:,} x {batch * length:,} tokens = "
            f"{config.max_train_steps * batch * length:,} tokens",
        ),
        ("learning rate", _schedule(config)),
        ("evaluation", _every(config.eval_steps if data.validation_file else 0)),
        ("checkpoints", _checkpoints(config)),
    ]


def print_summary(
    config: TrainConfig, launch: Launch, files: Sequence[str] = (), notes: Sequence[str] = ()
) -> None:
    """Prints the table on standard output, and below it what a person should look at."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in summary(config, launch, files):
        table.add_row(name, value)
    console = Console(soft_wrap=False)
    console.print(table, highlight=False)
    for note in notes:
        console.print(
            f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True
        )


def _model(config: TrainConfig) -> str:
    if config.model_config_file is not None:
        return f"{config.model_config_file} (random weights)"
    return config.model_name


def _shards(data: DataConfig) -> str:
    files = data.train_file
    named = ", ".join(map(str, files)) if isinstance(files, list) else str(files or "*.jsonl.gz")
    if not data.dataset_name:
        return named
    folder = local_dataset(data)
    return f"{named} in {folder or f'{data.dataset_name} (Hugging Face Hub)'}"


def _not_here(config: TrainConfig) -> str:
    """Only where a launch that may be elsewhere is checked: else a missing shard is refused."""
    return "; not on this machine" if missing_shards(config) else ""


def _launch(config: TrainConfig, launch: Launch) -> str:
    engine = {"NO": "one process", "MULTI_GPU": "data parallel"}.get(
        launch.distributed_type, launch.distributed_type
    )
    if launch.deepspeed:
        engine = f"DeepSpeed with {launch.deepspeed_config_file}"
    return f"{launch.num_processes} processes, {engine}, precision {config.mixed_precision}"


def _schedule(config: TrainConfig) -> str:
    peak, warm_up = f"{config.learning_rate:g}", f"{config.num_warmup_steps:,} updates"
    if config.num_warmup_steps >= config.max_train_steps:
        return f"rising towards {peak} all along: the warm-up of {warm_up} outlasts the run"
    end = ""
    if config.lr_scheduler_type != "constant":
        end = f" to {config.learning_rate * config.min_learning_rate_ratio:g}"
    return f"{peak} after {warm_up}, then {config.lr_scheduler_type}{end}"


def _every(steps: int) -> str:
    return f"every {steps:,} updates" if steps else "–"


def _checkpoints(config: TrainConfig) -> str:
    kept = config.keep_last_checkpoints
    extra = (
        f", at {config.extra_steps_to_eval_save_at}" if config.extra_steps_to_eval_save_at else ""
    )
    every = f"every {config.save_steps:,} updates{extra}, " if config.save_steps else extra[2:]
    return f"{every}and at the end; {f'the last {kept} are' if kept else 'all are'} kept"
