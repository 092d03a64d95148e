"""Reads how this process was started, as far as that must agree with the configuration.

`accelerate launch` passes its settings to the workers in environment variables; with `check_only`,
a launch file can be read instead, to check it before anything is started. This module refuses only
what cannot be read at all: `bsmeta.config.checks` compares the result with the configuration.
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
from bsmeta.core.secrets import hide_values

ENVIRONMENT = "the environment"
_MEETING = ("RANK", "MASTER_ADDR", "MASTER_PORT")
# The values that `accelerate launch` writes for true are "true" and "True".
_TRUE = {"1", "true", "yes", "on"}
# Fields of accelerate's `deepspeed_config` that are not values of the DeepSpeed JSON.
_LAUNCH_FIELDS = {"deepspeed_config_file", "zero3_init_flag", "deepspeed_hostfile"} | {
    f"deepspeed_{name}" for name in ("multinode_launcher", "exclusion_filter", "inclusion_filter")
}

# The variables that `accelerate launch` sets from its ZeRO options (not the last two, which may
# still be exported), and the key of the DeepSpeed JSON. With a JSON, it ignores the variables.
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

# The fields of a launch file's `fsdp_config`: the variable that `accelerate launch` sets from each,
# and the value that it sets where the file has none ("": it sets no variable).
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

# The keys of a launch file as of Accelerate 1.15 (its ClusterConfig), except those for what is not
# supported here (Megatron, TPUs, …). Accelerate fails with its own error on any other key.
FILE_KEYS = {
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug",
    "num_processes", "machine_rank", "num_machines", "gpu_ids", "main_process_ip",
    "main_process_port", "rdzv_backend", "same_network", "main_training_function",
    "enable_cpu_affinity", "deepspeed_config", "fsdp_config", "downcast_bf16", "dynamo_config",
}  # fmt: skip
# Keys that `accelerate config` also writes; without effect here as long as they are empty.
EMPTY_FILE_KEYS = {
    "command_file", "commands", "fp8_config", "megatron_lm_config", "mpirun_config",
    "parallelism_config", "tpu_env", "tpu_name", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm",
    "tpu_zone",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The settings of a launch; None means "not stated"."""

    source: str  # `the environment`, or the launch file that was read
    num_processes: int  # world size
    expected_processes: int | None = None  # of all machines, according to the launch scripts
    local_processes: int | None = None  # of this machine
    gpus: int | None = None  # GPUs that this machine's processes may use
    wants_gpus: bool = False  # a launch file for several processes that does not hide the GPUs
    distributed_type: str = "NO"  # in Accelerate's terms
    use_cpu: bool = False  # Accelerate's switch, with which it starts one process only
    alone: bool = False  # Accelerate was asked for several processes, but has started one
    zero_options: Mapping[str, str] = field(default_factory=dict)  # those of ZERO_VARIABLES
    deepspeed_config_file: Path | None = None  # resolved; None under DeepSpeed: none was named
    zero3_init: bool | None = None
    fsdp: Mapping[str, str] | None = None  # values of FSDP_FIELDS, in lower case; None: no FSDP
    mixed_precision: Any = None
    gradient_accumulation_steps: Any = None
    gradient_clipping: Any = None
    compiler: str | None = None  # accelerate's dynamo backend, unless it is "no"
    alone_in_step: int | None = None  # tasks of a SLURM step that was started without a launcher
    unknown: tuple[str, ...] = ()  # keys of a launch file that accelerate would refuse
    unsupported: tuple[str, ...] = ()  # keys of a launch file for what is not supported here
    rank: int = 0
    unset: tuple[str, ...] = ()  # variables that several processes need to find each other
    # From a launch file for several machines:
    machines: int = 1
    machine_rank: Any = 0
    main_process_ip: Any = None
    main_process_port: Any = None
    # Fields of Accelerate's `deepspeed_config` that belong in the DeepSpeed JSON: Accelerate
    # refuses them together with a JSON.
    misplaced: tuple[str, ...] = ()

    @property
    def deepspeed(self) -> bool:
        return self.distributed_type == "DEEPSPEED"

    @property
    def reshards(self) -> bool | None:
        """Under FSDP2: whether a layer's weights are freed after the forward pass."""
        return None if self.fsdp is None else self.fsdp["fsdp_reshard_after_forward"] == "true"


def read_launch(environ: Mapping[str, str], accelerate_config_file: str | None = None) -> Launch:
    """Reads the launch of this process, or the one that a launch file describes.

    Args:
        accelerate_config_file: A launch file (relative to the working folder, or to the
            project's files) to read instead of the environment.
    """
    if accelerate_config_file is not None:
        return _from_file(find_file(accelerate_config_file))
    return _from_environment(environ)


def find_file(name: str) -> Path:
    """Resolves a file against the working folder, else the project's; the former if missing."""
    path = Path(name).expanduser()
    shipped = ROOT / path
    # Not Path.exists, which fails where a name is too long to be looked up.
    return shipped if not os.path.exists(path) and os.path.exists(shipped) else path


def _from_environment(environ: Mapping[str, str]) -> Launch:
    def flag(name: str) -> bool:
        return environ.get(name, "").lower() in _TRUE

    fields = [name for name in environ.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(",") if name]
    processes = _integer(environ, "WORLD_SIZE", 1)
    if processes > 1:
        _integer(environ, "MASTER_PORT", 1, most=65535)
        _integer(environ, "LOCAL_RANK", 0, least=0)
    by_accelerate, is_launched = "ACCELERATE_MIXED_PRECISION" in environ, "WORLD_SIZE" in environ
    tasks = None if is_launched else _integer(environ, "SLURM_STEP_NUM_TASKS", 1)
    hidden = environ.get("CUDA_VISIBLE_DEVICES", "").startswith("-1")
    kinds = [
        kind for kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM") if flag(f"ACCELERATE_USE_{kind}")
    ]
    kind = next(iter(kinds), "MULTI_GPU" if processes > 1 else "NO")
    precision = environ.get("ACCELERATE_MIXED_PRECISION")
    if precision == "no" and "mixed_precision" not in fields:
        precision = None  # what Accelerate exports if nothing is stated
    zero3 = environ.get("ACCELERATE_DEEPSPEED_ZERO3_INIT")
    fsdp = None
    if kind == "FSDP":
        fsdp = {name: environ.get(*source).lower() for name, source in FSDP_FIELDS.items()}
    json_file = environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    return Launch(
        source=ENVIRONMENT,
        num_processes=processes,
        expected_processes=_integer(environ, "BSMETA_WORLD_SIZE", processes),
        local_processes=_integer(environ, "LOCAL_WORLD_SIZE", 1),
        gpus=_visible_gpus(hidden),
        wants_gpus=by_accelerate and kind != "NO" and not hidden,
        distributed_type=kind,
        use_cpu=flag("ACCELERATE_USE_CPU"),
        # For several processes accelerate sets the address, and torchrun also WORLD_SIZE.
        alone=by_accelerate and not is_launched and set(_MEETING[1:]) <= {*environ},
        zero_options={name: environ[name] for name in ZERO_VARIABLES if name in environ},
        deepspeed_config_file=find_file(json_file) if json_file else None,
        zero3_init=None if zero3 is None else zero3.lower() in _TRUE,
        fsdp=fsdp,
        mixed_precision=precision,
        gradient_accumulation_steps=_number(environ, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
        gradient_clipping=_number(environ, "ACCELERATE_GRADIENT_CLIPPING"),
        compiler=_compiler(environ.get("ACCELERATE_DYNAMO_BACKEND")),
        alone_in_step=tasks,
        rank=_integer(environ, "RANK", 0, least=0),
        unset=tuple(
            name for name in _MEETING if (processes > 1 or fsdp is not None) and name not in environ
        ),
        unsupported=("parallelism_config",) if flag("ACCELERATE_USE_PARALLELISM_CONFIG") else (),
        misplaced=tuple(name for name in fields if name not in _LAUNCH_FIELDS),
    )


def _from_file(path: Path) -> Launch:
    if not path.is_file():
        raise ConfigurationError(
            f"accelerate_config_file={path}: there is no such file; expected a launch file such as "
            "experiments/accelerate/zero2.yaml"
        )
    content = _read_yaml(path)
    _refuse_types(content, path)
    deepspeed, dynamo = content.get("deepspeed_config") or {}, content.get("dynamo_config") or {}
    hidden = content.get("use_cpu") is True or str(content.get("gpu_ids", "")).startswith("-1")
    json_file, zero3 = deepspeed.get("deepspeed_config_file"), deepspeed.get("zero3_init_flag")
    kind = content.get("distributed_type", "(none)")
    kind = "NO" if kind is False else str(kind)  # YAML reads NO without quotes as false
    fields = [*deepspeed]
    precision = content.get("mixed_precision")
    if kind == "DEEPSPEED" and precision is not None:
        fields.append("mixed_precision")  # as accelerate launch does
    elif precision == "no":
        precision = None  # what `accelerate config` writes if nothing is chosen
    sharding = {
        name if name.startswith("fsdp") else f"fsdp_{name}": value  # as accelerate reads it
        for name, value in (content.get("fsdp_config") or {}).items()
    }
    fsdp = None
    if kind == "FSDP":
        fsdp = {
            name: str(sharding.get(name, default)).lower()  # as accelerate launch exports it
            for name, (_, default) in FSDP_FIELDS.items()
        }
    known = FILE_KEYS | EMPTY_FILE_KEYS
    unknown = [str(name) for name in content if name not in known]
    unknown += [f"fsdp_config.{name}" for name in sharding if name not in FSDP_FIELDS]
    unsupported = [name for name in content if name in EMPTY_FILE_KEYS and content[name]]
    unsupported += ["fsdp_config"] if sharding and fsdp is None else []
    return Launch(
        source=str(path),
        num_processes=content.get("num_processes", 1),
        gpus=0 if hidden else None,
        distributed_type=kind,
        use_cpu=content.get("use_cpu") is True,
        deepspeed_config_file=find_file(str(json_file)) if json_file else None,
        zero3_init=None if zero3 is None else str(zero3).lower() in _TRUE,
        fsdp=fsdp,
        mixed_precision=precision,
        gradient_accumulation_steps=deepspeed.get("gradient_accumulation_steps"),
        gradient_clipping=deepspeed.get("gradient_clipping"),
        compiler=_compiler(dynamo.get("dynamo_backend")),
        unknown=tuple(unknown),
        unsupported=tuple(unsupported),
        machines=content.get("num_machines", 1),
        machine_rank=content.get("machine_rank", 0),
        main_process_ip=content.get("main_process_ip"),
        main_process_port=content.get("main_process_port"),
        misplaced=tuple(name for name in fields if name not in _LAUNCH_FIELDS),
    )


def _read_yaml(path: Path) -> dict[str, Any]:
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
    hide_values(content)  # a message may quote any of them
    return content


def _refuse_types(content: Mapping[str, Any], path: Path) -> None:
    """Refuses values of a type that makes the launcher fail with a traceback."""
    expected = {}
    for name in ("deepspeed_config", "dynamo_config", "fsdp_config"):
        if not isinstance(content.get(name) or {}, Mapping):
            below = "keys and values below it (see experiments/accelerate/zero2.yaml)"
            expected[name] = f"{below}, or no such key"
    for name in ("processes", "machines"):
        count = content.get(f"num_{name}", 1)
        if type(count) is not int or count < 1:
            expected[f"num_{name}"] = f"the number of {name}"
    gpus, port = content.get("gpu_ids"), content.get("main_process_port")
    if gpus is not None and not isinstance(gpus, str):
        expected["gpu_ids"] = f'text: "{gpus}", in quotes, or all'
    if port is not None and (type(port) is not int or not 0 <= port <= 65535):
        expected["main_process_port"] = "0 to 65535 (0: any free one)"
    if content.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        expected["compute_environment"] = "LOCAL_MACHINE"
    if expected:
        found = (
            f"{key} in {path}: found {content[key]!r}, expected {expected[key]}" for key in expected
        )
        raise ConfigurationError("; ".join(found))


def _compiler(backend: Any) -> str | None:
    """Accelerate's name for a compiler; None for its "no"."""
    return None if backend is None or str(backend).lower() in ("no", "false") else str(backend)


def _integer(
    environ: Mapping[str, str], name: str, default: int, least: int = 1, most: int | None = None
) -> int:
    text = environ.get(name, str(default))
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        expected = f"{least} or more" if most is None else f"{least} to {most}"
        raise ConfigurationError(
            f"{name} in the environment: found {text!r}, expected {expected}; start the "
            "training with accelerate launch or torchrun, which set it, or unset it"
        )
    return int(text)


def _number(environ: Mapping[str, str], name: str) -> Any:
    """An environment variable as a number, to compare with the configuration; other text as is."""
    text = environ.get(name)
    if text is None:
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


def _visible_gpus(hidden: bool) -> int:
    """The GPUs that this process may use."""
    drivers = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")  # NVIDIA (Tegra, WSL), AMD
    if hidden or not any(map(os.path.exists, drivers)):
        return 0  # torch, which takes seconds to import, would find none either
    import torch

    return torch.cuda.device_count()
