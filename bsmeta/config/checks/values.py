"""Values of the configuration that are wrong whatever the launch and DeepSpeed say."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

from bsmeta.config.checks.data import data_problems
from bsmeta.config.checks.problems import HYDRA, Problem, closest, nearest, show
from bsmeta.config.schema import TrainConfig

CHOICES = {
    "lr_scheduler_type": ("linear", "cosine", "constant"),
    "mixed_precision": ("no", "bf16", "fp16"),
    "on_nonfinite": ("stop", "skip"),
    "attn_implementation": ("auto", "eager", "sdpa", "flash_attention_2", "flex_attention"),
}

AT_LEAST = {
    "weight_decay": 0,
    "adam_beta1": 0,
    "adam_beta2": 0,
    "gradient_clipping": 0,
    "min_learning_rate_ratio": 0,
    "num_warmup_steps": 0,
    "max_train_steps": 1,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing_every": 1,
    "loss_chunk_logits": 0,
    "seed": 0,
    "logging_steps": 1,
    "eval_steps": 0,
    "eval_documents": 1,
    "save_steps": 0,
    "keep_last_checkpoints": 0,
    "keep_every_checkpoint_steps": 0,
    "max_consecutive_skips": 0,
    "loss_spike_deviations": 0,
    "loss_spike_window": 2,
    "max_rollbacks": 0,
    "distributed_timeout_s": 1,
    "estimate_steps": 0,
}

AT_MOST = {
    "min_learning_rate_ratio": 1,
    "seed": 2**32 - 1,  # numpy's largest
}

FINITE = ("weight_decay", "gradient_clipping", "loss_spike_deviations")

ABOVE_ZERO = ("learning_rate", "adam_epsilon")

# What the Hub takes for a model (huggingface_hub.utils.validate_repo_id), with its owner.
REPOSITORY = re.compile(r"(?!.*(--|\.\.))(\w[\w-]*)/(\w[\w.-]{0,93}\w|\w)(?<!\.git)", re.ASCII)

# Accelerate's names, which are also those of the modules that must be installed.
TRACKERS = ("tensorboard", "wandb", "trackio")


def value_problems(config: TrainConfig) -> Iterator[Problem]:
    """Yields what is wrong with single values, and with values of this configuration together."""
    for key, choices in CHOICES.items():
        found = value_of(config, key)
        if found not in choices:
            expected = f"one of {', '.join(choices)}{nearest(found, choices)}"
            fix = f"{key}={closest(found, choices)}"
            if key == "mixed_precision" and found == "False":
                expected += " (YAML reads no without quotes as false)"
                fix = f'{key}: "no" in YAML, or {key}=no on the command line'
            yield _refused(config, key, expected, fix)
    for key, least in AT_LEAST.items():
        if not value_of(config, key) >= least:
            yield _refused(config, key, f"{least} or more", _default(key))
    for key, most in AT_MOST.items():
        if value_of(config, key) > most:
            yield _refused(config, key, f"{most} or less", _default(key))
    for key in FINITE:
        if value_of(config, key) == math.inf:
            yield _refused(config, key, "a number (0 switches it off)", f"{key}=0")
    for key in ABOVE_ZERO:
        if not 0 < value_of(config, key) < math.inf:
            yield _refused(config, key, "a number above 0", _default(key))
    for key in ("adam_beta1", "adam_beta2"):
        if value_of(config, key) >= 1:
            yield _refused(config, key, "a number below 1", _default(key))
    if config.data_config.train_file is None and config.data_config.dataset_name is None:
        fix = "data_config.train_file=FOLDER/*.jsonl.gz (or a list of files, or dataset_name)"
        yield _refused(config, "data_config.train_file", "the training shards", fix)
    yield from data_problems(config.data_config)
    for step in config.extra_steps_to_eval_save_at:
        if not 1 <= step <= config.max_train_steps:
            expected = f"updates of the run, from 1 to {config.max_train_steps} (max_train_steps)"
            fix = f"drop {step} from extra_steps_to_eval_save_at"
            yield Problem("extra_steps_to_eval_save_at", HYDRA, show(step), expected, fix)
    if config.push_to_hub is not None and not REPOSITORY.fullmatch(config.push_to_hub):
        expected = "OWNER/NAME, of letters, digits, '-', '_' and '.'"
        yield _refused(config, "push_to_hub", expected, "push_to_hub=me/my-model, for example")
    yield from _trackers(config)


def value_of(config: TrainConfig, key: str) -> Any:
    """The value of a dotted key."""
    return reduce(getattr, key.split("."), config)


def _default(key: str) -> str:
    """A fix that is itself accepted: the default."""
    return f"{key}={show(value_of(TrainConfig(), key))}, for example"


def _trackers(config: TrainConfig) -> Iterator[Problem]:
    for name in config.trackers:
        if name not in TRACKERS:
            expected = f"some of {', '.join(TRACKERS)}{nearest(name, TRACKERS)}"
            yield Problem("trackers", HYDRA, show(name), expected, "trackers=[tensorboard]")
        elif importlib.util.find_spec(name) is None:
            fix = f"pip install {name}, or leave it out of trackers"
            yield Problem("trackers", HYDRA, show(name), "an installed library", fix)


def _refused(config: TrainConfig, key: str, expected: str, fix: str) -> Problem:
    return Problem(key, HYDRA, show(value_of(config, key)), expected, fix)
