"""The bi-encoder: a mention in its context and the text of an entity, compared by their cosine.

Each encoder's vector goes through a linear layer and tanh to an embedding of length 1, as in
Bootleg 1.1 (seed document 001); the score of a candidate is the cosine divided by the temperature,
plus trained weights times the logarithms of its share of the alias's scores and of its rank.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.utils import ModelOutput

from bsmeta.core.errors import DataError
from bsmeta.models.pretrained import check_files, whole_weights
from bsmeta.tasks.disambiguation.config import DisambiguationConfig

PRIOR_AT_FIRST = (1.0, 0.0)
"""The weights of share and rank before training: the share alone, as a probability."""
PRIOR_SCALE = 10.0
"""What one unit of the trained parameters changes them by: Adam moves every parameter by about the
learning rate a step, which suits matrices and is too little for a single weight."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True)
class Settings:
    """The part of the configuration that the model needs; saved with it."""

    embedding_size: int
    temperature: float
    pooling: str
    is_shared: bool
    is_frozen: bool
    has_prior: bool
    has_nil: bool

    @classmethod
    def of(cls, config: DisambiguationConfig) -> Settings:
        return cls(
            embedding_size=config.embedding_size,
            temperature=config.temperature,
            pooling=config.pooling,
            is_shared=config.share_encoders,
            is_frozen=not config.train_entity_encoder,
            has_prior=config.log_prior != "none",
            has_nil=not config.train_in_candidates,
        )


@dataclass
class Output(ModelOutput):
    """The outputs of a forward pass; None where the inputs were not given.

    Attributes:
        mentions: Embeddings float [mentions, size].
        entity_vectors: Vectors of the entity encoder, float [entities, hidden].
        entities: Embeddings float [entities, size].
        scores: float [mentions, entities], with a first column for NIL if the model has it;
            -inf where the entity is not allowed.
    """

    mentions: torch.Tensor | None = None
    entity_vectors: torch.Tensor | None = None
    entities: torch.Tensor | None = None
    scores: torch.Tensor | None = None


class BiEncoder(nn.Module):
    """Both encoders and their layers on top, in one module with one `forward`.

    Args:
        mention_encoder: Encodes sentences or windows.
        entity_encoder: Encodes the texts of entities; None if it is the other one.
        settings: See `Settings`.
    """

    def __init__(
        self,
        mention_encoder: PreTrainedModel,
        entity_encoder: PreTrainedModel | None,
        settings: Settings,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.mention_encoder = mention_encoder
        self.entity_encoder = entity_encoder
        size = settings.embedding_size
        self.mention_layer = nn.Linear(mention_encoder.config.hidden_size, size)
        of_entities = mention_encoder if entity_encoder is None else entity_encoder
        self.entity_layer = nn.Linear(of_entities.config.hidden_size, size)
        self.prior_weights = nn.Parameter(torch.zeros(2)) if settings.has_prior else None
        self.nil = nn.Parameter(torch.randn(size) / math.sqrt(size)) if settings.has_nil else None
        if settings.is_frozen and entity_encoder is not None:
            entity_encoder.requires_grad_(False)

    def start_alike(self) -> None:
        """Makes both layers the same orthogonal map (a projection, if it lowers the size).

        The cosine of two embeddings then begins close to that of the encoders' vectors, so what
        pretrained encoders know of similarity also helps with entities that training never shows.
        """
        nn.init.orthogonal_(self.mention_layer.weight)
        nn.init.zeros_(self.mention_layer.bias)
        with torch.no_grad():
            for own, other in zip(
                self.entity_layer.parameters(), self.mention_layer.parameters(), strict=True
            ):
                own.copy_(other)

    def train(self, mode: bool = True) -> BiEncoder:
        """Sets the mode of all parts; a frozen encoder is always in evaluation mode."""
        super().train(mode)
        if self.settings.is_frozen and self.entity_encoder is not None:
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
        entity_vectors: torch.Tensor | None = None,
        entities: torch.Tensor | None = None,
        prior: torch.Tensor | None = None,
        allowed: torch.Tensor | None = None,
    ) -> Output:
        """Computes what its inputs suffice for.

        Args:
            input_ids, attention_mask: int64 [texts, tokens] of sentences or windows.
            mention_tokens: int64 [mentions, most tokens of one]: places in the flattened texts,
                whose mean is the vector of the mention; -1 where there are no more.
            entity_ids, entity_mask: int64 [entities, tokens] of the texts of entities, or
            entity_vectors: float [entities, hidden], what the encoder made of them, or
            entities: float [entities, size], their embeddings.
            prior: float [mentions, entities, 2]: logarithms of share and rank (`Candidates`).
            allowed: bool [mentions, entities]: the entities that a mention is compared with.
        """
        output = Output(entity_vectors=entity_vectors, entities=entities)
        if entity_ids is not None:
            output.entity_vectors = self._encode_entities(entity_ids, entity_mask)
        if output.entity_vectors is not None:
            output.entities = _embedding(self.entity_layer, output.entity_vectors)
        if input_ids is not None:
            assert mention_tokens is not None
            hidden = self.mention_encoder(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state
            vectors = mean_of_tokens(hidden, mention_tokens)
            output.mentions = _embedding(self.mention_layer, vectors)
        if output.mentions is not None and output.entities is not None:
            assert allowed is not None
            output.scores = self._scores(output.mentions, output.entities, prior, allowed)
        return output

    def _encode_entities(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        encoder = self.mention_encoder if self.entity_encoder is None else self.entity_encoder
        assert mask is not None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.settings.is_frozen):
            hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            if self.settings.pooling == "first":
                return hidden[:, 0].float()
            weights = mask.unsqueeze(2).float()
            return (hidden.float() * weights).sum(1) / weights.sum(1)

    def _scores(
        self,
        mentions: torch.Tensor,
        entities: torch.Tensor,
        prior: torch.Tensor | None,
        allowed: torch.Tensor,
    ) -> torch.Tensor:
        scores = mentions @ entities.T / self.settings.temperature
        if self.prior_weights is not None:
            assert prior is not None
            first = prior.new_tensor(PRIOR_AT_FIRST)
            scores = scores + prior @ (first + PRIOR_SCALE * self.prior_weights)
        scores = scores.masked_fill(~allowed, -math.inf)
        if self.nil is not None:
            nil = functional.normalize(self.nil, dim=0)
            of_nil = (mentions @ nil / self.settings.temperature).unsqueeze(1)
            scores = torch.cat([of_nil, scores], dim=1)
        return scores


def mean_of_tokens(hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The mean of some tokens, float [mentions, size].

    Args:
        hidden: float [texts, tokens, size].
        places: int64 [mentions, most tokens of one], in the flattened texts; -1: none.
    """
    is_token = (places >= 0).unsqueeze(2)
    chosen = hidden.flatten(0, 1)[places.clamp(min=0)].float() * is_token
    return chosen.sum(1) / is_token.sum(1)


def _embedding(layer: nn.Linear, vectors: torch.Tensor) -> torch.Tensor:
    return functional.normalize(torch.tanh(layer(vectors)).float(), dim=1)


def save_model(model: BiEncoder, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Writes the model for `load_model`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / WEIGHTS)
    other = model.entity_encoder
    content = {
        "settings": asdict(model.settings),
        "mention_encoder": model.mention_encoder.config.to_dict(),
        "entity_encoder": None if other is None else other.config.to_dict(),
    }
    (folder / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_model(folder: Path) -> BiEncoder:
    """A trained model, in evaluation mode; `folder` is one that `save_model` has written.

    Raises:
        DataError: If it is damaged, incomplete or another model.
    """
    check_files(str(folder), f"{folder}")
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        settings = Settings(**content["settings"])
        with whole_weights():
            encoders = [
                None if content[name] is None else bare(_of_shape(content[name]))
                for name in ("mention_encoder", "entity_encoder")
            ]
        assert encoders[0] is not None
        model = BiEncoder(encoders[0], encoders[1], settings)
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"{folder}: the model cannot be loaded: {error}; expected the model/ of a run or "
            "checkpoint of task=disambiguation"
        ) from error
    return model.eval()


def _of_shape(shape: dict[str, Any]) -> PreTrainedModel:
    config = AutoConfig.for_model(**shape)
    return AutoModel.from_config(config, dtype=torch.float32)


def bare(model: PreTrainedModel) -> PreTrainedModel:
    """The encoder alone: without a pooler or decoder, which would get no gradient."""
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
