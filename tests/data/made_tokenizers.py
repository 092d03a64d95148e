"""Small tokenizers of every sort, with added tokens of every sort."""

from __future__ import annotations

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from bsmeta.data.text.word_bounds import SPLIT_PATTERNS
from tests.data.helpers import WORDS, small_tokenizer

TEXTS = [" ".join(WORDS), "The ﬁne fox's café (1,234) — x = y.", "<b>over</b>  the\tlazy\ndog!"] * 3
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(pattern: str | None = None) -> Tokenizer:
    """GPT-2's sort, or one that splits by another pattern."""
    tokenizer = Tokenizer.from_str(small_tokenizer().backend_tokenizer.to_str())
    if pattern is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    return tokenizer


def spaced_byte_level() -> Tokenizer:
    """Inserts a space before a text, and trims the characters of tokens (RoBERTa's options)."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """Byte fallback, and merges through the whole text (Llama 2)."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", *BYTES], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


def metaspace_bpe(scheme: str) -> Tokenizer:
    """The same with a pre-tokenizer that does not split (Mistral)."""
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return tokenizer


def gemma_bpe() -> Tokenizer:
    """The same without a space at the beginning, and a split that never happens (Gemma)."""
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


def unigram() -> Tokenizer:
    """Normalizes, and joins spaces (T5)."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Strip(),
            normalizers.Replace("``", '"'),
            normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    """Lower-case words (BERT)."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def with_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Adds tokens with and without spaces, of which some depend on their neighbors."""
    names = ["<HTML>", "</HTML>", " </C> ", "<x y>", "<eos>x", "<é>"]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("ML>", normalized=True)])

    lazy = AddedToken("Lazy", single_word=True, normalized=True)
    is_spaced = tokenizer.normalizer and tokenizer.normalizer.normalize_str("Lazy")[0] in " ▁"
    tokenizer.add_tokens([] if is_spaced else [lazy])
    tokenizer.add_special_tokens([AddedToken("dog", single_word=True, normalized=False)])
    return tokenizer


PLAIN = {
    "byte-level": byte_level(),
    **{f"byte-level {n}": byte_level(p) for n, p in enumerate(sorted(SPLIT_PATTERNS))},
    "byte-level after a space": spaced_byte_level(),
    "SentencePiece BPE": sentencepiece_bpe(),
    "Metaspace BPE, first": metaspace_bpe("first"),
    "Metaspace BPE, always": metaspace_bpe("always"),
    "Gemma": gemma_bpe(),
    "Unigram": unigram(),
    "WordPiece": wordpiece(),
}
"""Separable tokenizers."""

TOKENIZERS = PLAIN | {
    f"{name} with added tokens": with_added_tokens(Tokenizer.from_str(tokenizer.to_str()))
    for name, tokenizer in PLAIN.items()
}
"""The same, and each with added tokens."""
