"""Causal language modelling on text with metadata: model, loss, evaluation and export."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from bsmeta.config.errors import ConfigurationError
from bsmeta.config.metadata import phase_configs
from bsmeta.config.schema import TrainConfig
from bsmeta.data.counts import WITH_METADATA
from bsmeta.data.stream import TrainStream
from bsmeta.data.tokenizer import load_tokenizer
from bsmeta.evaluation.model_card import write_card
from bsmeta.evaluation.ranks import Ranks
from bsmeta.evaluation.subset import SubsetEvaluation
from bsmeta.metadata.sampling import chances
from bsmeta.tasks.base import EvaluationContext, Loss


class CausalLanguageModel:
    """Predicts the next token of text that has metadata before, in and behind it.

    Documents that are packed into one sequence do not see each other: their positions restart, from
    which transformers builds the attention mask (it must be given no other mask and no cache).
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        transformers.utils.logging.disable_progress_bar()
        self._types = config.data_config.metadata_config.metadata_list
        self._subset: SubsetEvaluation | None = None

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, with the special tokens that the configuration asks for."""
        return load_tokenizer(self._config)

    def build_model(self) -> nn.Module:
        if self._config.model_config_file is not None:
            shape = _load(AutoConfig, "model_config_file", self._config.model_config_file)
            model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
        else:
            model = _load(
                AutoModelForCausalLM, "model_name", self._config.model_name, dtype=torch.float32
            )
        if len(self.tokenizer) > model.get_input_embeddings().weight.shape[0]:
            model.resize_token_embeddings(len(self.tokenizer))
        if self._config.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> TrainStream:
        config = self._config
        return TrainStream(
            config.data_config,
            self.tokenizer,
            seed=config.seed,
            rank=rank,
            world_size=world_size,
            global_batch_size=config.data_config.per_device_train_batch_size
            * config.gradient_accumulation_steps
            * world_size,
            max_train_steps=config.max_train_steps,
            state=state,
        )

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Cross-entropy of the targets, in all and over the documents that carry each type.

        Args:
            model: The wrapped model.
            batch: `input_ids`, `position_ids` (int64), `loss_mask` (bool), `document_types` (int),
                each of shape [micro-batch, sequence length].
        """
        inputs = batch["input_ids"]
        output = model(input_ids=inputs, position_ids=batch["position_ids"], use_cache=False)
        targets = inputs[:, 1:].masked_fill(~batch["loss_mask"][:, 1:], -100)
        losses = functional.cross_entropy(
            output.logits[:, :-1].flatten(0, 1).float(), targets.flatten(), reduction="none"
        )
        is_target = (targets != -100).flatten()
        types = batch["document_types"][:, 1:].flatten()
        parts = {"without_metadata": (types == 0) & is_target}
        for bit, name in enumerate(self._types):
            parts[f"with_{name}"] = (types >> bit & 1).bool() & is_target
        return Loss(
            losses.sum(),
            {name: ((losses * where).sum().detach(), where.sum()) for name, where in parts.items()},
        )

    def evaluate(self, model: nn.Module, context: EvaluationContext) -> dict[str, float]:
        """Bits per byte of held-out text with and without metadata; {} without a held-out file."""
        if self._config.data_config.validation_file is None:
            return {}
        if self._subset is None:
            self._subset = SubsetEvaluation(
                self._config.data_config,
                self.tokenizer,
                max_documents=self._config.eval_documents,
                seed=self._config.seed,
                ranks=Ranks(context.rank, context.world_size, context.gather),
            )
        return self._subset.run(model, context.device)

    def exposure(self, counts: Mapping[str, float], phase: int) -> dict[str, Any]:
        """Configured and realised shares of documents with metadata, in all and by type."""
        documents = counts.get("documents", 0.0)
        if not documents:
            return {}
        metadata = phase_configs(self._config.data_config.metadata_config)[phase]
        return {
            "documents": int(documents),
            "with_metadata": {
                "configured": metadata.metadata_probability,
                "realised": counts[WITH_METADATA] / documents,
            },
            "types": {
                name: {**configured, "realised": counts[f"documents/{name}"] / documents}
                for name, configured in chances(metadata).items()
            },
        }

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        model.save_pretrained(folder, state_dict=weights)  # type: ignore[operator]
        self.tokenizer.save_pretrained(str(folder))
        metrics = Path(self._config.out_dir) / "metrics.jsonl"
        write_card(self._config, metrics, sys.argv, folder)


def _load(kind: Any, key: str, name: str, **arguments: Any) -> Any:
    """`from_pretrained`, with a message that names the key."""
    try:
        return kind.from_pretrained(name, **arguments)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{key}: {name} cannot be loaded: {error}. Expected a folder, a file of one, or a name "
            "on the Hub"
        ) from error
