"""The share of text that a tokenizer loses, as a number and in words.

The checks before a run use this module, so it does not import transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bsmeta.data.text.characters import measure_utf8_lengths


def describe_lost_bytes(num_lost: int, num_bytes: int) -> str:
    """Returns `1,200 of 3,000 bytes (40.00%), which the tokenizer loses (unknown tokens, …)`."""
    share = num_lost / max(num_bytes, 1)
    return (
        f"{num_lost:,} of {num_bytes:,} bytes ({share:.2%}), which the tokenizer loses "
        "(unknown tokens, or characters that it changes or drops)"
    )


@dataclass(frozen=True, slots=True)
class LostShare:
    """The amount of text that a tokenizer loses in some documents, in UTF-8 bytes.

    Attributes:
        num_documents: Number of documents.
        num_bytes: Total size of their texts.
        num_lost: Number of lost bytes.
        num_unknown: Number of lost bytes under unknown tokens.
        example: The beginning of the first lost part; "" if nothing is lost.
        example_tokens: The tokens of the example; "" if it has none.
    """

    num_documents: int
    num_bytes: int
    num_lost: int = 0
    num_unknown: int = 0
    example: str = ""
    example_tokens: str = ""

    @classmethod
    def without_loss(cls, texts: Sequence[str]) -> LostShare:
        """Returns the result for texts of which nothing is lost."""
        num_bytes = sum(int(measure_utf8_lengths(text).sum()) for text in texts)
        return cls(len(texts), num_bytes)

    @property
    def share(self) -> float:
        """The lost fraction of the bytes; 0 if there is no text."""
        return self.num_lost / self.num_bytes if self.num_bytes else 0.0

    def __str__(self) -> str:
        """Returns `1.20% of 3,000 bytes of 4 documents (1.00% under unknown tokens), such as …`."""
        texts = f"{self.num_bytes:,} bytes of {self.num_documents:,} documents"
        if not self.num_lost:
            return f"none of {texts}"

        unknown = ""
        if self.num_unknown:
            unknown = f" ({self.num_unknown / self.num_bytes:.2%} under unknown tokens)"
        tokens = self.example_tokens or "no token"
        return f"{self.share:.2%} of {texts}{unknown}, such as {self.example!r} ({tokens})"
