"""Disambiguates the mentions of new texts, which are given or detected (`mention_detection`)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from bsmeta.core.errors import DataError
from bsmeta.data.text.tokenizer import tokenize_with_spans
from bsmeta.tasks.disambiguation.data import RunData
from bsmeta.tasks.disambiguation.dictionary import Span
from bsmeta.tasks.disambiguation.embeddings import EntityEncoder, open_embeddings
from bsmeta.tasks.disambiguation.entities import NIL
from bsmeta.tasks.disambiguation.evaluate import Scorer
from bsmeta.tasks.disambiguation.lines import find_word_spans
from bsmeta.tasks.disambiguation.mention_detection import MentionDetector, open_mention_detector
from bsmeta.tasks.disambiguation.model import BiEncoder
from bsmeta.tasks.disambiguation.texts import Row, divide_sentence, find_overlaps
from bsmeta.training.task import sort_into_tight_batches, split_into_lists

logger = logging.getLogger(__name__)

TEXT_BATCH_SIZE = 200
"""Number of texts whose rows are sorted by length and scored together."""
_MAX_NAMED_ALIASES = 5  # in a warning


class GivenMention(msgspec.Struct):
    """A mention that a record names."""

    start: int  # in characters
    end: int
    alias: str | None = None  # None: detected in its text


def parse_given_mentions(record: Mapping[str, Any]) -> list[GivenMention] | None:
    """Parses the mentions of a record; returns None if it has none, so they must be detected.

    Raises:
        DataError: If they are invalid.
    """
    if record.get("mentions") is None:
        return None

    try:
        mentions = msgspec.convert(record["mentions"], list[GivenMention], strict=False)
    except msgspec.ValidationError as error:
        raise DataError(
            f"mentions: {error}; expected a list of start and end, in characters of the text, and "
            "alias, or none to detect them"
        ) from error

    length = len(str(record["text"]))
    for mention in mentions:
        if not 0 <= mention.start < mention.end <= length:
            raise DataError(
                f"mentions: [{mention.start}, {mention.end}] in a text of {length} characters"
            )
    return mentions


class Predictor:
    """Disambiguates mentions with a trained model in evaluation mode.

    Attributes:
        embeddings: The cached embeddings of entities.
    """

    def __init__(self, data: RunData, model: BiEncoder) -> None:
        self._data = data
        self._model = model
        device = next(model.parameters()).device
        encoder = EntityEncoder(model, data.texts, device, data.config.mixed_precision)
        self.embeddings = open_embeddings(model, encoder, data.texts, data.vectors_dir)
        self._scorer = Scorer(model, data, self.embeddings.get, device)

    @cached_property
    def _detector(self) -> MentionDetector:
        """Opened on first use, because given mentions with aliases do not need it."""
        return open_mention_detector(self._data, self._model)

    def __call__(self, records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields the entities of each record's `text`, in the order of the records.

        A record may name its `mentions`, each with `start`, `end` (in characters) and `alias` (by
        default, the alias of its text); otherwise they are detected.

        Mentions of none of their candidates (NIL), and answers with a probability below
        `min_score`, are skipped. So are given mentions with an unknown alias; their number is
        logged.
        """
        unknown: Counter[str] = Counter()
        for batch in split_into_lists(records, TEXT_BATCH_SIZE):
            spans = self._find_spans(batch, unknown)
            texts = [str(record["text"]) for record in batch]
            for entities in self._disambiguate(texts, spans):
                yield {"entities": entities}

        if unknown:
            aliases = ", ".join(repr(alias) for alias, _ in unknown.most_common(_MAX_NAMED_ALIASES))
            logger.warning(
                "given mentions left out, because no entity has their alias: %d (%s)",
                unknown.total(),
                aliases,
            )

    def _find_spans(
        self, records: Sequence[Mapping[str, Any]], unknown: Counter[str]
    ) -> list[list[Span]]:
        """Returns the given or detected mentions of each record.

        Args:
            unknown: Counts given mentions with an unknown alias, which are skipped.
        """
        given = [parse_given_mentions(record) for record in records]
        texts = [str(record["text"]) for record in records]
        texts_to_detect = [
            text for text, mentions in zip(texts, given, strict=True) if mentions is None
        ]
        detected = iter(self._detector(texts_to_detect) if texts_to_detect else [])
        return [
            next(detected) if mentions is None else self._look_up_given(text, mentions, unknown)
            for text, mentions in zip(texts, given, strict=True)
        ]

    def _look_up_given(
        self, text: str, mentions: Sequence[GivenMention], unknown: Counter[str]
    ) -> list[Span]:
        """Returns given mentions of a text with their aliases; see `_find_spans`."""
        spans = []
        for mention in mentions:
            surface = text[mention.start : mention.end]
            if mention.alias is None:
                alias = self._detector.dictionary.find_alias(surface)
            else:
                alias = self._find_alias(mention.alias)

            if alias < 0:
                unknown[surface if mention.alias is None else mention.alias] += 1
            else:
                spans.append(Span(mention.start, mention.end, alias))
        return spans

    def _find_alias(self, alias: str) -> int:
        return self._data.table.find_alias(alias)

    def _disambiguate(
        self, texts: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> list[list[dict[str, Any]]]:
        """Returns the entities of each text, in the order of their mentions."""
        rows = [*self._build_rows(texts, spans)]
        entities: list[list[dict[str, Any]]] = [[] for _ in texts]
        batch_size = self._data.config.data_config.per_device_eval_batch_size
        for batch in sort_into_tight_batches([len(row.tokens) for row in rows], batch_size):
            batch_rows = [rows[index] for index in batch]
            answers = zip(*self._scorer(batch_rows).pick_answers(), strict=True)
            for row in batch_rows:
                for position in row.positions.tolist():
                    entity, share = next(answers)
                    if entity > NIL and share >= self._data.config.min_score:
                        number = row.sentence
                        span = spans[number][position]
                        answer = self._describe_answer(texts[number], span, entity, share)
                        entities[number].append(answer)

        for text_entities in entities:
            text_entities.sort(key=lambda entity: (entity["start"], entity["end"]))
        return entities

    def _describe_answer(self, text: str, span: Span, entity: int, share: float) -> dict[str, Any]:
        table = self._data.table
        return {
            "mention": text[span.start : span.end],
            "start": span.start,
            "end": span.end,
            "alias": table.aliases[span.alias],
            "entity": table.ids[int(entity)],
            "title": table.titles[int(entity)],
            "score": round(float(share), 4),
        }

    def _build_rows(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> Iterator[Row]:
        """Yields the rows of texts with mentions; their `sentence` is the index of the text."""
        encoded = tokenize_with_spans(self._data.tokenizer, texts)
        # The limit on mentions bounds training steps; here it would only encode texts repeatedly.
        max_mentions = max(map(len, spans), default=1) or 1
        limits = self._data.limits._replace(mentions=max_mentions)

        for number, (text_spans, (ids, tokens)) in enumerate(zip(spans, encoded, strict=True)):
            if not text_spans:
                continue

            characters = np.array([(span.start, span.end) for span in text_spans])
            aliases = np.array([span.alias for span in text_spans])
            chunks, _ = divide_sentence(characters, find_word_spans(texts[number]), tokens, limits)
            for chunk in chunks:
                mentions = np.array(chunk.mentions)
                in_tokens = find_overlaps(characters[mentions], tokens) - chunk.start
                yield Row(
                    number=number,
                    sentence=number,
                    document=number,
                    tokens=np.array(ids[chunk.start : chunk.end], np.int64),
                    starts=in_tokens[:, 0],
                    ends=in_tokens[:, 1],
                    aliases=aliases[mentions],
                    entities=np.full((len(mentions), 1), NIL),
                    is_gold=np.zeros(len(mentions), bool),
                    positions=mentions,
                    slices=[()] * len(mentions),
                )
