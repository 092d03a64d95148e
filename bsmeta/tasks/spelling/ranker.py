"""The small model: it scores the candidates of every word in the context of its text.

The features of a candidate become a vector; a word is the mean and the maximum of those of its
candidates, a transformer reads the words of a text, and a candidate's score follows from its own
vector and that of its word. The candidates compete in a softmax (`candidate_losses`); a detector
takes the probability of all but the word itself (`error_logits`).
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

USUAL_ERROR_SHARE = 0.1
"""The probability of an error that a new model gives every word."""


class RankerConfig(PretrainedConfig):
    """The shape of a `Ranker`: the number of features, and the fields of `SmallModelConfig`."""

    model_type = "bsmeta_spelling_ranker"

    def __init__(
        self, features: int = 1, width: int = 64, layers: int = 1, heads: int = 4,
        dropout: float = 0.1, **more: object,
    ) -> None:  # fmt: skip
        self.features = features
        self.width, self.layers, self.heads, self.dropout = width, layers, heads, dropout
        super().__init__(**more)


class Ranker(PreTrainedModel):
    """The score of each candidate of each word."""

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
        self.own = nn.Linear(width, width)
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
        own = functional.gelu(self.read(features))
        count = int(words.max()) + 1
        places = row_words[:, None].expand_as(own)
        empty = own.new_zeros(count, own.shape[1])
        mean = empty.scatter_reduce(0, places, own, "mean", include_self=False)
        most = empty.scatter_reduce(0, places, own, "amax", include_self=False)
        joined = functional.gelu(self.join(torch.cat([mean, most], 1)))
        hidden = functional.embedding(words, joined)
        hidden = self.dropout(hidden + positions(words.shape[1], hidden))
        attended = (words > 0)[:, None, None, :]
        for block in self.blocks:
            hidden = block(hidden, attended)
        context = empty.index_put((words[words > 0],), self.norm(hidden)[words > 0])
        scored = functional.gelu(
            self.own(own) + functional.embedding(row_words, self.word(context))
        )
        is_first = functional.pad(row_words[1:] != row_words[:-1], (1, 0), value=True)
        usual = math.log((1 - USUAL_ERROR_SHARE) / USUAL_ERROR_SHARE)
        rows = torch.zeros_like(row_words).index_add(0, row_words, torch.ones_like(row_words))
        others = (rows[row_words] - 1).clamp(min=1).log()
        return self.score(scored).squeeze(1).float() + is_first * (usual + others)


def _log_sums(scores: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
    """The logarithm of the sum of exp(score) at each place, [size]; very small where none is."""
    most = scores.new_full((size,), -1e4).scatter_reduce(0, places, scores.detach(), "amax")
    sums = scores.new_zeros(size).index_add(0, places, (scores - most[places]).exp())
    return most + sums.clamp(min=1e-30).log()


def error_logits(
    scores: torch.Tensor, row_words: torch.Tensor, words: torch.Tensor
) -> torch.Tensor:
    """The logit of an error for each word, [texts, words]; any value for padding.

    Args:
        scores: Those of a `Ranker`.
        row_words: As in `Ranker.forward`; the first row of a word is the word itself.
        words: The same.
    """
    is_first = functional.pad(row_words[1:] != row_words[:-1], (1, 0), value=True)
    size = int(words.max()) + 1
    keep = scores.new_zeros(size).index_put((row_words[is_first],), scores[is_first])
    others = _log_sums(scores[~is_first], row_words[~is_first], size)
    return functional.embedding(words, (others - keep)[:, None]).squeeze(2)


def log_probabilities(scores: torch.Tensor, row_words: torch.Tensor) -> torch.Tensor:
    """The log-probability of each candidate among those of its word, [rows]."""
    size = int(row_words.max()) + 1
    return scores - _log_sums(scores, row_words, size)[row_words]


class Block(nn.Module):
    """A transformer layer, normalized before attention and feed-forward."""

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
        parts = self.attention(self.before_attention(hidden))
        query, key, value = parts.view(texts, words, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=attended)
        mixed = mixed.transpose(1, 2).reshape(texts, words, width)
        hidden = hidden + self.dropout(self.mix(mixed))
        expanded = functional.gelu(self.expand(self.before_expansion(hidden)))
        return hidden + self.dropout(self.contract(expanded))


def positions(length: int, like: torch.Tensor) -> torch.Tensor:
    """Sines and cosines of the positions (Vaswani et al. 2017), a tenth as large.

    Returns:
        [length, width], in the type and on the device of `like`.
    """
    width = like.shape[2]
    place = torch.arange(length, device=like.device, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, width, 2, device=like.device) * (-math.log(10_000.0) / width))
    waves = torch.cat([torch.sin(place * rates), torch.cos(place * rates)], dim=1)
    return 0.1 * waves[:, :width].to(like.dtype)
