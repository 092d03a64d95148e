"""The detectors: models that score the words of a text, their inputs, and their loss.

There are two forms: the small model (`Ranker`), which reads the candidates of words, and any
encoder of transformers with one output per token, where the logit of a word is the mean over its
tokens. A sequence has an error if any of its words has one, so its probability follows from its
words. Therefore both tasks train and export the same kind of model, and one can start from a model
of the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import (
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bsmeta.core.errors import ConfigurationError
from bsmeta.core.model_files import create_model, read_model_and_report, read_model_config
from bsmeta.data.text.tokenizer import count_trained_tokens, load_tokenizer_from
from bsmeta.models.embeddings import add_embeddings
from bsmeta.models.pretrained import (
    check_encoder_weights,
    check_model_folder,
    explain_load_errors,
    find_token_limit,
    load_exported,
)
from bsmeta.tasks.spelling.config import SpellingConfig
from bsmeta.tasks.spelling.context import CONTEXT_FILE, ContextModel, train_context_model
from bsmeta.tasks.spelling.inputs import CandidateInputs, Inputs, TokenInputs, Window, Words
from bsmeta.tasks.spelling.lexicon import FORMAT, Lexicon, build_lexicon, is_lexicon
from bsmeta.tasks.spelling.noise import Noise, is_editable
from bsmeta.tasks.spelling.samples import Table, is_small
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.task import run_on_all_ranks, sort_into_budgeted_batches

USUAL_ERROR_SHARE = 0.1  # the probability of an error that a new model gives every word
MIN_ERROR_PROBABILITY = 1e-6  # of a text, so that logarithms are finite
NO_ERROR_LOGIT = np.float32(-15)
"""The logit of a word that is not spelled; finite, because losses are computed from logits."""

logger = logging.getLogger(__name__)


class RankerConfig(PretrainedConfig):
    """The shape of a `Ranker`: the number of features, and fields of `SmallModelConfig`."""

    model_type = "bsmeta_spelling_ranker"

    def __init__(
        self,
        features: int = 1,
        width: int = 64,
        layers: int = 1,
        heads: int = 4,
        dropout: float = 0.1,
        **kwargs: object,
    ) -> None:
        self.features = features
        self.width = width
        self.layers = layers
        self.heads = heads
        self.dropout = dropout
        super().__init__(**kwargs)


class Ranker(PreTrainedModel):
    """The small model: it scores the candidates of every word in the context of its text.

    The features of a candidate become a vector. A word is the mean and the maximum of the vectors
    of its candidates, a transformer reads the words of a text, and the score of a candidate follows
    from its own vector and the vector of its word. The candidates compete in a softmax; a detector
    takes the probability of all except the word itself (`compute_error_logits`).
    """

    config_class = RankerConfig
    base_model_prefix = ""
    main_input_name = "words"

    def __init__(self, config: RankerConfig) -> None:
        super().__init__(config)
        width = config.width
        self.read = nn.Linear(config.features, width)
        self.join = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.own = nn.Linear(width, width)  # of the candidate's own vector
        self.word = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            assert module.bias is not None
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(
        self, features: torch.Tensor, row_words: torch.Tensor, words: torch.Tensor
    ) -> torch.Tensor:
        """Returns the scores of the rows, float32 [rows].

        Args:
            features: float32 [rows, features].
            row_words: The word of each row, ascending: int64 [rows]; 1 is the first word.
            words: The words of each text, int64 [texts, words]; 0 is padding.
        """
        vectors = functional.gelu(self.read(features))

        # Reduce the candidates of each word: [words + 1, width], where 0 is padding.
        word_index = row_words[:, None].expand_as(vectors)
        empty = vectors.new_zeros(int(words.max()) + 1, vectors.shape[1])
        mean = empty.scatter_reduce(0, word_index, vectors, "mean", include_self=False)
        maximum = empty.scatter_reduce(0, word_index, vectors, "amax", include_self=False)
        word_vectors = functional.gelu(self.join(torch.cat([mean, maximum], 1)))

        # Read the words of each text: [texts, words, width].
        hidden = functional.embedding(words, word_vectors)
        hidden = self.dropout(hidden + encode_positions(words.shape[1], hidden))
        is_word = words > 0
        attended = is_word[:, None, None, :]
        for block in self.blocks:
            hidden = block(hidden, attended)
        context = empty.index_put((words[is_word],), self.norm(hidden)[is_word])

        scored = functional.gelu(
            self.own(vectors) + functional.embedding(row_words, self.word(context))
        )
        scores = self.score(scored).squeeze(1).float()
        return scores + _compute_initial_scores(row_words)


def _compute_initial_scores(row_words: torch.Tensor) -> torch.Tensor:
    """Computes initial scores, float [rows], for an error probability of `USUAL_ERROR_SHARE`.

    They are added to the scores of the network, so that a new model starts from this probability.
    """
    keep_odds = math.log((1 - USUAL_ERROR_SHARE) / USUAL_ERROR_SHARE)
    counts = torch.zeros_like(row_words).index_add(0, row_words, torch.ones_like(row_words))
    other_candidates = (counts[row_words] - 1).clamp(min=1).log()
    return _mark_first_rows(row_words) * (keep_odds + other_candidates)


def _mark_first_rows(row_words: torch.Tensor) -> torch.Tensor:
    """Marks the first row of each word: bool [rows]."""
    return functional.pad(row_words[1:] != row_words[:-1], (1, 0), value=True)


def _compute_log_sums(scores: torch.Tensor, groups: torch.Tensor, size: int) -> torch.Tensor:
    """Computes the log-sum-exp of each group of scores: [size].

    Args:
        scores: [rows].
        groups: The group of each score: int64 [rows].
        size: The number of groups; one without scores gets about -10,000.
    """
    maxima = scores.new_full((size,), -1e4).scatter_reduce(0, groups, scores.detach(), "amax")
    sums = scores.new_zeros(size).index_add(0, groups, (scores - maxima[groups]).exp())
    return maxima + sums.clamp(min=1e-30).log()


def compute_error_logits(
    scores: torch.Tensor, row_words: torch.Tensor, words: torch.Tensor
) -> torch.Tensor:
    """Computes the logit of an error for each word.

    Args:
        scores: The scores of a `Ranker`, float [rows]; the first row of a word is the word itself.
        row_words, words: See `Ranker.forward`.

    Returns:
        float [texts, words]; the values of padding are arbitrary.
    """
    is_first = _mark_first_rows(row_words)
    size = int(words.max()) + 1
    keep = scores.new_zeros(size).index_put((row_words[is_first],), scores[is_first])
    others = _compute_log_sums(scores[~is_first], row_words[~is_first], size)
    return functional.embedding(words, (others - keep)[:, None]).squeeze(2)


def compute_log_probabilities(scores: torch.Tensor, row_words: torch.Tensor) -> torch.Tensor:
    """Computes the log-softmax of scores over the candidates of each word: [rows]."""
    size = int(row_words.max()) + 1
    return scores - _compute_log_sums(scores, row_words, size)[row_words]


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, config: RankerConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.before_expansion = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        texts, words, width = hidden.shape
        projected = self.attention(self.before_attention(hidden))
        query, key, value = projected.view(texts, words, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=attended)
        mixed = mixed.transpose(1, 2).reshape(texts, words, width)
        hidden = hidden + self.dropout(self.mix(mixed))

        expanded = functional.gelu(self.expand(self.before_expansion(hidden)))
        return hidden + self.dropout(self.contract(expanded))


def encode_positions(length: int, like: torch.Tensor) -> torch.Tensor:
    """Returns sinusoidal position embeddings (Vaswani et al. 2017), scaled by 0.1.

    Args:
        length: The number of positions.
        like: A tensor [texts, words, width] with the width, dtype and device of the result.

    Returns:
        [length, width].
    """
    width = like.shape[2]
    position = torch.arange(length, device=like.device, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, width, 2, device=like.device) * (-math.log(10_000.0) / width))
    waves = torch.cat([torch.sin(position * rates), torch.cos(position * rates)], dim=1)
    return 0.1 * waves[:, :width].to(like.dtype)


def compute_word_logits(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Computes the logit of an error for each word.

    Args:
        model: A `Ranker`, or an encoder with one output per token.
        tensors: Its inputs, from `Inputs.make_tensors`.

    Returns:
        float32 [texts, words]; the values of padding are arbitrary. Words without tokens (a
        tokenizer may drop control characters) have the logit 0.
    """
    if "features" in tensors:
        row_words = tensors["row_words"]
        words = tensors["words"]
        return compute_error_logits(model(tensors["features"], row_words, words), row_words, words)

    output = model(input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"])
    logits = output.logits.squeeze(2).float()

    # Average over the tokens of each word; the last column collects special tokens and padding.
    token_words = tensors["places"]
    word_width = tensors["is_word"].shape[1]
    empty = logits.new_zeros(len(token_words), word_width + 1)
    sums = empty.scatter_add(1, token_words, logits)
    counts = empty.scatter_add(1, token_words, torch.ones_like(logits))
    return (sums / counts.clamp(min=1))[:, :word_width]


def run_in_windows(
    inputs: Inputs,
    texts: Sequence[Words],
    run: Callable[[list[Words]], Sequence[Sequence[Any] | np.ndarray]],
    budget: int,
    context: Processes,
) -> list[list[Any]]:
    """Runs a model on texts, each divided into windows of at most the model's length.

    Args:
        texts: May be empty, or longer than the model can read.
        run: Returns the results of the words of each window of a batch.
        budget: The maximum of the padded tokens of a batch.

    Returns:
        For each text, the results of its words, in a part for each window; on every rank.
    """
    windows: list[Window] = []
    window_texts: list[int] = []  # the number of the text of each window
    for number, words in enumerate(texts):
        for window in inputs.divide_windows(words):
            windows.append(window)
            window_texts.append(number)

    lengths = inputs.measure_lengths([window.words for window in windows])
    window_results = run_on_all_ranks(
        sort_into_budgeted_batches(lengths, budget),
        lambda batch: run([windows[number].words for number in batch]),
        context,
    )
    results: list[list[Any]] = [[] for _ in texts]
    for number, window, result in zip(window_texts, windows, window_results, strict=True):
        results[number].append(result[window.judged])
    return results


def compute_logits_of_words(
    model: nn.Module,
    inputs: Inputs,
    texts: Sequence[Words],
    budget: int,
    context: Processes,
) -> list[np.ndarray]:
    """Computes the logit of an error for each word of texts of any length.

    Args:
        model: In evaluation mode.
        inputs, texts, budget, context: See `run_in_windows`.

    Returns:
        For each text float32 [words]. The logit is at most `NO_ERROR_LOGIT` for words that are
        never misspelled in training (numbers, URLs, abbreviations: see `is_editable`), and for
        words in a script that the lexicon lacks.
    """

    def run(windows: list[Words]) -> list[np.ndarray]:
        tensors = inputs.make_tensors(windows)
        tensors = {name: tensor.to(context.device) for name, tensor in tensors.items()}
        with torch.no_grad():
            logits = compute_word_logits(model, tensors).float().cpu().numpy()

        results: list[np.ndarray] = []
        for words, row in zip(windows, logits, strict=True):
            window_logits = row[: len(words)]
            is_spelled = np.array(
                [is_editable(word) and not inputs.find_unknown_script(word) for word in words]
            )
            results.append(
                np.where(is_spelled, window_logits, np.minimum(window_logits, NO_ERROR_LOGIT))
            )
        return results

    rows = run_in_windows(inputs, texts, run, budget, context)
    return [np.concatenate(row) if row else np.zeros(0, np.float32) for row in rows]


def compute_word_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Computes the cross-entropy of each word, in nats.

    Args:
        logits: float [texts, words].
        labels: float [texts, words]: 1 for an error, 0 for none, -1 for padding.

    Returns:
        float [texts, words]; 0 for padding.
    """
    losses = functional.binary_cross_entropy_with_logits(
        logits, labels.clamp(min=0), reduction="none"
    )
    return losses * (labels >= 0)


def compute_sequence_logit(logits: np.ndarray) -> np.ndarray:
    """Computes the logit of an error anywhere in a text, a float64 scalar, by its words.

    The words are taken as independent: p(no error) is the product over them.
    """
    surprise = np.logaddexp(0, logits.astype(np.float64)).sum()  # -log p(no error)
    log_error = np.log(-np.expm1(-np.maximum(surprise, MIN_ERROR_PROBABILITY)))  # log p(error)
    return np.asarray(surprise + log_error)


def compute_sequence_losses(
    logits: torch.Tensor, is_word: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Computes the cross-entropy of each text, in nats: float [texts].

    Args:
        logits: float [texts, words].
        is_word: bool [texts, words].
        labels: float [texts], 1 for a text with an error.
    """
    surprise = (functional.softplus(logits) * is_word).sum(1)  # -log p(no error)
    log_correct = -surprise.clamp(min=MIN_ERROR_PROBABILITY)
    log_error = torch.log(-torch.expm1(log_correct))
    return -torch.where(labels > 0, log_error, log_correct)


def build_inputs(config: SpellingConfig, table: Table, noise: Noise) -> Inputs:
    """Builds the inputs of the model to train.

    The lexicon of a new small model is counted once per set of samples, lists and misspellings.

    Raises:
        ConfigurationError: If the tokenizer, a list or the model to start from is missing.
    """
    if not is_small(config):
        tokenizer = _open_tokenizer(str(config.tokenizer_name or config.model_name))
        return TokenInputs(tokenizer, find_token_limit(_read_shape(config), tokenizer))

    hidden = config.hidden_misspellings
    if config.model_name is not None:
        folder = Path(config.model_name)
        return CandidateInputs(Lexicon.read(folder), hidden, _read_context_model(folder))

    lists = list(config.word_lists)

    def count(texts: Iterator[str], folder: Path) -> None:
        build_lexicon(texts, lists, noise.misspellings).write(folder)

    key = [FORMAT, lists, noise.misspellings_hash]
    lexicon = Lexicon.read(table.open_counts(key, count))
    width = config.small_model.context_width
    if not width:
        return CandidateInputs(lexicon, hidden)

    def train(texts: Iterator[str], folder: Path) -> None:
        train_context_model(texts, width).write(folder)

    folder = table.open_counts([CONTEXT_FILE, width], train)
    return CandidateInputs(lexicon, hidden, _read_context_model(folder))


def _read_context_model(folder: Path) -> ContextModel | None:
    """Reads the context model of a small model; None if it has none."""
    return ContextModel.read(folder) if (folder / CONTEXT_FILE).is_file() else None


def build_detector(config: SpellingConfig, inputs: Inputs) -> nn.Module:
    """Builds the detector to train, in float32 on the CPU: new, or from `model_name`."""
    source = str(config.model_name)
    if is_lexicon(config.model_name):
        return load_detector(Path(source))[0].train()
    if isinstance(inputs, CandidateInputs):
        small = config.small_model
        return Ranker(
            RankerConfig(
                features=inputs.features,
                width=small.width,
                layers=small.layers,
                heads=small.heads,
                dropout=small.dropout,
            )
        )

    model_class = AutoModelForTokenClassification
    shape = _read_shape(config)
    if config.model_config_file is not None:
        return create_model(model_class, shape, dtype=torch.float32)

    assert isinstance(inputs, TokenInputs)
    return _load_pretrained(config, shape, inputs.tokenizer)


def _load_pretrained(
    config: SpellingConfig, shape: Any, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    """Loads an encoder with a head for each token, which is new unless `model_name` has one.

    Raises:
        ConfigurationError: If it cannot be loaded, or was trained with another tokenizer.
        DataError: If weights of the encoder are missing, unexpected or of another shape.
    """
    source = str(config.model_name)
    setting = f"model_name={source}"
    model_class = AutoModelForTokenClassification
    check_model_folder(source, setting)
    with explain_load_errors("model_name", source, model_class):
        model, loading_report = read_model_and_report(
            model_class, source, config=shape, dtype=torch.float32, ignore_mismatched_sizes=True
        )

    new_weights = check_encoder_weights(model, loading_report, source, setting)
    if new_weights:
        names = ", ".join(new_weights)
        logger.info("%s: %d new random weights: %s", setting, len(new_weights), names)
    num_trained = count_trained_tokens(source, config.tokenizer_name, tokenizer)
    add_embeddings(model, len(tokenizer), num_trained)
    return model


def _read_shape(config: SpellingConfig) -> Any:
    """Reads the transformers configuration of the encoder, with one output per token."""
    key = "model_name" if config.model_config_file is None else "model_config_file"
    source = str(getattr(config, key))
    with explain_load_errors(key, source, AutoModelForTokenClassification):
        return read_model_config(source, num_labels=1)


def load_detector(folder: Path) -> tuple[nn.Module, Inputs]:
    """Loads a trained detector in evaluation mode, with its inputs."""
    is_small = is_lexicon(str(folder))
    model_class = Ranker if is_small else AutoModelForTokenClassification
    model = load_exported(model_class, folder, "detector", "task=sed_words or task=sed_sequence")
    if is_small:
        context_model = _read_context_model(folder)
        return model, CandidateInputs(Lexicon.read(folder), context_model=context_model)

    tokenizer = _open_tokenizer(str(folder))
    return model, TokenInputs(tokenizer, find_token_limit(model.config, tokenizer))


def _open_tokenizer(name: str) -> PreTrainedTokenizerBase:
    tokenizer = load_tokenizer_from(name)
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
