"""Words of the command line without a key get one."""

from __future__ import annotations

import pytest

from bsmeta.config.composing.positional import name_positional, quote_text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pages.jsonl"], ["pages='pages.jsonl'"]),
        (["a.jsonl", "seed=1", "b.jsonl"], ["seed=1", "pages=['a.jsonl','b.jsonl']"]),
        (["a b's.jsonl"], [r"pages='a b\'s.jsonl'"]),
        (["pages=a.jsonl", "--config-dir", "mine"], ["pages=a.jsonl", "--config-dir", "mine"]),
        (["--help", "all"], ["--help", "all"]),
        ([], []),
    ],
)
def test_positional_arguments_become_the_value_of_a_key(
    arguments: list[str], expected: list[str]
) -> None:
    assert name_positional(arguments, "pages") == expected


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("text=One, two", "text='One, two'"),
        ("text=It's [1]", r"text='It\'s [1]'"),
        ("text='One, two'", "text='One, two'"),
        ('text="One, two"', 'text="One, two"'),
        ("""text='a' and 'b'""", r"text='\'a\' and \'b\''"),
        ("""text="a" and "b\"""", """text='"a" and "b"'"""),
        (r"text='It\'s'", r"text='It\'s'"),
        ("text='", r"text='\''"),
        ("text=", "text=''"),
        ("text=null", "text=null"),
        ("input=a,b", "input=a,b"),
        ("--help", "--help"),
    ],
)
def test_only_the_unquoted_value_of_the_key_is_quoted(argument: str, expected: str) -> None:
    assert quote_text([argument], "text") == [expected]
