"""Misspells the words of a clean text: the training data of all spelling tasks.

The draws about a sample depend only on (seed, epoch, sample), so noise is the same for every
number of processes and after a resume, and differs between epochs.

A map from a word to its misspellings is a JSON file, or the inverted dictionary of codespell (CC
BY-SA 3.0), which is read from the installed package and never copied. The edits of its pairs are
aligned and counted per character. What is learned is no more than: how many edits a misspelled word
has, how often each character is edited, and how. So the table applies to words, and to languages,
that have no list of misspellings.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from rapidfuzz.distance import Editop, Levenshtein

from bsmeta.core.errors import DataError
from bsmeta.core.parsing import parse_json
from bsmeta.data import derive
from bsmeta.data.text.sentences import ABBREVIATIONS, core
from bsmeta.tasks.spelling.config import CODESPELL, NoiseConfig

Misspellings = Mapping[str, tuple[str, ...]]

MOST_EDITS = 4
_ATTEMPTS = 4  # per edit: a character cannot be swapped with none
_LONGEST_WORD = 100  # characters of a misspelling from which edits are counted
_BLOCK = 64
_STROKES = str.maketrans("øłđħŧıßæœ", "oldhtisao")  # do not decompose
_SPACES = re.compile(r"(\s+)")
# URLs, e-mail addresses, host and file names, identifiers.
_NAME = re.compile(r"://|^www\.|@|\w\.\w{2,}|[\\/_]")


def load_misspellings(source: str) -> Misspellings:
    """Reads a map from words to their misspellings: that of codespell, or of a JSON file,
    {"word": ["misspelling", ...], ...}.

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
    return {word: tuple(known) for word, known in found.items()}


def single_words(misspellings: Misspellings) -> Misspellings:
    """The map without the misspellings that contain spaces."""
    single = {
        word: tuple(wrong for wrong in known if not any(map(str.isspace, wrong)))
        for word, known in misspellings.items()
    }
    return {word: known for word, known in single.items() if known}


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
        content = parse_json(path.read_text(encoding="utf-8"))
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
    return {word: tuple(filter(None, known)) for word, known in content.items()}


class Draws:
    """The draws about one sample in one epoch, (seed, epoch, id).

    They come from the raw words of PCG64, whose stream NumPy guarantees to be stable, unlike the
    methods of `Generator`; so noise is the same with every version of NumPy.
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
    """An edit at a position of a word: `insert` adds a character after the position, `swap`
    exchanges the one there with the next.
    """

    position: int  # of the edited character; -1: the start of the word
    operation: str
    character: str = ""  # what is inserted, or replaces the character


def align(word: str, misspelling: str) -> list[Edit]:
    """The edits that turn a word into a misspelling; neighbors that change places are one edit."""
    edits: list[Edit] = []
    operations = list(Levenshtein.editops(word, misspelling))
    while operations:
        operation = operations.pop(0)
        at, letter = operation.src_pos, misspelling[operation.dest_pos : operation.dest_pos + 1]
        if operations and _is_swap(word, misspelling, operation, operations[0]):
            edits.append(Edit(at, "swap"))
            operations.pop(0)
        elif operation.tag == "insert":
            edits.append(Edit(at - 1, "insert", letter))
        else:
            edits.append(Edit(at, operation.tag, letter if operation.tag == "replace" else ""))
    return edits


def _is_swap(word: str, misspelling: str, one: Editop, two: Editop) -> bool:
    """Whether two edits exchange the neighbors at the position of the first."""
    start, first = one.src_pos, one.dest_pos
    apart = {
        ("replace", "replace"): (1, 1),
        ("delete", "insert"): (2, 1),
        ("insert", "delete"): (1, 2),
    }.get((one.tag, two.tag))
    is_exchange = misspelling[first : first + 2] == word[start : start + 2][::-1]
    return is_exchange and apart == (two.src_pos - start, two.dest_pos - first)


class _Outcomes:
    """How a character is edited: the edits, as (operation, character), with their counts, and
    their rate per occurrence.
    """

    def __init__(self, counts: Counter[tuple[str, str]], occurrences: int) -> None:
        self._edits = sorted(counts)
        self._totals = list(accumulate(counts[edit] for edit in self._edits))
        self.rate = self._totals[-1] / occurrences

    def draw(self, draws: Draws) -> tuple[str, str]:
        return self._edits[bisect_right(self._totals, draws.below(self._totals[-1]))]


class CharacterNoise:
    """Misspells words with the edits that were counted in a list of misspellings."""

    def __init__(
        self, characters: dict[str, _Outcomes], others: _Outcomes, edits_per_word: list[int]
    ) -> None:
        self._characters = characters  # of each in lower case, and of the start of a word ("")
        self._others = others
        self._edits_per_word = list(accumulate(edits_per_word))  # of words with 1, 2, ... edits

    @classmethod
    def estimate(cls, misspellings: Misspellings) -> CharacterNoise | None:
        """Counts the edits of a map of misspellings; None if it has none to learn from."""
        occurrences: Counter[str] = Counter()
        counts: dict[str, Counter[tuple[str, str]]] = {}
        lengths: Counter[int] = Counter()
        pairs = ((w.lower(), x.lower()) for w, k in single_words(misspellings).items() for x in k)
        for word, wrong in pairs:
            if max(len(word), len(wrong)) > _LONGEST_WORD:  # aligning takes the square of it
                continue
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
            {c: _Outcomes(found, occurrences[c]) for c, found in counts.items()},
            _Outcomes(total, occurrences.total()),
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
            if outcome is None:  # every letter is edited
                break
            wanted -= _apply(characters, Edit(at - 1, *outcome.draw(draws)), weights)
            if not wanted:
                break
        return with_case_of(word, "".join(characters))

    def _outcomes(self, character: str) -> _Outcomes | None:
        if character and not character.isalpha():
            return None
        return self._characters.get(character.lower(), self._others if character else None)


def _apply(characters: list[str], edit: Edit, weights: list[float]) -> bool:
    """Applies an edit to the characters of a word (each may have become none or more), if it is
    possible there; what it touches has no weight afterwards. The first weight is of the start.
    """
    at, operation, character = edit
    if operation == "insert" and at < 0:
        characters[0] = character + characters[0]
    elif operation == "insert":
        characters[at] += character
    elif operation == "replace":
        characters[at] = character
    elif operation == "delete":
        if not any(map(str.isalpha, "".join(characters[:at] + characters[at + 1 :]))):
            return False
        characters[at] = characters[at][:-1]
    else:
        is_last = at + 1 == len(characters)
        if is_last or not weights[at + 2] or characters[at] == characters[at + 1]:
            return False
        characters[at], characters[at + 1] = characters[at + 1], characters[at]
        weights[at + 2] = 0.0
    weights[at + 1] = 0.0
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


def _accented() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for code in (*range(0xE0, 0x180), *range(0x1E00, 0x1F00)):  # Latin letters in Unicode
        letter = chr(code)
        base = plain(letter)
        if letter.islower() and len(base) == 1 and base.isascii():
            found.setdefault(base, []).append(letter)
    return found


ACCENTED = _accented()  # the letters with accents that each lower-case letter may become


class Noise:
    """Misspells words; with `keep_word_count`, misspellings that contain spaces are not used."""

    def __init__(
        self, config: NoiseConfig, misspellings: Misspellings, *, keep_word_count: bool = True
    ) -> None:
        self._config = config
        self.misspellings = misspellings
        self._usable = single_words(misspellings) if keep_word_count else misspellings
        learns = config.learned_characters
        self._characters = CharacterNoise.estimate(misspellings) if learns else None
        self._small_letters = "".join(dict.fromkeys(config.letters.lower()))

    def corrupt(self, text: str, *, seed: int, epoch: int, sample: int | str) -> str:
        """Misspells words of a clean text, and leaves its whitespace."""
        draws = Draws(seed, epoch, sample)
        if draws.uniform() < self._config.clean_share:
            return text
        parts = _SPACES.split(text)
        words = range(0, len(parts), 2)
        is_edited = draws.uniforms(len(words)) < self._config.word_probability
        for number in np.flatnonzero(is_edited).tolist():
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
        config = self._config
        if config.method == "artificial" or (
            config.method == "mixed" and draws.uniform() < config.artificial_share
        ):
            count = draws.geometric(config.edit_probability)
            return artificial_edits(word, count, draws, letters=config.letters)
        edited = self._realistic(word, draws)
        is_lost = config.lost_case > 0 and draws.uniform() < config.lost_case
        return edited.lower() if is_lost and edited != word else edited

    def _realistic(self, word: str, draws: Draws) -> str:
        """An accent, a slip, or a misspelling, by their shares."""
        config = self._config
        others = config.accent_share + config.slip_share
        drawn = draws.uniform() if others > 0 else 1.0
        if drawn < config.accent_share:
            return with_accent(word, draws)
        if drawn < others:
            count = draws.geometric(config.slip_probability)
            slipped = artificial_edits(word.lower(), count, draws, letters=self._small_letters)
            return with_case_of(word, slipped)
        known = self._usable.get(word) or self._usable.get(word.lower())
        if known:
            return with_case_of(word, known[draws.below(len(known))])
        return self._characters.edit(word, draws) if self._characters else word

    @cached_property
    def misspellings_hash(self) -> str:
        """Identifies the map of misspellings, whose file or package may change."""
        return xxhash.xxh3_64_hexdigest(repr(sorted(self.misspellings.items())).encode())


def is_editable(word: str) -> bool:
    """Whether a word is spelled: not one without letters, a number, URL, address, file name,
    identifier, or abbreviation with its full stop (`Mr.`).
    """
    span = core(word)
    if span is None or any(map(str.isdigit, word)) or _NAME.search(word):
        return False
    has_stop = word[span.end : span.end + 1] == "."
    return not (has_stop and word[span.start : span.end].lower() in ABBREVIATIONS)


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
