"""Small tokenizers of all kinds, most of which do not give every text back."""

from __future__ import annotations

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "the quick brown fox jumps over the lazy dog, don't it? cafe naive 中文 1 fi",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
] * 3


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """With an end-of-text token, as a run needs it."""
    tokenizer.add_special_tokens(["[EOS]"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="[EOS]")


def word_piece(*, decodes: bool = True) -> PreTrainedTokenizerFast:
    """BERT's, which lower-cases, strips accents, and has [UNK]; some save it without a decoder."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if decodes:
        tokenizer.decoder = decoders.WordPiece()
    return wrapped(tokenizer)


def unigram() -> PreTrainedTokenizerFast:
    """SentencePiece's, with NFKC and runs of spaces as one."""
    tokenizer = Tokenizer(models.Unigram())
    runs = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), runs])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return wrapped(tokenizer)


def byte_level(
    normalizer: normalizers.Normalizer | None = None, *, adds_space: bool = False
) -> PreTrainedTokenizerFast:
    """GPT-2's; lossless without a normalizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return wrapped(tokenizer)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Llama 2's: a few letters, and bytes for everything else."""
    entries = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁thefoxl", "▁t", "he"]
    vocabulary = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    merges = [("▁", "t"), ("h", "e")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return wrapped(tokenizer)


def word_ends() -> PreTrainedTokenizerFast:
    """GPT's first: lower-cased words that end with a suffix."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=200,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return wrapped(tokenizer)
