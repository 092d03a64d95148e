"""Runs evaluations from Python, and reads their reports as values and tables."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.api.configuration import Overrides, check_overrides, list_override_arguments
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.errors import ConfigurationError, DataError, name_missing_extras
from bsmeta.core.keys import refuse_out_of_bounds
from bsmeta.core.parsing import parse_json
from bsmeta.report.page import HTML_NAME

if TYPE_CHECKING:
    import pandas

    from bsmeta.api.models import Checkpoint

EVALUATION = "evaluation.json"
"""The file name of the results of an evaluation."""


def evaluate_model(
    checkpoint: Checkpoint | Sequence[Checkpoint],
    overrides: Overrides | None = None,
    *,
    show_output: bool = True,
) -> Report:
    """Evaluates a trained model of any task on held-out data, as `bsmeta evaluate` does.

    Args:
        checkpoint: A run, a checkpoint, or a model, as for `bsmeta.load`; or a list of language
            models to compare.
        overrides: Keys of `bsmeta evaluate` to change: `{"max_documents": 100}`.
        show_output: Whether to print the tables of the report.

    Raises:
        UserError: If a model or the data cannot be used.
    """
    from bsmeta.tasks.evaluation import evaluate_checkpoints  # imports transformers

    check_overrides(overrides)
    if isinstance(checkpoint, (str, os.PathLike)):
        names: str | list[str] = os.fspath(checkpoint)
    else:
        names = [os.fspath(name) for name in checkpoint]
    arguments = list_override_arguments({"checkpoint": names, **(overrides or {})})
    config = compose_command_line(EvaluateConfig, "evaluate", arguments)
    refuse_out_of_bounds(config)

    output = nullcontext() if show_output else redirect_stdout(io.StringIO())
    with name_missing_extras(), output:
        folders = evaluate_checkpoints(config)
    if len(folders) != 1:
        reports = ", ".join(str(folder) for folder in folders)
        raise ConfigurationError(
            f"checkpoint={names}: models of this task have a report each: {reports}; expected one "
            "checkpoint"
        )
    return Report(folders[0])


class Report:
    """The report of an evaluation, read from its files.

    Attributes:
        folder: The folder of the report.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<bsmeta.Report {self.folder}: {' '.join(self.answers)}>"

    @cached_property
    def results(self) -> dict[str, Any]:
        """All metrics, the content of `evaluation.json`.

        Raises:
            UserError: If the file is missing or damaged.
        """
        file = self.folder / EVALUATION
        try:
            values = parse_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read: {error}") from error
        if not isinstance(values, dict):
            raise DataError(f"{file}: expected a JSON object")
        return values

    @property
    def answers(self) -> list[str]:
        """The sentences that summarize the report; the first one is the answer."""
        return [str(answer) for answer in self.results["answers"]]

    @property
    def page(self) -> Path:
        """Path of the report as an HTML page."""
        return self.folder / HTML_NAME

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a table with a row of metrics for each compared system.

        The rows are the comparisons of a language model, the model and the baselines of a
        classifier, a detector or a corrector (for each test set), or the slices of mentions of a
        disambiguator.

        Raises:
            UserError: If pandas is not installed.
        """
        with name_missing_extras():
            import pandas
        return pandas.json_normalize(list(_list_rows(self.results)))

    def _repr_html_(self) -> str:
        """Returns the HTML page of the report in an iframe, which notebooks display."""
        try:
            content = self.page.read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(f"{self.page} cannot be read: {error}") from error
        return (
            f'<iframe srcdoc="{html.escape(content)}" sandbox style="width: 100%; height: 40em; '
            f'border: 0" title="{html.escape(str(self.folder))}"></iframe>'
        )


def _list_rows(results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the metrics of each compared system in a report of any task.

    A report has `models` (language models), `test_sets` (spelling), `systems` (classification) or
    `slices` (disambiguation).
    """
    for model in results.get("models", []):
        for comparison in model["comparisons"]:
            yield {"checkpoint": model["checkpoint"], **comparison}
    for test_set in results.get("test_sets", []):
        for system, values in test_set["systems"].items():
            yield {"test_set": test_set["test_set"], "system": system, **values}
    if isinstance(results.get("systems"), Mapping):
        for system, values in results["systems"].items():
            yield {"system": system, **values}
    yield from results.get("slices", [])
