"""Disambiguates the mentions of new texts, those given or those detected in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bsmeta.core.errors import DataError
from bsmeta.data.text.tokenizer import tokens_with_places
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.data import Data
from bsmeta.tasks.disambiguation.embeddings import EntityEncoder, saved_embeddings
from bsmeta.tasks.disambiguation.entities import NIL
from bsmeta.tasks.disambiguation.evaluate import Scorer
from bsmeta.tasks.disambiguation.lines import word_spans
from bsmeta.tasks.disambiguation.model import BiEncoder
from bsmeta.tasks.disambiguation.prep import divide, overlapping
from bsmeta.tasks.disambiguation.texts import MentionTexts, Row
from bsmeta.training.task import batched, batches_of

TEXTS_AT_ONCE = 200
"""Texts whose rows are sorted by length and scored together."""


@dataclass(frozen=True)
class _Span:
    """A mention in a text: its characters, and the number of its alias (-1: unknown)."""

    start: int
    end: int
    alias: int


class Predictor:
    """Disambiguates mentions with a trained model.

    Args:
        config: The configuration that it was trained with.
        data: The entities and the tokenizer.
        model: The model, in evaluation mode.

    Attributes:
        embeddings: Those of the entities, on disk.
    """

    def __init__(self, config: DisambiguationConfig, data: Data, model: BiEncoder) -> None:
        self._config = config
        self._data = data
        device = next(model.parameters()).device
        encoder = EntityEncoder(model, data.texts, data.tokenizer, device, config.mixed_precision)
        self.embeddings = saved_embeddings(
            model, encoder, data.texts, len(data.table), data.vectors_dir
        )
        self._scorer = Scorer(
            model,
            model.settings.has_nil,
            data.table,
            MentionTexts(data.tokenizer, config),
            self.embeddings.get,
            device,
            config.mixed_precision,
        )

    def __call__(self, records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields the entities of each record's `text`, in the order of the records.

        A record may name its `mentions`, each with `start`, `end` (characters) and `alias` (that
        of its text, if it is left out); otherwise they are detected by the aliases of the table.
        Mentions that mean none of their candidates (NIL), or whose probability is below
        `min_score`, are left out.
        """
        for batch in batched(records, TEXTS_AT_ONCE):
            spans = [self._spans(record) for record in batch]
            texts = [str(record["text"]) for record in batch]
            for text, found in zip(texts, self._entities(texts, spans), strict=True):
                yield {"entities": [{"mention": text[one["start"] : one["end"]], **one}
                                    for one in found]}  # fmt: skip

    def _spans(self, record: Mapping[str, Any]) -> list[_Span]:
        text = str(record["text"])
        mentions = record.get("mentions")
        if mentions is None:
            return [_Span(*found) for found in self._data.detector(text)]
        if not isinstance(mentions, list):
            raise DataError(f"mentions: {mentions!r}; expected a list, or none to detect them")
        return [self._span(text, mention) for mention in mentions]

    def _span(self, text: str, mention: Any) -> _Span:
        """A mention of a record."""
        try:
            start, end = int(mention["start"]), int(mention["end"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"mentions: {mention!r}; expected start and end, in characters of the text"
            ) from error
        if not 0 <= start < end <= len(text):
            raise DataError(f"mentions: [{start}, {end}] in a text of {len(text)} characters")
        if "alias" in mention:
            return _Span(start, end, self._data.table.alias_index(str(mention["alias"])))
        whole = (0, end - start)
        found = (
            alias for *place, alias in self._data.detector(text[start:end]) if (*place,) == whole
        )
        return _Span(start, end, next(found, -1))

    def _entities(
        self, texts: Sequence[str], spans: Sequence[Sequence[_Span]]
    ) -> list[list[dict[str, Any]]]:
        rows, owners = self._rows(texts, spans)
        found: list[list[dict[str, Any]]] = [[] for _ in texts]
        size = self._config.data_config.per_device_eval_batch_size
        for batch in batches_of([len(row.tokens) for row in rows], size):
            answers = self._answers([rows[place] for place in batch])
            for place in batch:
                for position in rows[place].positions.tolist():
                    owner, answer = owners[place], next(answers)
                    span = spans[owner][position]
                    if answer is not None:
                        found[owner].append({"start": span.start, "end": span.end, **answer})
        return [sorted(one, key=lambda entity: (entity["start"], entity["end"])) for one in found]

    def _answers(self, rows: Sequence[Row]) -> Iterator[dict[str, Any] | None]:
        """The entity of each mention; None for NIL and low scores."""
        entities, shares = self._scorer(rows).answers()
        table = self._data.table
        aliases = np.concatenate([row.aliases for row in rows])
        for alias, entity, share in zip(aliases, entities, shares, strict=True):
            if entity <= NIL or share < self._config.min_score:
                yield None
                continue
            yield {
                "alias": table.alias(int(alias)),
                "entity": table.entity_id(int(entity)),
                "title": table.title(int(entity)),
                "score": round(float(share), 4),
            }

    def _rows(
        self, texts: Sequence[str], spans: Sequence[Sequence[_Span]]
    ) -> tuple[list[Row], list[int]]:
        """The rows of all texts with mentions, and which text each is of."""
        rows: list[Row] = []
        owners: list[int] = []
        encoded = tokens_with_places(self._data.tokenizer, texts)
        # The limit of mentions bounds a training step; here it would only repeat the same words.
        limits = replace(self._data.limits, mentions=max(map(len, spans), default=1) or 1)
        for number, (own, (ids, tokens)) in enumerate(zip(spans, encoded, strict=True)):
            if not own:
                continue
            places = np.array([(span.start, span.end) for span in own])
            chunks, _ = divide(places, word_spans(texts[number]), tokens, limits)
            for chunk in chunks:
                mentions = np.array(chunk.mentions)
                in_tokens = overlapping(places[mentions], tokens) - chunk.start
                count = len(mentions)
                rows.append(
                    Row(
                        number=len(rows),
                        sentence=number,
                        document=number,
                        tokens=np.array(ids[chunk.start : chunk.end], np.int64),
                        starts=in_tokens[:, 0],
                        ends=in_tokens[:, 1],
                        aliases=np.array([own[place].alias for place in chunk.mentions]),
                        entities=np.full((count, 1), NIL),
                        is_gold=np.zeros(count, bool),
                        positions=mentions,
                        slices=[()] * len(mentions),
                    )
                )
                owners.append(number)
        return rows, owners
