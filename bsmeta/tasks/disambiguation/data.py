"""The data of a run: the table of entities, the encoded sentences of each split, and what training
batches need to know about all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.disambiguation import DisambiguationConfig
from bsmeta.config.progress import reporting
from bsmeta.data.table.store import saved_key
from bsmeta.tasks.disambiguation.candidates import DocumentCounts, percentiles, training_counts
from bsmeta.tasks.disambiguation.chunks import Limits
from bsmeta.tasks.disambiguation.detection import Detector, open_detector
from bsmeta.tasks.disambiguation.embeddings import FrozenVectors, Neighbors
from bsmeta.tasks.disambiguation.encoders import most_tokens
from bsmeta.tasks.disambiguation.entities import NIL, EntityTable
from bsmeta.tasks.disambiguation.prep import open_prep
from bsmeta.tasks.disambiguation.texts import EntityTexts, Row, Surround, load_tokenizer

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = ("train", "dev", "test")


class Sentences:
    """The rows of a split.

    Args:
        store: The encoded sentences.
        key: What the store was built from.

    Attributes:
        key: The same.
    """

    def __init__(self, store: Dataset, key: dict[str, Any]) -> None:
        self._store = store
        self.key = key

    def __len__(self) -> int:
        return len(self._store)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64: the number of tokens of each row."""
        column = self._store.with_format("arrow")[:]["input_ids"].combine_chunks()
        return np.asarray(column.value_lengths().to_numpy()).astype(np.int64)

    def read(self, numbers: Sequence[int] | np.ndarray) -> list[Row]:
        """Some rows."""
        columns = self._store[[int(number) for number in numbers]]
        found = []
        for place, number in enumerate(numbers):
            own = {name: np.array(columns[name][place], np.int64) for name in _ARRAYS}
            found.append(
                Row(
                    number=int(number),
                    sentence=columns["sentence"][place],
                    document=columns["document"][place],
                    tokens=own["input_ids"],
                    starts=own["start"],
                    ends=own["end"],
                    aliases=own["alias"],
                    entities=own["entity"],
                    is_gold=own["gold"].astype(bool),
                    positions=own["position"],
                    slices=[tuple(names) for names in columns["slices"][place]],
                )
            )
        return found

    def gold(self) -> list[Row]:
        """All rows with a gold mention, without their weak labels."""
        rows = (_without_weak_labels(row) for row in self.read(range(len(self))))
        return [row for row in rows if len(row.aliases)]

    def mentions(self, name: str) -> np.ndarray:
        """A column of all mentions, one row after the other; `document` is that of each's row."""
        table = self._store.with_format("arrow")[:]
        if name == "document":
            counts = table["alias"].combine_chunks().value_lengths().to_numpy()
            return np.repeat(table["document"].to_numpy().astype(np.int64), counts)
        flat = table[name].combine_chunks().flatten()
        return np.asarray(flat.to_numpy(zero_copy_only=False)).astype(np.int64)


_ARRAYS = ("input_ids", "start", "end", "alias", "entity", "gold", "position")


def _without_weak_labels(row: Row) -> Row:
    if row.is_gold.all():
        return row
    names = ("starts", "ends", "aliases", "entities", "is_gold", "positions")
    kept: dict[str, Any] = {name: getattr(row, name)[row.is_gold] for name in names}
    slices = [own for own, is_gold in zip(row.slices, row.is_gold, strict=True) if is_gold]
    return replace(row, **kept, slices=slices)


class Data:
    """What a run reads.

    Args:
        config: The run.
    """

    def __init__(self, config: DisambiguationConfig) -> None:
        self._config = config
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(
            config.tokenizer_name or config.model_name
        )
        self._splits: dict[str, Sentences] = {}

    @cached_property
    def table(self) -> EntityTable:
        """The entities."""
        return EntityTable.open(Path(str(self._config.data_config.entity_table)))

    @cached_property
    def texts(self) -> EntityTexts:
        """The texts of the entities."""
        data = self._config.data_config
        return EntityTexts(self.table, self.tokenizer, data.entity_text, data.max_entity_length)

    @property
    def prep_dir(self) -> Path:
        """The folder of the encoded sentences."""
        data = self._config.data_config
        if data.prep_dir is not None:
            return Path(data.prep_dir)
        return Path(str(data.train_file)).parent / "prep"

    @property
    def vectors_dir(self) -> Path:
        """The folder of the vectors of entities."""
        data = self._config.data_config
        if data.vectors_dir is not None:
            return Path(data.vectors_dir)
        table = Path(str(data.entity_table))
        return table.with_name(f"{table.name}.vectors")

    @property
    def limits(self) -> Limits:
        """What a row may hold."""
        data = self._config.data_config
        most = most_tokens(self._config, self.tokenizer)
        room = most - Surround(self.tokenizer).count
        return Limits(data.max_mentions, data.max_words, room)

    def split(self, name: str, file: str | None = None) -> Sentences | None:
        """The sentences of a split; None if there is no file of it.

        Args:
            name: Of `SPLITS`, or that of another file.
            file: The other file.
        """
        data = self._config.data_config
        path = file if file is not None else getattr(data, f"{name}_file")
        if path is None:
            return None
        if name not in self._splits:
            folder = self.prep_dir / name
            prep = open_prep(
                Path(path), self.table, self.tokenizer, folder, self.limits, data.prep_workers
            )
            self._splits[name] = Sentences(prep.rows, saved_key(folder))
        return self._splits[name]

    @cached_property
    def train(self) -> Sentences:
        """The training sentences."""
        found = self.split("train")
        assert found is not None  # the configuration was checked
        return found

    @cached_property
    def counts(self) -> np.ndarray:
        """int64 [entities]: how many training mentions have each entity."""
        return training_counts(self.train.mentions("entity"), len(self.table))

    @cached_property
    def popularity(self) -> np.ndarray:
        """float64 [entities], from 0 to 1."""
        return percentiles(self.counts)

    @cached_property
    def document_counts(self) -> DocumentCounts | None:
        """How often each document uses an alias for an entity, if the prior leaves it out."""
        if self._config.log_prior != "leave_one_out":
            return None
        columns = [self.train.mentions(name) for name in ("document", "alias", "entity")]
        return DocumentCounts(*columns)

    def candidates(self, sentences: Sentences) -> np.ndarray:
        """int64: the distinct candidates of all mentions of a split, ascending."""
        aliases = np.unique(sentences.mentions("alias"))
        own = aliases[aliases >= 0].tolist()
        lists = [self.table.candidates(alias)[0] for alias in reporting(own)]
        return np.unique(np.concatenate([np.empty(0, np.int64), *lists]).astype(np.int64))

    def fill_frozen(self) -> None:
        """Computes the vectors of the training candidates, if their encoder is not trained."""
        if self.frozen is not None:
            is_masked = self._config.data_config.mask_most_frequent > 0
            self.frozen.fill(self.candidates(self.train), masked=is_masked)

    @cached_property
    def frozen(self) -> FrozenVectors | None:
        """The vectors of the entities' encoder, if it is not trained."""
        return None if self._config.train_entity_encoder else self.vectors_before_training

    @cached_property
    def vectors_before_training(self) -> FrozenVectors:
        """The vectors of the entities' encoder before it is trained."""
        return FrozenVectors(
            self._config, self.texts, self.tokenizer, len(self.table), self.vectors_dir
        )

    @cached_property
    def neighbors(self) -> Neighbors | None:
        """The hard negatives of each entity of the training data, if they are wanted."""
        if self._config.hard_negatives == 0:
            return None
        entities = np.flatnonzero(self.counts)
        return Neighbors(
            self.vectors_before_training,
            entities[entities != NIL],
            len(self.table),
            self._config.hard_negatives,
            self.vectors_dir,
        )

    @cached_property
    def detector(self) -> Detector:
        """Finds mentions in texts."""
        return open_detector(self._config.data_config, self.table, self.prep_dir / "forms")


def prepare(config: DisambiguationConfig) -> None:
    """Encodes the sentences of all splits, and what else is computed once for the training."""
    data = Data(config)
    for name in SPLITS:
        data.split(name)
    data.fill_frozen()
    data.neighbors  # noqa: B018 - computed when it is first read
