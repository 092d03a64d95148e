"""The schema of `task=causal_lm`: language modelling on text with metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bsmeta.config.data import DataConfig
from bsmeta.config.keys import key
from bsmeta.config.schema import RunConfig


@dataclass(kw_only=True)
class CausalLMConfig(RunConfig):
    """A training run of a causal language model."""

    micro_batch_key: ClassVar[str | None] = "data_config.per_device_train_batch_size"

    task: str = key("causal_lm", "what is trained: a name in bsmeta.tasks.TASKS", heading="Task")
    data_config: DataConfig = key(DataConfig, "where documents come from")

    model_name: str = key(
        "gpt2",
        "a folder or Hub name to load; its weights unless model_config_file",
        is_path=True,
        heading="Model",
    )
    model_config_file: str | None = key(
        None,
        "JSON of a transformers config: start from random weights of this shape instead",
        is_path=True,
    )
    tokenizer_name: str | None = key(None, "a folder or Hub name; null: model_name", is_path=True)
    attn_implementation: str = key(
        "auto",
        "how attention is computed; auto: flash_attention_2 where it is installed and can be used, "
        "else sdpa",
        choices=("auto", "eager", "sdpa", "flash_attention_2", "flex_attention"),
    )
    gradient_checkpointing: bool = key(False, "recompute activations in the backward pass")
    gradient_checkpointing_every: int = key(
        1, "gradient_checkpointing: in every so many layers (1: in all)", at_least=1
    )
    loss_chunk_logits: int = key(
        2**26,
        "logits of a micro-batch that exist at one time: its loss and gradient are made in chunks "
        "where there would be more; 0: all at once",
        at_least=0,
    )
    torch_compile: bool = key(
        False, "torch.compile each layer for batches of one shape (not under ZeRO-3)"
    )
    liger_kernel: bool = key(
        False, "Liger's Triton kernels for norms, rotary positions and MLP (pip install, GPUs only)"
    )

    eval_documents: int = key(
        64,
        "held-out documents used by the evaluations during training",
        at_least=1,
        heading="Evaluation during training",
    )
