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
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix, hstack
from scipy.special import logsumexp
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bsmeta.core.errors import DataError
from bsmeta.core.progress import exclusively, opaque_work
from bsmeta.models.pretrained import default_device
from bsmeta.report.inference import Estimate
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
from bsmeta.tasks.classification.examples import Chunk, Examples
from bsmeta.tasks.classification.predictions import (
    SCORES,
    Compared,
    Confusion,
    compare,
    means_over_chunks,
    outputs_of,
    scores,
    texts_of,
)
from bsmeta.training.task import EvaluationContext

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

FOLDER = "systems"
"""In the run folder."""
FACTS = "systems.json"

MOST_WEIGHTS = 1 << 26
"""Of a linear model of words: half a gigabyte, twice."""
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


@dataclass(frozen=True)
class Solution:
    """A fitted linear function of the features of a text.

    Attributes:
        words: float [labels, features], its weights of the word features; None without them.
        head: float [labels, hidden size], its weights of the vectors; None without them.
        bias: float [labels].
    """

    words: Array | None
    head: Array | None
    bias: Array

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


@dataclass(frozen=True)
class Facts:
    """What is known about a fitted system.

    Attributes:
        predicted: The labels of the texts of the validation split.
        settings: What was chosen on the validation split.
    """

    predicted: list[int]
    settings: dict[str, float] = field(default_factory=dict)


class Systems:
    """The fitted systems of a run, in a folder.

    Attributes:
        facts: The facts of each fitted system, the simplest first.
        notes: Which systems were left out, and why.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        content = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        self.facts = {name: Facts(**values) for name, values in content["systems"].items()}
        self.notes: list[str] = content["notes"]

    def load(self, method: str, encoder: PreTrainedModel | None) -> Classifier:
        """A fitted system, on the untouched encoder if it is to be applied to vectors."""
        return load_linear(self._folder / method, encoder)


def open_systems(
    config: ClassificationConfig,
    methods: Sequence[str],
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    weights: Sequence[float],
    encoder: Callable[[], PreTrainedModel],
) -> Systems:
    """The fitted systems of a run, which are fitted first if they are not in its folder.

    Every process calls it: one fits while the others wait.

    Args:
        config: The run.
        methods: Those that are needed.
        examples: Its data.
        tokenizer: Pads the chunks.
        weights: The weight of each label.
        encoder: Builds the untouched encoder.

    Raises:
        DataError: If there is no validation split to choose on.
    """
    folder = Path(config.out_dir) / FOLDER
    key = {
        "examples": examples.key,
        "methods": list(methods),
        "model": [config.model_name, config.model_config_file, config.seed],
        "pooling": config.pooling,
        "weights": list(weights),
        "metric": score_to_choose(config),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusively(folder.with_name(f".{FOLDER}.lock"), "linear systems are fitted"):
        if not _is_of(folder, key):
            _fit(folder, key, config, examples, tokenizer, encoder)
    return Systems(folder)


def score_to_choose(config: ClassificationConfig) -> str:
    """The score by which systems are chosen: `keep_best_by` if it is one of texts."""
    return config.keep_best_by if config.keep_best_by in SCORES else "macro_f1"


def _is_of(folder: Path, key: Mapping[str, Any]) -> bool:
    try:
        found = json.loads((folder / FACTS).read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(found == json.loads(json.dumps(key)))


def _fit(
    folder: Path,
    key: dict[str, Any],
    config: ClassificationConfig,
    examples: Examples,
    tokenizer: PreTrainedTokenizerBase,
    encoder: Callable[[], PreTrainedModel],
) -> None:
    methods = key["methods"]
    part = folder.with_name(f".{FOLDER}.part")
    for old in (part, folder):
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir()
    frozen = None if set(methods) <= {LINEAR} else encoder()
    with opaque_work():
        fitted = Fitting.of(config, key, examples, tokenizer, frozen).fit(methods)
    for method, (model, _) in fitted.found.items():
        (part / method).mkdir()
        model.save_linear(part / method)
    facts = {name: asdict(fitted.found[name][1]) for name in FITTED if name in fitted.found}
    content = {"key": key, "systems": facts, "notes": fitted.notes}
    (part / FACTS).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.rename(folder)


class Fitting:
    """The features of the training and the validation split, and the systems fitted on them."""

    def __init__(
        self, labels: Sequence[str], pooling: str, weights: Sequence[float], metric: str,
        truth: tuple[Array, Array], texts: tuple[Sequence[str], Sequence[str]],
        vectors: tuple[Array, Array] | None,
    ) -> None:  # fmt: skip
        """Takes pairs of what the training and the validation split have.

        Args:
            labels: All labels.
            pooling: Of the vectors.
            weights: The weight of each label.
            metric: The score to choose by.
            truth: int64 [texts], their labels.
            texts: The texts.
            vectors: float32 [texts, hidden size], the mean vectors of their chunks.
        """
        self._labels = [*labels]
        self._pooling = pooling
        self._metric = metric
        self._truth, self._others = truth
        self._texts, self._other_texts = texts
        self._vectors = vectors
        self._class_weights = dict(enumerate(weights))
        self.found: dict[str, tuple[Classifier, Facts]] = {}
        self.notes: list[str] = []

    @classmethod
    def of(
        cls, config: ClassificationConfig, key: Mapping[str, Any], examples: Examples,
        tokenizer: PreTrainedTokenizerBase, encoder: PreTrainedModel | None,
    ) -> Fitting:  # fmt: skip
        """Reads both splits, and runs the encoder on them if there is one."""
        splits = ("train", "validation")
        truth, texts = [], []
        for split in splits:
            rows = [*examples.texts(split)]
            truth.append(np.array([label for _, _, label in rows], np.int64))
            texts.append([text for _, text, _ in rows])
        if not texts[1] and key["methods"] != [LINEAR]:
            raise DataError(
                f"method={config.method}: the table has no validation split to choose on; expected "
                "some rows of validation, or method=linear, or method=fine_tune head_start=random"
            )
        vectors = None
        if encoder is not None:
            description = Description(FROZEN, list(examples.labels), config.pooling, False)
            model = Classifier(description, encoder).to(default_device()).eval()
            size = config.data_config.per_device_eval_batch_size
            found = [
                text_vectors(model, examples.read(examples.chunks(split)), tokenizer, size)
                for split in splits
            ]
            vectors = (found[0], found[1])
        return cls(
            examples.labels, config.pooling, key["weights"], key["metric"],
            (truth[0], truth[1]), (texts[0], texts[1]), vectors,
        )  # fmt: skip

    def fit(self, methods: Sequence[str]) -> Fitting:
        """Fits the systems in the order in which later ones need earlier ones."""
        if LINEAR in methods or COMBINED in methods:
            self._fit_words(methods)
        if FROZEN in methods:
            self._fit_vectors()
        return self

    def _fit_words(self, methods: Sequence[str]) -> None:
        features = word_features()
        try:
            words = features.fit_transform(self._texts)
        except ValueError:  # no text has a word
            words = None
        if words is None or len(np.unique(self._truth)) < 2:
            bias = np.zeros(len(self._labels))
            most = int(np.bincount(self._truth).argmax())
            bias[most] = 1.0
            nothing = np.zeros((len(self._labels), 0))
            self._keep(
                LINEAR, Solution(nothing, None, bias), None, Facts([most] * len(self._others))
            )
            return
        if len(np.unique(self._truth)) * words.shape[1] > MOST_WEIGHTS:
            self.notes.append(
                f"TF-IDF + linear SVM left out: with {len(self._labels):,} "
                f"labels it would have more than {MOST_WEIGHTS:,} weights"
            )
            return
        others = features.transform(self._other_texts) if self._other_texts else words[:0]
        best = self._svm(words, None, 0.0)
        if LINEAR in methods:
            self._choose(LINEAR, [({}, best)], features, others)
        if COMBINED in methods and self._vectors is not None:
            candidates = [({"vector_weight": 0.0}, _without_head(best, self._vectors[0]))]
            candidates += [
                ({"vector_weight": weight}, self._svm(words, self._vectors[0], weight))
                for weight in VECTOR_WEIGHTS
            ]
            self._choose(COMBINED, candidates, features, others)

    def _svm(self, words: csr_matrix, vectors: Array | None, weight: float) -> Solution:
        """A linear SVM with C = 1 on words, and on standardized vectors of the norm `weight`."""
        from sklearn.svm import LinearSVC

        columns, standard = words, None
        if vectors is not None:
            standard = Standard.of(vectors, weight)
            columns = hstack([words, csr_matrix(standard.apply(vectors))], "csr")
        model = LinearSVC(C=1.0, class_weight=self._own_weights(), random_state=0)
        model.fit(columns, self._truth)
        coefficients, bias = self._of_all_labels(model)
        if standard is None:
            return Solution(coefficients, None, bias)
        split = words.shape[1]
        head, bias = standard.fold(coefficients[:, split:], bias)
        return Solution(coefficients[:, :split], head, bias)

    def _fit_vectors(self) -> None:
        """Logistic regression on standardized vectors."""
        from sklearn.linear_model import LogisticRegression

        assert self._vectors is not None
        vectors = self._vectors[0]
        count = len(np.unique(self._truth))
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
                C=strength, class_weight=self._own_weights(), max_iter=300, tol=1e-3
            )
            model.fit(columns, self._truth)
            head, bias = standard.fold(*self._of_all_labels(model))
            candidates.append(({"C": strength}, Solution(None, head, bias)))
        self._choose(FROZEN, candidates, None, None)

    def _own_weights(self) -> dict[int, float]:
        return {int(label): self._class_weights[int(label)] for label in np.unique(self._truth)}

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
        features: Any, words: csr_matrix | None,
    ) -> None:  # fmt: skip
        """Keeps the best candidate on the validation split, the first of equal ones."""
        if not len(self._others):
            self._keep(method, candidates[0][1], features, Facts([], candidates[0][0]))
            return
        vectors = None if self._vectors is None else self._vectors[1]
        found = [solution.logits(words, vectors) for _, solution in candidates]
        best = int(np.argmax([self._score(logits.argmax(1)) for logits in found]))
        settings, solution = candidates[best]
        scaled = solution.scaled(best_scale(found[best], self._others))
        self._keep(method, scaled, features, Facts(found[best].argmax(1).tolist(), settings))

    def _score(self, predicted: Array) -> float:
        """The score to choose by, of labels of the validation split."""
        confusion = Confusion.of(self._others, predicted, len(self._labels))
        return float(scores(*confusion.totals())[self._metric])

    def _keep(self, method: str, solution: Solution, features: Any, facts: Facts) -> None:
        words, bias = None, solution.bias
        if solution.words is not None:
            ngrams = [] if features is None else features.get_feature_names_out().tolist()
            idf = np.zeros(0) if features is None else features.idf_
            words = Words(ngrams, idf, solution.words, solution.bias)
            bias = np.zeros_like(solution.bias)
        pooling = None if solution.head is None else self._pooling
        description = Description(method, self._labels, pooling, words is not None)
        model = Classifier(description, head=_head(solution.head, bias), words=words)
        logger.info("%s: fitted %s", method, facts.settings or "")
        self.found[method] = model, facts


def _head(weight: Array | None, bias: Array) -> nn.Linear | None:
    if weight is None:
        return None
    head = nn.Linear(weight.shape[1], weight.shape[0])
    values = {"weight": weight, "bias": bias}
    head.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})
    return head


@dataclass(frozen=True)
class Standard:
    """Standardizes vectors: each dimension to mean 0 and an equal variance.

    A dimension that hardly varies is left out (scale 0). Pretrained encoders have dimensions of
    rounding errors (all-MiniLM-L6-v2: two of 1e-31, one of 1e-8). Scaled up, they are noise, and
    the folded weights become so large that gradients through them overflow.

    Attributes:
        mean, scale: float64 [hidden size].
    """

    mean: Array
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


def _without_head(solution: Solution, vectors: Array) -> Solution:
    """The solution on words alone, as one on words and vectors of weight 0."""
    return Solution(solution.words, np.zeros((len(solution.bias), vectors.shape[1])), solution.bias)


def best_scale(logits: Array, labels: Array) -> float:
    """The factor of the logits with the lowest cross-entropy (Guo et al. 2017, arXiv 1706.04599).

    Args:
        logits: float64 [texts, labels].
        labels: int64 [texts].
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


def text_vectors(
    model: Classifier, chunks: Sequence[Chunk], tokenizer: PreTrainedTokenizerBase, batch_size: int
) -> NDArray[np.float32]:
    """The mean vectors of the chunks of each text, float32 [texts, hidden size].

    Args:
        model: Its encoder is used.
        chunks: Text by text, in the order of the source rows.
        tokenizer: Pads them.
        batch_size: Chunks of a batch.
    """
    assert model.config is not None
    if not chunks:
        return np.zeros((0, model.config.hidden_size), np.float32)
    context = EvaluationContext.alone(next(model.parameters()).device)
    ids = [chunk.ids for chunk in chunks]
    vectors = outputs_of(model.vectors, ids, tokenizer, batch_size, context)
    _, first, counts = texts_of(chunks)
    return means_over_chunks(vectors, first, counts)


def fit_words(
    labels: Sequence[str], weights: Sequence[float], truth: Array, texts: Sequence[str]
) -> tuple[Words | None, list[str]]:
    """The system of `method=linear`, fitted without a validation split.

    Args:
        labels: All labels.
        weights: The weight of each.
        truth: int64 [texts], the labels of the training texts.
        texts: These texts.

    Returns:
        None if it would have more than `MOST_WEIGHTS` weights; and a note on that.
    """
    nothing: Array = np.zeros(0, np.int64)
    fitting = Fitting(labels, "mean", weights, "macro_f1", (truth, nothing), (texts, []), None)
    fitting.fit([LINEAR])
    model = fitting.found.get(LINEAR)
    return None if model is None else model[0].words, fitting.notes


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
        units: The resampled unit of each text.
        labels: Number of labels.
        metric: The score.
        resamples: Number of resamples.
        seed: Their seed.

    Returns:
        Its name, and the scores of all systems, the best one first.
    """
    values = {
        name: float(scores(*Confusion.of(truth, own, labels).totals())[metric])
        for name, own in predicted.items()
    }
    best = max(values, key=lambda name: values[name])
    ordered = {best: predicted[best], **predicted}
    compared = compare(truth, ordered, units, labels, resamples=resamples, seed=seed)
    near = {best} | {
        system.name
        for system in compared[1:]
        if system.differences[metric].value >= -_standard_error(system.differences[metric])
    }
    return next(name for name in predicted if name in near), compared


def _standard_error(difference: Estimate) -> float:
    return (difference.high - difference.low) / (2 * _NORMAL_95)
