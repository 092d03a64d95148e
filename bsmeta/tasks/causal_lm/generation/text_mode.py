"""`mode=text`: generates the texts of requests, and prints them or writes a file.

Requests come from the command line, the lines of a file, or the lines of a dialogue (standard
input, a terminal or a pipe). Texts are printed in the order of the requests: one below the other,
or side by side to compare different metadata.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.printable import make_printable
from bsmeta.core.terminal import Console, write_data
from bsmeta.report.page import create_report_console
from bsmeta.tasks.causal_lm.checkpoints import OpenedModel
from bsmeta.tasks.causal_lm.generation.contexts import check_metadata
from bsmeta.tasks.causal_lm.generation.dialogue import Dialogue, read_input_lines
from bsmeta.tasks.causal_lm.generation.requests import (
    FIELDS,
    Request,
    apply_steps,
    read_requests,
    replace_defaults,
)
from bsmeta.tasks.causal_lm.generation.writer import Result, Sample, Writer


def write_texts(config: GenerateConfig, opened: OpenedModel) -> None:
    """Generates and outputs the texts that the configuration requests."""
    _check_output_keys(config)
    default_request = replace_defaults({}, {name: getattr(config, name) for name in FIELDS})
    if config.input is not None:
        requests = read_requests(config.input, default_request)
    elif config.compare:
        requests = [
            msgspec.structs.replace(default_request, metadata=dict(metadata))
            for metadata in config.compare
        ]
    else:
        requests = [default_request]

    metadata_config = opened.run_config.data_config.metadata_config
    # Requests are checked before the model is loaded.
    apply_steps(
        requests,
        lambda request: check_metadata(request.metadata, metadata_config),
        lambda request: check_metadata(request.null_metadata, metadata_config),
    )

    writer = Writer(opened, batch_size=config.batch_size)
    console = create_report_console(highlight=False)
    if config.interactive:
        _answer_interactively(default_request, writer, metadata_config)
    elif config.output is not None:
        _write_file(writer.write(requests), config.output)
    elif config.compare:
        show_side_by_side(list(writer.write(requests)), console)
    else:
        for result in writer.write(requests):
            show_result(result, console)


def _check_output_keys(config: GenerateConfig) -> None:
    """Refuses combinations of keys that conflict, and an `output` that exists."""
    is_set = {
        "compare": bool(config.compare),
        "interactive": config.interactive,
        "input": config.input is not None,
    }
    set_keys = [key for key, value in is_set.items() if value]
    if len(set_keys) > 1:
        raise ConfigurationError(
            f"{' and '.join(set_keys)}: expected at most one of compare, interactive and input"
        )

    if config.interactive and config.output is not None:
        raise ConfigurationError("output: an interactive session writes to standard output alone")
    if config.compare and config.metadata:
        raise ConfigurationError(
            "metadata: compare has the metadata of each text; leave out one of the two"
        )
    if config.output is not None and Path(config.output).is_file():
        raise ConfigurationError(f"output={config.output} exists; delete it, or name another file")


def _answer_interactively(default_request: Request, writer: Writer, config: MetadataConfig) -> None:
    """Generates the texts of each line of standard input as it arrives."""
    dialogue = Dialogue(default_request, config)
    for request in dialogue.iterate_requests(read_input_lines(config.metadata_list)):
        try:
            for result in writer.write([request]):
                show_result(result, create_report_console(highlight=False))
                sys.stdout.flush()
        except ConfigurationError as error:  # for example a prompt that is too long
            print(error, file=sys.stderr, flush=True)


def _write_file(results: Iterable[Result], path: str) -> None:
    """Writes a line of JSON for each request: its fields, rendered metadata, generated texts.

    The file appears when it is complete; until then, it is `{path}.part`. A pipe or a device is
    written directly.
    """
    output = Path(path)
    part = output if output.exists() else Path(f"{path}.part")
    count = 0
    try:
        with part.open("wb") as file:
            for result in results:
                request = msgspec.structs.asdict(result.request)
                if request["id"] is None:
                    del request["id"]
                line = {**request, "prefix": result.prefix, "samples": result.samples}
                file.write(msgspec.json.encode(line) + b"\n")
                count += 1
        if part != output:
            part.replace(output)
    except OSError as error:
        raise ConfigurationError(f"output={path} cannot be written: {error}") from error
    print(f"{count} results written to {path}", file=sys.stderr)


def show_result(result: Result, console: Console) -> None:
    """Prints the texts of a request, each after its prefix (dim) and its prompt (bold).

    A file or a pipe receives prefix, prompt and text as they are.
    """
    request = result.request
    prefix = f"{result.prefix}\n" if result.prefix else ""
    for number, sample in enumerate(result.samples, start=1):
        if len(result.samples) > 1:
            console.rule(f"{number} of {len(result.samples)}, seed {sample.seed}", align="left")
        if console.is_terminal:
            console.print(
                Text(make_printable(prefix), style="dim") + _style_prompt(request, sample)
            )
        else:
            write_data(f"{prefix}{request.prompt}{sample.text}{_choose_ending(sample)}\n")


def show_side_by_side(results: Sequence[Result], console: Console) -> None:
    """Prints a table with a column per request (its metadata) and a row per seed."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, show_lines=True, pad_edge=False)
    for result in results:
        prefix = make_printable(result.prefix) or "(no metadata)"
        table.add_column(Text(prefix), ratio=1, overflow="fold")
    for samples in zip(*(result.samples for result in results), strict=True):
        cells = []
        for result, sample in zip(results, samples, strict=True):
            cells.append(_style_prompt(result.request, sample))
        table.add_row(*cells)
    console.print(table)


def _style_prompt(request: Request, sample: Sample) -> Text:
    """Returns the prompt (bold) with the text and its ending (dim) after it."""
    prompt = make_printable(request.prompt)
    text = make_printable(sample.text)
    return Text.assemble((prompt, "bold"), text, (_choose_ending(sample), "dim"))


def _choose_ending(sample: Sample) -> str:
    """Returns an ellipsis for a text that a limit has cut off; otherwise an empty string."""
    return "" if sample.finished == "eos" else " …"
