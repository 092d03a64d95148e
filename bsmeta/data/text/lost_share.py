"""The share of text that a tokenizer loses, as a number and in words.

The checks before a run use this, so it does not import transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bsmeta.data.text.characters import measure_utf8_lengths


def describe_lost_bytes(lost: int, total: int) -> str:
    """`1,200 of 3,000 bytes (40.00%), which the tokenizer loses (unknown tokens, …)`."""
    return (
        f"{lost:,} of {total:,} bytes ({lost / max(total, 1):.2%}), which the tokenizer loses "
        "(unknown tokens, or characters that it changes or drops)"
    )


@dataclass(frozen=True, slots=True)
class LostShare:
    """The text that a tokenizer loses of some documents, in UTF-8 bytes.

    Attributes:
        documents: Number of documents.
        bytes: Bytes of their texts.
        lost: Bytes that are lost.
        unknown: Lost bytes under unknown tokens.
        example: The beginning of the first lost part; empty if nothing is lost.
        example_tokens: The tokens that represent the example.
    """

    documents: int
    bytes: int
    lost: int = 0
    unknown: int = 0
    example: str = ""
    example_tokens: str = ""

    @classmethod
    def none_of(cls, texts: Sequence[str]) -> LostShare:
        """Returns a share without losses for these texts."""
        return cls(len(texts), sum(int(measure_utf8_lengths(text).sum()) for text in texts))

    @property
    def share(self) -> float:
        """The lost fraction of the bytes; 0 if there is no text."""
        return self.lost / self.bytes if self.bytes else 0.0

    def __str__(self) -> str:
        """`1.20% of 3,000 bytes of 4 documents (1.00% under unknown tokens), such as 'É' (e)`."""
        texts = f"{self.bytes:,} bytes of {self.documents:,} documents"
        if not self.lost:
            return f"none of {texts}"

        unknown = ""
        if self.unknown:
            unknown = f" ({self.unknown / self.bytes:.2%} under unknown tokens)"
        tokens = self.example_tokens or "no token"
        return f"{self.share:.2%} of {texts}{unknown}, such as {self.example!r} ({tokens})"
