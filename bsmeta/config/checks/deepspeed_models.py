"""Validates the blocks of the DeepSpeed JSON with DeepSpeed's own models: types, ranges, keys.

DeepSpeed applies the same models when it builds its engine, but by then the language model is
loaded, and the error is a traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from bsmeta.config.checks.problems import AUTO, Problem, nearest, show

# Blocks that DeepSpeed reads without a pydantic model.
_PLAIN_BLOCKS = ("aio", "checkpoint", "data_types", "flops_profiler", "optimizer", "scheduler")
# Top-level values, which DeepSpeed does not validate; wrong ones fail later.
_FLAGS = (
    "dump_state", "memory_breakdown", "prescale_gradients", "wall_clock_breakdown",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
)  # fmt: skip
_NUMBERS = ("gradient_predivide_factor", "steps_per_print")


def model_problems(document: Mapping[str, Any], known: set[str], file: str) -> Iterator[Problem]:
    """Yields the values that DeepSpeed would refuse.

    Args:
        document: The JSON.
        known: Dotted keys for which a problem has already been found.
        file: The name of the JSON.
    """
    for key in _FLAGS:
        if key in document and document[key] != AUTO and not isinstance(document[key], bool):
            yield Problem(key, file, show(document[key]), "true or false", "correct the value")
    for key in _NUMBERS:
        value = document.get(key, AUTO)
        if value != AUTO and type(value) not in (int, float):
            yield Problem(key, file, show(value), "a number", "correct the value")
    models = _models()
    for block in (*models, *_PLAIN_BLOCKS):
        if block not in document or block in known:
            continue
        if not isinstance(document[block], Mapping):
            fix = f'write "{block}": {{…}}, or delete it'
            yield Problem(block, file, show(document[block]), "an object with keys", fix)
        elif block in models:
            yield from _block_problems(document[block], block, models[block], known, file)


def _models() -> dict[str, type[BaseModel]]:
    logging.disable(logging.WARNING)  # importing DeepSpeed logs the device that it finds
    try:
        from deepspeed.comm.config import CommsLoggerConfig
        from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    finally:
        logging.disable(logging.NOTSET)
    return {
        "zero_optimization": DeepSpeedZeroConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "comms_logger": CommsLoggerConfig,
    }


def _block_problems(
    content: Mapping[str, Any], block: str, model: type[BaseModel], known: set[str], file: str
) -> Iterator[Problem]:
    values = {
        name: value
        for name, value in _without_auto(content).items()
        if f"{block}.{name}" not in known
    }
    try:
        model(**values)
    except ValidationError as error:
        for found in error.errors():
            key = ".".join([block, *map(str, found["loc"])])
            if key in known:
                continue
            if found["type"] == "extra_forbidden":
                expected = f"a key that DeepSpeed knows{_nearest_key(model, found['loc'])}"
                fix = "correct the name, or delete it"
                yield Problem(key, file, "an unknown key", expected, fix)
            else:
                expected = found["msg"].removeprefix("Input should be ")
                fix = "correct the value, or delete the key"
                yield Problem(key, file, show(found["input"]), expected, fix)


def _nearest_key(model: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """The suggestion for an unknown key, which may be in a nested model."""
    fields = model.model_fields
    for name in path[:-1]:
        inner = next((f for n, f in fields.items() if name in (n, f.alias)), None)
        models = getattr(inner and inner.annotation, "__args__", (inner and inner.annotation,))
        nested = [m for m in models if isinstance(m, type) and issubclass(m, BaseModel)]
        if not nested:
            return ""
        fields = nested[0].model_fields
    return nearest(path[-1], [field.alias or name for name, field in fields.items()])


def _without_auto(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_auto(value) if isinstance(value, Mapping) else value
        for name, value in content.items()
        if value != AUTO
    }
