"""The data of a run: the table of entities, the encoded sentences of each split, and micro-batches.

Rows of the store become tensors: the texts of mentions, what they are compared with, and what is
masked. In training, a mention is compared with the candidates of all mentions of its micro-batch
(or its own); the text of an entity is encoded once, however many mentions have it as a candidate.
Whether a mention or a title is masked follows from (seed, epoch, row), so that it depends neither
on the processes nor on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bsmeta.data import derive
from bsmeta.data.batch import MicroBatch
from bsmeta.data.text.tokenizer import special_tokens
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.embeddings import FrozenStates, FrozenVectors, Neighbors
from bsmeta.tasks.disambiguation.entities import NIL, EntityTable
from bsmeta.tasks.disambiguation.model import most_tokens
from bsmeta.tasks.disambiguation.prep import Sentences, open_prep
from bsmeta.tasks.disambiguation.texts import (
    EntityTexts,
    Limits,
    Mentions,
    MentionTexts,
    Row,
    load_tokenizer,
)

SPLITS = ("train", "dev", "test")
FLOOR = 0.1
"""Added to the score of every candidate before its share is computed, so that none is 0."""
_NONE = (np.empty(0, np.int32), np.empty(0, np.float32))

Draw = Callable[[str, int], np.ndarray]
"""Uniform random numbers of a row in an epoch: what they are for, and how many."""


@dataclass(frozen=True)
class Candidates:
    """The candidates of some mentions."""

    entities: np.ndarray  # int64 [mentions, K], the most popular first; -1: no more
    prior: np.ndarray  # float32 [mentions, K, 2]: log share of the scores, -log rank (from 1)
    floor: np.ndarray  # float32 [mentions, 2]: the same of an entity that is no candidate
    is_gold: np.ndarray  # bool [mentions, K]: whether the mention means it

    @property
    def place(self) -> np.ndarray:
        """int64 [mentions]: the place of the most popular gold entity; -1 if there is none."""
        return np.where(self.is_gold.any(1), self.is_gold.argmax(1), -1)

    def first(self, most: int) -> Candidates:
        """Limits the candidates of each mention to its entities and the most popular others."""
        if self.entities.shape[1] <= most:
            return self
        order = np.argsort(~self.is_gold, axis=1, kind="stable")[:, :most]  # gold before the others
        kept = np.sort(order, axis=1)
        rows = np.arange(len(kept))[:, None]
        return Candidates(
            self.entities[rows, kept], self.prior[rows, kept], self.floor, self.is_gold[rows, kept]
        )


class DocumentCounts:
    """How often each document uses an alias for an entity (all int64 [mentions])."""

    def __init__(self, documents: np.ndarray, aliases: np.ndarray, entities: np.ndarray) -> None:
        self._keys, self._counts = np.unique(_key(documents, aliases, entities), return_counts=True)

    def of(self, documents: np.ndarray, aliases: np.ndarray, entities: np.ndarray) -> np.ndarray:
        """int64: the counts of some triples (arrays that broadcast)."""
        keys = _key(documents, aliases, entities)
        places = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._counts[places], 0)


def _key(documents: np.ndarray, aliases: np.ndarray, entities: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each triple (multiplicative, with odd constants)."""
    mixed = documents.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ aliases.astype(np.uint64)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    return (mixed ^ entities.astype(np.uint64)) * np.uint64(0x165667B19E3779F9)


def candidates_of(
    table: EntityTable,
    aliases: Sequence[int] | np.ndarray,
    golds: np.ndarray,
    documents: np.ndarray | None = None,
    counts: DocumentCounts | None = None,
) -> Candidates:
    """The candidates of mentions.

    Args:
        aliases: The number of each mention's alias; -1 has no candidates.
        golds: int64 [mentions, most of one]: its entities; -1 for no more. (NIL is no candidate.)
        counts: If given, the mentions of the same document are subtracted from the scores, as if it
            were not part of the training data that they count.
    """
    lists = [table.candidates(int(alias)) if alias >= 0 else _NONE for alias in aliases]
    longest = max((len(found) for found, _ in lists), default=0)
    entities = np.full((len(lists), max(longest, 1)), -1, np.int64)
    scores = np.zeros(entities.shape, np.float64)
    for row, (found, own) in enumerate(lists):
        entities[row, : len(found)] = found
        scores[row, : len(found)] = own
    is_candidate = entities >= 0
    if counts is not None:
        assert documents is not None
        numbers = np.asarray(aliases)[:, None]
        scores -= counts.of(documents[:, None], numbers, entities) * is_candidate
        scores = scores.clip(min=0)
    totals = scores.sum(1) + FLOOR * is_candidate.sum(1)
    log_totals = np.log(np.maximum(totals, FLOOR))
    # Without the own document, another candidate may come first; of equal scores, the first one.
    order = np.argsort(np.where(is_candidate, -scores, np.inf), axis=1, kind="stable")
    ranks = np.argsort(order, axis=1) + 1
    prior = np.stack([np.log(scores + FLOOR) - log_totals[:, None], -np.log(ranks)], axis=2)
    floor = np.stack([np.log(FLOOR) - log_totals, -np.log(is_candidate.sum(1) + 1)], axis=1)
    is_gold = is_candidate & (entities[:, :, None] == golds[:, None, :]).any(2)
    return Candidates(entities, prior.astype(np.float32), floor.astype(np.float32), is_gold)


def percentiles(counts: np.ndarray) -> np.ndarray:
    """float64: how popular each entity is, from 0 (never or most rarely seen) to 1.

    The share of the entities in the training data that have a smaller count.
    """
    seen = np.sort(counts[counts > 0])
    return np.searchsorted(seen, counts, side="left") / max(len(seen) - 1, 1)


class Data:
    """What a run reads."""

    def __init__(self, config: DisambiguationConfig) -> None:
        self.config = config
        name = config.tokenizer_name or config.model_name
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(name)
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
        return Path(data.prep_dir or Path(str(data.train_file)).parent / "prep")

    @property
    def vectors_dir(self) -> Path:
        """The folder of the vectors of entities."""
        data = self.config.data_config
        return Path(data.vectors_dir or f"{Path(str(data.entity_table))}.vectors")

    @property
    def limits(self) -> Limits:
        """What a row may hold."""
        data, (before, after) = self.config.data_config, special_tokens(self.tokenizer)
        most = most_tokens(self.config, self.tokenizer)
        return Limits(data.max_mentions, data.max_words, most - len(before) - len(after))

    def split(self, name: str) -> Sentences | None:
        """The sentences of a split of `SPLITS`; None if there is no file of it."""
        path = getattr(self.config.data_config, f"{name}_file")
        if path is not None and name not in self._splits:
            self._splits[name] = self._sentences(Path(path), self.prep_dir / name)
        return self._splits.get(name)

    def other(self, path: Path) -> Sentences:
        """The sentences of another file; their store is found by the content of the file."""
        return self._sentences(path, self.prep_dir / "other", by_content=True)

    def _sentences(self, path: Path, folder: Path, *, by_content: bool = False) -> Sentences:
        data = self.config.data_config
        return open_prep(
            path, self.table, self.tokenizer, folder, self.limits, by_content=by_content,
            workers=data.prep_workers, overwrite=data.overwrite_prep,
        )  # fmt: skip

    @cached_property
    def train(self) -> Sentences:
        """The training sentences."""
        found = self.split("train")
        assert found is not None  # the configuration was checked
        return found

    @cached_property
    def counts(self) -> np.ndarray:
        """int64 [entities]: how many training mentions, weak labels included, have each entity."""
        return np.bincount(self.train.meanings()[0], minlength=len(self.table))

    def fill_frozen(self) -> None:
        """Computes what frozen layers make of the texts that training compares mentions with."""
        if self.frozen is not None:
            found = np.append(self.table.all_candidates(self.train.aliases()), NIL)
            if self.neighbors is not None:
                found = np.append(found, self.neighbors.distinct())
            masked = self.config.data_config.mask_most_frequent > 0
            self.frozen.fill(np.unique(found), masked=masked)

    @cached_property
    def frozen(self) -> FrozenVectors | None:
        """What the frozen layers of the entities' encoder make of texts, if there are any."""
        if self.config.train_entity_layers:
            return FrozenStates(self.config, self.texts, self.vectors_dir)
        return None if self.config.train_entity_layers is None else self._vectors_before_training

    @cached_property
    def _vectors_before_training(self) -> FrozenVectors:
        """The vectors of the entities' encoder before it is trained."""
        return FrozenVectors(self.config, self.texts, self.vectors_dir)

    @cached_property
    def neighbors(self) -> Neighbors | None:
        """The hard negatives of each entity of the training data, if they are wanted."""
        most = self.config.hard_negatives
        if most == 0:
            return None
        entities = np.flatnonzero(self.counts)
        entities = entities[entities != NIL]
        return Neighbors(self._vectors_before_training, entities, most, self.vectors_dir)


class TrainingBatches:
    """Makes the micro-batches of the training."""

    def __init__(self, data: Data) -> None:
        self._config = config = data.config
        self._data = data
        data.fill_frozen()
        self._frozen, self._neighbors = data.frozen, data.neighbors  # before any worker is forked
        self._mention_texts = MentionTexts(data.tokenizer, config)
        self._counts = None
        if config.log_prior == "leave_one_out":
            entities, documents, aliases = data.train.meanings()
            self._counts = DocumentCounts(documents, aliases, entities)
        rarest, most = config.data_config.mask_rarest, config.data_config.mask_most_frequent
        self._mask_probability = rarest + (most - rarest) * percentiles(data.counts)

    def micro_batch(self, rows: Sequence[Row], epoch: int) -> MicroBatch:
        """The mentions of some rows (at least one), gold and weak alike."""
        data, mentions = self._data, Mentions(rows)
        candidates = candidates_of(
            data.table, mentions.aliases, mentions.entities, mentions.documents, self._counts
        )
        if self._config.max_train_candidates is not None:
            candidates = candidates.first(self._config.max_train_candidates)
        draws = [partial(_uniform, self._config.seed, epoch, row.number) for row in rows]
        masked = [
            draw("mentions", len(row.entities)) < self._mask_probability[row.entities[:, 0]]
            for row, draw in zip(rows, draws, strict=True)
        ]
        tensors, tokens = self._mention_texts.tensors(rows, masked)
        entities, has_mask, compared = self._compared(mentions, candidates, draws)
        if self._frozen is not None:
            tensors |= self._frozen.inputs(entities, has_mask)
        else:
            of_entities, more = data.texts.tensors(entities, has_mask)
            tensors, tokens = tensors | of_entities, tokens + more
        sizes = [tensors[name].numel() for name in ("input_ids", "entity_ids") if name in tensors]
        trained = int(compared["targets"].any(1).sum())
        weak = sum(int((~row.is_gold).sum()) for row in rows)
        names = zip(mentions.sentences, mentions.positions, strict=True)
        return MicroBatch(
            tensors={**tensors, **{name: torch.from_numpy(of) for name, of in compared.items()}},
            weight=float(trained),
            tokens=tokens,
            padding=sum(sizes) - tokens,
            documents=[f"{sentence}:{position}" for sentence, position in names],
            counts={
                "mentions": float(len(mentions.rows)),
                "weak_labels": float(weak),
                "without_candidate": float(len(mentions.rows) - trained),
                "entities": float(len(entities)),
            },
        )

    def _compared(
        self, mentions: Mentions, candidates: Candidates, draws: Sequence[Draw]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """The entities of a micro-batch, and which of them each mention is compared with.

        Returns:
            The entities, int64 [columns]; whether their titles are masked, bool [columns]; and of
            the inputs of `BiEncoder.forward` and of the loss: `allowed`, bool [mentions, columns];
            `targets`, bool [mentions, columns (+1)]: the mention's entities (with NIL as an answer,
            it is the first column; a mention without any is not trained on); and, if it is used,
            `prior`, float32 [mentions, columns, 2].
        """
        own, is_gold = candidates.entities, candidates.is_gold
        width = own.shape[1]
        if self._neighbors is not None:
            more = self._neighbors(mentions.entities[:, 0])
            more[(more[:, :, None] == mentions.entities[:, None, :]).any(2)] = -1
            own = np.concatenate([own, more], axis=1)
            is_gold = np.concatenate([is_gold, np.zeros(more.shape, bool)], axis=1)
        # The same entity with and without its title are two columns.
        keyed = np.where(own >= 0, own * 2 + self._masked_titles(own, mentions.rows, draws), -1)
        keys, columns = columns_of(keyed)
        entities = keys // 2
        nowhere = np.zeros((len(own), len(keys)), bool)
        targets = placed(nowhere, np.where(is_gold, columns, -1), True)
        found = {"targets": targets, "allowed": placed(nowhere, columns, True)}
        if self._config.negatives == "batch":  # all but the mention's entities in another form
            is_meant = (entities[None, :, None] == mentions.entities[:, None, :]).any(2)
            found["allowed"] = ~is_meant | targets
        if self._config.log_prior != "none":
            prior = np.repeat(candidates.floor[:, None], len(keys), axis=1)
            found["prior"] = placed(prior, columns[:, :width], candidates.prior)
        if not self._config.train_in_candidates:
            is_nil = ~targets.any(1, keepdims=True)
            found["targets"] = np.concatenate([is_nil, targets], axis=1)
        return entities, (keys % 2).astype(bool), found

    def _masked_titles(
        self, entities: np.ndarray, rows: np.ndarray, draws: Sequence[Draw]
    ) -> np.ndarray:
        """bool [mentions, candidates]: which titles are masked, alike for all mentions of a row.

        `entities` are int64 [mentions, candidates], -1 for none; `rows` the row of each mention.
        """
        masked = np.zeros(entities.shape, bool)
        for number, draw in enumerate(draws):
            # Without the padding, which depends on other rows.
            chosen = (rows == number)[:, None] & (entities >= 0)
            distinct, places = np.unique(entities[chosen], return_inverse=True)
            is_masked = draw("titles", len(distinct)) < self._mask_probability[distinct]
            masked[chosen] = is_masked[places]
        return masked


def _uniform(seed: int, epoch: int, row: int, what: str, count: int) -> np.ndarray:
    words = np.random.PCG64(derive(seed, "mask", epoch, row, what)).random_raw(count)
    return words / 2.0**64


def columns_of(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers of a matrix, ascending, and the place of each among them.

    A place is -1 where the number is. If all are, there is 0: a batch needs a column all the same.
    """
    distinct, places = np.unique(np.append(numbers, -1), return_inverse=True)
    distinct = distinct[1:] if len(distinct) > 1 else np.zeros(1, np.int64)
    return distinct, places[:-1].reshape(numbers.shape) - 1


def placed(values: np.ndarray, columns: np.ndarray, own: np.ndarray | bool) -> np.ndarray:
    """A copy of values [mentions, columns, …] with those of each mention at its columns.

    `columns` are int64 [mentions, K], -1 for none; `own` values [mentions, K, …], or one for all.
    """
    found, chosen = values.copy(), np.nonzero(columns >= 0)
    found[chosen[0], columns[chosen]] = own if isinstance(own, bool) else own[chosen]
    return found
