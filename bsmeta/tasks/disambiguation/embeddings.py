"""Vectors and embeddings of entities: from a model in training, its frozen layers, or from disk.

A vector is the output of the entities' encoder, an embedding the output of the layer on top of it.

Those on disk are memory-mapped, and each is computed when it is first requested. A folder belongs
to one encoder and one form of texts, by the hash in its name. Beside the vector of an entity stands
the hash of its text, so that only vectors of added or changed entities are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash
from torch import nn
from torch.nn import functional

from bsmeta.core.files import hold_write_lock, replace_atomically
from bsmeta.core.progress import report_each, report_progress
from bsmeta.models.pretrained import choose_device
from bsmeta.models.shapes import read_hidden_size
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.model import (
    TOKENS_AT_ONCE,
    BiEncoder,
    build_frozen_model,
    run_model,
)
from bsmeta.tasks.disambiguation.texts import EntityTexts, build_attention_mask
from bsmeta.training.processes import Processes
from bsmeta.training.task import run_on_all_ranks, sort_into_batches, sort_into_budgeted_batches

Inputs = Mapping[str, torch.Tensor]
Embeddings = Callable[[np.ndarray], np.ndarray]
"""Looks up the embeddings of entities, float32 [entities, size], by their numbers."""

VECTORS_AT_ONCE = 8192
_VECTORS_FILE = "vectors.f{bits}"
_HASHES_FILE = "texts.u64"
_COMPUTED_AT_ONCE = 4096  # vectors between two writes to disk
QUERIES_AT_ONCE = 1024  # entities whose neighbors are searched at a time
_BLOCK = 1 << 16  # entities that the queries are compared with at a time
_NO_COSINE = -2.0  # lower than any cosine


def _hash_settings(*settings: Any) -> str:
    """Hashes the settings that determine some vectors (JSON-serializable) to a folder name."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(settings, order="sorted"))


def _hash_weights(weights: Mapping[str, torch.Tensor]) -> str:
    content = xxhash.xxh3_128()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        content.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        content.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


class EntityVectors:
    """The vectors of a table's entities, in a folder that is created if it does not exist.

    Args:
        count: Number of entities, which may have grown since the folder was written.
        size: Length of a vector.
        text: Returns the text of an entity.
        encode: Computes vectors; those shorter than `size` are padded with zeros.
        dtype: The type of the numbers, as numpy writes it.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        size: int,
        text: Callable[[int], str],
        encode: Callable[[np.ndarray], Sequence[np.ndarray] | np.ndarray],
        dtype: str = "<f4",
    ) -> None:
        self._writing = partial(hold_write_lock, folder, "the vectors of entities", folder / "lock")
        name = _VECTORS_FILE.format(bits=8 * np.dtype(dtype).itemsize)
        with self._writing():
            self._vectors = _map_extended(folder / name, dtype, (count, size))
            self._hashes = _map_extended(folder / _HASHES_FILE, "<u8", (count,))

        self._text = text
        self._encode = encode
        self._is_current = np.zeros(count, bool)

    def get(self, entities: np.ndarray) -> np.ndarray:
        """Returns the vectors of entities, [entities, size], after computing the missing ones.

        If several processes need the same vectors, one computes them while the others wait.
        """
        unchecked = np.unique(entities[~self._is_current[entities]])
        if len(unchecked):
            texts = (self._text(entity).encode() for entity in report_each(unchecked.tolist()))
            # 0 means that there is no vector.
            hashes = np.fromiter((xxhash.xxh3_64_intdigest(text) or 1 for text in texts), np.uint64)
            if (self._hashes[unchecked] != hashes).any():
                with self._writing():
                    self._compute_missing(unchecked, hashes)
            self._is_current[unchecked] = True

        return np.asarray(self._vectors[entities])

    def _compute_missing(self, entities: np.ndarray, hashes: np.ndarray) -> None:
        # Compared again, because another process may have computed some in the meantime.
        is_missing = self._hashes[entities] != hashes
        entities = entities[is_missing]
        hashes = hashes[is_missing]

        for start in range(0, len(entities), _COMPUTED_AT_ONCE):
            part = slice(start, start + _COMPUTED_AT_ONCE)
            _write_rows(self._vectors, entities[part], self._encode(entities[part]))
            _write_rows(self._hashes, entities[part], hashes[part])


def _write_rows(
    array: np.memmap, rows: np.ndarray, values: Sequence[np.ndarray] | np.ndarray
) -> None:
    """Writes rows of a mapped array, or their first values, to its file.

    It writes to the file and not to the mapping, where a full disk would end the process by a
    signal.
    """
    with Path(str(array.filename)).open("r+b") as file:
        for row, value in zip(rows.tolist(), values, strict=True):
            file.seek(row * array.strides[0])
            file.write(value.tobytes())


def _map_extended(path: Path, dtype: str, shape: tuple[int, ...]) -> np.memmap:
    """Maps the array in a file, which is extended with zeros if it is shorter."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    with path.open("ab") as file:
        if file.tell() < size:
            file.truncate(size)
    return np.memmap(path, dtype, mode="r", shape=shape)


class EntityEncoder:
    """Encodes the texts of entities with a model (wrapped or not, in evaluation mode).

    With the precision `bf16`, it computes in bfloat16, with any other in float32.
    """

    def __init__(
        self, model: nn.Module, texts: EntityTexts, device: torch.device, precision: str
    ) -> None:
        self._model = model
        self._texts = texts
        self._device = device
        self._precision = precision

    def batch_entities(self, entities: np.ndarray, is_masked: bool = False) -> list[np.ndarray]:
        """Groups entities with texts of similar length into batches of a bounded size.

        Returns:
            The indices of the entities of each batch.
        """
        lengths = [len(self._texts.tokens(int(entity), is_masked)) for entity in entities]
        return sort_into_budgeted_batches(lengths, TOKENS_AT_ONCE)

    def build_inputs(self, entities: np.ndarray, is_masked: bool = False) -> Inputs:
        """Builds the inputs of the model for entities, all with their titles or all without."""
        tensors, _ = self._texts.build_tensors(entities, np.full(len(entities), is_masked))
        return tensors

    def compute_embeddings(self, inputs: Inputs) -> np.ndarray:
        """Computes embeddings, float32 [entities, size], from any inputs of the model for them."""
        return self._compute("entities", inputs)

    def compute_vectors(self, inputs: Inputs) -> np.ndarray:
        """Computes vectors, float32 [entities, hidden], from the inputs of `build_inputs`."""
        return self._compute("entity_vectors", inputs)

    def _compute(self, output_name: str, inputs: Inputs) -> np.ndarray:
        outputs = run_model(self._model, inputs, self._device, self._precision)
        output: torch.Tensor = outputs[output_name]
        return output.float().cpu().numpy()

    def compute_states(self, inputs: Inputs) -> list[np.ndarray]:
        """Computes the states of tokens before the trained layers.

        Returns:
            For each entity, float16 [tokens x hidden].
        """
        assert isinstance(self._model, BiEncoder)
        ids = inputs["entity_ids"].to(self._device)
        mask = inputs["entity_mask"].to(self._device)
        in_bf16 = self._precision == "bf16"
        with torch.no_grad(), torch.autocast(ids.device.type, torch.bfloat16, enabled=in_bf16):
            padded = self._model.compute_entity_states(ids, mask).half().cpu().numpy()

        lengths = mask.sum(1).tolist()
        return [states[:length].reshape(-1) for states, length in zip(padded, lengths, strict=True)]

    def encode(
        self,
        entities: np.ndarray,
        run: Callable[[Inputs], Sequence[np.ndarray] | np.ndarray],
        is_masked: bool = False,
    ) -> list[np.ndarray]:
        """Runs one of the `compute_` methods on any number of entities, batch by batch."""
        outputs: list[np.ndarray] = [np.empty(0)] * len(entities)
        for batch in self.batch_entities(entities, is_masked):
            values = run(self.build_inputs(entities[batch], is_masked))
            for index, value in zip(batch, values, strict=True):
                outputs[index] = value
            report_progress()
        return outputs


class FrozenVectors:
    """The vectors of an entities' encoder that is not trained, in a folder that all runs share."""

    def __init__(self, config: DisambiguationConfig, texts: EntityTexts, folder: Path) -> None:
        # Loading draws random numbers for weights that it then replaces; the run must not change by
        # them.
        with torch.random.fork_rng(devices=[]):
            model = build_frozen_model(config, texts.tokenizer).eval()
        weights = _hash_weights(model.text_encoder.state_dict())
        self._settings = (weights, config.pooling, config.mixed_precision, texts.settings)

        device = choose_device()
        self._encoder = EntityEncoder(model.to(device), texts, device, config.mixed_precision)
        self._hidden_size = read_hidden_size(model.text_encoder.config)
        self.texts = texts
        self._trained_layers = config.train_entity_layers
        self._with_title = self._open_outputs(folder, is_masked=False)
        self._without_title = self._open_outputs(folder, is_masked=True)

    def _open_outputs(self, folder: Path, is_masked: bool) -> EntityVectors:
        """Opens the outputs for whole texts, or for texts with a masked title."""
        encode = partial(
            self._encoder.encode, run=self._encoder.compute_vectors, is_masked=is_masked
        )
        folder = folder / self.hash_settings("frozen", is_masked)
        return EntityVectors(folder, self.texts.count, self._hidden_size, self.texts.text, encode)

    def build_inputs(self, entities: np.ndarray, is_masked: np.ndarray) -> Inputs:
        """Builds the inputs of `BiEncoder.forward` for entities.

        Args:
            is_masked: bool [entities]: whose titles are masked.
        """
        return {"entity_vectors": torch.from_numpy(self.get(entities, is_masked))}

    def batch_entities(self, entities: np.ndarray) -> list[np.ndarray]:
        """Groups entities into batches of a bounded size; returns the indices of each batch."""
        return sort_into_batches(np.zeros(len(entities)), VECTORS_AT_ONCE)

    def get(self, entities: np.ndarray, is_masked: np.ndarray) -> np.ndarray:
        """Returns the outputs for entities, [entities, size]; see `build_inputs`."""
        with_title = self._with_title.get(entities[~is_masked])
        if not is_masked.any():
            return with_title

        outputs = np.empty((len(entities), with_title.shape[1]), with_title.dtype)
        outputs[~is_masked] = with_title
        outputs[is_masked] = self._without_title.get(entities[is_masked])
        return outputs

    def hash_settings(self, *settings: Any) -> str:
        """Returns a name for a file or folder that depends on these vectors and some settings."""
        return _hash_settings(*self._settings, *settings)

    def fill(self, entities: np.ndarray, *, masked: bool) -> None:
        """Computes the missing outputs for entities; if `masked`, also those without a title."""
        stores = [self._with_title, self._without_title] if masked else [self._with_title]
        for store in stores:
            for start in range(0, len(entities), VECTORS_AT_ONCE):
                store.get(entities[start : start + VECTORS_AT_ONCE])


class FrozenStates(FrozenVectors):
    """The states of tokens before the layers that are trained, in half precision."""

    def _open_outputs(self, folder: Path, is_masked: bool) -> EntityVectors:
        folder = folder / self.hash_settings("states", self._trained_layers, is_masked)
        size = self.texts.max_length * self._hidden_size
        encode = partial(
            self._encoder.encode, run=self._encoder.compute_states, is_masked=is_masked
        )
        return EntityVectors(folder, self.texts.count, size, self.texts.text, encode, "<f2")

    def build_inputs(self, entities: np.ndarray, is_masked: np.ndarray) -> Inputs:
        mask = build_attention_mask(self._count_tokens(entities))
        states = self.get(entities, is_masked).reshape(len(entities), -1, self._hidden_size)
        return {
            "entity_states": torch.from_numpy(states[:, : mask.shape[1]]),
            "entity_mask": torch.from_numpy(mask),
        }

    def batch_entities(self, entities: np.ndarray) -> list[np.ndarray]:
        return sort_into_budgeted_batches(self._count_tokens(entities), TOKENS_AT_ONCE)

    def _count_tokens(self, entities: np.ndarray) -> list[int]:
        return [len(self.texts.tokens(entity)) for entity in entities.tolist()]


class Neighbors:
    """Hard negatives: the entities with the texts most similar to the text of a given entity.

    As in BLINK (Wu et al. 2020), but by the encoder before training, so that they are searched once
    and every step can be repeated exactly. They are kept in a folder.

    Args:
        entities: int64, distinct and ascending: the entities of the training mentions.
        count: Neighbors of each entity.
    """

    def __init__(
        self, vectors: FrozenVectors, entities: np.ndarray, count: int, folder: Path
    ) -> None:
        self._entities = entities
        name = vectors.hash_settings("neighbors", entities.tolist(), vectors.texts.count, count)
        file = folder / f"{name}.npy"
        with hold_write_lock(file, "the nearest entities of each entity"):
            if not file.exists():
                neighbors = _find_nearest(vectors, entities, count)
                with replace_atomically(file) as part:
                    np.save(part, neighbors)
        self._neighbors = np.load(file, mmap_mode="r")

    def look_up(self, entities: np.ndarray) -> np.ndarray:
        """Returns int64 [entities, count]; -1 for an entity that no training mention has."""
        indices = np.searchsorted(self._entities, entities).clip(max=len(self._entities) - 1)
        has_neighbors = (self._entities[indices] == entities)[:, None]
        return np.where(has_neighbors, self._neighbors[indices], -1)

    def distinct(self) -> np.ndarray:
        """Returns all neighbors as int64, each once, ascending."""
        entities = np.unique(self._neighbors)
        return entities[entities >= 0]


def _find_nearest(vectors: FrozenVectors, entities: np.ndarray, count: int) -> np.ndarray:
    """Finds the nearest entities by cosine, the nearest first, without the entity itself and NIL.

    Returns:
        int64 [entities, count]; -1 pads.
    """

    def unit_vectors(numbers: np.ndarray) -> torch.Tensor:
        outputs = vectors.get(numbers, np.zeros(len(numbers), bool))
        return functional.normalize(torch.from_numpy(outputs), dim=1)

    total = vectors.texts.count
    nearest = np.full((len(entities), count), -1, np.int64)
    # From entity 1, because entity 0 is NIL.
    blocks = [np.arange(first, min(first + _BLOCK, total)) for first in range(1, total, _BLOCK)]

    for first in range(0, len(entities), QUERIES_AT_ONCE):
        queries = entities[first : first + QUERIES_AT_ONCE]
        query_vectors = unit_vectors(queries)
        best_cosines = torch.full((len(queries), count), _NO_COSINE)
        best_entities = torch.full((len(queries), count), -1, dtype=torch.int64)

        for block in blocks:
            cosines = query_vectors @ unit_vectors(block).T
            is_itself = torch.from_numpy(queries[:, None] == block[None, :])
            cosines[is_itself] = _NO_COSINE

            numbers = torch.from_numpy(block).expand(len(queries), -1)
            best_cosines, indices = torch.cat([best_cosines, cosines], 1).topk(count, dim=1)
            report_progress()
            best_entities = torch.cat([best_entities, numbers], 1).gather(1, indices)

        valid = torch.where(best_cosines > _NO_COSINE, best_entities, -1)
        nearest[first : first + QUERIES_AT_ONCE] = valid.numpy()
    return nearest


def compute_split_embeddings(
    entities: np.ndarray,
    encoder: EntityEncoder,
    frozen: FrozenVectors | None,
    context: Processes,
) -> Embeddings:
    """Computes the embeddings of a split's entities by a model in training, on all processes.

    Args:
        entities: Distinct and ascending, at least one.
        frozen: The outputs of the frozen layers of the entities' encoder; None without any.
    """
    if frozen is not None:
        frozen.fill(entities, masked=False)
        batches = frozen.batch_entities(entities)
    else:
        batches = encoder.batch_entities(entities)

    def embed(batch: np.ndarray) -> np.ndarray:
        batch_entities = entities[batch]
        if frozen is None:
            inputs = encoder.build_inputs(batch_entities)
        else:
            inputs = frozen.build_inputs(batch_entities, np.zeros(len(batch_entities), bool))
        return encoder.compute_embeddings(inputs)

    embeddings = np.stack(run_on_all_ranks(batches, embed, context))

    def look_up(numbers: np.ndarray) -> np.ndarray:
        indices = np.searchsorted(entities, numbers).clip(max=len(entities) - 1)
        return embeddings[indices]

    return look_up


def open_embeddings(
    model: BiEncoder, encoder: EntityEncoder, texts: EntityTexts, folder: Path
) -> EntityVectors:
    """Opens the embeddings of a trained model on disk, each computed when first requested.

    `folder` has a subfolder for each model.
    """
    name = _hash_settings("trained", _hash_weights(model.state_dict()), texts.settings)
    size = model.settings.embedding_size
    encode = partial(encoder.encode, run=encoder.compute_embeddings)
    return EntityVectors(folder / name, texts.count, size, texts.text, encode)
