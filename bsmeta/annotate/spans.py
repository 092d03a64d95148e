"""Annotators that make local records: about sentences, paragraphs and mentions of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from bsmeta.annotate.annotator import Annotator, Columns, Row, global_record, local_record
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.links import LinkIndex, index_digest, index_path, mentions
from bsmeta.annotate.page import PARAGRAPHS
from bsmeta.annotate.trained import Disambiguator
from bsmeta.data.text.sentences import sentences

REMAINDER = "remainder"
BLANK_LINE, BY_BLANK_LINE = "\n\n", "+lf"


class Length(Annotator):
    """The number of characters of the text, and of each sentence."""

    name = "length"
    version = 2
    columns = ("metadata_generation_length_text", "metadata_generation_length_sentence")
    settings = ("length_of", "sentence_splitter")

    def annotate(self, row: Row) -> Columns:
        columns: Columns = {}
        if "text" in self.config.length_of:
            records = [global_record("length", str(len(row.text)))]
            columns["metadata_generation_length_text"] = records
        if "sentence" in self.config.length_of:
            columns["metadata_generation_length_sentence"] = list(self._of_sentences(row.text))
        return columns

    def _of_sentences(self, text: str) -> Iterator[Columns]:
        splitter = self.config.sentence_splitter
        for start, end in sentences(text, splitter):
            # As published, a span begins with the full stop before it, which does not count.
            is_stop = splitter == "full_stops" and start < end and text[start] == "."
            yield local_record("length", str(end - start - is_stop), start, end)


class Paragraph(Annotator):
    """The paragraphs of the text; `marker` is the tag that ends one."""

    name = "paragraph"
    columns = ("metadata_paragraph",)
    settings = ("paragraph_values", "profile")

    def annotate(self, row: Row) -> Columns:
        text, whole = row.text, self.config.paragraph_values
        return {
            "metadata_paragraph": [
                local_record(
                    "paragraph", text[start:end] if whole else str(n), start, end, marker=marker
                )
                for n, (start, end, marker) in enumerate(paragraphs(row), 1)
            ]
        }


def paragraphs(row: Row) -> Iterator[tuple[int, int, str]]:
    """Start, end and marker of each paragraph; together they are the whole text.

    The text is cut where block elements end, and further after blank lines (`+lf` is then added to
    the marker). What follows the last block is the `remainder`.
    """
    text, start = row.text, 0
    for end, marker in sorted({len(text): REMAINDER, **_block_ends(row)}.items()):
        if end <= start:
            continue
        cuts = []
        if BLANK_LINE in text[start:end]:
            ends = (match.end() for match in re.finditer(BLANK_LINE, text[start:end]))
            cuts = [start + cut for cut in ends if start + cut < end]
        parts = pairwise([start, *cuts, end])
        yield from ((*part, marker + BY_BLANK_LINE if cuts else marker) for part in parts)
        start = end


def _block_ends(row: Row) -> dict[int, str]:
    """The innermost block element that ends at each position where any does."""
    ends: dict[int, tuple[int, str]] = {}
    for tag in row.tags:
        if tag.value in PARAGRAPHS:
            end, found = tag.char_end_idx or 0, (tag.relative_end_pos or 0, str(tag.value))
            ends[end] = min(found, ends.get(end, found))
    return {end: marker for end, (_, marker) in ends.items()}


class Entity(Annotator):
    """Mentions of entities; a record's value is the title, with underscores.

    They are the anchors of the links to other pages of the crawl (`url` is the address of the
    page), or the mentions that a trained disambiguator detects (`entity` is the identifier).

    Attributes:
        reads_links: Whether they are links.
    """

    name = "entity"
    version = 2
    columns = ("metadata_entity",)
    settings = ("entity_source", "profile")

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        self.reads_links = config.entity_source == "links"
        self._path = index_path(Path(config.output or ""))
        self._index = LinkIndex(self._path)
        self._model = None if self.reads_links else Disambiguator(config)

    def annotate(self, row: Row) -> Columns:
        records = []
        if self._model is not None:
            for found in self._model.entities(row.text):
                title, span = found["title"].replace(" ", "_"), (found["start"], found["end"])
                records.append(local_record("entity", title, *span, entity=found["entity"]))
            return {"metadata_entity": records}
        for start, end, page in mentions(row.page, row.needed_url(), self._index):
            title = page.title.replace(" ", "_")
            records.append(local_record("entity", title, start, end, url=page.key))
        return {"metadata_entity": records}

    def fingerprint(self) -> str:
        if self._model is not None:
            return self.digest({"model": self._model.fingerprint()})
        return self.digest({"pages": index_digest(self._path)})


class EntityParagraph(Annotator):
    """For each entity the paragraphs that mention it, once each."""

    name = "entity_paragraph"
    needs = ("metadata_entity",)
    columns = ("metadata_entity_paragraph",)
    settings = ("profile",)

    def annotate(self, row: Row) -> Columns:
        entities = sorted(row.column("metadata_entity"), key=lambda one: one["char_start_idx"])
        spans = iter(paragraphs(row))
        start, end = 0, 0
        found: dict[tuple[int, int], dict[str, None]] = {}
        for entity in entities:
            while entity["char_start_idx"] >= end and (span := next(spans, None)) is not None:
                start, end, _ = span
            found.setdefault((start, end), {})[entity["value"]] = None
        return {
            "metadata_entity_paragraph": [
                local_record(
                    "entity_paragraph",
                    value,
                    *span,
                    relative_start_pos=place,
                    relative_end_pos=place,
                )
                for span, values in found.items()
                for place, value in enumerate(values)
            ]
        }
