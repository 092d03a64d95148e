"""Runs a module of Python under a setting of torch that no key of a run has.

    python experiments/benchmarks/gpu_run.py SETTING bsmeta.train KEY=VALUE ...

SETTING is one of

    deterministic   deterministic algorithms where torch has them (set CUBLAS_WORKSPACE_CONFIG)
    no-cudnn        attention without cuDNN's kernels
    waits           at the end, print as JSON where the host waited for the device, and how often
"""

from __future__ import annotations

import collections
import json
import runpy
import sys
import traceback
import warnings
from typing import Any

import torch

FRAMES = 25
"""The innermost calls that are searched for lines of this package and of transformers."""


def count_waits() -> collections.Counter[str]:
    """Counts the places that wait for the device from now on, as torch warns of them."""
    waits: collections.Counter[str] = collections.Counter()

    def count(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        if "synchroniz" not in str(message):
            return
        calls = [
            f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
            for frame in reversed(traceback.extract_stack()[:-1][-FRAMES:])
            if "bsmeta/" in frame.filename or "transformers/" in frame.filename
        ]
        waits[" < ".join(calls[:4]) or f"{filename}:{lineno}"] += 1

    warnings.showwarning = count  # type: ignore[assignment]
    warnings.simplefilter("always")
    torch.cuda.init()
    torch.cuda.set_sync_debug_mode("warn")
    return waits


def main() -> None:
    """Applies the setting and runs the module."""
    setting, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    waits = None
    if setting == "deterministic":
        torch.use_deterministic_algorithms(True, warn_only=True)
    elif setting == "no-cudnn":
        torch.backends.cuda.enable_cudnn_sdp(False)
    elif setting == "waits":
        waits = count_waits()
    else:
        sys.exit(f"expected deterministic, no-cudnn or waits, not {setting}")
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        if waits is not None:
            print(json.dumps({"waits": dict(waits.most_common())}))


if __name__ == "__main__":
    main()
