"""Runs `bsmeta quick`: finds columns, holds pages out, trains two models, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.startup_table import print_summary
from bsmeta.config.task_entry import Row
from bsmeta.core.errors import DataError
from bsmeta.core.progress import show_progress_bar
from bsmeta.core.secrets import redact_values
from bsmeta.quick.columns import (
    EXAMINED_ROWS,
    find_columns,
    list_types,
    make_column_table,
    map_choices,
)
from bsmeta.quick.config import DOCUMENT, SITE, QuickConfig
from bsmeta.quick.documents import Page, PageSet, drop_copies, list_repeated_types, read_pages
from bsmeta.quick.folder import claim_folder, open_folder
from bsmeta.quick.holding_out import HeldOut, hold_out
from bsmeta.quick.pages import PageFiles, list_page_files
from bsmeta.quick.sizes import find_device, list_size_rows
from bsmeta.quick.study_file import write_study_file
from bsmeta.quick.training import WITH, WITHOUT, Data, prepare_training, train_run
from bsmeta.report.page import (
    HTML_NAME,
    Section,
    create_report_console,
    print_report,
    print_table,
    write_report,
)
from bsmeta.report.page import Page as ReportPage
from bsmeta.training.run_folder.events import METRICS

if TYPE_CHECKING:  # imports torch, which takes seconds: pages are refused before that
    from bsmeta.quick.comparison import Result

EVALUATION = "evaluation"
"""Folder of the report of every comparison."""


def main(config: QuickConfig) -> None:
    """Runs the command, or resumes it after an interruption.

    Raises:
        UserError: If the pages or the settings cannot be used.
    """
    with open_folder(config) as folder:
        data, notes = prepare_data(config, folder)
        device = find_device()
        plan = prepare_training(config, data, device, folder)
        print_summary(list_size_rows(plan.sizes, device, config.minutes))
        if config.check_only:
            return

        runs = []
        inputs = {WITHOUT: "on text alone", WITH: f"with {', '.join(data.types)}"}
        for name, description in inputs.items():
            print(f"\ntraining {description}: {folder / name}", flush=True)
            runs.append(train_run(config, plan, data, folder, name, device.precision))

        result = evaluate_runs(config, data, runs, folder)
        command = write_study_file(config, plan, data, device, folder, result.base.bits_per_byte)
        report_result(config, data, notes, result, folder)
        print(f"more seeds: {command}")


def prepare_data(config: QuickConfig, folder: Path) -> tuple[Data, list[str]]:
    """Finds the columns, reads the pages, and holds some out; prints each of these choices.

    Returns:
        The data, and notes on it for the report.

    Raises:
        UserError: If there are too few pages, or no text or metadata in them.
    """
    files = list_page_files(config.pages, config.max_documents)
    rows = files.read_first_rows(EXAMINED_ROWS)
    choices = find_columns(rows, config.columns, config.metadata_list)
    print_table(create_report_console(), make_column_table(choices, len(rows)))
    columns = map_choices(choices)
    types = list_types(columns, config.metadata_list)

    page_set = read_pages(files, columns)
    claim_folder(config, folder, page_set.pages)
    page_set = drop_copies(page_set, folder / "copies", near=config.near_copies)
    pages = page_set.pages
    split = hold_out(pages, config)
    training = [pages[number] for number in split.training]
    held_out = [pages[number] for number in split.held_out]
    data = Data(_list_shared_types(types, training, held_out), training, held_out)
    notes = [*files.notes, *page_set.notes, *_list_notes(data, types, split)]
    print_summary(_list_page_rows(files, page_set, split), notes)
    return data, notes


def evaluate_runs(config: QuickConfig, data: Data, runs: Sequence[Path], folder: Path) -> Result:
    """Evaluates both models on the held-out pages, and writes the report of all comparisons.

    Raises:
        DataError: If no held-out page can be read with its metadata and with every control.
    """
    import torch

    from bsmeta.quick.comparison import collect_readings
    from bsmeta.tasks.causal_lm.evaluation.evaluate import evaluate
    from bsmeta.tasks.causal_lm.evaluation.report import write_report as write_evaluation
    from bsmeta.tasks.checkpoints import locate_model
    from bsmeta.training.ranks.processes import Processes

    settings = EvaluateConfig(
        checkpoint=[str(run) for run in runs], comparisons=["all"], seed=config.seed
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    locations = [locate_model(str(run)) for run in runs]
    with show_progress_bar("evaluating", 1) as advance:
        report = evaluate(settings, locations, Processes(device=device), advance)
    write_evaluation(report, folder / EVALUATION, runs[-1] / METRICS)

    result = collect_readings(*report.models)
    if result is None:
        raise DataError(
            f"pages: none of the {len(data.held_out)} held-out pages has metadata that every "
            "control could replace; expected pages with different metadata, or more of them"
        )
    return result


def report_result(
    config: QuickConfig, data: Data, notes: Sequence[str], result: Result, folder: Path
) -> None:
    """Writes the answer, a table and a sentence, to the folder, and prints it."""
    from bsmeta.quick.report import make_result_table, summarize_result

    count = len(data.training) + len(data.held_out)
    sentence = summarize_result(result, data.types, count, len(data.held_out))
    table = make_result_table(result)
    page = ReportPage(
        title="A first answer: with and without metadata",
        answers=[sentence],
        facts={"pages": f"{count:,}, {len(data.held_out):,} of them held out"},
        sections=[Section(tables=[table], lines=notes)],
        settings=redact_values(asdict(config)),
    )
    content = {"table": table.as_dict(), "notes": list(notes)}
    files = write_report(page, content, folder, json_name="quick.json", markdown_name="quick.md")
    print_report([table], [*notes, sentence], [*files, folder / EVALUATION / HTML_NAME])


def _list_page_rows(files: PageFiles, page_set: PageSet, split: HeldOut) -> list[Row]:
    """Makes the rows of a table with the numbers of pages used, held out and left out."""
    unit_names = {SITE: "whole sites", DOCUMENT: "documents, not sites"}
    left_out = ", ".join(f"{count:,} ({reason})" for reason, count in page_set.left_out.items())
    rest = f"; more are in the files (max_documents={files.limit:,})" if files.has_more else ""
    others = f" and {len(files.paths) - 1:,} more" if len(files.paths) > 1 else ""
    return [
        ("files", f"{files.paths[0]}{others}"),
        ("pages", f"{len(page_set.pages):,}{rest}"),
        ("left out", left_out or "none"),
        ("training", f"{len(split.training):,} pages"),
        ("held out", f"{len(split.held_out):,} pages: {unit_names[split.unit]} ({split.reason})"),
    ]


def _list_shared_types(
    types: Sequence[str], training: Sequence[Page], held_out: Sequence[Page]
) -> list[str]:
    """Lists the types that occur both in training pages and in held-out pages.

    Raises:
        DataError: If there is none.
    """
    shared_types = []
    for name in types:
        is_trained = any(name in page.values for page in training)
        is_held_out = any(name in page.values for page in held_out)
        if is_trained and is_held_out:
            shared_types.append(name)

    if not shared_types:
        raise DataError(
            f"pages: none of the types {', '.join(types)} is both in the {len(training):,} "
            f"training pages and in the {len(held_out):,} held-out pages; expected one, to train "
            "and to evaluate with it; use more pages, or another seed"
        )
    return shared_types


def _list_notes(data: Data, types: Sequence[str], split: HeldOut) -> list[str]:
    """Lists the caveats about the data, for the reader of the result.

    Args:
        types: The types that were found, whether used or not.
    """
    notes = []
    if split.unit == DOCUMENT:
        notes.append(
            f"Documents were held out, not sites ({split.reason}): the result holds for other "
            "pages of the same sites, and says nothing about other sites."
        )
    absent = [name for name in types if name not in data.types]
    if absent:
        notes.append(
            f"Left out: {', '.join(absent)}, which no training page or no held-out page has."
        )
    repeated = list_repeated_types(data.held_out, data.types)
    if repeated:
        notes.append(
            f"The text of most pages begins with its {', '.join(repeated)}: a gain may be a copy "
            "of it (metadata_list leaves it out)."
        )
    return notes
