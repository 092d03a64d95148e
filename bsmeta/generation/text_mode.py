"""`mode=text`: generates the texts of a configuration and prints them or writes a file.

Texts are printed one below the other, or side by side for different metadata.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.generation import GenerateConfig
from bsmeta.generation.contexts import check_value, find, load
from bsmeta.generation.generator import Result, Sample, Writer
from bsmeta.generation.requests import Dialogue, Request, lines_of_input, read_requests, request_of


def write(config: GenerateConfig) -> None:
    """Generate and output the texts that the configuration requests.

    Raises:
        UserError: The configuration, the checkpoint or the input is invalid.
    """
    _check_ways(config)
    first = request_of(config)
    location, train = find(config)
    requests = _requests(config, first)
    _check_requests(requests, train)
    opened = load(config, location, train)
    writer = Writer(
        opened.model,
        opened.tokenizer,
        opened.data,
        batch_size=config.batch_size,
        device=opened.device,
    )
    if config.interactive:
        _talk(first, writer, train)
    elif config.output is not None:
        _write_file(writer.write(requests), config.output)
    elif config.compare:
        show_side_by_side(list(writer.write(requests)), console())
    else:
        for result in writer.write(requests):
            show(result, console())


def _check_ways(config: GenerateConfig) -> None:
    """Reject combinations of `compare`, `interactive`, `input` and `output` that conflict."""
    asked = {
        "compare": bool(config.compare),
        "interactive": config.interactive,
        "input": config.input is not None,
    }
    if sum(asked.values()) > 1:
        named = " and ".join(name for name, is_asked in asked.items() if is_asked)
        raise ConfigurationError(f"{named}: expected at most one of compare, interactive and input")
    if config.interactive and config.output is not None:
        raise ConfigurationError("output: an interactive session writes to standard output alone")


def _requests(config: GenerateConfig, first: Request) -> list[Request]:
    if config.input is not None:
        return read_requests(config.input, first)
    if config.compare:
        return [
            msgspec.structs.replace(first, metadata=dict(metadata)) for metadata in config.compare
        ]
    return [first]


def _check_requests(requests: list[Request], train: CausalLMConfig) -> None:
    """Reject requests with invalid metadata, and list all of it, before a model is loaded."""
    problems = []
    for number, request in enumerate(requests, start=1):
        where = f"request {request.id or number}: " if len(requests) > 1 else ""
        for metadata in (request.metadata, request.null_metadata):
            try:
                check_metadata(metadata, train)
            except ConfigurationError as error:
                problems.append(f"{where}{error}")
    if problems:
        raise ConfigurationError("\n".join(problems))


def check_metadata(metadata: Mapping[str, Any], train: CausalLMConfig) -> None:
    """Raise a `ConfigurationError` for metadata that the model cannot be given."""
    for key, value in metadata.items():
        if value is not None:
            check_value(key, value, train.data_config.metadata_config)


def _talk(first: Request, writer: Writer, train: CausalLMConfig) -> None:
    types = train.data_config.metadata_config.metadata_list
    dialogue = Dialogue(first, types, lambda metadata: check_metadata(metadata, train))
    for request in dialogue.requests(lines_of_input(types)):
        try:
            for result in writer.write([request]):
                show(result, console())
                sys.stdout.flush()
        except ConfigurationError as error:  # for example a prompt that is too long
            print(error, file=sys.stderr, flush=True)


def _write_file(results: Iterable[Result], path: str) -> None:
    count = 0
    try:
        with Path(path).open("wb") as file:
            for result in results:
                file.write(msgspec.json.encode(_line(result)) + b"\n")
                count += 1
    except OSError as error:
        raise ConfigurationError(f"output={path} cannot be written: {error}") from error
    print(f"{count} results written to {path}", file=sys.stderr)


def _line(result: Result) -> dict[str, Any]:
    """The request, its rendered metadata, and the generated texts, as a dict for JSON."""
    request = msgspec.structs.asdict(result.request)
    if request["id"] is None:
        del request["id"]
    return {**request, "prefix": result.prefix, "samples": result.samples}


WIDTH_OF_A_FILE = 120
"""Width of the printed text if the output is not a terminal."""


def console() -> Console:
    """A console on standard output, as wide as the terminal if there is one."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=WIDTH_OF_A_FILE, highlight=False)


def show(result: Result, out: Console) -> None:
    """Print the texts of a request, each after its prefix (dim) and its prompt (bold)."""
    for number, sample in enumerate(result.samples, start=1):
        if len(result.samples) > 1:
            out.rule(f"{number} of {len(result.samples)}, seed {sample.seed}", align="left")
        text = Text(f"{result.prefix}\n" if result.prefix else "", style="dim")
        out.print(text + _text(result.request, sample), soft_wrap=not out.is_terminal)


def show_side_by_side(results: Sequence[Result], out: Console) -> None:
    """Print a table with a column per request (its metadata) and a row per seed."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, show_lines=True, pad_edge=False)
    for result in results:
        table.add_column(Text(result.prefix or "(no metadata)"), ratio=1, overflow="fold")
    for samples in zip(*(result.samples for result in results), strict=True):
        cells = zip(results, samples, strict=True)
        table.add_row(*[_text(result.request, sample) for result, sample in cells])
    out.print(table)


def _text(request: Request, sample: Sample) -> Text:
    ending = "" if sample.finished == "eos" else " …"
    return Text.assemble((request.prompt, "bold"), sample.text, (ending, "dim"))
