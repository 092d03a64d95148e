"""DeepSpeed's states: read without running code, and converted to its universal format.

DeepSpeed saves pickles, and loads them with `weights_only=False`: a pickle then calls any function
that it names. A checkpoint may come from anywhere, and its manifest says only that it is complete.
What DeepSpeed saves are tensors, plain values and a few classes without behavior, so torch is
restricted to these, whatever its caller asks for.

    python -P -m bsmeta.training.engines_states --input_folder FOLDER --output_folder FOLDER

is DeepSpeed's converter under the same restriction.
"""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bsmeta.core.errors import CheckpointError
from bsmeta.core.process import exit_code
from bsmeta.core.progress import report_progress

_RESTRICTED, _UNRESTRICTED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""Variables that torch reads at each load, and that win over what the caller passes."""


def plain_classes() -> list[Any]:
    """The classes in DeepSpeed's states, none of which does anything when it is made."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


@contextmanager
def only_values() -> Iterator[None]:
    """Restricts every load by torch, DeepSpeed's own included, to values.

    Raises:
        UnpicklingError: If a pickle names anything else.
    """
    before = {name: os.environ.pop(name, None) for name in (_RESTRICTED, _UNRESTRICTED)}
    os.environ[_RESTRICTED] = "1"
    try:
        with torch.serialization.safe_globals(plain_classes()):
            yield
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(_reason(error)) from error
    finally:
        del os.environ[_RESTRICTED]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _reason(error: Exception) -> str:
    """Why torch refuses a pickle, without its advice to load it in spite of that."""
    lines = str(error).splitlines()
    named = [line.strip() for line in lines if "GLOBAL" in line or "WeightsUnpickler" in line]
    return next(iter([*named, *lines[:1]]), "")


def check_states(folder: Path) -> None:
    """Refuses states that hold more than values, or names that lead to other folders.

    The converter makes a folder for each parameter, and would make it anywhere. Tensors are not
    read, only mapped into memory.

    Raises:
        CheckpointError: Naming the file.
    """
    with only_values():
        for file in sorted(folder.glob("*.pt")):
            mapped = zipfile.is_zipfile(file)
            try:
                names = _names(torch.load(file, map_location="cpu", weights_only=True, mmap=mapped))
                wrong = next((name for name in names if "/" in name or name in ("", "..")), None)
            except Exception as error:
                reason = _reason(error)
                raise CheckpointError(f"{file}: holds more than values ({reason})") from error
            if wrong is not None:
                raise CheckpointError(f"{file}: names {wrong!r}, expected names of parameters")
            report_progress()


def _names(value: Any) -> Iterator[str]:
    """Yields the keys of nested mappings and lists, which may contain themselves."""
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            yield from (name for name in value if isinstance(name, str))
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value


def main() -> None:
    """Runs DeepSpeed's converter."""
    from deepspeed.checkpoint import ds_to_universal

    with only_values():
        ds_to_universal.main(ds_to_universal.parse_arguments())


if __name__ == "__main__":
    sys.exit(exit_code(main))
elif __name__ == "__mp_main__":  # a process of the converter that was not forked
    torch.serialization.add_safe_globals(plain_classes())
