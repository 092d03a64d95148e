"""Disambiguates the mentions of new texts, those given or those detected in them.

Detected are the longest forms of aliases, at word boundaries, in any case. The form of an alias is
what it looks like in a text: the alias itself, or its lemma (`vice_president.n`: "vice president").
The training lines add the forms that their mentions have ("presidents"), and how often a form is a
mention at all: "in" may be an alias, of indium, but hardly ever is. (The share of its occurrences
that are links is the keyphraseness of Mihalcea and Csomai, 2007.)
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from ahocorasick_rs import AhoCorasick, MatchKind

from bsmeta.core.errors import DataError
from bsmeta.core.files import file_hash, writing
from bsmeta.core.progress import file_bar
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

TEXTS_AT_ONCE = 200  # texts whose rows are sorted by length and scored together
_EDGE = "\1"
"""Stands at both ends of every word while matching, so that matches end where words do."""
_WORD_EDGE = re.compile(r"\b")
_SPACE = re.compile(r"\s")
_COUNTS = ("alias", "mentions", "occurrences")
_FORM_LAYOUT = {**string_layout("forms"), **dict.fromkeys(_COUNTS, "<i4")}


class Span(NamedTuple):
    """A mention in a text: its characters, and the number of its alias (-1: unknown)."""

    start: int
    end: int
    alias: int


def folded(text: str) -> str:
    """A text in lower case, and each white space as a space; of the same length."""
    lower = text.lower()
    if len(lower) != len(text):  # "İ" becomes two characters
        lower = "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
    return _SPACE.sub(" ", lower).replace(_EDGE, " ")


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
    """

    file: str
    alias_form: str
    entities: str


class Detector:
    """Detects mentions of the aliases of a table.

    In a text, an alias looks as it is (`text`), or has no last dot and what follows, and spaces for
    underscores (`lemma_pos`). Of the forms that the training lines have, by their `counts`, those
    that are mentions less often than `min_share` are left out.
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
        forms = {form: alias for form, alias in forms.items() if any(map(str.isalnum, form))}
        self._aliases = np.fromiter(forms.values(), np.int64, len(forms))
        self.forms = tuple(forms)
        patterns = [_WORD_EDGE.sub(_EDGE, form) for form in self.forms]
        self._automaton = AhoCorasick(patterns, MatchKind.LeftmostLongest)

    def matches(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yields the first character of each match, the one after its last, and its form."""
        text = folded(text)
        edges = [match.start() for match in _WORD_EDGE.finditer(text)]
        marked = [place + number for number, place in enumerate(edges)]  # where the marks will be
        found = self._automaton.find_matches_as_indexes(_WORD_EDGE.sub(_EDGE, text))
        for form, start, end in found:
            yield start - bisect_left(marked, start), end - bisect_left(marked, end), form

    def __call__(self, text: str) -> list[Span]:
        """The mentions in a text."""
        found = self.matches(text)
        return [Span(start, end, int(self._aliases[form])) for start, end, form in found]


def _forms(table: EntityTable, alias_form: str) -> dict[str, int]:
    """The alias of each form; of several, that with the highest scores in all."""
    forms: dict[str, int] = {}
    weights: dict[str, float] = {}
    for alias, name in enumerate(table.aliases):
        if alias_form == "lemma_pos":
            name = name.rpartition(".")[0].replace("_", " ") or name
        form = folded(name).strip()
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
        facts = FormFacts(file_hash(path), config.alias_form, table.fingerprint)
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
    is_same = (saved.file, saved.alias_form) == (facts.file, facts.alias_form)
    return is_same and table.entities_of(saved.entities) is not None


def _read_counts(folder: Path, table: EntityTable) -> dict[str, FormCount]:
    """Reads the counts of forms; raises DataError if they are damaged."""
    arrays = ArrayFolder(folder, _FORM_LAYOUT, FormFacts)
    if table.entities_of(arrays.facts.entities) is None:
        raise DataError(
            f"{folder} has counts of the aliases of another table than {table.folder}; delete it, "
            "and name the training lines in data_config.train_file, to count again"
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
                form = folded(line.text[mention.start : mention.end]).strip()
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
        `min_score`, are left out.
        """
        for batch in batched(records, TEXTS_AT_ONCE):
            spans = [self._spans(record) for record in batch]
            texts = [str(record["text"]) for record in batch]
            for found in self._entities(texts, spans):
                yield {"entities": found}

    def _spans(self, record: Mapping[str, Any]) -> list[Span]:
        text = str(record["text"])
        mentions = record.get("mentions")
        if mentions is None:
            return self._detector()(text)
        if not isinstance(mentions, list):
            raise DataError(f"mentions: {mentions!r}; expected a list, or none to detect them")
        return [self._span(text, mention) for mention in mentions]

    def _span(self, text: str, mention: Any) -> Span:
        try:
            start, end = int(mention["start"]), int(mention["end"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"mentions: {mention!r}; expected start and end, in characters of the text"
            ) from error
        if not 0 <= start < end <= len(text):
            raise DataError(f"mentions: [{start}, {end}] in a text of {len(text)} characters")
        if "alias" in mention:
            return Span(start, end, self._data.table.aliases.find(str(mention["alias"])))
        found = self._detector()(text[start:end])
        whole = (one.alias for one in found if (one.start, one.end) == (0, end - start))
        return Span(start, end, next(whole, -1))

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
