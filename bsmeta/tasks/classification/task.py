"""The task: model, steps, loss, evaluation and export; `finish_run` scores the test set at the end.

If a text may have several labels, each evaluation scores the validation split with thresholds
chosen across its folds, and chooses thresholds on the whole split, which are exported with the
model.

A method without training steps is fitted when the model is built, and its run makes no steps. Under
`method=auto`, all such systems are fitted first, then the encoder is trained, and `finish` chooses
one of them on the validation split. On a CPU, a large table gets only the system of
`method=linear`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from bsmeta.config.steps import BatchPlan
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.batch import MicroBatch
from bsmeta.data.table.stream import FixedSizeSteps, TableStream
from bsmeta.data.text.tokenizer import load_padded_tokenizer
from bsmeta.models.exporting import write_model
from bsmeta.tasks.classification import model as models
from bsmeta.tasks.classification.classifier import (
    ENCODER_PREFIX,
    MULTI_LABEL_TYPE,
    Classifier,
    measure_depths,
)
from bsmeta.tasks.classification.config import (
    AUTO,
    FINE_TUNE,
    FITTED,
    FROZEN,
    HEAD,
    LINEAR,
    ClassificationConfig,
)
from bsmeta.tasks.classification.evaluate import (
    ACCURACY,
    SUBSET_ACCURACY,
    compute_weights,
    finish_run,
)
from bsmeta.tasks.classification.examples import (
    Chunk,
    Examples,
    Folding,
    make_chunks,
    open_examples,
)
from bsmeta.tasks.classification.label_sets import Labels, make_truth
from bsmeta.tasks.classification.metrics import METRICS, choose_metrics
from bsmeta.tasks.classification.report import describe_choice
from bsmeta.tasks.classification.results import Choice, compute_scores
from bsmeta.tasks.classification.systems import (
    Systems,
    choose_metric,
    choose_system,
    explain_skipped_encoder,
    open_systems,
)
from bsmeta.tasks.classification.thresholds import choose_thresholds, predict_across_folds
from bsmeta.tasks.model_card import write_task_card
from bsmeta.training.metric_values import make_metrics
from bsmeta.training.ranks.processes import FinishContext, Processes
from bsmeta.training.task import Loss, Metric, Shape, Task, split_into_lists

if TYPE_CHECKING:  # slow to import, and method=linear needs no encoder
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

_LABELS_ON_CARD = 20
PREDICTION_BATCH_SIZE = 1000
"""Number of texts that `predict` folds and sorts by length together."""


class TextClassifier(Task):
    """Predicts the label of a text, or several labels.

    A long text is folded into chunks, each of which is a row of a batch.
    """

    def __init__(self, config: ClassificationConfig) -> None:
        transformers.utils.logging.disable_progress_bar()
        self.config = config
        self.tokenizer = load_padded_tokenizer(config.tokenizer_name or config.model_name)
        self._systems: Systems | None = None
        self._validation: list[Chunk] | None = None
        self._depths: dict[str, int] = {}  # of the encoder's parameters, see `measure_depths`
        self._chosen: str | None = None  # the fitted system that `finish` has chosen for export
        self._thresholds: list[float] | None = None  # of the last evaluation; see `thresholds`

    @cached_property
    def examples(self) -> Examples:
        """The table, whose database is built first if there is none.

        Raises:
            ConfigurationError: If `keep_best_by` is not a metric for the table's form of labels.
        """
        examples = open_examples(self.config.data_config, self.tokenizer)
        _check_best_metric(self.config, examples)
        return examples

    @cached_property
    def weights(self) -> list[float]:
        """The weight of each label in the loss."""
        return compute_weights(self.config, self.examples)

    @cached_property
    def _skip_reason(self) -> str | None:
        """Why `method=auto` does not try the encoder; None if it does."""
        if self.config.method != AUTO:
            return None
        chunks = len(self.examples.list_chunks("train"))
        reason = explain_skipped_encoder(self.config, chunks)
        if reason is not None:
            logger.warning("%s", reason)
        return reason

    @property
    def _method(self) -> str:
        """The method of this run: `config.method`, or linear if the encoder is skipped."""
        return self.config.method if self._skip_reason is None else LINEAR

    def fit_systems(self) -> Systems:
        """Returns the fitted systems that the method needs; fits them on the first call."""
        if self._systems is None:
            method = self._method
            methods: tuple[str, ...]
            if method == AUTO:
                methods = FITTED
            elif method == FINE_TUNE:
                methods = (FROZEN,)  # the head begins with its weights
            else:
                methods = (method,)
            self._systems = open_systems(self, methods)
        return self._systems

    def build_untouched_encoder(self) -> PreTrainedModel:
        """Builds the encoder with its weights before training."""
        examples = self.examples
        return models.build_untouched_encoder(
            self.config, self.tokenizer, examples.labels, has_several=examples.has_several
        )

    def _load_system(self, method: str, encoder: PreTrainedModel | None = None) -> Classifier:
        """Loads a fitted system, on the untouched encoder if it needs one."""
        systems = self.fit_systems()
        if method not in systems.predicted:
            fix = "method=fine_tune head_start=random"
            if self._skip_reason is not None:
                fix = "auto_cpu_chunks=0, with which the other systems are tried"
            raise ConfigurationError(
                f"method={self.config.method}: {'; '.join(systems.notes)}; expected {fix}"
            )
        if method == LINEAR:
            return systems.load(method, None)
        return systems.load(method, encoder or self.build_untouched_encoder())

    def build_model(self) -> nn.Module:
        config = self.config
        method = self._method
        if method in FITTED:
            model = self._load_system(method).train()
            if model.encoder is not None:
                model.encoder.requires_grad_(False)
            return model
        examples = self.examples
        if config.pooling == HEAD:
            return models.build_with_head(
                config, self.tokenizer, examples.labels, has_several=examples.has_several
            )

        starts_linear = config.head_start == "linear"
        is_trained = torch.get_default_device().type != "meta" and not config.estimate
        if is_trained and (method == AUTO or starts_linear):
            self.fit_systems()  # before the weights of this model take memory

        model = models.build_classifier(
            config, self.tokenizer, examples.labels, has_several=examples.has_several
        )
        assert model.encoder is not None
        assert model.head is not None
        self._depths = measure_depths(model.encoder)
        if is_trained and starts_linear:
            self._copy_frozen_head(model.head)
        return model

    def _copy_frozen_head(self, head: nn.Linear) -> None:
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
        if name.startswith(ENCODER_PREFIX):
            depth = self._depths.get(name.removeprefix(ENCODER_PREFIX), 0)
        return float(self.config.layer_decay**depth)

    def shape(self) -> Shape:
        from bsmeta.models.layers import list_layers  # slow to import

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

    def _plan_steps(self, world_size: int) -> FixedSizeSteps:
        """Plans the steps of every epoch; the last step of an epoch has the remaining chunks.

        The plan depends only on the global batch: processes x micro-batch x accumulation.
        """
        batch_size = BatchPlan.of(self.config, world_size).global_batch
        return FixedSizeSteps(len(self.examples.list_chunks("train")), batch_size, self.config.seed)

    def steps_per_epoch(self, world_size: int) -> int:
        if self._method in FITTED:
            return 0
        return self._plan_steps(world_size).steps_per_epoch

    def train_stream(self, rank: int, world_size: int, state: dict[str, Any] | None) -> TableStream:
        config = self.config
        examples = self.examples
        weights = self.weights
        chunk_ids = examples.list_chunks("train")
        file_name = Path(str(config.data_config.csv)).name

        def read(rows: np.ndarray, epoch: int) -> MicroBatch:
            chunks = examples.read(chunk_ids[rows])
            if examples.has_several:
                return build_set_batch(chunks, self.tokenizer, weights, file_name)
            return build_micro_batch(chunks, self.tokenizer, weights, file_name)

        return TableStream(
            self._plan_steps(world_size),
            read,
            rank=rank,
            world_size=world_size,
            accumulation=config.gradient_accumulation_steps,
            num_workers=config.data_config.num_workers,
            fingerprint={**examples.key, "seed": config.seed},
            state=state,
        )

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Computes the weighted loss of the chunks, and their accuracy.

        With several labels, a chunk counts as right if exactly its labels have a probability above
        0.5.
        """
        labels = batch["labels"]
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        if labels.ndim == 2:
            pair_losses = models.compute_pair_losses(
                logits.float(), labels, self.config.label_smoothing
            )
            is_exact = ((logits.detach() > 0) == (labels > 0)).all(1).float()
            return Loss(
                (pair_losses * batch["weights"]).sum(),
                {SUBSET_ACCURACY: (is_exact.sum(), torch.ones_like(is_exact).sum())},
            )

        losses = functional.cross_entropy(
            logits.float(), labels, reduction="none", label_smoothing=self.config.label_smoothing
        )

        is_right = (logits.detach().argmax(1) == labels).float()
        return Loss(
            (losses * batch["weights"]).sum(),
            {ACCURACY: (is_right.sum(), torch.ones_like(is_right).sum())},
        )

    def evaluate(self, model: nn.Module, context: Processes) -> list[Metric]:
        """Scores the validation split; [] if there is none."""
        if self._validation is None:
            self._validation = self.examples.read(self.examples.list_chunks("validation"))
        if not self._validation:
            return []
        scored = self.make_scorer(context).score(model, self._validation)
        predicted = None
        if isinstance(scored, models.ScoredSets):
            self._thresholds = choose_thresholds(scored.probabilities, scored.labels).tolist()
            predicted = self._predict_validation(scored)
        return make_metrics(METRICS, compute_scores(scored, self.weights, predicted))

    def _predict_validation(self, scored: models.AnyScored) -> np.ndarray:
        """Predicts labels of the validation texts; several labels by thresholds across folds."""
        if not isinstance(scored, models.ScoredSets):
            return scored.predicted
        units = np.array(self.examples.list_groups("validation"))
        return predict_across_folds(scored.probabilities, scored.labels, units)

    def state(self) -> Any:
        """Returns the thresholds of the last evaluation; None if a text has one label."""
        return self._thresholds

    def restore(self, state: Any) -> None:
        self._thresholds = msgspec.convert(state, list[float] | None)

    def make_scorer(self, context: Processes) -> models.Scorer:
        """Makes the scorer of models in evaluations of this run."""
        examples = self.examples
        return models.Scorer(
            labels=len(examples.labels),
            tokenizer=self.tokenizer,
            batch_size=self.config.data_config.per_device_eval_batch_size,
            context=context,
            smoothing=self.config.label_smoothing,
            weights=self.weights if examples.has_several else None,
        )

    def finish(self, model: nn.Module, context: FinishContext) -> list[Metric]:
        """Scores the test split with the exported model, and writes the results and the report.

        Under `method=auto`, the system to export is first chosen on the validation split.
        """
        exported = models.load_model(context.exported / "model").to(context.device)
        self._choose_exported_thresholds(exported, context)
        others: dict[str, nn.Module] = {}
        choice = None
        if self._skip_reason is not None:
            choice = self._choose_system(None, context)
        elif self.config.method == AUTO:
            choice = self._choose_system(exported, context)
            encoder = self.build_untouched_encoder()
            for method in self.fit_systems().predicted:
                others[method] = self._load_system(method, encoder).to(context.device)
            others[FINE_TUNE] = exported
            exported = others.pop(choice.chosen)
        scores = finish_run(self, exported, others, choice, context)
        return make_metrics(METRICS, scores, "test")

    def _choose_exported_thresholds(self, model: nn.Module, context: Processes) -> None:
        """Chooses the thresholds of a trained model of several labels on the validation split.

        The thresholds in its checkpoint are from the last evaluation, which may be of an
        earlier step.
        """
        examples = self.examples
        if not examples.has_several or self._method in FITTED:
            return

        chunks = examples.read(examples.list_chunks("validation"))
        if not chunks:
            return
        scored = self.make_scorer(context).score(model, chunks)
        assert isinstance(scored, models.ScoredSets)
        self._thresholds = choose_thresholds(scored.probabilities, scored.labels).tolist()
        models.set_thresholds(model, self._thresholds)

    def _choose_system(self, trained: nn.Module | None, context: FinishContext) -> Choice:
        """Scores all systems on the validation split, and chooses the one to export.

        Args:
            trained: The fine-tuned model; None if the encoder is skipped.
        """
        config = self.config
        examples = self.examples
        fitted = self.fit_systems()
        predicted = dict(fitted.predicted)
        notes = [*fitted.notes]
        if trained is not None:
            chunks = examples.read(examples.list_chunks("validation"))
            scored = self.make_scorer(context).score(trained, chunks)
            predicted[FINE_TUNE] = self._predict_validation(scored)
        if self._skip_reason is not None:
            notes.append(self._skip_reason)

        metric = choose_metric(config, has_several=examples.has_several)
        chosen, compared = choose_system(
            examples.read_truth("validation"),
            predicted,
            np.array(examples.list_groups("validation")),
            len(examples.labels),
            metric,
            resamples=config.bootstrap_resamples,
            seed=config.seed,
        )
        self._chosen = None if chosen == FINE_TUNE else chosen
        choice = Choice(metric, chosen, compared, fitted.settings, notes)
        if context.rank == 0:
            logger.info("method=auto exports %s. %s", chosen, describe_choice(choice))
        return choice

    def export(self, model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
        if self._thresholds is not None and self._method not in FITTED:
            models.set_thresholds(model, self._thresholds)
        if isinstance(model, Classifier):
            model.save(folder, weights, self.config.export_dtype)
        else:
            write_model(model, weights, folder, self.config.export_dtype)
        self.tokenizer.save_pretrained(str(folder))
        self._write_card(folder)

    def _write_card(self, folder: Path) -> None:
        """Writes the card of the model in an exported folder."""
        all_labels = self.examples.labels
        labels = ", ".join(map(str, all_labels[:_LABELS_ON_CARD]))
        if len(all_labels) > _LABELS_ON_CARD:
            labels += ", …"
        write_task_card(
            self.config,
            folder,
            pipeline_tag="text-classification",
            about=self._describe_model(labels),
            prediction="input=texts.csv output=predicted.csv",
            is_pretrained=LINEAR not in (self._method, self._chosen),
            has_steps=self._method not in FITTED and self._chosen is None,
            is_export_tested=self._chosen is None,
        )

    def _describe_model(self, labels: str) -> str:
        """Describes the model in sentences, for its card.

        Args:
            labels: The labels, or the first of them, separated by commas.
        """
        column = self.config.data_config.label_column
        if not self.examples.has_several:
            return f"A classifier of texts by {column}: {labels}."
        return (
            f"A classifier of texts by {column}, of which a text may have several or none: "
            f"{labels}. A text has each label whose probability, the sigmoid of its logit, reaches "
            "the threshold of the label in config.json, which was chosen on the validation split "
            f"(problem_type: {MULTI_LABEL_TYPE})."
        )

    def finalize_export(self, folder: Path) -> None:
        """Replaces the fine-tuned model by the system that `finish_run` has chosen.

        If the model stays, its folder gets the thresholds that `finish` has chosen.
        """
        if self._chosen is None:
            if self._thresholds is not None and self._method not in FITTED:
                models.save_thresholds(folder, self._thresholds)
            return
        shutil.rmtree(folder)
        self._load_system(self._chosen).save(folder, export_dtype=self.config.export_dtype)
        self.tokenizer.save_pretrained(str(folder))
        self._write_card(folder)

    def load(self, folder: Path) -> nn.Module:
        return models.load_model(folder)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.config.data_config.text_column,)

    def predict(
        self, model: nn.Module, records: Iterable[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields the prediction for the text of each record; see `model.iterate_predictions`.

        The prediction for a text without tokens is None.

        Args:
            records: The text is in the column `data_config.text_column`.
        """
        data = self.config.data_config
        folding = Folding(self.tokenizer, data.fold_by, data.max_length)
        context = Processes(device=next(model.parameters()).device)
        labels = models.read_labels(model)
        no_label: Labels = 0 if models.read_thresholds(model) is None else ()
        scorer = models.Scorer(
            len(labels), self.tokenizer, data.per_device_eval_batch_size, context
        )

        no_prediction = {
            "prediction": None,
            **models.name_probabilities(None, labels),
            "chunks": 0,
        }
        for batch in split_into_lists(records, PREDICTION_BATCH_SIZE):
            texts = [str(record[data.text_column]) for record in batch]
            chunks: list[Chunk] = []
            for number, folds in enumerate(folding.fold(texts)):
                chunks += make_chunks(folds, no_label, source=number)

            predictions: dict[int, dict[str, Any]] = {}
            if chunks:
                scored = scorer.score(model, chunks)
                values = models.iterate_predictions(scored, labels)
                predictions = dict(zip(scored.sources.tolist(), values, strict=True))
            for number in range(len(batch)):
                yield predictions.get(number, no_prediction)


def _check_best_metric(config: ClassificationConfig, examples: Examples) -> None:
    """Refuses a `keep_best_by` for texts with one label if the table has several, and the reverse.

    Raises:
        ConfigurationError: If the metric is not computed for the table's form of labels.
    """
    name = config.keep_best_by
    table = choose_metrics(has_several=examples.has_several)
    if name is None or name in table or name not in METRICS:
        return

    form = "several labels" if examples.has_several else "one label"
    raise ConfigurationError(
        f"keep_best_by={name}: each text of {examples.facts['csv']} has {form}; expected one of "
        f"{', '.join(table)}",
        ["keep_best_by"],
    )


def build_set_batch(
    chunks: Sequence[Chunk], tokenizer: PreTrainedTokenizerBase, weights: Sequence[float], name: str
) -> MicroBatch:
    """Builds a micro-batch of chunks that may have several labels.

    Its weight is the sum over all pairs of a chunk and a label.

    Args:
        weights: See `model.weigh_pairs`.
        name: The name of the table, for `log_documents`.
    """
    labels = [chunk.label for chunk in chunks]
    truth = torch.from_numpy(make_truth(labels, len(weights), has_several=True)).float()
    pair_weights = models.weigh_pairs(truth, weights)
    tensors = {"labels": truth, "weights": pair_weights}
    return _assemble_batch(chunks, tokenizer, tensors, float(pair_weights.sum()), name)


def build_micro_batch(
    chunks: Sequence[Chunk], tokenizer: PreTrainedTokenizerBase, weights: Sequence[float], name: str
) -> MicroBatch:
    """Builds a micro-batch of chunks with one label each.

    Args:
        weights: The weight of each label, which is the weight of its chunks.
        name: The name of the table, for `log_documents`.
    """
    labels = make_truth([chunk.label for chunk in chunks], len(weights), has_several=False)
    chunk_weights = [weights[label] for label in labels]
    tensors = {"labels": torch.from_numpy(labels), "weights": torch.tensor(chunk_weights)}
    return _assemble_batch(chunks, tokenizer, tensors, sum(chunk_weights), name)


def _assemble_batch(
    chunks: Sequence[Chunk],
    tokenizer: PreTrainedTokenizerBase,
    targets: Mapping[str, torch.Tensor],
    weight: float,
    name: str,
) -> MicroBatch:
    """Pads chunks, and makes a micro-batch of the inputs and the targets.

    Args:
        targets: Further tensors by name.
        weight: The weight of the micro-batch in the loss of a step.
        name: The name of the table, for `log_documents`.
    """
    inputs = models.pad_chunks(tokenizer, [chunk.ids for chunk in chunks])
    tokens = sum(len(chunk.ids) for chunk in chunks)
    return MicroBatch(
        tensors={**inputs, **targets},
        weight=weight,
        tokens=tokens,
        padding=inputs["input_ids"].numel() - tokens,
        documents=[f"{name}:{chunk.source}" for chunk in chunks],
        counts={"chunks": float(len(chunks)), "weight": weight},
    )
