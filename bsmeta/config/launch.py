"""Reads the settings with which this process was launched.

`accelerate launch` passes its settings to the workers in environment variables. With `check_only`,
a launch file can be read instead, to check it before anything is started. This module refuses only
settings that cannot be read; `bsmeta.config.checks.launch` compares them with the configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import ROOT
from bsmeta.core.parsing import parse_yaml
from bsmeta.core.secrets import declare_secrets_in

ENVIRONMENT = "the environment"

_ADDRESS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")
_RENDEZVOUS_VARIABLES = ("RANK", *_ADDRESS_VARIABLES)
"""The variables with which several processes find each other."""

# Files of GPU drivers: NVIDIA's, the same on Tegra and under WSL, and AMD's.
_DRIVER_DEVICES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")

_TRUE_TEXTS = {"1", "true", "yes", "on"}  # `accelerate launch` writes "true" or "True"

# Fields of accelerate's `deepspeed_config` that are not values of the DeepSpeed JSON.
_LAUNCH_FIELDS = {"deepspeed_config_file", "zero3_init_flag", "deepspeed_hostfile"} | {
    f"deepspeed_{name}" for name in ("multinode_launcher", "exclusion_filter", "inclusion_filter")
}

# Variable of a ZeRO option -> the key below `zero_optimization` in the DeepSpeed JSON. `accelerate
# launch` sets all but the last two, which users may export; beside a JSON, it ignores them all.
ZERO_VARIABLES = {
    f"ACCELERATE_DEEPSPEED_{option.upper()}": key
    for option, key in {
        "zero_stage": "stage",
        "offload_optimizer_device": "offload_optimizer.device",
        "offload_param_device": "offload_param.device",
        "zero3_save_16bit_model": "stage3_gather_16bit_weights_on_model_save",
        "offload_optimizer_nvme_path": "offload_optimizer.nvme_path",
        "offload_param_nvme_path": "offload_param.nvme_path",
    }.items()
}

# Field of a launch file's `fsdp_config` -> the variable that `accelerate launch` sets from it, and
# the value of the variable if the file lacks the field ("": the variable is not set).
FSDP_FIELDS = {
    "fsdp_version": ("FSDP_VERSION", "1"),
    "fsdp_reshard_after_forward": ("FSDP_RESHARD_AFTER_FORWARD", "true"),
    "fsdp_auto_wrap_policy": ("FSDP_AUTO_WRAP_POLICY", ""),
    "fsdp_transformer_layer_cls_to_wrap": ("FSDP_TRANSFORMER_CLS_TO_WRAP", ""),
    "fsdp_min_num_params": ("FSDP_MIN_NUM_PARAMS", "100000000"),
    "fsdp_ignored_modules": ("FSDP_IGNORED_MODULES", ""),
    "fsdp_offload_params": ("FSDP_OFFLOAD_PARAMS", "false"),
    "fsdp_cpu_ram_efficient_loading": ("FSDP_CPU_RAM_EFFICIENT_LOADING", "true"),
    "fsdp_state_dict_type": ("FSDP_STATE_DICT_TYPE", ""),
    "fsdp_activation_checkpointing": ("FSDP_ACTIVATION_CHECKPOINTING", "false"),
    "fsdp_activation_checkpointing_offload": ("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"),
    "fsdp_sharding_strategy": ("FSDP_SHARDING_STRATEGY", "full_shard"),
    "fsdp_backward_prefetch": ("FSDP_BACKWARD_PREFETCH", ""),
    "fsdp_forward_prefetch": ("FSDP_FORWARD_PREFETCH", "false"),
    "fsdp_use_orig_params": ("FSDP_USE_ORIG_PARAMS", "true"),
    "fsdp_sync_module_states": ("FSDP_SYNC_MODULE_STATES", "true"),
}

# The keys of a launch file in Accelerate 1.15 (its ClusterConfig), without the keys of engines and
# hardware that are not supported here. Accelerate itself refuses any other key.
FILE_KEYS = {
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug",
    "num_processes", "machine_rank", "num_machines", "gpu_ids", "main_process_ip",
    "main_process_port", "rdzv_backend", "same_network", "main_training_function",
    "enable_cpu_affinity", "deepspeed_config", "fsdp_config", "downcast_bf16", "dynamo_config",
}  # fmt: skip

# Keys of unsupported engines and hardware, which `accelerate config` writes as well. They have no
# effect as long as they are empty.
EMPTY_FILE_KEYS = {
    "command_file", "commands", "fp8_config", "megatron_lm_config", "mpirun_config",
    "parallelism_config", "tpu_env", "tpu_name", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm",
    "tpu_zone",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The settings of a launch; None means "not stated".

    Attributes:
        source: `the environment`, or the launch file that was read.
        num_processes: The world size.
        expected_processes: Number of processes on all machines that the launch scripts state.
        local_processes: Number of processes on this machine.
        gpus: Number of GPUs that the processes on this machine may use.
        wants_gpus: Whether Accelerate started an engine without hiding the GPUs.
        distributed_type: Accelerate's name for the engine.
        use_cpu: Accelerate's switch with which it starts only one process.
        lacks_world_size: Whether Accelerate was asked for several processes, but started one.
        zero_options: The values of the `ZERO_VARIABLES` that are set.
        deepspeed_config_file: The resolved path of the DeepSpeed JSON; None if none is named.
        zero3_init: Accelerate's switch to partition weights while a model is loaded.
        fsdp: The values of `FSDP_FIELDS`, in lower case; None without FSDP.
        mixed_precision: The precision that Accelerate was given; None if it was given none.
        gradient_accumulation_steps: The number that Accelerate was given for DeepSpeed.
        gradient_clipping: The norm that Accelerate was given for DeepSpeed.
        compiler: Accelerate's dynamo backend; None for "no".
        tasks_in_step: Number of tasks in a SLURM step that was started without a launcher.
        restarts: Whether torchrun starts the processes again, after failures or when machines join.
        shares_store: Whether the processes use the store of torchrun itself, in all their starts.
        unknown: Keys of a launch file that Accelerate would refuse.
        unsupported: Keys of a launch file for engines and hardware that are not supported here.
        rank: The global rank of this process.
        unset: Variables that are missing although several processes need them to find each other.
        machines: Number of machines in a launch file.
        machine_rank: Number of this machine in a launch file.
        main_process_ip: Address of the first machine in a launch file.
        main_process_port: Port of the first machine in a launch file.
        misplaced: Fields of Accelerate's `deepspeed_config` that belong in the DeepSpeed JSON;
            Accelerate refuses them together with a JSON.
    """

    source: str
    num_processes: int
    expected_processes: int | None = None
    local_processes: int | None = None
    gpus: int | None = None
    wants_gpus: bool = False
    distributed_type: str = "NO"
    use_cpu: bool = False
    lacks_world_size: bool = False
    zero_options: Mapping[str, str] = field(default_factory=dict)
    deepspeed_config_file: Path | None = None
    zero3_init: bool | None = None
    fsdp: Mapping[str, str] | None = None
    mixed_precision: Any = None
    gradient_accumulation_steps: Any = None
    gradient_clipping: Any = None
    compiler: str | None = None
    tasks_in_step: int | None = None
    restarts: bool = False
    shares_store: bool = False
    unknown: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    rank: int = 0
    unset: tuple[str, ...] = ()
    machines: int = 1
    machine_rank: Any = 0
    main_process_ip: Any = None
    main_process_port: Any = None
    misplaced: tuple[str, ...] = ()

    @property
    def deepspeed(self) -> bool:
        """Whether the processes run DeepSpeed."""
        return self.distributed_type == "DEEPSPEED"

    @property
    def reshards(self) -> bool | None:
        """Whether FSDP2 frees a layer's weights after its forward pass; None without FSDP."""
        if self.fsdp is None:
            return None
        return self.fsdp["fsdp_reshard_after_forward"] == "true"


def read_launch(environ: Mapping[str, str], accelerate_config_file: str | None = None) -> Launch:
    """Reads the launch of this process, or the one that a launch file describes.

    Args:
        environ: The environment variables of this process.
        accelerate_config_file: A launch file to read instead of the environment; relative to the
            working folder, or to the files of the project (`ROOT`).

    Raises:
        ConfigurationError: If a variable, the file or one of its values cannot be read.
    """
    if accelerate_config_file is not None:
        return _read_launch_file(resolve_project_file(accelerate_config_file))
    return _read_environment(environ)


def resolve_project_file(name: str) -> Path:
    """Resolves a path in the working folder, or in the project if the file exists only there."""
    path = Path(name).expanduser()
    project_path = ROOT / path
    # Not Path.exists, which raises an error for a name that is too long.
    if not os.path.exists(path) and os.path.exists(project_path):
        return project_path
    return path


def _read_environment(environ: Mapping[str, str]) -> Launch:
    """Reads the launch of this process from the variables that its launcher has set."""

    def is_on(name: str) -> bool:
        return environ.get(name, "").lower() in _TRUE_TEXTS

    num_processes = _read_integer(environ, "WORLD_SIZE", 1)
    if num_processes > 1:  # torch would fail on invalid values with a traceback
        _read_integer(environ, "MASTER_PORT", 1, maximum=65535)
        _read_integer(environ, "LOCAL_RANK", 0, minimum=0)
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in environ
    is_launched = "WORLD_SIZE" in environ
    tasks_in_step = None if is_launched else _read_integer(environ, "SLURM_STEP_NUM_TASKS", 1)
    hides_gpus = environ.get("CUDA_VISIBLE_DEVICES", "").startswith("-1")

    engine = "MULTI_GPU" if num_processes > 1 else "NO"
    for name in ("MEGATRON_LM", "FSDP", "DEEPSPEED"):  # the last one wins
        if is_on(f"ACCELERATE_USE_{name}"):
            engine = name

    fsdp = _read_fsdp_variables(environ) if engine == "FSDP" else None
    unset: list[str] = []
    if num_processes > 1 or fsdp is not None:
        unset = [name for name in _RENDEZVOUS_VARIABLES if name not in environ]

    agent_store = environ.get("TORCHELASTIC_USE_AGENT_STORE")
    max_restarts = _read_integer(environ, "TORCHELASTIC_MAX_RESTARTS", 0, minimum=0)

    json_file = environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    zero3_init = environ.get("ACCELERATE_DEEPSPEED_ZERO3_INIT")
    field_list = environ.get("ACCELERATE_CONFIG_DS_FIELDS", "")
    deepspeed_fields = [name for name in field_list.split(",") if name]
    precision = environ.get("ACCELERATE_MIXED_PRECISION")
    if precision == "no" and "mixed_precision" not in deepspeed_fields:
        precision = None  # Accelerate exports "no" if nothing is stated

    return Launch(
        source=ENVIRONMENT,
        num_processes=num_processes,
        expected_processes=_read_integer(environ, "BSMETA_WORLD_SIZE", num_processes),
        local_processes=_read_integer(environ, "LOCAL_WORLD_SIZE", 1),
        gpus=_count_gpus(hides_gpus),
        wants_gpus=by_accelerate and engine != "NO" and not hides_gpus,
        distributed_type=engine,
        use_cpu=is_on("ACCELERATE_USE_CPU"),
        # For several processes, Accelerate sets the address, and torchrun WORLD_SIZE as well.
        lacks_world_size=by_accelerate and not is_launched and {*_ADDRESS_VARIABLES} <= {*environ},
        zero_options={name: environ[name] for name in ZERO_VARIABLES if name in environ},
        deepspeed_config_file=resolve_project_file(json_file) if json_file else None,
        zero3_init=None if zero3_init is None else zero3_init.lower() in _TRUE_TEXTS,
        fsdp=fsdp,
        mixed_precision=precision,
        gradient_accumulation_steps=_read_number(environ, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
        gradient_clipping=_read_number(environ, "ACCELERATE_GRADIENT_CLIPPING"),
        compiler=_name_compiler(environ.get("ACCELERATE_DYNAMO_BACKEND")),
        tasks_in_step=tasks_in_step,
        # Only a launch that can restart has reason to give up the shared store.
        restarts=max_restarts > 0 or agent_store == "False",
        shares_store=agent_store == "True",
        rank=_read_integer(environ, "RANK", 0, minimum=0),
        unset=tuple(unset),
        unsupported=("parallelism_config",) if is_on("ACCELERATE_USE_PARALLELISM_CONFIG") else (),
        misplaced=tuple(name for name in deepspeed_fields if name not in _LAUNCH_FIELDS),
    )


def _read_fsdp_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Reads the fields of `fsdp_config` from the variables that `accelerate launch` has set."""
    return {
        field: environ.get(variable, default).lower()
        for field, (variable, default) in FSDP_FIELDS.items()
    }


def _read_launch_file(path: Path) -> Launch:
    """Reads a launch file, and changes its values as `accelerate launch` does.

    Raises:
        ConfigurationError: If the file cannot be read, or a value has a wrong type.
    """
    if not path.is_file():
        raise ConfigurationError(
            f"accelerate_config_file={path}: there is no such file; expected a launch file such as "
            "experiments/accelerate/zero2.yaml"
        )
    content = _read_yaml(path)
    _refuse_types(content, path)

    engine = content.get("distributed_type", "(none)")
    engine = "NO" if engine is False else str(engine)  # YAML reads NO without quotes as false
    deepspeed = content.get("deepspeed_config") or {}
    json_file = deepspeed.get("deepspeed_config_file")
    zero3_init = deepspeed.get("zero3_init_flag")
    deepspeed_fields = [*deepspeed]
    precision = content.get("mixed_precision")
    if engine == "DEEPSPEED" and precision is not None:
        deepspeed_fields.append("mixed_precision")  # Accelerate adds it
    elif precision == "no":
        precision = None  # `accelerate config` writes "no" if nothing is chosen

    fsdp_fields = {
        name if name.startswith("fsdp") else f"fsdp_{name}": value  # Accelerate adds the prefix
        for name, value in (content.get("fsdp_config") or {}).items()
    }
    fsdp = _export_fsdp_fields(fsdp_fields) if engine == "FSDP" else None

    unknown = [str(name) for name in content if name not in FILE_KEYS | EMPTY_FILE_KEYS]
    unknown += [f"fsdp_config.{name}" for name in fsdp_fields if name not in FSDP_FIELDS]
    unsupported = [name for name in content if name in EMPTY_FILE_KEYS and content[name]]
    if fsdp_fields and fsdp is None:
        unsupported.append("fsdp_config")

    hides_gpus = content.get("use_cpu") is True or str(content.get("gpu_ids", "")).startswith("-1")
    dynamo = content.get("dynamo_config") or {}

    return Launch(
        source=str(path),
        num_processes=content.get("num_processes", 1),
        gpus=0 if hides_gpus else None,
        distributed_type=engine,
        use_cpu=content.get("use_cpu") is True,
        deepspeed_config_file=resolve_project_file(str(json_file)) if json_file else None,
        zero3_init=None if zero3_init is None else str(zero3_init).lower() in _TRUE_TEXTS,
        fsdp=fsdp,
        mixed_precision=precision,
        gradient_accumulation_steps=deepspeed.get("gradient_accumulation_steps"),
        gradient_clipping=deepspeed.get("gradient_clipping"),
        compiler=_name_compiler(dynamo.get("dynamo_backend")),
        unknown=tuple(unknown),
        unsupported=tuple(unsupported),
        machines=content.get("num_machines", 1),
        machine_rank=content.get("machine_rank", 0),
        main_process_ip=content.get("main_process_ip"),
        main_process_port=content.get("main_process_port"),
        misplaced=tuple(name for name in deepspeed_fields if name not in _LAUNCH_FIELDS),
    )


def _export_fsdp_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """Returns all fields of `fsdp_config` as Accelerate exports them: as texts, with defaults."""
    return {
        name: str(fields.get(name, default)).lower() for name, (_, default) in FSDP_FIELDS.items()
    }


def _read_yaml(path: Path) -> dict[str, Any]:
    """Reads the keys and values of a launch file."""
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror}; expected a launch file"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not a YAML file: {error}") from error

    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{path}: found {type(content).__name__}, expected keys and values"
        )
    declare_secrets_in(content)  # a message may quote any value of the file
    return content


def _refuse_types(content: Mapping[str, Any], path: Path) -> None:
    """Refuses values of a type with which the launcher would fail with a traceback."""
    expected: dict[str, str] = {}
    for name in ("deepspeed_config", "dynamo_config", "fsdp_config"):
        if not isinstance(content.get(name) or {}, Mapping):
            mapping = "keys and values below it (see experiments/accelerate/zero2.yaml)"
            expected[name] = f"{mapping}, or no such key"

    for name in ("processes", "machines"):
        count = content.get(f"num_{name}", 1)
        if type(count) is not int or count < 1:
            expected[f"num_{name}"] = f"the number of {name}"

    gpus = content.get("gpu_ids")
    if gpus is not None and not isinstance(gpus, str):
        expected["gpu_ids"] = f'text: "{gpus}", in quotes, or all'

    port = content.get("main_process_port")
    if port is not None and (type(port) is not int or not 0 <= port <= 65535):
        expected["main_process_port"] = "0 to 65535 (0: any free one)"
    if content.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        expected["compute_environment"] = "LOCAL_MACHINE"

    if expected:
        problems = [
            f"{key} in {path}: found {content[key]!r}, expected {expected[key]}" for key in expected
        ]
        raise ConfigurationError("; ".join(problems))


def _name_compiler(backend: Any) -> str | None:
    """Returns Accelerate's name for a compiler; None if there is none ("no")."""
    if backend is None or str(backend).lower() in ("no", "false"):
        return None
    return str(backend)


def _read_integer(
    environ: Mapping[str, str],
    name: str,
    default: int,
    minimum: int = 1,
    maximum: int | None = None,
) -> int:
    """Reads an environment variable as an integer.

    Args:
        default: The value of an unset variable.
        minimum: The smallest accepted value.
        maximum: The largest accepted value; None: any.

    Raises:
        ConfigurationError: If the variable is not an integer, or out of bounds.
    """
    text = environ.get(name, str(default))
    if text.isdecimal():
        number = int(text)
        if number >= minimum and (maximum is None or number <= maximum):
            return number

    expected = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
    raise ConfigurationError(
        f"{name} in the environment: found {text!r}, expected {expected}; start the training with "
        "accelerate launch or torchrun, which set it, or unset it"
    )


def _read_number(environ: Mapping[str, str], name: str) -> Any:
    """Reads an environment variable as a number; returns other text unchanged, None if unset."""
    text = environ.get(name)
    if text is None:
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


def _count_gpus(hides_gpus: bool) -> int:
    """Returns the number of GPUs that this process may use.

    Args:
        hides_gpus: Whether CUDA_VISIBLE_DEVICES hides all GPUs.
    """
    if hides_gpus or not any(os.path.exists(device) for device in _DRIVER_DEVICES):
        return 0  # without importing torch, which takes seconds

    import torch

    return torch.cuda.device_count()
