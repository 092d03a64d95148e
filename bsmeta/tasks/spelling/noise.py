"""Misspells the words of a clean text: the training data of all spelling tasks.

The draws about a sample depend only on (seed, epoch, sample), so noise is the same for every
number of processes and after a resume, and differs between epochs.

A map from a word to its misspellings is a JSON file, or the inverted dictionary of codespell (CC
BY-SA 3.0), which is read from the installed package and never copied. The edits of its pairs are
aligned and counted per character. Only three things are learned: how many edits a misspelled word
has, how often each character is edited, and how. So the table applies to words, and to languages,
that have no list of misspellings.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from bsmeta.data import derive_seed
from bsmeta.data.text.sentences import ABBREVIATIONS, find_word_core
from bsmeta.tasks.spelling.config import CODESPELL, NoiseConfig
from bsmeta.tasks.spelling.word_kinds import has_digit_or_symbol, is_short_acronym

Misspellings = Mapping[str, tuple[str, ...]]

MAX_LEARNED_EDITS = 4  # of a misspelling; others with more are not learned from
_MAX_ATTEMPTS = 4  # per edit; some edits are impossible, such as a swap at the end of a word
_MAX_WORD_CHARS = 100  # characters of a word or misspelling; edits of longer ones are not counted
_BLOCK_DRAWS = 64  # uniform numbers that are drawn together
_STROKES = str.maketrans("øłđħŧıßæœ", "oldhtisao")  # letters without a Unicode decomposition
_SPACES = re.compile(r"(\s+)")
# URLs, e-mail addresses, host and file names, identifiers.
_NAME = re.compile(r"://|^www\.|\w\.\w{2,}")


def load_misspellings(source: str) -> Misspellings:
    """Reads a map from words to their misspellings.

    Args:
        source: `codespell` (the dictionary of that package), or a JSON file,
            {"word": ["misspelling", ...], ...}.

    Raises:
        DataError: If codespell is not installed, or the file is not such a map.
    """
    return _read_codespell() if source == CODESPELL else _read_json(Path(source))


def invert_dictionary(lines: Iterable[str]) -> Misspellings:
    """Inverts a dictionary in codespell's format to correction -> misspellings.

    A line is `wrong->right`, `wrong->right, other,` or `wrong->right, why it is not certain`: the
    part after the last comma is a reason, which may be empty. A correction of several words is left
    out, because a text is edited word by word.

    Raises:
        DataError: If a line has another format.
    """
    inverted: dict[str, dict[str, None]] = {}
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
                inverted.setdefault(correction, {})[wrong] = None
    return {word: tuple(misspellings) for word, misspellings in inverted.items()}


def select_single_words(misspellings: Misspellings) -> Misspellings:
    """Returns the map without the misspellings that contain spaces."""
    single: dict[str, tuple[str, ...]] = {}
    for word, word_misspellings in misspellings.items():
        without_spaces = tuple(
            wrong for wrong in word_misspellings if not any(map(str.isspace, wrong))
        )
        if without_spaces:
            single[word] = without_spaces
    return single


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
    for word, value in content.items():
        if not (isinstance(value, list) and all(isinstance(wrong, str) for wrong in value)):
            raise DataError(f"misspellings: {path}: {word!r} has {value!r}; {expected}")
    return {word: tuple(filter(None, value)) for word, value in content.items()}


class Draws:
    """A stream of random draws that is the same with every version of NumPy.

    The draws come from the raw words of PCG64, whose stream NumPy guarantees to be stable, unlike
    the methods of `Generator`.

    Args:
        parts: The key of the stream: for noise, the seed, the epoch and the sample.
    """

    def __init__(self, *parts: int | str) -> None:
        self._words = np.random.PCG64(derive_seed("spelling", *parts))
        self._block: list[float] = []

    def uniforms(self, count: int) -> np.ndarray:
        """Draws uniform numbers in [0, 1): float64 [count]."""
        # The high 53 bits of each word: the precision of a float64.
        return (self._words.random_raw(count) >> np.uint64(11)) * 2.0**-53

    def uniform(self) -> float:
        """Draws a uniform number in [0, 1)."""
        if not self._block:
            self._block = self.uniforms(_BLOCK_DRAWS).tolist()
        return self._block.pop()

    def below(self, count: int) -> int:
        """Draws one of 0, ..., count - 1."""
        return int(self.uniform() * count)

    def geometric(self, probability: float) -> int:
        """Draws the number of trials until the first success."""
        trials = 1
        while self.uniform() >= probability:
            trials += 1
        return trials


class Edit(NamedTuple):
    """An edit at a position of a word.

    `insert` adds a character after the position; `swap` exchanges the character there with the
    next.
    """

    position: int  # of the edited character; -1: the start of the word
    operation: str
    character: str = ""  # the inserted character, or the replacement


def align_misspelling(word: str, misspelling: str) -> list[Edit]:
    """Returns the edits that turn a word into a misspelling; a swap of neighbors is one edit."""
    edits: list[Edit] = []
    operations = list(Levenshtein.editops(word, misspelling))
    while operations:
        operation = operations.pop(0)
        position = operation.src_pos
        letter = misspelling[operation.dest_pos : operation.dest_pos + 1]

        if operations and _is_swap(word, misspelling, operation, operations[0]):
            edits.append(Edit(position, "swap"))
            operations.pop(0)
        elif operation.tag == "insert":
            edits.append(Edit(position - 1, "insert", letter))
        elif operation.tag == "replace":
            edits.append(Edit(position, "replace", letter))
        else:
            edits.append(Edit(position, operation.tag))
    return edits


def _is_swap(word: str, misspelling: str, first: Editop, second: Editop) -> bool:
    """Returns whether two edits exchange the neighbors at the position of the first."""
    begin = first.src_pos
    new_begin = first.dest_pos
    if misspelling[new_begin : new_begin + 2] != word[begin : begin + 2][::-1]:
        return False

    # Alignments of a swap, with the distances of the second edit in both words.
    distances = {
        ("replace", "replace"): (1, 1),
        ("delete", "insert"): (2, 1),
        ("insert", "delete"): (1, 2),
    }
    distance = (second.src_pos - begin, second.dest_pos - new_begin)
    return distances.get((first.tag, second.tag)) == distance


class _Outcomes:
    """The empirical distribution of the edits of a character.

    Args:
        counts: The count of each edit, as (operation, character).
        occurrences: The count of the character itself.

    Attributes:
        rate: Edits per occurrence of the character.
    """

    def __init__(self, counts: Counter[tuple[str, str]], occurrences: int) -> None:
        self._edits = sorted(counts)
        self._totals = list(accumulate(counts[edit] for edit in self._edits))
        self.rate = self._totals[-1] / occurrences

    def draw(self, draws: Draws) -> tuple[str, str]:
        """Draws an edit, as (operation, character)."""
        return self._edits[bisect_right(self._totals, draws.below(self._totals[-1]))]


class CharacterNoise:
    """Misspells words with the edits counted in a list of misspellings.

    Args:
        characters: The edits of each lower-case character, and of the start of a word ("").
        others: The edits of all characters together, for those that `characters` lacks.
        edits_per_word: The numbers of misspellings with 1, 2, ... edits.
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
        edits_per_word: Counter[int] = Counter()

        for right, edits in _align_misspellings(misspellings):
            edits_per_word[len(edits)] += 1
            occurrences.update(["", *right])
            for edit in edits:
                character = right[edit.position] if edit.position >= 0 else ""
                if (character + edit.character).isalpha():
                    character_counts = counts.setdefault(character, Counter())
                    character_counts[edit.operation, edit.character] += 1

        if not counts:
            return None

        total: Counter[tuple[str, str]] = sum(counts.values(), Counter())
        return cls(
            characters={
                character: _Outcomes(character_counts, occurrences[character])
                for character, character_counts in counts.items()
            },
            others=_Outcomes(total, occurrences.total()),
            edits_per_word=[edits_per_word[number] for number in range(1, MAX_LEARNED_EDITS + 1)],
        )

    def edit(self, word: str, draws: Draws) -> str:
        """Misspells a word; only its letters are edited, each at most once."""
        characters = list(word)
        if word.islower() or word.isupper() or word.istitle():
            characters = [_change_case(character, character.lower()) for character in word]

        # Position 0 is the start of the word; the characters follow.
        outcomes = [self._find_outcomes(character) for character in ("", *characters)]
        weights = [outcome.rate if outcome else 0.0 for outcome in outcomes]
        missing = 1 + bisect_right(self._edits_per_word, draws.below(self._edits_per_word[-1]))
        for _ in range(_MAX_ATTEMPTS * missing):
            totals = list(accumulate(weights))
            position = bisect_right(totals, draws.uniform() * totals[-1])
            outcome = outcomes[position] if position < len(outcomes) else None
            if outcome is None:  # every letter is edited
                break

            edit = Edit(position - 1, *outcome.draw(draws))
            if _apply_edit(characters, edit, weights):
                missing -= 1
            if not missing:
                break
        return copy_case(word, "".join(characters))

    def _find_outcomes(self, character: str) -> _Outcomes | None:
        """Returns the edits of a character ("": the start of a word); None if it has none."""
        if not character:
            return self._characters.get("")
        if not character.isalpha():
            return None
        return self._characters.get(character.lower(), self._others)


def _align_misspellings(misspellings: Misspellings) -> Iterator[tuple[str, list[Edit]]]:
    """Yields each word in lower case with the edits of one of its misspellings.

    Misspellings without edits, or with more than `MAX_LEARNED_EDITS`, are left out.
    """
    for word, word_misspellings in select_single_words(misspellings).items():
        right = word.lower()
        for misspelling in word_misspellings:
            wrong = misspelling.lower()
            # The time of an alignment grows with the square of the length.
            if max(len(right), len(wrong)) > _MAX_WORD_CHARS:
                continue

            edits = align_misspelling(right, wrong)
            if 1 <= len(edits) <= MAX_LEARNED_EDITS:
                yield right, edits


def _apply_edit(characters: list[str], edit: Edit, weights: list[float]) -> bool:
    """Applies an edit to the characters of a word in place, if it is possible there.

    Args:
        characters: One item for each character of the word; an item that has been edited may be
            empty, or several characters.
        weights: The chances of the start of the word and of each character to be edited. Those of
            the edited characters are set to 0.

    Returns:
        Whether the edit was possible.
    """
    position, operation, character = edit
    if operation == "insert" and position < 0:
        characters[0] = character + characters[0]
    elif operation == "insert":
        characters[position] += character
    elif operation == "replace":
        characters[position] = character
    elif operation == "delete":
        remaining = "".join(characters[:position] + characters[position + 1 :])
        if not any(map(str.isalpha, remaining)):
            return False
        characters[position] = characters[position][:-1]
    else:
        following = position + 1
        if following == len(characters) or not weights[following + 1]:
            return False
        if characters[position] == characters[following]:
            return False
        swapped = characters[following], characters[position]
        characters[position : following + 1] = swapped
        weights[following + 1] = 0.0

    weights[position + 1] = 0.0
    return True


def add_accent(word: str, draws: Draws) -> str:
    """Replaces a random letter of a word by an accented form; a word without one is unchanged."""
    positions = [position for position, letter in enumerate(word) if letter.lower() in ACCENTED]
    if not positions:
        return word

    position = positions[draws.below(len(positions))]
    letters = ACCENTED[word[position].lower()]
    return word[:position] + letters[draws.below(len(letters))] + word[position + 1 :]


def remove_accents(word: str) -> str:
    """Removes the accents of a word."""
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFKD", word.translate(_STROKES))
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def copy_case(word: str, misspelling: str) -> str:
    """Returns a misspelling in the case of the word: upper case, capitalized, or as it is."""
    if len(word) > 1 and word.isupper():
        return "".join(_change_case(character, character.upper()) for character in misspelling)
    if word[0].isupper():
        return _change_case(misspelling[:1], misspelling[:1].upper()) + misspelling[1:]
    return misspelling


def _change_case(character: str, cased: str) -> str:
    """Returns `cased`, or the character itself where its other case is several (`ß`: `SS`)."""
    return cased if len(cased) == 1 else character


def _list_accented_letters() -> dict[str, list[str]]:
    """Lists the accented Latin letters for each lower-case ASCII letter."""
    letters: dict[str, list[str]] = {}
    for code in (*range(0xE0, 0x180), *range(0x1E00, 0x1F00)):  # Latin letters in Unicode
        letter = chr(code)
        base = remove_accents(letter)
        if letter.islower() and len(base) == 1 and base.isascii():
            letters.setdefault(base, []).append(letter)
    return letters


ACCENTED = _list_accented_letters()


class Noise:
    """Misspells the words of clean texts.

    Args:
        config: The kinds of errors and their shares.
        misspellings: The known misspellings of words.
        keep_word_count: Whether misspellings that contain spaces are left out.
    """

    def __init__(
        self, config: NoiseConfig, misspellings: Misspellings, *, keep_word_count: bool = True
    ) -> None:
        self._config = config
        self.misspellings = misspellings
        self._usable = select_single_words(misspellings) if keep_word_count else misspellings
        self._characters: CharacterNoise | None = None
        if config.learned_characters:
            self._characters = CharacterNoise.estimate(misspellings)
        self._small_letters = "".join(dict.fromkeys(config.letters.lower()))

    def corrupt(self, text: str, *, seed: int, epoch: int, sample: int | str) -> str:
        """Misspells words of a clean text; its whitespace is unchanged.

        Args:
            seed, epoch, sample: The key of the draws.
        """
        draws = Draws(seed, epoch, sample)
        if draws.uniform() < self._config.clean_share:
            return text

        # Words are at even positions, the white space between them at odd ones.
        parts = _SPACES.split(text)
        word_count = len(range(0, len(parts), 2))
        is_edited = draws.uniforms(word_count) < self._config.word_probability
        for number in np.flatnonzero(is_edited).tolist():
            parts[2 * number] = self._misspell_word(parts[2 * number], draws)
        return "".join(parts)

    def _misspell_word(self, word: str, draws: Draws) -> str:
        """Misspells one word, without the punctuation around it."""
        span = find_word_core(word)
        if span is None or not is_editable(word):
            return word
        edited = self._misspell_core(word[span.start : span.end], draws)
        return word[: span.start] + edited + word[span.end :]

    def _misspell_core(self, word: str, draws: Draws) -> str:
        config = self._config
        if config.method == "artificial" or (
            config.method == "mixed" and draws.uniform() < config.artificial_share
        ):
            count = draws.geometric(config.edit_probability)
            return make_artificial_edits(word, count, draws, letters=config.letters)

        edited = self._make_realistic_error(word, draws)
        is_lost = config.lost_case > 0 and draws.uniform() < config.lost_case
        return edited.lower() if is_lost and edited != word else edited

    def _make_realistic_error(self, word: str, draws: Draws) -> str:
        """Adds an accent, makes a slip, or takes a known misspelling, by their shares."""
        config = self._config
        accents_and_slips = config.accent_share + config.slip_share
        draw = draws.uniform() if accents_and_slips > 0 else 1.0
        if draw < config.accent_share:
            return add_accent(word, draws)
        if draw < accents_and_slips:
            count = draws.geometric(config.slip_probability)
            slipped = make_artificial_edits(word.lower(), count, draws, letters=self._small_letters)
            return copy_case(word, slipped)

        misspellings = self._usable.get(word) or self._usable.get(word.lower())
        if misspellings:
            return copy_case(word, misspellings[draws.below(len(misspellings))])
        return self._characters.edit(word, draws) if self._characters else word

    @cached_property
    def misspellings_hash(self) -> str:
        """Hash of the misspellings: the same name may stand for another version of them."""
        return xxhash.xxh3_64_hexdigest(repr(sorted(self.misspellings.items())).encode())


def is_editable(word: str) -> bool:
    """Returns whether a word may be misspelled.

    False for words without letters, words with digits or symbols (`C++`), URLs, addresses, file
    names, identifiers, acronyms of up to five letters, and abbreviations with their full stop
    (`Mr.`).
    """
    span = find_word_core(word)
    if span is None or has_digit_or_symbol(word) or _NAME.search(word):
        return False

    core = word[span.start : span.end]
    has_stop = word[span.end : span.end + 1] == "."
    return not (is_short_acronym(core) or (has_stop and core.lower() in ABBREVIATIONS))


def make_artificial_edits(word: str, count: int, draws: Draws, *, letters: str) -> str:
    """Makes up to `count` random edits: each inserts, deletes, swaps or replaces a letter.

    No position is edited twice; characters other than letters are unchanged, and at least one
    letter remains.
    """
    characters = list(word)
    is_free = list(map(str.isalpha, word))
    for _ in range(count):
        positions_by_operation = {
            operation: positions
            for operation, positions in _list_free_positions(characters, is_free).items()
            if positions
        }
        if not positions_by_operation:
            break

        operation = list(positions_by_operation)[draws.below(len(positions_by_operation))]
        positions = positions_by_operation[operation]
        position = positions[draws.below(len(positions))]
        if operation == "insert":
            characters.insert(position, letters[draws.below(len(letters))])
            is_free.insert(position, False)
        elif operation == "delete":
            del characters[position]
            del is_free[position]
        elif operation == "swap":
            swapped = characters[position + 1], characters[position]
            characters[position : position + 2] = swapped
            is_free[position : position + 2] = False, False
        else:
            others = letters.replace(characters[position], "") or letters
            characters[position] = others[draws.below(len(others))]
            is_free[position] = False
    return "".join(characters)


def _list_free_positions(characters: list[str], is_free: list[bool]) -> dict[str, list[int]]:
    """Lists the positions at which each operation is possible."""
    last = len(is_free) - 1
    free = [position for position, position_is_free in enumerate(is_free) if position_is_free]

    # A letter may be inserted between free neighbors, and at a free end of the word.
    gaps = [
        position
        for position in range(len(is_free) + 1)
        if (position == 0 or is_free[position - 1]) and (position > last or is_free[position])
    ]
    swaps = [
        position
        for position in free
        if position < last
        and is_free[position + 1]
        and characters[position] != characters[position + 1]
    ]
    deletable = free if sum(map(str.isalpha, characters)) > 1 else []
    return {"insert": gaps, "delete": deletable, "swap": swaps, "replace": free}
