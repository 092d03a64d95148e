"""The data of a run: the table of entities, the encoded sentences of each split, and what training
batches need to know about all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import DataError
from bsmeta.core.progress import reporting
from bsmeta.tasks.disambiguation.candidates import (
    DocumentCounts,
    Neighbors,
    percentiles,
    training_counts,
)
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.detection import Detector, open_detector
from bsmeta.tasks.disambiguation.embeddings import (
    Frozen,
    FrozenStates,
    FrozenVectors,
)
from bsmeta.tasks.disambiguation.encoders import most_tokens
from bsmeta.tasks.disambiguation.entities import NIL, EntityTable
from bsmeta.tasks.disambiguation.prep import Limits, Prep, open_prep
from bsmeta.tasks.disambiguation.texts import EntityTexts, Row, Surround, load_tokenizer, pad

FrozenT = TypeVar("FrozenT", bound=Frozen)
SPLITS = ("train", "dev", "test")


class Sentences:
    """The rows of a split.

    Args:
        path: The file of the sentences.
        prep: The encoded sentences.

    Attributes:
        path: The same.
        key: What the store was built from.
        slices: The names of the slices that the lines define.
    """

    def __init__(self, path: Path, prep: Prep) -> None:
        self.path = path
        self._store = prep.rows
        self.key = prep.key
        self.slices: list[str] = prep.facts["slices"]

    def __len__(self) -> int:
        return len(self._store)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64: the number of tokens of each row."""
        return np.asarray(self._column("input_ids").value_lengths().to_numpy()).astype(np.int64)

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
                    entities=pad(columns["entities"][place], -1),
                    is_gold=own["gold"].astype(bool),
                    positions=own["position"],
                    slices=[tuple(names) for names in columns["slices"][place]],
                )
            )
        return found

    def gold(self) -> list[Row]:
        """All rows with a gold mention, without their weak labels.

        Raises:
            DataError: If there is none.
        """
        rows = (_without_weak_labels(row) for row in self.read(range(len(self))))
        found = [row for row in rows if len(row.aliases)]
        if not found:
            raise DataError(f"{self.path} has no gold mention to score, only weak labels")
        return found

    def aliases(self) -> np.ndarray:
        """int64: the aliases of all mentions."""
        return self._flat("alias")

    def meanings(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int64: each entity of each mention, with the mention's document and alias."""
        counts = self._column("entities").flatten().value_lengths().to_numpy()
        of_rows = self._column("alias").value_lengths().to_numpy()
        documents = np.repeat(self._column("document").to_numpy().astype(np.int64), of_rows)
        entities = self._column("entities").flatten().flatten().to_numpy().astype(np.int64)
        return entities, np.repeat(documents, counts), np.repeat(self.aliases(), counts)

    def _flat(self, name: str) -> np.ndarray:
        values = self._column(name).flatten().to_numpy(zero_copy_only=False)
        return np.asarray(values).astype(np.int64)

    def _column(self, name: str) -> Any:
        return self._store.with_format("arrow")[:][name].combine_chunks()


_ARRAYS = ("input_ids", "start", "end", "alias", "gold", "position")


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

    Attributes:
        config: The same.
    """

    def __init__(self, config: DisambiguationConfig) -> None:
        self.config = config
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(
            config.tokenizer_name or config.model_name
        )
        self._splits: dict[str, Sentences] = {}

    @cached_property
    def table(self) -> EntityTable:
        """The entities."""
        return EntityTable.open(Path(str(self.config.data_config.entity_table)))

    @cached_property
    def texts(self) -> EntityTexts:
        """The texts of the entities."""
        data = self.config.data_config
        return EntityTexts(self.table, self.tokenizer, data.entity_text, data.max_entity_length)

    @property
    def prep_dir(self) -> Path:
        """The folder of the encoded sentences."""
        data = self.config.data_config
        if data.prep_dir is not None:
            return Path(data.prep_dir)
        return Path(str(data.train_file)).parent / "prep"

    @property
    def vectors_dir(self) -> Path:
        """The folder of the vectors of entities."""
        data = self.config.data_config
        if data.vectors_dir is not None:
            return Path(data.vectors_dir)
        table = Path(str(data.entity_table))
        return table.with_name(f"{table.name}.vectors")

    @property
    def limits(self) -> Limits:
        """What a row may hold."""
        data = self.config.data_config
        most = most_tokens(self.config, self.tokenizer)
        room = most - Surround(self.tokenizer).count
        return Limits(data.max_mentions, data.max_words, room)

    def split(self, name: str) -> Sentences | None:
        """The sentences of a split of `SPLITS`; None if there is no file of it."""
        path = getattr(self.config.data_config, f"{name}_file")
        if path is None:
            return None
        if name not in self._splits:
            self._splits[name] = self._sentences(Path(path), self.prep_dir / name)
        return self._splits[name]

    def other(self, path: Path) -> Sentences:
        """The sentences of another file; their store is found by the content of the file."""
        return self._sentences(path, self.prep_dir / "other", by_content=True)

    def _sentences(self, path: Path, folder: Path, *, by_content: bool = False) -> Sentences:
        data = self.config.data_config
        prep = open_prep(
            path, self.table, self.tokenizer, folder, self.limits, by_content=by_content,
            workers=data.prep_workers, overwrite=data.overwrite_prep,
        )  # fmt: skip
        return Sentences(path, prep)

    @cached_property
    def train(self) -> Sentences:
        """The training sentences."""
        found = self.split("train")
        assert found is not None  # the configuration was checked
        return found

    @cached_property
    def counts(self) -> np.ndarray:
        """int64 [entities]: how many training mentions have each entity."""
        return training_counts(self.train.meanings()[0], len(self.table))

    @cached_property
    def popularity(self) -> np.ndarray:
        """float64 [entities], from 0 to 1."""
        return percentiles(self.counts)

    @cached_property
    def document_counts(self) -> DocumentCounts | None:
        """How often each document uses an alias for an entity, if the prior leaves it out."""
        if self.config.log_prior != "leave_one_out":
            return None
        entities, documents, aliases = self.train.meanings()
        return DocumentCounts(documents, aliases, entities)

    def candidates(self, sentences: Sentences) -> np.ndarray:
        """int64: the distinct candidates of all mentions of a split, ascending."""
        aliases = np.unique(sentences.aliases())
        own = aliases[aliases >= 0].tolist()
        lists = [self.table.candidates(alias)[0] for alias in reporting(own)]
        return np.unique(np.concatenate([np.empty(0, np.int64), *lists]).astype(np.int64))

    @cached_property
    def compared(self) -> np.ndarray:
        """int64: the distinct entities that training mentions are compared with, ascending."""
        found = [np.array([NIL]), self.candidates(self.train)]
        if self.neighbors is not None:
            found.append(self.neighbors.distinct())
        return np.unique(np.concatenate(found))

    @property
    def has_masked(self) -> bool:
        """Whether the training masks titles."""
        return self.config.data_config.mask_most_frequent > 0

    def fill_frozen(self) -> None:
        """Computes what frozen layers make of the texts of `compared`."""
        if self.frozen is not None:
            self.frozen.fill(self.compared, masked=self.has_masked)

    @cached_property
    def frozen(self) -> Frozen | None:
        """What the frozen layers of the entities' encoder make of texts, if there are any."""
        if self.config.train_entity_layers is None:
            return None
        if self.config.train_entity_layers == 0:
            return self.vectors_before_training
        return self._before_training(FrozenStates)

    @cached_property
    def vectors_before_training(self) -> FrozenVectors:
        """The vectors of the entities' encoder before it is trained."""
        return self._before_training(FrozenVectors)

    def _before_training(self, kind: type[FrozenT]) -> FrozenT:
        return kind(self.config, self.texts, self.tokenizer, len(self.table), self.vectors_dir)

    @cached_property
    def neighbors(self) -> Neighbors | None:
        """The hard negatives of each entity of the training data, if they are wanted."""
        if self.config.hard_negatives == 0:
            return None
        entities = np.flatnonzero(self.counts)
        return Neighbors(
            self.vectors_before_training,
            entities[entities != NIL],
            len(self.table),
            self.config.hard_negatives,
            self.vectors_dir,
        )

    @cached_property
    def detector(self) -> Detector:
        """Finds mentions in texts."""
        return open_detector(self.config.data_config, self.table, self.prep_dir / "forms")
