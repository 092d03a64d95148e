"""A new metadata type is one class and one line, as CONTRIBUTING.md says."""

from __future__ import annotations

import pytest

from bsmeta.metadata.processors import PROCESSORS, MetadataType
from bsmeta.metadata.records import Record
from tests.metadata.helpers import config, local, pieces, render, world


class Language(MetadataType):
    """`Language: en` for the text, `<en>…</en>` for a passage in another language."""

    label = "Language"

    def local_text(self, record: Record, length: int) -> tuple[str, str] | None:
        return (f"<{record.value}>", f"</{record.value}>") if length else None


def test_a_new_type_reads_as_its_class_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROCESSORS, "language", Language)
    rendered = render(
        config(["language"], local_metadata_special_tokens={"language": "mixed"}),
        "To say merci.",
        world("language", "en"),
        local("language", "fr", 7, 12),
        local("language", "de", 13, 13),
    )
    assert rendered.prefix == "Language: en | mixed |||"
    assert rendered.body == "To say <fr>merci</fr>."
    assert pieces(rendered) == ["<fr>", "</fr>"]


def test_without_a_class_it_reads_by_the_default_form() -> None:
    records = (world("language", "en"), local("language", "fr", 7, 12))
    rendered = render(config(["language"]), "To say merci.", *records)
    assert rendered.prefix == "language: en | language |||"
    assert rendered.body == "To say [language: fr]merci[/language: fr]."
