"""Starts the processes of a run, and controls when they collect garbage.

On a machine without a GPU, DeepSpeed silently creates N worlds of one process each unless the
process group is requested by name. `create_accelerator` requests it, and raises an error if the
number of processes that joined is not the number that was launched.

When Python's garbage collector pauses one rank, all wait for it at the next collective. So the
objects created during set-up are frozen, and the collector runs only when the loop pauses anyway
and every `STEPS_PER_COLLECTION` steps, on all ranks at once.

Processes of one machine without GPUs communicate through DeepSpeed's op for CPUs
(`prepare_cpu_op`). torch guards the compilation of such an op with a file. A process that is killed
while it compiles or loads the op leaves that file, and every later process waits for it forever.
Here the name of a compiled library contains the versions that it was compiled for, and the library
appears by one rename, so it is loaded without any lock. The compilation is guarded by a lock that
the system releases when its holder ends.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import logging
import os
import platform
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import (
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    DistributedType,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProjectConfiguration,
    patch_environment,
)
from filelock import FileLock
from torch.utils.cpp_extension import get_default_build_root

from bsmeta.config.machine_checks import find_precision_problems
from bsmeta.config.run_location import locate_run_folder
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import ConfigurationError, TrainingError, raise_problems
from bsmeta.core.loopback import listen_on_loopback
from bsmeta.core.progress import GROUP_TIMEOUT
from bsmeta.core.rendezvous import meet_other_machines
from bsmeta.training.determinism import use_deterministic_kernels
from bsmeta.training.nccl_errors import NcclError, find_nccl_fault
from bsmeta.training.threads import use_cores_for_offload

COMPILATION_NOTICE_S = 5.0  # a compilation that takes longer is announced
CONNECT_GRACE_S = 30  # lets torch's own errors come first: they name the missing part
STEPS_PER_COLLECTION = 200
# MiB of gradients in an all-reduce. 25 is torch's own value (its first bucket has 1 MiB). GPUs get
# fewer and larger ones, because each has a fixed cost (chosen by arithmetic, not measured yet).
_BUCKET_MB = {"cuda": 100, "cpu": 25}
_OP_BUILDER = "ShareMemCommBuilder"
_BUILD_FOLDER_PREFIX = "bsmeta-building-"
_CONNECTION_ERROR_MARKS = (
    "gloo",
    "NCCL",
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "TCPStore",
)
_CONNECTING_ACTIVITY = (
    "connecting the processes (on ports that the system chooses, through the network interfaces "
    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME)"
)

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
            _call_after(COMPILATION_NOTICE_S, logger.info, announcement, library.parent),
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


@contextmanager
def _call_after(seconds: float, action: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Context that calls `action` in a thread if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, action, arguments)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _import_op(name: str, library: Path) -> Any:
    """Imports a compiled op as a module."""
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def create_accelerator(
    config: RunConfig, deepspeed_config: dict[str, Any] | None, reshards: bool | None
) -> Accelerator:
    """Creates the Accelerator of this process; all processes of the launch must call it.

    Args:
        deepspeed_config: The DeepSpeed JSON with every `"auto"` resolved; None: without DeepSpeed.
        reshards: Under FSDP2, whether weights are freed after the forward pass; None: without
            FSDP2. If both are None, training is plain (distributed data parallel).

    Raises:
        ConfigurationError: If fewer processes joined than were launched, or another machine of
            the launch refused to start.
        TrainingError: If the processes of the launch cannot connect to each other.
    """
    # Hide output that is of no use to the user; warnings about the run stay.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # A single process writes a checkpoint, as it should.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if config.deterministic:
        use_deterministic_kernels()
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")  # TF32 for matmuls that stay in float32

    fsdp = None if reshards is None else _make_fsdp_plugin(config.mixed_precision, reshards)
    deepspeed = None
    if deepspeed_config is not None:
        use_cores_for_offload(deepspeed_config)
        deepspeed = DeepSpeedPlugin(hf_ds_config=deepspeed_config)
        with time_limit(config.distributed_timeout_s, "compiling DeepSpeed's op for CPUs"):
            prepare_cpu_op()

    meet_other_machines(config.distributed_timeout_s)
    listen_on_loopback()
    accelerator = _connect_processes(config, deepspeed, fsdp)
    _check_precision(config.mixed_precision, accelerator.device)
    _check_world_size(accelerator)
    return accelerator


def _connect_processes(
    config: RunConfig,
    deepspeed: DeepSpeedPlugin | None,
    fsdp: FullyShardedDataParallelPlugin | None,
) -> Accelerator:
    """Creates the Accelerator within a time limit, and explains why processes do not connect.

    Raises:
        NcclError: If NCCL failed on this rank.
        TrainingError: If the processes cannot connect to each other.
    """
    try:
        with time_limit(config.distributed_timeout_s + CONNECT_GRACE_S, _CONNECTING_ACTIVITY):
            return _create_accelerator(config, deepspeed, fsdp)
    except RuntimeError as error:
        fault = find_nccl_fault(error)
        if fault is not None:
            raise fault from error
        if not is_connection_error(error):
            raise
        raise TrainingError(
            f"{_CONNECTING_ACTIVITY} failed: is there a firewall between the machines? Found "
            f"GLOO_SOCKET_IFNAME={os.environ.get('GLOO_SOCKET_IFNAME', '')}, "
            f"NCCL_SOCKET_IFNAME={os.environ.get('NCCL_SOCKET_IFNAME', '')} "
            f"({str(error).splitlines()[0]})"
        ) from error


def _check_precision(mixed_precision: str, device: torch.device) -> None:
    """Refuses bf16 on a GPU that has no instructions for it and would emulate them slowly."""
    if device.type == "cuda" and torch.version.hip is None:
        name = torch.cuda.get_device_name(device)
        capability = torch.cuda.get_device_capability(device)
        raise_problems([*find_precision_problems(mixed_precision, name, capability)])


def _check_world_size(accelerator: Accelerator) -> None:
    """Refuses an Accelerator that has not connected all processes of the launch."""
    num_launched = int(os.environ.get("WORLD_SIZE", "1"))
    is_connected = num_launched == 1 or accelerator.distributed_type != DistributedType.NO
    if accelerator.num_processes != num_launched or not is_connected:
        raise ConfigurationError(
            f"{num_launched} processes were launched (WORLD_SIZE), but Accelerate sees "
            f"{accelerator.num_processes} ({accelerator.distributed_type}): each would train on "
            "its own. Use a file of experiments/accelerate/, and unset ACCELERATE_USE_CPU."
        )


def _create_accelerator(
    config: RunConfig,
    deepspeed: DeepSpeedPlugin | None,
    fsdp: FullyShardedDataParallelPlugin | None,
) -> Accelerator:
    """Creates the Accelerator for plain torch, DeepSpeed or FSDP2."""
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    bucket_mb = config.ddp_bucket_mb or _BUCKET_MB[device_type]
    handlers: list[KwargsHandler] = [
        # The gradients of the parameters are views of the buckets, not copied into them.
        DistributedDataParallelKwargs(bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    ]
    if "WORLD_SIZE" in os.environ:
        backend = "nccl" if device_type == "cuda" else "gloo"
        handlers.append(InitProcessGroupKwargs(backend=backend, timeout=GROUP_TIMEOUT))

    parallelism = _make_parallelism(config.fsdp_shard_processes)
    accelerator = Accelerator(
        # Without this, Accelerate forms a group of N processes on a machine without a GPU and
        # then does not wrap the model: gradients are never averaged. (With it, DeepSpeed is off.)
        cpu=deepspeed is None and not torch.accelerator.is_available(),
        mixed_precision=config.mixed_precision,
        # Passed as a plugin; otherwise ACCELERATE_GRADIENT_ACCUMULATION_STEPS would override it.
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=config.gradient_accumulation_steps,
            sync_with_dataloader=False,
            # Otherwise each rank would keep the whole gradient until the last micro-batch.
            sync_each_batch=fsdp is not None,
        ),
        deepspeed_plugin=deepspeed,
        fsdp_plugin=fsdp,
        # On a CPU, it is set below: Accelerate refuses it there.
        parallelism_config=parallelism if device_type == "cuda" else None,
        log_with=list(config.trackers) or None,
        project_config=ProjectConfiguration(project_dir=str(locate_run_folder(config))),
        kwargs_handlers=handlers,
    )

    if fsdp is not None and accelerator.distributed_type == DistributedType.MULTI_CPU:
        # Accelerate turns FSDP on for GPUs only, although it works on CPUs as well.
        for state in (PartialState(), accelerator.state):
            state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = fsdp
        if parallelism is not None:
            accelerator.state.parallelism_config = parallelism
            accelerator.state.device_mesh = parallelism.get_device_mesh(device_type)
    return accelerator


def _make_parallelism(shard_processes: int | None) -> ParallelismConfig | None:
    """Creates the division of the processes into copies of a sharded model (HSDP).

    Args:
        shard_processes: Number of processes that share a copy; None: all of them, without copies.
    """
    if shard_processes is None:
        return None
    return ParallelismConfig(
        dp_replicate_size=int(os.environ["WORLD_SIZE"]) // shard_processes,
        dp_shard_size=shard_processes,
    )


def _make_fsdp_plugin(mixed_precision: str, reshards: bool) -> FullyShardedDataParallelPlugin:
    """Creates the plugin of FSDP2 with every option set.

    Accelerate would read missing options from the environment.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy  # slow; only needed under FSDP2

    half_dtype = {"no": None, "bf16": torch.bfloat16}[mixed_precision]
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=reshards,
        auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        # Accelerate's policy for bf16 would also sum gradients and return losses in bf16.
        mixed_precision_policy=MixedPrecisionPolicy(
            param_dtype=half_dtype, reduce_dtype=torch.float32
        ),
        cpu_offload=False,
        cpu_ram_efficient_loading=False,
        activation_checkpointing=False,
        activation_checkpointing_offload=False,
        state_dict_type="SHARDED_STATE_DICT",
    )


def time_limit(seconds: float, activity: str) -> AbstractContextManager[None]:
    """Context that ends the process, with all stacks, if the block takes longer than `seconds`.

    It covers the start, before there is a `Watchdog`: Gloo may wait forever while two processes
    connect, regardless of its timeout (seen once with torch 2.13 on a busy machine, on both sides).
    """

    def give_up() -> None:
        try:
            print_stacks(
                f"{activity} took more than {seconds:g} s (distributed_timeout_s); start the run "
                "again. The stacks of this process:"
            )
        finally:
            os._exit(1)

    return _call_after(seconds, give_up)


def is_connection_error(error: Exception) -> bool:
    """Whether the error means that another rank could not be reached, not that this one failed."""
    if isinstance(error, NcclError) or find_nccl_fault(error) is not None:
        return False
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(
        mark in str(error) for mark in _CONNECTION_ERROR_MARKS
    )


def print_stacks(message: str) -> None:
    """Prints a message and the stacks of all threads, unless standard error is closed."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        sys.stderr.flush()


class GarbageCollection:
    """Context that disables automatic garbage collection.

    Garbage is collected every `STEPS_PER_COLLECTION` steps, at the same step on all ranks, and when
    the loop pauses anyway (`collect`).
    """

    def __enter__(self) -> GarbageCollection:
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        gc.enable()
        gc.unfreeze()

    def collect_if_due(self, step: int) -> None:
        """Collects garbage after every `STEPS_PER_COLLECTION`-th step."""
        if step % STEPS_PER_COLLECTION == 0:
            self.collect()

    def collect(self) -> None:
        """Collects garbage now."""
        gc.collect()
