"""The task: model, steps, loss, evaluation and export; `finish` does the test set at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bsmeta.config.steps import BatchPlan
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import FixedSize, TableStream
from bsmeta.data.text.tokenizer import padded_tokenizer_of
from bsmeta.tasks.classification import model as models
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.evaluate import finish
from bsmeta.tasks.classification.examples import Chunk, Examples
from bsmeta.tasks.classification.folding import Folding
from bsmeta.tasks.classification.model import cross_entropies, label_weights
from bsmeta.tasks.classification.predictions import named_probabilities, predictions, score
from bsmeta.tasks.classification.store import open_examples
from bsmeta.training.batches import batched
from bsmeta.training.task import EvaluationContext, FinishContext, Loss, Metric, Shape

TEXTS_AT_ONCE = 1000
"""Texts that `predict` folds and sorts by length at one time."""


class TextClassifier:
    """Predicts the label of a text; a long text is folded into chunks, each a row of a batch."""

    def __init__(self, config: ClassificationConfig) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._config = config
        self.tokenizer = padded_tokenizer_of(config.tokenizer_name or config.model_name)
        self._validation: list[Chunk] | None = None

    @cached_property
    def examples(self) -> Examples:
        """The table, whose database is built first if there is none."""
        return open_examples(self._config.data_config, self.tokenizer)

    @cached_property
    def _weights(self) -> list[float]:
        examples = self.examples
        return label_weights(
            self._config.class_weights, examples.labels, examples.label_counts("train")
        )

    def build_model(self) -> PreTrainedModel:
        return models.build_model(self._config, self.tokenizer, self.examples.labels)

    def shape(self) -> Shape:
        with torch.device("meta"):
            model = self.build_model()
        model.config.vocab_size = len(self.examples.labels)  # the logits of a position, as counted
        data = self._config.data_config
        return Shape(model, rows=data.per_device_train_batch_size, length=data.max_length)

    def steps_per_epoch(self, world_size: int) -> int:
        return order_of(self._config, self.examples, world_size).steps_per_epoch

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> TableStream:
        weights, name = self._weights, Path(str(self._config.data_config.csv)).name

        def collate(chunks: list[Chunk]) -> MicroBatch:
            return micro_batch(chunks, self.tokenizer, weights, name)

        return train_stream(
            self._config, self.examples, collate, rank=rank, world_size=world_size, state=state
        )

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the weighted loss of the chunks, and the share of them that is predicted right.

        Args:
            model: The wrapped model.
            batch: `input_ids`, `attention_mask` (int64 [chunks, tokens]), `labels` (int64 [chunks])
                and `weights` (float [chunks]).
        """
        labels = batch["labels"]
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        losses = cross_entropies(logits.float(), labels, self._config.label_smoothing)
        right = (logits.detach().argmax(1) == labels).float()
        return Loss(
            (losses * batch["weights"]).sum(),
            {"accuracy": (right.sum(), torch.ones_like(right).sum())},
        )

    def evaluate(self, model: nn.Module, context: EvaluationContext) -> list[Metric]:
        """Scores the validation split; [] if there is none."""
        if self._validation is None:
            self._validation = self.examples.read(self.examples.chunks("validation"))
        if not self._validation:
            return []
        batch_size = self._config.data_config.per_device_eval_batch_size
        scored = score(
            model, self._validation, len(self.examples.labels), self.tokenizer, batch_size,
            context, self._config.label_smoothing,
        )  # fmt: skip
        return metrics(scored.scores(self._weights), "validation")

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Scores the test split, once, with the exported model; writes results and report."""
        exported = models.load_model(context.exported / "model").to(context.device)
        found = finish(
            self._config,
            exported,
            self.examples,
            self.tokenizer,
            self._weights,
            self.steps_per_epoch(context.world_size),
            context,
        )
        return metrics(found, "test")

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        model.save_pretrained(folder, state_dict=weights)  # type: ignore[operator]
        self.tokenizer.save_pretrained(str(folder))

    def load(self, folder: Path) -> nn.Module:
        return models.load_model(folder)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self._config.data_config.text_column,)

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields the predicted label of each record's text, its probabilities, and its chunks.

        The text is in the text column of the training table, `data_config.text_column`. For a text
        without tokens the prediction is None.
        """
        data = self._config.data_config
        folding = Folding(self.tokenizer, data.fold_by, data.max_length)
        context = EvaluationContext.alone(next(model.parameters()).device)
        names: dict[int, str] = model.config.id2label  # type: ignore[union-attr, assignment]
        labels = [names[number] for number in range(len(names))]
        for batch in batched(records, TEXTS_AT_ONCE):
            folded = folding.fold([str(record[data.text_column]) for record in batch])
            chunks = [
                Chunk(fold.ids, 0, text, number, fold.text)
                for text, folds in enumerate(folded)
                for number, fold in enumerate(folds)
            ]
            size = data.per_device_eval_batch_size
            found: dict[int, dict[str, Any]] = {}
            if chunks:
                scored = score(model, chunks, len(labels), self.tokenizer, size, context)
                found = dict(zip(scored.sources.tolist(), predictions(scored, labels), strict=True))
            nothing = {"prediction": None, **named_probabilities(None, labels), "chunks": 0}
            yield from (found.get(text, nothing) for text in range(len(batch)))


def metrics(values: Mapping[str, float], split: str) -> list[Metric]:
    """The scores of a split as metrics."""
    return [
        Metric(name, value, better="min" if name == "loss" else "max", split=split)
        for name, value in values.items()
    ]


def micro_batch(
    chunks: Sequence[Chunk], tokenizer: PreTrainedTokenizerBase, weights: Sequence[float], name: str
) -> MicroBatch:
    """Builds a micro-batch; the weight of a chunk is that of its label.

    Args:
        chunks: At least one.
        tokenizer: Pads them.
        weights: The weight of each label.
        name: The file that `log_documents` names, with the source row.
    """
    tensors = models.pad(tokenizer, [chunk.ids for chunk in chunks])
    own = [weights[chunk.label] for chunk in chunks]
    tokens = sum(len(chunk.ids) for chunk in chunks)
    return MicroBatch(
        tensors={
            **tensors,
            "labels": torch.tensor([chunk.label for chunk in chunks]),
            "weights": torch.tensor(own),
        },
        weight=sum(own),
        tokens=tokens,
        padding=tensors["input_ids"].numel() - tokens,
        documents=[f"{name}:{chunk.source}" for chunk in chunks],
        counts={"chunks": float(len(chunks)), "weight": sum(own)},
    )


def order_of(config: ClassificationConfig, examples: Examples, world_size: int) -> FixedSize:
    """The steps of every epoch; the last of an epoch has the remaining chunks.

    Args:
        config: The run.
        examples: Its data.
        world_size: Number of processes; together with the size of a micro-batch and the
            accumulation it gives the size of a step, on which alone the steps depend.
    """
    batch_size = BatchPlan.of(config, world_size).global_batch
    return FixedSize(len(examples.chunks("train")), batch_size, config.seed)


def train_stream(
    config: ClassificationConfig,
    examples: Examples,
    collate: Callable[[list[Chunk]], MicroBatch],
    *,
    rank: int,
    world_size: int,
    state: dict[str, Any] | None,
) -> TableStream:
    """This rank's steps, from a saved state or from the beginning.

    Args:
        config: The run.
        examples: Its data.
        collate: Builds a micro-batch; called in the loader workers.
        rank: This process.
        world_size: Number of processes.
        state: As saved with a checkpoint; None starts from the beginning.
    """
    chunks = examples.chunks("train")

    def read(rows: np.ndarray, epoch: int) -> MicroBatch:
        return collate(examples.read(chunks[rows]))

    return TableStream(
        order_of(config, examples, world_size),
        read,
        rank=rank,
        world_size=world_size,
        accumulation=config.gradient_accumulation_steps,
        num_workers=config.data_config.num_workers,
        fingerprint={**examples.key, "seed": config.seed},
        state=state,
    )
