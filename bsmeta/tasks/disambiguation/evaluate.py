"""Scores a model and the baselines on a split: in training, after its last step, by `evaluate.py`.

A score is the rank of a gold entity among the candidates of its mention; mentions are scored on all
processes. `evaluate.py` scores the test split again, or another file of sentences. Bands follow
from the training data of the run, which must still be there. Another model is scored beside with
`+overrides.compare_with=RUN`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.config.saved_runs import saved_config
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks import TASKS, checkpoints
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.data import Candidates, Data, candidates_of, columns_of, placed
from bsmeta.tasks.disambiguation.embeddings import Embeddings, EntityEncoder, split_embeddings
from bsmeta.tasks.disambiguation.entities import NIL
from bsmeta.tasks.disambiguation.model import BiEncoder, load_model, run_model
from bsmeta.tasks.disambiguation.prep import Sentences
from bsmeta.tasks.disambiguation.report import (
    BUILT_IN,
    Scored,
    mention_records,
    own_slices,
    report,
    results_of,
)
from bsmeta.tasks.disambiguation.texts import Mentions, MentionTexts, Row
from bsmeta.training.processes import Processes
from bsmeta.training.task import batches_of, spread

log = logging.getLogger(__name__)

_RECORD = {
    "rank": "i8", "place": "i8", "candidates": "i8", "loss": "f8", "answers": "i8", "shares": "f8",
}  # fmt: skip
"""What processes exchange about each mention, of the names that it has in `Scored`; its types."""


@dataclass(frozen=True)
class Ranked:
    """The candidates of some mentions with their scores.

    The scores are float32 [mentions, K (+1)]: -inf where there is no candidate. With a NIL of the
    model, its score is the last column.
    """

    candidates: Candidates
    scores: np.ndarray

    def is_right(self) -> np.ndarray:
        """bool [mentions, K (+1)]: the right answers; NIL if no gold entity is a candidate."""
        is_gold = self.candidates.is_gold
        if self.scores.shape[1] > is_gold.shape[1]:
            return np.concatenate([is_gold, ~is_gold.any(1, keepdims=True)], axis=1)
        return is_gold

    def gold_ranks(self) -> np.ndarray:
        """int64: how many candidates score higher than the best right one (or come before it).

        -1 if there is no right one.
        """
        is_right = self.is_right()
        best = np.where(is_right, self.scores, -np.inf).argmax(1)
        own = self.scores[np.arange(len(best)), best][:, None]
        is_before = np.arange(self.scores.shape[1])[None, :] < best[:, None]
        higher = (self.scores > own) | ((self.scores == own) & is_before)
        return np.where(is_right.any(1), higher.sum(1), -1)

    def losses(self) -> np.ndarray:
        """float64: minus the log-probability of the right answers; NaN if there is none."""
        is_right = self.is_right()
        right = np.where(is_right, self.log_probabilities(), -np.inf)
        return np.where(is_right.any(1), -np.logaddexp.reduce(right, axis=1), np.nan)

    def answers(self) -> tuple[np.ndarray, np.ndarray]:
        """The best candidate of each mention, int64 (-1: none, 0: NIL), and its probability."""
        shares = np.exp(self.log_probabilities())
        best, rows = shares.argmax(1), np.arange(len(shares))
        own = self.candidates.entities
        own = np.concatenate([own, np.full((len(own), 1), NIL)], axis=1)
        return own[rows, best], shares[rows, best]

    def records(self) -> np.ndarray:
        """[mentions] of `_RECORD`."""
        numbers = self.candidates.place, (self.candidates.entities >= 0).sum(1)
        columns = [self.gold_ranks(), *numbers, self.losses(), *self.answers()]
        return np.rec.fromarrays(columns, dtype=[*_RECORD.items()])

    def log_probabilities(self) -> np.ndarray:
        """float64 [mentions, K (+1)], over each mention's own candidates."""
        scores = self.scores.astype(np.float64)
        top = scores.max(1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return scores - top - np.log(np.exp(scores - top).sum(1, keepdims=True))


class Scorer:
    """Runs a model on rows; it may be wrapped, and is in evaluation mode."""

    def __init__(
        self, model: nn.Module, data: Data, embeddings: Embeddings, device: torch.device
    ) -> None:
        self._model = model
        self._table = data.table
        self._texts = MentionTexts(data.tokenizer, data.config)
        self._embeddings = embeddings
        self._device = device
        self._precision = data.config.mixed_precision

    def __call__(self, rows: Sequence[Row]) -> Ranked:
        """The scores of all mentions of some rows, which have at least one."""
        mentions = Mentions(rows)
        candidates = candidates_of(self._table, mentions.aliases, mentions.entities)
        distinct, columns = columns_of(candidates.entities)
        shape = (len(columns), len(distinct))
        prior = placed(np.zeros((*shape, 2), np.float32), columns, candidates.prior)
        tensors, _ = self._texts.tensors(rows)
        tensors |= {
            "entities": torch.from_numpy(self._embeddings(distinct)),
            "prior": torch.from_numpy(prior),
            "allowed": torch.from_numpy(placed(np.zeros(shape, bool), columns, True)),
        }
        output = run_model(self._model, tensors, self._device, self._precision)
        assert output.scores is not None
        scores = output.scores.float().cpu().numpy()
        of_nil, scores = np.split(scores, [scores.shape[1] - len(distinct)], axis=1)
        own = np.take_along_axis(scores, columns.clip(min=0), axis=1)
        own = np.where(columns >= 0, own, -np.inf)
        return Ranked(candidates, np.concatenate([own, of_nil], axis=1))


def candidate_embeddings(
    data: Data, model: nn.Module, rows: Sequence[Row], context: Processes
) -> Embeddings:
    """The embeddings of all candidates of some rows; see `score` for the arguments."""
    entities = np.union1d(data.table.all_candidates(Mentions(rows).aliases), [NIL])
    encoder = EntityEncoder(model, data.texts, context.device, data.config.mixed_precision)
    return split_embeddings(entities, encoder, data.frozen, context)


def score(
    data: Data,
    model: nn.Module,
    rows: Sequence[Row],
    context: Processes,
    *,
    counts: np.ndarray | None = None,
    embeddings: Embeddings | None = None,
) -> Scored:
    """Scores the mentions of some rows, all of them gold; every process calls it and gets the same.

    Args:
        model: The bi-encoder, wrapped or not, in evaluation mode.
        rows: At least one, each with a mention.
        counts: int64 [entities]: the training counts that place each mention in a band; None:
            those of the data.
        embeddings: Those of the candidates; None computes them.
    """
    if embeddings is None:
        embeddings = candidate_embeddings(data, model, rows, context)
    scorer = Scorer(model, data, embeddings, context.device)

    def run(batch: np.ndarray) -> list[np.ndarray]:
        chosen = [rows[number] for number in batch]
        cuts = np.cumsum([len(row.aliases) for row in chosen])[:-1]
        return np.split(scorer(chosen).records(), cuts)

    size = data.config.data_config.per_device_eval_batch_size
    by_row = spread(batches_of([len(row.tokens) for row in rows], size), run, context)
    found, mentions = np.concatenate(by_row), Mentions(rows)
    gold = mentions.entities
    return Scored(
        **{name: found[name] for name in _RECORD},
        counts=np.where(gold >= 0, (data.counts if counts is None else counts)[gold], 0).max(1),
        documents=mentions.documents,
        own=own_slices([own for row in rows for own in row.slices]),
        sentences=mentions.sentences,
        positions=mentions.positions,
        aliases=mentions.aliases,
        gold=gold,
    )


def run(
    config: EvaluateConfig, locations: Sequence[checkpoints.Location], context: Processes
) -> None:
    """Scores each checkpoint on all processes; rank 0 writes and prints a report on each.

    Raises:
        UserError: If a key has no meaning for this task, or a model or the data cannot be used.
    """
    checkpoints.check_keys(config, "task=disambiguation", "per_device_eval_batch_size")
    for location in locations:
        train = checkpoints.training_run(config, location, DisambiguationConfig)
        checkpoints.begin_with(train, location)
        if config.per_device_eval_batch_size is not None:
            train.data_config.per_device_eval_batch_size = config.per_device_eval_batch_size
        data = Data(train)
        if context.is_main:
            own = train.data_config
            path = config.validation_file or own.test_file or own.dev_file
            key = "data_config.test_file" if own.test_file else "data_config.dev_file"
            checkpoints.announce_data(config, location, key, path)
        if config.validation_file is not None:
            sentences: Sentences | None = data.other(Path(config.validation_file))
        else:
            sentences = last_split(data)
        if sentences is None:
            raise DataError(
                f"checkpoint={location.name}: its run has neither a dev_file nor a test_file; name "
                "sentences: validation_file=FILE"
            )
        model = load_model(Path(location.model)).to(context.device)
        folder = Path()  # only rank 0 writes
        if context.is_main:
            has_other_data = config.validation_file is not None
            folder = checkpoints.report_folder(config, location, has_other_data=has_other_data)
        score_and_report(data, model, sentences, context, location.name, folder)


def last_split(data: Data) -> Sentences | None:
    """The split of the last evaluation: test, or without one dev."""
    return data.split("test") or data.split("dev")


def score_and_report(
    data: Data,
    model: BiEncoder,
    sentences: Sentences,
    context: Processes,
    checkpoint: str,
    folder: Path,
) -> Scored:
    """Scores sentences with a trained model and writes the report (rank 0); see `score`.

    The report calls the model `checkpoint`, and goes to `folder`.
    """
    config = data.config
    known = {*BUILT_IN, *sentences.facts["slices"]}
    missing = [name for name in config.eval_slices or [] if name not in known]
    if missing and context.rank == 0:
        log.warning("%s: its lines define no slice %s", sentences.path, ", ".join(missing))
    scored = score(data, model, sentences.gold(), context)
    others = {}
    if config.compare_with is not None:  # in the report, a run has the name of its folder
        name = Path(config.compare_with).resolve().name.replace("_", " ")
        others[name] = _other_model(data, sentences, scored, context).is_right
    if context.rank == 0:
        results = results_of(
            scored,
            others,
            source=sentences.path.name,
            chosen=config.eval_slices,
            resamples=config.bootstrap_resamples,
            seed=config.seed,
        )
        facts = {
            "checkpoint": checkpoint,
            "intervals": f"bootstrap over documents, {config.bootstrap_resamples:,} resamples, "
            f"seed {config.seed}",
        }
        report(results, mention_records(scored, data.table, others), folder, facts)
    return scored


def _other_model(data: Data, sentences: Sentences, scored: Scored, context: Processes) -> Scored:
    """Scores the same mentions with the model of `compare_with`, its texts and its encoding.

    Raises:
        DataError: If its tokens are such that its rows cannot hold the same mentions.
    """
    location, other_data = compared_data(data.config)
    model = load_model(Path(location.model)).to(context.device)
    rows = other_data.other(sentences.path).gold()
    other = score(other_data, model, rows, context, counts=data.counts)
    for name in ("sentences", "positions"):
        if not np.array_equal(getattr(other, name), getattr(scored, name)):
            raise DataError(
                f"compare_with={data.config.compare_with}: the rows of its model do not hold the "
                f"same mentions of {sentences.path}; raise data_config.max_words, or leave out the "
                "mentions that prep reports"
            )
    return other


def compared_data(config: DisambiguationConfig) -> tuple[checkpoints.Location, Data]:
    """The model of `compare_with`, and the entities of this run as that model reads them.

    Raises:
        ConfigurationError: If it is no model of this task.
    """
    location = checkpoints.locate(str(config.compare_with))
    where = f"compare_with={config.compare_with}"
    if location.config is None:
        raise ConfigurationError(f"{where}: there is no config.yaml beside the model")
    other = saved_config(location.config, {"disambiguation": TASKS["disambiguation"]}, {})
    assert isinstance(other, DisambiguationConfig)
    own = config.data_config
    other.data_config = replace(
        other.data_config, train_file=own.train_file, entity_table=own.entity_table,
        prep_dir=own.prep_dir, max_mentions=own.max_mentions, max_words=own.max_words,
    )  # fmt: skip
    checkpoints.begin_with(other, location)
    return location, Data(other)
