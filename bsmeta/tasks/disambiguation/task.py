"""The task: model, stream, loss, evaluation and export; `finish` scores the test set at the end.

Before the first step, all splits are encoded and every evaluation input is checked, so that errors
in files, slices or the compared model surface at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import ConfigurationError, nearest
from bsmeta.core.signals import release_signals
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import SimilarLengths, TableStream
from bsmeta.tasks.disambiguation import evaluate, report
from bsmeta.tasks.disambiguation import model as models
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.data import SPLITS, Data, TrainingBatches
from bsmeta.tasks.disambiguation.lines import ALL_MENTIONS
from bsmeta.tasks.disambiguation.model import BiEncoder
from bsmeta.tasks.disambiguation.predict import (
    Detector,
    Predictor,
    given_mentions,
    open_detector,
)
from bsmeta.tasks.disambiguation.texts import Row
from bsmeta.tasks.model_card import write_task_card
from bsmeta.training.processes import FinishContext, Processes
from bsmeta.training.task import Loss, Metric, Task

log = logging.getLogger(__name__)


class EntityDisambiguator(Task):
    """Predicts which of its candidates a mention means."""

    def __init__(self, config: DisambiguationConfig) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._config = config
        self.data = Data(config)

    def build_model(self) -> BiEncoder:
        return models.build_model(self._config, self.data.tokenizer)

    def _order(self, world_size: int) -> SimilarLengths:
        batch_size = BatchPlan.of(self._config, world_size).global_batch
        return SimilarLengths(self.data.train.lengths, batch_size, self._config.seed)

    def steps_per_epoch(self, world_size: int) -> int:
        check_data(self.data)  # the trainer asks for this first
        return self._order(world_size).steps_per_epoch

    @cached_property
    def _batches(self) -> TrainingBatches:
        return TrainingBatches(self.data)

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> TableStream:
        batches, sentences, config = self._batches, self.data.train, self._config

        def collate(rows: np.ndarray, epoch: int) -> MicroBatch:
            return batches.micro_batch(sentences.read(rows), epoch)

        return TableStream(
            self._order(world_size),
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
        """Computes minus the log-probability of the entities that each mention means.

        The probability is over the entities that the mention is compared with; those of several
        right ones are added. The batch has the inputs of `BiEncoder.forward`, and `targets`, bool
        [mentions, scores]: the right ones (none: not trained on).
        """
        targets = batch["targets"]
        scores = model(**{name: batch[name] for name in batch if name != "targets"}).scores.float()
        is_trained = targets.any(1)
        scores, targets = scores[is_trained], targets[is_trained]
        losses = -scores.log_softmax(1).masked_fill(~targets, -torch.inf).logsumexp(1)
        right = targets.gather(1, scores.detach().argmax(1, keepdim=True)).float()
        parts = {"accuracy": (right.sum(), is_trained.float().sum())}
        return Loss(losses.sum(), parts)

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Scores the gold mentions of the dev split; [] if there is none."""
        if self._dev_rows is None:
            return []
        scored = evaluate.score(self.data, model, self._dev_rows, context)
        return metrics(scored, self._config, "validation")

    @cached_property
    def _dev_rows(self) -> list[Row] | None:
        dev = self.data.split("dev")
        return None if dev is None else dev.gold()

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Scores the test split (without one, the dev split), once, with the exported model."""
        sentences = evaluate.last_split(self.data)
        if sentences is None:
            return []
        exported = models.load_model(context.exported / "model").to(context.device)
        name, folder = str(context.exported), context.folder / "evaluation"
        scored = evaluate.score_and_report(self.data, exported, sentences, context, name, folder)
        return metrics(scored, self._config, "test")

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        assert isinstance(model, BiEncoder)
        models.save_model(model, weights, folder)
        self.data.tokenizer.save_pretrained(str(folder))
        write_task_card(
            self._config,
            folder,
            pipeline_tag="token-classification",
            about="Links the mentions in a text to the entities of a table.",
            prediction="input=texts.jsonl output=entities.jsonl",
        )

    def load(self, folder: Path) -> nn.Module:
        return models.load_model(folder)

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("text",)

    def data_fingerprint(self) -> Any:
        return self.data.table.fingerprint

    def check_record(self, record: Mapping[str, Any]) -> None:
        """Checks the mentions that a record names."""
        given_mentions(record)

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields the entities of each record's text; see `Predictor`."""
        yield from self.predictor(model)(records)

    def predictor(self, model: nn.Module) -> Predictor:
        """Disambiguates with a model, for those who predict more than once."""
        assert isinstance(model, BiEncoder)
        return Predictor(self.data, model, lambda: self._detector)

    @cached_property
    def _detector(self) -> Detector:
        data = self.data
        return open_detector(self._config.data_config, data.table, data.prep_dir / "forms")


def metrics(scored: report.Scored, config: DisambiguationConfig, split: str) -> list[Metric]:
    """The metrics of every slice; those of all mentions without a prefix."""
    found = [Metric("loss", float(np.nanmean(scored.loss)), "min", split)]
    for name, members in report.slices_of(scored, config.eval_slices).items():
        prefix = "" if name == ALL_MENTIONS else f"{name}_"
        for metric, value in report.metrics_of(scored, members).items():
            is_count = metric.startswith("mentions")
            found.append(Metric(prefix + metric, value, None if is_count else "max", split))
    return found


def prepare(config: DisambiguationConfig) -> None:
    """Encodes the sentences of all splits, and what else is computed once for the training."""
    release_signals()  # nothing to save: a signal ends the process, and the next call continues
    data = Data(config)
    check_data(data)
    data.fill_frozen()
    data.neighbors  # noqa: B018 - computed when it is first read


def check_data(data: Data) -> None:
    """Opens all splits, encoding what is not encoded yet; every process calls it.

    Raises:
        DataError: If lines are invalid, or a held-out split has no gold mention.
        ConfigurationError: If a store is stale, or there is no such slice, metric or model.
    """
    config = data.config
    splits = {name: data.split(name) for name in SPLITS}
    held_out = [found for name, found in splits.items() if found is not None and name != "train"]
    own = sorted({name for sentences in held_out for name in sentences.facts["slices"]})
    for name in {*own} & {*report.BUILT_IN}:
        log.warning(
            "the lines define the slice %s, too; theirs is %s", name, report.name_of_own(name)
        )
    for name in config.eval_slices or []:
        known = [*dict.fromkeys([*report.BUILT_IN, *own])]
        if name not in known:
            raise ConfigurationError(
                f"eval_slices: there is no slice {name!r}{nearest(name, known)}; expected some of "
                f"{', '.join(known)}",
                ["eval_slices"],
            )
    names = [*_metric_names(config, own)]
    if config.keep_best_by is not None and held_out and config.keep_best_by not in names:
        raise ConfigurationError(
            f"keep_best_by={config.keep_best_by}: evaluations have no such metric"
            f"{nearest(config.keep_best_by, names)}; expected one of {', '.join(names)}",
            ["keep_best_by"],
        )
    for sentences in held_out:
        sentences.gold()
    last = splits["test"] or splits["dev"]
    if config.compare_with is not None and last is not None:
        evaluate.compared_data(config)[1].other(last.path)


def _metric_names(config: DisambiguationConfig, own: list[str]) -> Iterator[str]:
    """The metrics that can say which checkpoint is the best."""
    yield "loss"
    for name in (*report.BUILT_IN, *map(report.name_of_own, own)):
        if report.is_reported(name, config.eval_slices):
            prefix = "" if name == ALL_MENTIONS else f"{name}_"
            for quality in report.QUALITIES:
                yield f"{prefix}{quality}"
                yield f"{prefix}{quality}_in_candidates"
