r"""Character classes by script, for sets in regular expressions (`[...]`).

`re` does not support Unicode properties, so the classes are written as ranges, which
`tests/data/text/test_scripts.py` compares with the properties in the Unicode Standard.
"""

from __future__ import annotations

HAN_AND_KANA = (
    r"\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00016fe3\U00016ff2-\U00016ff6\U00020000-\U0003fffd"
    r"\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
    r"\U0001aff0-\U0001b16f"
    r"\u3105-\u312f\u31a0-\u31bf"
)
"""Letters of Chinese and Japanese: Han, Hiragana, Katakana with its length marks, Bopomofo."""

KANA_MARKS = r"\u3099\u309a\uff9e\uff9f"
"""Voiced sound marks, which belong to the kana before them."""

_THAI_AND_LAO = (
    r"\u0e01-\u0e30\u0e32\u0e45\u0e46"
    r"\u0e81-\u0eb0\u0eb2\u0ebd\u0ec6\u0edc-\u0edf"
)
_MYANMAR = (
    r"\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081"
    r"\u108e\ua9e0-\ua9e4\ua9e6-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa76\uaa7a\uaa7e\uaa7f"
)
_KHMER = r"\u1780-\u17b3\u17d7\u17dc"
_TAI = (  # Tai Le, New Tai Lue, Tai Tham, Tai Viet, Ahom
    r"\u1950-\u1974\u1980-\u19b4\u19b8\u19b9\u19bb-\u19c9\u1a20-\u1a54\u1aa7"
    r"\uaa80-\uaaaf\uaab1\uaaba\uaabd\uaac0\uaac2\uaadb-\uaadd\U00011700-\U0001171a"
    r"\U00011740-\U00011746"
)
DICTIONARY_LETTERS = _THAI_AND_LAO + _MYANMAR + _KHMER + _TAI
"""Letters of scripts in which only a dictionary can separate words (`Line_Break=Complex_Context`),
except the letters in `LEADING_VOWELS` and `DICTIONARY_MARKS`."""

LEADING_VOWELS = r"\u0e40-\u0e44\u0ec0-\u0ec4\u19b5-\u19b7\u19ba\uaab5\uaab6\uaab9\uaabb\uaabc"
"""Vowels of these scripts that are written before their consonant (`Logical_Order_Exception`)."""

DICTIONARY_MARKS = (
    r"\u0e31\u0e33-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb3-\u0ebc\u0ec8-\u0ece"
    r"\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064\u1067-\u106d\u1071-\u1074"
    r"\u1082-\u108d\u108f\u109a-\u109d\ua9e5\uaa7b-\uaa7d"
    r"\u17b4-\u17d3\u17dd\u1a55-\u1a7c"
    r"\uaab0\uaab2-\uaab4\uaab7\uaab8\uaabe\uaabf\uaac1\U0001171d-\U0001172b"
)
"""Vowels and marks of these scripts that belong to the consonant before them."""

STACKERS = r"\u1039\u17d2\u1a60"
"""Marks of these scripts that stack the next consonant below the previous one."""

UNSPACED_LETTERS = HAN_AND_KANA + DICTIONARY_LETTERS + LEADING_VOWELS
"""Letters of scripts that do not separate words with spaces."""

VARIATION_SELECTORS = r"\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
"""Choose the glyph of the character before them: an emoji in color, a variant of an ideograph."""

PICTOGRAPHS = (
    r"\xa9\xae\u203c\u2049\u2122\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u23cf\u23e9-\u23f3"
    r"\u23f8-\u23fa\u24c2\u24dc\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u27bf\u2934\u2935"
    r"\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    r"\U0001f000-\U0001f1e5\U0001f200-\U0001f3fa\U0001f400-\U0001faff"
)
"""Single-character emoji, and other symbols in their blocks. (U+24DC is the lower case of
U+24C2.)"""

FLAG_LETTERS = r"\U0001f1e6-\U0001f1ff"
"""Regional indicators; two of them are a flag."""

KEYCAP = r"\u20e3"
"""Turns a digit, `#` or `*` before it into an emoji."""

EMOJI_PARTS = KEYCAP + VARIATION_SELECTORS + r"\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
"""Modify the emoji before them: keycaps, selectors, skin tones, tags of flags."""

COARSE_RANGES = r"\u0e01-\u109f\u1780-\u1aaf\u20e3\u3005-\uabff\uf900-\U000e01ef"
"""A few ranges that include all unspaced letters, selectors, flag letters and keycaps, among other
characters. Searching for these ranges takes a fraction of the time of searching for the classes."""
