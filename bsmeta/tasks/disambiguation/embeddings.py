"""The vectors and embeddings of entities: by a model in training, its frozen layers, from disk.

Vectors on disk are computed once: memory-mapped, filled as they are asked for. A folder belongs to
one encoder and one form of texts, by the hash in its name. Beside the vector of an entity stands
the hash of its text: one that was added or changed is computed, the others stay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.core.files import unwritable
from bsmeta.core.progress import exclusively, report_progress, reporting
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.encoders import build_model
from bsmeta.tasks.disambiguation.model import TOKENS_AT_ONCE, BiEncoder
from bsmeta.tasks.disambiguation.texts import EntityTexts, mask_of, pad
from bsmeta.training.task import EvaluationContext, batches_of, batches_within, spread

Encode = Callable[[np.ndarray], Sequence[np.ndarray] | np.ndarray]
"""Computes the vectors of entities from their numbers."""

_VECTORS, _HASHES = "vectors.f{bits}", "texts.u64"
_AT_ONCE = 4096
_WHAT = "the vectors of entities"
VECTORS_AT_ONCE = 8192
Embeddings = Callable[[np.ndarray], np.ndarray]
"""The embeddings of entities, float32 [entities, size], from their numbers."""


def _folder_name(*parts: Any) -> str:
    """The name of a folder of vectors: a hash of what determines them (JSON-serializable)."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, order="sorted"))


def _weights_hash(weights: Mapping[str, torch.Tensor]) -> str:
    """The xxh3 of some weights, in hexadecimal."""
    content = xxhash.xxh3_128()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        content.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        content.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


class EntityVectors:
    """The vectors of a table's entities.

    Args:
        folder: Where they are kept; created if it does not exist.
        count: The number of entities of the table, which may have grown.
        size: The size of a vector; a shorter one is followed by zeros.
        text: The text of an entity.
        encode: Computes vectors.
        dtype: The type of their numbers.

    Attributes:
        size: The size of a vector.
        dtype: The type of their numbers.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        size: int,
        text: Callable[[int], str],
        encode: Encode,
        dtype: str = "<f4",
    ) -> None:
        self._folder = folder
        self._lock = folder / "lock"
        kind = np.dtype(dtype)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with exclusively(self._lock, _WHAT):
                name = _VECTORS.format(bits=8 * kind.itemsize)
                self._vectors = _grown(folder / name, kind, (count, size))
                self._hashes = _grown(folder / _HASHES, np.dtype("<u8"), (count,))
        except OSError as error:
            raise unwritable(folder, error) from error
        self.size = size
        self.dtype = kind
        self._text = text
        self._encode = encode
        self._is_current = np.zeros(count, bool)

    def get(self, entities: np.ndarray) -> np.ndarray:
        """The vectors of entities, [entities, size]; the missing ones are computed.

        Of several processes that lack some, one computes them while the others wait.
        """
        asked = np.unique(entities[~self._is_current[entities]])
        if len(asked):
            hashes = np.fromiter(map(self._text_hash, reporting(asked.tolist())), np.uint64)
            if (self._hashes[asked] != hashes).any():
                try:
                    with exclusively(self._lock, _WHAT):
                        self._compute(asked, hashes)
                except OSError as error:
                    raise unwritable(self._folder, error) from error
            self._is_current[asked] = True
        return np.asarray(self._vectors[entities])

    def _text_hash(self, entity: int) -> int:
        # 0 means that there is no vector.
        return xxhash.xxh3_64_intdigest(self._text(entity).encode()) or 1

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


def _grown(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.memmap:
    """The array in a file, which is extended with zeros if it is shorter."""
    size = int(np.prod(shape)) * dtype.itemsize
    with path.open("ab") as file:
        if file.tell() < size:
            file.truncate(size)
    return np.memmap(path, dtype, mode="r", shape=shape)


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
        return self.run(self._inputs(entities, is_masked), embed=embed)

    def run(self, inputs: Mapping[str, torch.Tensor], *, embed: bool) -> np.ndarray:
        """Embeddings or vectors, float32 [entities, size], from inputs of the model."""
        with self._computing():
            output = self._model(**{key: value.to(self._device) for key, value in inputs.items()})
        return self.values(output.entities if embed else output.entity_vectors)

    def states(self, entities: np.ndarray, is_masked: bool) -> list[np.ndarray]:
        """The states before the trained layers: float16 [tokens x hidden] of each entity."""
        assert isinstance(self._model, BiEncoder)
        found: list[np.ndarray] = [np.empty(0)] * len(entities)
        for batch in self.batches(entities, is_masked):
            inputs = self._inputs(entities[batch], is_masked)
            ids, mask = (value.to(self._device) for value in inputs.values())
            with self._computing():
                states = self._model.entity_states(ids, mask).half().cpu().numpy()
            for place, own, length in zip(batch, states, mask.sum(1).tolist(), strict=True):
                found[place] = own[:length].reshape(-1)
            report_progress()
        return found

    def _inputs(self, entities: np.ndarray, is_masked: bool) -> dict[str, torch.Tensor]:
        tokens = [self._texts.tokens(int(entity), is_masked) for entity in entities]
        return {
            "entity_ids": torch.from_numpy(pad(tokens, self._pad)),
            "entity_mask": torch.from_numpy(mask_of([len(own) for own in tokens])),
        }

    @contextmanager
    def _computing(self) -> Iterator[None]:
        autocast = torch.autocast(self._device.type, torch.bfloat16, enabled=self._in_bf16)
        with torch.no_grad(), autocast:
            yield

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


class Frozen(ABC):
    """What the layers of the entities' encoder that are not trained make of texts, on disk.

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
            _weights_hash(encoder.state_dict()), config.pooling, config.mixed_precision,
            texts.settings,
        )  # fmt: skip
        self._model = EntityEncoder(
            model.to(device), texts, tokenizer, device, config.mixed_precision
        )
        self.hidden_size = int(encoder.config.hidden_size)
        self._texts = texts
        self._trained_layers = config.train_entity_layers
        self._outputs = [self._opened(folder, count, is_masked) for is_masked in (False, True)]

    @abstractmethod
    def _opened(self, folder: Path, count: int, is_masked: bool) -> EntityVectors:
        """The outputs of whole texts, or of texts with a masked title."""

    @abstractmethod
    def inputs(self, entities: np.ndarray, is_masked: np.ndarray) -> dict[str, torch.Tensor]:
        """The inputs of `BiEncoder.forward` for some entities.

        Args:
            entities: int64 [entities].
            is_masked: bool [entities]: whether the title is masked.
        """

    @abstractmethod
    def batches(self, entities: np.ndarray) -> list[np.ndarray]:
        """The places of some entities, in batches of a bounded size."""

    def __call__(self, entities: np.ndarray, is_masked: np.ndarray) -> np.ndarray:
        """[entities, size]; see `inputs`."""
        if not is_masked.any():
            return self._outputs[0].get(entities)
        found = np.empty((len(entities), self._outputs[0].size), self._outputs[0].dtype)
        for outputs, chosen in zip(self._outputs, (~is_masked, is_masked), strict=True):
            found[chosen] = outputs.get(entities[chosen])
        return found

    def name_of(self, *parts: Any) -> str:
        """The name of a file or folder of what follows from these vectors and some values."""
        return _folder_name(*self._about, *parts)

    def fill(self, entities: np.ndarray, *, masked: bool) -> None:
        """Computes what is missing of some entities, also with a masked title."""
        for outputs in self._outputs[: 2 if masked else 1]:
            for start in range(0, len(entities), VECTORS_AT_ONCE):
                outputs.get(entities[start : start + VECTORS_AT_ONCE])


class FrozenVectors(Frozen):
    """The vectors of entities."""

    def _opened(self, folder: Path, count: int, is_masked: bool) -> EntityVectors:
        encode = partial(self._model.encode_all, embed=False, is_masked=is_masked)
        name = self.name_of("frozen", is_masked)
        return EntityVectors(folder / name, count, self.hidden_size, self._texts.text, encode)

    def inputs(self, entities: np.ndarray, is_masked: np.ndarray) -> dict[str, torch.Tensor]:
        return {"entity_vectors": torch.from_numpy(self(entities, is_masked))}

    def batches(self, entities: np.ndarray) -> list[np.ndarray]:
        return batches_of(np.zeros(len(entities)), VECTORS_AT_ONCE)


class FrozenStates(Frozen):
    """The states of tokens before the layers that are trained, in half precision."""

    def _opened(self, folder: Path, count: int, is_masked: bool) -> EntityVectors:
        trained, most = self._trained_layers, self._texts.max_length
        return EntityVectors(
            folder / self.name_of("states", trained, is_masked),
            count,
            most * self.hidden_size,
            self._texts.text,
            partial(self._model.states, is_masked=is_masked),
            "<f2",
        )

    def inputs(self, entities: np.ndarray, is_masked: np.ndarray) -> dict[str, torch.Tensor]:
        mask = mask_of(self._lengths(entities))
        states = self(entities, is_masked).reshape(len(entities), -1, self.hidden_size)
        return {
            "entity_states": torch.from_numpy(states[:, : mask.shape[1]]),
            "entity_mask": torch.from_numpy(mask),
        }

    def batches(self, entities: np.ndarray) -> list[np.ndarray]:
        return batches_within(self._lengths(entities), TOKENS_AT_ONCE)

    def _lengths(self, entities: np.ndarray) -> list[int]:
        return [len(self._texts.tokens(entity)) for entity in entities.tolist()]


def split_embeddings(
    entities: np.ndarray,
    encoder: EntityEncoder,
    frozen: Frozen | None,
    context: EvaluationContext,
) -> Embeddings:
    """The embeddings of the entities of a split by a model in training; all processes call it.

    Args:
        entities: int64, distinct and ascending, at least one.
        encoder: Encodes texts with the model.
        frozen: What the frozen layers of the entities' encoder make of texts, if there are any.
        context: The processes.
    """
    if frozen is not None:
        frozen.fill(entities, masked=False)
    batches = encoder.batches(entities) if frozen is None else frozen.batches(entities)

    def run(batch: np.ndarray) -> np.ndarray:
        chosen = entities[batch]
        if frozen is None:
            return encoder.encode(chosen, embed=True)
        return encoder.run(frozen.inputs(chosen, np.zeros(len(chosen), bool)), embed=True)

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
    name = _folder_name("trained", _weights_hash(model.state_dict()), texts.settings)
    return EntityVectors(
        folder / name,
        count,
        model.settings.embedding_size,
        texts.text,
        lambda entities: encoder.encode_all(entities, embed=True),
    )
