"""The systems that are fitted, not trained by steps: on words, on frozen vectors, and on both.

    training split -> TF-IDF features, pooled vectors of the untouched encoder -> linear solutions

Each is fitted on the training split with scikit-learn. What it leaves open (the strength of the
regularization, the weight of the vectors beside the words, the scale of the logits) is chosen on
the validation split. The solvers are deterministic. One process fits while the others wait, and
writes the solutions to `systems/` of the run folder, from which a resumed run reads them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix, hstack
from scipy.special import logsumexp
from torch import nn
from transformers import PreTrainedModel

from bsmeta.core.errors import DataError
from bsmeta.core.files import building, delete
from bsmeta.core.parsing import parse_json
from bsmeta.core.permissions import follow_umask
from bsmeta.core.progress import exclusively, opaque_work
from bsmeta.models.pretrained import default_device
from bsmeta.models.shapes import hidden_size_of
from bsmeta.tasks.classification.classifier import (
    Classifier,
    Description,
    Words,
    load_linear,
    word_features,
)
from bsmeta.tasks.classification.config import (
    COMBINED,
    FITTED,
    FROZEN,
    LINEAR,
    ClassificationConfig,
)
from bsmeta.tasks.classification.model import means_over_chunks, texts_of
from bsmeta.tasks.classification.results import SCORES, Compared, Confusion, compare
from bsmeta.tasks.classification.task_interface import ClassifierTask
from bsmeta.training.processes import Processes

logger = logging.getLogger(__name__)

FOLDER = "systems"  # in the run folder
FACTS = "systems.json"

MOST_WEIGHTS = 1 << 26  # of a linear model of words: half a gigabyte, twice
MOST_LOGITS = 1 << 23
"""Of the training texts, all of which the logistic regression computes in each iteration."""
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Inverse regularization strengths of the logistic regression on standardized vectors."""
VECTOR_WEIGHTS = (0.25, 0.5, 1.0, 2.0)
"""Norms of the vectors relative to that of the words, which is 1; 0 is the linear system."""

_ABSENT = -1e4  # the logit of a label without a training text
_NORMAL_95 = 1.96  # half the width of a 95% interval, in standard errors
_LARGEST_SCALE = 5.0  # of logits, as a natural logarithm
_LEAST_DEVIATION = 1e-5  # of a dimension, as a share of the largest; float32 has seven digits

Array = np.ndarray


class Systems:
    """The fitted systems of a run, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        content = parse_json((folder / FACTS).read_text(encoding="utf-8"))
        facts = content["systems"]
        # By method, the simplest first: the predicted labels of the texts of the validation split,
        # and what was chosen on it.
        self.predicted = {name: np.array(own["predicted"], int) for name, own in facts.items()}
        self.settings = {name: own["settings"] for name, own in facts.items()}
        self.notes: list[str] = content["notes"]  # which systems were left out, and why

    def load(self, method: str, encoder: PreTrainedModel | None) -> Classifier:
        """A fitted system, on the untouched encoder if it is to be applied to vectors."""
        return load_linear(self._folder / method, encoder)


def open_systems(task: ClassifierTask, methods: Sequence[str]) -> Systems:
    """The fitted systems of a run, which are fitted first if they are not in its folder.

    Every process calls it: one fits while the others wait.

    Raises:
        DataError: If there is no validation split to choose on.
    """
    config, examples = task.config, task.examples
    folder, metric = Path(config.out_dir) / FOLDER, score_to_choose(config)
    key = {
        "examples": examples.key,
        "methods": list(methods),
        "model": [config.model_name, config.model_config_file, config.seed],
        "pooling": config.pooling,
        "weights": task.weights,
        "metric": metric,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusively(folder.with_name(f".{FOLDER}.lock"), "linear systems are fitted"):
        if not _is_of(folder, key):
            only_words = {*methods} == {LINEAR}
            if not only_words and not len(examples.sources("validation")):
                raise DataError(
                    f"method={config.method}: the table has no validation split to choose on; "
                    "expected some rows of validation, or method=linear, or method=fine_tune "
                    "head_start=random"
                )
            frozen = None if only_words else task.untouched_encoder()
            with opaque_work():
                train, validation = _read_splits(task, frozen)
                fitting = Fitting(
                    examples.labels, task.weights, train, validation, config.pooling, metric
                )
                fitting.fit(methods)
            _write(folder, key, fitting)
    return Systems(folder)


def score_to_choose(config: ClassificationConfig) -> str:
    """The score by which systems are chosen: `keep_best_by` if it is one of texts."""
    return config.keep_best_by if config.keep_best_by in SCORES else "macro_f1"


def _is_of(folder: Path, key: Mapping[str, Any]) -> bool:
    try:
        found = parse_json((folder / FACTS).read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(found == json.loads(json.dumps(key)))


def _write(folder: Path, key: Mapping[str, Any], fitting: Fitting) -> None:
    delete(folder)
    with building(folder) as part:
        part.mkdir()
        for method, model in fitting.models.items():
            (part / method).mkdir()
            model.save_linear(part / method)
        facts = {name: fitting.facts[name] for name in FITTED if name in fitting.facts}
        content = {"key": key, "systems": facts, "notes": fitting.notes}
        (part / FACTS).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        follow_umask(part)


def _read_splits(task: ClassifierTask, encoder: PreTrainedModel | None) -> tuple[Split, Split]:
    """The training and the validation split; the encoder is run on them if there is one."""
    examples, device, model = task.examples, default_device(), None
    if encoder is not None:
        pooling = task.config.pooling
        description = Description(FROZEN, list(examples.labels), pooling, has_words=False)
        model = Classifier(description, encoder).to(device).eval()
    scorer = task.scorer(Processes(device=device))

    def read(split: str) -> Split:
        rows = [*examples.texts(split)]
        vectors = None
        if model is not None:
            chunks = examples.read(examples.chunks(split))
            vectors = np.zeros((0, hidden_size_of(model.config)), np.float32)
            if chunks:
                _, first, counts = texts_of(chunks)
                vectors = means_over_chunks(scorer.outputs(model.vectors, chunks), first, counts)
        truth = np.array([label for _, _, label in rows], np.int64)
        return Split(truth, [text for _, text, _ in rows], vectors)

    return read("train"), read("validation")


@dataclass(frozen=True)
class Split:
    """Labeled texts to fit systems on, or to choose with."""

    truth: Array  # int64 [texts], the labels
    texts: Sequence[str]
    vectors: Array | None = None  # float32 [texts, hidden size], the means over their chunks


@dataclass(frozen=True)
class Solution:
    """A fitted linear function of the word features of a text, of its vector, or of both."""

    words: Array | None  # float [labels, features]
    head: Array | None  # float [labels, hidden size]
    bias: Array  # float [labels]

    def scaled(self, factor: float) -> Solution:
        """The function with all logits multiplied."""
        words, head = (None if part is None else part * factor for part in (self.words, self.head))
        return Solution(words, head, self.bias * factor)

    def logits(self, words: csr_matrix | None, vectors: Array | None) -> Array:
        """float64 [texts, labels]."""
        found = np.asarray(self.bias)[None]
        if self.words is not None:
            found = found + words @ self.words.T
        if self.head is not None:
            assert vectors is not None
            found = found + vectors @ self.head.T
        return found


class Fitting:
    """Fits systems on the training split, and chooses by a score on the validation split, which may
    be empty. The weights are those of the labels in training.
    """

    def __init__(
        self, labels: Sequence[str], weights: Sequence[float], train: Split, validation: Split,
        pooling: str = "mean", metric: str = "macro_f1",
    ) -> None:  # fmt: skip
        self._labels = [*labels]
        self._train, self._validation = train, validation
        self._pooling, self._metric = pooling, metric
        self._seen = np.unique(train.truth)
        self._weights = {label: weights[label] for label in self._seen.tolist()}
        self.models: dict[str, Classifier] = {}  # by method
        self.facts: dict[str, dict[str, Any]] = {}  # what `Systems` reads
        self.notes: list[str] = []

    def fit(self, methods: Sequence[str]) -> None:
        """Fits the systems in the order in which later ones need earlier ones."""
        if LINEAR in methods or COMBINED in methods:
            self._fit_words(methods)
        if FROZEN in methods:
            self._fit_vectors()

    def _fit_words(self, methods: Sequence[str]) -> None:
        features = word_features()
        try:
            words = features.fit_transform(self._train.texts)
        except ValueError:  # no text has a word
            words = None
        if words is None or len(self._seen) < 2:
            most = int(np.bincount(self._train.truth).argmax())
            bias, nothing = np.zeros(len(self._labels)), np.zeros((len(self._labels), 0))
            bias[most] = 1.0
            self._keep(LINEAR, Solution(nothing, None, bias), [most] * len(self._validation.texts))
            return
        if len(self._seen) * words.shape[1] > MOST_WEIGHTS:
            self.notes.append(
                f"TF-IDF + linear SVM left out: with {len(self._labels):,} "
                f"labels it would have more than {MOST_WEIGHTS:,} weights"
            )
            return
        others = features.transform(self._validation.texts) if self._validation.texts else words[:0]
        best = self._svm(words, None, 0.0)
        if LINEAR in methods:
            self._choose(LINEAR, [({}, best)], features, others)
        vectors = self._train.vectors
        if COMBINED in methods and vectors is not None:
            without = replace(best, head=np.zeros((len(self._labels), vectors.shape[1])))
            candidates = [({"vector_weight": 0.0}, without)]
            for weight in VECTOR_WEIGHTS:
                candidates.append(({"vector_weight": weight}, self._svm(words, vectors, weight)))
            self._choose(COMBINED, candidates, features, others)

    def _svm(self, words: csr_matrix, vectors: Array | None, weight: float) -> Solution:
        """A linear SVM with C = 1 on words, and on standardized vectors of the norm `weight`."""
        from sklearn.svm import LinearSVC

        columns, standard = words, None
        if vectors is not None:
            standard = Standard.of(vectors, weight)
            columns = hstack([words, csr_matrix(standard.apply(vectors))], "csr")
        model = LinearSVC(C=1.0, class_weight=self._weights, random_state=0)
        model.fit(columns, self._train.truth)
        coefficients, bias = self._of_all_labels(model)
        if standard is None:
            return Solution(coefficients, None, bias)
        split = words.shape[1]
        head, bias = standard.fold(coefficients[:, split:], bias)
        return Solution(coefficients[:, :split], head, bias)

    def _fit_vectors(self) -> None:
        """Logistic regression on standardized vectors."""
        from sklearn.linear_model import LogisticRegression

        vectors, count = self._train.vectors, len(self._seen)
        assert vectors is not None
        if count < 2 or count * len(vectors) > MOST_LOGITS:
            reason = (
                "the training texts have one label" if count < 2
                else f"with {count:,} labels it would need more than {MOST_LOGITS:,} logits"
            )  # fmt: skip
            self.notes.append(f"there is no logistic regression on frozen vectors: {reason}")
            return
        standard = Standard.of(vectors, vectors.shape[1] ** 0.5)
        columns, candidates = standard.apply(vectors), []
        for strength in STRENGTHS:
            model = LogisticRegression(
                C=strength, class_weight=self._weights, max_iter=300, tol=1e-3
            )
            model.fit(columns, self._train.truth)
            head, bias = standard.fold(*self._of_all_labels(model))
            candidates.append(({"C": strength}, Solution(None, head, bias)))
        self._choose(FROZEN, candidates)

    def _of_all_labels(self, model: Any) -> tuple[Array, Array]:
        """Coefficients and biases of all labels; scikit-learn's have one row for two labels."""
        rows, bias = model.coef_, model.intercept_
        if len(model.classes_) == 2:
            rows, bias = np.concatenate([-rows, rows]) / 2, np.concatenate([-bias, bias]) / 2
        coefficients = np.zeros((len(self._labels), rows.shape[1]))
        biases = np.full(len(self._labels), _ABSENT)
        coefficients[model.classes_], biases[model.classes_] = rows, bias
        return coefficients, biases

    def _choose(
        self, method: str, candidates: Sequence[tuple[dict[str, float], Solution]],
        features: Any = None, words: csr_matrix | None = None,
    ) -> None:  # fmt: skip
        """Keeps the best candidate (settings, and the solution with them) on the validation split,
        the first of equal ones.
        """
        settings, solution = candidates[0]
        predicted: list[int] = []
        truth = self._validation.truth
        if len(truth):
            found = [one.logits(words, self._validation.vectors) for _, one in candidates]
            guesses = [logits.argmax(1) for logits in found]
            count, metric = len(self._labels), self._metric
            best = int(np.argmax([Confusion.of(truth, g, count).scores()[metric] for g in guesses]))
            settings, solution = candidates[best]
            solution = solution.scaled(best_scale(found[best], truth))
            predicted = guesses[best].tolist()
        self._keep(method, solution, predicted, settings, features)

    def _keep(
        self, method: str, solution: Solution, predicted: list[int],
        settings: Mapping[str, float] | None = None, features: Any = None,
    ) -> None:  # fmt: skip
        words, head, bias = None, None, solution.bias
        if solution.words is not None:
            ngrams = [] if features is None else features.get_feature_names_out().tolist()
            idf = np.zeros(0) if features is None else features.idf_
            words = Words(ngrams, idf, solution.words, bias)
            bias = np.zeros_like(bias)
        if solution.head is not None:
            head = nn.Linear(solution.head.shape[1], len(bias))
            weights = {"weight": solution.head, "bias": bias}
            head.load_state_dict({name: torch.from_numpy(own) for name, own in weights.items()})
        pooling = None if head is None else self._pooling
        description = Description(method, self._labels, pooling, words is not None)
        self.models[method] = Classifier(description, head=head, words=words)
        self.facts[method] = {"predicted": predicted, "settings": settings or {}}
        logger.info("%s: fitted %s", method, settings or "")


@dataclass(frozen=True)
class Standard:
    """Standardizes vectors: each dimension to mean 0 and an equal variance.

    A dimension that hardly varies is left out (scale 0). Pretrained encoders have dimensions of
    rounding errors (all-MiniLM-L6-v2: two of 1e-31, one of 1e-8). Scaled up, they are noise, and
    the folded weights become so large that gradients through them overflow.
    """

    mean: Array  # float64 [hidden size]
    scale: Array

    @classmethod
    def of(cls, vectors: Array, norm: float) -> Standard:
        """Such that the root mean square of the norms of these vectors becomes `norm`."""
        deviation = vectors.std(0, dtype=np.float64)
        varies = deviation > _LEAST_DEVIATION * deviation.max()
        scale = np.zeros_like(deviation)
        scale[varies] = norm / max(varies.sum(), 1) ** 0.5 / deviation[varies]
        return cls(vectors.mean(0, dtype=np.float64), scale)

    def apply(self, vectors: Array) -> Array:
        """The standardized vectors, float64 [texts, hidden size]."""
        return (vectors - self.mean) * self.scale

    def fold(self, coefficients: Array, bias: Array) -> tuple[Array, Array]:
        """The linear function of the vectors themselves that is one of the standardized ones."""
        weight = coefficients * self.scale
        return weight, bias - weight @ self.mean


def best_scale(logits: Array, labels: Array) -> float:
    """The factor of the logits, float64 [texts, labels], with the lowest cross-entropy (Guo et al.
    2017, arXiv 1706.04599).
    """
    own = logits[np.arange(len(labels)), labels]
    known = own > _ABSENT / 2
    if not known.any():
        return 1.0
    logits, own = logits[known], own[known]

    def loss(log_scale: float) -> float:
        scale = np.exp(log_scale)
        return float(np.mean(logsumexp(scale * logits, axis=1) - scale * own))

    bounds = (-_LARGEST_SCALE, _LARGEST_SCALE)
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def fit_words(
    labels: Sequence[str], weights: Sequence[float], truth: Array, texts: Sequence[str]
) -> tuple[Words | None, list[str]]:
    """The system of `method=linear`, fitted on training texts without a validation split; None, and
    a note on that, if it would have more than `MOST_WEIGHTS` weights.
    """
    fitting = Fitting(labels, weights, Split(truth, texts), Split(np.zeros(0, np.int64), []))
    fitting.fit([LINEAR])
    model = fitting.models.get(LINEAR)
    return None if model is None else model.words, fitting.notes


def choose(
    truth: Array, predicted: Mapping[str, Array], units: Array, labels: int, metric: str,
    *, resamples: int, seed: int,
) -> tuple[str, list[Compared]]:  # fmt: skip
    """The simplest system that is within one standard error of the best one.

    The rule of Breiman et al. (1984): the best of several systems on a small split owes a part of
    its lead to chance. The error is that of the paired difference, by bootstrap over the units.

    Args:
        truth: int64 [texts], the labels of the validation split.
        predicted: The labels that each system predicts, the simplest system first.
        units, labels, resamples, seed: See `compare`.

    Returns:
        Its name, and the scores of all systems, the best one first.
    """
    best = max(
        predicted, key=lambda name: Confusion.of(truth, predicted[name], labels).scores()[metric]
    )
    ordered = {best: predicted[best], **predicted}
    compared = compare(truth, ordered, units, labels, resamples=resamples, seed=seed)
    near = {best}
    for system in compared[1:]:
        difference = system.differences[metric]
        if difference.value >= -(difference.high - difference.low) / (2 * _NORMAL_95):
            near.add(system.name)
    return next(name for name in predicted if name in near), compared
