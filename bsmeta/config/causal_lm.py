"""Schema of `task=causal_lm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bsmeta.config.data import DataConfig
from bsmeta.config.schema import DEFAULT_TASK, PretrainedConfig
from bsmeta.core.keys import inherit_key, key


@dataclass(frozen=True, kw_only=True)
class LoraKeys:
    """Low-rank adapters, trained instead of the weights of a pretrained model."""

    rank: int = key(0, at_least=0)
    """rank of the adapters; 0: train all weights (adapters need pip install 'bsmeta[lora]')"""
    alpha: int | None = key(None, at_least=1)
    """numerator of the scale of the adapters' output, alpha / rank; null: 2 x rank"""
    dropout: float = key(0.0, at_least=0.0, below=1.0)
    """dropout of the adapters' inputs"""
    targets: list[str] = key([])
    """names of the layers with adapters (q_proj); []: all linear layers except the output"""


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig(PretrainedConfig):
    """A training run of a causal language model."""

    micro_batch_key: ClassVar[str | None] = "data_config.per_device_train_batch_size"
    metrics: ClassVar[str | None] = "bsmeta.tasks.causal_lm.metrics:METRICS"

    task: str = inherit_key(PretrainedConfig, "task", DEFAULT_TASK)
    data_config: DataConfig = key(DataConfig)
    """the documents"""
    attn_implementation: str = key(
        "auto",
        choices=("auto", "eager", "sdpa", "varlen", "flash_attention_2", "flex_attention"),
    )
    """implementation of attention; varlen: torch's flash attention within documents; auto: on a GPU
    in bf16 or fp16, FlashAttention 3 or 2 if installed, else varlen if the model permits it, else
    sdpa; the log names the choice and its reason"""
    lora: LoraKeys = key(LoraKeys)
    """adapters to train instead of the weights"""
    gradient_checkpointing: bool = key(False)
    """recompute activations in the backward pass"""
    gradient_checkpointing_every: int = key(1, at_least=1)
    """gradient_checkpointing: in every n-th layer (1: in all)"""
    loss_chunk_logits: int = key(2**26, at_least=0)
    """limit of the logits in memory: the loss and gradient of a larger micro-batch are computed in
    chunks; 0: no limit"""
    torch_compile: bool = key(False)
    """torch.compile each layer for batches of one shape (not under ZeRO-3)"""
    liger_kernel: bool = key(False)
    """Liger's Triton kernels for norms, rotary positions and MLP (pip install, GPUs only)"""

    eval_documents: int = key(64, at_least=1, heading="Evaluation during training")
    """number of held-out documents in each evaluation during training"""

    gguf: bool = key(False, heading="Export")
    """write model.gguf, for llama.cpp, beside the weights in model/ of the finished run (GPT-2 and
    Llama; needs pip install 'bsmeta[gguf]')"""
