"""DeepSpeed's states: read without running code, and converted to its universal format.

DeepSpeed saves pickles, and loads them with `weights_only=False`: a pickle then calls any function
that it names. A checkpoint may come from anywhere, and its manifest only proves that it is
complete. DeepSpeed saves only tensors, plain values and a few classes without behavior, so torch is
restricted to these, regardless of its caller.

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
from bsmeta.core.process import run_and_report
from bsmeta.core.progress import report_progress
from bsmeta.training.pickled_enums import NAMES_OF_GETATTR, make_member_reader

# Environment variables that torch reads at each load; they override arguments of the caller.
_RESTRICTED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_UNRESTRICTED = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def list_plain_globals() -> list[Any]:
    """Lists the classes in DeepSpeed's states, none of which has side effects when constructed.

    Each name of `getattr` is paired with the function that replaces it.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    read_stage = make_member_reader(ZeroStageEnum)
    return [
        DynamicLossScaler,
        LossScaler,
        ZeroStageEnum,
        fragment_address,
        *((read_stage, name) for name in NAMES_OF_GETATTR),
    ]


@contextmanager
def restrict_to_values() -> Iterator[None]:
    """Context in which torch loads only plain values, also when DeepSpeed calls it.

    Raises:
        UnpicklingError: If a pickle names anything but values.
    """
    previous = {name: os.environ.pop(name, None) for name in (_RESTRICTED, _UNRESTRICTED)}
    os.environ[_RESTRICTED] = "1"
    try:
        with torch.serialization.safe_globals(list_plain_globals()):
            yield
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(_extract_reason(error)) from error
    finally:
        del os.environ[_RESTRICTED]
        os.environ.update({name: value for name, value in previous.items() if value is not None})


def _extract_reason(error: Exception) -> str:
    """Extracts why torch refused a pickle, without torch's advice on how to load it anyway."""
    lines = str(error).splitlines()
    for mark in ("GLOBAL", "WeightsUnpickler"):
        for line in lines:
            if mark in line:
                return line.strip()
    return lines[0] if lines else ""


def check_states(folder: Path) -> None:
    """Refuses states that hold more than values, or keys that lead out of the folder.

    The converter creates a folder for each parameter, wherever its name leads. Tensors are not
    read, only mapped into memory.

    Raises:
        CheckpointError: If a file in the folder is refused; the message names it.
    """
    with restrict_to_values():
        for file in sorted(folder.glob("*.pt")):
            can_map = zipfile.is_zipfile(file)
            try:
                state = torch.load(file, map_location="cpu", weights_only=True, mmap=can_map)
                path_like_key = _find_path_like_key(state)
            except Exception as error:
                reason = _extract_reason(error)
                raise CheckpointError(f"{file}: holds more than values ({reason})") from error
            if path_like_key is not None:
                raise CheckpointError(
                    f"{file}: names {path_like_key!r}, expected names of parameters"
                )
            report_progress()


def _find_path_like_key(state: Any) -> str | None:
    """Returns a key that is not a plain file name, if there is one."""
    for key in _iterate_keys(state):
        if "/" in key or key in ("", ".."):
            return key
    return None


def _iterate_keys(state: Any) -> Iterator[str]:
    """Yields the string keys in nested mappings and lists, which may contain themselves."""
    pending = [state]
    seen_ids: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen_ids:
            continue
        seen_ids.add(id(value))

        if isinstance(value, dict):
            yield from (key for key in value if isinstance(key, str))
            pending += value.values()
        elif isinstance(value, (list, tuple)):
            pending += value


def main() -> None:
    """Runs DeepSpeed's converter on the arguments of the command line."""
    from deepspeed.checkpoint import ds_to_universal

    with restrict_to_values():
        ds_to_universal.main(ds_to_universal.parse_arguments())


if __name__ == "__main__":
    sys.exit(run_and_report(main))
elif __name__ == "__mp_main__":  # a process of the converter that was not forked
    torch.serialization.add_safe_globals(list_plain_globals())
