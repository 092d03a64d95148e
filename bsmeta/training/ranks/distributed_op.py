"""Compiles the op through which processes of one machine without GPUs communicate under DeepSpeed.

torch guards the compilation of such an op with a file. A process that is killed while it compiles
or loads the op leaves that file, and every later process waits for it forever. Here the name of a
compiled library contains the versions that it was compiled for, and the library appears by one
rename, so it is loaded without any lock. The compilation is guarded by a lock that the system
releases when its holder ends.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import patch_environment
from filelock import FileLock
from torch.utils.cpp_extension import get_default_build_root

from bsmeta.training.ranks.time_limits import call_after

COMPILATION_NOTICE_S = 5.0  # a compilation that takes longer is announced
_OP_BUILDER = "ShareMemCommBuilder"
_BUILD_FOLDER_PREFIX = "bsmeta-building-"

logger = logging.getLogger(__name__)


def prepare_cpu_op() -> None:
    """Loads the op through which DeepSpeed's processes communicate on a CPU, compiling it if new.

    `make env` compiles it inside the environment, where a run that is started without `make` also
    finds it. Otherwise DeepSpeed would spend minutes compiling it without any message.
    """
    from deepspeed.accelerator import get_accelerator  # slow; only needed under DeepSpeed
    from deepspeed.git_version_info import installed_ops

    if get_accelerator().device_name() != "cpu":
        return

    builder = get_accelerator().create_op_builder(_OP_BUILDER)
    loaded_ops = builder._loaded_ops  # where DeepSpeed itself looks first
    if builder.NAME in loaded_ops or installed_ops.get(builder.NAME):
        return

    library = find_library_path(builder.NAME)
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        announcement = (
            "DeepSpeed compiles its op for CPUs, or waits for a process that does (a lock in %s): "
            "once, for some minutes …"
        )
        with (
            call_after(COMPILATION_NOTICE_S, logger.info, announcement, library.parent),
            FileLock(f"{library}.lock"),
        ):
            if not library.exists():
                _compile_op(builder, library)

    if builder.NAME not in loaded_ops:  # compiling loads it, too
        loaded_ops[builder.NAME] = _import_op(builder.NAME, library)


def find_library_path(name: str) -> Path:
    """Returns the path of the compiled op, which is named for the versions it was compiled for.

    It is in TORCH_EXTENSIONS_DIR if that is set, or else in the Python environment if the op is
    there or may be written there, or else in torch's default folder.
    """
    import deepspeed

    versions = f"deepspeed{deepspeed.__version__}-torch{torch.__version__}"
    file = f"{name}-{versions}-{sys.implementation.cache_tag}-{platform.machine()}.so"

    environment_folder = Path(sys.prefix) / "torch_extensions"
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        return Path(os.environ["TORCH_EXTENSIONS_DIR"]) / file
    if (environment_folder / file).exists() or os.access(environment_folder, os.W_OK):
        return environment_folder / file
    return Path(get_default_build_root()) / file


def _compile_op(builder: Any, library: Path) -> None:
    """Compiles the op in a temporary folder and moves it to `library`; called under the lock."""
    # Folders of processes that were killed while they compiled.
    for leftover in library.parent.glob(f"{_BUILD_FOLDER_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)

    search_path = os.environ.get("PATH", "")
    scripts_folder = Path(sys.executable).parent
    if (scripts_folder / "ninja").exists():  # prefer the ninja of this environment
        search_path = f"{scripts_folder}{os.pathsep}{search_path}"

    with tempfile.TemporaryDirectory(
        dir=library.parent, prefix=_BUILD_FOLDER_PREFIX, ignore_cleanup_errors=True
    ) as build_folder:
        with patch_environment(TORCH_EXTENSIONS_DIR=build_folder, PATH=search_path):
            builder.load(verbose=False)
        compiled = Path(build_folder, builder.NAME, f"{builder.NAME}.so")
        with compiled.open("rb") as file:
            os.fsync(file.fileno())
        compiled.replace(library)


def _import_op(name: str, library: Path) -> Any:
    """Imports a compiled op as a module."""
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
