"""Disambiguates the mentions of new texts, those given or those detected in them.

Detected are the longest forms of aliases, at word boundaries, in any case (`CaselessText`). The
form of an alias is how a text writes it: as it is, or its lemma (`vice_president.n`: "vice
president").
The training lines add the forms that their mentions have ("presidents"), and how often a form is a
mention at all: "in" may be an alias, of indium, but hardly ever is. (The share of its occurrences
that are links is the keyphraseness of Mihalcea and Csomai, 2007.)
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from ahocorasick_rs import AhoCorasick, MatchKind

from bsmeta.core.errors import DataError
from bsmeta.core.files import file_hash, writing
from bsmeta.core.progress import file_bar
from bsmeta.data.text.caseless import CaselessText, caseless, combines
from bsmeta.data.text.tokenizer import tokens_with_places
from bsmeta.tasks.disambiguation.array_folder import (
    MANIFEST,
    ArrayFolder,
    ArrayWriter,
    damaged_folder,
)
from bsmeta.tasks.disambiguation.config import DisambiguationDataConfig
from bsmeta.tasks.disambiguation.data import Data
from bsmeta.tasks.disambiguation.embeddings import EntityEncoder, saved_embeddings
from bsmeta.tasks.disambiguation.entities import NIL, EntityTable
from bsmeta.tasks.disambiguation.evaluate import Scorer
from bsmeta.tasks.disambiguation.lines import Problems, read_lines, word_spans
from bsmeta.tasks.disambiguation.model import BiEncoder
from bsmeta.tasks.disambiguation.string_table import (
    Strings,
    check_length,
    check_strings,
    string_layout,
)
from bsmeta.tasks.disambiguation.texts import Row, divide, overlapping
from bsmeta.training.task import batched, batches_of

log = logging.getLogger(__name__)

TEXTS_AT_ONCE = 200  # texts whose rows are sorted by length and scored together
_NAMED = 5  # aliases that a warning names
_EDGE = "\1"
"""Stands at both ends of every word while matching, so that matches end where words do. No
caseless form has it."""
_WORD_EDGE = re.compile(r"\b")
_NO_WORD = re.compile(r"[^\w\s\x00-\x7f]")
_LONGEST_FORM = 200  # characters; building an automaton takes the square of the longest
_COUNTS = ("alias", "mentions", "occurrences")
_FORM_LAYOUT = {**string_layout("forms"), **dict.fromkeys(_COUNTS, "<i4")}


class Span(NamedTuple):
    """A mention in a text: its characters, and the number of its alias."""

    start: int
    end: int
    alias: int


class FormCount(NamedTuple):
    """What the training lines say about a form."""

    alias: int  # the alias that it is most often a mention of; -1 if it never is one
    mentions: int  # how often it is a mention
    occurrences: int  # how often it is in the text

    @property
    def share(self) -> float:
        """The share of its occurrences that are mentions, as far as that is known."""
        return (self.mentions + 1) / (max(self.occurrences, self.mentions) + 1)


class FormFacts(msgspec.Struct):
    """What the counts of forms were made from.

    Attributes:
        file: Hash of the training lines.
        alias_form: The key of that name.
        entities: Fingerprint of the table.
        is_caseless: Whether forms are caseless, as all are that this version writes.
    """

    file: str
    alias_form: str
    entities: str
    is_caseless: bool = False


class Detector:
    """Detects mentions of the aliases of a table.

    In a text, an alias looks as it is (`text`), or has no last dot and what follows, and spaces for
    underscores (`lemma_pos`). Of the forms that the training lines have, by their `counts`, those
    that are mentions less often than `min_share` are left out, and so are those of more than
    `_LONGEST_FORM` characters.

    Attributes:
        forms: What is detected.
    """

    def __init__(
        self,
        table: EntityTable,
        alias_form: str = "text",
        counts: Mapping[str, FormCount] | None = None,
        min_share: float = 0.0,
    ) -> None:
        forms = _forms(table, alias_form)
        for form, count in (counts or {}).items():
            if count.share < min_share:
                forms.pop(form, None)
            elif count.alias >= 0:
                forms[form] = count.alias
        # The lines of a table in a text are no mentions of "one".
        forms = {
            form: alias
            for form, alias in forms.items()
            if len(form) <= _LONGEST_FORM and any(map(str.isalnum, form))
        }
        self._aliases = np.fromiter(forms.values(), np.int64, len(forms))
        self.forms = tuple(forms)
        patterns = [_marked(form, word_edges(form)) for form in self.forms]
        self._automaton = AhoCorasick(patterns, MatchKind.LeftmostLongest)

    def matches(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yields the first character of each match, the one after its last, and its form."""
        folded = CaselessText.of(text)
        edges = word_edges(folded.text)
        marked = [place + number for number, place in enumerate(edges)]  # where the marks will be
        found = self._automaton.find_matches_as_indexes(_marked(folded.text, edges))
        for form, start, end in found:
            start, end = start - bisect_left(marked, start), end - bisect_left(marked, end)
            place = folded.original(start, end)
            if place is not None:
                yield *place, form

    def __call__(self, text: str) -> list[Span]:
        """The mentions in a text."""
        found = self.matches(text)
        return [Span(start, end, int(self._aliases[form])) for start, end, form in found]


def word_edges(text: str) -> list[int]:
    """The offsets at which words begin or end; combining characters are parts of their words."""
    if not text.isascii():
        text = _NO_WORD.sub(lambda match: "a" if combines(match[0]) else match[0], text)
    return [match.start() for match in _WORD_EDGE.finditer(text)]


def _marked(text: str, edges: Sequence[int]) -> str:
    return _EDGE.join(text[start:end] for start, end in pairwise([0, *edges, len(text)]))


def _forms(table: EntityTable, alias_form: str) -> dict[str, int]:
    """The alias of each form; of several, that with the highest scores in all."""
    forms: dict[str, int] = {}
    weights: dict[str, float] = {}
    for alias, name in enumerate(table.aliases):
        if alias_form == "lemma_pos":
            name = name.rpartition(".")[0].replace("_", " ") or name
        form = caseless(name)
        weight = float(table.candidates(alias)[1].sum())
        if form and weight >= weights.get(form, 0.0):
            forms[form], weights[form] = alias, weight
    return forms


def open_detector(config: DisambiguationDataConfig, table: EntityTable, folder: Path) -> Detector:
    """The detector of a configuration; its counts are made from the training lines first.

    They are kept in a folder, and used as they are without the training lines.

    Raises:
        DataError: If the training lines cannot be read.
    """
    path = None if config.train_file is None else Path(config.train_file)
    if path is not None and path.is_file():
        facts = FormFacts(file_hash(path), config.alias_form, table.fingerprint, True)
        with writing(folder, "the forms of aliases in the training sentences"):
            if not _has_counts(folder, facts, table):
                _write_counts(folder, facts, count_forms(path, table, config.alias_form))

    counts = _read_counts(folder, table) if (folder / MANIFEST).exists() else {}
    return Detector(table, config.alias_form, counts, config.min_mention_share)


def _has_counts(folder: Path, facts: FormFacts, table: EntityTable) -> bool:
    """Whether a folder has counts of the same lines, for this table or an earlier version."""
    if not (folder / MANIFEST).exists():
        return False
    saved = ArrayFolder(folder, _FORM_LAYOUT, FormFacts).facts
    is_same = msgspec.structs.replace(saved, entities=facts.entities) == facts
    return is_same and table.entities_of(saved.entities) is not None


def _read_counts(folder: Path, table: EntityTable) -> dict[str, FormCount]:
    """Reads the counts of forms; raises DataError if they are damaged."""
    arrays = ArrayFolder(folder, _FORM_LAYOUT, FormFacts)
    if table.entities_of(arrays.facts.entities) is None:
        raise DataError(
            f"{folder} has counts of the aliases of another table than {table.folder}; delete it, "
            "and name the training lines in data_config.train_file, to count again"
        )

    if not arrays.facts.is_caseless:
        raise DataError(
            f"{folder} was written by an earlier version of bsmeta, which compared texts in "
            "another way; delete it, and name the training lines in data_config.train_file, to "
            "count again"
        )

    forms = check_strings(arrays, "forms")
    for name in _COUNTS:
        check_length(arrays, name, forms)

    aliases = arrays["alias"]
    if len(aliases) and not (aliases.min() >= -1 and aliases.max() < len(table.aliases)):
        raise damaged_folder(folder, f"alias has a number that {table.folder} does not have")

    counts = zip(*(arrays[name].tolist() for name in _COUNTS), strict=True)
    return dict(zip(Strings(arrays, "forms"), map(FormCount._make, counts), strict=True))


def count_forms(path: Path, table: EntityTable, alias_form: str) -> dict[str, FormCount]:
    """Counts forms in training lines; raises DataError if these are invalid."""
    mentions: dict[str, Counter[int]] = {}
    problems = Problems(path)
    with file_bar(path, f"counting forms in {path.name}") as advance:
        for line in read_lines(path, problems, advance):
            for mention in line.mentions:
                form = caseless(line.text[mention.start : mention.end])
                alias = table.aliases.find(mention.alias)
                if form and alias >= 0:
                    mentions.setdefault(form, Counter())[alias] += 1
    problems.close()
    best = {form: counts.most_common(1)[0] for form, counts in mentions.items()}
    seen = {form: FormCount(alias, count, count) for form, (alias, count) in best.items()}
    detector = Detector(table, alias_form, seen)
    occurrences: Counter[int] = Counter()
    with file_bar(path, f"counting words in {path.name}") as advance:
        for line in read_lines(path, problems, advance):
            occurrences.update(form for _, _, form in detector.matches(line.text))
    counted = {detector.forms[form]: FormCount(-1, 0, count) for form, count in occurrences.items()}
    for form, counts in mentions.items():
        number = counted[form].occurrences if form in counted else 0
        counted[form] = FormCount(best[form][0], counts.total(), number)
    return counted


def _write_counts(folder: Path, facts: FormFacts, counts: dict[str, FormCount]) -> None:
    folder.mkdir(exist_ok=True)
    has_counts = (folder / MANIFEST).exists()
    before = ArrayFolder(folder, _FORM_LAYOUT, FormFacts) if has_counts else None
    writer = ArrayWriter(folder, _FORM_LAYOUT, before)
    texts = [form.encode() for form in counts]
    writer.replace("forms", np.frombuffer(b"".join(texts), np.uint8))
    writer.replace("forms_ends", np.cumsum([len(text) for text in texts], dtype=np.int64))
    for name in _COUNTS:
        values: Iterable[int] = (getattr(count, name) for count in counts.values())
        writer.replace(name, np.fromiter(values, np.int32, len(counts)))
    writer.commit(facts)


class GivenMention(msgspec.Struct):
    """A mention that a record names: its characters, and its alias (None: that of its text)."""

    start: int
    end: int
    alias: str | None = None


def given_mentions(record: Mapping[str, Any]) -> list[GivenMention] | None:
    """The mentions that a record names; None if they are to be detected in its `text`.

    Raises:
        DataError: If they are not valid, which says why.
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
    """Disambiguates mentions with a trained model, which is in evaluation mode.

    `detector` opens the detector of mentions, for texts whose mentions are not given. `embeddings`
    are those of the entities, on disk.
    """

    def __init__(self, data: Data, model: BiEncoder, detector: Callable[[], Detector]) -> None:
        self._data = data
        self._detector = detector
        device = next(model.parameters()).device
        encoder = EntityEncoder(model, data.texts, device, data.config.mixed_precision)
        self.embeddings = saved_embeddings(model, encoder, data.texts, data.vectors_dir)
        self._scorer = Scorer(model, data, self.embeddings.get, device)

    def __call__(self, records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields the entities of each record's `text`, in the order of the records.

        A record may name its `mentions`, each with `start`, `end` (characters) and `alias` (that
        of its text, if it is left out); otherwise they are detected by the aliases of the table.
        Mentions that mean none of their candidates (NIL), or whose probability is below
        `min_score`, are left out. Given mentions whose alias no entity has are left out, too; the
        log says how many.
        """
        unknown: Counter[str] = Counter()
        for batch in batched(records, TEXTS_AT_ONCE):
            spans = [self._spans(record, unknown) for record in batch]
            texts = [str(record["text"]) for record in batch]
            for found in self._entities(texts, spans):
                yield {"entities": found}
        if unknown:
            named = ", ".join(repr(alias) for alias, _ in unknown.most_common(_NAMED))
            log.warning(
                "given mentions left out, because no entity has their alias: %d (%s)",
                unknown.total(), named,
            )  # fmt: skip

    def _spans(self, record: Mapping[str, Any], unknown: Counter[str]) -> list[Span]:
        """The mentions of a record; given ones without a known alias are counted instead."""
        text, mentions = str(record["text"]), given_mentions(record)
        if mentions is None:
            return self._detector()(text)
        spans = []
        for mention in mentions:
            surface = text[mention.start : mention.end]
            alias = self._alias(surface) if mention.alias is None else self._find(mention.alias)
            if alias < 0:
                unknown[surface if mention.alias is None else mention.alias] += 1
            else:
                spans.append(Span(mention.start, mention.end, alias))
        return spans

    def _find(self, alias: str) -> int:
        return self._data.table.aliases.find(alias)

    def _alias(self, surface: str) -> int:
        """The alias of the text of a mention; -1 if it has none."""
        whole = (0, len(surface))
        detected = self._detector()(surface)
        return next((span.alias for span in detected if (span.start, span.end) == whole), -1)

    def _entities(
        self, texts: Sequence[str], spans: Sequence[Sequence[Span]]
    ) -> list[list[dict[str, Any]]]:
        rows = [*self._rows(texts, spans)]
        found: list[list[dict[str, Any]]] = [[] for _ in texts]
        size = self._data.config.data_config.per_device_eval_batch_size
        for batch in batches_of([len(row.tokens) for row in rows], size):
            chosen = [rows[place] for place in batch]
            answers = zip(*self._scorer(chosen).answers(), strict=True)
            for row in chosen:
                for position in row.positions.tolist():
                    entity, share = next(answers)
                    if entity > NIL and share >= self._data.config.min_score:
                        span, text = spans[row.sentence][position], texts[row.sentence]
                        found[row.sentence].append(self._answer(text, span, entity, share))
        return [sorted(one, key=lambda entity: (entity["start"], entity["end"])) for one in found]

    def _answer(self, text: str, span: Span, entity: int, share: float) -> dict[str, Any]:
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

    def _rows(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> Iterator[Row]:
        """Yields the rows of all texts with mentions, with the number of the text as `sentence`."""
        encoded = tokens_with_places(self._data.tokenizer, texts)
        # The limit of mentions bounds a training step; here it would only repeat the same words.
        limits = self._data.limits._replace(mentions=max(map(len, spans), default=1) or 1)
        for number, (own, (ids, tokens)) in enumerate(zip(spans, encoded, strict=True)):
            if not own:
                continue
            places = np.array([(span.start, span.end) for span in own])
            aliases = np.array([span.alias for span in own])
            chunks, _ = divide(places, word_spans(texts[number]), tokens, limits)
            for chunk in chunks:
                mentions = np.array(chunk.mentions)
                in_tokens = overlapping(places[mentions], tokens) - chunk.start
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
