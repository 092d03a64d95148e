"""DeepSpeed's op for CPUs, through which the processes of one machine communicate.

torch guards the compilation of such an op with a file. A process that is killed while it compiles
or loads the op leaves that file, and every later process waits for it forever. Here a compiled
library is named after what it was compiled for and appears by one rename, so it is loaded without
any lock; the compilation is guarded by a lock that the system releases when its holder ends.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch.utils.cpp_extension import get_default_build_root

logger = logging.getLogger(__name__)

COMPILING_S = 5.0  # a compilation that takes longer is announced
_BUILDER = "ShareMemCommBuilder"
_BUILDING = "bsmeta-building-"


def prepare_cpu_op() -> None:
    """Loads the op through which DeepSpeed's processes communicate on a CPU, compiling it if new.

    `make env` compiles it inside the environment, where a run that is started without `make` also
    finds it. Otherwise DeepSpeed would spend minutes compiling it without any message.
    """
    from deepspeed.accelerator import get_accelerator  # slow; only needed under DeepSpeed
    from deepspeed.git_version_info import installed_ops

    if get_accelerator().device_name() != "cpu":
        return
    builder = get_accelerator().create_op_builder(_BUILDER)
    loaded = builder._loaded_ops  # where DeepSpeed itself looks first
    if builder.NAME in loaded or installed_ops.get(builder.NAME):
        return
    library = library_path(builder.NAME)
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with _announced(library.parent), FileLock(f"{library}.lock"):
            if not library.exists():
                _compile(builder, library)
    if builder.NAME not in loaded:  # compiling loads it, too
        loaded[builder.NAME] = _import(builder.NAME, library)


def library_path(name: str) -> Path:
    """Returns where the compiled op is or will be: in the environment if that can be written."""
    import deepspeed

    versions = f"deepspeed{deepspeed.__version__}-torch{torch.__version__}"
    file = f"{name}-{versions}-{sys.implementation.cache_tag}-{platform.machine()}.so"
    shared = Path(sys.prefix) / "torch_extensions"
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        return Path(os.environ["TORCH_EXTENSIONS_DIR"]) / file
    if (shared / file).exists() or os.access(shared, os.W_OK):
        return shared / file
    return Path(get_default_build_root()) / file


def _compile(builder: Any, library: Path) -> None:
    """Compiles the op in a folder of its own and moves it to its place; holds the lock."""
    for left in library.parent.glob(f"{_BUILDING}*"):  # by processes that were killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        dir=library.parent, prefix=_BUILDING, ignore_cleanup_errors=True
    ) as building:
        with _compiler_environment(building):
            builder.load(verbose=False)
        compiled = Path(building, builder.NAME, f"{builder.NAME}.so")
        with compiled.open("rb") as file:
            os.fsync(file.fileno())
        compiled.replace(library)


@contextmanager
def _compiler_environment(building: str) -> Iterator[None]:
    """Has torch compile in the given folder, with the ninja of this environment if it has one."""
    previous = {name: os.environ.get(name) for name in ("TORCH_EXTENSIONS_DIR", "PATH")}
    os.environ["TORCH_EXTENSIONS_DIR"] = building
    scripts = Path(sys.executable).parent
    if (scripts / "ninja").exists():
        os.environ["PATH"] = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _announced(folder: Path) -> Iterator[None]:
    """Logs what takes so long if the block takes longer than `COMPILING_S`."""
    message = (
        "DeepSpeed compiles its op for CPUs, or waits for a process that does (a lock in %s): "
        "once, for some minutes …"
    )
    announcement = threading.Timer(COMPILING_S, logger.info, (message, folder))
    announcement.daemon = True
    announcement.start()
    try:
        yield
    finally:
        announcement.cancel()


def _import(name: str, library: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
