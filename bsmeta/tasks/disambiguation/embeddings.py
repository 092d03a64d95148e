"""Vectors and embeddings of entities: of a model in training, of frozen layers, or cached on disk.

A vector is the output of the entity encoder, an embedding the output of the layer on top of it.

Cached ones are memory-mapped, and each is computed on first request. The name of a folder has a
hash of the encoder and of the form of the texts. Beside each vector, the hash of the entity's text
is stored, so that only vectors of added or changed entities are computed again.
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

from bsmeta.core.errors import DataError
from bsmeta.core.files import hold_write_lock, replace_atomically
from bsmeta.core.progress import report_each, report_progress, show_progress_bar
from bsmeta.core.rank import read_rank
from bsmeta.models.pretrained import choose_device
from bsmeta.models.shapes import read_hidden_size
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.model import (
    MAX_BATCH_TOKENS,
    BiEncoder,
    build_frozen_model,
    run_model,
)
from bsmeta.tasks.disambiguation.texts import EntityTexts, build_attention_mask
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import run_on_all_ranks, sort_into_batches, sort_into_budgeted_batches

Inputs = Mapping[str, torch.Tensor]
Embeddings = Callable[[np.ndarray], np.ndarray]
"""A function that returns the embeddings of entities, float32 [entities, size]."""

VECTOR_BATCH_SIZE = 8192
"""Number of vectors that are read or embedded together."""
_VECTORS_FILE = "vectors.f{bits}"
_HASHES_FILE = "texts.u64"
_WRITE_BATCH_SIZE = 4096  # vectors that are computed and written together
QUERY_BATCH_SIZE = 1024
"""Number of entities whose neighbors are searched together."""
_BLOCK_ENTITIES = 1 << 16  # entities that queries are compared with at a time
_NO_COSINE = -2.0  # lower than any cosine


def _hash_settings(*settings: Any) -> str:
    """Hashes JSON-serializable settings that determine vectors, for the name of a folder."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(settings, order="sorted"))


def _hash_weights(weights: Mapping[str, torch.Tensor]) -> str:
    """Hashes the names, types, shapes and values of weights."""
    content = xxhash.xxh3_128()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        content.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        content.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


class EntityVectors:
    """A cache of the vectors of a table's entities in a folder.

    Args:
        folder: Created if it does not exist.
        count: Number of entities, which may have grown since the folder was written.
        size: Length of a vector.
        text: Returns the text of an entity.
        encode: Computes the vectors of entities; shorter ones are padded with zeros.
        dtype: The numpy type of the values.
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
        self._is_current = np.zeros(count, bool)  # whether the vector is known to fit the text

    def get(self, entities: np.ndarray) -> np.ndarray:
        """Returns the vectors of entities, [entities, size]; computes missing ones first.

        If several processes need the same vectors, one computes them while the others wait.

        Raises:
            DataError: If a vector has values that are not finite.
        """
        unchecked = np.unique(entities[~self._is_current[entities]])
        if len(unchecked):
            texts = (self._text(entity).encode() for entity in report_each(unchecked.tolist()))
            # The hash 0 marks entities without a vector.
            hashes = np.fromiter((xxhash.xxh3_64_intdigest(text) or 1 for text in texts), np.uint64)
            if (self._hashes[unchecked] != hashes).any():
                with self._writing():
                    self._compute_missing(unchecked, hashes)
            self._is_current[unchecked] = True

        vectors = np.asarray(self._vectors[entities])
        self._check_values(entities, vectors)
        return vectors

    def _check_values(self, entities: np.ndarray, vectors: np.ndarray) -> None:
        """Refuses vectors with NaN or infinity, which would silently remove predictions.

        Raises:
            DataError: If there are any.
        """
        is_finite = np.isfinite(vectors).all(axis=1)
        if not is_finite.all():
            path = Path(str(self._vectors.filename))
            raise DataError(
                f"{path}: the vector of entity {entities[~is_finite][0]} has values that are not "
                "finite: the file is damaged, or the model computes such values; delete the "
                f"folder {path.parent}, and the vectors are computed again"
            )

    def _compute_missing(self, entities: np.ndarray, hashes: np.ndarray) -> None:
        """Computes and writes vectors whose text hash on disk differs; requires the lock."""
        # Compared again, because another process may have computed some in the meantime.
        is_missing = self._hashes[entities] != hashes
        entities = entities[is_missing]
        hashes = hashes[is_missing]

        for start in range(0, len(entities), _WRITE_BATCH_SIZE):
            batch = slice(start, start + _WRITE_BATCH_SIZE)
            # The hashes last: they mark complete vectors.
            _write_rows(self._vectors, entities[batch], self._encode(entities[batch]))
            _write_rows(self._hashes, entities[batch], hashes[batch])


def _write_rows(
    array: np.memmap, rows: np.ndarray, values: Sequence[np.ndarray] | np.ndarray
) -> None:
    """Writes values to the beginnings of rows in the file of a mapped array.

    Writing to the mapping instead would kill the process by a signal if the disk is full.
    """
    with Path(str(array.filename)).open("r+b") as file:
        for row, value in zip(rows.tolist(), values, strict=True):
            file.seek(row * array.strides[0])
            file.write(value.tobytes())


def _map_extended(path: Path, dtype: str, shape: tuple[int, ...]) -> np.memmap:
    """Maps an array read-only; extends its file with zeros if it is shorter."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    with path.open("ab") as file:
        if file.tell() < size:
            file.truncate(size)
    return np.memmap(path, dtype, mode="r", shape=shape)


class EntityEncoder:
    """Encodes the texts of entities with a model.

    Args:
        model: A `BiEncoder` in evaluation mode, which may be wrapped by an engine.
        precision: `bf16` computes in bfloat16, all other values in float32.
    """

    def __init__(
        self, model: nn.Module, texts: EntityTexts, device: torch.device, precision: str
    ) -> None:
        self._model = model
        self._texts = texts
        self._device = device
        self._precision = precision

    def batch_entities(self, entities: np.ndarray, is_masked: bool = False) -> list[np.ndarray]:
        """Groups entities with texts of similar length into batches of up to `MAX_BATCH_TOKENS`.

        Args:
            is_masked: Whether the titles are masked.

        Returns:
            The indices of the entities of each batch.
        """
        lengths = [len(self._texts.tokens(int(entity), is_masked)) for entity in entities]
        return sort_into_budgeted_batches(lengths, MAX_BATCH_TOKENS)

    def build_inputs(self, entities: np.ndarray, is_masked: bool = False) -> Inputs:
        """Builds the inputs of the model for entities, with or without masked titles."""
        tensors, _ = self._texts.build_tensors(entities, np.full(len(entities), is_masked))
        return tensors

    def compute_embeddings(self, inputs: Inputs) -> np.ndarray:
        """Computes embeddings, float32 [entities, size], from inputs for entities in any form."""
        return self._compute("entities", inputs)

    def compute_vectors(self, inputs: Inputs) -> np.ndarray:
        """Computes vectors, float32 [entities, hidden], from the inputs of `build_inputs`."""
        return self._compute("entity_vectors", inputs)

    def _compute(self, output_name: str, inputs: Inputs) -> np.ndarray:
        outputs = run_model(self._model, inputs, self._device, self._precision)
        output: torch.Tensor = outputs[output_name]
        return output.float().cpu().numpy()

    def compute_states(self, inputs: Inputs) -> list[np.ndarray]:
        """Computes the token states before the trained layers, from the inputs of `build_inputs`.

        Returns:
            float16 [tokens * hidden] for each entity.
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
        """Runs a method of this encoder, such as `compute_vectors`, on entities in batches."""
        outputs: list[np.ndarray] = [np.empty(0)] * len(entities)
        for batch in self.batch_entities(entities, is_masked):
            values = run(self.build_inputs(entities[batch], is_masked))
            for index, value in zip(batch, values, strict=True):
                outputs[index] = value
            report_progress()
        return outputs


class FrozenVectors:
    """The vectors of a frozen entity encoder, in a folder that all runs share."""

    def __init__(self, config: DisambiguationConfig, texts: EntityTexts, folder: Path) -> None:
        # Loading draws random numbers for weights that it then replaces; they must not affect the
        # run.
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
        """Opens the cache of outputs for texts with or without a masked title."""
        encode = partial(
            self._encoder.encode, run=self._encoder.compute_vectors, is_masked=is_masked
        )
        folder = folder / self.hash_settings("frozen", is_masked)
        return EntityVectors(
            folder, len(self.texts.table), self._hidden_size, self.texts.text, encode
        )

    def build_inputs(self, entities: np.ndarray, is_masked: np.ndarray) -> Inputs:
        """Builds the inputs of `BiEncoder.forward` for entities.

        Args:
            is_masked: bool [entities], whether the title is masked.
        """
        return {"entity_vectors": torch.from_numpy(self.get(entities, is_masked))}

    def batch_entities(self, entities: np.ndarray) -> list[np.ndarray]:
        """Groups entities into batches of a bounded size; returns the indices of each batch."""
        return sort_into_batches(np.zeros(len(entities)), VECTOR_BATCH_SIZE)

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
        """Returns a name for a file or folder that depends on these vectors and on settings."""
        return _hash_settings(*self._settings, *settings)

    def fill(self, entities: np.ndarray, *, masked: bool) -> None:
        """Computes the missing outputs for entities.

        Args:
            masked: Whether outputs for masked titles are needed as well.
        """
        stores = [self._with_title, self._without_title] if masked else [self._with_title]
        total = len(stores) * len(entities)
        done = 0
        with show_progress_bar("encoding entities", total, shown=read_rank() == 0) as show:
            for store in stores:
                for start in range(0, len(entities), VECTOR_BATCH_SIZE):
                    batch = entities[start : start + VECTOR_BATCH_SIZE]
                    store.get(batch)
                    done += len(batch)
                    show(done)


class FrozenStates(FrozenVectors):
    """The token states before the trained layers of an entity encoder, in half precision."""

    def _open_outputs(self, folder: Path, is_masked: bool) -> EntityVectors:
        folder = folder / self.hash_settings("states", self._trained_layers, is_masked)
        size = self.texts.max_length * self._hidden_size
        encode = partial(
            self._encoder.encode, run=self._encoder.compute_states, is_masked=is_masked
        )
        return EntityVectors(folder, len(self.texts.table), size, self.texts.text, encode, "<f2")

    def build_inputs(self, entities: np.ndarray, is_masked: np.ndarray) -> Inputs:
        mask = build_attention_mask(self._count_tokens(entities))
        states = self.get(entities, is_masked).reshape(len(entities), -1, self._hidden_size)
        return {
            "entity_states": torch.from_numpy(states[:, : mask.shape[1]]),
            "entity_mask": torch.from_numpy(mask),
        }

    def batch_entities(self, entities: np.ndarray) -> list[np.ndarray]:
        return sort_into_budgeted_batches(self._count_tokens(entities), MAX_BATCH_TOKENS)

    def _count_tokens(self, entities: np.ndarray) -> list[int]:
        return [len(self.texts.tokens(entity)) for entity in entities.tolist()]


class Neighbors:
    """Hard negatives: for each entity, the entities with the most similar texts.

    As in BLINK (Wu et al. 2020), but by the encoder before training, so that they are searched only
    once, and training is reproducible. They are cached in a folder.

    Args:
        entities: int64, distinct and ascending: the entities of the training mentions.
        count: Number of neighbors of each entity.
    """

    def __init__(
        self, vectors: FrozenVectors, entities: np.ndarray, count: int, folder: Path
    ) -> None:
        self._entities = entities
        # An edit of the table may change any text, and which entities there are.
        table = vectors.texts.table
        name = vectors.hash_settings("neighbors", entities.tolist(), table.fingerprint, count)
        file = folder / f"{name}.npy"
        with hold_write_lock(file, "the nearest entities of each entity"):
            if not file.exists():
                neighbors = _find_nearest(vectors, entities, count)
                with replace_atomically(file) as part:
                    np.save(part, neighbors)
        self._neighbors = np.load(file, mmap_mode="r")

    def look_up(self, entities: np.ndarray) -> np.ndarray:
        """Returns the neighbors of entities, int64 [entities, count].

        They are -1 for entities that are not in the training data.
        """
        indices = np.searchsorted(self._entities, entities).clip(max=len(self._entities) - 1)
        has_neighbors = (self._entities[indices] == entities)[:, None]
        return np.where(has_neighbors, self._neighbors[indices], -1)

    def distinct(self) -> np.ndarray:
        """Returns all distinct neighbors as int64, ascending."""
        entities = np.unique(self._neighbors)
        return entities[entities >= 0]


def _find_nearest(vectors: FrozenVectors, entities: np.ndarray, count: int) -> np.ndarray:
    """Finds the nearest entities by cosine, the nearest first, except the entity itself and NIL.

    Returns:
        int64 [entities, count]; -1 pads.
    """

    def compute_unit_vectors(numbers: np.ndarray) -> torch.Tensor:
        outputs = vectors.get(numbers, np.zeros(len(numbers), bool))
        return functional.normalize(torch.from_numpy(outputs), dim=1)

    table = vectors.texts.table
    nearest = np.full((len(entities), count), -1, np.int64)
    all_entities = np.setdiff1d(np.arange(1, len(table)), table.removed)  # entity 0 is NIL
    blocks = [
        all_entities[first : first + _BLOCK_ENTITIES]
        for first in range(0, len(all_entities), _BLOCK_ENTITIES)
    ]

    for first in range(0, len(entities), QUERY_BATCH_SIZE):
        queries = entities[first : first + QUERY_BATCH_SIZE]
        query_vectors = compute_unit_vectors(queries)
        best_cosines = torch.full((len(queries), count), _NO_COSINE)
        best_entities = torch.full((len(queries), count), -1, dtype=torch.int64)

        for block in blocks:
            cosines = query_vectors @ compute_unit_vectors(block).T
            is_itself = torch.from_numpy(queries[:, None] == block[None, :])
            cosines[is_itself] = _NO_COSINE

            numbers = torch.from_numpy(block).expand(len(queries), -1)
            best_cosines, indices = torch.cat([best_cosines, cosines], 1).topk(count, dim=1)
            report_progress()
            best_entities = torch.cat([best_entities, numbers], 1).gather(1, indices)

        valid_entities = torch.where(best_cosines > _NO_COSINE, best_entities, -1)
        nearest[first : first + QUERY_BATCH_SIZE] = valid_entities.numpy()
    return nearest


def compute_split_embeddings(
    entities: np.ndarray,
    encoder: EntityEncoder,
    frozen: FrozenVectors | None,
    context: Processes,
) -> Embeddings:
    """Computes the embeddings of entities with a model in training, on all processes.

    Args:
        entities: int64, distinct and ascending, at least one.
        frozen: The outputs of the frozen layers of the entity encoder; None if it has none.

    Returns:
        A function that returns the embeddings of these entities.
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
    """Opens the cached embeddings of a trained model, each computed on first request.

    Args:
        folder: The folder of the caches, which has a subfolder for each model.
    """
    name = _hash_settings("trained", _hash_weights(model.state_dict()), texts.settings)
    size = model.settings.embedding_size
    encode = partial(encoder.encode, run=encoder.compute_embeddings)
    return EntityVectors(folder / name, len(texts.table), size, texts.text, encode)
