"""Words begin and end by the rules of their script; all that matches aliases asks one function."""

from __future__ import annotations

import ast
import re
import unicodedata
from functools import cache

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.data.text.caseless import make_caseless
from bsmeta.data.text.word_edges import find_word_edges, has_word
from tests.patterns import Module, read_modules


def divide(text: str) -> list[str]:
    edges = find_word_edges(text)
    return [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("can't, 3.14 a_b", "can t 3 14 a_b"),
        ("l\u2019été \u2013 Größe", "l été Größe"),
        ("a\u0302b x\u0304, हिन्दी", "a\u0302b x\u0304 हिन्दी"),
        ("한국어 текст", "한국어 текст"),
        ("北京大学。iPhone手机5月", "北 京 大 学 iPhone 手 机 5 月"),
        ("東京タワーが\u3099は", "東 京 タ ワ ー が\u3099 は"),
        ("กรุงเทพฯ", "ก รุ ง เท พ ฯ"),
        ("น้ำ ๒๕", "น้ำ ๒๕"),
        ("ភ្នំពេញ", "ភ្នំ ពេ ញ"),
        ("ວຽງຈັນ", "ວ ຽ ງ ຈັ ນ"),
        ("မန္တလေး", "မ န္တ လေး"),
        ("Thaiไทยx\u0301Lao", "Thai ไท ย x\u0301Lao"),
        ("I❤NY", "I ❤ NY"),
        ("👩\u200d🚀👍🏽👍", "👩\u200d🚀 👍🏽 👍"),
        ("🇫🇷🇩🇪🇮", "🇫🇷 🇩🇪"),
        ("1\u20e3 2\u20e3", "1\u20e3 2\u20e3"),
        ("เ", "เ"),
        ("", ""),
    ],
)
def test_words_are_divided_by_the_rules_of_their_script(text: str, words: str) -> None:
    assert divide(text) == words.split()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_words_are_ordered_and_not_empty(text: str) -> None:
    edges = find_word_edges(text)
    assert edges == sorted(edges)
    assert len(edges) % 2 == 0
    assert all(divide(text))


@given(
    st.text(
        st.one_of(
            st.sampled_from("a1#❤👩🏽\u200d\u0301é ©—"), st.characters(exclude_categories=["Cs"])
        ),
        max_size=20,
    )
)
def test_words_do_not_depend_on_the_scripts_after_them(text: str) -> None:
    size = len(text)
    assert find_word_edges(f"{text} 京") == [*find_word_edges(text), size + 1, size + 2]


SPACED = "aZé_9ßжक\u0901ि한\u0301 .,'\u2019\u2014-\n\u00a0"


@given(st.text(st.sampled_from(SPACED), max_size=40))
def test_scripts_with_spaces_are_divided_as_by_re(text: str) -> None:
    letters = "".join("a" if unicodedata.category(sign)[0] == "M" else sign for sign in text)
    assert find_word_edges(text) == [match.start() for match in re.finditer(r"\b", letters)]


PARTS = ["北", "ガ", "か\u3099", "ー", "กิ", "เ", "น้ำ", "ន្ត", "မြ", "ລຽ", "🇫🇷", "❤\ufe0f", "a\u0301",
         "👩\u200d🚀", "👍🏽", "1", "#\u20e3", " ", "。", "\u200b", "\n"]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=15).map("".join))
def test_no_word_ends_within_a_grapheme_cluster(text: str) -> None:
    """See Unicode Standard Annex 29, by `regex`, in texts as they are searched."""
    text = make_caseless(text)
    clusters = {0, *(match.end() for match in regex.finditer(r"\X", text))}
    assert clusters >= {*find_word_edges(text)}


@pytest.mark.parametrize("text", ["a", "7", "ก", "京", "❤", "🇫🇷", "1\u20e3", "#\u20e3", "©"])
def test_a_lone_letter_digit_or_emoji_is_a_word(text: str) -> None:
    assert has_word(text)


@pytest.mark.parametrize("text", ["|", "--", "│", "■ ●", "。", "#", "", "\u0301", "🇫"])
def test_punctuation_is_not_a_word(text: str) -> None:
    assert not has_word(text)


NO_ALIASES = {
    "annotate/descriptions.py": "markup and the first words of English descriptions",
    "config/cards.py": "names of graphics cards",
    "config/composing/schema_types.py": "names of Python types",
    "quick/columns.py": "markup at the beginning of a text",
    "report/figures.py": "attributes of SVG",
    "report/markdown.py": "addresses that Markdown would link",
    "tasks/classification/classifier.py": "words as features, as published",
}
"""Files with a pattern that has `\\b`, and what it matches."""


@cache
def modules() -> list[Module]:
    return read_modules()


@pytest.mark.long
def test_only_one_file_decides_where_words_end() -> None:
    with_edges = set()
    with_automata = set()
    for module in modules():
        for node in module.nodes:
            match node:
                case ast.Constant(value=str(text)) if r"\b" in text:
                    if not isinstance(module.parents[node], ast.Expr):  # a docstring
                        with_edges.add(module.file)
                case ast.Name(id="AhoCorasick") | ast.Attribute(attr="find_matches_as_indexes"):
                    with_automata.add(module.file)
    assert with_edges - NO_ALIASES.keys() == {"data/text/word_edges.py"}
    assert NO_ALIASES.keys() <= with_edges
    assert with_automata == {"tasks/disambiguation/dictionary.py"}


def test_only_the_dictionary_matches_aliases() -> None:
    callers = {
        (module.file, node.func.id)
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in ("AliasDictionary", "find_word_edges", "open_dictionary")
    }
    assert callers == {
        ("tasks/disambiguation/data.py", "open_dictionary"),
        ("tasks/disambiguation/dictionary.py", "AliasDictionary"),
        ("tasks/disambiguation/dictionary.py", "find_word_edges"),
        ("tasks/disambiguation/mention_detection.py", "find_word_edges"),
        ("tasks/disambiguation/tagging.py", "open_dictionary"),
    }
