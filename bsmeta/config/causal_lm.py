"""The schema of `task=causal_lm`, and of the entry points that take all of its keys.

`explain.py`, `bsmeta.data.prepare` and `bsmeta.data.stage` take the data of a training run, so
their schemas add to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bsmeta.config.data import DataConfig
from bsmeta.config.schema import PretrainedConfig
from bsmeta.core.keys import inherited, key


@dataclass(kw_only=True)
class ModelCardConfig:
    """What only the author knows of a model card's front matter, in the form of the Hub.

    https://huggingface.co/docs/hub/model-cards lists the identifiers.
    """

    license: list[str] = key(
        [], "license identifiers of the model, as the Hub lists them: apache-2.0, other, …"
    )
    datasets: list[str] = key(
        [], "owner/name on the Hub of further training data; that of hf:// files is added"
    )
    language: list[str] = key([], "ISO 639 codes of the languages of the training data: en, …")


@dataclass(kw_only=True)
class LoraKeys:
    """Low-rank adapters, which are trained in place of the weights of a pretrained model."""

    rank: int = key(
        0,
        "rank of the adapters; 0: all weights are trained (else pip install 'bsmeta[lora]')",
        at_least=0,
    )
    alpha: int | None = key(
        None, "the change that adapters make is scaled by alpha / rank; null: 2 x rank", at_least=1
    )
    dropout: float = key(0.0, "dropout of the inputs of adapters", at_least=0.0, below=1.0)
    targets: list[str] = key(
        [], "names of the layers that get adapters (q_proj); []: all linear layers but the output"
    )


@dataclass(kw_only=True)
class CausalLMConfig(PretrainedConfig):
    """A training run of a causal language model."""

    micro_batch_key: ClassVar[str | None] = "data_config.per_device_train_batch_size"
    metrics: ClassVar[tuple[str, ...] | None] = (
        "bits_per_byte_with",
        "bits_per_byte_without",
        "text_bits_per_byte",
        "difference",
        "difference_low",
        "difference_high",
        "perplexity_with",
        "perplexity_without",
        "mean_document_difference",
        "mean_document_difference_low",
        "mean_document_difference_high",
        "sign_test_p",
    )

    task: str = inherited(PretrainedConfig, "task", "causal_lm")
    data_config: DataConfig = key(DataConfig, "where documents come from")
    attn_implementation: str = key(
        "auto",
        "how attention is computed; auto: flash_attention_2 where it is installed and can be used, "
        "else sdpa",
        choices=("auto", "eager", "sdpa", "flash_attention_2", "flex_attention"),
    )
    lora: LoraKeys = key(LoraKeys, "adapters in place of the weights")
    gradient_checkpointing: bool = key(False, "recompute activations in the backward pass")
    gradient_checkpointing_every: int = key(
        1, "gradient_checkpointing: in every n-th layer (1: in all)", at_least=1
    )
    loss_chunk_logits: int = key(
        2**26,
        "logits of a micro-batch that exist at one time: its loss and gradient are made in chunks "
        "where there would be more; 0: all at once",
        at_least=0,
    )
    torch_compile: bool = key(
        False, "torch.compile each layer for batches of one shape (not under ZeRO-3 or FSDP2)"
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
    model_card: ModelCardConfig = key(ModelCardConfig, "front matter of the model card")


@dataclass(kw_only=True)
class ExplainConfig(CausalLMConfig):
    """Documents as a training run with these keys sees them."""

    document: str | None = key(
        None,
        "the document to show, as logs name it: <shard>:<number>; null: the very first",
        heading="What to show",
    )
    limit: int = key(1, "documents to show, from that one on", at_least=1)
    epoch: int = key(0, "the pass over the data whose random choices are shown", at_least=0)
    step: int = key(
        1, "with a schedule of the metadata: the step (from 1) whose phase is shown", at_least=1
    )
    types: list[str] | None = key(
        None, "give every document those of these types that it has, instead of drawing; []: none"
    )
    json: bool = key(
        False, "one JSON object a document and line on standard output, and nothing else there"
    )
    html: str | None = key(
        None, "write a page to this file instead of showing it in the terminal", is_path=True
    )
    tokens: bool = key(False, "in the terminal: show where each token begins")
    sequences: int = key(
        8, "in the terminal and the page: packed sequences of a window to show", at_least=0
    )


@dataclass(kw_only=True)
class PrepareConfig(CausalLMConfig):
    """The training sequences of a run with these keys, made ahead."""

    out: str | None = key(
        None,
        "folder to write, for data_config.prepared of the run",
        is_path=True,
        heading="What to prepare",
    )
    epochs: int = key(1, "passes of each stream over its shards that are prepared", at_least=1)
    world_size: int = key(
        1,
        "processes of the run, from which follows where a schedule of the metadata switches",
        at_least=1,
    )


@dataclass(kw_only=True)
class StageConfig(CausalLMConfig):
    """The files of a run with these keys, copied to a disk."""

    out: str | None = key(
        None,
        "folder to write, on a disk of this machine or one that several share",
        is_path=True,
        heading="What to copy",
    )
    parallel_files: int = key(4, "files that are copied at the same time", at_least=1)
