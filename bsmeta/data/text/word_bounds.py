"""Decides whether a tokenizer encodes each word of a text independently of the other words.

A text is cut before a space that follows two ASCII characters, the second of which is visible (`!`
to `~`). A tokenizer is *separable* if the tokens of the text on one side of such a cut never depend
on the text on the other side, so that the tokens of the text are the tokens of its parts, in order.

This is proved from the parts of the tokenizer (its `tokenizer.json`), not tested on texts:

- Normalizers change a character, a grapheme or the ends of a text, and keep visible ASCII visible.
  The visible character before a cut neither combines with the space after it nor forms a grapheme
  with it (Unicode Standard Annexes 15 and 29). Because the character before that is ASCII, too, the
  visible character is not the end of a longer grapheme.
- If a pre-tokenizer splits the text at every cut, any model encodes the parts separately.
- Without such a split, a BPE model merges from left to right through the whole text. If no merge
  has a space after another character, no merge crosses a cut. Merges on one side neither enable nor
  prevent merges on the other, so each side is merged as if it were alone.

All other tokenizers, such as tokenizers with other patterns, are refused with the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from tokenizers import Tokenizer, normalizers

from bsmeta.data.text.tokenizer_parts import Part, read_parts

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern of a `ByteLevel` pre-tokenizer that does its own splitting."""

_LATER_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLIT_PATTERNS = frozenset({GPT2_PATTERN, _LATER_PATTERN % "{1,3}", _LATER_PATTERN % ""})
"""Patterns (GPT-2, Llama 3, Qwen 2) whose matches have no space after another character.

A match does not depend on the text before it, nor on the text after the whitespace that follows it.
"""

SPACE_SYMBOL = "▁"
"""The character that represents a space in the vocabularies of SentencePiece."""

VISIBLE = "".join(map(chr, range(33, 127)))
"""The visible characters of ASCII."""

LOCAL_NORMALIZERS = {
    "BertNormalizer",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Prepend",
    "Strip",
    "StripAccents",
}
"""Normalizers that change only characters, combining sequences, or the ends of a text."""

SPACE_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
"""Pre-tokenizers that split at every space."""


class InseparableError(Exception):
    """Texts of a tokenizer cannot be cut between words; the message states the reason."""


def check_separable(tokenizer: Tokenizer) -> None:
    """Checks that a tokenizer encodes both sides of every cut separately.

    This holds for encoding without truncation, padding and added special tokens.

    Raises:
        InseparableError: If this cannot be proved from its parts.
    """
    parts = read_parts(tokenizer)
    normalizer_steps = _list_steps(parts["normalizer"], "normalizers")
    for step in normalizer_steps:
        _check_normalizer(step)
    _check_added_tokens(tokenizer, parts["added_tokens"])
    _check_post_processor(parts["post_processor"])

    has_symbols = bool(normalizer_steps) and _replaces_spaces(normalizer_steps[-1])
    if not has_symbols and any(map(_replaces_spaces, normalizer_steps)):
        raise InseparableError("its normalizer replaces spaces before its last step")
    _check_model(parts["model"], parts["pre_tokenizer"], has_symbols)


def _list_steps(part: Part | None, name: str) -> Sequence[Part]:
    """Returns the steps of a part in order, out of nested sequences.

    Args:
        name: The key under which a sequence lists its steps.
    """
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]

    steps: list[Part] = []
    for inner in part[name]:
        steps += _list_steps(inner, name)
    return steps


def _replaces_spaces(step: Part) -> bool:
    """Returns whether a normalizer replaces every space."""
    return step["type"] == "Replace" and step["pattern"] == {"String": " "}


def _check_normalizer(step: Part) -> None:
    """Checks that a normalizer neither changes the text around a cut nor depends on it."""
    match step:
        case {"type": name} if name in LOCAL_NORMALIZERS:
            return
        case {"type": "Replace", "pattern": {"String": " "}, "content": content}:
            if content == SPACE_SYMBOL:
                return
        case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
            # A match without spaces is entirely on one side of a cut.
            if pattern and content and set(pattern + content) <= set(VISIBLE):
                return
        case {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": content}:
            if content in (" ", SPACE_SYMBOL):
                return
        case {"type": "Precompiled", "precompiled_charsmap": charsmap}:
            precompiled = normalizers.Precompiled(base64.b64decode(charsmap))
            if all(precompiled.normalize_str(symbol) == symbol for symbol in " " + VISIBLE):
                return
    raise InseparableError(f"its normalizer {step['type']} may change the text around a space")


def _check_added_tokens(tokenizer: Tokenizer, added: Sequence[Part]) -> None:
    """Checks that no added token in normalized text can extend across a cut.

    Added tokens in the original text are found before it is cut.
    """
    normalizer = tokenizer.normalizer
    for token in added:
        if not token["normalized"]:
            continue

        content = token["content"]
        normalized = content if normalizer is None else normalizer.normalize_str(content)
        is_space = [symbol.isspace() or symbol == SPACE_SYMBOL for symbol in normalized]
        if normalizer is not None and any(is_space[1:]):
            raise InseparableError(f"its added token {content!r} has a space")
        if token["single_word"] and any(is_space[:1]):
            raise InseparableError(
                f"its added token {content!r} depends on the end of the word before"
            )


def _check_post_processor(part: Part | None) -> None:
    """Checks that the post-processor changes nothing if no special tokens are added."""
    for step in _list_steps(part, "processors"):
        match step:
            case {"type": "ByteLevel" | "BertProcessing" | "RobertaProcessing"}:
                continue
            case {"type": "TemplateProcessing", "single": entries}:
                if sum("Sequence" in entry for entry in entries) == 1:
                    continue
        raise InseparableError(f"its post-processor {step['type']} may change the tokens")


def _check_model(model: Part, pre_tokenizer: Part | None, has_symbols: bool) -> None:
    """Checks that the model encodes each word separately, or merges nothing across words.

    Args:
        has_symbols: Whether the normalizer has replaced all spaces with `SPACE_SYMBOL`.
    """
    if model.get("dropout"):
        raise InseparableError("its merges are random")
    if model["type"] not in ("BPE", "Unigram", "WordLevel", "WordPiece"):
        raise InseparableError(f"its model {model['type']} is unknown")

    for step in _list_steps(pre_tokenizer, "pretokenizers"):
        match step:
            # After a step that splits at every cut, all later steps see each word separately.
            case {"type": "Metaspace", "replacement": symbol, "split": is_split} if (
                symbol == SPACE_SYMBOL
            ):
                if is_split:
                    return
                has_symbols = True
            case {"type": name} if name in SPACE_SPLITTERS and not has_symbols:
                return
            case {"type": "ByteLevel", "use_regex": True} if not has_symbols:
                return
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"} if (
                pattern in SPLIT_PATTERNS and not step["invert"] and not has_symbols
            ):
                return

            # Other permitted steps neither split at every cut nor join words.
            case {"type": "Split", "pattern": {"String": " "}} if has_symbols:
                pass  # there are no spaces
            case {"type": "Digits"} | {"type": "Punctuation", "behavior": "Isolated"}:
                pass  # splits around characters other than spaces
            case _:
                raise InseparableError(f"its pre-tokenizer {step['type']} may join words")

    if not has_symbols:
        raise InseparableError("its pre-tokenizer does not split at spaces")
    _check_merges(model)


def _check_merges(model: Part) -> None:
    """Checks that a BPE model has no merge of a character and the symbol of a space after it."""
    if model["type"] != "BPE":
        raise InseparableError(f"its model {model['type']} sees several words at once")
    if model["ignore_merges"] or model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        raise InseparableError("its model depends on where a text begins or ends")
    if SPACE_SYMBOL not in model["vocab"]:
        raise InseparableError(f"its vocabulary lacks {SPACE_SYMBOL!r}")

    for left, right in model["merges"]:
        if SPACE_SYMBOL in (left + right).lstrip(SPACE_SYMBOL):
            raise InseparableError(f"it merges {left!r} and {right!r} across words")
