"""Starts the processes of a run.

On a machine without a GPU, DeepSpeed silently creates N worlds of one process each unless the
process group is requested by name. `create_accelerator` requests it, and raises an error if the
number of processes that joined is not the number that was launched.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch
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
)

from bsmeta.config.checks.machine import find_precision_problems
from bsmeta.config.run_location import locate_run_folder
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import ConfigurationError, TrainingError, raise_problems
from bsmeta.core.loopback import listen_on_loopback
from bsmeta.core.progress import GROUP_TIMEOUT
from bsmeta.core.rendezvous import meet_other_machines
from bsmeta.training.ranks.communication_errors import find_nccl_fault, is_connection_error
from bsmeta.training.ranks.determinism import use_deterministic_kernels
from bsmeta.training.ranks.distributed_op import prepare_cpu_op
from bsmeta.training.ranks.threads import use_cores_for_offload
from bsmeta.training.ranks.time_limits import limit_time

CONNECT_GRACE_S = 30  # lets torch's own errors come first: they name the missing part
# MiB of gradients in an all-reduce. 25 is torch's own value (its first bucket has 1 MiB). GPUs get
# fewer and larger ones, because each has a fixed cost (chosen by arithmetic, not measured yet).
_BUCKET_MB = {"cuda": 100, "cpu": 25}
_CONNECTING_ACTIVITY = (
    "connecting the processes (on ports that the system chooses, through the network interfaces "
    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME)"
)

logger = logging.getLogger(__name__)


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
        with limit_time(config.distributed_timeout_s, "compiling DeepSpeed's op for CPUs"):
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
        with limit_time(config.distributed_timeout_s + CONNECT_GRACE_S, _CONNECTING_ACTIVITY):
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
