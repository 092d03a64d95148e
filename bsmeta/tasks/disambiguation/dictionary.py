"""Finds mentions in texts by a dictionary: the forms of the aliases of an entity table.

The longest forms are found in any case (`CaselessText`), at word boundaries; in scripts without
spaces, at the boundaries of letters (`find_word_edges`). A form of an alias is its spelling in
texts: the alias itself, or its lemma (`vice_president.n`: "vice president").

The training lines add the forms of their mentions ("presidents"), and the share of a form's
occurrences that are mentions: "in" may be an alias, of indium, but is hardly ever a mention. (If
mentions are links, this share is the keyphraseness of Mihalcea and Csomai, 2007.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from ahocorasick_rs import AhoCorasick, MatchKind

from bsmeta.core.errors import DataError
from bsmeta.core.files import hash_file, hold_write_lock
from bsmeta.core.progress import show_file_bar
from bsmeta.data.text.caseless import CaselessText, make_caseless
from bsmeta.data.text.word_edges import find_word_edges, has_word
from bsmeta.tasks.disambiguation.array_folder import (
    MANIFEST,
    ArrayFolder,
    ArrayWriter,
    make_damaged_folder_error,
)
from bsmeta.tasks.disambiguation.config import DisambiguationDataConfig
from bsmeta.tasks.disambiguation.entities import EntityTable
from bsmeta.tasks.disambiguation.lines import Problems, read_lines
from bsmeta.tasks.disambiguation.string_table import (
    Strings,
    check_length,
    check_strings,
    make_string_layout,
)

DETECTION_VERSION = 2
"""Version of the detection; increment it when other forms are found in the same text."""

_EDGE = "\1"
"""Inserted at both edges of every word while matching, so that matches begin and end at words:
twice between adjacent words, because matches do not overlap. No caseless form has it."""
_MAX_FORM_CHARS = 200  # the time to build the automaton is quadratic in it

_COUNT_ARRAYS = ("alias", "mentions", "occurrences")
_FORM_LAYOUT = {**make_string_layout("forms"), **dict.fromkeys(_COUNT_ARRAYS, "<i4")}


class Span(NamedTuple):
    """A mention in a text."""

    start: int  # in characters
    end: int
    alias: int  # its number in the table


class Match(NamedTuple):
    """An occurrence of a form in a text."""

    start: int  # in characters
    end: int
    form: int  # index in `AliasDictionary.forms`


class FormCount(NamedTuple):
    """Counts of a form in the training lines."""

    alias: int  # most frequent alias of its mentions; -1 without mentions
    mentions: int  # occurrences as a mention
    occurrences: int  # occurrences in the text

    @property
    def share(self) -> float:
        """The share of occurrences that are mentions, with add-one smoothing of both counts."""
        return (self.mentions + 1) / (max(self.occurrences, self.mentions) + 1)


class FormFacts(msgspec.Struct):
    """Identifies the sources of saved counts of forms.

    Attributes:
        file: Hash of the training lines.
        alias_form: The configuration key of this name.
        entities: Fingerprint of the table.
        detection: `DETECTION_VERSION` at the time of counting.
    """

    file: str
    alias_form: str
    entities: str
    detection: int = 0


class AliasDictionary:
    """Detects mentions of the aliases of a table.

    Forms of more than `_MAX_FORM_CHARS` characters are not detected.

    Args:
        alias_form: How forms are derived from aliases. `text`: the alias itself; `lemma_pos`:
            without the last dot and the part after it, and with spaces in place of underscores.
        counts: The counts of forms in the training lines, which may add forms.
        min_share: Minimum share of the occurrences of a form that are mentions, if it was counted.

    Attributes:
        forms: The detected forms.
    """

    def __init__(
        self,
        table: EntityTable,
        alias_form: str = "text",
        counts: Mapping[str, FormCount] | None = None,
        min_share: float = 0.0,
    ) -> None:
        has_candidates = table.has_candidates(np.arange(len(table.aliases)))
        forms = _collect_forms(table, alias_form)
        self._rare_aliases: dict[str, int] = {}
        for form, count in (counts or {}).items():
            if count.alias >= 0 and has_candidates[count.alias]:
                forms[form] = count.alias
            if count.share < min_share and form in forms:
                self._rare_aliases[form] = forms.pop(form)

        # A form must have a letter, a digit or an emoji: "|" may be an alias of the number one, but
        # vertical lines in texts are not mentions of it.
        forms = {
            form: alias
            for form, alias in forms.items()
            if len(form) <= _MAX_FORM_CHARS and has_word(form)
        }
        self._aliases = np.fromiter(forms.values(), np.int64, len(forms))
        self.forms = tuple(forms)

        patterns = [_mark_edges(form, find_word_edges(form)) for form in self.forms]
        self._automaton = AhoCorasick(patterns, MatchKind.LeftmostLongest)

    def find_matches(self, text: str) -> Iterator[Match]:
        """Yields the matches in a text; of forms that begin at the same position, the longest."""
        caseless = CaselessText.from_text(text)
        edges = find_word_edges(caseless.text)
        matches = self._automaton.find_matches_as_indexes(_mark_edges(caseless.text, edges))

        # Offsets in the marked text are converted by subtracting the number of marks before them.
        marks = [edge + number for number, edge in enumerate(edges)]
        for form, marked_start, marked_end in matches:
            start = marked_start - bisect_left(marks, marked_start)
            end = marked_end - bisect_left(marks, marked_end)
            original = caseless.find_original(start, end)
            if original is not None:
                yield Match(*original, form)

    def __call__(self, text: str) -> list[Span]:
        """Returns the mentions in a text."""
        return [
            Span(match.start, match.end, int(self._aliases[match.form]))
            for match in self.find_matches(text)
        ]

    def find_alias(self, surface: str, *, with_rare: bool = False) -> int:
        """Returns the alias whose form is a whole text, in any case; -1 if there is none.

        Args:
            with_rare: Whether forms count that are too rarely mentions to be detected.
        """
        for span in self(surface):
            if (span.start, span.end) == (0, len(surface)):
                return span.alias
        return self._rare_aliases.get(make_caseless(surface), -1) if with_rare else -1


def _mark_edges(text: str, edges: Sequence[int]) -> str:
    """Inserts `_EDGE` at each offset of a text."""
    return _EDGE.join(text[start:end] for start, end in pairwise([0, *edges, len(text)]))


def _collect_forms(table: EntityTable, alias_form: str) -> dict[str, int]:
    """Maps each form to its alias; of several aliases, to the one with the highest total score.

    Aliases whose candidates were all removed have no form.
    """
    forms: dict[str, int] = {}
    total_scores: dict[str, float] = {}
    for alias in np.flatnonzero(table.has_candidates(np.arange(len(table.aliases)))).tolist():
        name = table.aliases[alias]
        if alias_form == "lemma_pos":
            name = name.rpartition(".")[0].replace("_", " ") or name
        form = make_caseless(name)
        _, scores = table.candidates(alias)
        total_score = float(scores.sum())
        if form and total_score >= total_scores.get(form, 0.0):
            forms[form] = alias
            total_scores[form] = total_score
    return forms


def open_dictionary(
    config: DisambiguationDataConfig, table: EntityTable, folder: Path
) -> AliasDictionary:
    """Opens the dictionary of a configuration; counts forms in the training lines if necessary.

    Args:
        folder: The folder of saved counts. If the training lines are missing, they are used anyway.

    Raises:
        DataError: If the training lines cannot be read, or the saved counts cannot be used.
    """
    path = None if config.train_file is None else Path(config.train_file)
    if path is not None and path.is_file():
        facts = FormFacts(hash_file(path), config.alias_form, table.fingerprint, DETECTION_VERSION)
        with hold_write_lock(folder, "the forms of aliases in the training sentences"):
            if not _has_counts(folder, facts, table):
                _write_counts(folder, facts, count_forms(path, table, config.alias_form))

    counts = _read_counts(folder, table) if (folder / MANIFEST).exists() else {}
    return AliasDictionary(table, config.alias_form, counts, config.min_mention_share)


def _has_counts(folder: Path, facts: FormFacts, table: EntityTable) -> bool:
    """Returns whether a folder has counts of these lines, for any version of the table."""
    if not (folder / MANIFEST).exists():
        return False
    saved = ArrayFolder(folder, _FORM_LAYOUT, FormFacts).facts
    is_same = msgspec.structs.replace(saved, entities=facts.entities) == facts
    return is_same and table.list_changes(saved.entities) is not None


def _read_counts(folder: Path, table: EntityTable) -> dict[str, FormCount]:
    """Reads saved counts of forms.

    Raises:
        DataError: If they are damaged, or made for another table or by another version.
    """
    arrays = ArrayFolder(folder, _FORM_LAYOUT, FormFacts)
    if table.list_changes(arrays.facts.entities) is None:
        raise DataError(
            f"{folder} has counts of the aliases of another table than {table.folder}; delete it, "
            "and name the training lines in data_config.train_file, to count again"
        )

    if arrays.facts.detection != DETECTION_VERSION:
        raise DataError(
            f"{folder} was written by another version of bsmeta, which found words in another "
            "way; delete it, and name the training lines in data_config.train_file, to "
            "count again"
        )

    form_count = check_strings(arrays, "forms")
    for name in _COUNT_ARRAYS:
        check_length(arrays, name, form_count)

    aliases = arrays["alias"]
    if len(aliases) and not (aliases.min() >= -1 and aliases.max() < len(table.aliases)):
        raise make_damaged_folder_error(
            folder, f"alias has a number that {table.folder} does not have"
        )

    counts = zip(*(arrays[name].tolist() for name in _COUNT_ARRAYS), strict=True)
    return dict(zip(Strings(arrays, "forms"), map(FormCount._make, counts), strict=True))


def count_forms(path: Path, table: EntityTable, alias_form: str) -> dict[str, FormCount]:
    """Counts the forms in training lines in two passes: as mentions, and in the text.

    Raises:
        DataError: If lines are invalid.
    """
    alias_counts: dict[str, Counter[int]] = {}
    problems = Problems(path)
    with show_file_bar(path, f"counting forms in {path.name}") as advance:
        for line in read_lines(path, problems, advance):
            for mention in line.mentions:
                form = make_caseless(line.text[mention.start : mention.end])
                alias_index = table.find_alias(mention.alias)
                if form and alias_index >= 0:
                    alias_counts.setdefault(form, Counter())[alias_index] += 1
    problems.close()

    # The dictionary finds the forms of aliases and of mentions.
    mention_counts: dict[str, FormCount] = {}
    for form, aliases in alias_counts.items():
        alias, count = aliases.most_common(1)[0]
        mention_counts[form] = FormCount(alias, count, count)
    dictionary = AliasDictionary(table, alias_form, mention_counts)

    occurrences: Counter[int] = Counter()
    with show_file_bar(path, f"counting words in {path.name}") as advance:
        for line in read_lines(path, problems, advance):
            occurrences.update(match.form for match in dictionary.find_matches(line.text))

    counts = {
        dictionary.forms[form]: FormCount(-1, 0, count) for form, count in occurrences.items()
    }
    for form, aliases in alias_counts.items():
        best_alias = mention_counts[form].alias
        in_text = counts[form].occurrences if form in counts else 0
        counts[form] = FormCount(best_alias, aliases.total(), in_text)
    return counts


def _write_counts(folder: Path, facts: FormFacts, counts: dict[str, FormCount]) -> None:
    """Writes the counts of forms, and replaces earlier ones."""
    folder.mkdir(exist_ok=True)
    has_counts = (folder / MANIFEST).exists()
    before = ArrayFolder(folder, _FORM_LAYOUT, FormFacts) if has_counts else None
    writer = ArrayWriter(folder, _FORM_LAYOUT, before)

    texts = [form.encode() for form in counts]
    writer.replace("forms", np.frombuffer(b"".join(texts), np.uint8))
    writer.replace("forms_ends", np.cumsum([len(text) for text in texts], dtype=np.int64))
    for name in _COUNT_ARRAYS:
        values: Iterable[int] = (getattr(count, name) for count in counts.values())
        writer.replace(name, np.fromiter(values, np.int32, len(counts)))
    writer.commit(facts)
