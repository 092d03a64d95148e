"""The vectors and embeddings of entities: by a model in training, its frozen layers, from disk.

Vectors on disk are computed once: memory-mapped, filled as they are asked for. A folder belongs to
one encoder and one form of texts, by the hash in its name. Beside the vector of an entity stands
the hash of its text: one that was added or changed is computed, the others stay.
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

from bsmeta.core.files import replacing, writing
from bsmeta.core.progress import report_progress, reporting
from bsmeta.models.pretrained import default_device
from bsmeta.models.shapes import hidden_size_of
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.model import TOKENS_AT_ONCE, BiEncoder, frozen_model, run_model
from bsmeta.tasks.disambiguation.texts import EntityTexts, mask_of
from bsmeta.training.processes import Processes
from bsmeta.training.task import batches_of, batches_within, spread

Inputs = Mapping[str, torch.Tensor]
Embeddings = Callable[[np.ndarray], np.ndarray]
"""The embeddings of entities, float32 [entities, size], from their numbers."""

VECTORS_AT_ONCE = 8192
_VECTORS, _HASHES = "vectors.f{bits}", "texts.u64"
_AT_ONCE = 4096
QUERIES_AT_ONCE, _BLOCK = 1024, 1 << 16  # entities that are compared at a time, and with how many


def _folder_name(*parts: Any) -> str:
    """The name of a folder of vectors: a hash of what determines them (JSON-serializable)."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))


def _weights_hash(weights: Mapping[str, torch.Tensor]) -> str:
    content = xxhash.xxh3_128()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        content.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        content.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


class EntityVectors:
    """The vectors of a table's entities, in a folder, which is created if it does not exist.

    There are `count` entities, whose number may have grown. `encode` computes vectors of `size`
    numbers; a shorter one is followed by zeros.
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
        self._writing = partial(writing, folder, "the vectors of entities", folder / "lock")
        name = _VECTORS.format(bits=8 * np.dtype(dtype).itemsize)
        with self._writing():
            self._vectors = _grown(folder / name, dtype, (count, size))
            self._hashes = _grown(folder / _HASHES, "<u8", (count,))
        self._text = text
        self._encode = encode
        self._is_current = np.zeros(count, bool)

    def get(self, entities: np.ndarray) -> np.ndarray:
        """The vectors of entities, [entities, size]; the missing ones are computed.

        Of several processes that lack some, one computes them while the others wait.
        """
        asked = np.unique(entities[~self._is_current[entities]])
        if len(asked):
            texts = (self._text(entity).encode() for entity in reporting(asked.tolist()))
            # 0 means that there is no vector.
            hashes = np.fromiter((xxhash.xxh3_64_intdigest(text) or 1 for text in texts), np.uint64)
            if (self._hashes[asked] != hashes).any():
                with self._writing():
                    self._compute(asked, hashes)
            self._is_current[asked] = True
        return np.asarray(self._vectors[entities])

    def _compute(self, asked: np.ndarray, hashes: np.ndarray) -> None:
        is_missing = self._hashes[asked] != hashes  # another process may have been first
        asked, hashes = asked[is_missing], hashes[is_missing]
        for start in range(0, len(asked), _AT_ONCE):
            chosen = slice(start, start + _AT_ONCE)
            _write(self._vectors, asked[chosen], self._encode(asked[chosen]))
            _write(self._hashes, asked[chosen], hashes[chosen])


def _write(array: np.memmap, rows: np.ndarray, values: Sequence[np.ndarray] | np.ndarray) -> None:
    """Writes rows of an array, or their first values, into its file.

    A file is written, not its mapping: on a full disk, that would end the process by a signal.
    """
    with Path(str(array.filename)).open("r+b") as file:
        for row, value in zip(rows.tolist(), values, strict=True):
            file.seek(row * array.strides[0])
            file.write(value.tobytes())


def _grown(path: Path, dtype: str, shape: tuple[int, ...]) -> np.memmap:
    """The array in a file, which is extended with zeros if it is shorter."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    with path.open("ab") as file:
        if file.tell() < size:
            file.truncate(size)
    return np.memmap(path, dtype, mode="r", shape=shape)


class EntityEncoder:
    """Encodes the texts of entities with a model (wrapped or not, in evaluation mode).

    The precision `bf16` computes in it; any other in float32.
    """

    def __init__(
        self, model: nn.Module, texts: EntityTexts, device: torch.device, precision: str
    ) -> None:
        self._model = model
        self._texts = texts
        self._device = device
        self._precision = precision

    def batches(self, entities: np.ndarray, is_masked: bool = False) -> list[np.ndarray]:
        """Places of entities whose texts are of similar length, in batches of a bounded size."""
        lengths = [len(self._texts.tokens(int(entity), is_masked)) for entity in entities]
        return batches_within(lengths, TOKENS_AT_ONCE)

    def inputs(self, entities: np.ndarray, is_masked: bool = False) -> Inputs:
        """The inputs of the model for entities, all with their titles or all without."""
        return self._texts.tensors(entities, np.full(len(entities), is_masked))[0]

    def embeddings(self, inputs: Inputs) -> np.ndarray:
        """Embeddings, float32 [entities, size], from any inputs of the model about entities."""
        return self._output("entities", inputs)

    def vectors(self, inputs: Inputs) -> np.ndarray:
        """What the encoder makes of texts, float32 [entities, hidden]."""
        return self._output("entity_vectors", inputs)

    def _output(self, name: str, inputs: Inputs) -> np.ndarray:
        output = run_model(self._model, inputs, self._device, self._precision)
        found: torch.Tensor = output[name]
        return found.float().cpu().numpy()

    def states(self, inputs: Inputs) -> list[np.ndarray]:
        """The states before the trained layers: float16 [tokens x hidden] of each entity."""
        assert isinstance(self._model, BiEncoder)
        ids, mask = (value.to(self._device) for value in inputs.values())
        in_bf16 = self._precision == "bf16"
        with torch.no_grad(), torch.autocast(ids.device.type, torch.bfloat16, enabled=in_bf16):
            states = self._model.entity_states(ids, mask).half().cpu().numpy()
        lengths = mask.sum(1).tolist()
        return [own[:length].reshape(-1) for own, length in zip(states, lengths, strict=True)]

    def encode(
        self,
        entities: np.ndarray,
        run: Callable[[Inputs], Sequence[np.ndarray] | np.ndarray],
        is_masked: bool = False,
    ) -> list[np.ndarray]:
        """What one of the methods above makes of any number of entities, batch by batch."""
        found: list[np.ndarray] = [np.empty(0)] * len(entities)
        for batch in self.batches(entities, is_masked):
            values = run(self.inputs(entities[batch], is_masked))
            for place, value in zip(batch, values, strict=True):
                found[place] = value
            report_progress()
        return found


class FrozenVectors:
    """What an encoder of entities that is not trained makes of their texts, on disk: vectors.

    The folder is shared by all runs.
    """

    def __init__(self, config: DisambiguationConfig, texts: EntityTexts, folder: Path) -> None:
        # Loading draws random numbers for weights that it then replaces.
        with torch.random.fork_rng(devices=[]):
            model = frozen_model(config, texts.tokenizer).eval()
        weights = _weights_hash(model.text_encoder.state_dict())
        self._about = weights, config.pooling, config.mixed_precision, texts.settings
        device = default_device()
        self._encoder = EntityEncoder(model.to(device), texts, device, config.mixed_precision)
        self._hidden_size = hidden_size_of(model.text_encoder.config)
        self.texts = texts
        self._trained_layers = config.train_entity_layers
        self._outputs = [self._opened(folder, is_masked) for is_masked in (False, True)]

    def _opened(self, folder: Path, is_masked: bool) -> EntityVectors:
        """The outputs of whole texts, or of texts with a masked title."""
        encode = partial(self._encoder.encode, run=self._encoder.vectors, is_masked=is_masked)
        folder = folder / self.name_of("frozen", is_masked)
        return EntityVectors(folder, self.texts.count, self._hidden_size, self.texts.text, encode)

    def inputs(self, entities: np.ndarray, is_masked: np.ndarray) -> Inputs:
        """The inputs of `BiEncoder.forward` for entities whose titles are masked or not."""
        return {"entity_vectors": torch.from_numpy(self(entities, is_masked))}

    def batches(self, entities: np.ndarray) -> list[np.ndarray]:
        """The places of some entities, in batches of a bounded size."""
        return batches_of(np.zeros(len(entities)), VECTORS_AT_ONCE)

    def __call__(self, entities: np.ndarray, is_masked: np.ndarray) -> np.ndarray:
        """[entities, size]; see `inputs`."""
        whole = self._outputs[0].get(entities[~is_masked])
        if not is_masked.any():
            return whole
        found = np.empty((len(entities), whole.shape[1]), whole.dtype)
        found[~is_masked] = whole
        found[is_masked] = self._outputs[1].get(entities[is_masked])
        return found

    def name_of(self, *parts: Any) -> str:
        """The name of a file or folder of what follows from these vectors and some values."""
        return _folder_name(*self._about, *parts)

    def fill(self, entities: np.ndarray, *, masked: bool) -> None:
        """Computes what is missing of some entities, also with a masked title."""
        for outputs in self._outputs[: 2 if masked else 1]:
            for start in range(0, len(entities), VECTORS_AT_ONCE):
                outputs.get(entities[start : start + VECTORS_AT_ONCE])


class FrozenStates(FrozenVectors):
    """The states of tokens before the layers that are trained, in half precision."""

    def _opened(self, folder: Path, is_masked: bool) -> EntityVectors:
        folder = folder / self.name_of("states", self._trained_layers, is_masked)
        size = self.texts.max_length * self._hidden_size
        encode = partial(self._encoder.encode, run=self._encoder.states, is_masked=is_masked)
        return EntityVectors(folder, self.texts.count, size, self.texts.text, encode, "<f2")

    def inputs(self, entities: np.ndarray, is_masked: np.ndarray) -> Inputs:
        mask = mask_of(self._lengths(entities))
        states = self(entities, is_masked).reshape(len(entities), -1, self._hidden_size)
        return {
            "entity_states": torch.from_numpy(states[:, : mask.shape[1]]),
            "entity_mask": torch.from_numpy(mask),
        }

    def batches(self, entities: np.ndarray) -> list[np.ndarray]:
        return batches_within(self._lengths(entities), TOKENS_AT_ONCE)

    def _lengths(self, entities: np.ndarray) -> list[int]:
        return [len(self.texts.tokens(entity)) for entity in entities.tolist()]


class Neighbors:
    """Hard negatives: the entities whose texts are most similar to that of a mention's entity.

    As in BLINK (Wu et al. 2020), but by the encoder before training, so that they are found once
    and every step can be repeated exactly. They are kept in a folder.

    `entities`, int64, distinct and ascending, are those of the training mentions; each has `count`
    neighbors.
    """

    def __init__(
        self, vectors: FrozenVectors, entities: np.ndarray, count: int, folder: Path
    ) -> None:
        self._entities = entities
        name = vectors.name_of("neighbors", entities.tolist(), vectors.texts.count, count)
        file = folder / f"{name}.npy"
        with writing(file, "the nearest entities of each entity"):
            if not file.exists():
                found = _nearest(vectors, entities, count)
                with replacing(file) as part:
                    np.save(part, found)
        self._found = np.load(file, mmap_mode="r")

    def __call__(self, entities: np.ndarray) -> np.ndarray:
        """int64 [entities, count]; -1 for an entity that no training mention has."""
        places = np.searchsorted(self._entities, entities).clip(max=len(self._entities) - 1)
        is_known = (self._entities[places] == entities)[:, None]
        return np.where(is_known, self._found[places], -1)

    def distinct(self) -> np.ndarray:
        """int64: all of them, each once, ascending."""
        found = np.unique(self._found)
        return found[found >= 0]


def _nearest(vectors: FrozenVectors, entities: np.ndarray, count: int) -> np.ndarray:
    """int64 [entities, count]: by falling cosine, without the entity itself and NIL; -1: none."""

    def directions(asked: np.ndarray) -> torch.Tensor:
        whole = vectors(asked, np.zeros(len(asked), bool))
        return functional.normalize(torch.from_numpy(whole), dim=1)

    found, total = np.full((len(entities), count), -1, np.int64), vectors.texts.count
    blocks = [np.arange(first, min(first + _BLOCK, total)) for first in range(1, total, _BLOCK)]
    for first in range(0, len(entities), QUERIES_AT_ONCE):
        asked = entities[first : first + QUERIES_AT_ONCE]
        own = directions(asked)
        best = torch.full((len(asked), count), -2.0)
        chosen = torch.full((len(asked), count), -1, dtype=torch.int64)
        for block in blocks:
            cosines = own @ directions(block).T
            cosines[torch.from_numpy(asked[:, None] == block[None, :])] = -2.0
            numbers = torch.from_numpy(block).expand(len(asked), -1)
            best, places = torch.cat([best, cosines], 1).topk(count, dim=1)
            report_progress()
            chosen = torch.cat([chosen, numbers], 1).gather(1, places)
        found[first : first + QUERIES_AT_ONCE] = torch.where(best > -2.0, chosen, -1).numpy()
    return found


def split_embeddings(
    entities: np.ndarray,
    encoder: EntityEncoder,
    frozen: FrozenVectors | None,
    context: Processes,
) -> Embeddings:
    """The embeddings of the entities of a split by a model in training; all processes call it.

    `entities` are distinct and ascending, at least one; `frozen` is what the frozen layers of their
    encoder make of texts, if there are any.
    """
    if frozen is not None:
        frozen.fill(entities, masked=False)
    batches = encoder.batches(entities) if frozen is None else frozen.batches(entities)

    def run(batch: np.ndarray) -> np.ndarray:
        chosen = entities[batch]
        if frozen is None:
            return encoder.embeddings(encoder.inputs(chosen))
        return encoder.embeddings(frozen.inputs(chosen, np.zeros(len(chosen), bool)))

    embeddings = np.stack(spread(batches, run, context))

    def of(asked: np.ndarray) -> np.ndarray:
        places = np.searchsorted(entities, asked).clip(max=len(entities) - 1)
        return embeddings[places]

    return of


def saved_embeddings(
    model: BiEncoder, encoder: EntityEncoder, texts: EntityTexts, folder: Path
) -> EntityVectors:
    """The embeddings of a trained model on disk, each computed when it is first asked for.

    The folder has the embeddings of all models.
    """
    name = _folder_name("trained", _weights_hash(model.state_dict()), texts.settings)
    size = model.settings.embedding_size
    encode = partial(encoder.encode, run=encoder.embeddings)
    return EntityVectors(folder / name, texts.count, size, texts.text, encode)
