"""Reads the label column of a table, which has one label per row, or several.

Several labels are a list (JSON lines, Parquet), or a cell of a CSV file that
`data_config.label_separator` divides; an empty list or cell has none. `label_separator`, or else
the first row, determines the form of all rows; `data_config.labels` must agree. A row of the other
form is an error and never converted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bsmeta.core.errors import ConfigurationError, DataError, raise_problems
from bsmeta.data.table.csv_file import Row
from bsmeta.data.table.records import describe_number, is_record_file
from bsmeta.tasks.classification.config import (
    ONE,
    SEVERAL,
    ClassificationDataConfig,
    find_label_problems,
)

MAX_LABEL_CHARS = 200
"""Maximum characters of a label."""

_MAX_SHOWN_CHARS = 40  # of a label in a message

RowLabels = str | tuple[str, ...]
"""The label of a row, or its distinct labels in the order of the row."""


class BadLabelsError(DataError):
    """Raised for a row with invalid labels, which `on_bad_row` may skip."""


class LabelCells:
    """Reads the label column of a table.

    Args:
        path: The table.
        config: The configuration of the table.
        has_several: Whether rows must have several labels, as the model predicts; None: the
            configuration or the first row decides.

    Attributes:
        has_several: Whether rows have several labels; None until the first row, if it decides.

    Raises:
        ConfigurationError: If `label_separator` does not agree with the table or with `labels`.
    """

    def __init__(
        self, path: Path, config: ClassificationDataConfig, *, has_several: bool | None = None
    ) -> None:
        self.has_several = has_several
        self._path = path
        self._column = config.label_column
        self._separator = config.label_separator
        self._reason = "the model has"
        if has_several is None:
            self._set_form(config, is_csv=not is_record_file(path))
        elif has_several and self._separator is None and not is_record_file(path):
            raise ConfigurationError(
                f"{path} is read for a model of several labels, and data_config.label_separator is "
                "null; expected the text between the labels of a cell: "
                '+overrides.data_config.label_separator=";", for example',
                ["data_config.label_separator"],
            )

    def _set_form(self, config: ClassificationDataConfig, *, is_csv: bool) -> None:
        """Decides by the configuration whether rows have several labels, if it determines this."""
        raise_problems([*find_label_problems(config, is_csv=is_csv)])

        if config.labels in (ONE, SEVERAL):
            self.has_several = config.labels == SEVERAL
            self._reason = f"data_config.labels={config.labels} expects"
        elif self._separator is not None:
            self.has_several = True
            self._reason = f"data_config.label_separator={self._separator!r} expects"
        elif is_csv:
            self.has_several = False

    def read(self, value: Any, row: Row) -> RowLabels:
        """Reads the label or the labels of a row.

        Args:
            value: The cell of the label column; None if the row has no such column.

        Returns:
            The label, which may be empty; or the labels, if rows have several.

        Raises:
            BadLabelsError: If the labels are invalid.
            ConfigurationError: If the row has several labels and the table one, or the reverse.
        """
        number = describe_number(value)
        if number is not None:
            text = json.dumps(value)
            raise BadLabelsError(
                f"the label in column {self._column!r} is {number}; write it as the text "
                f'"{text[:_MAX_SHOWN_CHARS]}"'
            )
        if not isinstance(value, (str, list)):
            expected = "a text" if self.has_several is False else "a text or a list of texts"
            raise BadLabelsError(f"no label in column {self._column!r}; expected {expected}")

        is_list = isinstance(value, list)
        if self.has_several is None:
            self.has_several = is_list
            self._reason = f"row {row.number:,} has"
        if is_list and not self.has_several:
            fix = "a text as label, or lists in all rows (data_config.labels=several)"
            raise self._make_form_error(row, "a list of labels", "one label", fix)
        if self.has_several and not is_list and self._separator is None:
            fix = "a list as label, or data_config.label_separator, which divides texts into labels"
            raise self._make_form_error(
                row, f"the text {value[:_MAX_SHOWN_CHARS]!r}", "several labels, as a list", fix
            )

        if not self.has_several:
            return str(value).strip()
        if not is_list:
            parts = (part.strip() for part in str(value).split(self._separator))
            value = [part for part in parts if part]  # a separator at the end adds an empty part
        return tuple(dict.fromkeys(map(self._check_entry, value)))

    def _check_entry(self, entry: Any) -> str:
        """Returns one of several labels without surrounding white space.

        Raises:
            BadLabelsError: If it is not a text, empty, or too long.
        """
        if not isinstance(entry, str):
            kind = type(entry).__name__
            raise BadLabelsError(
                f"a list with a value of type {kind} in column {self._column!r}; expected texts"
            )
        label = entry.strip()
        if not label:
            raise BadLabelsError(f"a list with an empty text in column {self._column!r}")
        if len(label) > MAX_LABEL_CHARS:
            raise BadLabelsError(f"a label of more than {MAX_LABEL_CHARS} characters")
        return label

    def _make_form_error(self, row: Row, value: str, expected: str, fix: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._path}: row {row.number:,} (line {row.line:,}) has {value} in column "
            f"{self._column!r}, but {self._reason} {expected}; expected the same form in every "
            f"row: {fix}",
            ["data_config.labels"],
        )
