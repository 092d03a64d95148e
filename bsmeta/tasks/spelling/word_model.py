"""The small detector: the words of a text as it reads them, and the model.

Convolutions over the bytes of each distinct word of a batch (Kim et al. 2016), and a transformer
over the words of a text. It needs no tokenizer, and no word is out of its vocabulary.

The counts are those of the training text, and of a word list. While training, the occurrences in
the sample itself are left out, or every correct word would be known, and unknown words would seem
to be wrong more often than they are in other texts.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from bsmeta.config.errors import ConfigurationError, DataError

COUNTS = 12
"""Sizes of a count that the detector distinguishes: 0, 1, 2-3, 4-7, …"""
FEATURES = 3
"""Counts of a word: as it is written, without case, and in the word list."""
FILE = "words.json"
MOST_WORDS = 2_000_000
"""Words of the training text whose counts are kept."""
_COMPOUND = re.compile(r"[-–—/'.]+")
_FIRST, _LAST = 1, 2  # marks of a word's ends; 0 is padding, and byte b is b + 3
SYMBOLS = 256 + 3


def bare(word: str) -> str:
    """A word without the punctuation around it, and without a possessive s."""
    start, end = 0, len(word)
    while start < end and not word[start].isalnum():
        start += 1
    while end > start and not word[end - 1].isalnum():
        end -= 1
    found = word[start:end].replace("’", "'")
    return found[:-2] if found.endswith(("'s", "'S")) else found


def count_words(texts: Iterable[str]) -> Counter[str]:
    """The words of texts, without the punctuation around them, with their counts.

    Of more than `MOST_WORDS`, only the most frequent are kept, also while counting, so that the
    memory is bounded.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(map(bare, text.split()))
        if len(counts) > 2 * MOST_WORDS:
            counts = Counter(dict(counts.most_common(MOST_WORDS)))
    del counts[""]
    return Counter(dict(counts.most_common(MOST_WORDS)))


class WordCounts:
    """How often each word occurs in the training text, and in a list.

    Args:
        text: The count of each word as written, without the punctuation around it.
        listed: The count of each word of the list, in lower case.
    """

    def __init__(self, text: Mapping[str, int], listed: Mapping[str, int]) -> None:
        self._text = dict(text)
        self._listed = dict(listed)
        self._lower: Counter[str] = Counter()
        for word, count in self._text.items():
            self._lower[word.lower()] += count

    def features(
        self, words: Sequence[str], own: Sequence[str] = (), *, hides_text: bool = False
    ) -> list[list[int]]:
        """The size of each word's counts, [words][FEATURES].

        Args:
            words: The words of a text.
            own: The words of the training text that must not count: the correct words of the
                sample itself.
            hides_text: Whether only the list counts.
        """
        cores = [bare(word) for word in words]
        exact: Counter[str] = Counter(map(bare, own))
        lower: Counter[str] = Counter()
        for word, count in exact.items():
            lower[word.lower()] += count
        found = []
        for word in cores:
            small = word.lower()
            found.append([
                0 if hides_text else _size(self._text.get(word, 0) - exact[word]),
                0 if hides_text else _size(self._lower.get(small, 0) - lower[small]),
                min((self._listed_count(small).bit_length() + 2) // 3, COUNTS - 1),
            ])  # fmt: skip
        return found

    def _listed_count(self, word: str) -> int:
        """The count of a word in the list; of a compound, that of its rarest part."""
        if word in self._listed:
            return self._listed[word]
        parts = [part for part in _COMPOUND.split(word) if len(part) > 1]
        return min((self._listed.get(part, 0) for part in parts), default=0)

    def write(self, folder: Path) -> None:
        """Writes the counts beside a model."""
        content = {"text": self._text, "listed": self._listed}
        (folder / FILE).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> WordCounts:
        """Reads the counts beside a model.

        Raises:
            DataError: If the file is missing or damaged.
        """
        try:
            content = json.loads((folder / FILE).read_text(encoding="utf-8"))
            return cls(content["text"], content["listed"])
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{folder / FILE} cannot be read: {error}; copy the model again"
            ) from error


def _size(count: int) -> int:
    return min(max(count, 0).bit_length(), COUNTS - 1)


def word_list(name: str | None) -> dict[str, int]:
    """The words of a list with their counts, in lower case.

    Args:
        name: A file of lines `word count`; `symspellpy`: the English list of that package; None:
            no list.

    Raises:
        ConfigurationError: If the file or the package is missing, or a line has no count.
    """
    if name is None:
        return {}
    try:
        if name == "symspellpy":
            file = resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt"
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        else:
            lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ModuleNotFoundError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"word_list={name}: cannot be read: {error}; expected a file of lines `word count`, or "
            "symspellpy with that package installed (pip install -e .[spelling])",
            ["word_list"],
        ) from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        word, _, count = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not word or not count.isdecimal():
            raise ConfigurationError(
                f"word_list={name}: line {number:,} is {line!r}; expected a word and its count",
                ["word_list"],
            )
        found[word.lower()] = found.get(word.lower(), 0) + int(count)
    return found


def symbols(word: str, length: int) -> list[int]:
    """The bytes of a word between two marks; of a word of more than `length`, the ends."""
    content = word.encode()
    if len(content) > length:
        half = length // 2
        content = content[: length - half] + content[-half:]
    return [_FIRST, *(byte + 3 for byte in content), _LAST]


def form_tensors(
    texts: Sequence[Sequence[str]], features: Sequence[Sequence[Sequence[int]]], length: int
) -> dict[str, torch.Tensor]:
    """The inputs of the small detector.

    Args:
        texts: The words of each text; at least one word in all.
        features: Their counts (`WordCounts.features`).
        length: Bytes of a word that are read.

    Returns:
        `forms` (int64 [distinct words + 1, symbols]; the first is padding), `words` (int64 [texts,
        words], the form of each word; 0: padding) and `counts` (int64 [texts, words, FEATURES]).
    """
    numbers: dict[str, int] = {}
    longest = max(map(len, texts))
    words = np.zeros((len(texts), longest), np.int64)
    counts = np.zeros((len(texts), longest, FEATURES), np.int64)
    for row, text in enumerate(texts):
        words[row, : len(text)] = [numbers.setdefault(word, len(numbers) + 1) for word in text]
        counts[row, : len(text)] = features[row]
    spelled = [symbols(word, length) for word in numbers]
    forms = np.zeros((len(spelled) + 1, max(map(len, spelled))), np.int64)
    for row, form in enumerate(spelled, start=1):
        forms[row, : len(form)] = form
    return {
        name: torch.from_numpy(array)
        for name, array in (("forms", forms), ("words", words), ("counts", counts))
    }


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
