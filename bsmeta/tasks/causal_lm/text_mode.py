"""`mode=text`: generates the texts of requests, and prints them or writes a file.

Requests come from the command line, the lines of a file, or the lines of a dialogue. In a dialogue
(standard input, a terminal or a pipe), a line `key=value` sets a metadata type or a sampling
parameter for the following prompts (`key=` resets it); any other line is a prompt. A leading space
makes any line a prompt.

Texts are generated in batches, and printed in the order of the requests: one below the other, or
side by side to compare different metadata.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from rich import box
from rich.table import Table
from rich.text import Text

from bsmeta.config.generating import GenerateConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.keys import refuse_out_of_bounds
from bsmeta.core.parsing import decode_json, parse_yaml
from bsmeta.core.printable import printable
from bsmeta.core.terminal import Console, write_data
from bsmeta.report.page import report_console
from bsmeta.tasks.causal_lm.checkpoints import OpenedModel
from bsmeta.tasks.causal_lm.decoding import (
    Context,
    Contexts,
    Continuation,
    Decoder,
    Draw,
    check_metadata,
)

HELP = "a prompt, or key=value ({names}, and {fields}); key= resets it; Ctrl-D ends"

_SETTING = re.compile(r"(\w+)=(.*)")
_MAPPINGS = ("metadata", "null_metadata")
"""Fields of a request that hold a mapping."""

Output = TypeVar("Output")


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A request for text; `GenerateConfig` documents the fields, and their bounds.

    `id` is only copied to the result.
    """

    id: str | int | None = None
    metadata: dict[str, Any] = {}
    prompt: str = ""
    null_metadata: dict[str, Any] = {}
    guidance: float = 1.0
    max_new_tokens: int = 100
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 42
    num_samples: int = 1


FIELDS = tuple(name for name in Request.__struct_fields__ if name != "id")


def changed(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> Request:
    """Returns a request with some of the defaults replaced.

    Raises:
        ConfigurationError: A field is unknown, or a value is not possible.
    """
    merged = {**defaults, **values}
    try:
        request = msgspec.convert(merged, Request)
    except msgspec.ValidationError as error:
        # such as `Expected … - at `$.temperature``
        message, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        if name:
            message = f"{name}={merged.get(name)!r}: {message}"
        else:
            message += f"; expected any of {', '.join(Request.__struct_fields__)}"
        raise ConfigurationError(message) from error

    refuse_out_of_bounds(GenerateConfig(**{name: getattr(request, name) for name in FIELDS}))
    return request


def read_requests(path: str, defaults: Request) -> list[Request]:
    """Reads the requests of a JSON Lines file; missing fields have the values of `defaults`.

    Raises:
        DataError: The file cannot be read, or lines are not valid requests; lists all such lines.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"input={path} cannot be read: {error}") from error

    default_values = msgspec.structs.asdict(defaults)
    requests: list[Request] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = decode_json(line, dict[str, Any])
            requests.append(changed(default_values, values))
        except (msgspec.DecodeError, ConfigurationError) as error:
            problems.append(f"{path}, line {number}: {error}")
    if problems:
        raise DataError("\n".join(problems))
    return requests


class Dialogue:
    """Keeps the current settings of an interactive session, and turns lines into requests."""

    def __init__(self, request: Request, config: MetadataConfig) -> None:
        self._defaults = msgspec.structs.asdict(request)
        self._settings = dict(self._defaults)
        self._config = config

    def parse(self, line: str) -> Request | None:
        """Returns the request of a line; None if the line only changes a setting.

        Raises:
            ConfigurationError: The setting or its value is not possible.
        """
        setting = _SETTING.fullmatch(line)
        if setting is None:
            return changed(self._settings, {"prompt": line.removeprefix(" ")})

        name, text = setting.groups()
        types = self._config.metadata_list
        fields = [field for field in FIELDS if field != "prompt"]
        if name in fields:
            self._set_field(name, text)
        elif name in types:
            self._set_metadata(name, text)
        else:
            raise ConfigurationError(
                f"{name}: expected any of {', '.join([*types, *fields])} before `=` (a blank "
                "before the line makes it a prompt)"
            )
        return None

    def _set_field(self, name: str, text: str) -> None:
        """Sets a field of the requests; an empty text resets it."""
        value = _parse_value(text) if text else self._defaults[name]
        if name in _MAPPINGS:
            check_metadata(value if isinstance(value, dict) else {}, self._config)
        self._settings = msgspec.structs.asdict(changed(self._settings, {name: value}))

    def _set_metadata(self, name: str, text: str) -> None:
        """Sets a metadata type of the requests; an empty text removes it."""
        metadata = {key: value for key, value in self._settings["metadata"].items() if key != name}
        if text:
            metadata[name] = True if text == "true" else text
        check_metadata(metadata, self._config)
        self._settings["metadata"] = metadata

    def requests(self, lines: Iterable[str]) -> Iterator[Request]:
        """Yields the requests of all lines; prints errors to standard error and continues."""
        for line in lines:
            try:
                request = self.parse(line.rstrip("\r\n"))
            except ConfigurationError as error:
                print(error, file=sys.stderr, flush=True)
                continue
            if request is not None:
                yield request


def read_input_lines(types: Iterable[str]) -> Iterator[str]:
    """Yields the lines of standard input; at a terminal, prints help and a prompt."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return

    fields = ", ".join(field for field in FIELDS if field not in ("prompt", *_MAPPINGS))
    print(HELP.format(names=", ".join(types), fields=fields), file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            return


def _parse_value(text: str) -> Any:
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{text}: not readable: {error}") from error


class Sample(msgspec.Struct, frozen=True):
    """One generated text, after the prompt.

    Attributes:
        tokens: Its length in tokens, without the end-of-text token.
        finished: Why it ended: `eos`, `max_new_tokens`, or `max_seq_len`.
        seed: The seed that reproduces this sample on its own.
    """

    text: str
    tokens: int
    finished: str
    seed: int


class Result(msgspec.Struct, frozen=True):
    """The result of a request; `prefix` is its rendered metadata."""

    request: Request
    prefix: str
    samples: list[Sample]


class Writer:
    """Generates texts with one model, `batch_size` at a time."""

    def __init__(self, opened: OpenedModel, *, batch_size: int) -> None:
        config = opened.train.data_config
        tokenizer = opened.tokenizer
        self._contexts = Contexts(config, tokenizer)
        self._tokenizer = tokenizer
        self._max_length = config.metadata_config.max_seq_len
        self._batch_size = batch_size
        self._decoder = Decoder(
            opened.model,
            eos=int(tokenizer.eos_token_id),
            vocabulary=len(tokenizer),
            max_length=self._max_length,
            device=opened.device,
        )

    def write(self, requests: Sequence[Request]) -> Iterator[Result]:
        """Checks all requests, and returns an iterator that generates the result of each.

        Raises:
            ConfigurationError: A request is invalid; the message lists the problems of all.
        """
        pairs = list(zip(requests, for_all(requests, self._make_contexts), strict=True))
        return self._generate_results(pairs)

    def _generate_results(
        self, pairs: Sequence[tuple[Request, tuple[Context, Context]]]
    ) -> Iterator[Result]:
        """Yields the result of each request as soon as it is complete."""
        continuations = self._generate(_list_draws(pairs))
        for request, (context, _) in pairs:
            samples = []
            for number, continuation in enumerate(islice(continuations, request.num_samples)):
                text = self._tokenizer.decode(
                    continuation.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
                samples.append(
                    Sample(
                        text=text.removeprefix(context.joint),
                        tokens=len(continuation.ids),
                        finished=continuation.finished,
                        seed=request.seed + number,
                    )
                )
            yield Result(request, context.prefix, samples)

    def _make_contexts(self, request: Request) -> tuple[Context, Context]:
        """Makes the context of a request, and the context that guidance leads away from."""
        context = self._contexts.make(request.metadata, request.prompt)
        null_context = self._contexts.make(request.null_metadata, request.prompt)
        longest = max(len(context.ids), len(null_context.ids))
        if longest >= self._max_length:
            raise ConfigurationError(
                f"prompt: with its metadata it has {longest} tokens, but the model was trained on "
                f"sequences of {self._max_length}; expected fewer, so that there is room to write"
            )
        return context, null_context

    def _generate(self, draws: Iterator[Draw]) -> Iterator[Continuation]:
        while batch := list(islice(draws, self._batch_size)):
            yield from self._decoder.run(batch)


def _list_draws(pairs: Sequence[tuple[Request, tuple[Context, Context]]]) -> Iterator[Draw]:
    """Yields the texts to generate: for each request its samples, with consecutive seeds."""
    for request, (context, null_context) in pairs:
        for number in range(request.num_samples):
            yield Draw(
                context=context.ids,
                null_context=null_context.ids,
                guidance=request.guidance,
                temperature=request.temperature,
                top_p=request.top_p,
                max_new_tokens=request.max_new_tokens,
                seed=request.seed + number,
            )


def for_all(requests: Sequence[Request], *steps: Callable[[Request], Output]) -> list[Output]:
    """Applies each step to each request, and returns the outputs.

    Raises:
        ConfigurationError: Lists the problems of all requests.
    """
    outputs: list[Output] = []
    problems: list[str] = []
    for number, request in enumerate(requests, start=1):
        for step in steps:
            try:
                outputs.append(step(request))
            except ConfigurationError as error:
                prefix = f"request {request.id or number}: " if len(requests) > 1 else ""
                problems.append(f"{prefix}{error}")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return outputs


def write(config: GenerateConfig, opened: OpenedModel) -> None:
    """Generates and outputs the texts that the configuration requests."""
    _check_output_keys(config)
    default_request = changed({}, {name: getattr(config, name) for name in FIELDS})
    if config.input is not None:
        requests = read_requests(config.input, default_request)
    elif config.compare:
        requests = [
            msgspec.structs.replace(default_request, metadata=dict(metadata))
            for metadata in config.compare
        ]
    else:
        requests = [default_request]

    metadata_config = opened.train.data_config.metadata_config
    for_all(  # before a model is loaded
        requests,
        lambda request: check_metadata(request.metadata, metadata_config),
        lambda request: check_metadata(request.null_metadata, metadata_config),
    )

    writer = Writer(opened, batch_size=config.batch_size)
    console = report_console(highlight=False)
    if config.interactive:
        _answer_interactively(default_request, writer, metadata_config)
    elif config.output is not None:
        _write_file(writer.write(requests), config.output)
    elif config.compare:
        show_side_by_side(list(writer.write(requests)), console)
    else:
        for result in writer.write(requests):
            show(result, console)


def _check_output_keys(config: GenerateConfig) -> None:
    """Rejects combinations of keys that conflict, and an `output` that exists."""
    is_set = {
        "compare": bool(config.compare),
        "interactive": config.interactive,
        "input": config.input is not None,
    }
    names = [name for name, value in is_set.items() if value]
    if len(names) > 1:
        raise ConfigurationError(
            f"{' and '.join(names)}: expected at most one of compare, interactive and input"
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
    for request in dialogue.requests(read_input_lines(config.metadata_list)):
        try:
            for result in writer.write([request]):
                show(result, report_console(highlight=False))
                sys.stdout.flush()
        except ConfigurationError as error:  # for example a prompt that is too long
            print(error, file=sys.stderr, flush=True)


def _write_file(results: Iterable[Result], path: str) -> None:
    """Writes a line of JSON for each request: its fields, rendered metadata, generated texts."""
    count = 0
    try:
        with Path(path).open("wb") as file:
            for result in results:
                request = msgspec.structs.asdict(result.request)
                if request["id"] is None:
                    del request["id"]
                line = {**request, "prefix": result.prefix, "samples": result.samples}
                file.write(msgspec.json.encode(line) + b"\n")
                count += 1
    except OSError as error:
        raise ConfigurationError(f"output={path} cannot be written: {error}") from error
    print(f"{count} results written to {path}", file=sys.stderr)


def show(result: Result, console: Console) -> None:
    """Prints the texts of a request, each after its prefix (dim) and its prompt (bold).

    A file or a pipe receives prefix, prompt and text as they are.
    """
    request = result.request
    prefix = f"{result.prefix}\n" if result.prefix else ""
    for number, sample in enumerate(result.samples, start=1):
        if len(result.samples) > 1:
            console.rule(f"{number} of {len(result.samples)}, seed {sample.seed}", align="left")
        if console.is_terminal:
            console.print(Text(printable(prefix), style="dim") + _style(request, sample))
        else:
            write_data(f"{prefix}{request.prompt}{sample.text}{_ending(sample)}\n")


def show_side_by_side(results: Sequence[Result], console: Console) -> None:
    """Prints a table with a column per request (its metadata) and a row per seed."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, show_lines=True, pad_edge=False)
    for result in results:
        prefix = printable(result.prefix) or "(no metadata)"
        table.add_column(Text(prefix), ratio=1, overflow="fold")
    for samples in zip(*(result.samples for result in results), strict=True):
        cells = zip(results, samples, strict=True)
        table.add_row(*[_style(result.request, sample) for result, sample in cells])
    console.print(table)


def _style(request: Request, sample: Sample) -> Text:
    """Returns the prompt in bold and the text after it."""
    prompt = printable(request.prompt)
    text = printable(sample.text)
    return Text.assemble((prompt, "bold"), text, (_ending(sample), "dim"))


def _ending(sample: Sample) -> str:
    """Returns an ellipsis for a text that did not end by itself."""
    return "" if sample.finished == "eos" else " …"
