"""Misspells the words of a clean text: the training data of all spelling tasks.

The draws about a sample depend only on (seed, epoch, sample), so noise is the same for every
number of processes and after a resume, and differs between epochs.

A map from a word to its misspellings is a JSON file, or the inverted dictionary of codespell (CC
BY-SA 3.0), which is read from the installed package and never copied. The edits of its pairs are
aligned and counted per character. What is learned is no more than: how many edits a misspelt word
has, how often each character is edited, and how. So the table applies to words, and to languages,
that have no list of misspellings.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import xxhash
from rapidfuzz.distance import Editop, Levenshtein

from bsmeta.core.errors import DataError
from bsmeta.data.seeds import derive
from bsmeta.data.text.sentences import ABBREVIATIONS, core
from bsmeta.tasks.spelling.config import CODESPELL

Misspellings = Mapping[str, tuple[str, ...]]

MOST_EDITS = 4

_ATTEMPTS = 4  # per edit: a character cannot be swapped with none

_BLOCK = 64

_STROKES = str.maketrans("øłđħŧıßæœ", "oldhtisao")  # do not decompose

Method = Literal["artificial", "realistic", "mixed"]

_SPACES = re.compile(r"(\s+)")

# URLs, e-mail addresses, host and file names, identifiers.
_NAME = re.compile(r"://|^www\.|@|\w\.\w{2,}|[\\/_]")


def load_misspellings(source: str) -> Misspellings:
    """Reads a map from words to their misspellings.

    Args:
        source: `codespell`, or the path of a JSON file: {"word": ["misspelling", ...], ...}.

    Raises:
        DataError: If codespell is not installed, or the file is not such a map.
    """
    return _read_codespell() if source == CODESPELL else _read_json(Path(source))


def invert_dictionary(lines: Iterable[str]) -> Misspellings:
    """Inverts lines of codespell's form to correction -> misspellings.

    A line is `wrong->right`, `wrong->right, other,` or `wrong->right, why it is not certain`: what
    follows the last comma is a reason, which may be empty. A correction of several words is left
    out, because a text is edited word by word.

    Raises:
        DataError: If a line is none of these.
    """
    found: dict[str, dict[str, None]] = {}
    for number, line in enumerate(lines, start=1):
        wrong, arrow, data = line.strip().partition("->")
        if not line.strip():
            continue
        if not (arrow and wrong and data):
            raise DataError(
                f"line {number} of the misspellings is {line.strip()!r}; expected `wrong->right`"
            )
        corrections = data.rpartition(",")[0] if "," in data else data
        for correction in (part.strip() for part in corrections.split(",")):
            if correction and not any(map(str.isspace, correction)):
                found.setdefault(correction, {})[wrong] = None
    return _tuples(found)


def single_words(misspellings: Misspellings) -> Misspellings:
    """The map without the misspellings that contain spaces."""
    single = (
        (word, [wrong for wrong in known if not any(map(str.isspace, wrong))])
        for word, known in misspellings.items()
    )
    return _tuples({word: known for word, known in single if known})


def _read_codespell() -> Misspellings:
    try:
        dictionary = resources.files("codespell_lib") / "data" / "dictionary.txt"
    except ModuleNotFoundError as error:
        raise DataError(
            f"misspellings: {CODESPELL} is not installed; install it (pip install codespell, or "
            "the extra `spelling`), or name a JSON file: word -> list of misspellings"
        ) from error
    return invert_dictionary(dictionary.read_text(encoding="utf-8").splitlines())


def _read_json(path: Path) -> Misspellings:
    expected = 'expected {"word": ["misspelling", ...], ...}'
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"misspellings: {path} cannot be read ({error.strerror}); expected `{CODESPELL}` or "
            "the path of a JSON file"
        ) from error
    except ValueError as error:
        raise DataError(f"misspellings: {path} is not JSON ({error}); {expected}") from error
    if not isinstance(content, dict):
        raise DataError(f"misspellings: {path} holds a {type(content).__name__}; {expected}")
    for word, known in content.items():
        if not (isinstance(known, list) and all(isinstance(wrong, str) for wrong in known)):
            raise DataError(f"misspellings: {path}: {word!r} has {known!r}; {expected}")
    return _tuples({word: filter(None, known) for word, known in content.items()})


def _tuples(found: Mapping[str, Iterable[str]]) -> Misspellings:
    return {word: tuple(known) for word, known in found.items()}


class Draws:
    """The draws about one sample in one epoch.

    They come from the raw words of PCG64, whose stream NumPy guarantees to be stable, unlike the
    methods of `Generator`; so noise is the same with every version of NumPy.

    Args:
        parts: What identifies the sample: (seed, epoch, id).
    """

    def __init__(self, *parts: int | str) -> None:
        self._words = np.random.PCG64(derive("spelling", *parts))
        self._block: list[float] = []

    def uniforms(self, count: int) -> np.ndarray:
        """Uniform numbers in [0, 1): float64 [count]."""
        return (self._words.random_raw(count) >> np.uint64(11)) * 2.0**-53

    def uniform(self) -> float:
        """A uniform number in [0, 1)."""
        if not self._block:
            self._block = self.uniforms(_BLOCK).tolist()
        return self._block.pop()

    def below(self, count: int) -> int:
        """One of 0, ..., count - 1."""
        return int(self.uniform() * count)

    def geometric(self, probability: float) -> int:
        """The number of trials until the first success."""
        trials = 1
        while self.uniform() >= probability:
            trials += 1
        return trials


class Edit(NamedTuple):
    """An edit at a position of a word.

    Attributes:
        position: Index of the edited character; -1: the start of the word.
        operation: `insert` adds `character` after the position; `swap` exchanges the character with
            the next.
        character: What is inserted, or replaces the character.
    """

    position: int
    operation: str
    character: str = ""


def align(word: str, misspelling: str) -> list[Edit]:
    """The edits that turn a word into a misspelling; neighbors that change places are one edit."""
    edits: list[Edit] = []
    is_second = False  # of the two edits of a swap
    operations = list(Levenshtein.editops(word, misspelling))
    for number, operation in enumerate(operations):
        if is_second:
            is_second = False
            continue
        source = operation.src_pos
        letter = misspelling[operation.dest_pos : operation.dest_pos + 1]
        start = _swap_start(word, misspelling, operations[number : number + 2])
        if start is not None:
            edits.append(Edit(start, "swap"))
            is_second = True
        elif operation.tag == "insert":
            edits.append(Edit(source - 1, "insert", letter))
        elif operation.tag == "delete":
            edits.append(Edit(source, "delete"))
        else:
            edits.append(Edit(source, "replace", letter))
    return edits


def _swap_start(word: str, misspelling: str, operations: list[Editop]) -> int | None:
    """The position of the first of two neighbors that these two edits exchange; None if not."""
    if len(operations) < 2:
        return None
    one, two = operations
    start, first = one.src_pos, one.dest_pos
    kinds, apart = (one.tag, two.tag), (two.src_pos - start, two.dest_pos - first)
    forms = {
        ("replace", "replace"): (1, 1),
        ("delete", "insert"): (2, 1),
        ("insert", "delete"): (1, 2),
    }
    if forms.get(kinds) != apart or misspelling[first : first + 2] != word[start : start + 2][::-1]:
        return None
    return start


@dataclass(frozen=True)
class _Outcomes:
    """How a character is edited.

    Attributes:
        rate: Edits per occurrence.
        totals: Cumulative counts of the edits.
        edits: The edits, as (operation, character).
    """

    rate: float
    totals: list[int]
    edits: list[tuple[str, str]]

    @classmethod
    def counted(cls, counts: Counter[tuple[str, str]], occurrences: int) -> _Outcomes:
        ordered = sorted(counts.items())
        totals = list(accumulate(count for _, count in ordered))
        return cls(totals[-1] / occurrences, totals, [edit for edit, _ in ordered])

    def draw(self, draws: Draws) -> tuple[str, str]:
        return self.edits[bisect_right(self.totals, draws.below(self.totals[-1]))]


class CharacterNoise:
    """Misspells words with the edits that were counted in a list of misspellings.

    Args:
        characters: How each lower-case character is edited, and the start of a word ("").
        others: How a character without an entry is edited.
        edits_per_word: Number of misspellings with 1, 2, ... edits.
    """

    def __init__(
        self, characters: dict[str, _Outcomes], others: _Outcomes, edits_per_word: list[int]
    ) -> None:
        self._characters = characters
        self._others = others
        self._edits_per_word = list(accumulate(edits_per_word))

    @classmethod
    def estimate(cls, misspellings: Misspellings) -> CharacterNoise | None:
        """Counts the edits of a map of misspellings; None if it has none to learn from."""
        occurrences: Counter[str] = Counter()
        counts: dict[str, Counter[tuple[str, str]]] = {}
        lengths: Counter[int] = Counter()
        for word, wrong in _pairs(misspellings):
            edits = align(word, wrong)
            if not 1 <= len(edits) <= MOST_EDITS:
                continue
            lengths[len(edits)] += 1
            occurrences.update(["", *word])
            for edit in edits:
                character = word[edit.position] if edit.position >= 0 else ""
                if not (character + edit.character).isalpha():
                    continue
                found = counts.setdefault(character, Counter())
                found[edit.operation, edit.character] += 1
        if not counts:
            return None
        total: Counter[tuple[str, str]] = sum(counts.values(), Counter())
        return cls(
            {c: _Outcomes.counted(found, occurrences[c]) for c, found in counts.items()},
            _Outcomes.counted(total, occurrences.total()),
            [lengths[number] for number in range(1, MOST_EDITS + 1)],
        )

    def edit(self, word: str, draws: Draws) -> str:
        """Misspells a word; only its letters are edited, each at most once."""
        is_mixed = not (word.islower() or word.isupper() or word.istitle())
        characters = [c if is_mixed else _changed(c, c.lower()) for c in word]
        outcomes = [self._outcomes(c) for c in ("", *characters)]
        weights = [o.rate if o else 0.0 for o in outcomes]
        wanted = 1 + bisect_right(self._edits_per_word, draws.below(self._edits_per_word[-1]))
        for _ in range(_ATTEMPTS * wanted):
            totals = list(accumulate(weights))
            at = bisect_right(totals, draws.uniform() * totals[-1])
            outcome = outcomes[at] if at < len(outcomes) else None
            if outcome is None:
                break  # every letter is edited
            wanted -= _apply(characters, Edit(at - 1, *outcome.draw(draws)), weights)
            if not wanted:
                break
        return with_case_of(word, "".join(characters))

    def _outcomes(self, character: str) -> _Outcomes | None:
        if character and not character.isalpha():
            return None
        return self._characters.get(character.lower(), self._others if character else None)


def _apply(characters: list[str], edit: Edit, weights: list[float]) -> bool:
    """Applies an edit, if it is possible there; what it touches has no weight afterwards.

    Args:
        characters: The characters of the word; each may have become none or more.
        edit: The edit.
        weights: The weight of the start of the word, and of each character.
    """
    at = edit.position
    touched = [at]
    if edit.operation == "insert" and at < 0:
        characters[0] = edit.character + characters[0]
    elif edit.operation == "insert":
        characters[at] += edit.character
    elif edit.operation == "replace":
        characters[at] = edit.character
    elif edit.operation == "delete":
        if not any(map(str.isalpha, "".join(characters[:at] + characters[at + 1 :]))):
            return False
        characters[at] = characters[at][:-1]
    else:
        touched = [at, at + 1]
        if at + 1 == len(characters) or not weights[at + 2]:
            return False
        if characters[at] == characters[at + 1]:
            return False
        characters[at], characters[at + 1] = characters[at + 1], characters[at]
    for position in touched:
        weights[position + 1] = 0.0
    return True


def with_accent(word: str, draws: Draws) -> str:
    """Puts an accent on one of the letters of a word that can have one; of Latin letters."""
    places = [at for at, letter in enumerate(word) if letter.lower() in ACCENTED]
    if not places:
        return word
    at = places[draws.below(len(places))]
    letters = ACCENTED[word[at].lower()]
    return word[:at] + letters[draws.below(len(letters))] + word[at + 1 :]


def plain(word: str) -> str:
    """A word without accents."""
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFKD", word.translate(_STROKES))
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def with_case_of(word: str, misspelling: str) -> str:
    """Carries the case of a word over to its misspelling."""
    if len(word) > 1 and word.isupper():
        return "".join(_changed(character, character.upper()) for character in misspelling)
    if word[0].isupper():
        return _changed(misspelling[:1], misspelling[:1].upper()) + misspelling[1:]
    return misspelling


def _changed(character: str, cased: str) -> str:
    """The character in the other case, where that is one character, too."""
    return cased if len(cased) == 1 else character


def _pairs(misspellings: Misspellings) -> Iterator[tuple[str, str]]:
    """The pairs of words of a map, in lower case."""
    for word, known in single_words(misspellings).items():
        yield from ((word.lower(), wrong.lower()) for wrong in known)


def _accented() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for code in (*range(0xE0, 0x180), *range(0x1E00, 0x1F00)):  # Latin letters in Unicode
        letter = chr(code)
        base = plain(letter)
        if letter.islower() and len(base) == 1 and base.isascii():
            found.setdefault(base, []).append(letter)
    return found


ACCENTED = _accented()


"""The letters with accents that each lower-case letter may become."""


@dataclass(frozen=True)
class Noise:
    """How words are misspelt.

    Attributes:
        method: `artificial`: random edits of characters; `realistic`: known misspellings, or
            character noise for a word that has none; `mixed`: either, by `artificial_share`.
        misspellings: Known misspellings of words (not used by `artificial`).
        characters: Character noise for words without known misspellings; None: they stay.
        word_probability: Probability that a word is edited.
        artificial_share: Share of artificial edits where `method` is `mixed`.
        edit_probability: p of the geometric distribution of the number of edits of a word.
        lost_case: Probability that a misspelled word is in lower case (realistic edits).
        accent_share: Share of the realistic errors in which a letter gets an accent.
        slip_share: Share of the realistic errors that are slips: random edits in lower case.
        slip_probability: p of the geometric distribution of the number of edits of a slip.
        clean_share: Share of the samples that are not edited.
        keep_word_count: Whether the number of words (separated by whitespace) must not change:
            misspellings that contain spaces are then not used.
        letters: The letters that artificial edits insert.
    """

    method: Method = "mixed"
    misspellings: Misspellings = field(default_factory=dict, repr=False)
    characters: CharacterNoise | None = field(default=None, repr=False)
    word_probability: float = 0.2
    artificial_share: float = 0.2
    edit_probability: float = 0.8
    lost_case: float = 0.0
    accent_share: float = 0.0
    slip_share: float = 0.0
    slip_probability: float = 0.55
    clean_share: float = 0.0
    keep_word_count: bool = True
    letters: str = string.ascii_letters

    def corrupt(self, text: str, *, seed: int, epoch: int, sample: int | str) -> str:
        """Misspells words of a text.

        Args:
            text: The clean text.
            seed: The seed of the run.
            epoch: The epoch; each has other noise.
            sample: What identifies the sample in the data set.

        Returns:
            The text with the same whitespace, and other words.
        """
        draws = Draws(seed, epoch, sample)
        if draws.uniform() < self.clean_share:
            return text
        parts = _SPACES.split(text)
        words = range(0, len(parts), 2)
        for number in np.flatnonzero(draws.uniforms(len(words)) < self.word_probability).tolist():
            parts[2 * number] = self._edit(parts[2 * number], draws)
        return "".join(parts)

    def _edit(self, word: str, draws: Draws) -> str:
        """Misspells one word, without the punctuation around it."""
        span = core(word)
        if span is None or not is_editable(word):
            return word
        edited = self._edit_core(word[span.start : span.end], draws)
        return word[: span.start] + edited + word[span.end :]

    def _edit_core(self, word: str, draws: Draws) -> str:
        if self.method == "artificial" or (
            self.method == "mixed" and draws.uniform() < self.artificial_share
        ):
            return artificial_edits(
                word, draws.geometric(self.edit_probability), draws, letters=self.letters
            )
        edited = self._realistic(word, draws)
        is_lost = self.lost_case > 0 and draws.uniform() < self.lost_case
        return edited.lower() if is_lost and edited != word else edited

    def _realistic(self, word: str, draws: Draws) -> str:
        """An accent, a slip, or a misspelling, by their shares."""
        others = self.accent_share + self.slip_share
        drawn = draws.uniform() if others > 0 else 1.0
        if drawn < self.accent_share:
            return with_accent(word, draws)
        if drawn < others:
            count = draws.geometric(self.slip_probability)
            slipped = artificial_edits(word.lower(), count, draws, letters=self._small_letters)
            return with_case_of(word, slipped)
        return self._misspell(word, draws)

    @cached_property
    def _small_letters(self) -> str:
        return "".join(dict.fromkeys(self.letters.lower()))

    def _misspell(self, word: str, draws: Draws) -> str:
        """A known misspelling of a word, or one like those of other words."""
        known = self._usable.get(word) or self._usable.get(word.lower())
        if known:
            return with_case_of(word, known[draws.below(len(known))])
        return self.characters.edit(word, draws) if self.characters else word

    @cached_property
    def misspellings_hash(self) -> str:
        """Identifies the map of misspellings, whose file or package may change."""
        return xxhash.xxh3_64_hexdigest(repr(sorted(self.misspellings.items())).encode())

    @cached_property
    def _usable(self) -> Misspellings:
        return single_words(self.misspellings) if self.keep_word_count else self.misspellings


def is_editable(word: str) -> bool:
    """Whether a word is spelled: not one without letters, a number, URL, address, file name,
    identifier, or abbreviation with its full stop (`Mr.`).
    """
    span = core(word)
    if span is None or any(map(str.isdigit, word)) or _NAME.search(word):
        return False
    has_stop = word[span.end : span.end + 1] == "."
    return not (has_stop and word[span.start : span.end].lower() in ABBREVIATIONS)


def word_labels(corrupt: str, correct: str) -> list[int]:
    """Per word of two texts of equal length in words: 1 if they differ, otherwise 0."""
    pairs = zip(corrupt.split(), correct.split(), strict=True)
    return [int(wrong != right) for wrong, right in pairs]


def artificial_edits(word: str, count: int, draws: Draws, *, letters: str) -> str:
    """Makes random edits: each inserts, deletes, swaps or replaces a letter.

    No position is edited twice; characters that are not letters stay, and at least one letter
    remains. Edits for which no position is left are not made.
    """
    characters = list(word)
    free = list(map(str.isalpha, word))
    for _ in range(count):
        places = {name: found for name, found in _places(characters, free).items() if found}
        if not places:
            break
        operation = list(places)[draws.below(len(places))]
        at = places[operation][draws.below(len(places[operation]))]
        if operation == "insert":
            characters.insert(at, letters[draws.below(len(letters))])
            free.insert(at, False)
        elif operation == "delete":
            del characters[at], free[at]
        elif operation == "swap":
            characters[at : at + 2] = characters[at + 1], characters[at]
            free[at : at + 2] = False, False
        else:
            others = letters.replace(characters[at], "") or letters
            characters[at] = others[draws.below(len(others))]
            free[at] = False
    return "".join(characters)


def _places(characters: list[str], free: list[bool]) -> dict[str, list[int]]:
    """Where a word can be edited by each operation."""
    last = len(free) - 1
    untouched = [at for at, is_free in enumerate(free) if is_free]
    gaps = [
        at for at in range(len(free) + 1) if (at == 0 or free[at - 1]) and (at > last or free[at])
    ]
    swaps = [
        at
        for at in untouched
        if at < last and free[at + 1] and characters[at] != characters[at + 1]
    ]
    deletable = untouched if sum(map(str.isalpha, characters)) > 1 else []
    return {"insert": gaps, "delete": deletable, "swap": swaps, "replace": untouched}
