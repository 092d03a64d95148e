"""The variables with which `accelerate launch` starts an engine, for tests that call torchrun."""

from __future__ import annotations

PLAIN, ZERO_2, FSDP_2 = "", "2", "fsdp2"

ENGINE_VARIABLES: dict[str, dict[str, str]] = {
    PLAIN: {},
    ZERO_2: {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": "deepspeed_configs/cpu.json",
    },
    FSDP_2: {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    },
}
ENGINE_NAMES = {PLAIN: "torch", ZERO_2: "deepspeed ZeRO-2", FSDP_2: "FSDP2"}
