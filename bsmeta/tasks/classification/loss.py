"""The loss: cross-entropy with label smoothing, weighted by the label of each chunk.

The loss of a step is sum(weight x cross-entropy) / sum(weight) over its global batch; the weights
are known before the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bsmeta.config.checks.problems import nearest
from bsmeta.config.errors import ConfigurationError


def label_weights(
    class_weights: Any, labels: Sequence[str], counts: Mapping[str, int]
) -> list[float]:
    """The weight of each label.

    Args:
        class_weights: The key of the configuration.
        labels: The labels of the table.
        counts: Source rows of the training split with each label.

    Raises:
        ConfigurationError: If it is none of the accepted values, or names an unknown label.
    """
    if class_weights == "none":
        return [1.0] * len(labels)
    if class_weights == "balanced":
        total = sum(counts.values())
        return [total / (len(labels) * max(counts.get(label, 0), 1)) for label in labels]
    if not isinstance(class_weights, Mapping):
        raise ConfigurationError(
            f"class_weights={class_weights}: expected none, balanced, or a weight for each label, "
            f"such as {{{labels[0]}: 2}}"
        )
    given = {str(label): value for label, value in class_weights.items()}
    for label, value in given.items():
        if label not in labels:
            raise ConfigurationError(
                f"class_weights: there is no label {label}{nearest(label, labels)}; expected some "
                f"of {', '.join(labels)}"
            )
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise ConfigurationError(f"class_weights.{label}={value}: expected a number above 0")
    return [float(given.get(label, 1.0)) for label in labels]


def cross_entropies(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The loss of each chunk before its weight, [chunks], in nats."""
    return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


def mean_loss(
    logits: np.ndarray, labels: np.ndarray, weights: Sequence[float], smoothing: float
) -> float:
    """The weighted mean over chunks, as in training."""
    losses = cross_entropies(
        torch.from_numpy(logits.astype(np.float64)), torch.from_numpy(labels), smoothing
    ).numpy()
    own = np.asarray(weights)[labels]
    return float((losses * own).sum() / own.sum())
