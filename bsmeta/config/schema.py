"""Schema of all training runs: the keys of the loop, engines, checkpoints and launch.

Each task has its own schema, derived from this one (`bsmeta.tasks.TASKS`). Hydra merges YAML and
the command line onto the defaults of these dataclasses, and `bsmeta.config.composing.compose`
creates an instance of the result.

Each optimizer has one entry, which the schema, the trainer and the estimate of memory read. The
trainer passes the optimizer's class the parameter groups, the learning rate and the options of the
entry. A step that is not finite changes no weights: torch's fused kernels skip such a step on the
device, and before a step of any other optimizer, the trainer waits for the device and skips it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar

from bsmeta.config.cards import CARDS
from bsmeta.core.keys import key

ADAMW = "adamw"
_ADAM_KEYS = ("adam_beta1", "adam_beta2", "adam_epsilon")

WSD = "wsd"
"""The `lr_scheduler_type` with a constant rate between warm-up and decay."""

MAX_SEED = 2**32 - 1
"""The largest seed that numpy accepts."""

EXPORT_DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes of `export_dtype`, by torch's names."""

# Accelerate's names of trackers, which are also the names of the modules to install.
TRACKERS = (
    "tensorboard",
    "wandb",
    "trackio",
    "aim",
    "clearml",
    "comet_ml",
    "dvclive",
    "mlflow",
    "swanlab",
)


@dataclass(frozen=True, kw_only=True)
class OptimizerEntry:
    """An optimizer.

    Attributes:
        class_path: The class as `module:name`, which is imported when the optimizer is built.
        options: Returns the options of the class for a configuration.
        state_values: Returns the number of float32 values of state for a parameter, from its shape
            and whether it is a matrix of a repeated layer.
        keys: The keys on which the options depend.
        matrices_apart: Whether the matrices of repeated layers have parameter groups of their own.
        by_element: Whether each element is updated independently, so that ZeRO can partition the
            parameters, and runs under DeepSpeed have been tested. Other optimizers are refused
            there.
        takes_shards: Whether the optimizer updates sharded parameters of FSDP2 (DTensors), and runs
            have been tested. Other optimizers are refused there.
    """

    class_path: str
    options: Callable[[RunConfig], Mapping[str, Any]]
    state_values: Callable[[Sequence[int], bool], int]
    keys: tuple[str, ...] = ()
    matrices_apart: bool = False
    by_element: bool = False
    takes_shards: bool = False

    def load(self) -> Callable[..., Any]:
        """Imports the class of the optimizer."""
        loaded: Callable[..., Any] = resolve_name(self.class_path)
        return loaded


def _make_adam_options(config: RunConfig) -> dict[str, Any]:
    """Returns the options of Adam for a configuration."""
    return {"betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_epsilon}


def _count_adam_values(shape: Sequence[int]) -> int:
    """Returns the number of values of Adam's state for a parameter."""
    return 2 * math.prod(shape) + 1  # two moments, and the number of steps


def _count_factored_values(shape: Sequence[int]) -> int:
    """Returns the number of values of Adafactor's state for a parameter.

    These are the number of steps and the mean squares, of a matrix only by rows and columns.
    """
    size = math.prod(shape)
    if len(shape) < 2:
        return size + 1
    return size // shape[-1] + size // shape[-2] + 1


OPTIMIZERS: dict[str, OptimizerEntry] = {
    # Loshchilov and Hutter 2019. The fused kernel reads the weights once only, which is several
    # times faster, on a CPU as well.
    ADAMW: OptimizerEntry(
        class_path="torch.optim:AdamW",
        options=lambda config: {**_make_adam_options(config), "fused": True},
        keys=_ADAM_KEYS,
        state_values=lambda shape, _: _count_adam_values(shape),
        by_element=True,
        takes_shards=True,
    ),
    # Muon (Jordan et al. 2024) for the matrices of repeated layers, AdamW for the rest. Updates are
    # scaled as in Liu et al. 2025 (arXiv 2502.16982), so that both use the learning rate of AdamW.
    "muon": OptimizerEntry(
        class_path="bsmeta.training.optimization:MuonWithAdamW",
        options=lambda config: {**_make_adam_options(config), "momentum": config.momentum},
        keys=(*_ADAM_KEYS, "momentum"),
        state_values=lambda shape, in_layers: (
            math.prod(shape) if in_layers else _count_adam_values(shape)
        ),
        matrices_apart=True,
        takes_shards=True,
    ),
    # Shazeer and Stern 2018. The second moment of a matrix is kept by rows and columns, which torch
    # 2.13 cannot do for shards.
    "adafactor": OptimizerEntry(
        class_path="torch.optim:Adafactor",
        options=lambda _: {},
        state_values=lambda shape, _: _count_factored_values(shape),
    ),
    # Without torch's fused kernel, which starts from an uninitialized momentum if it has skipped
    # the first step.
    "sgd": OptimizerEntry(
        class_path="torch.optim:SGD",
        options=lambda config: {"momentum": config.momentum},
        keys=("momentum",),
        state_values=lambda shape, _: math.prod(shape),
        takes_shards=True,
    ),
}


DEEPSPEED_OPTIMIZERS = ", ".join(name for name, entry in OPTIMIZERS.items() if entry.by_element)
"""The names of the optimizers that work under DeepSpeed, for messages."""

FSDP2_OPTIMIZERS = ", ".join(name for name, entry in OPTIMIZERS.items() if entry.takes_shards)
"""The names of the optimizers that work under FSDP2, for messages."""


def name_optimizers_with_key(key: str) -> str:
    """Returns the names of the optimizers whose options depend on a key, for messages."""
    return ", ".join(name for name, entry in OPTIMIZERS.items() if key in entry.keys)


@dataclass(frozen=True, kw_only=True)
class ModelCardConfig:
    """Facts for the model card that only its author knows, in the Hub's notation.

    https://huggingface.co/docs/hub/model-cards lists the identifiers.
    """

    license: list[str] = key([])
    """license identifiers of the model, as the Hub lists them: apache-2.0, other, …"""
    datasets: list[str] = key([])
    """owner/name on the Hub of further training data; data sets of hf:// files are added"""
    language: list[str] = key([])
    """ISO 639 codes of the languages of the training data: en, …"""
    sources: list[str] = key([])
    """texts and word lists that the model learns from, each with its license"""
    describes: Any = key(None)
    """the training data that these four describe (a value of data_config.train_file,
    data_config.csv or datasets); a run on other data omits them; null: any data"""
    command: str | None = key(None)
    """command that trains the model, on the card and in the report of the run; null: the command
    line of the run"""


DEFAULT_TASK = "causal_lm"
"""The task of a `config.yaml` that names none, and of a model without a `config.yaml`."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A training run of any task."""

    micro_batch_key: ClassVar[str | None] = None
    """The key that sets the number of rows of a micro-batch; None if it varies between steps."""

    batch_scope_key: ClassVar[str | None] = None
    """The key that says whether `micro_batch_key` counts the rows of a micro-batch (`per_device`)
    or of a whole step (`total`); None: of a micro-batch."""

    training_data_key: ClassVar[str] = "data_config.train_file"
    """The key that names the training data, which is compared with `model_card.describes`."""

    metrics: ClassVar[str | None] = None
    """The task's table of metrics (`bsmeta.config.metric_table`), as `module:attribute`; None: the
    metrics are known only when an evaluation runs."""

    task: str = key("", heading="Task")
    """the task to train: a name in bsmeta.tasks.TASKS"""

    optimizer_type: str = key(
        ADAMW,
        "update rule; muon: for the matrices of repeated layers, with adamw for the rest (under "
        f"DeepSpeed: {DEEPSPEED_OPTIMIZERS}; under FSDP2: {FSDP2_OPTIMIZERS})",
        choices=tuple(OPTIMIZERS),
        heading="Optimizer, schedule and batch",
    )
    learning_rate: float = key(5e-5, deepspeed="optimizer.params.lr", above=0)
    """peak learning rate"""
    weight_decay: float = key(
        0.01, deepspeed="optimizer.params.weight_decay", at_least=0, finite=True
    )
    """weight decay of matrices (biases and norms have none)"""
    adam_beta1: float = key(
        0.9,
        name_optimizers_with_key("adam_beta1"),
        deepspeed="optimizer.params.betas.0",
        at_least=0,
        below=1,
    )
    adam_beta2: float = key(
        0.999,
        name_optimizers_with_key("adam_beta2"),
        deepspeed="optimizer.params.betas.1",
        at_least=0,
        below=1,
    )
    adam_epsilon: float = key(
        1e-8, name_optimizers_with_key("adam_epsilon"), deepspeed="optimizer.params.eps", above=0
    )
    momentum: float = key(0.95, name_optimizers_with_key("momentum"), above=0, below=1)
    gradient_clipping: float = key(
        1.0, deepspeed="gradient_clipping", deepspeed_default="1.0", at_least=0, finite=True
    )
    """largest norm of the gradient; 0 clips nothing"""
    lr_scheduler_type: str = key(
        "linear", deepspeed="scheduler.type", choices=("linear", "cosine", "constant", WSD)
    )
    """learning rate after the warm-up; wsd (warm-up, stable, decay): constant, falling at the
    end"""
    decay_share: float = key(0.1, above=0, at_most=1)
    """wsd: length of the decay at the end, as a share of the steps"""
    num_decay_steps: int | None = key(None, at_least=1)
    """wsd: length of the decay in steps, instead of decay_share"""
    decay_shape: str = key("linear", choices=("linear", "1-sqrt", "cosine"))
    """wsd: shape of the decay: linear, 1 - sqrt(progress), or half a cosine"""
    decay_from: str | None = key(None, is_path=True)
    """checkpoint folder of a run at a constant rate, which this run, in its own out_dir, continues
    with a decay of num_decay_steps (max_train_steps follows)"""
    min_learning_rate_ratio: float = key(
        0.0, deepspeed="scheduler.params.cos_min_ratio", at_least=0, at_most=1
    )
    """linear, cosine and wsd fall to this share of learning_rate (0.1: a tenth of the peak)"""
    num_warmup_steps: int = key(1000, deepspeed="scheduler.params.warmup_num_steps", at_least=0)
    """steps from 0 to the peak"""
    warmup_share: float | None = key(None, at_least=0, below=1)
    """share of the steps, instead of num_warmup_steps"""
    max_train_steps: int = key(100_000, deepspeed="scheduler.params.total_num_steps", at_least=1)
    """steps in all"""
    num_train_epochs: float | None = key(None, above=0)
    """passes over the training rows, instead of max_train_steps (for tasks on tables)"""
    gradient_accumulation_steps: int = key(
        1, deepspeed="gradient_accumulation_steps", deepspeed_default="1", at_least=1
    )
    """micro-batches in a step"""
    gradient_accumulation_processes: int | None = key(None, at_least=1)
    """number of processes that gradient_accumulation_steps is for; with another number, the steps
    are scaled so that the global batch stays the same (null: never)"""
    mixed_precision: str = key(
        "no", deepspeed="bf16.enabled, fp16.enabled", choices=("no", "bf16", "fp16")
    )
    """precision of the forward and backward pass; no: float32"""
    deterministic: bool = key(False)
    """use only kernels that reproduce a run bit for bit on GPUs as well, where they are slower (not
    with liger_kernel)"""

    seed: int = key(42, at_least=0, at_most=MAX_SEED, heading="Run folder and resuming")
    """seed of the weights, the dropout and every random choice about the data"""
    out_dir: str = key("runs/default", is_path=True, takes_addresses=True)
    """run folder (relative to the working folder), `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`"""
    staging_dir: str = key("runs/staging", is_path=True)
    """local folder in which a run in a bucket writes its files before it uploads them"""
    staging_max_gb: float | None = key(None, above=0)
    """size limit of the staging folder of a run, in GB (null: the free disk space); two checkpoints
    must fit"""
    overwrite_out_dir: bool = key(False)
    """empty the folder of an earlier run first"""
    resume_from_checkpoint_dir: str | None = key(None, is_path=True)
    """`latest` in out_dir (a fresh start if there is none yet), or a checkpoint folder"""

    logging_steps: int = key(1, at_least=1, heading="Logging, evaluation and checkpoints")
    """steps between lines of metrics.jsonl"""
    logs_per_epoch: int | None = key(None, at_least=1)
    """lines of metrics.jsonl in an epoch, instead of logging_steps"""
    eval_steps: int = key(1000, at_least=0)
    """steps between evaluations (0: off)"""
    evals_per_epoch: int | None = key(None, at_least=1)
    """evaluations in an epoch, instead of eval_steps"""
    start_with_eval: bool = key(False)
    """also evaluate before the first step"""
    save_steps: int = key(1000, at_least=0)
    """steps between checkpoints (0: only at the end)"""
    saves_per_epoch: int | None = key(None, at_least=1)
    """checkpoints in an epoch, instead of save_steps"""
    extra_steps_to_eval_save_at: list[int] = key([], at_least=1)
    """further steps at which to evaluate and save"""
    export_steps: int | None = key(None, at_least=0)
    """steps whose multiples have model/ in their checkpoint (0: none, null: all); a finished run
    always has its own model/"""
    export_dtype: str | None = key(None, choices=EXPORT_DTYPES)
    """dtype of the weights in model/ (null: as trained); evaluations during the run use the trained
    weights"""
    async_save: bool = key(False)
    """write checkpoints in the background, from a copy in main memory"""
    keep_last_checkpoints: int = key(3, at_least=0)
    """number of most recent intact checkpoints to keep (0: all); checkpoints that match the next
    two keys, contain a file KEEP or were resumed from are kept as well"""
    keep_every_checkpoint_steps: int = key(0, at_least=0)
    """never delete checkpoints at multiples of this many steps (0: off)"""
    keep_best_by: str | None = key(None)
    """evaluation metric whose best checkpoint is never deleted"""
    export_best: bool = key(False)
    """the finished run's model/ is the best checkpoint's by keep_best_by, not the last one's"""
    early_stopping_patience: int | None = key(None, at_least=1)
    """consecutive evaluations without a better keep_best_by after which the run ends; null: off"""
    on_nonfinite: str = key(
        "stop", choices=("stop", "skip"), heading="Non-finite losses and loss spikes"
    )
    """reaction to a step whose loss or gradient is not finite (skip: not under ZeRO-0)"""
    max_consecutive_skips: int = key(10, at_least=0)
    """skip: stop after more consecutive steps than this"""
    loss_spike_deviations: float = key(0.0, at_least=0, finite=True)
    """standard deviations above the window's mean at which a loss rolls the run back to the last
    intact checkpoint, skipping the data seen since (0: off)"""
    loss_spike_window: int = key(50, at_least=2)
    """number of recent losses to compare a spike with"""
    max_rollbacks: int = key(3, at_least=0)
    """stop after more rollbacks to one checkpoint than this"""
    corruption_check_steps: int = key(0, at_least=0)
    """steps between checks for silent data corruption, which compute a micro-batch twice and
    compare the weights of all ranks (0: off)"""

    trackers: list[str] = key(
        ["tensorboard"], choices=TRACKERS, heading="Trackers, logs and upload"
    )
    """Accelerate's trackers to use in addition to metrics.jsonl"""
    run_name: str = key("tracking")
    """name of the run in the trackers, and of their folder"""
    log_documents: bool = key(False)
    """log the documents of every step, and a hash of the text with a loss, to
    documents-rank{r}.jsonl"""
    profile: bool = key(False)
    """write a trace of some steps by torch's profiler into profile/ of the run folder"""
    profile_steps: list[int] = key([10, 12], at_least=1)
    """profile: first and last step of the trace"""

    push_to_hub: str | None = key(None)
    """owner/name on the Hub to upload the finished model to; a failure is logged"""
    hub_private: bool = key(True)
    """push_to_hub: a repository that does not exist yet is created private; false: public, for
    everyone to read"""
    model_card: ModelCardConfig = key(ModelCardConfig)
    """front matter of the model card"""

    distributed_timeout_s: int = key(1800, at_least=1, heading="Processes and checks")
    """seconds after which a missing rank, or no progress on any rank, ends the run"""
    max_failed_starts: int = key(3, at_least=1)
    """under a launcher that restarts failed processes: end after this many starts that resumed from
    the same step and failed"""
    ddp_bucket_mb: int | None = key(None, at_least=1)
    """MiB of gradients that data parallel training sums in one all-reduce; null: 100 on GPUs, 25 on
    CPUs"""
    fsdp_shard_processes: int | None = key(None, at_least=2)
    """under FSDP2: number of processes that divide one copy of the weights among them; the others
    hold further copies (HSDP); null: all processes hold one copy together"""
    accelerate_config_file: str | None = key(None, is_path=True)
    """check_only: launch file to check against, as if launched with it"""
    check_only: bool = key(False)
    """compose, check, print the start-up table, and stop"""
    estimate: bool = key(False)
    """print parameters, memory by engine, speed and time to finish, and stop"""
    estimate_steps: int = key(10, at_least=0)
    """estimate: steps to measure the speed with, then discarded (the first half is warm-up); 0:
    none"""
    estimate_card: str | None = key(None, choices=tuple(CARDS))
    """estimate: compute for this GPU instead of the device here, measuring only if it is the same;
    A100: with 80 GB"""


@dataclass(frozen=True, kw_only=True)
class PretrainedConfig(RunConfig):
    """A training run that starts from a model or model config of transformers."""

    model_name: str = key("gpt2", is_path=True, heading="Model")
    """a folder or Hub name to load; its weights, too, unless model_config_file is set"""
    model_config_file: str | None = key(None, is_path=True)
    """JSON of a transformers config: start from random weights of this shape instead"""
    tokenizer_name: str | None = key(None, is_path=True)
    """a folder or Hub name; null: model_name"""


@dataclass(frozen=True, kw_only=True)
class TableDataConfig:
    """The keys of `data_config` that all tasks on tables share."""

    per_device_eval_batch_size: int = key(32, at_least=1)
    """rows in an evaluation batch of one process"""
    num_workers: int = key(0, at_least=0)
    """loader processes of each rank (0: in the training process)"""
