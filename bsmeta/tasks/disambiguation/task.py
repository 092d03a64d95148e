"""The task: model, stream, loss, evaluation and export; `finish` scores the test set at the end.

Before the first step, all splits are encoded, and slices and the compared model are checked, so
that errors in them are reported at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import ConfigurationError, suggest_nearest
from bsmeta.core.signals import release_signals
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import SimilarLengthSteps, TableStream
from bsmeta.models.exporting import cast_weights, record_dtype
from bsmeta.tasks.disambiguation import evaluate, report
from bsmeta.tasks.disambiguation import model as models
from bsmeta.tasks.disambiguation.config import DICTIONARY, DisambiguationConfig
from bsmeta.tasks.disambiguation.data import SPLITS, RunData, TrainingBatches
from bsmeta.tasks.disambiguation.detection_evaluation import (
    MarkedTexts,
    measure_detection,
    read_marked_texts,
)
from bsmeta.tasks.disambiguation.detection_metrics import MENTION_METRICS, SpanCounts
from bsmeta.tasks.disambiguation.dictionary import DETECTION_VERSION
from bsmeta.tasks.disambiguation.lines import ALL_MENTIONS
from bsmeta.tasks.disambiguation.mention_detection import refuse_model_without_detector
from bsmeta.tasks.disambiguation.metrics import (
    IN_CANDIDATES,
    METRICS,
    SLICE_METRICS,
    list_slice_metrics,
)
from bsmeta.tasks.disambiguation.model import BiEncoder
from bsmeta.tasks.disambiguation.predict import Predictor, parse_given_mentions
from bsmeta.tasks.disambiguation.tagging import compute_tag_loss
from bsmeta.tasks.disambiguation.texts import Row
from bsmeta.tasks.model_card import write_task_card
from bsmeta.training.ranks.processes import FinishContext, Processes
from bsmeta.training.task import Loss, Metric, Task

logger = logging.getLogger(__name__)

LOSS_INPUTS = ("targets", "tags", "tag_weights")
"""Tensors of a micro-batch that are not inputs of the model."""


class EntityDisambiguator(Task):
    """Predicts the entity of each mention among its candidates."""

    def __init__(self, config: DisambiguationConfig) -> None:
        self._config = config
        self.data = RunData(config)

    def build_model(self) -> BiEncoder:
        return models.build_model(self._config, self.data.tokenizer)

    def _build_order(self, world_size: int) -> SimilarLengthSteps:
        batch_size = BatchPlan.of(self._config, world_size).global_batch
        return SimilarLengthSteps(self.data.train.lengths, batch_size, self._config.seed)

    def steps_per_epoch(self, world_size: int) -> int:
        check_data(self.data)  # here, because the trainer calls this first
        return self._build_order(world_size).steps_per_epoch

    @cached_property
    def _batches(self) -> TrainingBatches:
        return TrainingBatches(self.data)

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> TableStream:
        config = self._config
        if state is not None:
            self.data.refuse_edited_table(state["fingerprint"]["entities"])
        batches = self._batches
        sentences = self.data.train

        def collate(rows: np.ndarray, epoch: int) -> MicroBatch:
            return batches.build_micro_batch(sentences.read(rows), epoch)

        return TableStream(
            self._build_order(world_size),
            collate,
            rank=rank,
            world_size=world_size,
            accumulation=config.gradient_accumulation_steps,
            num_workers=config.data_config.num_workers,
            fingerprint={
                "train_file": sentences.key,
                "entities": self.data.table.fingerprint,
                "seed": config.seed,
            },
            state=state,
        )

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the sum over mentions of the negative log-probability of the right entities.

        The probability is a softmax over the compared entities; the probabilities of several right
        entities are added. With a mention detector, the loss of its tags is added.

        Args:
            batch: The inputs of `BiEncoder.forward`; `targets`, bool [mentions, scores]: the right
                entities (mentions without targets are not trained on); and with a mention detector
                the inputs of `compute_tag_loss`.
        """
        inputs = {name: tensor for name, tensor in batch.items() if name not in LOSS_INPUTS}
        output = model(**inputs)
        all_scores = output.scores.float()
        is_trained = batch["targets"].any(1)
        scores = all_scores[is_trained]
        targets = batch["targets"][is_trained]

        losses = -scores.log_softmax(1).masked_fill(~targets, -torch.inf).logsumexp(1)
        right = targets.gather(1, scores.detach().argmax(1, keepdim=True)).float()
        parts = {"accuracy": (right.sum(), is_trained.float().sum())}
        if output.tag_scores is None:
            return Loss(losses.sum(), parts)

        weights = batch["tag_weights"]
        tag_loss = compute_tag_loss(output.tag_scores, batch["tags"], weights)
        parts["tag_loss"] = (tag_loss.detach(), weights.sum())
        return Loss(losses.sum() + self._config.detection_loss_weight * tag_loss, parts)

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Scores the gold mentions of the dev split; returns [] if there is none."""
        if self._dev_rows is None:
            return []
        scored = evaluate.score_mentions(self.data, model, self._dev_rows, context)
        metrics = build_metrics(scored, self._config, "validation")
        if self._config.mention_detection == DICTIONARY:
            return metrics
        detection = measure_detection(self.data, model, self._dev_texts, context)
        return metrics + build_mention_metrics(detection, self._config, "validation")

    @cached_property
    def _dev_texts(self) -> MarkedTexts:
        return read_marked_texts(Path(str(self._config.data_config.dev_file)))

    @cached_property
    def _dev_rows(self) -> list[Row] | None:
        dev = self.data.open_split("dev")
        return None if dev is None else dev.read_gold()

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Scores the test split, or else the dev split, with the exported model."""
        sentences = evaluate.open_final_split(self.data)
        if sentences is None:
            return []

        exported = models.load_model(context.exported / "model").to(context.device)
        scores = evaluate.score_and_report(
            self.data,
            exported,
            sentences,
            context,
            checkpoint=str(context.exported),
            folder=context.folder / "evaluation",
        )
        metrics = build_metrics(scores.mentions, self._config, "test")
        return metrics + build_mention_metrics(scores.detection, self._config, "test")

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        assert isinstance(model, BiEncoder)
        export_dtype = self._config.export_dtype
        exported = cast_weights(weights, export_dtype)
        models.save_model(model, exported, folder, self.data.table.fingerprint)
        record_dtype(folder, export_dtype)
        self.data.tokenizer.save_pretrained(str(folder))
        write_task_card(
            self._config,
            folder,
            pipeline_tag="token-classification",
            about="Links the mentions in a text to the entities of a table.",
            prediction="input=texts.jsonl output=entities.jsonl",
        )

    def load(self, folder: Path) -> nn.Module:
        model = self.data.load_model(folder)
        refuse_model_without_detector(self._config.mention_detection, model, folder)
        return model

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("text",)

    def data_fingerprint(self) -> Any:
        return {"entities": self.data.table.fingerprint, "detection": DETECTION_VERSION}

    def check_record(self, record: Mapping[str, Any]) -> None:
        """Checks the mentions that a record names."""
        parse_given_mentions(record)

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields the entities of each record's text; see `Predictor`."""
        yield from self.predictor(model)(records)

    def predictor(self, model: nn.Module) -> Predictor:
        """Makes a predictor with a model, which can be called several times."""
        assert isinstance(model, BiEncoder)
        return Predictor(self.data, model)


def build_metrics(scored: report.Scored, config: DisambiguationConfig, split: str) -> list[Metric]:
    """Computes the metrics of each slice; their names are described in `metrics`."""
    everything = report.rank_mentions(scored, np.ones(len(scored.rank), bool))
    metrics = [
        Metric(name, metric.compute(everything), metric.better, split)
        for name, metric in METRICS.items()
        if name not in SLICE_METRICS
    ]
    for slice_name, members in report.select_slices(scored, config.eval_slices).items():
        prefix = "" if slice_name == ALL_MENTIONS else f"{slice_name}_"
        for name, value in report.compute_metrics(scored, members).items():
            better = METRICS[name.removesuffix(IN_CANDIDATES)].better
            metrics.append(Metric(prefix + name, value, better, split))
    return metrics


def build_mention_metrics(
    detection: Mapping[str, SpanCounts], config: DisambiguationConfig, split: str
) -> list[Metric]:
    """Computes the metrics of the configured detection of mentions.

    Args:
        detection: The counts of each system; empty without a trained detector.
    """
    if not detection:
        return []
    counts = detection[config.mention_detection]
    return [
        Metric(name, metric.compute(counts), metric.better, split)
        for name, metric in MENTION_METRICS.items()
    ]


def prepare_data(config: DisambiguationConfig) -> None:
    """Encodes the sentences of all splits, and computes the cached inputs of training."""
    release_signals()  # a signal may end the process at once; the next call continues
    data = RunData(config)
    check_data(data)
    data.compute_frozen_outputs()
    data.neighbors  # noqa: B018 - computed when it is first read


def check_data(data: RunData) -> None:
    """Opens all splits, and encodes missing ones; every process calls this function.

    Raises:
        DataError: If lines are invalid, or a held-out split has no gold mention.
        ConfigurationError: If a store is stale, or a configured slice, metric or model does not
            exist.
    """
    config = data.config
    splits = {name: data.open_split(name) for name in SPLITS}
    held_out = []
    line_slices: set[str] = set()
    for name, sentences in splits.items():
        if sentences is not None and name != "train":
            held_out.append(sentences)
            line_slices |= {*sentences.facts["slices"]}

    for name in line_slices & {*report.BUILT_IN_SLICES}:
        logger.warning(
            "the lines define the slice %s, too; theirs is %s", name, report.rename_line_slice(name)
        )
    _check_slices(config, sorted(line_slices))
    if held_out:
        _check_best_metric(config, sorted(line_slices))

    for sentences in held_out:
        sentences.read_gold()
    final_split = splits["test"] or splits["dev"]
    if config.compare_with is not None and final_split is not None:
        _, compared_data = evaluate.open_compared_data(config)
        compared_data.open_file(final_split.path)


def _check_slices(config: DisambiguationConfig, line_slices: list[str]) -> None:
    """Raises ConfigurationError if `eval_slices` has an unknown name."""
    available = [*dict.fromkeys([*report.BUILT_IN_SLICES, *line_slices])]
    for name in config.eval_slices or []:
        if name not in available:
            raise ConfigurationError(
                f"eval_slices: there is no slice {name!r}{suggest_nearest(name, available)}; "
                f"expected some of {', '.join(available)}",
                ["eval_slices"],
            )


def _check_best_metric(config: DisambiguationConfig, line_slices: list[str]) -> None:
    """Raises ConfigurationError if `keep_best_by` is not a metric of the evaluations."""
    names = [*_list_metric_names(config, line_slices)]
    if config.keep_best_by is not None and config.keep_best_by not in names:
        raise ConfigurationError(
            f"keep_best_by={config.keep_best_by}: evaluations have no such metric"
            f"{suggest_nearest(config.keep_best_by, names)}; expected one of {', '.join(names)}",
            ["keep_best_by"],
        )


def _list_metric_names(config: DisambiguationConfig, line_slices: list[str]) -> Iterator[str]:
    """Yields the names of metrics by which the best checkpoint may be selected."""
    for name, metric in METRICS.items():
        if metric.better is not None and name not in SLICE_METRICS:
            yield name
    if config.mention_detection != DICTIONARY:
        yield from MENTION_METRICS
    for name in (*report.BUILT_IN_SLICES, *map(report.rename_line_slice, line_slices)):
        if report.is_reported(name, config.eval_slices):
            prefix = "" if name == ALL_MENTIONS else f"{name}_"
            yield from list_slice_metrics(prefix)
