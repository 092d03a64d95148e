"""The small detector: a word from its bytes and counts, and words in their context.

Convolutions over the bytes of each distinct word of a batch (Kim et al. 2016), and a transformer
over the words of a text. It needs no tokenizer, and no word is out of its vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from bsmeta.tasks.spelling.words import COUNTS, FEATURES, SYMBOLS

USUAL_ERROR_SHARE = 0.1
"""The probability of an error that a new detector gives every word."""


class WordDetectorConfig(PretrainedConfig):
    """The shape of a `WordDetector`; the fields are those of `SmallModelConfig`."""

    model_type = "bsmeta_word_detector"

    def __init__(
        self, width: int = 192, layers: int = 3, heads: int = 4, dropout: float = 0.1,
        character_width: int = 48, word_bytes: int = 24, **more: object,
    ) -> None:  # fmt: skip
        self.width, self.layers, self.heads, self.dropout = width, layers, heads, dropout
        self.character_width, self.word_bytes = character_width, word_bytes
        super().__init__(**more)


class WordDetector(PreTrainedModel):
    """The logit of an error for each word."""

    config_class = WordDetectorConfig
    base_model_prefix = ""
    main_input_name = "words"

    def __init__(self, config: WordDetectorConfig) -> None:
        super().__init__(config)
        width = config.width
        self.characters = nn.Embedding(SYMBOLS, config.character_width, padding_idx=0)
        self.first = nn.Conv1d(config.character_width, width, kernel_size=3, padding=1)
        self.second = nn.Conv1d(width, width, kernel_size=3, padding=1)
        self.counts = nn.ModuleList(nn.Embedding(COUNTS, width) for _ in range(FEATURES))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, 1)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initializes a layer; torch's own initial embeddings are too large for sums of them."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            assert module.bias is not None
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        if module is self.score:
            share = USUAL_ERROR_SHARE
            nn.init.constant_(self.score.bias, math.log(share / (1 - share)))

    def forward(
        self, forms: torch.Tensor, words: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """Returns the logits, float32 [texts, words]; the arguments are those of `form_tensors`."""
        is_padding = (forms == 0).unsqueeze(1)
        spelled = self.characters(forms).transpose(1, 2)
        # Without the padding: a word's logit must not depend on the longest word of its batch.
        spelled = functional.gelu(self.first(spelled)).masked_fill(is_padding, 0.0)
        spelled = functional.gelu(self.second(spelled))
        spelled = spelled.masked_fill(is_padding, -1e4).amax(2)
        hidden = functional.embedding(words, spelled)
        for number, table in enumerate(self.counts):
            hidden = hidden + table(counts[:, :, number])
        hidden = self.dropout(hidden + positions(words.shape[1], hidden))
        attended = (words > 0)[:, None, None, :]
        for block in self.blocks:
            hidden = block(hidden, attended)
        return self.score(self.norm(hidden)).squeeze(2).float()


class Block(nn.Module):
    """A transformer layer, normalized before attention and feed-forward."""

    def __init__(self, config: WordDetectorConfig) -> None:
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
