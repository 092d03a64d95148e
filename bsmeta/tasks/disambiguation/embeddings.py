"""The vectors and embeddings of entities: by a model in training, by a frozen one, from disk.

Hard negatives are the entities whose texts are most similar to that of a mention's entity, as in
BLINK (Wu et al. 2020), but by the encoder before training, so that they are found once and every
step can be repeated exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from bsmeta.core.files import replacing, unwritable
from bsmeta.core.progress import exclusively, report_progress
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.encoders import build_model
from bsmeta.tasks.disambiguation.model import BiEncoder
from bsmeta.tasks.disambiguation.texts import EntityTexts, pad
from bsmeta.tasks.disambiguation.vectors import EntityVectors, folder_name, weights_hash
from bsmeta.training.batches import batches_of, batches_within, spread
from bsmeta.training.task import EvaluationContext

TOKENS_AT_ONCE = 8192
"""Padded tokens of a batch of entity texts."""
VECTORS_AT_ONCE = 8192

Embeddings = Callable[[np.ndarray], np.ndarray]
"""The embeddings of entities, float32 [entities, size], from their numbers."""


class EntityEncoder:
    """Encodes the texts of entities with a model.

    Args:
        model: The bi-encoder, wrapped or not, in evaluation mode.
        texts: The texts of the entities.
        tokenizer: Pads them.
        device: That of the model.
        precision: `bf16` computes in it; anything else in float32.
    """

    def __init__(
        self,
        model: nn.Module,
        texts: EntityTexts,
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device,
        precision: str,
    ) -> None:
        self._model = model
        self._texts = texts
        self._pad = tokenizer.pad_token_id
        self._device = device
        self._in_bf16 = precision == "bf16"

    def batches(self, entities: np.ndarray, is_masked: bool = False) -> list[np.ndarray]:
        """Places of entities whose texts are of similar length, in batches of a bounded size."""
        lengths = [len(self._texts.tokens(int(entity), is_masked)) for entity in entities]
        return batches_within(lengths, TOKENS_AT_ONCE)

    def encode(self, entities: np.ndarray, *, embed: bool, is_masked: bool = False) -> np.ndarray:
        """One batch: embeddings or the encoder's vectors, float32 [entities, size]."""
        tokens = [self._texts.tokens(int(entity), is_masked) for entity in entities]
        ids = torch.from_numpy(pad(tokens, self._pad)).to(self._device)
        lengths = torch.tensor([len(own) for own in tokens], device=self._device)
        mask = torch.arange(ids.shape[1], device=self._device)[None, :] < lengths[:, None]
        with (
            torch.no_grad(),
            torch.autocast(self._device.type, torch.bfloat16, enabled=self._in_bf16),
        ):
            output = self._model(entity_ids=ids, entity_mask=mask.long())
        return self.values(output.entities if embed else output.entity_vectors)

    def encode_all(
        self, entities: np.ndarray, *, embed: bool, is_masked: bool = False
    ) -> np.ndarray:
        """Any number of entities, batch by batch."""
        found: np.ndarray | None = None
        for batch in self.batches(entities, is_masked):
            values = self.encode(entities[batch], embed=embed, is_masked=is_masked)
            if found is None:
                found = np.empty((len(entities), values.shape[1]), np.float32)
            found[batch] = values
            report_progress()
        assert found is not None, "there is at least one entity"
        return found

    @staticmethod
    def values(tensor: torch.Tensor) -> np.ndarray:
        """A tensor as float32 on the host."""
        return tensor.float().cpu().numpy()


class FrozenVectors:
    """The vectors of the entities' encoder before training, which never change, on disk.

    Args:
        config: The run.
        texts: The texts of the entities.
        tokenizer: With the special tokens of the task.
        count: The number of entities of the table.
        folder: Where they are kept, for all runs with this encoder and these texts.
    """

    def __init__(
        self,
        config: DisambiguationConfig,
        texts: EntityTexts,
        tokenizer: PreTrainedTokenizerBase,
        count: int,
        folder: Path,
    ) -> None:
        # Loading draws random numbers for weights that it then replaces.
        with torch.random.fork_rng(devices=[]):
            model = build_model(config, tokenizer).eval()
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        encoder = model.mention_encoder if model.entity_encoder is None else model.entity_encoder
        self._about = (
            weights_hash(encoder.state_dict()), config.pooling, config.mixed_precision,
            texts.settings,
        )  # fmt: skip
        self._model = EntityEncoder(
            model.to(device), texts, tokenizer, device, config.mixed_precision
        )
        size = int(encoder.config.hidden_size)
        self._vectors = []
        for is_masked in (False, True):
            name = self.name_of("frozen", is_masked)
            encode = self._encode_masked if is_masked else self._encode_whole
            self._vectors.append(EntityVectors(folder / name, count, size, texts.text, encode))

    def __call__(self, entities: np.ndarray, is_masked: np.ndarray) -> np.ndarray:
        """float32 [entities, hidden].

        Args:
            entities: int64 [entities].
            is_masked: bool [entities]: whether the title is masked.
        """
        if not is_masked.any():
            return self._vectors[0].get(entities)
        found = np.empty((len(entities), self._vectors[0].size), np.float32)
        for vectors, chosen in zip(self._vectors, (~is_masked, is_masked), strict=True):
            found[chosen] = vectors.get(entities[chosen])
        return found

    def name_of(self, *parts: Any) -> str:
        """The name of a file or folder of what follows from these vectors and some values."""
        return folder_name(*self._about, *parts)

    def fill(self, entities: np.ndarray, *, masked: bool) -> None:
        """Computes the vectors of entities that are missing, also those with a masked title."""
        for vectors in self._vectors[: 2 if masked else 1]:
            vectors.get(entities)

    def _encode_whole(self, entities: np.ndarray) -> np.ndarray:
        return self._model.encode_all(entities, embed=False)

    def _encode_masked(self, entities: np.ndarray) -> np.ndarray:
        return self._model.encode_all(entities, embed=False, is_masked=True)


def split_embeddings(
    entities: np.ndarray,
    encoder: EntityEncoder,
    frozen: FrozenVectors | None,
    model: nn.Module,
    context: EvaluationContext,
) -> Embeddings:
    """The embeddings of the entities of a split by a model in training; all processes call it.

    Args:
        entities: int64, distinct and ascending, at least one.
        encoder: Encodes texts with the model.
        frozen: The vectors of the encoder, if it is not trained.
        model: The bi-encoder, wrapped or not, in evaluation mode.
        context: The processes.
    """
    if frozen is not None:
        batches = batches_of(np.zeros(len(entities)), VECTORS_AT_ONCE)
        frozen.fill(entities, masked=False)
    else:
        batches = encoder.batches(entities)

    def run(batch: np.ndarray) -> np.ndarray:
        chosen = entities[batch]
        if frozen is None:
            return encoder.encode(chosen, embed=True)
        vectors = torch.from_numpy(frozen(chosen, np.zeros(len(chosen), bool)))
        with torch.no_grad():
            return encoder.values(model(entity_vectors=vectors.to(context.device)).entities)

    embeddings = np.stack(spread(batches, run, context))

    def of(asked: np.ndarray) -> np.ndarray:
        places = np.searchsorted(entities, asked).clip(max=len(entities) - 1)
        return embeddings[places]

    return of


def saved_embeddings(
    model: BiEncoder, encoder: EntityEncoder, texts: EntityTexts, count: int, folder: Path
) -> EntityVectors:
    """The embeddings of a trained model on disk, each computed when it is first asked for.

    Args:
        model: The trained model.
        encoder: Encodes texts with it.
        texts: The texts of the entities.
        count: The number of entities of the table.
        folder: Where embeddings are kept, those of all models.
    """
    name = folder_name("trained", weights_hash(model.state_dict()), texts.settings)
    return EntityVectors(
        folder / name,
        count,
        model.settings.embedding_size,
        texts.text,
        lambda entities: encoder.encode_all(entities, embed=True),
    )


_ASKED, _BLOCK = 1024, 1 << 16  # entities that are compared at a time, and with how many


class Neighbors:
    """The nearest entities of some entities.

    Args:
        vectors: The vectors of all entities before training.
        entities: int64, distinct and ascending: the entities of the training mentions.
        total: The number of entities of the table.
        count: How many neighbors each has.
        folder: Where they are kept.
    """

    def __init__(
        self, vectors: FrozenVectors, entities: np.ndarray, total: int, count: int, folder: Path
    ) -> None:
        self._entities = entities
        file = folder / f"{vectors.name_of('neighbors', entities.tolist(), total, count)}.npy"
        folder.mkdir(parents=True, exist_ok=True)
        with exclusively(f"{file}.lock", "the nearest entities of each entity"):
            if not file.exists():
                found = _nearest(vectors, entities, total, count)
                try:
                    with replacing(file) as part:
                        np.save(part, found)
                except OSError as error:
                    raise unwritable(file, error) from error
        self._found = np.load(file, mmap_mode="r")

    def __call__(self, entities: np.ndarray) -> np.ndarray:
        """int64 [entities, count]; -1 for an entity that no training mention has."""
        places = np.searchsorted(self._entities, entities).clip(max=len(self._entities) - 1)
        is_known = (self._entities[places] == entities)[:, None]
        return np.where(is_known, self._found[places], -1)


def _nearest(vectors: FrozenVectors, entities: np.ndarray, total: int, count: int) -> np.ndarray:
    """int64 [entities, count]: by falling cosine, without the entity itself and NIL; -1: none."""
    found = np.full((len(entities), count), -1, np.int64)
    blocks = [np.arange(first, min(first + _BLOCK, total)) for first in range(1, total, _BLOCK)]
    for first in range(0, len(entities), _ASKED):
        asked = entities[first : first + _ASKED]
        own = _directions(vectors, asked)
        best = torch.full((len(asked), count), -2.0)
        chosen = torch.full((len(asked), count), -1, dtype=torch.int64)
        for block in blocks:
            cosines = own @ _directions(vectors, block).T
            cosines[torch.from_numpy(asked[:, None] == block[None, :])] = -2.0
            numbers = torch.from_numpy(block).expand(len(asked), -1)
            best, places = torch.cat([best, cosines], 1).topk(count, dim=1)
            report_progress()
            chosen = torch.cat([chosen, numbers], 1).gather(1, places)
        found[first : first + _ASKED] = torch.where(best > -2.0, chosen, -1).numpy()
    return found


def _directions(vectors: FrozenVectors, entities: np.ndarray) -> torch.Tensor:
    whole = np.zeros(len(entities), bool)
    return functional.normalize(torch.from_numpy(vectors(entities, whole)), dim=1)
