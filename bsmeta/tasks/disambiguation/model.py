"""The bi-encoder, which compares mentions in context with texts of entities by their cosine.

The vector of each encoder goes through a linear layer and tanh to an embedding of norm 1, as in
Bootleg 1.1. The score of a candidate is the cosine divided by the temperature, plus trained weights
times the logarithms of its share of the alias's scores and of its rank. The frozen first layers of
the entity encoder, of any architecture, can run separately from the trained last ones.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModel,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import ModelOutput

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.model_files import create_model, read_model_and_report, refuse_unsafe_model
from bsmeta.core.parsing import parse_json
from bsmeta.data.text.tokenizer import read_trained_vocabulary, refuse_other_ids
from bsmeta.models import pretrained
from bsmeta.models.layers import list_encoder_layers
from bsmeta.models.shapes import find_text_shape, read_hidden_size
from bsmeta.tasks.disambiguation.config import DICTIONARY, DisambiguationConfig
from bsmeta.tasks.disambiguation.tagging import TAG_COUNT
from bsmeta.tasks.disambiguation.texts import SPECIAL_TOKENS
from bsmeta.training.task import sort_into_budgeted_batches

INITIAL_PRIOR_WEIGHTS = (1.0, 0.0)
"""The initial weights of the log share and the log rank, by which the prior is the share."""
PRIOR_SCALE = 10.0
"""Factor of the trained parameters in these weights. Adam changes each parameter by about the
learning rate per step, which suits matrices, but is too little for a single weight."""

MAX_BATCH_TOKENS = 8192
"""Maximum number of tokens, with padding, in a batch of entity texts."""
MAX_KEPT_CHUNKS = 2
"""Maximum number of batches per step whose activations are kept for the backward pass."""
DEFAULT_MAX_TOKENS = 512
"""Maximum tokens of a text for encoders without a lower limit."""

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_TABLE_KEY = "entity_table"


def run_first_layers(
    encoder: PreTrainedModel, last: int, ids: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Runs an encoder except its last layers.

    Args:
        last: Number of last layers that are not run, at least 1.
        ids, mask: int64 [texts, tokens].

    Returns:
        float [texts, tokens, hidden].
    """
    inputs_of_last = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs_of_last.append(args[0] if args else kwargs["hidden_states"])
        raise _LastLayersReached

    hook = list_encoder_layers(encoder)[-last].register_forward_pre_hook(stop, with_kwargs=True)
    with hook, suppress(_LastLayersReached):
        encoder(input_ids=ids, attention_mask=mask)
    return inputs_of_last[0]


class _LastLayersReached(Exception):
    """Stops a forward pass before the last layers."""


def run_last_layers(
    encoder: PreTrainedModel, last: int, states: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Runs the last layers of an encoder on the states from `run_first_layers`.

    Args:
        last: Number of last layers to run, at least 1.

    Returns:
        float [texts, tokens, hidden].
    """

    def insert_states(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (states, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": states}

    layers = list_encoder_layers(encoder)
    hook = layers[-last].register_forward_pre_hook(insert_states, with_kwargs=True)

    # The first layers are replaced by functions that return the states. Encoders that expect tuples
    # from layers take the first element of the states, which the hook of the next layer replaces.
    for layer in layers[:-last]:
        layer.forward = lambda *_, **__: states
    try:
        with hook:
            # The encoder derives masks and positions from its inputs; the tokens have no effect.
            output = encoder(input_ids=torch.zeros_like(mask), attention_mask=mask)
    finally:
        for layer in layers[:-last]:
            del layer.forward
    return output.last_hidden_state


@contextmanager
def recompute_layers(encoder: PreTrainedModel) -> Iterator[None]:
    """Runs an encoder without keeping the activations inside its layers for the backward pass.

    They are computed again there, with the same dropout, so the gradients are the same.
    """
    layers = list_encoder_layers(encoder)
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def is_partitioned(module: nn.Module) -> bool:
    """Returns whether the weights are partitioned by ZeRO-3.

    All processes must then run each layer equally often.
    """
    return any(hasattr(parameter, "ds_id") for parameter in module.parameters())


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the model that its configuration saves."""

    embedding_size: Annotated[int, msgspec.Meta(ge=1)]
    temperature: Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
    pooling: Literal["mean", "first"]
    is_shared: bool
    entity_layers: Annotated[int, msgspec.Meta(ge=0)] | None
    has_prior: bool
    has_nil: bool
    has_detector: bool = False  # models from before there was one have no such setting


@dataclass
class Output(ModelOutput):
    """The outputs of a forward pass; None without the inputs for it."""

    mentions: torch.Tensor | None = None  # embeddings, float [mentions, size]
    entity_vectors: torch.Tensor | None = None  # from the encoder, float [entities, hidden]
    entities: torch.Tensor | None = None  # embeddings, float [entities, size]
    scores: torch.Tensor | None = None  # float [mentions, (NIL +) entities]; -inf: not allowed
    tag_scores: torch.Tensor | None = None  # of the mention detector, float32 [texts, tokens, tags]


class BiEncoder(nn.Module):
    """Both encoders and the layers on top of them, in one module with one `forward`.

    Args:
        mention_encoder: Encodes sentences or windows.
        entity_encoder: Encodes the texts of entities; None: `mention_encoder` is shared.

    Attributes:
        max_kept_tokens: The configuration key of this name; None: no limit.
    """

    def __init__(
        self,
        mention_encoder: PreTrainedModel,
        entity_encoder: PreTrainedModel | None,
        settings: Settings,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.max_kept_tokens: int | None = None
        self.mention_encoder = mention_encoder
        self.entity_encoder = entity_encoder

        size = settings.embedding_size
        self.mention_layer = nn.Linear(read_hidden_size(mention_encoder.config), size)
        self.entity_layer = nn.Linear(read_hidden_size(self.text_encoder.config), size)
        self.prior_weights = nn.Parameter(torch.zeros(2)) if settings.has_prior else None
        self.nil = nn.Parameter(torch.randn(size) / math.sqrt(size)) if settings.has_nil else None
        self.tag_layer = (
            nn.Linear(read_hidden_size(mention_encoder.config), TAG_COUNT)
            if settings.has_detector
            else None
        )

    @property
    def text_encoder(self) -> PreTrainedModel:
        """The encoder of the texts of entities."""
        return self.mention_encoder if self.entity_encoder is None else self.entity_encoder

    def initialize_layers(self) -> None:
        """Initializes both layers with the same orthogonal map, or projection to a smaller size.

        Initially, the cosine of two embeddings is then close to the cosine of the encoders'
        vectors. So similarities learned in pretraining also help with entities that are not in the
        training data.
        """
        nn.init.orthogonal_(self.mention_layer.weight)
        nn.init.zeros_(self.mention_layer.bias)
        self.entity_layer.load_state_dict(self.mention_layer.state_dict())

    def train(self, mode: bool = True) -> BiEncoder:
        """Sets the mode of all parts; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if self.settings.entity_layers == 0 and self.entity_encoder is not None:
            self.entity_encoder.eval()
        return self

    def forward(
        self,
        *,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        mention_tokens: torch.Tensor | None = None,
        entity_ids: torch.Tensor | None = None,
        entity_mask: torch.Tensor | None = None,
        entity_states: torch.Tensor | None = None,
        entity_vectors: torch.Tensor | None = None,
        entities: torch.Tensor | None = None,
        prior: torch.Tensor | None = None,
        allowed: torch.Tensor | None = None,
    ) -> Output:
        """Computes all outputs for which the inputs are given.

        Args:
            input_ids, attention_mask: int64 [texts, tokens] of sentences or windows.
            mention_tokens: int64 [mentions, tokens]: indices in the flattened texts, whose mean is
                the vector of the mention; -1 pads. None: texts are only tagged.
            entity_ids, entity_mask: int64 [entities, tokens] of the texts of entities.
            entity_states: float [entities, tokens, hidden] before the trained layers, with
                `entity_mask`, in place of `entity_ids`.
            entity_vectors: float [entities, hidden], outputs of the entity encoder, in place of
                both.
            entities: float [entities, size], embeddings, in place of all of these.
            prior: float [mentions, entities, 2]: see `Candidates.prior`.
            allowed: bool [mentions, entities]: whether mention and entity are compared.
        """
        output = Output(entity_vectors=entity_vectors, entities=entities)
        if entity_states is not None:
            assert entity_mask is not None
            output.entity_vectors = self._encode_in_chunks(
                self._run_trained_layers, entity_states, entity_mask
            )
        elif entity_ids is not None:
            assert entity_mask is not None
            is_trained = self.settings.entity_layers != 0
            with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
                output.entity_vectors = self._encode_texts(entity_ids, entity_mask)
        if output.entity_vectors is not None:
            output.entities = _make_embedding(self.entity_layer, output.entity_vectors)

        if input_ids is not None:
            with self._bound_activations(input_ids):
                encoded = self.mention_encoder(input_ids=input_ids, attention_mask=attention_mask)
            hidden = encoded.last_hidden_state
            if self.tag_layer is not None:
                output.tag_scores = self.tag_layer(hidden).float()
            if mention_tokens is not None:
                vectors = average_tokens(hidden, mention_tokens)
                output.mentions = _make_embedding(self.mention_layer, vectors)

        if output.mentions is not None and output.entities is not None:
            assert allowed is not None
            output.scores = self._score(output.mentions, output.entities, prior, allowed)
        return output

    def _bound_activations(self, ids: torch.Tensor) -> AbstractContextManager[None]:
        """Recomputes the layers of the mention encoder for texts of more than `max_kept_tokens`.

        On a CPU, the activations of long sentences are mostly probabilities of attention, whose
        number grows with the square of the longest sentence of a micro-batch.
        """
        is_large = self.max_kept_tokens is not None and ids.numel() > self.max_kept_tokens
        if is_large and torch.is_grad_enabled() and not is_partitioned(self.mention_encoder):
            return recompute_layers(self.mention_encoder)
        return nullcontext()

    def compute_entity_states(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Computes the token states of entity texts before the trained layers."""
        assert self.settings.entity_layers
        return run_first_layers(self.text_encoder, self.settings.entity_layers, ids, mask)

    def _encode_texts(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Computes the vectors of texts; in chunks if there are more than `MAX_BATCH_TOKENS`."""
        if ids.numel() <= MAX_BATCH_TOKENS or is_partitioned(self.text_encoder):
            return self._run_text_encoder(ids, mask)
        return self._encode_in_chunks(self._run_text_encoder, ids, mask)

    def _run_text_encoder(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.text_encoder(input_ids=ids, attention_mask=mask)
        return self._pool(hidden.last_hidden_state, mask)

    def _run_trained_layers(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assert self.settings.entity_layers
        last = self.settings.entity_layers
        return self._pool(run_last_layers(self.text_encoder, last, states.float(), mask), mask)

    def _encode_in_chunks(
        self,
        run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        texts: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Computes the vectors of texts in chunks of similar length.

        Except in the first chunks, the activations are recomputed in the backward pass, so that the
        memory does not grow with the number of texts.

        Args:
            run: Computes the vectors of a chunk from its inputs and its mask.
            texts: The inputs, [texts, tokens, …].
        """
        lengths = mask.sum(1).cpu().numpy()
        chunks = sort_into_budgeted_batches(lengths, MAX_BATCH_TOKENS)

        vectors = []
        for number, chunk in enumerate(chunks):
            numbers = torch.from_numpy(chunk).to(mask.device)
            max_length = int(lengths[chunk].max())
            chunk_texts = texts[numbers, :max_length]
            chunk_mask = mask[numbers, :max_length]
            if number < MAX_KEPT_CHUNKS or not torch.is_grad_enabled():
                chunk_vectors = run(chunk_texts, chunk_mask)
            else:
                chunk_vectors = checkpoint(run, chunk_texts, chunk_mask, use_reentrant=False)
            vectors.append(chunk_vectors)

        original_order = torch.from_numpy(np.argsort(np.concatenate(chunks))).to(mask.device)
        return torch.cat(vectors)[original_order]

    def _pool(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Reduces token states, [texts, tokens, hidden], to vectors, float32 [texts, hidden]."""
        if self.settings.pooling == "first":
            return hidden[:, 0].float()
        assert mask is not None
        weights = mask.unsqueeze(2).float()
        return (hidden.float() * weights).sum(1) / weights.sum(1)

    def _score(
        self,
        mentions: torch.Tensor,
        entities: torch.Tensor,
        prior: torch.Tensor | None,
        allowed: torch.Tensor,
    ) -> torch.Tensor:
        """Computes the scores of embeddings, float [mentions, (NIL +) entities]; see `forward`."""
        scores = mentions @ entities.T / self.settings.temperature

        if self.prior_weights is not None:
            assert prior is not None
            initial = prior.new_tensor(INITIAL_PRIOR_WEIGHTS)
            scores = scores + prior @ (initial + PRIOR_SCALE * self.prior_weights)

        scores = scores.masked_fill(~allowed, -math.inf)

        if self.nil is not None:
            nil = functional.normalize(self.nil, dim=0)
            nil_scores = (mentions @ nil / self.settings.temperature).unsqueeze(1)
            scores = torch.cat([nil_scores, scores], dim=1)
        return scores


def run_model(
    model: nn.Module, inputs: Mapping[str, torch.Tensor], device: torch.device, precision: str
) -> Output:
    """Runs a bi-encoder, which may be wrapped, without gradients; `bf16` computes in bfloat16."""
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    with torch.no_grad(), autocast:
        output: Output = model(**{name: tensor.to(device) for name, tensor in inputs.items()})
    return output


def average_tokens(hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Averages the states of the tokens of each mention.

    Args:
        hidden: float [texts, tokens, size].
        tokens: int64 [mentions, tokens]: indices in the flattened texts; -1 pads.

    Returns:
        float [mentions, size].
    """
    is_token = (tokens >= 0).unsqueeze(2)
    states = hidden.flatten(0, 1)[tokens.clamp(min=0)].float() * is_token
    return states.sum(1) / is_token.sum(1)


def _make_embedding(layer: nn.Linear, vectors: torch.Tensor) -> torch.Tensor:
    return functional.normalize(torch.tanh(layer(vectors)).float(), dim=1)


def build_model(config: DisambiguationConfig, tokenizer: PreTrainedTokenizerBase) -> BiEncoder:
    """Builds the model to train in float32, on the CPU, or on torch's default device `meta`.

    Raises:
        ConfigurationError, DataError: If an encoder cannot be built or loaded.
    """
    max_tokens = find_max_text_tokens(config, tokenizer)
    for name in ("max_entity_length", "window_length"):
        length = getattr(config.data_config, name)
        if length > max_tokens:
            raise ConfigurationError(
                f"data_config.{name}={length}: expected at most {max_tokens:,}, the "
                "tokens that the encoder takes"
            )

    with pretrained.load_whole_weights():  # DeepSpeed partitions the module as a whole
        mention_encoder = _build_encoder(config, tokenizer, config.encoder_layers)
        entity_encoder = None
        if not config.share_encoders:
            entity_encoder = _build_encoder(config, tokenizer, None)
    if config.train_layers is not None:
        _freeze_first_layers(mention_encoder, "train_layers", config.train_layers)
    if config.train_entity_layers is not None and entity_encoder is not None:
        _freeze_first_layers(entity_encoder, "train_entity_layers", config.train_entity_layers)

    settings = Settings(
        embedding_size=config.embedding_size,
        temperature=config.temperature,
        pooling=cast(Any, config.pooling),  # one of the choices of the key
        is_shared=config.share_encoders,
        entity_layers=config.train_entity_layers,
        has_prior=config.log_prior != "none",
        has_nil=not config.train_in_candidates,
        has_detector=config.mention_detection != DICTIONARY,
    )
    model = BiEncoder(mention_encoder, entity_encoder, settings)
    model.max_kept_tokens = config.max_kept_tokens
    if config.model_config_file is None:  # random weights have no similarities to preserve
        model.initialize_layers()
    return model


def find_max_text_tokens(config: DisambiguationConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the maximum tokens of a text, with special ones, for encoder and tokenizer."""
    shape = _read_trained_shape(config) or pretrained.read_model_shape(config, AutoModel)
    limit = pretrained.find_token_limit(shape, tokenizer)
    return min(limit or DEFAULT_MAX_TOKENS, DEFAULT_MAX_TOKENS)


def build_frozen_model(
    config: DisambiguationConfig, tokenizer: PreTrainedTokenizerBase
) -> BiEncoder:
    """Builds or loads a model with the frozen layers of a run.

    It is the model before training, or if `model_name` is the folder of the trained model, that
    one, whose frozen layers are the same.

    Raises:
        ConfigurationError, DataError: If it cannot be built or loaded.
    """
    if _read_trained_shape(config) is not None:
        return load_model(Path(config.model_name))
    return build_model(config, tokenizer)


def _read_trained_shape(config: DisambiguationConfig) -> PretrainedConfig | None:
    """Reads the transformers config of a trained model's mention encoder.

    Returns:
        None if `model_name` is not a trained model of this task.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = parse_json((Path(config.model_name) / CONFIG_FILE).read_text(encoding="utf-8"))
        return _parse_shape(content["mention_encoder"])
    return None


def _build_encoder(
    config: DisambiguationConfig, tokenizer: PreTrainedTokenizerBase, layers: int | None
) -> PreTrainedModel:
    """Builds an encoder, with weights unless torch's default device is `meta`.

    Args:
        layers: Number of first layers to use; None: all.
    """
    key, source = pretrained.find_model_source(config)
    shape = pretrained.read_model_shape(config, AutoModel)
    if layers is not None:
        text = find_text_shape(shape)
        if layers > text.num_hidden_layers:
            raise ConfigurationError(
                f"encoder_layers={layers}: expected at most "
                f"{text.num_hidden_layers}, the layers of the encoder"
            )
        text.num_hidden_layers = layers

    is_real = torch.get_default_device().type != "meta"
    with pretrained.explain_load_errors(key, source, AutoModel):
        if config.model_config_file is not None or not is_real:
            encoder = create_model(AutoModel, shape, dtype=torch.float32)
        else:
            encoder = _load_pretrained(source, f"{key}={source}", shape, is_cut=layers is not None)

    encoder = _strip_encoder(encoder)
    if is_real:
        if config.model_config_file is None:
            trained_vocabulary = read_trained_vocabulary(source)
            refuse_other_ids(source, config.tokenizer_name, tokenizer, trained_vocabulary)
        _add_special_tokens(encoder, tokenizer)
    return encoder


def _freeze_first_layers(encoder: PreTrainedModel, key: str, trained: int) -> None:
    """Freezes an encoder except its last layers.

    Args:
        key: The configuration key, for messages.
        trained: Number of trained layers.

    Raises:
        ConfigurationError: If the encoder has fewer layers.
    """
    layers = list_encoder_layers(encoder)
    count = len(layers)
    if trained > count:
        raise ConfigurationError(
            f"{key}={trained}: expected at most {count}, the layers of the encoder"
            + ("" if count else " that have weights of their own")
        )

    encoder.requires_grad_(False)
    for layer in layers[count - trained :]:
        layer.requires_grad_(True)


def _load_pretrained(source: str, setting: str, shape: Any, *, is_cut: bool) -> PreTrainedModel:
    """Loads an encoder with all of its weights except a pooler.

    Args:
        setting: The key and value that name the model, for messages.
        shape: Its transformers config.
        is_cut: Whether the shape has fewer layers than the files.

    Raises:
        DataError: If weights are missing, unexpected or of another shape.
    """
    pretrained.check_model_folder(source, setting)
    model, info = read_model_and_report(
        AutoModel, source, config=shape, dtype=torch.float32, ignore_mismatched_sizes=True
    )
    if is_cut:
        info["unexpected_keys"] = ()
    pretrained.check_encoder_weights(model, info, source, setting)
    return model


def _add_special_tokens(encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Adds embeddings of the task's special tokens, copied from the token that ends a text.

    That token separates texts, as the special tokens do.
    """
    if len(tokenizer) > pretrained.count_vocabulary(encoder):
        encoder.resize_token_embeddings(len(tokenizer), mean_resizing=False)

    end_token = tokenizer.sep_token_id
    if end_token is None:
        end_token = tokenizer.eos_token_id
    if end_token is None:
        return
    weight = encoder.get_input_embeddings().weight
    with torch.no_grad():
        special_ids = tokenizer.convert_tokens_to_ids([*SPECIAL_TOKENS])
        weight[special_ids] = weight[end_token].clone()


def _strip_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the encoder without pooler or decoder, whose weights would get no gradient."""
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # a recomputed layer would find its own keys in the cache
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def save_model(
    model: BiEncoder, weights: Mapping[str, torch.Tensor], folder: Path, table_fingerprint: str
) -> None:
    """Writes the model to a folder for `load_model`.

    Args:
        weights: The weights to write, by name.
        table_fingerprint: Identifies the entity table that the model was trained with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / WEIGHTS_FILE)

    entity_encoder = model.entity_encoder
    content = {
        "settings": msgspec.to_builtins(model.settings),
        "mention_encoder": model.mention_encoder.config.to_dict(),
        "entity_encoder": None if entity_encoder is None else entity_encoder.config.to_dict(),
        _TABLE_KEY: table_fingerprint,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_model(folder: Path) -> BiEncoder:
    """Loads a trained model in evaluation mode from a folder that `save_model` wrote.

    Raises:
        DataError: If the folder is damaged, incomplete, or has another model.
    """
    pretrained.check_model_folder(str(folder), f"{folder}")
    refuse_unsafe_model(folder)
    try:
        content = parse_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        settings = msgspec.convert(content["settings"], Settings)
        with pretrained.load_whole_weights():
            mention_encoder = _rebuild_encoder(content["mention_encoder"])
            entity_encoder = None
            if content["entity_encoder"] is not None:
                entity_encoder = _rebuild_encoder(content["entity_encoder"])
        model = BiEncoder(mention_encoder, entity_encoder, settings)
        model.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"{folder}: the model cannot be loaded: {error}; expected the model/ of a run or "
            "checkpoint of task=disambiguation"
        ) from error
    return model.eval()


def read_table_fingerprint(folder: Path) -> str | None:
    """Reads the fingerprint of the entity table that a saved model was trained with.

    Returns:
        None if the model does not name it.
    """
    content = parse_json((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    fingerprint = content.get(_TABLE_KEY)
    return fingerprint if isinstance(fingerprint, str) else None


def _rebuild_encoder(saved_shape: dict[str, Any]) -> PreTrainedModel:
    return _strip_encoder(create_model(AutoModel, _parse_shape(saved_shape), dtype=torch.float32))


def _parse_shape(saved: dict[str, Any]) -> PretrainedConfig:
    shape: PretrainedConfig = AutoConfig.for_model(**saved)
    return shape
