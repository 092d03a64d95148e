"""Overrides of the command line: quoted for Hydra's grammar, and repeated keys."""

from __future__ import annotations

import pytest

from bsmeta.config.composing.overrides import describe_repetitions, quote_home, quote_mapping


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("out_dir=~/run", "out_dir='~/run'"),
        ("data_config.train_file=[~/a,'~/b',~c/d]", "data_config.train_file=['~/a','~/b','~c/d']"),
        ('prompt="about 5,~10 items"', 'prompt="about 5,~10 items"'),
        (r"prompt='it\'s =~ [~x,~y]',~/z", r"prompt='it\'s =~ [~x,~y]','~/z'"),
        ("~seed", "~seed"),
    ],
)
def test_only_paths_that_begin_with_a_tilde_are_quoted(override: str, expected: str) -> None:
    assert quote_home(override) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('{"yes": 1, "no": 3}', '{"yes": 1, "no": 3}'),
        ("{'yes': 1, no: {on: off}}", '{"yes": 1, "no": {"on": "off"}}'),
        ('{"it\'s": "a: b", x: true}', '{"it\\\'s": "a: b", "x": true}'),
    ],
)
def test_mappings_with_quoted_keys_become_text(value: str, text: str) -> None:
    assert quote_mapping(f"key={value}") == f"key='{text}'"


@pytest.mark.parametrize(
    "override",
    ["key={yes: 1}", "key=['a', 'b']", "key={a: 'b'}", "key='{\"a\": 1}'", 'key={"a": 1', "~key"],
)
def test_other_values_are_unchanged(override: str) -> None:
    assert quote_mapping(override) == override


def test_a_repeated_key_is_described() -> None:
    given = ["seed=1", "learning_rate=1", "+seed=2", "learning_rate=1", "~seed", "seed=2"]
    assert [*describe_repetitions(given)] == [
        "seed is given twice on the command line: 2 counts, not 1"
    ]
