"""Scores a model and its baselines on a split: in training, after the last step, and later.

A mention is scored by the rank of its gold entity among its candidates; the mentions are divided
among all processes. `evaluate.py` scores the test split again, or another file of sentences. It
needs the training data of the run, which determine the bands. `+overrides.compare_with=RUN` scores
another model on the same mentions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.saved_runs import read_saved_config
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks import TASKS, checkpoints
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.data import (
    Candidates,
    RunData,
    assign_columns,
    find_candidates,
    scatter_columns,
)
from bsmeta.tasks.disambiguation.detection_evaluation import measure_detection, read_marked_texts
from bsmeta.tasks.disambiguation.detection_metrics import SpanCounts, compute_detection_results
from bsmeta.tasks.disambiguation.embeddings import (
    Embeddings,
    EntityEncoder,
    compute_split_embeddings,
)
from bsmeta.tasks.disambiguation.entities import NIL
from bsmeta.tasks.disambiguation.mention_detection import refuse_model_without_detector
from bsmeta.tasks.disambiguation.model import BiEncoder, run_model
from bsmeta.tasks.disambiguation.prep import Sentences, count_shared_sentences
from bsmeta.tasks.disambiguation.report import (
    BUILT_IN_SLICES,
    Scored,
    build_mention_records,
    compute_results,
    mark_line_slices,
    report_results,
)
from bsmeta.tasks.disambiguation.texts import Mentions, MentionTexts, Row
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import run_on_all_ranks, sort_into_batches

logger = logging.getLogger(__name__)

_RECORD_FIELDS = {
    "rank": "i8",
    "gold_position": "i8",
    "candidates": "i8",
    "loss": "f8",
    "answers": "i8",
    "shares": "f8",
}
"""Fields of `Scored` that processes exchange for each mention, with their types."""


@dataclass(frozen=True)
class ScoredCandidates:
    """The candidates of mentions, with their scores.

    Attributes:
        scores: float32 [mentions, K (+1)]; -inf pads. The last column is NIL, if the model has one.
    """

    candidates: Candidates
    scores: np.ndarray

    def mark_right(self) -> np.ndarray:
        """Marks the right answers: the gold entities, or NIL if none of them is a candidate.

        Returns:
            bool [mentions, K (+1)].
        """
        is_gold = self.candidates.is_gold
        if self.scores.shape[1] > is_gold.shape[1]:
            return np.concatenate([is_gold, ~is_gold.any(1, keepdims=True)], axis=1)
        return is_gold

    def rank_gold(self) -> np.ndarray:
        """Counts the candidates that rank above the best right answer; ties rank by column.

        Returns:
            int64 [mentions]; -1 if no answer is right.
        """
        is_right = self.mark_right()
        best = np.where(is_right, self.scores, -np.inf).argmax(1)
        best_scores = self.scores[np.arange(len(best)), best][:, None]

        is_before = np.arange(self.scores.shape[1])[None, :] < best[:, None]
        is_higher = (self.scores > best_scores) | ((self.scores == best_scores) & is_before)
        return np.where(is_right.any(1), is_higher.sum(1), -1)

    def compute_losses(self) -> np.ndarray:
        """Computes the negative log-probability of the right answers, in nats.

        Returns:
            float64 [mentions]; NaN if no answer is right.
        """
        is_right = self.mark_right()
        right_log_probabilities = np.where(is_right, self.compute_log_probabilities(), -np.inf)
        losses = -np.logaddexp.reduce(right_log_probabilities, axis=1)
        return np.where(is_right.any(1), losses, np.nan)

    def pick_answers(self) -> tuple[np.ndarray, np.ndarray]:
        """Picks the best candidate of each mention.

        Returns:
            The entities, int64 [mentions] (-1: no candidates, 0: NIL), and their probabilities
            among the candidates of the mention, float64 [mentions].
        """
        shares = np.exp(self.compute_log_probabilities())
        rows = np.arange(len(shares))
        best = shares.argmax(1)

        nil = np.full((len(shares), 1), NIL)
        entities = np.concatenate([self.candidates.entities, nil], axis=1)
        return entities[rows, best], shares[rows, best]

    def build_records(self) -> np.ndarray:
        """Builds a structured array [mentions] with the fields of `_RECORD_FIELDS`."""
        entities, shares = self.pick_answers()
        # In the order of the fields
        columns = [
            self.rank_gold(),
            self.candidates.gold_position,
            (self.candidates.entities >= 0).sum(1),
            self.compute_losses(),
            entities,
            shares,
        ]
        return np.rec.fromarrays(columns, dtype=[*_RECORD_FIELDS.items()])

    def compute_log_probabilities(self) -> np.ndarray:
        """Computes the log-probability of each answer among the answers of its mention.

        Returns:
            float64 [mentions, K (+1)].
        """
        scores = self.scores.astype(np.float64)
        top = scores.max(1, keepdims=True)
        top = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return scores - top - np.log(np.exp(scores - top).sum(1, keepdims=True))


class Scorer:
    """Scores the candidates of mentions with a model.

    Args:
        model: The bi-encoder in evaluation mode, which may be wrapped by an engine.
        embeddings: Returns the embeddings of entities.
    """

    def __init__(
        self, model: nn.Module, data: RunData, embeddings: Embeddings, device: torch.device
    ) -> None:
        self._model = model
        self._table = data.table
        self._texts = MentionTexts(data.tokenizer, data.config)
        self._embeddings = embeddings
        self._device = device
        self._precision = data.config.mixed_precision

    def __call__(self, rows: Sequence[Row]) -> ScoredCandidates:
        """Scores the candidates of all mentions of rows with at least one mention."""
        mentions = Mentions(rows)
        candidates = find_candidates(self._table, mentions.aliases, mentions.entities)

        # The model compares all mentions with all candidates of the batch, which are columns.
        entities, columns = assign_columns(candidates.entities)
        shape = (len(columns), len(entities))
        prior = scatter_columns(np.zeros((*shape, 2), np.float32), columns, candidates.prior)
        allowed = scatter_columns(np.zeros(shape, bool), columns, True)

        tensors, _ = self._texts.build_tensors(rows)
        tensors |= {
            "entities": torch.from_numpy(self._embeddings(entities)),
            "prior": torch.from_numpy(prior),
            "allowed": torch.from_numpy(allowed),
        }
        output = run_model(self._model, tensors, self._device, self._precision)
        assert output.scores is not None
        all_scores = output.scores.float().cpu().numpy()

        nil_scores, scores = np.split(all_scores, [all_scores.shape[1] - len(entities)], axis=1)
        scores = np.take_along_axis(scores, columns.clip(min=0), axis=1)
        scores = np.where(columns >= 0, scores, -np.inf)
        return ScoredCandidates(candidates, np.concatenate([scores, nil_scores], axis=1))


def compute_candidate_embeddings(
    data: RunData, model: nn.Module, rows: Sequence[Row], context: Processes
) -> Embeddings:
    """Computes the embeddings of all candidates in rows; see `score_mentions` for the arguments."""
    entities = np.union1d(data.table.find_all_candidates(Mentions(rows).aliases), [NIL])
    encoder = EntityEncoder(model, data.texts, context.device, data.config.mixed_precision)
    return compute_split_embeddings(entities, encoder, data.frozen, context)


def score_mentions(
    data: RunData,
    model: nn.Module,
    rows: Sequence[Row],
    context: Processes,
    *,
    counts: np.ndarray | None = None,
    embeddings: Embeddings | None = None,
) -> Scored:
    """Scores the mentions of rows, all of them gold.

    Every process calls this function, and gets the same result.

    Args:
        model: The bi-encoder in evaluation mode, which may be wrapped by an engine.
        rows: At least one, each with a mention.
        counts: int64 [entities]: the training counts that determine bands; None: those of `data`.
        embeddings: The embeddings of the candidates; None: they are computed.
    """
    if embeddings is None:
        embeddings = compute_candidate_embeddings(data, model, rows, context)
    scorer = Scorer(model, data, embeddings, context.device)

    def score_batch(batch: np.ndarray) -> list[np.ndarray]:
        batch_rows = [rows[number] for number in batch]
        row_ends = np.cumsum([len(row.aliases) for row in batch_rows])
        return np.split(scorer(batch_rows).build_records(), row_ends[:-1])

    batch_size = data.config.data_config.per_device_eval_batch_size
    batches = sort_into_batches([len(row.tokens) for row in rows], batch_size)
    records = np.concatenate(run_on_all_ranks(batches, score_batch, context))

    mentions = Mentions(rows)
    gold = mentions.entities
    training_counts = data.counts if counts is None else counts
    slice_names: list[tuple[str, ...]] = []
    for row in rows:
        slice_names += row.slices

    return Scored(
        **{name: records[name] for name in _RECORD_FIELDS},
        counts=np.where(gold >= 0, training_counts[gold], 0).max(1),
        documents=mentions.documents,
        line_slices=mark_line_slices(slice_names),
        sentences=mentions.sentences,
        positions=mentions.positions,
        aliases=mentions.aliases,
        gold=gold,
    )


def run_evaluation(
    config: EvaluateConfig, locations: Sequence[checkpoints.Location], context: Processes
) -> list[Path]:
    """Scores checkpoints on all processes; rank 0 writes and prints a report on each.

    Returns:
        The folders of the reports that this process wrote; none except on rank 0.

    Raises:
        UserError: If a key has no effect for this task, or a model or the data cannot be used.
    """
    checkpoints.check_evaluation_keys(config, "task=disambiguation", "per_device_eval_batch_size")
    folders = []
    for location in locations:
        train = checkpoints.read_training_config(config, location, DisambiguationConfig)
        train = checkpoints.replace_initial_model(train, location)
        batch_size = config.per_device_eval_batch_size
        if batch_size is not None:
            train = replace_values(train, {"data_config.per_device_eval_batch_size": batch_size})
        data = RunData(train)

        if context.is_main:
            _announce_sentences(config, location, train)
        if config.validation_file is not None:
            sentences: Sentences | None = data.open_file(Path(config.validation_file))
        else:
            sentences = open_final_split(data)
        if sentences is None:
            raise DataError(
                f"checkpoint={location.name}: its run has neither a dev_file nor a test_file; name "
                "sentences: validation_file=FILE"
            )

        model = data.load_model(Path(location.model)).to(context.device)
        refuse_model_without_detector(train.mention_detection, model, Path(location.model))
        folder = Path()  # only rank 0 writes
        if context.is_main:
            has_other_data = config.validation_file is not None
            folder = checkpoints.choose_report_folder(
                config, location, has_other_data=has_other_data
            )
            folders.append(folder)
        score_and_report(data, model, sentences, context, location.name, folder)
    return folders


def _announce_sentences(
    config: EvaluateConfig, location: checkpoints.Location, train: DisambiguationConfig
) -> None:
    data = train.data_config
    path = config.validation_file or data.test_file or data.dev_file
    key = "data_config.test_file" if data.test_file else "data_config.dev_file"
    checkpoints.announce_data(config, location, key, path)


def open_final_split(data: RunData) -> Sentences | None:
    """Opens the split of the final evaluation: test, or dev if there is no test split."""
    return data.open_split("test") or data.open_split("dev")


class FinalScores(NamedTuple):
    """The scores of a trained model on a split."""

    mentions: Scored
    detection: dict[str, SpanCounts]  # by system; empty for a model without a mention detector


def score_and_report(
    data: RunData,
    model: BiEncoder,
    sentences: Sentences,
    context: Processes,
    checkpoint: str,
    folder: Path,
) -> FinalScores:
    """Scores sentences with a trained model on all processes; rank 0 writes the report.

    Args:
        checkpoint: The name of the model in the report.
        folder: The folder of the report.
    """
    config = data.config
    slice_names = {*BUILT_IN_SLICES, *sentences.facts["slices"]}
    missing = [name for name in config.eval_slices or [] if name not in slice_names]
    if missing and context.rank == 0:
        logger.warning("%s: its lines define no slice %s", sentences.path, ", ".join(missing))

    rows = sentences.read_gold()
    scored = score_mentions(data, model, rows, context)
    others = {}
    if config.compare_with is not None:
        run_name = Path(config.compare_with).resolve().name.replace("_", " ")
        others[run_name] = _score_compared_model(data, sentences, scored, context).is_right

    detection = {}
    if model.settings.has_detector:
        held_out = read_marked_texts(sentences.path)
        detection = measure_detection(data, model, held_out, context)

    if context.rank == 0:
        results = compute_results(
            scored,
            others,
            source=sentences.path.name,
            chosen=config.eval_slices,
            notes=_note_training_sentences(data, rows, sentences.path.name),
            resamples=config.bootstrap_resamples,
            seed=config.seed,
        )
        facts = {
            "checkpoint": checkpoint,
            "intervals": f"bootstrap over documents, {config.bootstrap_resamples:,} resamples, "
            f"seed {config.seed}",
        }
        records = build_mention_records(scored, data.table, others)
        detection_results = None
        if detection:
            detection_results = compute_detection_results(
                detection, resamples=config.bootstrap_resamples, seed=config.seed
            )
        report_results(results, records, folder, facts, detection_results)
    return FinalScores(scored, detection)


def _note_training_sentences(data: RunData, rows: Sequence[Row], source: str) -> list[str]:
    """Returns a note with the number of sentences that are also in the training data, if any.

    Args:
        rows: The rows of the scored sentences.
        source: The file of the sentences, for a warning.
    """
    num_shared = count_shared_sentences(rows, data.train)
    if num_shared == 0:
        return []
    num_sentences = len({row.sentence for row in rows})
    note = f"{num_shared:,} of {num_sentences:,} sentences are in the training data, too"
    logger.warning("%s: %s", source, note)
    return [note]


def _score_compared_model(
    data: RunData, sentences: Sentences, scored: Scored, context: Processes
) -> Scored:
    """Scores the same mentions with the model of `compare_with` and its own settings.

    Raises:
        DataError: If its rows do not have the same mentions.
    """
    location, other_data = open_compared_data(data.config)
    model = data.load_model(Path(location.model)).to(context.device)
    rows = other_data.open_file(sentences.path).read_gold()
    other = score_mentions(other_data, model, rows, context, counts=data.counts)

    for name in ("sentences", "positions"):
        if not np.array_equal(getattr(other, name), getattr(scored, name)):
            raise DataError(
                f"compare_with={data.config.compare_with}: the rows of its model do not hold the "
                f"same mentions of {sentences.path}; raise data_config.max_words, or leave out the "
                "mentions that prep reports"
            )
    return other


def open_compared_data(config: DisambiguationConfig) -> tuple[checkpoints.Location, RunData]:
    """Locates the model of `compare_with`, and opens this run's data with that model's settings.

    Raises:
        ConfigurationError: If it is not a model of this task.
    """
    location = checkpoints.locate_model(str(config.compare_with))
    if location.config is None:
        raise ConfigurationError(
            f"compare_with={config.compare_with}: there is no config.yaml beside the model"
        )

    other = read_saved_config(location.config, {"disambiguation": TASKS["disambiguation"]}, {})
    assert isinstance(other, DisambiguationConfig)
    data = config.data_config
    other_data = replace(
        other.data_config,
        train_file=data.train_file,
        entity_table=data.entity_table,
        prep_dir=data.prep_dir,
        max_mentions=data.max_mentions,
        max_words=data.max_words,
    )
    other = checkpoints.replace_initial_model(replace(other, data_config=other_data), location)
    return location, RunData(other)
