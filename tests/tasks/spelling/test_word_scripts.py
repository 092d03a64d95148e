"""Words whose script a list does not have are left alone."""

from __future__ import annotations

import pytest

from bsmeta.tasks.spelling.word_scripts import WordScripts, find_script


@pytest.mark.parametrize(
    ("character", "script"),
    [
        ("a", "LATIN"), ("ß", "LATIN"), ("Ａ", "LATIN"), ("я", "CYRILLIC"), ("α", "GREEK"),
        ("京", "CJK"), ("が", "HIRAGANA"), ("ガ", "KATAKANA"), ("ｶ", "KATAKANA"), ("ก", "THAI"),
        ("한", "HANGUL"), ("µ", ""), ("7", ""), ("'", ""), ("\u0301", ""), ("❤", ""),
    ],
)  # fmt: skip
def test_script_of_a_character(character: str, script: str) -> None:
    assert find_script(character) == script


@pytest.mark.parametrize(
    ("word", "script"),
    [
        ("cat", ""), ("naïve", ""), ("“Größe”", ""), ("α-helix", ""), ("µm", ""), ("12°", ""),
        ("—", ""), ("東京", "CJK"), ("「トヨタ」", "KATAKANA"), ("กรุงเทพ", "THAI"),
        ("привет,", "CYRILLIC"), ("我们有iPhone手机和电脑", "CJK"),
    ],
)  # fmt: skip
def test_script_that_english_words_do_not_have(word: str, script: str) -> None:
    assert WordScripts(["the", "cat", "été", "sat", "3d"]).find_unknown(word) == script


def test_a_list_has_the_scripts_of_a_hundredth_of_its_words() -> None:
    rare = WordScripts(["cat"] * 100 + ["кот"])
    assert rare.find_unknown("собака") == "CYRILLIC"
    assert WordScripts(["cat"] * 99 + ["кот"]).find_unknown("собака") == ""
    assert WordScripts(["кот"]).find_unknown("straße") == "LATIN"
    assert WordScripts(["кот"]).find_unknown("street") == "LATIN"
    assert WordScripts([]).find_unknown("собака") == ""
