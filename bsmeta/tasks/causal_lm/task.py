"""Causal language modeling on text with metadata: model, loss, evaluation and export."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import BY_TEXT, DataConfig, compute_row_length
from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.metadata import configure_phases
from bsmeta.config.run_location import locate_run_folder
from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import ConfigurationError, raise_problems
from bsmeta.core.log_once import log_once
from bsmeta.core.model_files import create_model, read_model_config
from bsmeta.data.batch import StepData, Stream
from bsmeta.data.stream.counts import WITH_METADATA
from bsmeta.data.stream.lost_text import measure_sample
from bsmeta.data.stream.survey import Survey, survey_data
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.data.text.tokenizer import count_trained_tokens, list_new_tokens, load_tokenizer
from bsmeta.metadata.sampling import compute_chances
from bsmeta.models import attention, layers
from bsmeta.models.activations import fuse_activations
from bsmeta.models.cross_entropy import IGNORED_TARGET, ChunkedLoss
from bsmeta.models.embeddings import add_embeddings
from bsmeta.models.exporting import cast_weights, write_model
from bsmeta.models.kernel_plans import disable_planned_attention_for_good
from bsmeta.models.layers import (
    compile_layers,
    list_layers,
    recompute_activations,
    run_uncompiled,
    use_liger,
)
from bsmeta.models.pretrained import count_vocabulary, load_weights
from bsmeta.models.rehearsal import (
    NUM_TOKENS,
    can_try_export,
    check_export,
    check_loss,
    freeze_weights,
    list_unreached_weights,
    trace_reached_weights,
)
from bsmeta.models.routers import RouterLoss
from bsmeta.models.shapes import count_head_groups, count_positions, find_text_shape
from bsmeta.tasks.causal_lm.checks import find_positions_problems
from bsmeta.tasks.causal_lm.gguf_file import GGUF_FILE, check_gguf, write_gguf
from bsmeta.tasks.causal_lm.metrics import METRICS
from bsmeta.tasks.causal_lm.one_string import (
    ChatTemplate,
    build_chat_template,
    check_boundary,
    prepare_tokenizer,
)
from bsmeta.training.metric_values import make_metrics
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import BaseModel, Loss, Metric, Shape, Task

if TYPE_CHECKING:
    from bsmeta.tasks.causal_lm.evaluation.subset import SubsetEvaluation

logger = logging.getLogger(__name__)

WITHOUT_METADATA = 0
"""Value of `document_types` for a document without metadata; otherwise bit i: metadata_list[i]."""


class Architecture(NamedTuple):
    """The model's configuration, and the key that names it.

    Attributes:
        shape: The transformers config of the model.
        key: `model_config_file` or `model_name`.
        source: The value of the key: a file, a folder, or a name on the Hub.
    """

    shape: PretrainedConfig
    key: str
    source: str

    @property
    def setting(self) -> str:
        """The key with its value, for messages."""
        return f"{self.key}={self.source}"


class LossParts(NamedTuple):
    """Some named parts of a micro-batch's loss, each a sum over targets with its weight.

    Attributes:
        names: Names of the parts, as in the log.
        sums: [parts], sums of losses in nats, or of counts.
        weights: [parts], numbers of targets, or of choices.
    """

    names: list[str]
    sums: torch.Tensor
    weights: torch.Tensor


class CausalLanguageModel(Task):
    """Predicts the next token of text with metadata before, in and after it.

    Documents that are packed into one sequence do not attend to each other (`models.attention`),
    unless `data_config.cross_document_attention` is set.
    """

    shape_needs_no_data = True

    def __init__(self, config: CausalLMConfig) -> None:
        self._config = config
        transformers.utils.logging.disable_progress_bar()
        self._types = config.data_config.metadata_config.metadata_list
        self._sources = [source.name for source in config.data_config.sources]
        self._subset: SubsetEvaluation | None = None
        self.attention = ""
        self._whole_rows = False
        self._vocabulary = 0
        self._chunked: ChunkedLoss | None = None
        self._router: RouterLoss | None = None
        self._reached_weights: set[str] | None = None
        self._must_check = True
        self._survey: Survey | None = None

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, with the special tokens that the configuration requires."""
        return load_tokenizer(self._config)

    def build_model(self) -> nn.Module:
        config = self._config
        architecture = self._read_architecture()
        if config.gguf:
            check_gguf(architecture.shape, self.tokenizer)
        self._whole_rows = are_rows_whole(config.data_config, architecture.shape)
        choice = attention.choose_attention(
            config.attn_implementation,
            architecture.shape,
            half_precision=config.mixed_precision != "no",
            compiled=config.torch_compile,
            whole_rows=self._whole_rows,
        )

        model = self._load_model(architecture, choice.name)
        self._resize_embeddings(model)
        self._adapt_and_freeze(model, architecture.setting)
        fuse_activations(model)

        self.attention = str(find_text_shape(model.config)._attn_implementation)
        logger.info("attention: %s (%s)", self.attention, choice.reason)
        if config.data_config.row_budget == BY_TEXT and not self._has_fixed_length:
            disable_planned_attention_for_good()

        self._vocabulary = count_vocabulary(model)
        if RouterLoss.is_enabled(model.config):
            self._router = RouterLoss(model)
        if config.loss_chunk_logits and ChunkedLoss.can_wrap(model):
            self._chunked = ChunkedLoss(model, config.loss_chunk_logits)

        if config.liger_kernel:
            use_liger(model)
        if config.gradient_checkpointing:
            recompute_activations(model, config.gradient_checkpointing_every)
        if config.torch_compile:
            compile_layers(model)
        return model

    def _load_model(
        self, architecture: Architecture, implementation: str | None
    ) -> PreTrainedModel:
        """Loads the weights, or draws random ones if only a configuration file is given."""
        options = {"dtype": torch.float32, "attn_implementation": implementation}
        if self._config.model_config_file is None:
            return load_weights(architecture.source, architecture.setting, **options)
        with _explain_loading_errors(architecture.key, architecture.source):
            return create_model(AutoModelForCausalLM, architecture.shape, **options)

    def _resize_embeddings(self, model: PreTrainedModel) -> None:
        """Adds embeddings for tokens that are new to the model, if it has too few."""
        config = self._config
        num_trained = None
        if config.model_config_file is None:
            num_trained = count_trained_tokens(
                config.model_name, config.tokenizer_name, self.tokenizer
            )
        add_embeddings(model, len(self.tokenizer), num_trained)

    def _read_architecture(self) -> Architecture:
        """Reads the model's configuration.

        Raises:
            ConfigurationError: If it cannot be loaded or run, or has too few positions.
        """
        config = self._config
        key = "model_config_file" if config.model_config_file is not None else "model_name"
        source = config.model_config_file or config.model_name
        with _explain_loading_errors(key, source):
            model_config = read_model_config(source)

        # transformers builds a model with head groups of unequal size, but cannot run it.
        heads, groups = count_head_groups(model_config)
        if heads and groups is not None and (groups < 1 or heads % groups):
            divisors = [str(number) for number in range(1, heads + 1) if heads % number == 0]
            raise ConfigurationError(
                f"{key}: {source} cannot be loaded: num_key_value_heads is {groups}; expected a "
                f"divisor of num_attention_heads ({heads}): {', '.join(divisors)}"
            )

        architecture = Architecture(model_config, key, source)
        raise_problems(
            [*find_positions_problems(config, count_positions(model_config), architecture.setting)]
        )
        return architecture

    def rehearse(self, model: nn.Module) -> None:
        """Tries to export a copy of the model without the changes for speed."""
        if not can_try_export(model):
            return

        lora = self._config.lora
        setting = self._read_architecture().setting
        if lora.rank:
            setting = f"lora.targets={lora.targets}"

        with torch.random.fork_rng():
            model_copy = create_model(
                AutoModelForCausalLM,
                deepcopy(model.config),
                dtype=torch.float32,
                attn_implementation=attention.EAGER,
            )
            self._add_adapters(model_copy)
            model_copy.load_state_dict(model.state_dict())
            # As trained: in the dtype of `export_dtype`, the logits would differ.
            check_export(model_copy, partial(self._export_in, None), setting)
            cast_weights(model_copy.state_dict(), self._config.export_dtype)  # refuses an overflow

    def _adapt_and_freeze(self, model: PreTrainedModel, setting: str) -> None:
        """Adds the adapters, and freezes the weights that text alone does not train."""
        self._add_adapters(model)
        if self._reached_weights is None:
            self._reached_weights = trace_reached_weights(model, self._add_adapters)
        freeze_weights(model, list_unreached_weights(model, self._reached_weights), setting)

    def base_model(self, model: nn.Module) -> BaseModel | None:
        if not self._config.lora.rank:
            return None
        revision = getattr(model.config, "_commit_hash", None)
        return BaseModel(self._read_architecture().setting, revision)

    def _add_adapters(self, model: PreTrainedModel) -> None:
        """Adds the adapters of `lora`, unless `lora.rank` is 0."""
        if not self._config.lora.rank:
            return

        new_tokens = list_new_tokens(self._config)
        if new_tokens:
            log_once(
                logger,
                logging.INFO,
                f"lora: the embeddings are trained, too, because {len(new_tokens)} tokens are new "
                f"to the model ({', '.join(new_tokens[:3])}, ...)",
            )

        # Imported here because peft is an optional dependency.
        from bsmeta.models.lora import add_adapters

        add_adapters(model, self._config.lora, train_embeddings=bool(new_tokens))

    def shape(self) -> Shape:
        config = self._config
        architecture = self._read_architecture()
        text = find_text_shape(architecture.shape)
        text.vocab_size = max(text.vocab_size, len(self.tokenizer))

        # All implementations of attention keep the same tensors for the backward pass, except
        # this one.
        implementation = attention.EAGER if config.attn_implementation == attention.EAGER else None
        with torch.device("meta"), _explain_loading_errors(architecture.key, architecture.source):
            model = create_model(
                AutoModelForCausalLM,
                architecture.shape,
                dtype=torch.float32,
                attn_implementation=implementation,
            )
            self._adapt_and_freeze(model, architecture.setting)
            fuse_activations(model)

        return Shape(
            model,
            model.base_model,
            list_layers(model),
            rows=config.data_config.per_device_train_batch_size,
            length=compute_row_length(config.data_config),
            outputs=text.vocab_size,
            recompute_every=config.gradient_checkpointing_every,
            loss_chunk=config.loss_chunk_logits,
        )

    def survey(self) -> Survey:
        survey = survey_data(self._config.data_config)
        lost = measure_sample(self._config, self.tokenizer, survey.lines)
        if lost.num_lost:
            logger.warning("the tokenizer loses %s", lost)
        check_boundary(self._config.data_config, self.tokenizer, survey.lines)
        self._chat_template = self._build_chat_template(survey)
        return survey

    def use_survey(self, survey: Survey) -> None:
        self._survey = survey

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> Stream:
        config = self._config
        stream = TrainStream(
            config.data_config,
            self.tokenizer,
            seed=config.seed,
            rank=rank,
            world_size=world_size,
            global_batch_size=BatchPlan.of(config, world_size).global_batch,
            max_train_steps=config.max_train_steps,
            decay_start=RatePlan.of(config, config.max_train_steps).decay_start,
            is_branch=config.decay_from is not None,
            state=state,
            survey=self._survey,
            fixed_length=self._has_fixed_length,
        )
        if not self._takes_borders:
            return stream
        return WithBorders(stream, fixed_number=config.torch_compile)

    @property
    def _takes_borders(self) -> bool:
        """Whether attention takes borders; flash-attn needs them for whole rows, too."""
        if self.attention == attention.VARLEN:
            return not self._whole_rows
        return self.attention in attention.WITH_BORDERS

    @property
    def _has_fixed_length(self) -> bool:
        """Whether all batches must have one shape, because each shape is compiled separately."""
        return self._config.torch_compile or self.attention == attention.FLEX

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the cross-entropy of the targets: in total, by metadata type and by source.

        Args:
            model: The wrapped model.
            batch: `input_ids`, `position_ids` (int64), `loss_mask` (bool), `document_types` (int),
                each of shape [micro-batch, sequence length]; in a mixture `sources` (int64
                [micro-batch]).

        Raises:
            ConfigurationError: If the model fails its checks, which the first call makes.
        """
        if self._must_check:
            self._must_check = False
            self._check_model(model, batch["input_ids"])

        total, losses = self.compute_batch_losses(model, batch)
        is_target = batch["loss_mask"][:, 1:]
        groups = [self._compute_metadata_parts(losses, is_target, batch["document_types"])]
        if "sources" in batch:
            groups.append(self._compute_source_parts(losses, is_target, batch["sources"]))
        if self._router is not None:
            groups.append(self._compute_router_parts(total, losses, is_target))

        parts = {}
        for group in groups:
            for name, part_sum, weight in zip(*group, strict=True):
                parts[name] = (part_sum, weight)
        return Loss(total, parts)

    def _compute_metadata_parts(
        self, losses: torch.Tensor, is_target: torch.Tensor, document_types: torch.Tensor
    ) -> LossParts:
        """Splits the loss into documents without metadata and documents with each type."""
        types = document_types[:, 1:]  # as bits, see `WITHOUT_METADATA`
        type_bits = torch.arange(len(self._types), dtype=types.dtype, device=types.device)
        has_type = (types >> type_bits[:, None, None] & 1).bool()
        has_none = (types == WITHOUT_METADATA).unsqueeze(0)
        counts = torch.cat([has_none, has_type]) & is_target

        names = ["without_metadata", *(f"with_{name}" for name in self._types)]
        return LossParts(names, (losses * counts).sum((1, 2)), counts.sum((1, 2)))

    def _compute_source_parts(
        self, losses: torch.Tensor, is_target: torch.Tensor, sources: torch.Tensor
    ) -> LossParts:
        """Splits the loss by the source of each row."""
        numbers = torch.arange(len(self._sources), device=losses.device)
        is_of_source = numbers[:, None] == sources

        names = [f"source_{name}" for name in self._sources]
        sums = (losses.sum(1) * is_of_source).sum(1)
        weights = (is_target.sum(1) * is_of_source).sum(1)
        return LossParts(names, sums, weights)

    def _compute_router_parts(
        self, total: torch.Tensor, losses: torch.Tensor, is_target: torch.Tensor
    ) -> LossParts:
        """Computes the parts of the router's loss, and of the load of each expert.

        The load is the expert's share of the tokens' choices, over all layers.
        """
        assert self._router is not None
        names = ["router"]
        sums = (total.detach() - losses.sum()).reshape(1)
        weights = is_target.sum().reshape(1)

        counts = self._router.count_tokens()
        if counts is not None:
            names += [f"expert_{number}_load" for number in range(len(counts))]
            sums = torch.cat([sums, counts])
            weights = torch.cat([weights, counts.sum().expand_as(counts)])
        return LossParts(names, sums, weights)

    def compute_batch_losses(
        self, model: nn.Module, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes the sum of losses, with a gradient, and the loss of each token but the first.

        Returns:
            The sum, a scalar; float32 [micro-batch, sequence length - 1], the losses, 0 for tokens
            that are not targets.
        """
        inputs = batch["input_ids"]
        borders = batch.get(attention.BORDERS)
        targets = inputs[:, 1:].masked_fill(~batch["loss_mask"][:, 1:], IGNORED_TARGET)
        return self._compute_token_losses(model, inputs, batch["position_ids"], targets, borders)

    def _compute_token_losses(
        self,
        model: nn.Module,
        inputs: torch.Tensor,
        position_ids: torch.Tensor,
        targets: torch.Tensor,
        borders: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes the sum of losses, with a gradient, and the loss of each target.

        Args:
            inputs: int64 [b, L], token ids.
            targets: int64 [b, L - 1], the id that each position predicts, or `IGNORED_TARGET`.

        Returns:
            The sum, a scalar; float32 [b, L - 1], the losses, 0 where there is no target.
        """
        arguments = self._build_arguments(inputs, position_ids, borders)
        # The prediction of the last position is masked by its target, because slicing the logits
        # would copy all of them.
        padded = functional.pad(targets, (0, 1), value=IGNORED_TARGET)

        if self._chunked is not None and self._chunked.exceeds_limit(inputs.numel()):
            total, losses = self._chunked(model, padded, **arguments)
        else:
            logits = model(**arguments).logits.flatten(0, 1).float()
            token_losses = functional.cross_entropy(logits, padded.flatten(), reduction="none")
            total = token_losses.sum()
            losses = token_losses.detach().view(padded.shape)

        if self._router is not None:
            total = total + self._router.compute_loss((targets != IGNORED_TARGET).sum())
        return total, losses[:, :-1]

    def _build_arguments(
        self, inputs: torch.Tensor, position_ids: torch.Tensor, borders: torch.Tensor | None
    ) -> dict[str, Any]:
        """Builds the keyword arguments of the model."""
        arguments: dict[str, Any] = {
            "input_ids": inputs,
            "position_ids": position_ids,
            "use_cache": False,
        }
        # A class that adds a router's loss would take a mask of pairs of tokens for a padding mask.
        # Without a mask, transformers derives it from the positions, and waits for the device.
        if self._router is None or self.attention in attention.WITH_BORDERS:
            used_borders = borders if self._takes_borders else None
            arguments |= attention.build_attention_arguments(
                self.attention, position_ids, used_borders
            )
        return arguments

    def _check_model(self, model: nn.Module, example_ids: torch.Tensor) -> None:
        """Checks the model on random tokens.

        No token may attend to later ones, packed documents must be independent of each other and
        of their positions, and the loss must agree with the model's own.

        Args:
            example_ids: Token ids of a micro-batch; only their shape and device matter.

        Raises:
            ConfigurationError: If a check fails.
        """

        def compute_losses(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            borders = attention.compute_borders(positions)
            _, losses = self._compute_token_losses(model, ids, positions, ids[:, 1:], borders)
            return losses

        was_training = model.training
        model.eval()
        with run_uncompiled(is_compiled=self._config.torch_compile):
            layers.check_causality(compute_losses, example_ids, self._vocabulary)
            data = self._config.data_config
            if data.packing == "best_fit" and not data.cross_document_attention:
                layers.check_isolation(
                    compute_losses, example_ids, self._vocabulary, self.attention
                )
                if self._config.mixed_precision == "no":
                    layers.check_positions(compute_losses, example_ids, self._vocabulary)
            self._check_loss(model, example_ids.device)
        model.train(was_training)

    @torch.no_grad()
    def _check_loss(self, model: nn.Module, device: torch.device) -> None:
        """Compares the loss of two rows of random tokens with the model's own loss.

        Raises:
            ConfigurationError: If they differ.
        """
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self._vocabulary, (2, NUM_TOKENS), generator=generator).to(device)
        positions = torch.arange(NUM_TOKENS, device=device).expand_as(ids)
        borders = attention.compute_borders(positions)
        total, losses = self._compute_token_losses(model, ids, positions, ids[:, 1:], borders)

        arguments = self._build_arguments(ids, positions, borders)
        setting = self._read_architecture().setting
        check_loss(model, arguments, total / losses.numel(), setting)

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Returns the bits per byte of held-out text with and without metadata.

        The list is empty without a held-out file.
        """
        if self._config.data_config.validation_file is None:
            return []

        if self._subset is None:
            # Imported here because most steps of a run, and many runs, evaluate nothing.
            from bsmeta.tasks.causal_lm.evaluation.subset import SubsetEvaluation

            self._subset = SubsetEvaluation(
                self._config.data_config,
                self.tokenizer,
                max_documents=self._config.eval_documents,
                seed=self._config.seed,
                ranks=context,
                remote_file=None if self._survey is None else self._survey.remote_held_out,
            )
        with run_uncompiled(is_compiled=self._config.torch_compile):
            values = self._subset.run(model, context.device)

        return make_metrics(METRICS, values)

    def exposure(self, counts: Mapping[str, float], phase: int) -> dict[str, Any]:
        """Compares configured and realized shares of documents, overall and by metadata type.

        Returns:
            {} if no documents were counted.
        """
        documents = counts.get("documents", 0.0)
        if not documents:
            return {}

        exposure: dict[str, Any] = {"documents": int(documents)}
        sources = compare_source_exposure(self._config.data_config, counts)
        if sources:
            exposure["sources"] = sources

        metadata = configure_phases(self._config.data_config.metadata_config)[phase]
        exposure["with_metadata"] = {
            "configured": metadata.metadata_probability,
            "realized": counts[WITH_METADATA] / documents,
        }
        exposure["types"] = {
            name: {
                "weight": chances.weight,
                "left_out": chances.dropout,
                "realized": counts[f"documents/{name}"] / documents,
            }
            for name, chances in compute_chances(metadata).items()
        }
        return exposure

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        self._export_in(self._config.export_dtype, model, weights, folder)

    def _export_in(
        self,
        dtype: str | None,
        model: nn.Module,
        weights: dict[str, torch.Tensor],
        folder: Path,
    ) -> None:
        """Exports the model in a dtype (None: as trained), after its adapters are merged."""
        from bsmeta.tasks.causal_lm.model_card import write_card

        if self._config.lora.rank:
            from bsmeta.models.lora import merge_adapters

            weights = merge_adapters(model, weights)
        write_model(model, weights, folder, dtype)

        template = self._chat_template
        tokenizer = prepare_tokenizer(self._config.data_config, self.tokenizer, template)
        # In tokenizer_config.json, where every version of every program looks for the template.
        tokenizer.save_pretrained(str(folder), save_jinja_files=False)
        metrics = locate_run_folder(self._config) / "metrics.jsonl"
        write_card(self._config, metrics, sys.argv, folder, template)

    def finalize_export(self, folder: Path) -> None:
        """Adds the file of llama.cpp if `gguf` is set; a failure does not end the run."""
        if not self._config.gguf:
            return
        try:
            write_gguf(folder, has_bos=self._config.data_config.metadata_config.bos_token)
        except Exception as error:  # of the disk, or of a library
            (folder / GGUF_FILE).unlink(missing_ok=True)
            logger.warning("%s was not written: %r", folder / GGUF_FILE, error)

    @cached_property
    def _chat_template(self) -> ChatTemplate | None:
        """The template that renders metadata in other programs; None for text alone.

        `survey` sets it, so that its warnings are logged before step 1, and so that it cannot fail
        after the training.
        """
        return build_chat_template(self._config.data_config, self.tokenizer, {})

    def _build_chat_template(self, survey: Survey) -> ChatTemplate | None:
        """Builds the template, and warns if it does not give other programs the ids of training."""
        template = build_chat_template(self._config.data_config, self.tokenizer, survey.lines)
        if template is None:
            return None

        comparison = template.comparison
        if comparison.num_other_ids:
            logger.warning(
                "chat template: the tokenizer merges characters across the separators of the "
                "metadata: as one string, %d of %d documents have other ids than in training "
                "(%s). metadata_boundary_token prevents this; otherwise, the model card explains "
                "how to tokenize the parts separately",
                comparison.num_other_ids,
                comparison.documents,
                comparison.difference,
            )
        if comparison.num_unlike_training:
            logger.warning(
                "chat template: it cannot render %d of %d documents (%s)",
                comparison.num_unlike_training,
                comparison.documents,
                comparison.first_problem,
            )
        return template


def compare_source_exposure(config: DataConfig, counts: Mapping[str, float]) -> dict[str, Any]:
    """Compares the configured and realized shares of each source of a mixture.

    Returns:
        By source: its share of the sequences as configured and as realized, its tokens and their
        share, and its completed epochs; {} without a mixture.
    """
    total_weight = sum(source.weight for source in config.sources)
    total_sequences = sum(counts[f"source_sequences/{source.name}"] for source in config.sources)
    total_tokens = sum(counts[f"source_tokens/{source.name}"] for source in config.sources)

    exposure = {}
    for source in config.sources:
        sequences = counts[f"source_sequences/{source.name}"]
        tokens = counts[f"source_tokens/{source.name}"]
        exposure[source.name] = {
            "configured": source.weight / total_weight,
            "realized": sequences / total_sequences,
            "sequences": int(sequences),
            "tokens": int(tokens),
            "share_of_tokens": tokens / total_tokens,
            "epochs": round(counts[f"source_epochs/{source.name}"], 6),
        }
    return exposure


def are_rows_whole(config: DataConfig, model_config: PretrainedConfig) -> bool:
    """Whether attention treats each row as one sequence, from its first token to its last.

    With one document per row, the padding after a document may attend to it, because no target sees
    the padding. With a router it must not, because the loss of a router is a mean over all tokens,
    padding included.

    Args:
        model_config: The transformers config of the model.
    """
    is_routed = RouterLoss.is_enabled(model_config)
    return config.cross_document_attention or (config.packing == "pad" and not is_routed)


class WithBorders:
    """A stream whose micro-batches contain the borders of their documents, for flash attention.

    The borders are computed on the host, because their number would have to be read back from the
    device.

    Args:
        fixed_number: Whether all batches of the same size are padded to the same number of borders.
    """

    def __init__(self, stream: TrainStream, *, fixed_number: bool = False) -> None:
        self._stream = stream
        self._fixed_number = fixed_number
        self.fingerprint = stream.fingerprint
        self.state = stream.state
        self.merge = stream.merge

    def __iter__(self) -> Iterator[StepData]:
        for step in self._stream:
            batches = []
            for batch in step.micro_batches:
                positions = batch.tensors["position_ids"]
                borders = attention.compute_borders(positions)
                if self._fixed_number:
                    borders = attention.pad_borders(borders, positions.numel())
                tensors = {**batch.tensors, attention.BORDERS: borders}
                batches.append(replace(batch, tensors=tensors))
            yield replace(step, micro_batches=batches)


@contextmanager
def _explain_loading_errors(key: str, source: str) -> Iterator[None]:
    """Adds the key to any error that transformers raises for a model that it cannot build.

    Invalid values cause errors of many types, wherever they are first used.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, (OSError, ValueError)) else repr(error)
        raise ConfigurationError(
            f"{key}: {source} cannot be loaded: {reason}. Expected a folder, a file of one, or a "
            "name on the Hub, with values that transformers builds a model from"
        ) from error
