"""After the last step: the test set, once, with the best checkpoint, and the files about it.

Beside the CSV file, or in `results_dir`: `NAME_testset_predictions.csv`,
`NAME_train_test_stats.json`, `NAME_trained_model.sav`. In `evaluation/` of the run folder: the
report.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bsmeta.config.classification import ClassificationConfig
from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.evaluation.plots import read_metrics
from bsmeta.tasks.base import FinishContext
from bsmeta.tasks.classification.examples import Examples
from bsmeta.tasks.classification.report import report
from bsmeta.tasks.classification.results import Results, TrainingTexts, results_of
from bsmeta.tasks.classification.scoring import Scored, score
from bsmeta.tasks.classification.splits import SPLITS

logger = logging.getLogger(__name__)

PREDICTIONS, STATS, MODEL = "testset_predictions.csv", "train_test_stats.json", "trained_model.sav"


def finish(
    config: ClassificationConfig,
    model: PreTrainedModel,
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    weights: Sequence[float],
    steps_per_epoch: int,
    context: FinishContext,
) -> dict[str, float]:
    """Scores the test split and writes the results (rank 0).

    Every rank calls it and gets the same scores; {} if the split is empty.
    """
    chunks = examples.read(examples.chunks("test"))
    scored, scores = None, {}
    if chunks:
        batch_size = config.data_config.per_device_eval_batch_size
        scored = score(model, chunks, tokenizer, batch_size, context)
        scores = scored.scores(weights, config.label_smoothing)
    if context.rank != 0:
        return scores
    epochs = epochs_of(context.folder / "metrics.jsonl", steps_per_epoch)
    results = None if scored is None else test_results(config, examples, scored, scores)
    stats = {"epochs": epochs, "test": None if results is None else results.as_dict()}
    text = json.dumps(stats, indent=1, ensure_ascii=False) + "\n"
    files = [result_file(config, name) for name in (STATS, MODEL)]
    replace(files[0], lambda part: part.write_text(text, encoding="utf-8"))
    save_model(files[1], model, config)
    try:
        examples.save_results(str(context.folder.resolve()), stats)
    except DataError as error:  # a database may be read-only; the files have all of it
        logger.warning("%s", error)
    if scored is not None and results is not None:
        files.append(result_file(config, PREDICTIONS))
        write_predictions(files[-1], scored, examples.labels)
        report(results, epochs, context.folder / "evaluation", files)
    return scores


def test_results(
    config: ClassificationConfig, examples: Examples, scored: Scored, scores: dict[str, float]
) -> Results:
    """The scores of the test split, beside baselines that learn from the training split."""
    return results_of(
        scored,
        [text for _, text, _ in examples.texts("test")],
        training_texts(config, examples),
        source=f"{Path(str(config.data_config.csv)).name}, test split",
        labels=examples.labels,
        groups=(np.array(examples.groups("test")), unit_of(config)),
        model_scores=scores,
        distribution={split: examples.label_counts(split) for split in SPLITS},
        resamples=config.bootstrap_resamples,
        seed=config.seed,
    )


def training_texts(config: ClassificationConfig, examples: Examples) -> TrainingTexts:
    """What the baselines learn from: the training split."""
    return TrainingTexts(
        texts=[text for _, text, _ in examples.texts("train")],
        labels=examples.source_labels("train"),
        balanced=config.class_weights != "none",
    )


def unit_of(config: ClassificationConfig) -> str:
    """What is resampled for intervals."""
    group = config.data_config.split_by
    return "source rows" if group is None else f"values of {group}"


def result_file(config: ClassificationConfig, ending: str) -> Path:
    """A result file: `leanings_ENDING` for `leanings.csv`, `leanings.csv.gz` or `leanings.sqlite`.

    It is in `results_dir`; by default in the folder of the CSV file.
    """
    table = Path(str(config.data_config.csv))
    name = table.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".sqlite")
    folder = table.parent if config.results_dir is None else Path(config.results_dir)
    return folder / f"{name}_{ending}"


def epochs_of(metrics: Path, steps_per_epoch: int) -> list[dict[str, float]]:
    """Losses and accuracies up to each evaluation (each epoch without any), from `metrics.jsonl`.

    Those of the training are means over the chunks of the logged steps since the evaluation before,
    with dropout and while the weights changed; those of the validation are of the model after them.
    """
    steps, evaluations = read_metrics(metrics)
    measured = {event["step"]: event for event in evaluations if event["split"] == "validation"}
    last = max((line["step"] for line in steps), default=0)
    found, begin = [], 0
    for step in sorted(measured) or range(steps_per_epoch, last + 1, steps_per_epoch):
        logged = [line for line in steps if begin < line["step"] <= step]
        weight = [line["counts"]["weight"] for line in logged]
        chunks = [line["counts"]["chunks"] for line in logged]
        found.append({
            "epoch": step / steps_per_epoch,
            "step": step,
            "training_loss": _mean([line["loss"] for line in logged], weight),
            "training_accuracy": _mean([line["parts"]["accuracy"] for line in logged], chunks),
            **{
                f"validation_{name}": value
                for name, value in measured.get(step, {}).items()
                if name not in ("event", "step", "split")
            },
        })  # fmt: skip
        begin = step
    return found


def _mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    total = sum(weights)
    pairs = zip(values, weights, strict=True)
    return sum(value * weight for value, weight in pairs) / total if total else None


def write_predictions(file: Path, scored: Scored, labels: Sequence[str]) -> None:
    """Writes a line for each source text: its row in the CSV file, label, prediction and chunks.

    The probabilities are the softmax of the mean logits.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "label", "prediction", *(f"p({label})" for label in labels), "chunks"])
    probabilities = softmax(scored.logits, axis=1)
    for number, source in enumerate(scored.sources):
        writer.writerow([
            source, labels[scored.labels[number]], labels[scored.logits[number].argmax()],
            *(f"{value:.6f}" for value in probabilities[number]), scored.chunks[number],
        ])  # fmt: skip
    replace(file, lambda part: part.write_bytes(text.getvalue().encode()))


def save_model(file: Path, model: PreTrainedModel, config: ClassificationConfig) -> None:
    """Writes the weights, the labels and the model's shape for `torch.load(weights_only=True)`."""
    data = config.data_config
    content: dict[str, Any] = {
        "state_dict": {name: value.cpu() for name, value in model.state_dict().items()},
        "labels": [model.config.id2label[number] for number in range(model.config.num_labels)],
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "max_length": data.max_length,
        "fold_by": data.fold_by,
    }
    replace(file, lambda part: torch.save(content, part))


def replace(file: Path, write: Callable[[Path], object]) -> None:
    """Writes a file under another name and renames it, so that it is never partial.

    Raises:
        ConfigurationError: If it cannot be written.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        os.replace(part, file)
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error}. Set results_dir=FOLDER and resume the run "
            "(resume_from_checkpoint_dir=latest): it ends with the test set again"
        ) from error
