"""Templates of records, split for a chat template."""

from __future__ import annotations

from bsmeta.metadata.chat_form import split_template


def test_a_template_is_split_into_literal_texts_and_fields() -> None:
    assert split_template("URL: {value}\n\n") == (("URL: ", "value"), ("\n\n", ""))
    assert split_template("{{{key}}}={month}{year}") == (
        ("{", ""),
        ("", "key"),
        ("}", ""),
        ("=", "month"),
        ("", "year"),
    )
