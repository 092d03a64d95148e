"""Checks the DeepSpeed JSON itself: readable, without duplicate keys or keys that it ignores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bsmeta.config.checks.problems import Problem, nearest, show
from bsmeta.config.checks.shared import look_up

# The top-level keys of DeepSpeed 0.19.8, except those that would change the configured training
# (elasticity, amp, curriculum learning, …). DeepSpeed ignores unknown keys there.
TOP_LEVEL = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "gradient_clipping", "bf16", "fp16", "zero_optimization", "optimizer", "scheduler",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "communication_data_type",
    "data_types", "prescale_gradients", "gradient_predivide_factor", "aio", "checkpoint",
    "comms_logger", "dump_state", "flops_profiler", "memory_breakdown", "steps_per_print",
    "wall_clock_breakdown",
}  # fmt: skip

# Blocks that a Hydra key replaces. DeepSpeed's recomputation needs calls that the models do not
# make, so its block would have no effect; its monitors would log in addition to the trackers.
ELSEWHERE = {
    "activation_checkpointing": "gradient_checkpointing",
    "tensorboard": "trackers",
    "wandb": "trackers",
    "csv_monitor": "trackers",
}

# Keys of `checkpoint` that the trainer sets, or that would split a checkpoint across machines.
CHECKPOINT = ("load_universal", "use_node_local_storage")

# DeepSpeed refuses unknown keys here, but only once the model is loaded.
ZERO = {
    "stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size",
    "use_multi_rank_bucket_allreduce", "allgather_partitions", "allgather_bucket_size",
    "overlap_comm", "load_from_fp32_weights", "elastic_checkpoint", "offload_param",
    "offload_optimizer", "sub_group_size", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_model_persistence_threshold",
    "stage3_max_live_parameters", "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save", "stage3_module_granularity_threshold",
    "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential",
    "ignore_unused_parameters", "round_robin_gradients", "zero_hpz_partition_size",
    "zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients",
    "memory_efficient_linear", "pipeline_loading_checkpoint", "override_module_apply",
    "log_trace_cache_warnings", "leaf_module",
}  # fmt: skip

# Names that DeepSpeed has dropped, and their replacements.
RENAMED = {
    "cpu_offload": 'offload_optimizer, as {"device": "cpu"}',
    "cpu_offload_params": 'offload_param, as {"device": "cpu"}',
    "cpu_offload_use_pin_memory": "pin_memory of offload_optimizer",
}

WHOLE = "(the file)"


def read_json(path: Path) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Reads a DeepSpeed JSON; returns its object and the problems of the file itself.

    A missing file is reported by the check of the launch.
    """
    if not path.is_file():
        return None, []
    file = str(path)
    twice: list[str] = []
    try:
        document = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=lambda pairs: _object(pairs, twice)
        )
    except OSError as error:
        fix = "make it readable, or name another file"
        return None, [Problem(WHOLE, file, str(error.strerror), "a file that can be read", fix)]
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, [Problem(WHOLE, file, str(error), "JSON", "mend it at that place")]
    if not isinstance(document, dict):
        found = type(document).__name__
        return None, [Problem(WHOLE, file, found, "an object", "begin the file with {")]
    problems = [
        Problem(key, file, "two values", "one (the last wins silently)", "delete one of them")
        for key in twice
    ]
    return document, [*problems, *_unknown(document, file)]


def _object(pairs: list[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice += sorted({name for name in names if names.count(name) > 1})
    return dict(pairs)


def _unknown(document: dict[str, Any], file: str) -> Iterator[Problem]:
    zero = document.get("zero_optimization")
    below = zero if isinstance(zero, dict) else {}
    for name, owner in ELSEWHERE.items():
        if name in document:
            fix = f"delete it, and pass {owner}=… instead"
            yield Problem(name, file, "a block", f"no such block: {owner} of Hydra says it", fix)
    for name in CHECKPOINT:
        if look_up(document, f"checkpoint.{name}") is True:
            expected = "no such key: the trainer keeps whole checkpoints, and converts them itself"
            yield Problem(f"checkpoint.{name}", file, show(True), expected, "delete it")
    for prefix, names, known in (("", document, TOP_LEVEL), ("zero_optimization.", below, ZERO)):
        for name in names:
            if name not in known and name not in ELSEWHERE:
                expected = f"a key that this trainer runs DeepSpeed with{nearest(name, known)}"
                fix = "correct the name, or delete it"
                if name in RENAMED:
                    expected = f"its new name, {RENAMED[name]}"
                    fix = f"write {RENAMED[name]}"
                yield Problem(prefix + name, file, "an unknown key", expected, fix)
