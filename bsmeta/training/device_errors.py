"""Errors of a device that the user can fix, with the fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bsmeta.config.schema import RunConfig
from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import ConfigurationError, DeviceError
from bsmeta.training.ranks.communication_errors import find_nccl_fault
from bsmeta.training.ranks.determinism import lacks_deterministic_kernel

# The memory of a GPU also runs out in libraries, which have their own errors.
_OUT_OF_MEMORY_MARKS = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "'out of memory'",
)


@contextmanager
def explain_device_errors(config: RunConfig) -> Iterator[None]:
    """Context that replaces errors of the device by errors that name the keys to change.

    Raises:
        ConfigurationError: If an operation has no deterministic kernel, with `deterministic=true`.
        DeviceError: If the device is out of memory.
        NcclError: If NCCL has failed on this rank.
    """
    try:
        yield
    except Exception as error:
        explanation = _explain_error(error, config)
        if explanation is None:
            raise
        raise explanation from error


def _explain_error(error: Exception, config: RunConfig) -> Exception | None:
    """Returns the error to raise instead; None if the user cannot fix it."""
    if config.deterministic and lacks_deterministic_kernel(error):
        operation = str(error).split(maxsplit=1)[0]
        return ConfigurationError(
            f"deterministic=true: found {operation}, which has no deterministic kernel on this "
            "device; expected deterministic=false, or a model or a task without it"
        )

    if _is_out_of_memory(error):
        lines = str(error).splitlines()
        reason = next((line for line in lines if _is_about_memory(line)), lines[0])
        return DeviceError(
            f"the GPU is out of memory ({reason.strip()}). Expected a step that fits: "
            f"{'; '.join(_suggest_smaller_steps(config))}. estimate=true shows what takes the "
            "memory"
        )

    return find_nccl_fault(error)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether torch or a library of CUDA ran out of memory on the GPU."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _is_about_memory(str(error))


def _is_about_memory(text: str) -> bool:
    return any(mark in text for mark in _OUT_OF_MEMORY_MARKS)


def _suggest_smaller_steps(config: RunConfig) -> Iterator[str]:
    """Yields changes that lower the memory of a step, the cheapest first."""
    # The rows of a micro-batch do not depend on the number of processes, unless a key sets the rows
    # of a whole step (`is_total`).
    plan = BatchPlan.of(config, processes=1)
    rows = plan.micro_batch
    accumulation = plan.accumulation
    if plan.is_total:
        yield f"gradient_accumulation_steps={2 * accumulation}, which halves the rows at a time"
    elif plan.key is not None and rows > 1:
        divisor = next(number for number in range(2, rows + 1) if rows % number == 0)
        yield (
            f"{plan.key}={rows // divisor} with "
            f"gradient_accumulation_steps={divisor * accumulation}, "
            f"the same global batch as {rows} with {accumulation}"
        )

    yield "PYTORCH_ALLOC_CONF=expandable_segments:True in the environment, which wastes less of it"
    if getattr(config, "gradient_checkpointing", True) is False:
        yield "gradient_checkpointing=true"
    yield "a launch file that divides more among the processes (docs/scaling.md)"
