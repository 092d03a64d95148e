"""Mentions are found in running text of every script: all of them, at their offsets, no others."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.data.text.caseless import make_caseless
from bsmeta.tasks.disambiguation.dictionary import AliasDictionary
from bsmeta.tasks.disambiguation.entities import EntityTable
from tests.tasks.disambiguation.test_dictionary import found, table_of


class Language(NamedTuple):
    """Names and other words of a language, each after a comma, and what stands between words."""

    separator: str
    aliases: str
    others: str


LANGUAGES = {
    "English": Language(
        " ",
        "paris,new york,new york city,king,st. john's,c++,x-ray",
        "The,parish,of,thinking,york's,newer —,cities,“and”",
    ),
    "French": Language(" ", "orléans,côte d'azur,île,été", "La ville,d’,étés,était,îles,orléanais"),
    "Russian": Language(" ", "москва,санкт-петербург,ёлка,йошкар-ола", "Это,город,москвич,ёлкам"),
    "Hindi": Language(" ", "दिल्ली,मुंबई,नई दिल्ली", "यह,शहर,दिल्लीवासी,में है।"),
    "Arabic": Language(" ", "القاهرة,مصر,بغداد", "في,مدينة,المصرية,هي"),
    "Korean": Language(" ", "서울,부산,한국", "나는,서울에서,산다"),
    "Chinese": Language(
        "",
        "北京,北京大学,上海,中华人民共和国,李小龙,c罗",
        "我们,昨天在,的,去了。,是一座城,,和《,》这里有iPhone手机,2019年",
    ),
    "traditional Chinese": Language("", "臺北,臺灣大學,高雄,龍", "我們,昨天在,的,去了。,和"),
    "Japanese": Language(
        "",
        "東京,東京タワー,トヨタ,ガンダム,さくら,ソニー,がん,スティーブ・ジョブズ",
        "私は,昨日,の,に行きました。,と,「,」です,2019年,という会社",
    ),
    "Thai": Language(
        "",
        "กรุงเทพมหานคร,กรุงเทพ,เชียงใหม่,น้ำตก,ประเทศไทย,ไทย",
        "ฉัน,ไปที่,เมื่อวาน,และ,อยู่ใน,๒๕๖๒,มีคน, ",
    ),
    "Lao": Language("", "ວຽງຈັນ,ຫຼວງພະບາງ,ນ້ຳງື່ມ", "ຂ້ອຍ,ໄປ,ແລະ,ຢູ່,ມື້ວານ"),
    "Khmer": Language("", "ភ្នំពេញ,អង្គរវត្ត,សៀមរាប,កម្ពុជា", "ខ្ញុំ,ទៅ,និង,នៅ,ម្សិលមិញ,។ "),
    "Burmese": Language("", "ရန်ကုန်,မန္တလေး,ပုဂံ", "သူ,သွား,တယ်။,နှင့်,မှာ"),
    "emoji": Language("", "❤️,🇫🇷,👩\u200d🚀,👍,☕ shop", " I ,👩,🇩🇪,👍🏽,—,☕,京"),
}

_BEFORE_SECOND_LETTER = re.compile("(?<=^[一-鿿ァ-ヶ])(?=[一-鿿ァ-ヶ])")


def break_lines(word: str) -> str:
    """Puts line breaks beside spaces, and after the first letter of a Chinese or Japanese word."""
    return _BEFORE_SECOND_LETTER.sub("\n", word.replace(" ", "  \n "))


SPELLINGS: dict[str, Callable[[str], str]] = {
    "as in the table": str,
    "composed": lambda word: unicodedata.normalize("NFC", word),
    "decomposed": lambda word: unicodedata.normalize("NFD", word),
    "in capitals": str.upper,
    "over two lines": break_lines,
    "without variation selectors": lambda word: word.replace("\ufe0f", ""),
}

_DETECTORS: dict[str, tuple[EntityTable, AliasDictionary]] = {}


@pytest.fixture
def detectors(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[EntityTable, AliasDictionary]]:
    if not _DETECTORS:
        for name, language in LANGUAGES.items():
            table = table_of(tmp_path_factory.mktemp("table"), *language.aliases.split(","))
            _DETECTORS[name] = table, AliasDictionary(table)
    return _DETECTORS


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", LANGUAGES)
def test_all_mentions_of_running_text_are_found(
    name: str, spelling: str, detectors: dict[str, tuple[EntityTable, AliasDictionary]]
) -> None:
    language = LANGUAGES[name]
    table, detector = detectors[name]
    aliases = language.aliases.split(",")

    @settings(max_examples=25)
    @given(
        st.lists(st.sampled_from([*aliases, *aliases, *language.others.split(",")]), max_size=40)
    )
    def check(words: list[str]) -> None:
        text = ""
        mentions = []
        for word in words:
            spelled = SPELLINGS[spelling](word)
            if word in aliases:
                mentions.append((len(text), len(text) + len(spelled), make_caseless(word)))
            text += spelled + language.separator
        assert [
            (start, end, table.aliases[alias]) for start, end, alias in detector(text)
        ] == mentions

    check()


def test_offsets_are_those_of_the_text_as_given(tmp_path: Path) -> None:
    table = table_of(tmp_path, "東京都", "Café", "น้ำตก", "❤️", "葛飾", "ភ្នំពេញ")
    text = "昨日は東\n京都へ、cafe\u0301でน\u0e49\u0e33ตก❤❤\ufe0f葛\U000e0100飾ភ្នំ\u200bពេញ。"
    assert found(AliasDictionary(table), table, text) == [
        ("東\n京都", "東京都"),
        ("cafe\u0301", "caf\u00e9"),
        ("น\u0e49\u0e33ตก", "น้ำตก"),
        ("❤", "❤"),
        ("❤\ufe0f", "❤"),
        ("葛\U000e0100飾", "葛飾"),
        ("ភ្នំ\u200bពេញ", "ភ្នំពេញ"),
    ]


def test_mentions_end_where_letters_with_their_marks_do(tmp_path: Path) -> None:
    table = table_of(tmp_path, "か", "กร", "เ", "ភ", "👩", "🇷🇩", "1")
    text = "か\u3099 กรุง เท ភ្នំ 👩\u200d🚀 🇫🇷🇩🇪 1\u20e3"
    assert found(AliasDictionary(table), table, text) == []


def test_paragraphs_of_chinese_end_words(tmp_path: Path) -> None:
    table = table_of(tmp_path, "北京", "东北")
    assert found(AliasDictionary(table), table, "河北\n\n京城，东\n\n北") == []
