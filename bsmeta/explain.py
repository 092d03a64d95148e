"""Shows documents as training sees them: prefix, tags, tokens, loss mask, packing.

python bsmeta/explain.py --config-name demo limit=2
python bsmeta/explain.py --config-name demo document=SHARD:7 types=[url,entity] html=page.html
python bsmeta/explain.py --config-name demo limit=100 json=true | jq .prefix
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsmeta.config.composing.composition import EMPTY_COMPOSITION, Composition
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import check_program
from bsmeta.core.errors import ConfigurationError, raise_problems
from bsmeta.core.terminal import Console
from bsmeta.tasks import BUILT_IN, TASKS

if TYPE_CHECKING:
    from bsmeta.tasks.causal_lm.explaining.windows import ExplainedWindow


def main(config: RunConfig, composition: Composition = EMPTY_COMPOSITION) -> None:
    """Shows the documents that the configuration selects, in the format that it selects.

    Args:
        config: The documents to show, and their format.
        composition: The configuration as it was written, with the problems found in it.

    Raises:
        ConfigurationError: If the configuration is of another task, or has problems.
    """
    check_program("explain.py", config.task, TASKS)
    raise_problems(composition.problems)
    assert isinstance(config, ExplainConfig)
    show_documents(config)


def show_documents(config: ExplainConfig) -> None:
    """Builds the windows of the documents, and writes them to the page or standard output."""
    # Imported here because transformers takes seconds, and the command line is checked first.
    from bsmeta.tasks.causal_lm.explaining.json_lines import format_json_line
    from bsmeta.tasks.causal_lm.explaining.page import render_page
    from bsmeta.tasks.causal_lm.explaining.selection import Selection
    from bsmeta.tasks.causal_lm.explaining.terminal import show_legend, show_window
    from bsmeta.tasks.causal_lm.shown_tokens import TokenTexts
    from bsmeta.tasks.causal_lm.task import CausalLanguageModel

    metadata = config.data_config.metadata_config
    tokenizer = CausalLanguageModel(config).tokenizer
    texts = TokenTexts(tokenizer)
    windows: Iterable[ExplainedWindow] = Selection(config, tokenizer)
    if config.html is not None:
        windows = list(windows)
        write_page(config.html, render_page(windows, config, texts))
    if config.json:
        for window in windows:
            for document in window.documents:
                print(format_json_line(document, metadata))
    elif config.html is None:
        console = Console()
        for window in windows:
            show_window(window, console, config, texts)
        show_legend(console, config)


def write_page(path: str, text: str) -> None:
    """Writes an HTML page, and prints its path to standard error."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"html={path} cannot be written: {error}") from error
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    schemas: list[Any] = [ExplainConfig]  # and schemas of other tasks, to refuse them by name
    schemas += [entry.schema for entry in BUILT_IN.values() if "explain.py" not in entry.programs]
    run_entry_point(
        main,
        schemas,
        "v2",
        takes_composition=True,
        list_more=TASKS.list_installed_schemas,
    )
