"""Texts that differ in white space alone are the same."""

from __future__ import annotations

from bsmeta.data.text.same_text import hash_text


def test_white_space_does_not_change_the_hash_of_a_text() -> None:
    copies = ["a text\nof two lines", "a  text\r\nof two lines", "\ta text of\u00a0two lines\n"]
    assert len(set(map(hash_text, copies))) == 1
    assert hash_text("a text") == 5920215052985964735  # in the caches of users
    assert hash_text("a text") != hash_text("atext") != hash_text("A text")
