"""The schema that all training runs share: what the loop, engines, checkpoints and launch need.

Each task has its own schema, derived from this one (`bsmeta.tasks.TASKS`).

Hydra merges YAML and command line onto these dataclasses (an unknown key or a wrong type is
refused); `bsmeta.config.compose` turns the result into plain objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bsmeta.config.optimizers import ADAMW, OPTIMIZERS, UNDER_DEEPSPEED, UNDER_FSDP2, users_of
from bsmeta.core.keys import key

WSD = "wsd"
"""The schedule with a constant rate between warm-up and decay: `lr_scheduler_type`."""

LARGEST_SEED = 2**32 - 1
"""The largest seed that numpy accepts."""

# Accelerate's names, which are also those of the modules that must be installed.
TRACKERS = ("tensorboard", "wandb", "trackio")


@dataclass(kw_only=True)
class RunConfig:
    """A training run of any task."""

    micro_batch_key: ClassVar[str | None] = None
    """The key that sets the rows of a micro-batch; None if they vary from step to step."""

    batch_scope_key: ClassVar[str | None] = None
    """The key that says whether those are the rows of a micro-batch (`per_device`), or of a whole
    step (`total`); None: of a micro-batch."""

    metrics: ClassVar[tuple[str, ...] | None] = None
    """The metrics of its evaluations during training; None: known only when they run."""

    task: str = key("", "what is trained: a name in bsmeta.tasks.TASKS", heading="Task")

    optimizer_type: str = key(
        ADAMW,
        "update rule; muon: of the matrices of repeated layers, and adamw of the rest (under "
        f"DeepSpeed: {UNDER_DEEPSPEED}; under FSDP2: {UNDER_FSDP2})",
        choices=tuple(OPTIMIZERS),
        heading="Optimizer, schedule and batch",
    )
    learning_rate: float = key(5e-5, "peak learning rate", deepspeed="optimizer.params.lr", above=0)
    weight_decay: float = key(
        0.01,
        "decay of the matrices; biases and norms have none",
        deepspeed="optimizer.params.weight_decay",
        at_least=0,
        finite=True,
    )
    adam_beta1: float = key(
        0.9, users_of("adam_beta1"), deepspeed="optimizer.params.betas.0", at_least=0, below=1
    )
    adam_beta2: float = key(
        0.999, users_of("adam_beta2"), deepspeed="optimizer.params.betas.1", at_least=0, below=1
    )
    adam_epsilon: float = key(
        1e-8, users_of("adam_epsilon"), deepspeed="optimizer.params.eps", above=0
    )
    momentum: float = key(0.95, users_of("momentum"), above=0, below=1)
    gradient_clipping: float = key(
        1.0,
        "largest norm of the gradient; 0 clips nothing",
        deepspeed="gradient_clipping",
        deepspeed_default="1.0",
        at_least=0,
        finite=True,
    )
    lr_scheduler_type: str = key(
        "linear",
        "how the learning rate falls after the warm-up; wsd (warm-up, stable, decay): at the end",
        deepspeed="scheduler.type",
        choices=("linear", "cosine", "constant", WSD),
    )
    decay_share: float = key(
        0.1, "wsd: the share of the steps, at the end, in which the rate falls", above=0, at_most=1
    )
    num_decay_steps: int | None = key(
        None, "wsd: the number of these steps, instead of decay_share", at_least=1
    )
    decay_shape: str = key(
        "linear",
        "wsd: how the rate falls: on a line, as 1 - sqrt of the share of the decay that is over, "
        "or along half a cosine",
        choices=("linear", "1-sqrt", "cosine"),
    )
    decay_from: str | None = key(
        None,
        "checkpoint folder of a run at a constant rate, from which this run, in an out_dir of its "
        "own, only decays for num_decay_steps (max_train_steps follows)",
        is_path=True,
    )
    min_learning_rate_ratio: float = key(
        0.0,
        "linear, cosine and wsd fall to this share of learning_rate (0.1: a tenth of the peak)",
        deepspeed="scheduler.params.cos_min_ratio",
        at_least=0,
        at_most=1,
    )
    num_warmup_steps: int = key(
        1000,
        "steps from 0 to the peak",
        deepspeed="scheduler.params.warmup_num_steps",
        at_least=0,
    )
    warmup_share: float | None = key(
        None, "share of the steps, instead of num_warmup_steps", at_least=0, below=1
    )
    max_train_steps: int = key(
        100_000, "steps in all", deepspeed="scheduler.params.total_num_steps", at_least=1
    )
    num_train_epochs: float | None = key(
        None,
        "passes over the training rows, instead of max_train_steps (for tasks on tables)",
        above=0,
    )
    gradient_accumulation_steps: int = key(
        1,
        "micro-batches of a step",
        deepspeed="gradient_accumulation_steps",
        deepspeed_default="1",
        at_least=1,
    )
    mixed_precision: str = key(
        "no",
        "precision of the forward and backward pass; no: float32",
        deepspeed="bf16.enabled, fp16.enabled",
        choices=("no", "bf16", "fp16"),
    )

    seed: int = key(
        42,
        "seed of the weights, the dropout and every choice about the data",
        at_least=0,
        at_most=LARGEST_SEED,
        heading="Run folder and resuming",
    )
    out_dir: str = key("runs/default", "run folder (relative to the working folder)", is_path=True)
    overwrite_out_dir: bool = key(False, "first empty the folder of an earlier run")
    resume_from_checkpoint_dir: str | None = key(
        None,
        "`latest` of out_dir (a fresh start where there is none yet), or a checkpoint folder",
        is_path=True,
    )

    logging_steps: int = key(
        1,
        "steps between lines of metrics.jsonl",
        at_least=1,
        heading="Logging, evaluation and checkpoints",
    )
    logs_per_epoch: int | None = key(
        None, "lines of metrics.jsonl in an epoch, instead of logging_steps", at_least=1
    )
    eval_steps: int = key(1000, "steps between evaluations (0: off)", at_least=0)
    evals_per_epoch: int | None = key(
        None, "evaluations in an epoch, instead of eval_steps", at_least=1
    )
    start_with_eval: bool = key(False, "evaluate before the first step, too")
    save_steps: int = key(1000, "steps between checkpoints (0: only at the end)", at_least=0)
    saves_per_epoch: int | None = key(
        None, "checkpoints in an epoch, instead of save_steps", at_least=1
    )
    extra_steps_to_eval_save_at: list[int] = key(
        [], "further steps to evaluate and save at", at_least=1
    )
    export_steps: int | None = key(
        None,
        "write model/ only into checkpoints at multiples of this (0: into none, null: into all); "
        "a finished run always has its own model/",
        at_least=0,
    )
    async_save: bool = key(
        False, "write checkpoints beside the loop, from a copy in main memory (not under DeepSpeed)"
    )
    keep_last_checkpoints: int = key(
        3,
        "number of most recent intact checkpoints to keep (0: all); those that the next two keys "
        "match, that contain a file KEEP or that a run resumed from are kept, too",
        at_least=0,
    )
    keep_every_checkpoint_steps: int = key(
        0, "checkpoints at multiples of this are never deleted (0: off)", at_least=0
    )
    keep_best_by: str | None = key(
        None, "never delete the checkpoint with the best value of this metric of the evaluation"
    )
    export_best: bool = key(
        False, "model/ of the finished run is the best checkpoint's by keep_best_by, not the last"
    )
    early_stopping_patience: int | None = key(
        None,
        "evaluations in a row without a better keep_best_by after which the run ends; null: off",
        at_least=1,
    )
    on_nonfinite: str = key(
        "stop",
        "a step whose loss or gradient is not finite (skip: not under ZeRO-0)",
        choices=("stop", "skip"),
        heading="When a loss is not what it should be",
    )
    max_consecutive_skips: int = key(10, "skip: stop after more such steps in a row", at_least=0)
    loss_spike_deviations: float = key(
        0.0,
        "roll back to the last intact checkpoint, and skip the data seen since, when a loss "
        "exceeds the mean of the window by this many standard deviations (0: off)",
        at_least=0,
        finite=True,
    )
    loss_spike_window: int = key(
        50, "number of recent losses that a spike is compared with", at_least=2
    )
    max_rollbacks: int = key(3, "stop after rolling back to one checkpoint more often", at_least=0)

    trackers: list[str] = key(
        ["tensorboard"],
        "Accelerate's trackers beside metrics.jsonl",
        choices=TRACKERS,
        heading="Trackers, logs and upload",
    )
    run_name: str = key("tracking", "the run's name for the trackers, and of their folder")
    log_documents: bool = key(
        False,
        "write the documents of every step, and a hash of the text that it has a loss on, to "
        "documents-rank{r}.jsonl",
    )
    profile: bool = key(
        False, "write a trace of some steps by torch's profiler into profile/ of the run folder"
    )
    profile_steps: list[int] = key(
        [10, 12], "profile: the first and the last of these steps", at_least=1
    )

    push_to_hub: str | None = key(
        None, "owner/name on the Hub that the finished model is uploaded to; a failure is logged"
    )

    distributed_timeout_s: int = key(
        1800,
        "seconds after which a missing rank, or no progress on any rank, ends the run",
        at_least=1,
        heading="Processes and checks",
    )
    accelerate_config_file: str | None = key(
        None,
        "with check_only: the launch file to check against, as if launched with it",
        is_path=True,
    )
    check_only: bool = key(False, "compose, check, print the start-up table, and stop")
    estimate: bool = key(
        False, "print parameters, memory by engine, speed and time to finish, and stop"
    )
    estimate_steps: int = key(
        10,
        "estimate: steps that are made to measure the speed, and forgotten (the first half warms "
        "up); 0: none",
        at_least=0,
    )


@dataclass(kw_only=True)
class PretrainedConfig(RunConfig):
    """A training run of a model of transformers."""

    model_name: str = key(
        "gpt2",
        "a folder or Hub name to load; its weights unless model_config_file",
        is_path=True,
        heading="Model",
    )
    model_config_file: str | None = key(
        None,
        "JSON of a transformers config: start from random weights of this shape instead",
        is_path=True,
    )
    tokenizer_name: str | None = key(None, "a folder or Hub name; null: model_name", is_path=True)


@dataclass(kw_only=True)
class TableDataConfig:
    """The keys that the data sections of all tasks on a table share."""

    per_device_eval_batch_size: int = key(
        32, "rows in an evaluation batch of one process", at_least=1
    )
    num_workers: int = key(
        0, "loader processes of each rank (0: in the training process)", at_least=0
    )
