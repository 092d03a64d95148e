"""Detects mentions in a text: the longest forms of aliases, at word boundaries, in any case.

The form of an alias is what it looks like in a text: the alias itself, or its lemma
(`vice_president.n`: "vice president"). The training lines add the forms that their mentions have
("presidents"), and how often a form is a mention at all: "in" may be an alias, of indium, but
hardly ever is. (The share of its occurrences that are links is the keyphraseness of Mihalcea and
Csomai, 2007.)
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ahocorasick_rs import AhoCorasick, MatchKind

from bsmeta.core.files import file_hash, unwritable
from bsmeta.core.progress import exclusively, file_bar
from bsmeta.tasks.disambiguation.config import DisambiguationDataConfig
from bsmeta.tasks.disambiguation.entities import (
    MANIFEST,
    ArrayFolder,
    ArrayWriter,
    EntityTable,
    Strings,
)
from bsmeta.tasks.disambiguation.lines import Problems, read_lines

_EDGE = "\1"
"""Stands at both ends of every word while matching, so that matches end where words do."""

_WORD_EDGE = re.compile(r"\b")
_SPACE = re.compile(r"\s")


def folded(text: str) -> str:
    """A text in lower case, and each white space as a space; of the same length."""
    lower = text.lower()
    if len(lower) != len(text):  # "İ" becomes two characters
        lower = "".join(char.lower() if len(char.lower()) == 1 else char for char in text)
    return _SPACE.sub(" ", lower).replace(_EDGE, " ")


def form_of(alias: str, alias_form: str) -> str:
    """What an alias looks like in a text.

    Args:
        alias: The alias.
        alias_form: `text`: as it is; `lemma_pos`: without its last dot and what follows, and with
            spaces for underscores.
    """
    if alias_form == "lemma_pos":
        alias = alias.rpartition(".")[0].replace("_", " ") or alias
    return folded(alias).strip()


@dataclass(frozen=True, slots=True)
class FormCount:
    """What the training lines say about a form.

    Attributes:
        alias: The alias that it is most often a mention of; -1 if it never is one.
        mentions: How often it is a mention.
        occurrences: How often it is in the text.
    """

    alias: int
    mentions: int
    occurrences: int

    @property
    def share(self) -> float:
        """The share of its occurrences that are mentions, as far as that is known."""
        return (self.mentions + 1) / (max(self.occurrences, self.mentions) + 1)


class Detector:
    """Detects mentions of the aliases of a table.

    Args:
        table: The table.
        alias_form: See `form_of`.
        counts: What the training lines say about forms.
        min_share: Forms that are mentions less often than this are left out.
    """

    def __init__(
        self,
        table: EntityTable,
        alias_form: str = "text",
        counts: dict[str, FormCount] | None = None,
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

    def __call__(self, text: str) -> list[tuple[int, int, int]]:
        """The first character of each mention, the one after its last, and its alias's number."""
        return [(start, end, int(self._aliases[form])) for start, end, form in self.matches(text)]


def _forms(table: EntityTable, alias_form: str) -> dict[str, int]:
    """The alias of each form; of several, that with the highest scores in all."""
    forms: dict[str, int] = {}
    weights: dict[str, float] = {}
    for alias, name in enumerate(table.aliases()):
        form = form_of(name, alias_form)
        weight = float(table.candidates(alias)[1].sum())
        if form and weight >= weights.get(form, 0.0):
            forms[form], weights[form] = alias, weight
    return forms


def open_detector(config: DisambiguationDataConfig, table: EntityTable, folder: Path) -> Detector:
    """The detector of a configuration; its counts are made from the training lines first.

    Args:
        config: The configuration.
        table: The entities.
        folder: Where the counts are kept. Without the training lines, they are used as they are.

    Raises:
        DataError: If the training lines cannot be read.
    """
    path = None if config.train_file is None else Path(config.train_file)
    if path is None or not path.is_file():
        counts = _read_counts(folder) if (folder / MANIFEST).exists() else None
    else:
        key = {"file": file_hash(path), "alias_form": config.alias_form}
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with exclusively(f"{folder}.lock", "the forms of aliases in the training sentences"):
                if not _is_current(folder, key, table):
                    found = count_forms(path, table, config.alias_form)
                    _write_counts(folder, {**key, "entities": table.fingerprint}, found)
        except OSError as error:
            raise unwritable(folder, error) from error
        counts = _read_counts(folder)
    return Detector(table, config.alias_form, counts, config.min_mention_share)


def count_forms(path: Path, table: EntityTable, alias_form: str) -> dict[str, FormCount]:
    """Counts forms in training lines.

    Raises:
        DataError: If the lines are invalid.
    """
    mentions: dict[str, Counter[int]] = {}
    problems = Problems(path)
    with file_bar(path, f"counting forms in {path.name}") as advance:
        for line in read_lines(path, problems, advance):
            for mention in line.mentions:
                form = folded(line.text[mention.start : mention.end]).strip()
                alias = table.alias_index(mention.alias)
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


def _is_current(folder: Path, key: dict[str, str], table: EntityTable) -> bool:
    if not (folder / MANIFEST).exists():
        return False
    saved = ArrayFolder(folder).facts
    same = all(saved.get(name) == value for name, value in key.items())
    return same and table.entities_of(saved["entities"]) is not None


def _write_counts(folder: Path, facts: dict[str, str], counts: dict[str, FormCount]) -> None:
    folder.mkdir(exist_ok=True)
    before = ArrayFolder(folder) if (folder / MANIFEST).exists() else None
    writer = ArrayWriter(folder, before)
    texts = [form.encode() for form in counts]
    writer.replace("forms", np.frombuffer(b"".join(texts), np.uint8))
    writer.replace("forms_ends", np.cumsum([len(text) for text in texts], dtype=np.int64))
    for name in ("alias", "mentions", "occurrences"):
        values: Iterable[int] = (getattr(count, name) for count in counts.values())
        writer.replace(name, np.fromiter(values, np.int32, len(counts)))
    writer.commit(facts)


def _read_counts(folder: Path) -> dict[str, FormCount]:
    arrays = ArrayFolder(folder)
    columns = (arrays[name].tolist() for name in ("alias", "mentions", "occurrences"))
    rows = zip(Strings(arrays, "forms"), *columns, strict=True)
    return {form: FormCount(*numbers) for form, *numbers in rows}
