"""The detectors: which model scores the words of a text, from which inputs, and their loss.

Two forms: the small model, which reads the candidates of words (`ranker`), and any encoder of
transformers with one output per token, where a word's logit is the mean over its tokens. A
sequence has an error if any of its words has one: its probability follows from those of its words,
so both tasks train and export the same kind of model, and one can start from the other's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForTokenClassification, PreTrainedTokenizerBase

from bsmeta.core.errors import ConfigurationError
from bsmeta.data.text.tokenizer import tokenizer_of
from bsmeta.models.pretrained import check_files, load_exported, token_limit
from bsmeta.tasks.spelling.config import SpellingConfig
from bsmeta.tasks.spelling.inputs import CandidateInputs, Inputs, TokenInputs, Words
from bsmeta.tasks.spelling.lexicon import Lexicon, build_lexicon, is_lexicon
from bsmeta.tasks.spelling.noise import is_editable
from bsmeta.tasks.spelling.ranker import Ranker, RankerConfig, error_logits
from bsmeta.tasks.spelling.samples import Table, make_noise
from bsmeta.training.batches import batches_within, spread
from bsmeta.training.task import EvaluationContext

TINY = 1e-6
"""The least probability of an error in a text, for finite logarithms."""
NO_ERROR = np.float32(-15)
"""The logit of a word that is not spelled; finite, because losses are computed from logits."""


def word_logits(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The logit of an error for each word, float32 [texts, words]; any value for padding.

    Words without tokens (a tokenizer may drop control characters) have the logit 0.
    """
    if "features" in tensors:
        rows, words = tensors["row_words"], tensors["words"]
        return error_logits(model(tensors["features"], rows, words), rows, words)
    logits = model(
        input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"]
    ).logits.squeeze(2).float()  # fmt: skip
    places = tensors["places"]
    width = tensors["is_word"].shape[1] + 1
    sums = logits.new_zeros(len(places), width).scatter_add(1, places, logits)
    tokens = logits.new_zeros(len(places), width).scatter_add(1, places, torch.ones_like(logits))
    return (sums / tokens.clamp(min=1))[:, : width - 1]


def logits_of_words(
    model: nn.Module,
    inputs: Inputs,
    texts: Sequence[Words],
    budget: int,
    context: EvaluationContext,
) -> list[np.ndarray]:
    """The logit of an error for each word of each text, float32 [words]; at most `NO_ERROR` for
    numbers, URLs, abbreviations and other words that are never misspelled in training.

    Args:
        model: The detector, wrapped or not, in evaluation mode.
        inputs: Its inputs.
        texts: The words of each text; a text may be empty, or longer than the model can read.
        budget: Padded tokens of a batch.
        context: The processes.
    """
    windows = [
        (number, part) for number, words in enumerate(texts) for part in inputs.windows(words)
    ]
    parts = [part for _, part in windows]

    def run(batch: np.ndarray) -> list[np.ndarray]:
        chosen = [parts[number] for number in batch]
        tensors = {
            name: tensor.to(context.device) for name, tensor in inputs.tensors(chosen).items()
        }
        with torch.no_grad():
            logits = word_logits(model, tensors).float().cpu().numpy()
        return [row[: len(part)].copy() for row, part in zip(logits, chosen, strict=True)]

    scored = spread(batches_within(inputs.lengths(parts), budget), run, context)
    found: list[list[np.ndarray]] = [[] for _ in texts]
    for (number, part), logits in zip(windows, scored, strict=True):
        is_spelled = np.array([is_editable(word) for word in part])
        found[number].append(np.where(is_spelled, logits, np.minimum(logits, NO_ERROR)))
    return [np.concatenate(rows) if rows else np.zeros(0, np.float32) for rows in found]


def word_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of each word, in nats; 0 for padding.

    Args:
        logits: [texts, words].
        labels: float [texts, words]: 1 for an error, 0 for none, -1 for padding.
    """
    losses = functional.binary_cross_entropy_with_logits(
        logits, labels.clamp(min=0), reduction="none"
    )
    return losses * (labels >= 0)


def correct_log_probability(logits: torch.Tensor, is_word: torch.Tensor) -> torch.Tensor:
    """The logarithm of the probability that no word of a text has an error, [texts]."""
    return -(functional.softplus(logits) * is_word).sum(1)


def sequence_logit(logits: np.ndarray) -> np.ndarray:
    """The logit of an error anywhere in a text from those of its words; a float64 scalar."""
    surprise = np.logaddexp(0, logits.astype(np.float64)).sum()  # -log p(no error)
    return np.asarray(surprise + np.log(-np.expm1(-np.maximum(surprise, TINY))))


def sequence_losses(
    logits: torch.Tensor, is_word: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """The cross-entropy of each text, in nats.

    Args:
        logits: [texts, words].
        is_word: bool [texts, words]: False for padding.
        labels: float [texts]: 1 for a text with an error.
    """
    correct = correct_log_probability(logits, is_word).clamp(max=-TINY)
    return -torch.where(labels > 0, torch.log(-torch.expm1(correct)), correct)


def build_inputs(config: SpellingConfig, table: Table) -> Inputs:
    """The inputs of the model to train.

    Raises:
        ConfigurationError: If the tokenizer, a list or the model to start from is missing.
    """
    if is_lexicon(config.model_name):
        return small_inputs(config, Path(str(config.model_name)))
    if config.model_name is None and config.model_config_file is None:
        return small_inputs(config, count_words(config, table))
    tokenizer = _tokenizer(str(config.tokenizer_name or config.model_name))
    return TokenInputs(tokenizer, token_limit(_shape(config), tokenizer))


def small_inputs(config: SpellingConfig, folder: Path) -> CandidateInputs:
    """The inputs of the small model, with the words that are counted in a folder."""
    return CandidateInputs(Lexicon.read(folder), config.hidden_misspellings)


def count_words(config: SpellingConfig, table: Table) -> Path:
    """The folder of the words that are counted in the texts of a run, which is written once."""
    lists, noise = list(config.word_lists), make_noise(config)

    def count(texts: Iterator[str], folder: Path) -> None:
        build_lexicon(texts, lists, noise.misspellings).write(folder)

    return table.counted([lists, noise.misspellings_hash], count)


def build_detector(config: SpellingConfig, inputs: Inputs) -> nn.Module:
    """The detector to train: float32, on the CPU.

    Raises:
        ConfigurationError: If it cannot be loaded.
        DataError: If it is damaged.
    """
    if is_lexicon(config.model_name):
        return load_detector(Path(str(config.model_name)))[0].train()
    if isinstance(inputs, CandidateInputs):
        return Ranker(RankerConfig(features=inputs.features, **vars(config.small_model)))
    shape = _shape(config)
    if config.model_config_file is not None:
        return AutoModelForTokenClassification.from_config(shape, dtype=torch.float32)
    check_files(str(config.model_name), f"model_name={config.model_name}")
    with _explained(str(config.model_name)):
        return AutoModelForTokenClassification.from_pretrained(
            config.model_name, config=shape, dtype=torch.float32, ignore_mismatched_sizes=True
        )


def _shape(config: SpellingConfig) -> Any:
    source = str(config.model_config_file or config.model_name)
    with _explained(source):
        return AutoConfig.from_pretrained(source, num_labels=1)


@contextmanager
def _explained(source: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{source} cannot be loaded: {error}. Expected a folder or a name on the Hub that "
            "AutoModelForTokenClassification knows, or a detector of an earlier run",
            ["model_name"],
        ) from error


def load_detector(folder: Path) -> tuple[nn.Module, Inputs]:
    """A trained detector in evaluation mode, with its inputs.

    Raises:
        DataError: If it is damaged or incomplete.
    """
    is_small = is_lexicon(str(folder))
    kind = Ranker if is_small else AutoModelForTokenClassification
    model = load_exported(kind, folder, "detector", "task=sed_words or task=sed_sequence")
    if is_small:
        return model, CandidateInputs(Lexicon.read(folder))
    tokenizer = _tokenizer(str(folder))
    return model, TokenInputs(tokenizer, token_limit(model.config, tokenizer))


def _tokenizer(name: str) -> PreTrainedTokenizerBase:
    tokenizer = tokenizer_of(name)
    if not tokenizer.is_fast:
        raise ConfigurationError(
            f"tokenizer_name: {name} does not say which word a token belongs to; expected a folder "
            "with a tokenizer.json",
            ["tokenizer_name"],
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if getattr(tokenizer, "add_prefix_space", True) is False:
        tokenizer.add_prefix_space = True  # words come one by one, without their spaces
    return tokenizer
