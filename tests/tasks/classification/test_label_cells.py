"""Labels of rows: one or several, and never one where the other was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.data.table.csv_file import Row
from bsmeta.tasks.classification.label_cells import BadLabelsError, LabelCells, RowLabels
from tests.tasks.classification.helpers import data_config

CSV = Path("table.csv")
JSON = Path("table.jsonl")


def read(path: Path, *values: Any, has_several: bool | None = None, **keys: Any) -> list[RowLabels]:
    cells = LabelCells(path, data_config(path, **keys), has_several=has_several)
    return [cells.read(value, Row(n, n + 1, [])) for n, value in enumerate(values, 1)]


def test_a_table_has_one_label_a_row_unless_it_says_otherwise() -> None:
    assert read(CSV, " a;b ", "c") == ["a;b", "c"]
    assert read(JSON, "a", " b ") == ["a", "b"]
    assert read(JSON, "a", labels="one") == ["a"]


def test_lists_and_separated_texts_are_several_labels() -> None:
    assert read(JSON, ["b", "a", "b"], [], [" c "]) == [("b", "a"), (), ("c",)]
    assert read(JSON, [], labels="several") == [()]
    assert read(CSV, "a; b;;a;", "", "c", label_separator=";") == [("a", "b"), (), ("c",)]
    assert read(CSV, "a b", label_separator=" ", labels="several") == [("a", "b")]
    assert read(JSON, "a, b", ["c, d"], label_separator=",") == [("a", "b"), ("c, d",)]


@pytest.mark.parametrize(
    ("path", "values", "keys", "message"),
    [
        (
            JSON, ["a", ["b", "c"]], {},
            r"table.jsonl: row 2 \(line 3\) has a list of labels in column 'label', but row 1 "
            r"has one label; expected the same form in every row: a text as label, or lists in all "
            r"rows \(data_config.labels=several\)",
        ),
        (
            JSON, [["a"], "b"], {},
            r"row 2 \(line 3\) has the text 'b' in column 'label', but row 1 has several labels, "
            "as a list; expected the same form in every row: a list as label, or "
            "data_config.label_separator, which divides texts into labels",
        ),
        (JSON, [["a"]], {"labels": "one"}, "but data_config.labels=one expects one label"),
        (JSON, ["a"], {"labels": "several"}, "data_config.labels=several expects several labels"),
        (JSON, [["a"]], {"has_several": False}, "but the model has one label"),
        (JSON, ["a"], {"has_several": True}, "but the model has several labels, as a list"),
        (
            CSV, ["a"], {"has_several": True},
            r'label_separator is null; .* \+overrides.data_config.label_separator=";", for example',
        ),
        (
            CSV, ["a"], {"labels": "several"},
            "data_config.label_separator in Hydra configuration: found null, expected the text "
            "between the labels of a cell, because data_config.labels=several",
        ),
        (
            CSV, ["a"], {"labels": "one", "label_separator": ";"},
            'found ";", expected null, because data_config.labels=one',
        ),
        (CSV, ["a"], {"label_separator": ""}, 'label_separator in Hydra configuration: found ""'),
    ],
)  # fmt: skip
def test_the_other_form_is_refused(
    path: Path, values: list[Any], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(path, *values, **keys)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "no label in column 'label'; expected a text or a list of texts"),
        (3, "the label in column 'label' is the number 3; write it as the text \"3\""),
        (True, "the label in column 'label' is the boolean true; write it as the text \"true\""),
        (["a", 3], "a list with a value of type int in column 'label'; expected texts"),
        (["a", " "], "a list with an empty text in column 'label'"),
        (["a", "b" * 201], "a label of more than 200 characters"),
    ],
)
def test_labels_that_cannot_be_used(value: Any, message: str) -> None:
    with pytest.raises(BadLabelsError) as error:
        read(JSON, value)
    assert str(error.value) == message
