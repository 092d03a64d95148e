"""The share of the text that a tokenizer loses."""

from __future__ import annotations

from bsmeta.data.text.lost_share import LostShare
from bsmeta.data.text.lost_text import measure_lost_text
from tests.data.text.shown_losses import make_tokenizer


def test_the_share_counts_bytes_and_shows_an_example() -> None:
    lost = measure_lost_text(make_tokenizer("word_piece"), ["The fox", "俋啾 fox", "the fox"])
    assert (lost.num_documents, lost.num_bytes, lost.num_lost, lost.num_unknown) == (3, 24, 7, 6)
    assert str(lost) == (
        "29.17% of 24 bytes of 3 documents (25.00% under unknown tokens), such as 'T' (the)"
    )
    unknown = measure_lost_text(make_tokenizer("word_piece"), ["the 俋啾俋啾"])
    assert str(unknown) == (
        "75.00% of 16 bytes of 1 documents (75.00% under unknown tokens), such as '俋啾俋啾' "
        "([UNK] [UNK] [UNK] …)"
    )
    dropped = measure_lost_text(make_tokenizer("word_piece"), ["the\n"])
    assert str(dropped) == "25.00% of 4 bytes of 1 documents, such as '\\n' (no token)"
    nothing = measure_lost_text(make_tokenizer("byte_level"), ["É俋", ""])
    assert nothing == LostShare(2, 5)
    assert str(nothing) == "none of 5 bytes of 2 documents"
    assert LostShare(0, 0).share == 0.0
