"""The task: model, steps, loss, evaluation and export; `finish_run` scores the test set at the end.

The methods without training steps have a run of no steps, whose model is fitted before it. Under
`method=auto` these systems are fitted first, then the encoder is trained, and `finish_run` compares
all of them on the validation split.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import FixedSize, TableStream
from bsmeta.data.text.tokenizer import load_padded_tokenizer
from bsmeta.models.layers import list_layers
from bsmeta.tasks.classification import model as models
from bsmeta.tasks.classification.classifier import ENCODER, Classifier, measure_depths
from bsmeta.tasks.classification.config import (
    AUTO,
    FINE_TUNE,
    FITTED,
    FROZEN,
    HEAD,
    LINEAR,
    ClassificationConfig,
)
from bsmeta.tasks.classification.evaluate import finish_run
from bsmeta.tasks.classification.examples import (
    Chunk,
    Examples,
    Folding,
    make_chunks,
    open_examples,
)
from bsmeta.tasks.classification.metrics import METRICS
from bsmeta.tasks.classification.results import Choice, compute_scores
from bsmeta.tasks.classification.systems import (
    Systems,
    choose_system,
    open_systems,
    score_to_choose,
)
from bsmeta.tasks.model_card import write_task_card
from bsmeta.training.metric_values import make_metrics
from bsmeta.training.processes import FinishContext, Processes
from bsmeta.training.task import Loss, Metric, Shape, Task, split_into_lists

logger = logging.getLogger(__name__)

_LABELS_ON_CARD = 20
TEXTS_AT_ONCE = 1000  # texts that `predict` folds and sorts by length at one time


class TextClassifier(Task):
    """Predicts the label of a text; a long text is folded into chunks, each a row of a batch."""

    def __init__(self, config: ClassificationConfig) -> None:
        transformers.utils.logging.disable_progress_bar()
        self.config = config
        self.tokenizer = load_padded_tokenizer(config.tokenizer_name or config.model_name)
        self._systems: Systems | None = None
        self._validation: list[Chunk] | None = None
        self._depths: dict[str, int] = {}  # of the encoder's parameters, see `measure_depths`
        self._chosen: str | None = None  # the fitted system that `finish_run` has chosen for export

    @cached_property
    def examples(self) -> Examples:
        """The table, whose database is built first if there is none."""
        return open_examples(self.config.data_config, self.tokenizer)

    @cached_property
    def weights(self) -> list[float]:
        """The weight of each label."""
        examples = self.examples
        return models.label_weights(
            self.config.class_weights, examples.labels, examples.label_counts("train")
        )

    def fit_systems(self) -> Systems:
        """Fits the systems that the method needs, on the first call, or reads them from the run."""
        if self._systems is None:
            method = self.config.method
            methods: tuple[str, ...]
            if method == AUTO:
                methods = FITTED
            elif method == FINE_TUNE:
                methods = (FROZEN,)  # the head begins with its weights
            else:
                methods = (method,)
            self._systems = open_systems(self, methods)
        return self._systems

    def untouched_encoder(self) -> PreTrainedModel:
        """Builds the encoder before it is trained."""
        return models.build_untouched_encoder(self.config, self.tokenizer, self.examples.labels)

    def _load_system(self, method: str, encoder: PreTrainedModel | None = None) -> Classifier:
        """Loads a fitted system, on the untouched encoder if it needs one."""
        systems = self.fit_systems()
        if method not in systems.predicted:
            raise ConfigurationError(
                f"method={method}: {'; '.join(systems.notes)}; expected method=fine_tune "
                "head_start=random"
            )
        if method == LINEAR:
            return systems.load(method, None)
        return systems.load(method, encoder or self.untouched_encoder())

    def build_model(self) -> nn.Module:
        config = self.config
        if config.method in FITTED:
            model = self._load_system(config.method).train()
            if model.encoder is not None:
                model.encoder.requires_grad_(False)
            return model
        if config.pooling == HEAD:
            return models.build_with_head(config, self.tokenizer, self.examples.labels)

        starts_linear = config.head_start == "linear"
        is_trained = torch.get_default_device().type != "meta" and not config.estimate
        if is_trained and (config.method == AUTO or starts_linear):
            self.fit_systems()  # before the weights of this model take memory

        model = models.build_classifier(config, self.tokenizer, self.examples.labels)
        assert model.encoder is not None
        assert model.head is not None
        self._depths = measure_depths(model.encoder)
        if is_trained and starts_linear:
            self._start_linear(model.head)
        return model

    def _start_linear(self, head: nn.Linear) -> None:
        """Copies the weights of `method=frozen` into the head."""
        systems = self.fit_systems()
        if FROZEN not in systems.predicted:
            logger.warning("head_start=linear: random, because %s", systems.notes)
            return

        fitted_head = systems.load(FROZEN, None).head
        assert fitted_head is not None
        head.load_state_dict(fitted_head.state_dict())

    def rate_scale(self, name: str) -> float:
        depth = 0
        if name.startswith(ENCODER):
            depth = self._depths.get(name.removeprefix(ENCODER), 0)
        return float(self.config.layer_decay**depth)

    def shape(self) -> Shape:
        with torch.device("meta"):
            model = self.build_model()
        body = model.base_model if self.config.pooling == HEAD else model.encoder
        assert isinstance(body, nn.Module)

        data = self.config.data_config
        return Shape(
            model,
            body,
            list_layers(body),
            rows=data.per_device_train_batch_size,
            length=data.max_length,
            outputs=len(self.examples.labels),
        )

    def _order(self, world_size: int) -> FixedSize:
        """Plans the steps of every epoch; the last of an epoch has the remaining chunks.

        They depend on the size of a step alone: processes x micro-batch x accumulation.
        """
        batch_size = BatchPlan.of(self.config, world_size).global_batch
        return FixedSize(len(self.examples.list_chunks("train")), batch_size, self.config.seed)

    def steps_per_epoch(self, world_size: int) -> int:
        if self.config.method in FITTED:
            return 0
        return self._order(world_size).steps_per_epoch

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> TableStream:
        config = self.config
        examples = self.examples
        weights = self.weights
        chunk_ids = examples.list_chunks("train")
        file_name = Path(str(config.data_config.csv)).name

        def read(rows: np.ndarray, epoch: int) -> MicroBatch:
            return build_micro_batch(
                examples.read(chunk_ids[rows]), self.tokenizer, weights, file_name
            )

        return TableStream(
            self._order(world_size),
            read,
            rank=rank,
            world_size=world_size,
            accumulation=config.gradient_accumulation_steps,
            num_workers=config.data_config.num_workers,
            fingerprint={**examples.key, "seed": config.seed},
            state=state,
        )

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the weighted loss of the chunks, and the share that is predicted right."""
        labels = batch["labels"]
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        losses = functional.cross_entropy(
            logits.float(), labels, reduction="none", label_smoothing=self.config.label_smoothing
        )

        is_right = (logits.detach().argmax(1) == labels).float()
        return Loss(
            (losses * batch["weights"]).sum(),
            {"accuracy": (is_right.sum(), torch.ones_like(is_right).sum())},
        )

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Scores the validation split; [] if there is none."""
        if self._validation is None:
            self._validation = self.examples.read(self.examples.list_chunks("validation"))
        if not self._validation:
            return []
        scored = self.scorer(context).score(model, self._validation)
        return make_metrics(METRICS, compute_scores(scored, self.weights))

    def scorer(self, context: Processes) -> models.Scorer:
        """Returns a scorer of models in evaluations of this run."""
        return models.Scorer(
            labels=len(self.examples.labels),
            tokenizer=self.tokenizer,
            batch_size=self.config.data_config.per_device_eval_batch_size,
            context=context,
            smoothing=self.config.label_smoothing,
        )

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Scores the test split, once, with the exported model; writes results and report.

        Under `method=auto`, it first chooses the system to export, on the validation split.
        """
        exported = models.load_model(context.exported / "model").to(context.device)
        others: dict[str, nn.Module] = {}
        choice = None
        if self.config.method == AUTO:
            choice = self._choose(exported, context)
            encoder = self.untouched_encoder()
            for method in self.fit_systems().predicted:
                others[method] = self._load_system(method, encoder).to(context.device)
            others[FINE_TUNE] = exported
            exported = others.pop(choice.chosen)
        scores = finish_run(self, exported, others, choice, context)
        return make_metrics(METRICS, scores, "test")

    def _choose(self, trained: nn.Module, context: FinishContext) -> Choice:
        """Scores all systems on the validation split, and chooses the one to export."""
        config = self.config
        examples = self.examples
        fitted = self.fit_systems()

        chunks = examples.read(examples.list_chunks("validation"))
        scored = self.scorer(context).score(trained, chunks)
        metric = score_to_choose(config)
        chosen, compared = choose_system(
            scored.labels,
            {**fitted.predicted, FINE_TUNE: scored.predicted},
            np.array(examples.list_groups("validation")),
            len(examples.labels),
            metric,
            resamples=config.bootstrap_resamples,
            seed=config.seed,
        )
        self._chosen = None if chosen == FINE_TUNE else chosen
        return Choice(metric, chosen, compared, fitted.settings, fitted.notes)

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        if isinstance(model, Classifier):
            model.save(folder, weights)
        else:
            model.save_pretrained(folder, state_dict=weights)  # type: ignore[operator]
        self.tokenizer.save_pretrained(str(folder))

        all_labels = self.examples.labels
        labels = ", ".join(map(str, all_labels[:_LABELS_ON_CARD]))
        if len(all_labels) > _LABELS_ON_CARD:
            labels += ", …"
        write_task_card(
            self.config,
            folder,
            pipeline_tag="text-classification",
            about=f"A classifier of texts by {self.config.data_config.label_column}: {labels}.",
            prediction="input=texts.csv output=predicted.csv",
        )

    def complete(self, folder: Path) -> None:
        """Replaces the fine-tuned model by the system that `finish_run` has chosen."""
        if self._chosen is None:
            return
        shutil.rmtree(folder)
        self._load_system(self._chosen).save(folder)
        self.tokenizer.save_pretrained(str(folder))

    def load(self, folder: Path) -> nn.Module:
        return models.load_model(folder)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.config.data_config.text_column,)

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields the predicted label of each record's text, its probabilities, and its chunks.

        The text is in the text column of the training table, `data_config.text_column`. For a text
        without tokens the prediction is None.
        """
        data = self.config.data_config
        folding = Folding(self.tokenizer, data.fold_by, data.max_length)
        context = Processes(device=next(model.parameters()).device)
        labels = models.read_labels(model)
        scorer = models.Scorer(
            len(labels), self.tokenizer, data.per_device_eval_batch_size, context
        )

        no_prediction = {
            "prediction": None,
            **models.name_probabilities(None, labels),
            "chunks": 0,
        }
        for batch in split_into_lists(records, TEXTS_AT_ONCE):
            texts = [str(record[data.text_column]) for record in batch]
            chunks: list[Chunk] = []
            for number, folds in enumerate(folding.fold(texts)):
                chunks += make_chunks(folds, label=0, source=number)

            predictions: dict[int, dict[str, Any]] = {}
            if chunks:
                scored = scorer.score(model, chunks)
                values = models.iterate_predictions(scored, labels)
                predictions = dict(zip(scored.sources.tolist(), values, strict=True))
            for number in range(len(batch)):
                yield predictions.get(number, no_prediction)


def build_micro_batch(
    chunks: Sequence[Chunk], tokenizer: PreTrainedTokenizerBase, weights: Sequence[float], name: str
) -> MicroBatch:
    """Builds a micro-batch, in which the weight of a chunk is the weight of its label.

    Args:
        weights: The weight of each label.
        name: The file that `log_documents` names, with the source row.
    """
    tensors = models.pad_chunks(tokenizer, [chunk.ids for chunk in chunks])
    chunk_weights = [weights[chunk.label] for chunk in chunks]
    weight = sum(chunk_weights)
    tokens = sum(len(chunk.ids) for chunk in chunks)
    return MicroBatch(
        tensors={
            **tensors,
            "labels": torch.tensor([chunk.label for chunk in chunks]),
            "weights": torch.tensor(chunk_weights),
        },
        weight=weight,
        tokens=tokens,
        padding=tensors["input_ids"].numel() - tokens,
        documents=[f"{name}:{chunk.source}" for chunk in chunks],
        counts={"chunks": float(len(chunks)), "weight": weight},
    )
