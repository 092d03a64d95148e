"""What of a token is spelled: no correction and no flag touches punctuation."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from bsmeta.tasks.spelling.candidates import Candidates
from bsmeta.tasks.spelling.config import SecConfig, SedSequenceConfig, SedWordsConfig
from bsmeta.tasks.spelling.correction import CandidateCorrection
from bsmeta.tasks.spelling.corrections import apply_corrections
from bsmeta.tasks.spelling.detector import Ranker, RankerConfig
from bsmeta.tasks.spelling.inputs import CandidateInputs
from bsmeta.tasks.spelling.lexicon import Lexicon, build_lexicon
from bsmeta.tasks.spelling.task import SequenceDetection, SpellingTask, WordDetection
from bsmeta.tasks.spelling.word_kinds import KINDS
from bsmeta.tasks.spelling.word_parts import find_word_runs, is_word, measure_elision
from tests.conftest import REPOSITORY
from tests.shared import shared_data
from tests.tasks.spelling.helpers import arguments
from tests.tasks.training import TRAIN, Launch

PREDICT = REPOSITORY / "bsmeta" / "predict.py"

WORDS = "yes then empire empires or burnt badly word words don't it's well known Berlin café"
COUNTED = [
    f"{WORDS} naïve straße the cat сон мир कमल",
    # What the counted texts have is not a candidate if it is more than a word.
    'yes—then yes"then word(s burnt)badly em"pire the/cat',
] * 2
MISSPELLINGS = {"don't": ("dont", "do'nt", "don;t"), 'em"pire': ("empyre",), "a lot": ("alot",)}


def make_lexicon() -> Lexicon:
    return build_lexicon(COUNTED, [], MISSPELLINGS)


@pytest.mark.parametrize(
    ("token", "runs"),
    [
        ("don't", ["don't"]),
        ("«don’t»,", ["don’t"]),
        ('"Yes"—then', ["Yes", "then"]),
        ("(burnt)—badly", ["burnt", "badly"]),
        ('"Empire"s', ["Empire", "s"]),
        ("well-known--or", ["well-known", "or"]),
        ("'tis the dogs'", ["tis", "the", "dogs"]),
        ("cafe\u0301s", ["cafe\u0301s"]),
        ("कमल।", ["कमल"]),
        ("a\u200db\u00adc", ["a", "b", "c"]),
        ("3rd x²", ["rd", "x"]),
        ("\u0301a —", ["a"]),
        ("", []),
    ],
)
def test_the_words_of_a_token(token: str, runs: list[str]) -> None:
    assert [token[start:end] for start, end in find_word_runs(token)] == runs
    assert is_word(token) is (runs == [token])


@pytest.mark.parametrize(
    ("word", "length"),
    [("L'Or", 2), ("d’Artagnan", 2), ("qu'il", 3), ("O'Brien", 2), ("don't", 0), ("I'm", 0)],
)
def test_an_elided_word_is_not_spelled_with_the_next(word: str, length: int) -> None:
    assert measure_elision(word) == length


@pytest.mark.parametrize(
    ("token", "part"),
    [
        ('"Yes"—thn', ('"Yes"—', "thn", "")),
        ("(burnt)—badlyy", ("(burnt)—", "badlyy", "")),
        ('"Emprie"s', ('"', "Emprie", '"s')),
        ("L'Or", ("L'", "Or", "")),
        ("l’orr,", ("l’", "orr", ",")),
        ("do'nt", ("", "do'nt", "")),  # a listed misspelling
        ("it's", ("", "it", "'s")),
        ("yes—then", ("", "yes", "—then")),
        ("well-knwon", ("well-", "knwon", "")),
        ("x-ry", ("", "x-ry", "")),
        ("U.S", ("U.S", "", "")),
        ("x", ("", "x", "")),
        ("(12)", ("(12)", "", "")),
    ],
)
def test_the_part_of_a_token_that_is_compared(token: str, part: tuple[str, str, str]) -> None:
    parsed = Candidates(make_lexicon()).find_spelled_part(token)
    assert (parsed.before, parsed.core, parsed.after) == part


def candidates_of(token: str) -> list[str]:
    (texts,) = CandidateInputs(make_lexicon()).build_rows([[token]]).texts
    return texts[2:]


def test_candidates_are_words() -> None:
    assert "don't" in candidates_of("dont")
    assert "don’t" in candidates_of("dno’t")  # in the typography of the text
    assert "don't" not in candidates_of("dno’t")
    assert "a lot" in candidates_of("alot")
    assert 'em"pire' not in candidates_of("empyre")
    assert not {*candidates_of("yesthen")} & {"yes—then", 'yes"then'}
    assert {"Empire", "empire"} <= {*candidates_of("Emprie")}
    assert '"Empire"s' in candidates_of('"Emprie"s')


def test_the_same_characters_are_no_candidate() -> None:
    for token in ("İstanbul", "cafe\u0301s", "don’t", "Straße"):
        same = unicodedata.normalize("NFC", token)
        assert same not in [unicodedata.normalize("NFC", text) for text in candidates_of(token)]


def punctuation(text: str) -> str:
    """The characters of a text that are not part of a word, without white space."""
    framed = f" {text} "
    kept = []
    for at in range(1, len(framed) - 1):
        before, char, after = framed[at - 1 : at + 2]
        is_joiner = char in "'’-" and is_letter(before) and after.isalpha()
        if not (is_letter(char) or is_joiner or char.isspace()):
            kept.append(char)
    return "".join(kept)


def is_letter(char: str) -> bool:
    return unicodedata.category(char)[0] in "LM"


def test_what_counts_as_punctuation_here() -> None:
    assert punctuation("\"Yes\"—then L'Or, well-known- (3) dogs' a--b") == '""—,-(3)\'--'


def load_task(task: SpellingTask) -> nn.Module:
    """A model of random weights with the words above, as the task loads it from disk; a corrector
    makes every correction that it has a candidate for.
    """
    inputs = CandidateInputs(make_lexicon())
    torch.manual_seed(0)
    config = RankerConfig(features=inputs.features, width=8, layers=1, heads=1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        Ranker(config).save_pretrained(folder)
        inputs.write(folder)
        thresholds = dict.fromkeys(KINDS, 0.0)
        (folder / "correction.json").write_text(json.dumps({"thresholds": thresholds}))
        return task.load(folder).eval()


CORRECTOR = CandidateCorrection(SecConfig())
CORRECTING = load_task(CORRECTOR)
WORD_DETECTOR = WordDetection(SedWordsConfig())
SEQUENCE_DETECTOR = SequenceDetection(SedSequenceConfig())
DETECTING = load_task(WORD_DETECTOR), load_task(SEQUENCE_DETECTOR)
CHARACTERS = st.one_of(
    st.sampled_from("'\"’‘“”«»()[]{}—–-‐/.,;:!?…_&@#*~  \n\t\r\u00ad\u200d\u00a0\u2028"),
    st.sampled_from("0123456789abcdeéßİıАяक्ष日本あ한\u0301\u0300"),
    st.characters(exclude_categories=["Cs"]),
)
PIECES = st.one_of(
    st.sampled_from(
        ["Yes", "thn", "(burnt)", "Emprie", "L'Or", "dno’t", "alot", "berlin", "nave", "cafe\u0301"]
    ),
    st.text(CHARACTERS, max_size=4),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@settings(max_examples=300, deadline=None)
@example('He said "Yes"—then left.')
@example('the (burnt)—badly "Empire"s of L\'Or')
@given(TEXTS)
def test_no_candidate_changes_punctuation(text: str) -> None:
    tokens = text.split()
    if not tokens:
        return
    rows = CandidateInputs(make_lexicon()).build_rows([tokens])
    for token, texts in zip(tokens, rows.texts, strict=True):
        for candidate in texts[2:]:
            assert punctuation(candidate) == punctuation(token)


@settings(max_examples=200, deadline=None)
@example('He said "Yes"—then left.')
@given(TEXTS)
def test_no_correction_changes_punctuation_or_white_space(text: str) -> None:
    (changes,) = CORRECTOR.changes(CORRECTING, [text])
    assert [text[change.start : change.end] for change in changes] == [one.text for one in changes]
    corrected = apply_corrections(text, changes)
    assert punctuation(corrected) == punctuation(text)
    spaces = [char for char in text if char.isspace()]
    added = sum(change.correction.count(" ") for change in changes)  # words that were one
    assert len([char for char in corrected if char.isspace()]) == len(spaces) + added


@settings(max_examples=200, deadline=None)
@example('He said "Yes"—thn left 3.')
@given(TEXTS)
def test_flags_are_places_of_words(text: str) -> None:
    (words,) = WORD_DETECTOR.changes(DETECTING[0], [text])
    (sequences,) = SEQUENCE_DETECTOR.changes(DETECTING[1], [text])
    for flag in (*words, *sequences):
        assert text[flag.start : flag.end] == flag.text == flag.text.strip()
    for flag in words:
        assert len(flag.text.split()) == 1
        assert any(map(is_letter, flag.text))
        assert not any(map(str.isdigit, flag.text))


@pytest.mark.parametrize("group", ["wikidump.realistic", "wikidump.artificial"])
def test_real_lines_keep_their_punctuation(group: str) -> None:
    """Every candidate of every word of real text, with errors and without."""
    folder = shared_data("spelling") / "sec" / group / "dev"
    lines = [
        line for name in ("correct", "corrupt")
        for line in (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    ]  # fmt: skip
    words = build_lexicon(lines, [], MISSPELLINGS)
    tokens = [*dict.fromkeys(token for line in lines for token in line.split())]
    with_punctuation = [token for token in tokens if punctuation(token.strip("\"'().,:;!?"))]
    rows = CandidateInputs(words).build_rows([with_punctuation])
    assert len(with_punctuation) > 1000
    for token, texts in zip(with_punctuation, rows.texts, strict=True):
        for candidate in texts[2:]:
            assert punctuation(candidate) == punctuation(token)


@pytest.mark.long
def test_the_program_leaves_punctuation_as_it_is(launch: Launch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    launch(TRAIN, *arguments("sec", tmp_path, run))
    text = "The \"villiage\"—becuase (until)—tommorow: L'Or's “lettrs”s.\n"
    (tmp_path / "in.txt").write_text(text, encoding="utf-8")
    done = launch(PREDICT, f"checkpoint={run}", f"input={tmp_path}/in.txt", "show=json")
    record = json.loads(done.stdout)
    assert record["text"] == text
    assert record["changes"]
    assert punctuation(record["corrected"]) == punctuation(text)
