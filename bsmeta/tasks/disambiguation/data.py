"""The data of a run: entity table, encoded sentences of each split, and training micro-batches.

A micro-batch has the texts of mentions, the compared entities, and masks of comparisons. In
training, a mention is compared with the candidates of all mentions of its micro-batch (or only its
own); the text of each entity is encoded once. Which texts are masked depends on (seed, epoch, row)
alone, not on the number of processes or the other rows of a micro-batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError
from bsmeta.data import derive_seed
from bsmeta.data.batch import MicroBatch
from bsmeta.data.text.tokenizer import find_special_tokens
from bsmeta.tasks.disambiguation.config import DICTIONARY, DisambiguationConfig
from bsmeta.tasks.disambiguation.dictionary import AliasDictionary, open_dictionary
from bsmeta.tasks.disambiguation.embeddings import FrozenStates, FrozenVectors, Neighbors
from bsmeta.tasks.disambiguation.entities import NIL, EntityTable, describe_versions
from bsmeta.tasks.disambiguation.model import (
    BiEncoder,
    find_max_text_tokens,
    load_model,
    read_table_fingerprint,
)
from bsmeta.tasks.disambiguation.prep import Sentences, open_prep
from bsmeta.tasks.disambiguation.tagging import TAGGED_SHARE, LineTagger, build_tag_tensors
from bsmeta.tasks.disambiguation.texts import (
    EntityTexts,
    Limits,
    Mentions,
    MentionTexts,
    Row,
    load_tokenizer,
)

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
SCORE_FLOOR = 0.1
"""Added to the score of every candidate before shares are computed, so that no share is 0."""
_NO_CANDIDATES = (np.empty(0, np.int32), np.empty(0, np.float32))

Draw = Callable[[str, int], np.ndarray]
"""Draws uniform random numbers of a row and an epoch, given a purpose and a count."""


@dataclass(frozen=True)
class Candidates:
    """The candidates of mentions, the most popular ones first."""

    entities: np.ndarray  # int64 [mentions, K]; -1 pads
    prior: np.ndarray  # float32 [mentions, K, 2]: log share of the scores, -log rank (from 1)
    floor: np.ndarray  # float32 [mentions, 2]: prior of entities that are not candidates
    is_gold: np.ndarray  # bool [mentions, K]: whether the candidate is a meaning of the mention

    @property
    def gold_position(self) -> np.ndarray:
        """Index of the most popular gold candidate, int64 [mentions]; -1 without one."""
        return np.where(self.is_gold.any(1), self.is_gold.argmax(1), -1)

    def limit(self, count: int) -> Candidates:
        """Limits each mention to `count` candidates: the gold ones and the most popular others."""
        if self.entities.shape[1] <= count:
            return self

        gold_first = np.argsort(~self.is_gold, axis=1, kind="stable")[:, :count]
        columns = np.sort(gold_first, axis=1)
        rows = np.arange(len(columns))[:, None]
        return Candidates(
            entities=self.entities[rows, columns],
            prior=self.prior[rows, columns],
            floor=self.floor,
            is_gold=self.is_gold[rows, columns],
        )


class DocumentCounts:
    """Counts of training mentions by document, alias and entity.

    Args:
        documents, aliases, entities: int64 [mentions].
    """

    def __init__(self, documents: np.ndarray, aliases: np.ndarray, entities: np.ndarray) -> None:
        keys = _hash_triples(documents, aliases, entities)
        self._keys, self._counts = np.unique(keys, return_counts=True)

    def look_up(
        self, documents: np.ndarray, aliases: np.ndarray, entities: np.ndarray
    ) -> np.ndarray:
        """Returns the counts of triples as int64; the arrays are broadcast."""
        keys = _hash_triples(documents, aliases, entities)
        positions = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        return np.where(self._keys[positions] == keys, self._counts[positions], 0)


def _hash_triples(documents: np.ndarray, aliases: np.ndarray, entities: np.ndarray) -> np.ndarray:
    """Hashes triples to 64 bits, by multiplication with odd constants."""
    mixed = documents.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ aliases.astype(np.uint64)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    return (mixed ^ entities.astype(np.uint64)) * np.uint64(0x165667B19E3779F9)


def find_candidates(
    table: EntityTable,
    aliases: Sequence[int] | np.ndarray,
    golds: np.ndarray,
    documents: np.ndarray | None = None,
    counts: DocumentCounts | None = None,
) -> Candidates:
    """Looks up the candidates of mentions, with their priors.

    Args:
        aliases: Number of the alias of each mention in the table; -1: no candidates.
        golds: int64 [mentions, meanings]: the meanings of each mention; -1 pads. NIL is no
            candidate.
        documents: The document of each mention; required with `counts`.
        counts: If given, the mentions of the same document are subtracted from the scores
            (leave-one-out), for tables whose scores count the training mentions.
    """
    entities, scores = _pad_candidate_lists(table, aliases)
    is_candidate = entities >= 0
    if counts is not None:
        assert documents is not None
        alias_numbers = np.asarray(aliases)[:, None]
        own_counts = counts.look_up(documents[:, None], alias_numbers, entities)
        scores -= own_counts * is_candidate
        scores = scores.clip(min=0)

    totals = scores.sum(1) + SCORE_FLOOR * is_candidate.sum(1)
    log_totals = np.log(np.maximum(totals, SCORE_FLOOR))

    # Subtracting the document's mentions may change the order; ties keep the order of the table.
    order = np.argsort(np.where(is_candidate, -scores, np.inf), axis=1, kind="stable")
    ranks = np.argsort(order, axis=1) + 1

    prior = np.stack([np.log(scores + SCORE_FLOOR) - log_totals[:, None], -np.log(ranks)], axis=2)
    floor = np.stack([np.log(SCORE_FLOOR) - log_totals, -np.log(is_candidate.sum(1) + 1)], axis=1)
    is_gold = is_candidate & (entities[:, :, None] == golds[:, None, :]).any(2)
    return Candidates(entities, prior.astype(np.float32), floor.astype(np.float32), is_gold)


def _pad_candidate_lists(
    table: EntityTable, aliases: Sequence[int] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the candidates of aliases and their scores, padded.

    Returns:
        int64 [aliases, K], -1 pads; and float64 [aliases, K], 0 pads.
    """
    lists = [table.candidates(int(alias)) if alias >= 0 else _NO_CANDIDATES for alias in aliases]
    max_count = max((len(candidates) for candidates, _ in lists), default=0)
    entities = np.full((len(lists), max(max_count, 1)), -1, np.int64)
    scores = np.zeros(entities.shape, np.float64)
    for row, (candidates, candidate_scores) in enumerate(lists):
        entities[row, : len(candidates)] = candidates
        scores[row, : len(candidates)] = candidate_scores
    return entities, scores


def compute_popularity_percentiles(counts: np.ndarray) -> np.ndarray:
    """Computes the popularity of each entity, from 0 (unseen or rarest) to 1, float64 [entities].

    The percentile is the share of the entities in the training data with a smaller count.
    """
    positive_counts = np.sort(counts[counts > 0])
    ranks = np.searchsorted(positive_counts, counts, side="left")
    return ranks / max(len(positive_counts) - 1, 1)


class RunData:
    """Entity table, tokenizer and encoded splits of a run, each opened on first use."""

    def __init__(self, config: DisambiguationConfig) -> None:
        transformers.utils.logging.disable_progress_bar()  # of loading weights
        self.config = config
        name = config.tokenizer_name or config.model_name
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(name)
        self._splits: dict[str, Sentences] = {}

    @cached_property
    def table(self) -> EntityTable:
        """The entities."""
        return EntityTable.open(Path(str(self.config.data_config.entity_table)))

    def refuse_edited_table(self, fingerprint: str) -> None:
        """Refuses to continue a run if the table was edited since its checkpoint.

        Args:
            fingerprint: Fingerprint of the table in the checkpoint.

        Raises:
            ConfigurationError: If it was edited. Another table is refused by the stream.
        """
        changes = self.table.list_changes(fingerprint)
        if changes:
            raise ConfigurationError(
                f"data_config.entity_table={self.table.folder} was edited since the checkpoint "
                f"({describe_versions(changes)}), so the run cannot be continued exactly; restore "
                "the table of the checkpoint, or start a new run: out_dir=ANOTHER",
                ["data_config.entity_table"],
            )

    def load_model(self, folder: Path) -> BiEncoder:
        """Loads a trained model; logs how the table differs from that of its training.

        Raises:
            DataError: See `model.load_model`.
        """
        model = load_model(folder)
        fingerprint = read_table_fingerprint(folder)
        if fingerprint is None:
            return model

        changes = self.table.list_changes(fingerprint)
        if changes is None:
            logger.warning(
                "%s was trained with another entity table than %s", folder, self.table.folder
            )
        elif changes:
            logger.warning(
                "%s was edited since %s was trained: %s; candidates and texts of entities are "
                "those of the edited table",
                self.table.folder,
                folder,
                describe_versions(changes),
            )
        return model

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
        """The maximum size of a row."""
        data = self.config.data_config
        prefix, suffix = find_special_tokens(self.tokenizer)
        max_tokens = find_max_text_tokens(self.config, self.tokenizer)
        return Limits(data.max_mentions, data.max_words, max_tokens - len(prefix) - len(suffix))

    def open_split(self, name: str) -> Sentences | None:
        """Opens the sentences of a split of `SPLITS`; returns None if no file is configured."""
        path = getattr(self.config.data_config, f"{name}_file")
        if path is not None and name not in self._splits:
            tagger = self._tagger if name == "train" else None
            folder = self.prep_dir / (name if tagger is None else f"{name}-tagged")
            self._splits[name] = self._open_sentences(Path(path), folder, tagger=tagger)
        return self._splits.get(name)

    @property
    def has_detector(self) -> bool:
        """Whether the mention detector is trained, or used."""
        return self.config.mention_detection != DICTIONARY

    @property
    def _forms_dir(self) -> Path:
        """The folder of the counts of forms in the training lines."""
        return self.prep_dir / "forms"

    @property
    def _tagger(self) -> LineTagger | None:
        """Tags the training lines for the mention detector; None without one."""
        if not self.has_detector:
            return None
        return LineTagger(self.config.data_config, self.table, self._forms_dir)

    @cached_property
    def dictionary(self) -> AliasDictionary:
        """The forms of the aliases of the table."""
        return open_dictionary(self.config.data_config, self.table, self._forms_dir)

    def open_file(self, path: Path) -> Sentences:
        """Opens the sentences of any file, in a store identified by the content of the file."""
        return self._open_sentences(path, self.prep_dir / "other", by_content=True)

    def _open_sentences(
        self,
        path: Path,
        folder: Path,
        *,
        by_content: bool = False,
        tagger: LineTagger | None = None,
    ) -> Sentences:
        data = self.config.data_config
        return open_prep(
            path,
            self.table,
            self.tokenizer,
            folder,
            self.limits,
            by_content=by_content,
            tagger=tagger,
            workers=data.prep_workers,
            overwrite=data.overwrite_prep,
        )

    @cached_property
    def train(self) -> Sentences:
        """The training sentences."""
        sentences = self.open_split("train")
        assert sentences is not None  # the configuration was checked
        return sentences if self.config.data_config.use_weak_labels else sentences.select_gold()

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of training mentions of each entity, int64 [entities]."""
        return np.bincount(self.train.read_meanings().entities, minlength=len(self.table))

    def compute_frozen_outputs(self) -> None:
        """Computes the missing outputs of the frozen layers for the entities used in training."""
        if self.frozen is None:
            return

        entities = np.append(self.table.find_all_candidates(self.train.read_aliases()), NIL)
        if self.neighbors is not None:
            entities = np.append(entities, self.neighbors.distinct())
        has_masked_titles = self.config.data_config.mask_most_frequent > 0
        self.frozen.fill(np.unique(entities), masked=has_masked_titles)

    @cached_property
    def frozen(self) -> FrozenVectors | None:
        """The outputs of the frozen layers of the entity encoder; None if all are trained."""
        if self.config.train_entity_layers is None:
            return None
        if self.config.train_entity_layers == 0:
            return self._initial_vectors
        return FrozenStates(self.config, self.texts, self.vectors_dir)

    @cached_property
    def _initial_vectors(self) -> FrozenVectors:
        """The vectors of the entity encoder before training."""
        return FrozenVectors(self.config, self.texts, self.vectors_dir)

    @cached_property
    def neighbors(self) -> Neighbors | None:
        """The hard negatives of each entity in the training data; None if there are none."""
        count = self.config.hard_negatives
        if count == 0:
            return None

        entities = np.flatnonzero(self.counts)
        entities = entities[entities != NIL]
        return Neighbors(self._initial_vectors, entities, count, self.vectors_dir)


@dataclass(frozen=True)
class Comparisons:
    """The mentions (rows) and the entities (columns) of a micro-batch that are compared.

    An entity may have two columns, with and without its title.
    """

    entities: np.ndarray  # int64 [columns]
    has_masked_title: np.ndarray  # bool [columns]
    allowed: np.ndarray  # bool [mentions, columns]: whether mention and entity are compared
    targets: np.ndarray
    """bool [mentions, columns (+1)]: whether the entity is a meaning of the mention.

    If NIL is an answer, it is the first column. Mentions without a target are not trained on.
    """
    prior: np.ndarray | None  # float32 [mentions, columns, 2]; None if the model has no prior

    def build_tensors(self) -> dict[str, torch.Tensor]:
        """Returns the inputs of the model and of the loss."""
        tensors = {
            "targets": torch.from_numpy(self.targets),
            "allowed": torch.from_numpy(self.allowed),
        }
        if self.prior is not None:
            tensors["prior"] = torch.from_numpy(self.prior)
        return tensors


class TrainingBatches:
    """Builds the training micro-batches of a run."""

    def __init__(self, data: RunData) -> None:
        config = data.config
        self._config = config
        self._data = data

        data.compute_frozen_outputs()
        # Opened here, before any worker is forked.
        self._frozen = data.frozen
        self._neighbors = data.neighbors

        self._mention_texts = MentionTexts(data.tokenizer, config)
        self._document_counts = None
        if config.log_prior == "leave_one_out":
            meanings = data.train.read_meanings()
            self._document_counts = DocumentCounts(
                meanings.documents, meanings.aliases, meanings.entities
            )

        lowest = config.data_config.mask_rarest
        highest = config.data_config.mask_most_frequent
        popularity = compute_popularity_percentiles(data.counts)
        self._mask_probability = lowest + (highest - lowest) * popularity

    def build_micro_batch(self, rows: Sequence[Row], epoch: int) -> MicroBatch:
        """Builds the micro-batch of all mentions, gold and weak, of rows with at least one."""
        mentions = Mentions(rows)
        candidates = find_candidates(
            self._data.table,
            mentions.aliases,
            mentions.entities,
            mentions.documents,
            self._document_counts,
        )
        if self._config.max_train_candidates is not None:
            candidates = candidates.limit(self._config.max_train_candidates)

        draws = [partial(_draw_uniform, self._config.seed, epoch, row.number) for row in rows]
        masked_mentions = [
            draw("mentions", len(row.entities)) < self._mask_probability[row.entities[:, 0]]
            for row, draw in zip(rows, draws, strict=True)
        ]
        is_tagged = self._choose_tagged_rows(draws)
        for row_mask, row_is_tagged in zip(masked_mentions, is_tagged, strict=True):
            row_mask &= not row_is_tagged

        tensors, tokens = self._mention_texts.build_tensors(rows, masked_mentions)
        if self._data.has_detector:
            tensors |= build_tag_tensors(
                rows,
                is_tagged,
                tensors["input_ids"].shape,
                self._mention_texts.first_token,
                self._config.data_config.unmarked_match_weight,
            )
        comparisons = self._compare(mentions, candidates, draws)
        entities = comparisons.entities
        if self._frozen is not None:
            tensors |= self._frozen.build_inputs(entities, comparisons.has_masked_title)
        else:
            entity_tensors, entity_tokens = self._data.texts.build_tensors(
                entities, comparisons.has_masked_title
            )
            tensors |= entity_tensors
            tokens += entity_tokens

        padded_tokens = sum(
            tensors[name].numel() for name in ("input_ids", "entity_ids") if name in tensors
        )
        tensors |= comparisons.build_tensors()

        trained = int(comparisons.targets.any(1).sum())
        weak = sum(int((~row.is_gold).sum()) for row in rows)
        return MicroBatch(
            tensors=tensors,
            weight=float(trained),
            tokens=tokens,
            padding=padded_tokens - tokens,
            documents=[
                f"{sentence}:{position}"
                for sentence, position in zip(mentions.sentences, mentions.positions, strict=True)
            ],
            counts={
                "mentions": float(len(mentions.rows)),
                "weak_labels": float(weak),
                "without_candidate": float(len(mentions.rows) - trained),
                "entities": float(len(entities)),
            },
        )

    def _choose_tagged_rows(self, draws: Sequence[Draw]) -> list[bool]:
        """Draws which rows the mention detector is trained on, whose mentions are not masked."""
        if not self._data.has_detector:
            return [False] * len(draws)
        if self._config.data_config.mask_most_frequent == 0:
            return [True] * len(draws)
        return [bool(draw("tags", 1)[0] < TAGGED_SHARE) for draw in draws]

    def _compare(
        self, mentions: Mentions, candidates: Candidates, draws: Sequence[Draw]
    ) -> Comparisons:
        """Assigns columns to the entities of a micro-batch, and compares the mentions with them."""
        compared = candidates.entities
        is_gold = candidates.is_gold
        candidate_count = compared.shape[1]
        if self._neighbors is not None:
            negatives = self._neighbors.look_up(mentions.entities[:, 0])
            # Other meanings of the mention are not negatives.
            negatives[(negatives[:, :, None] == mentions.entities[:, None, :]).any(2)] = -1
            compared = np.concatenate([compared, negatives], axis=1)
            is_gold = np.concatenate([is_gold, np.zeros(negatives.shape, bool)], axis=1)

        # The key of a column is 2 * entity, plus 1 if its title is masked.
        masked_titles = self._mask_titles(compared, mentions.rows, draws)
        keys, columns = assign_columns(np.where(compared >= 0, compared * 2 + masked_titles, -1))
        entities = keys // 2

        all_false = np.zeros((len(compared), len(keys)), bool)
        targets = scatter_columns(all_false, np.where(is_gold, columns, -1), True)
        if self._config.negatives == "batch":
            # All entities of the batch, except meanings of the mention in the other column.
            is_meaning = (entities[None, :, None] == mentions.entities[:, None, :]).any(2)
            allowed = ~is_meaning | targets
        else:
            allowed = scatter_columns(all_false, columns, True)

        if not self._config.train_in_candidates:
            is_nil = ~targets.any(1, keepdims=True)
            targets = np.concatenate([is_nil, targets], axis=1)

        prior = None
        if self._config.log_prior != "none":
            floor = np.repeat(candidates.floor[:, None], len(keys), axis=1)
            prior = scatter_columns(floor, columns[:, :candidate_count], candidates.prior)

        return Comparisons(
            entities=entities,
            has_masked_title=(keys % 2).astype(bool),
            allowed=allowed,
            targets=targets,
            prior=prior,
        )

    def _mask_titles(
        self, entities: np.ndarray, rows: np.ndarray, draws: Sequence[Draw]
    ) -> np.ndarray:
        """Draws which titles are masked; the same for all mentions of a row.

        Args:
            entities: int64 [mentions, candidates]; -1 pads.
            rows: Index of the row of each mention.
            draws: Random numbers of each row.

        Returns:
            bool [mentions, candidates].
        """
        masked = np.zeros(entities.shape, bool)
        for number, draw in enumerate(draws):
            # Padding is excluded, because it depends on the other rows.
            in_row = (rows == number)[:, None] & (entities >= 0)
            distinct, indices = np.unique(entities[in_row], return_inverse=True)
            is_masked = draw("titles", len(distinct)) < self._mask_probability[distinct]
            masked[in_row] = is_masked[indices]
        return masked


def _draw_uniform(seed: int, epoch: int, row: int, purpose: str, count: int) -> np.ndarray:
    """Draws `count` uniform numbers in [0, 1) that depend on all other arguments, float64."""
    words = np.random.PCG64(derive_seed(seed, "mask", epoch, row, purpose)).random_raw(count)
    return words / 2.0**64


def assign_columns(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Assigns a column to each distinct number in a matrix, except -1.

    Returns:
        The number of each column, ascending ([0] if there are none, because a batch needs a
        column); and the column of each element of the matrix, -1 for -1.
    """
    distinct, indices = np.unique(np.append(numbers, -1), return_inverse=True)
    distinct = distinct[1:] if len(distinct) > 1 else np.zeros(1, np.int64)
    return distinct, indices[:-1].reshape(numbers.shape) - 1


def scatter_columns(base: np.ndarray, columns: np.ndarray, values: np.ndarray | bool) -> np.ndarray:
    """Returns a copy of `base` with the values of each mention written to its columns.

    Args:
        base: [mentions, columns, …].
        columns: int64 [mentions, K]; -1 is skipped.
        values: [mentions, K, …], or one value for all.
    """
    scattered = base.copy()
    indices = np.nonzero(columns >= 0)
    mention_indices = indices[0]
    scattered[mention_indices, columns[indices]] = (
        values if isinstance(values, bool) else values[indices]
    )
    return scattered
