"""Python access to the training input: documents rendered with their metadata, and batches.

A document is a string (only a text), `{"text": …, "metadata": {…}}` with values by type, or a
record in the form of the training data (`metadata_…` columns, or the columns that
`data_config.columns` maps). The decoder of the training data reads such records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks import find_value_problems
from bsmeta.config.compose import compose_command_line
from bsmeta.config.composition import NOTHING
from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.schema import RunConfig
from bsmeta.config.schema_choice import choose_schema, list_offered
from bsmeta.config.task_entry import find_entry
from bsmeta.core.errors import (
    ConfigurationError,
    DataError,
    name_missing_extras,
    raise_problems,
    suggest_nearest,
)
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.keys import find_bound_problems
from bsmeta.data.batch import MicroBatch
from bsmeta.data.stream.stages.render import check_length
from bsmeta.metadata.decoding import TEXT, DocumentDecoder, make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import find_type
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.tasks import BUILT_IN, TASKS
from bsmeta.training.task import Task

Configuration = str | Path | RunConfig

METADATA = "metadata"

GivenDocument = str | Mapping[str, Any]
Item = TypeVar("Item")


def compose_configuration(config: Configuration, overrides: Sequence[str] = ()) -> RunConfig:
    """Returns a training configuration of any task.

    Args:
        config: The name of a configuration (`bsmeta configs` lists them), the path of a YAML file,
            or a configuration.
        overrides: `key=value` as on the command line; only with a name or a path.

    Raises:
        UserError: If there is no such configuration, or a value is invalid.
    """
    if not isinstance(config, RunConfig):
        run_config = _compose_config(config, overrides)
    elif overrides:
        raise ConfigurationError(
            f"overrides={[*overrides]}: expected a configuration by name, or by the path of a file"
        )
    else:
        run_config = config

    raise_problems([*find_bound_problems(run_config)])
    return run_config


def check_configuration(config: RunConfig) -> None:
    """Refuses a configuration that training would refuse, except for problems of the launch."""
    entry, problems = find_entry(config, TASKS)
    raise_problems(
        [*problems, *find_value_problems(config), *entry.value_problems(config, NOTHING)]
    )


class _ConfigLocation(NamedTuple):
    """The name of a configuration, and the folder of its file; None for the packaged ones."""

    name: str
    folder: Path | None


def _compose_config(config: str | Path, overrides: Sequence[str]) -> RunConfig:
    """Composes a configuration that is named, or given by the path of its file."""
    if not isinstance(config, (str, Path)):
        raise ConfigurationError(
            f"config={config!r}: expected the name of a configuration, the path of a YAML file, or "
            "a configuration, such as bsmeta.open_run(folder).config"
        )
    if isinstance(overrides, str):
        raise ConfigurationError(f'overrides="{overrides}": expected a list: ["{overrides}"]')

    name, folder = _locate_config(config)
    arguments = ["--config-name", name]
    if folder is not None:
        arguments += ["--config-dir", str(folder)]
    built_in = [entry.schema for entry in BUILT_IN.values()]
    schemas: list[type[RunConfig] | str] = list_offered(
        arguments, built_in, "", TASKS.list_installed_schemas
    )
    return compose_command_line(choose_schema(arguments, schemas, ""), name, overrides, folder)


def _locate_config(config: str | Path) -> _ConfigLocation:
    """Finds a packaged configuration by its name, or the file at a path."""
    path = Path(config).expanduser()
    if path.suffix == ".yaml" or len(path.parts) > 1:
        if path.is_dir():
            raise ConfigurationError(
                f"config={config}: a folder; bsmeta.open_run({str(path)!r}).config is the "
                "configuration of a run"
            )
        if not path.with_suffix(".yaml").is_file():
            raise ConfigurationError(f"config={config}: there is no such file (from {Path.cwd()})")
        return _ConfigLocation(path.stem, path.parent.resolve())

    packaged = sorted(file.stem for file in CONFIG_FOLDER.glob("*.yaml"))
    if path.stem not in packaged:
        raise ConfigurationError(
            f"config={config}: expected the path of a YAML file, or one of {', '.join(packaged)}"
            f"{suggest_nearest(path.stem, packaged)}"
        )
    return _ConfigLocation(path.stem, None)


@dataclass(frozen=True)
class RenderedDocument:
    """A document in the form that a model reads.

    Attributes:
        text: The prefix, the text with inserted local metadata, and appended metadata.
        prefix: The prefix; empty if there is none.
        types: The rendered types, in the order of `metadata_list`.
    """

    text: str
    prefix: str
    types: tuple[str, ...]

    def __str__(self) -> str:
        return self.text


def render(
    document: GivenDocument,
    metadata: Mapping[str, Any] | None = None,
    *,
    types: Sequence[str] | None = None,
    config: Configuration | None = None,
    overrides: Sequence[str] = (),
) -> RenderedDocument:
    """Renders a document with its metadata, character for character like training.

    Training samples the types to show with each document. This function renders all types that the
    document has, or `types`.

    Args:
        document: A text, `{"text": …, "metadata": {…}}`, or a record of the training data.
        metadata: Values by type, which add to or replace values of the document: a string or
            number, a list of them, or a list of records for types with positions in the text.
        types: Keys of `metadata_list` to render; None: all of them.
        config: The name of a configuration, the path of a YAML file, or a configuration, such as
            `bsmeta.open_run(folder).config`; None: the default values of all keys.
        overrides: `key=value` as on the command line; only with a name or a path.

    Raises:
        UserError: If the document or the configuration is invalid.
    """
    run_config = compose_configuration(CausalLMConfig() if config is None else config, overrides)
    if not isinstance(run_config, CausalLMConfig):
        raise ConfigurationError(
            f"config: is for task={run_config.task}; expected task=causal_lm, which renders "
            "documents"
        )
    return DocumentReader(run_config.data_config).render(document, metadata, types)


class DocumentReader:
    """Reads documents from Python values, and renders them.

    Args:
        config: The configuration of the training data.
    """

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._metadata = config.metadata_config
        self._types = list(self._metadata.metadata_list)
        self._corpus_decoder = make_decoder(self._metadata, config.columns, content=config.content)
        self._plain_decoder = DocumentDecoder(MetadataConfig(metadata_list=[]))
        # A corpus may have an object `metadata` of its own.
        self._corpus_has_metadata = any(
            path.split(".")[0] == METADATA for path in config.columns.values()
        )
        self._renderer = Renderer(self._metadata)

    def read(self, document: GivenDocument, metadata: Mapping[str, Any] | None = None) -> Document:
        """Returns the document with its metadata as records.

        Args:
            metadata: Values by type, which add to or replace values of the document.

        Raises:
            DataError: If it is not a document, or has metadata that training would ignore.
        """
        if isinstance(document, str):
            document = {TEXT: document}
        if not isinstance(document, Mapping):
            raise DataError(
                f'a {type(document).__name__}; expected a string, or {{"text": …, "metadata": …}}'
            )
        if not isinstance(metadata, Mapping | None):
            raise DataError(f"metadata={metadata!r}: expected values by type: {{type: value}}")

        plain_keys = {TEXT} if self._corpus_has_metadata else {TEXT, METADATA}
        is_plain = document.keys() <= plain_keys
        values = document.get(METADATA)
        if is_plain and isinstance(values, Mapping):
            document = {**document, METADATA: None}
            metadata = {**values, **(metadata or {})}

        try:
            decoder = self._plain_decoder if is_plain else self._corpus_decoder
            decoded = decoder.decode(msgspec.json.encode(document))
            if not is_plain:
                self._refuse_ignored_values(document, decoded)
            return self._replace_metadata(decoded, metadata) if metadata else decoded
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(f"{error}; expected strings, numbers and lists of them") from error
        except BadDocument as error:
            raise DataError(f"{error} (it has {', '.join(map(repr, document))})") from error

    def _replace_metadata(self, document: Document, metadata: Mapping[str, Any]) -> Document:
        """Returns the document with other metadata for the given types."""
        records: list[dict[str, Any]] = []
        for key, value in metadata.items():
            records += self._make_records(key, value)
        replacement = self._plain_decoder.decode(msgspec.json.encode({TEXT: "", METADATA: records}))

        records_by_type = {}
        for key in self._types:
            source = replacement if key in metadata else document
            records_of_type = list(source.records(key))
            if records_of_type:
                records_by_type[key] = records_of_type
        return Document(document.text, document.url, records_by_type)

    def _make_records(self, key: str, value: Any) -> list[dict[str, Any]]:
        """Returns the records of a type for a value or a list of values."""
        if key not in self._types:
            raise DataError(
                f"metadata.{key}: not in metadata_list; expected some of "
                f"{', '.join(self._types) or '(it is empty)'}{suggest_nearest(key, self._types)}, "
                "or a "
                "configuration that has it there"
            )

        metadata_type = find_type(key)
        if value is None or (metadata_type.always_present and value is True):
            return []

        items = value if isinstance(value, list) else [value]
        return [self._make_record(key, item, metadata_type.is_local) for item in items]

    @staticmethod
    def _make_record(key: str, item: Any, is_local: bool) -> dict[str, Any]:
        """Returns the record of a type for a single value, or completes a given record."""
        if isinstance(item, date):
            item = item.isoformat()

        if isinstance(item, Mapping):
            return {**item, "key": key}
        if is_local or isinstance(item, bool) or not isinstance(item, (str, int, float)):
            expected = "a string or a number, or a list of them"
            if is_local:
                expected = "a list of records with value, char_start_idx and char_end_idx"
            raise DataError(f"metadata.{key}={item!r}: expected {expected}")
        return {"key": key, "type": "global", "value": item}

    def _refuse_ignored_values(self, document: Mapping[str, Any], decoded: Document) -> None:
        """Refuses a value under the name of a type that the training data stores elsewhere."""
        for key in self._types:
            is_value = isinstance(document.get(key), (str, int, float))
            if is_value and f"metadata_{key}" not in document and not decoded.has(key):
                raise DataError(
                    f"{key}={document[key]!r} is not read as metadata in the form of the training "
                    f'data; expected {{"text": …, "metadata": {{"{key}": …}}}}'
                )

    def render(
        self,
        document: GivenDocument,
        metadata: Mapping[str, Any] | None,
        types: Sequence[str] | None,
    ) -> RenderedDocument:
        """Renders a document; see the function `render`."""
        unknown = [name for name in types or () if name not in self._types]
        if unknown:
            raise DataError(
                f"types: {', '.join(unknown)} not in metadata_list; expected some of "
                f"{', '.join(self._types)}"
            )

        decoded = self.read(document, metadata)
        for key in types or ():
            columns = [f"metadata_{column}" for column in (key, *find_type(key).columns)]
            has_column = isinstance(document, Mapping) and any(map(document.get, columns))
            if has_column and not decoded.has(key):
                raise DataError(
                    f"types: {key}: metadata_column_list of the configuration leaves its column out"
                )

        rendered = self.render_types(decoded, self._types if types is None else types)
        if self._metadata.without_metadata_same_context:
            rendered = rendered.without_metadata()
        return RenderedDocument(rendered.whole, rendered.prefix, rendered.types)

    def render_types(self, document: Document, types: Sequence[str]) -> Rendered:
        """Renders a document with the requested types that it has.

        Raises:
            DataError: If a record is invalid, or the document too long to encode.
        """
        try:
            rendered = self._renderer.render(document, types)
            check_length(rendered, self._config)
        except BadDocument as error:
            raise DataError(str(error)) from error
        return rendered


def read_each(documents: Sequence[Any], read: Callable[[Any], Item], argument: str) -> list[Item]:
    """Reads each document of a list.

    Args:
        argument: The name of the argument, for messages.

    Raises:
        DataError: Lists all documents that cannot be read.
    """
    is_single = isinstance(documents, (str, bytes, Mapping))
    if is_single or not isinstance(documents, Sequence):
        raise DataError(
            f"{argument}: expected a list, found {type(documents).__name__}; write "
            f"{'[…]' if is_single else 'list(…)'} around it"
        )

    items = []
    problems = []
    for number, document in enumerate(documents):
        try:
            items.append(read(document))
        except DataError as error:
            problems.append(f"{argument}[{number}]: {error}")
    if problems:
        raise DataError("\n".join(problems))
    return items


def stream(
    config: Configuration, overrides: Sequence[str] = (), *, rank: int = 0, world_size: int = 1
) -> BatchStream:
    """Opens the training data of a configuration of any task, in the batches of `train.py`.

    Args:
        config: The name of a configuration, the path of a YAML file, or a configuration, such as
            `bsmeta.open_run(folder).config`.
        overrides: `key=value` as on the command line; only with a name or a path.
        rank: The number of this process, from 0.
        world_size: Number of processes that share the batches of a step.

    Raises:
        UserError: If the configuration or the data is invalid.
    """
    if not 0 <= rank < world_size:
        raise ConfigurationError(f"rank={rank}, world_size={world_size}: expected 0 <= rank < size")

    run_config = compose_configuration(config, overrides)
    check_configuration(run_config)
    with name_missing_extras():
        task = TASKS[run_config.task].make(run_config)
        return BatchStream(task, rank, world_size, run_config.gradient_accumulation_steps)


class BatchStream:
    """An endless iterator over the micro-batches of one process, in the order of training.

    `gradient_accumulation_steps` micro-batches make a step. A `MicroBatch` has the model's inputs
    in `tensors` (for a language model `input_ids`, `position_ids`, `loss_mask` and others, each
    [rows, length]), and the number of its targets in `weight`. The loss of a step is the sum of the
    losses of its micro-batches, divided by the sum of their weights over all processes.

    Attributes:
        step: Number of complete steps taken from it.
    """

    def __init__(self, task: Task, rank: int, world_size: int, accumulation: int) -> None:
        self._task = task
        self._rank = rank
        self._world_size = world_size
        self._accumulation = accumulation
        self.step = 0
        self._open(None)

    def _open(self, saved: dict[str, Any] | None) -> None:
        """Opens the stream of the task, from its beginning or from a saved state."""
        self._opened_from = saved
        self._stream = self._task.train_stream(self._rank, self._world_size, saved)
        self._steps = iter(self._stream)
        self._batches: Iterator[MicroBatch] = iter(())  # of the current step
        self._state = self._stream.state  # after the last complete step
        self._next_state = self._state  # after the current step
        self._taken = 0  # batches of the current step

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> MicroBatch:
        if not self._taken:
            step = next(self._steps)
            self._batches = iter(step.micro_batches)
            self._next_state = step.state

        batch = next(self._batches)
        self._taken += 1
        if self._taken == self._accumulation:
            self._state = self._next_state
            self._taken = 0
            self.step += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the batches taken so far, as values for JSON.

        Each of several processes saves its own state; all of them load the list of all states.
        """
        return {
            "rank": self._rank,
            "world_size": self._world_size,
            "step": self.step,
            "taken": self._taken,
            "opened_at": self._opened_from,
            "data": self._state,
            "fingerprint": self._stream.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues with the batches that follow a saved position.

        A state from the end of a step may be loaded with another number of processes.

        Args:
            state: The result of `state_dict`; for several processes the list of all their results.

        Raises:
            UserError: If the state belongs to other data, or the state of a process is missing.
        """
        states = [state] if isinstance(state, Mapping) else [*state]
        self._check_states(states)
        first = states[0]

        # The states of the processes can only be merged by a stream that was opened like theirs.
        if first["opened_at"] != self._opened_from:
            self._open(first["opened_at"])
        merged = self._stream.merge([saved["data"] for saved in states])
        self._open({"fingerprint": first["fingerprint"], **merged})

        self.step = first["step"]
        for _ in itertools.islice(self, first["taken"]):
            pass

    def _check_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Refuses states that are not the complete set from one position of all processes."""
        expected_keys = self.state_dict().keys()
        if not all(
            isinstance(state, Mapping) and expected_keys == state.keys() for state in states
        ):
            raise ConfigurationError("state: expected what state_dict() returned, or a list of it")

        size = states[0]["world_size"] if states else 0
        ranks = sorted(state["rank"] for state in states)
        if not states or ranks != list(range(size)):
            raise ConfigurationError(
                f"state: found those of processes {ranks}; expected a list with the state of each "
                f"of the {size} processes that shared the batches"
            )

        positions = {(state["step"], state["taken"]) for state in states}
        if len(positions) > 1:
            raise ConfigurationError(f"state: the processes are at different places: {positions}")
        if states[0]["taken"] and size != self._world_size:
            raise ConfigurationError(
                f"state: saved in the middle of a step by {size} processes, but there are now "
                f"{self._world_size}; expected the same number, or a state from the end of a step"
            )
