"""Predicts with a trained model: reads records, and writes them with their predictions.

python bsmeta/predict.py checkpoint=runs/leanings input=new.csv output=predicted.csv
python bsmeta/predict.py checkpoint=runs/leanings input=new.jsonl.gz output=predicted.jsonl
python bsmeta/predict.py checkpoint=runs/sed_words input=letter.txt
python bsmeta/predict.py task=spelling text='I recieved your letter.'

The output is written to OUTPUT.part, row by row, and renamed at the end. To
resume after an interruption, run the same command again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.config.composing.positional import quote_text
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.building import READY_TASKS
from bsmeta.config.programs.predicting import PredictConfig
from bsmeta.config.task_entry import check_program
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import replace_atomically
from bsmeta.core.process import run_stoppable
from bsmeta.core.progress import show_progress_bar
from bsmeta.core.secrets import redact_values
from bsmeta.core.terminal import write_data
from bsmeta.data.io.file_start import explain_not_utf8
from bsmeta.data.table.csv_file import BadRows
from bsmeta.data.table.records import Record, flatten_record, read_records
from bsmeta.ready.models import find_ready_model
from bsmeta.tasks import TASKS

if TYPE_CHECKING:
    from bsmeta.api.models import Predictor

RECORD_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".parquet")
"""Suffixes of files of records; an input with any other suffix is read as text."""
BYTE_ORDER_MARK = "\ufeff"
MAX_SHOWN_LABELS = 5
"""Number of labels with the highest probabilities that are shown for a text."""


def main(config: PredictConfig) -> int:
    """Predicts all records, or a text; returns the exit code, 75 if a signal ended it."""
    config = replace(config, checkpoint=choose_checkpoint(config))
    makes_table = config.output is not None and config.output.endswith(".csv")
    if config.spreadsheet_safe and not makes_table:
        raise ConfigurationError(
            f"spreadsheet_safe=true has no effect on output={config.output}; expected an output "
            "that ends in .csv",
            ["spreadsheet_safe"],
        )

    if config.text is not None:
        predict_text(config, config.text, "text")
        return 0
    if config.input is not None and not config.input.endswith(RECORD_SUFFIXES):
        predict_text(config, *read_text(config.input))
        return 0

    if config.input is None:
        raise ConfigurationError(
            "input is not set; expected a file of records or of text, or text=TEXT", ["input"]
        )
    if config.output is None:
        raise ConfigurationError("output is not set; expected a .csv or .jsonl file", ["output"])
    source = Path(config.input)
    output = Path(config.output)
    return run_stoppable(
        lambda: predict_records(config, source, output), continuation=f"{output}.part"
    )


def choose_checkpoint(config: PredictConfig) -> str:
    """Returns the checkpoint of the configuration, or the ready-made model of its task.

    Raises:
        ConfigurationError: If neither or both are set, there is no such model, or there are two
            inputs.
    """
    if config.text is not None and config.input is not None:
        raise ConfigurationError(
            f"input={config.input} and text are both set; expected one of them", ["input", "text"]
        )
    if config.checkpoint is not None and config.task is not None:
        raise ConfigurationError(
            f"task={config.task} has no effect with checkpoint={config.checkpoint}; expected one "
            "of them",
            ["task"],
        )

    if config.checkpoint is not None:
        return config.checkpoint
    if config.task is not None:
        return str(find_ready_model(config.task))
    raise ConfigurationError(
        "checkpoint is not set; expected checkpoint=RUN for a trained model, or "
        f"task={' or task='.join(READY_TASKS)} for a ready-made one, which `bsmeta build` makes",
        ["checkpoint"],
    )


def predict_records(config: PredictConfig, source: Path, output: Path) -> None:
    """Writes each record of `source` with its prediction to `output`, or resumes an earlier call.

    Raises:
        UserError: If `source` has no rows or a bad row, or a column named like a prediction.
    """
    # Imported here because transformers takes seconds, and the command line is checked first.
    from bsmeta.data.table.records import RecordWriter, check_output

    check_output(output)
    model = _open_predictor(config)
    read_rows = partial(
        read_records,
        source,
        model.inputs,
        check=model.check_record,
        separator=config.csv_separator,
        encoding=config.csv_encoding,
    )
    bad_rows = BadRows(source, config.on_bad_row)
    total = sum(1 for _ in read_rows(bad_rows))
    bad_rows.close()  # raises before any prediction
    if total == 0:
        raise DataError(f"{source} has no rows")

    identity = _identify_predictions(config, source, model)
    writer = RecordWriter(output, identity, spreadsheet_safe=config.spreadsheet_safe)
    if writer.num_done:
        print(f"continuing after {writer.num_done:,} rows of {output}.part", file=sys.stderr)

    remaining = islice(read_rows(BadRows(source, config.on_bad_row)), writer.num_done, None)
    records, originals = tee(remaining)
    results = zip(originals, model.predict_each(records), strict=True)
    with show_progress_bar("predicting", total) as show:
        for done, (record, result) in enumerate(results, writer.num_done + 1):
            _refuse_same_names(source, output, record, result)
            writer.write({**record, **result})
            show(done, f"{done:,} of {total:,} rows")

    writer.finish()
    print(f"{total:,} rows written to {output}", file=sys.stderr)


def _identify_predictions(config: PredictConfig, source: Path, model: Predictor) -> dict[str, Any]:
    """Returns all that determines the predictions; an output is only resumed if this is equal."""
    from bsmeta.core.files import hash_file

    return {
        "input": hash_file(source),
        "checkpoint": {
            file.name: hash_file(file) for file in sorted(model.folder.iterdir()) if file.is_file()
        },
        "data": model.data_fingerprint(),
        "overrides": redact_values(config.overrides),  # they are stored in a file beside the output
        "csv_separator": config.csv_separator,
        "csv_encoding": config.csv_encoding,
        "on_bad_row": config.on_bad_row,
        "spreadsheet_safe": config.spreadsheet_safe,
    }


def _open_predictor(config: PredictConfig) -> Predictor:
    """Opens the model that `checkpoint` names; its weights are loaded on first use."""
    # Imported here because transformers takes seconds, and the command line is checked first.
    from bsmeta.api.models import Predictor, open_model

    assert config.checkpoint is not None  # chosen before
    model = open_model(config.checkpoint, overrides=config.overrides)
    check_program("predict.py", model.task, TASKS)
    assert isinstance(model, Predictor)
    return model


def predict_text(config: PredictConfig, text: str, name: str) -> None:
    """Prints or writes a text with its errors marked or corrected, or its prediction.

    Args:
        name: The name of the text, for a diff.

    Raises:
        UserError: If the task does not predict such a text, or has no such form of output.
    """
    output = None if config.output is None else Path(config.output)
    if output is not None and output.exists():
        raise ConfigurationError(f"output={output} exists; delete it, or name another file")

    model = _open_predictor(config)
    if model.forms:
        content, form = _render_changes(config, model, text, name)
    elif config.text is not None:
        content, form = _render_prediction(config, model, text)
    else:
        raise ConfigurationError(
            f"input={config.input}: the task of {config.checkpoint} does not change texts; "
            f"expected records: a file that ends in {', '.join(RECORD_SUFFIXES)}; or one text: "
            "text=TEXT"
        )

    if config.text is not None and not content.endswith("\n"):
        content += "\n"
    if output is None:
        write_data(content, is_styled=form == "color")
    else:
        _write_output(output, content)


def _render_changes(
    config: PredictConfig, model: Predictor, text: str, name: str
) -> tuple[str, str]:
    """Renders a text with its errors marked or corrected; its white space is kept.

    Returns:
        The rendered text, and its form.
    """
    from bsmeta.tasks.spelling.corrections import render_changes

    form = choose_output_form(config, model.forms)
    changes = _find_changes(model, text)
    return render_changes(text, changes, form, name, corrects="text" in model.forms), form


def _render_prediction(config: PredictConfig, model: Predictor, text: str) -> tuple[str, str]:
    """Renders the prediction of a text; returns it with its form.

    Raises:
        ConfigurationError: If `show` asks for changes.
    """
    form = "text" if config.show == "auto" else config.show
    if form not in ("text", "json"):
        raise ConfigurationError(
            f"show={form}: the task of {config.checkpoint} does not change texts; expected "
            "show=text or show=json",
            ["show"],
        )

    (result,) = model.predict([text])
    if form == "json" or "probabilities" not in result:
        return json.dumps({"text": text, **result}, ensure_ascii=False) + "\n", "json"
    return format_prediction(result), form


def format_prediction(result: Mapping[str, Any]) -> str:
    """Formats the prediction of a classifier: its labels, then the highest probabilities."""
    prediction = result["prediction"]
    if prediction is None:
        return "(no prediction: the text has no tokens)\n"

    labels = [prediction] if isinstance(prediction, str) else prediction
    lines = [", ".join(labels) or "(no label)"]

    ranked = sorted(result["probabilities"].items(), key=lambda item: item[1], reverse=True)
    for label, probability in ranked[:MAX_SHOWN_LABELS]:
        lines.append(f"{probability:>8.1%}  {label}")
    return "\n".join(lines) + "\n"


def _find_changes(model: Predictor, text: str) -> list[Any]:
    """Returns the model's changes to a text, at offsets that include a byte order mark.

    The mark itself is not passed to the model.
    """
    mark_length = len(text) - len(text.removeprefix(BYTE_ORDER_MARK))
    return [
        replace(change, start=mark_length + change.start, end=mark_length + change.end)
        for change in model.changes(text[mark_length:])
    ]


def _write_output(output: Path, content: str) -> None:
    """Writes a file atomically, in UTF-8."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(output) as part:
            part.write_bytes(content.encode())
    except OSError as error:
        raise DataError(f"output={output} cannot be written: {error}") from error


def choose_output_form(config: PredictConfig, forms: Sequence[str]) -> str:
    """Returns the form in which to show a text.

    Raises:
        ConfigurationError: If the task does not have this form.
    """
    form = config.show
    setting = f"show={form}"
    if form == "auto":
        form = "color" if config.output is None and sys.stdout.isatty() else "text"
        setting = f"show=auto, which is {form} without a terminal,"

    if form not in forms:
        raise ConfigurationError(
            f"{setting} needs corrections, and the model of {config.checkpoint} flags errors "
            f"without correcting them; expected show={' or show='.join(forms)}",
            ["show"],
        )
    return form


def read_text(source: str) -> tuple[str, str]:
    """Reads a text from a file, or standard input for -; returns it with its name."""
    try:
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise DataError(
            f"input={source} cannot be read: {error}; expected text in UTF-8"
        ) from error

    try:
        return content.decode(), "stdin" if source == "-" else source
    except UnicodeDecodeError as error:
        raise DataError(f"input={source} {explain_not_utf8(content, error)}") from error


def _refuse_same_names(
    source: Path, output: Path, record: Record, result: Mapping[str, Any]
) -> None:
    """Refuses a record that has a column of the predictions; for CSV, after flattening both."""
    shared_names = record.keys() & result.keys()
    if output.suffix == ".csv":
        shared_names |= flatten_record(record).keys() & flatten_record(result).keys()

    if shared_names:
        raise ConfigurationError(
            f"{source} has {', '.join(map(repr, sorted(shared_names)))}, which the predictions "
            "would overwrite; rename it"
        )


if __name__ == "__main__":
    sys.argv[1:] = quote_text(sys.argv[1:], "text")
    run_entry_point(main, PredictConfig, "predict")
