"""Linear systems that are fitted without training steps: on words, on frozen vectors, or on both.

    training split -> TF-IDF features, pooled vectors of the untouched encoder -> linear solutions

Each system is fitted on the training split with scikit-learn, whose solvers are deterministic.
Hyperparameters (strength of the regularization, weight of the vectors relative to the words, scale
of the logits) are chosen on the validation split. If a text may have several labels, each label has
its own one-vs-rest solution, and a threshold chosen on the validation split (`thresholds`). One
process fits while the others wait, and writes the solutions to `systems/` of the run folder, from
which a resumed run reads them.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix, hstack
from scipy.special import expit, logsumexp
from torch import nn

from bsmeta.config.run_location import locate_run_folder
from bsmeta.core.errors import DataError
from bsmeta.core.files import build_atomically, delete_path
from bsmeta.core.parsing import parse_json
from bsmeta.core.permissions import follow_umask
from bsmeta.core.progress import hold_lock, report_opaque_work, report_progress
from bsmeta.models.pretrained import choose_device
from bsmeta.models.shapes import read_hidden_size
from bsmeta.tasks.classification.classifier import (
    Classifier,
    Description,
    NgramModel,
    load_linear,
    make_vectorizer,
)
from bsmeta.tasks.classification.config import (
    COMBINED,
    FITTED,
    FROZEN,
    LINEAR,
    ClassificationConfig,
)
from bsmeta.tasks.classification.examples import Examples
from bsmeta.tasks.classification.label_sets import make_truth
from bsmeta.tasks.classification.metrics import choose_scores
from bsmeta.tasks.classification.model import average_over_chunks, find_texts
from bsmeta.tasks.classification.results import (
    Compared,
    compare_systems,
    compute_text_scores,
    estimate_standard_error,
)
from bsmeta.tasks.classification.task_interface import ClassifierTask
from bsmeta.tasks.classification.thresholds import (
    DEFAULT_THRESHOLD,
    apply_thresholds,
    choose_thresholds,
    predict_across_folds,
)
from bsmeta.training.ranks.processes import Processes

if TYPE_CHECKING:  # slow to import, and method=linear needs no encoder
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

SYSTEMS_FOLDER = "systems"
"""Subfolder of the run folder."""
FACTS_FILE = "systems.json"
"""File of `SYSTEMS_FOLDER` with predictions, settings and notes."""

MAX_WORD_WEIGHTS = 1 << 26
"""Maximum number of weights of a linear model on words: 0.5 GB, of which two copies are held."""
MAX_TRAINING_LOGITS = 1 << 23
"""Maximum number of logits of the training texts; each iteration of logistic regression computes
all of them."""
INVERSE_STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Inverse regularization strengths of the logistic regression on standardized vectors."""
VECTOR_WEIGHTS = (0.25, 0.5, 1.0, 2.0)
"""Norms of the vectors relative to the norm of the word features, which is 1; 0 is the system on
words alone."""

_ABSENT_LOGIT = -1e4  # of a label without training texts
_MAX_LOG_SCALE = 5.0  # natural logarithm of the maximum scale of logits
_MIN_RELATIVE_DEVIATION = 1e-5  # standard deviation / the largest one; float32 has seven digits

Array = np.ndarray


class Systems:
    """The fitted systems of a run, read from their folder.

    Attributes:
        predicted: Predicted labels of the validation texts by method, the simplest first: int
            [texts] or bool [texts, labels].
        settings: Hyperparameters chosen on the validation split, by method.
        notes: Systems that were left out, with the reason.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        content = parse_json((folder / FACTS_FILE).read_text(encoding="utf-8"))
        facts = content["systems"]
        self.predicted = {method: _read_predicted(entry) for method, entry in facts.items()}
        self.settings = {method: entry["settings"] for method, entry in facts.items()}
        self.notes: list[str] = content["notes"]

    def load(self, method: str, encoder: PreTrainedModel | None) -> Classifier:
        """Loads a fitted system.

        Args:
            encoder: The encoder before training; None: only the linear parts are used.
        """
        return load_linear(self._folder / method, encoder)


def _read_predicted(entry: Mapping[str, Any]) -> Array:
    """Reads the predictions in an entry of `FACTS_FILE`, int [texts] or bool [texts, labels]."""
    predicted = entry["predicted"]
    if "labels" not in entry:
        return np.array(predicted, int)
    return make_truth(list(map(tuple, predicted)), entry["labels"], has_several=True)


def open_systems(task: ClassifierTask, methods: Sequence[str]) -> Systems:
    """Opens the fitted systems of a run; fits them first if they are missing or out of date.

    Every process calls this function: one fits while the others wait.

    Args:
        methods: The methods of the systems to fit.

    Raises:
        DataError: If a method needs a validation split, but the table has none.
    """
    config = task.config
    examples = task.examples
    folder = locate_run_folder(config) / SYSTEMS_FOLDER
    metric = choose_metric(config, has_several=examples.has_several)
    key = {
        "examples": examples.key,
        "methods": list(methods),
        "model": [config.model_name, config.model_config_file, config.seed],
        "pooling": config.pooling,
        "weights": task.weights,
        "metric": metric,
    }

    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.with_name(f".{SYSTEMS_FOLDER}.lock"), "linear systems are fitted"):
        if _has_key(folder, key):
            return Systems(folder)

        if config.method != LINEAR and not len(examples.list_sources("validation")):
            raise DataError(
                f"method={config.method}: the table has no validation split to choose on; "
                "expected some rows of validation, or method=linear, or method=fine_tune "
                "head_start=random"
            )

        encoder = None if {*methods} == {LINEAR} else task.build_untouched_encoder()
        with report_opaque_work():
            train, validation = _read_splits(task, encoder)
            fitting = Fitting(
                examples.labels, task.weights, train, validation, config.pooling, metric
            )
            fitting.fit(methods)
        _write_systems(folder, key, fitting)
    return Systems(folder)


def explain_skipped_encoder(config: ClassificationConfig, chunks: int) -> str | None:
    """Explains why a run with `method=auto` does not try the encoder; None if it does.

    Args:
        chunks: Number of training chunks.
    """
    limit = config.auto_cpu_chunks
    if config.estimate or limit == 0 or chunks <= limit:
        return None
    if choose_device().type != "cpu":
        return None
    return (
        f"method=auto tried no encoder, which is slow on a CPU: there are {chunks:,} training "
        f"chunks, more than auto_cpu_chunks={limit:,}; to compare all systems, train on a GPU, or "
        "set auto_cpu_chunks=0"
    )


def choose_metric(config: ClassificationConfig, *, has_several: bool = False) -> str:
    """Returns the score by which systems are chosen; higher is better.

    It is `keep_best_by` if that is a score of texts of which higher is better, otherwise macro_f1.
    """
    name = config.keep_best_by or ""
    scores = choose_scores(has_several=has_several)
    return name if name in scores and scores[name].better == "max" else "macro_f1"


def _has_key(folder: Path, key: Mapping[str, Any]) -> bool:
    """Returns whether a folder has the systems that a key describes."""
    try:
        saved_key = parse_json((folder / FACTS_FILE).read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(saved_key == json.loads(json.dumps(key)))


def _write_systems(folder: Path, key: Mapping[str, Any], fitting: Fitting) -> None:
    """Writes the fitted systems to a folder, which replaces an earlier one.

    Args:
        key: Identifies the data, the model and the settings of the fit.
    """
    delete_path(folder)
    with build_atomically(folder) as part:
        part.mkdir()
        for method, model in fitting.models.items():
            (part / method).mkdir()
            model.save_linear(part / method)

        facts = {name: fitting.facts[name] for name in FITTED if name in fitting.facts}
        content = {"key": key, "systems": facts, "notes": fitting.notes}
        (part / FACTS_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        follow_umask(part)


def _read_splits(task: ClassifierTask, encoder: PreTrainedModel | None) -> tuple[Split, Split]:
    """Reads the training and the validation split, with the vectors of an encoder, if any."""
    examples = task.examples
    device = choose_device()
    scorer = task.make_scorer(Processes(device=device))

    model = None
    if encoder is not None:
        pooling = task.config.pooling
        # Only `vectors` is called, so the description needs no thresholds.
        description = Description(FROZEN, list(examples.labels), pooling, has_words=False)
        model = Classifier(description, encoder).to(device).eval()

    def read_with_vectors(split: str) -> Split:
        labeled = read_split(examples, split)
        vectors = None
        if model is not None:
            chunks = examples.read(examples.list_chunks(split))
            vectors = np.zeros((0, read_hidden_size(model.config)), np.float32)
            if chunks:
                _, first, counts = find_texts(chunks)
                vectors = average_over_chunks(
                    scorer.compute_outputs(model.vectors, chunks), first, counts
                )
        return replace(labeled, vectors=vectors)

    return read_with_vectors("train"), read_with_vectors("validation")


def read_split(examples: Examples, split: str) -> Split:
    """Reads the texts of a split, and their labels."""
    texts = [source.text for source in examples.read_texts(split)]
    units = np.array(examples.list_groups(split))
    return Split(examples.read_truth(split), texts, units=units)


@dataclass(frozen=True)
class Split:
    """Labeled texts of a split."""

    truth: Array  # true labels, int64 [texts], or bool [texts, labels] if a text may have several
    texts: Sequence[str]
    vectors: Array | None = None  # float32 [texts, hidden size], means over the chunks of a text
    units: Array | None = None  # [texts], unit of each text for folds; None: the text itself

    @property
    def has_several(self) -> bool:
        """Whether a text may have several labels."""
        return self.truth.ndim == 2


@dataclass(frozen=True)
class Solution:
    """A fitted linear function of the word features of a text, of its vector, or of both."""

    words: Array | None  # float [labels, features]
    head: Array | None  # float [labels, hidden size]
    bias: Array  # float [labels]

    def scale(self, factor: float) -> Solution:
        """Returns the function whose logits are multiplied by a factor."""
        words = None if self.words is None else self.words * factor
        head = None if self.head is None else self.head * factor
        return Solution(words, head, self.bias * factor)

    def logits(self, words: csr_matrix | None, vectors: Array | None) -> Array:
        """Computes logits, float64 [texts, labels].

        Args:
            words: Word features, [texts, features].
            vectors: float [texts, hidden size].
        """
        logits = np.asarray(self.bias)[None]
        if self.words is not None:
            logits = logits + words @ self.words.T
        if self.head is not None:
            assert vectors is not None
            logits = logits + vectors @ self.head.T
        return logits


@dataclass(frozen=True)
class Candidate:
    """A solution with its hyperparameters."""

    settings: dict[str, float]
    solution: Solution


class Fitting:
    """Fits systems on the training split, and chooses hyperparameters on the validation split.

    Args:
        labels: The names of the labels.
        weights: The weight of each label in training.
        train: The training split; must not be empty.
        validation: The validation split; if it is empty, the first candidate of a system is kept.
        pooling: The pooling of the vectors, for the exported description.
        metric: The score by which candidates are chosen.

    Attributes:
        models: The fitted systems by method.
        facts: Entries of `FACTS_FILE` by method.
        notes: Systems that were left out, with the reason.
    """

    def __init__(
        self,
        labels: Sequence[str],
        weights: Sequence[float],
        train: Split,
        validation: Split,
        pooling: str = "mean",
        metric: str = "macro_f1",
    ) -> None:
        self._labels = [*labels]
        self._train = train
        self._validation = validation
        self._pooling = pooling
        self._metric = metric
        self._has_several = train.has_several
        if self._has_several:
            self._training_labels = np.flatnonzero(train.truth.any(0))
        else:
            self._training_labels = np.unique(train.truth)
        self._weights = {label: weights[label] for label in self._training_labels.tolist()}

        self.models: dict[str, Classifier] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []

    def fit(self, methods: Sequence[str]) -> None:
        """Fits the systems of the given methods."""
        if LINEAR in methods or COMBINED in methods:
            self._fit_words(methods)
        if FROZEN in methods:
            self._fit_vectors()

    def _fit_words(self, methods: Sequence[str]) -> None:
        """Fits SVMs on words, and on words with vectors."""
        features = make_vectorizer()
        try:
            words = features.fit_transform(self._train.texts)
        except ValueError:  # no text has a word
            words = None

        if words is None or (len(self._training_labels) < 2 and not self._has_several):
            self._keep_majority()
            return
        if len(self._labels) * words.shape[1] > MAX_WORD_WEIGHTS:
            self.notes.append(
                f"TF-IDF + linear SVM left out: with {len(self._labels):,} "
                f"labels it would have more than {MAX_WORD_WEIGHTS:,} weights"
            )
            return

        validation_words = words[:0]
        if self._validation.texts:
            validation_words = features.transform(self._validation.texts)

        words_alone = self._fit_svm(words, None, 0.0)
        if LINEAR in methods:
            self._choose_candidate(LINEAR, [Candidate({}, words_alone)], features, validation_words)

        vectors = self._train.vectors
        if COMBINED in methods and vectors is not None:
            no_head = np.zeros((len(self._labels), vectors.shape[1]))
            candidates = [Candidate({"vector_weight": 0.0}, replace(words_alone, head=no_head))]
            for weight in VECTOR_WEIGHTS:
                solution = self._fit_svm(words, vectors, weight)
                candidates.append(Candidate({"vector_weight": weight}, solution))
            self._choose_candidate(COMBINED, candidates, features, validation_words)

    def _keep_majority(self) -> None:
        """Keeps a linear system that always predicts the most frequent label, or set of labels."""
        no_weights = np.zeros((len(self._labels), 0))
        if self._has_several:
            set_of_labels = find_most_frequent_set(self._train.truth)
            bias = np.where(set_of_labels, -_ABSENT_LOGIT, _ABSENT_LOGIT)
            predictions = np.tile(set_of_labels, (len(self._validation.texts), 1))
            self._keep_solution(LINEAR, Solution(no_weights, None, bias), predictions)
            return

        majority = int(np.bincount(self._train.truth).argmax())
        bias = np.zeros(len(self._labels))
        bias[majority] = 1.0
        predictions = np.full(len(self._validation.texts), majority)
        self._keep_solution(LINEAR, Solution(no_weights, None, bias), predictions)

    def _fit_svm(self, words: csr_matrix, vectors: Array | None, weight: float) -> Solution:
        """Fits a linear SVM with C = 1 on words, and on standardized vectors of the norm `weight`.

        `vectors` is None for words alone.
        """
        # Imported here because scikit-learn takes seconds.
        from sklearn.svm import LinearSVC

        def make_model(weights: Mapping[int, float]) -> Any:
            return LinearSVC(C=1.0, class_weight=weights, random_state=0)

        if vectors is None:
            coefficients, bias = self._fit_labels(make_model, words)
            return Solution(coefficients, None, bias)

        standard = Standardization.of(vectors, weight)
        columns = hstack([words, csr_matrix(standard.apply(vectors))], "csr")
        coefficients, bias = self._fit_labels(make_model, columns)
        word_count = words.shape[1]
        head, bias = standard.fold(coefficients[:, word_count:], bias)
        return Solution(coefficients[:, :word_count], head, bias)

    def _fit_vectors(self) -> None:
        """Fits logistic regressions on standardized vectors."""
        from sklearn.linear_model import LogisticRegression

        vectors = self._train.vectors
        assert vectors is not None
        label_count = len(self._training_labels)

        reason = None
        if label_count < 2 and not self._has_several:
            reason = "the training texts have one label"
        elif label_count * len(vectors) > MAX_TRAINING_LOGITS:
            limit = f"more than {MAX_TRAINING_LOGITS:,} logits"
            reason = f"with {label_count:,} labels it would need {limit}"
        if reason is not None:
            self.notes.append(f"there is no logistic regression on frozen vectors: {reason}")
            return

        standard = Standardization.of(vectors, vectors.shape[1] ** 0.5)
        columns = standard.apply(vectors)
        candidates: list[Candidate] = []
        for inverse_strength in INVERSE_STRENGTHS:

            def make_model(weights: Mapping[int, float], c: float = inverse_strength) -> Any:
                return LogisticRegression(C=c, class_weight=weights, max_iter=300, tol=1e-3)

            head, bias = standard.fold(*self._fit_labels(make_model, columns))
            candidates.append(Candidate({"C": inverse_strength}, Solution(None, head, bias)))
        self._choose_candidate(FROZEN, candidates)

    def _fit_labels(
        self, make_model: Callable[[Mapping[int, float]], Any], columns: Any
    ) -> tuple[Array, Array]:
        """Fits a linear model of all labels, or one of each label if a text may have several.

        Args:
            make_model: Makes a linear model of scikit-learn from the weights of its classes.
            columns: The features of the training texts, [texts, features].

        Returns:
            Coefficients, float64 [labels, features], and biases, float64 [labels].
        """
        if not self._has_several:
            with warnings.catch_warnings():
                # With few texts per label, scikit-learn takes the label numbers for a regression.
                warnings.filterwarnings("ignore", "The number of unique classes is greater than")
                model = make_model(self._weights).fit(columns, self._train.truth)
            return self._expand_labels(model)

        coefficients = np.zeros((len(self._labels), columns.shape[1]))
        biases = np.full(len(self._labels), _ABSENT_LOGIT)
        for label, weight in self._weights.items():
            has_label = self._train.truth[:, label].astype(np.int64)
            if has_label.all():  # a model needs two classes
                biases[label] = -_ABSENT_LOGIT
                continue
            model = make_model({1: weight}).fit(columns, has_label)
            coefficients[label] = model.coef_[0]
            biases[label] = model.intercept_[0]
            report_progress()
        return coefficients, biases

    def _expand_labels(self, model: Any) -> tuple[Array, Array]:
        """Expands the coefficients and biases of the training labels to all labels.

        For two labels, scikit-learn stores only the difference of their rows. Half of it is given
        to each label, with opposite signs.
        """
        rows = model.coef_
        bias = model.intercept_
        if len(model.classes_) == 2:
            rows = np.concatenate([-rows, rows]) / 2
            bias = np.concatenate([-bias, bias]) / 2

        coefficients = np.zeros((len(self._labels), rows.shape[1]))
        biases = np.full(len(self._labels), _ABSENT_LOGIT)
        coefficients[model.classes_] = rows
        biases[model.classes_] = bias
        return coefficients, biases

    def _choose_candidate(
        self,
        method: str,
        candidates: Sequence[Candidate],
        features: Any = None,
        words: csr_matrix | None = None,
    ) -> None:
        """Keeps the candidate with the best score on the validation split, on a tie the first.

        The logits of the candidate are calibrated, and thresholds are chosen.

        Args:
            features: The fitted vectorizer, if the solutions have word features.
            words: The word features of the validation texts.
        """
        truth = self._validation.truth
        if not len(truth):
            default = candidates[0]
            self._keep_solution(method, default.solution, truth, default.settings, features)
            return

        logits: list[Array] = []
        predicted: list[Array] = []
        scores: list[float] = []
        for candidate in candidates:
            logits.append(candidate.solution.logits(words, self._validation.vectors))
            predicted.append(self._predict(logits[-1]))
            values = compute_text_scores(truth, predicted[-1], len(self._labels))
            scores.append(values[self._metric])

        best = int(np.argmax(scores))
        find_scale = find_best_set_scale if self._has_several else find_best_scale
        scale = find_scale(logits[best], truth)
        thresholds = None
        if self._has_several:
            probabilities = compute_probabilities(logits[best] * scale)
            thresholds = choose_thresholds(probabilities, truth).tolist()
        self._keep_solution(
            method,
            candidates[best].solution.scale(scale),
            predicted[best],
            candidates[best].settings,
            features,
            thresholds,
        )

    def _predict(self, logits: Array) -> Array:
        """Predicts labels of the validation texts; several labels by thresholds across folds."""
        if not self._has_several:
            labels: Array = logits.argmax(1)
            return labels
        validation = self._validation
        units = np.arange(len(logits)) if validation.units is None else validation.units
        return predict_across_folds(compute_probabilities(logits), validation.truth, units)

    def _keep_solution(
        self,
        method: str,
        solution: Solution,
        predicted: Array,
        settings: Mapping[str, float] | None = None,
        features: Any = None,
        thresholds: list[float] | None = None,
    ) -> None:
        """Converts a solution to a classifier, and adds it to `models` and `facts`.

        Args:
            predicted: The predicted labels of the validation texts.
            settings: The chosen hyperparameters.
            features: The fitted vectorizer, if the solution has word features.
            thresholds: Of the labels, if a text may have several; None: `DEFAULT_THRESHOLD`.
        """
        bias = solution.bias  # of the words if there are any, otherwise of the head
        words = None
        if solution.words is not None:
            ngrams = [] if features is None else features.get_feature_names_out().tolist()
            idf = np.zeros(0) if features is None else features.idf_
            words = NgramModel(ngrams, idf, solution.words, bias)
            bias = np.zeros_like(bias)

        head = None
        if solution.head is not None:
            head = nn.Linear(solution.head.shape[1], len(bias))
            head.load_state_dict(
                {
                    "weight": torch.from_numpy(solution.head),
                    "bias": torch.from_numpy(bias),
                }
            )

        pooling = None if head is None else self._pooling
        facts: dict[str, Any] = {"predicted": predicted.tolist(), "settings": settings or {}}
        if self._has_several:
            thresholds = thresholds or [DEFAULT_THRESHOLD] * len(self._labels)
            facts["predicted"] = [np.flatnonzero(row).tolist() for row in predicted]
            facts["labels"] = len(self._labels)
        description = Description(method, self._labels, pooling, words is not None, thresholds)
        self.models[method] = Classifier(description, head=head, words=words)
        self.facts[method] = facts
        logger.info("fitted %s%s", method, f": {settings}" if settings else "")


@dataclass(frozen=True)
class Standardization:
    """An affine map of vectors that gives each dimension the mean 0 and the same variance.

    Dimensions that hardly vary get the scale 0. Some dimensions of pretrained encoders contain only
    rounding errors (all-MiniLM-L6-v2: two of 1e-31, one of 1e-8). Scaled up, they would be noise,
    and gradients through the folded weights would overflow.
    """

    mean: Array  # float64 [hidden size]
    scale: Array  # float64 [hidden size]

    @classmethod
    def of(cls, vectors: Array, norm: float) -> Standardization:
        """Fits the standardization after which the root mean square norm of vectors is `norm`."""
        deviation = vectors.std(0, dtype=np.float64)
        varies = deviation > _MIN_RELATIVE_DEVIATION * deviation.max()
        scale = np.zeros_like(deviation)
        scale[varies] = norm / max(varies.sum(), 1) ** 0.5 / deviation[varies]
        return cls(vectors.mean(0, dtype=np.float64), scale)

    def apply(self, vectors: Array) -> Array:
        """Returns the standardized vectors, float64 [texts, hidden size]."""
        return (vectors - self.mean) * self.scale

    def fold(self, coefficients: Array, bias: Array) -> tuple[Array, Array]:
        """Converts a linear function of standardized vectors to one of the original vectors.

        Args:
            coefficients: float [labels, hidden size].
            bias: float [labels].
        """
        weight = coefficients * self.scale
        return weight, bias - weight @ self.mean


def find_best_scale(logits: Array, labels: Array) -> float:
    """Finds the factor of the logits with the lowest cross-entropy: temperature scaling.

    Source: Guo et al. 2017, arXiv 1706.04599.

    Args:
        logits: float64 [texts, labels].
        labels: int64 [texts].
    """
    target_logits = logits[np.arange(len(labels)), labels]
    is_trained = target_logits > _ABSENT_LOGIT / 2  # texts whose label has a training text
    if not is_trained.any():
        return 1.0

    logits = logits[is_trained]
    target_logits = target_logits[is_trained]

    def loss(log_scale: float) -> float:
        scale = np.exp(log_scale)
        return float(np.mean(logsumexp(scale * logits, axis=1) - scale * target_logits))

    bounds = (-_MAX_LOG_SCALE, _MAX_LOG_SCALE)
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def compute_probabilities(logits: Array) -> Array:
    """Computes the sigmoids of logits of several labels, float32 [texts, labels], as in scoring."""
    probabilities: Array = expit(logits).astype(np.float32)
    return probabilities


def find_best_set_scale(logits: Array, truth: Array) -> float:
    """Finds the factor of the logits with the lowest mean binary cross-entropy.

    Args:
        logits: float64 [texts, labels].
        truth: bool [texts, labels].
    """
    is_trained = np.abs(logits) < -_ABSENT_LOGIT / 2
    if not is_trained.any():
        return 1.0
    # The loss of a pair is log(1 + exp(-z)) with z = logit if the text has the label, else -logit.
    signed_logits = np.where(truth, logits, -logits)[is_trained]

    def loss(log_scale: float) -> float:
        return float(np.mean(np.logaddexp(0, -np.exp(log_scale) * signed_logits)))

    bounds = (-_MAX_LOG_SCALE, _MAX_LOG_SCALE)
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def find_most_frequent_set(truth: Array) -> Array:
    """Returns the most frequent set of labels, bool [labels]; on a tie the first in `truth`."""
    sets, first_texts, counts = np.unique(truth, axis=0, return_index=True, return_counts=True)
    candidates = np.flatnonzero(counts == counts.max())
    most_frequent: Array = sets[candidates[np.argmin(first_texts[candidates])]]
    return most_frequent


def find_most_frequent_labels(truth: Array) -> Array:
    """Returns the constant prediction with the highest micro F1, bool [labels].

    For each n, no other n labels are right more often than the n most frequent ones, so only n is
    searched for.

    Args:
        truth: bool [texts, labels].
    """
    counts = truth.sum(0)
    order = np.argsort(-counts, kind="stable")
    sizes = np.arange(1, len(order) + 1)
    f1 = 2 * np.cumsum(counts[order]) / (sizes * len(truth) + counts.sum())
    is_frequent = np.zeros(len(order), bool)
    is_frequent[order[: int(np.argmax(f1)) + 1]] = True
    return is_frequent


def fit_word_system(
    labels: Sequence[str],
    weights: Sequence[float],
    train: Split,
    validation: Split | None = None,
) -> tuple[Classifier | None, list[str]]:
    """Fits the system of `method=linear` on training texts.

    Args:
        labels: The names of the labels.
        weights: The weight of each label in training.
        train: The training split.
        validation: The split on which thresholds of several labels are chosen; None: they are
            `DEFAULT_THRESHOLD`.

    Returns:
        The system, or None if it would have more than `MAX_WORD_WEIGHTS` weights; and notes.
    """
    if validation is None:
        validation = Split(train.truth[:0], [])
    fitting = Fitting(labels, weights, train, validation)
    fitting.fit([LINEAR])
    return fitting.models.get(LINEAR), fitting.notes


def predict_by_words(model: Classifier, texts: Sequence[str]) -> Array:
    """Predicts the labels of texts by their words alone: int64 [texts], or bool [texts, labels]."""
    assert model.words is not None
    logits = model.words.logits(texts)
    thresholds = model.description.thresholds
    if thresholds is None:
        labels: Array = logits.argmax(1)
        return labels
    return apply_thresholds(compute_probabilities(logits), np.array(thresholds))


def choose_system(
    truth: Array,
    predicted: Mapping[str, Array],
    units: Array,
    labels: int,
    metric: str,
    *,
    resamples: int,
    seed: int,
) -> tuple[str, list[Compared]]:
    """Chooses the simplest system that is within one standard error of the best one.

    A system that scores no higher than a simpler one is not chosen. Its standard error may be
    larger only because its mistakes are not those of the best system.

    This is the one-standard-error rule of Breiman et al. (1984): on a small split, the best of
    several systems owes part of its lead to chance. The standard error is that of the paired
    difference, by bootstrap over the units.

    Args:
        truth: int64 [texts] or bool [texts, labels], the true labels of the validation split.
        predicted: The predictions of each system by name, the simplest system first.
        metric: The score by which systems are compared.
        units, labels, resamples, seed: See `compare_systems`.

    Returns:
        The name of the chosen system, and the scores of all systems, the best one first.
    """
    scores = {
        name: compute_text_scores(truth, guesses, labels)[metric]
        for name, guesses in predicted.items()
    }
    best = max(scores, key=scores.__getitem__)
    best_first = {best: predicted[best], **predicted}
    compared = compare_systems(truth, best_first, units, labels, resamples=resamples, seed=seed)

    close_to_best = {best}
    for system in compared[1:]:
        difference = system.differences[metric]
        if difference.value >= -estimate_standard_error(difference):
            close_to_best.add(system.name)

    highest_score = -math.inf  # of the systems that are simpler
    for name in predicted:
        if name in close_to_best and scores[name] > highest_score:
            return name, compared
        highest_score = max(highest_score, scores[name])
    raise AssertionError("no simpler system equals the best one, which comes first among equals")
