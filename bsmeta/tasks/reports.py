"""`evaluate.py` for the tasks on tables: the run that is evaluated, and its report in all forms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import transformers
import xxhash

from bsmeta.config.evaluation import EvaluateConfig, refuse_unused, saved_config
from bsmeta.config.schema import RunConfig
from bsmeta.evaluation.checkpoints import Location
from bsmeta.evaluation.output import html_image, html_page, html_table, print_table, report_console
from bsmeta.evaluation.ranks import Ranks
from bsmeta.evaluation.tables import Table, markdown
from bsmeta.tasks.base import EvaluationContext

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = ".source"
"""In the folder of a report on other data than those of the run: the path of these data."""

Config = TypeVar("Config", bound=RunConfig)


def begin(
    config: EvaluateConfig, task: str, own_key: str, ranks: Ranks, device: torch.device
) -> EvaluationContext:
    """Checks the keys of `evaluate.py` for a task on a table; returns the context of the processes.

    Args:
        config: The configuration of `evaluate.py`.
        task: The task, as messages name it.
        own_key: The key that has a meaning for it beside those of all tasks.
        ranks: The processes.
        device: That of this process.

    Raises:
        ConfigurationError: If a key has no meaning for the task.
    """
    used = (
        "checkpoint", "training_config", "overrides", "out_dir", "validation_file", own_key,
        "bootstrap_resamples", "seed",
    )  # fmt: skip
    refuse_unused(config, used, task)
    transformers.utils.logging.disable_progress_bar()
    return EvaluationContext(ranks.rank, ranks.world_size, device, ranks.gather)


def training_run(config: EvaluateConfig, location: Location, *schemas: type[Config]) -> Config:
    """The configuration that a checkpoint was trained with, and the resamples that are asked for.

    Raises:
        ConfigurationError: If it does not fit any of the schemas.
    """
    file = location.config if config.training_config is None else Path(config.training_config)
    assert file is not None  # the task is known from it
    found = saved_config(file, {schema().task: schema for schema in schemas}, config.overrides)
    assert isinstance(found, schemas)
    changes: dict[str, Any] = {
        "bootstrap_resamples": config.bootstrap_resamples, "seed": config.seed
    }  # fmt: skip
    return replace(found, **changes)


def report_folder(config: EvaluateConfig, location: Location, *, has_other_data: bool) -> Path:
    """`out_dir`; by default in the run folder, or next to the model.

    The files of the training run's own report are in `evaluation/`; those of another checkpoint of
    the run, or of `validation_file`, have its name in that of their folder. Where that would be the
    folder of another file of the same name, the name of the file's own folder is added. Only rank 0
    calls it.

    Args:
        config: The configuration of `evaluate.py`.
        location: The checkpoint.
        has_other_data: Whether `validation_file` is not the data of the run.
    """
    if config.out_dir is not None:
        return Path(config.out_dir)
    parts = ["evaluation"]
    folder = Path() if location.is_on_hub else Path(location.name)
    if location.run_folder is not None and folder.resolve() != location.run_folder:
        parts.append(folder.resolve().name)
        folder = location.run_folder
    if not has_other_data:
        return folder / "-".join(parts)
    assert config.validation_file is not None
    data = Path(config.validation_file)
    source = str(data.absolute()) if data.exists() else config.validation_file
    parts.append(data.name if data.is_dir() else data.name.partition(".")[0])
    digest = xxhash.xxh3_64_hexdigest(source.encode())[:8]
    names = ["-".join([*parts, *more]) for more in ([], [data.absolute().parent.name], [digest])]
    return next(
        (folder / name for name in names if _is_free(folder / name, source)), folder / names[-1]
    )


def _is_free(folder: Path, source: str) -> bool:
    """Whether a folder may have the reports on these data; if it is new, it gets them."""
    record = folder / SOURCE
    if folder.exists():
        return record.is_file() and record.read_text() == source
    folder.mkdir(parents=True)
    record.write_text(source)
    return True


def write_report(
    title: str,
    content: Mapping[str, Any],
    sentences: Sequence[str],
    tables: Sequence[Table],
    figures: Mapping[str, Figure],
    folder: Path,
) -> list[Path]:
    """Writes `evaluation.json`, `evaluation.md`, `report.html` and plots; returns the files.

    Args:
        title: The title.
        content: The result, for the JSON file.
        sentences: The result in sentences.
        tables: The tables.
        figures: The plots, by the names of their files.
        folder: Created if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images = [f"![{name}]({name}.png)" for name in figures]
    texts = {
        "evaluation.json": json.dumps(content, indent=1, ensure_ascii=False) + "\n",
        "evaluation.md": "\n\n".join([f"# {title}", *sentences, markdown(tables), *images, ""]),
        "report.html": html_page(
            title,
            [
                f'<p class="lead">{escape(" ".join(sentences))}</p>',
                *(html_image(name, figure) for name, figure in figures.items()),
                *map(html_table, tables),
            ],
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=130)
    return [folder / name for name in [*texts, *(f"{name}.png" for name in figures)]]


def print_report(tables: Sequence[Table], sentences: Sequence[str], files: Sequence[Path]) -> None:
    """Prints tables, the summary, and the paths of the files."""
    console = report_console()
    for table in tables:
        print_table(console, table)
    for sentence in sentences:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    for folder in dict.fromkeys(file.parent for file in files):
        names = ", ".join(file.name for file in files if file.parent == folder)
        console.print(f"written to {folder}: {names}", markup=False, soft_wrap=True)
