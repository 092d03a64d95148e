"""What training reads, from Python: documents rendered with their metadata, and batches.

A document is a string (a text alone), `{"text": …, "metadata": {…}}` with values by type, or a
record in the form of the training data (`metadata_…` columns, or those of `data_config.columns`),
which is read by the decoder of the training data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks import value_problems
from bsmeta.config.compose import compose
from bsmeta.config.composition import NOTHING
from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.schema import RunConfig
from bsmeta.config.schema_choice import choose_schema
from bsmeta.config.task_entry import entry_of
from bsmeta.core.errors import ConfigurationError, DataError, naming_extras, nearest, refuse
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.keys import bound_problems
from bsmeta.data.batch import MicroBatch
from bsmeta.data.stream.windows import check_length
from bsmeta.metadata.decoding import TEXT, DocumentDecoder, make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.processors import type_of
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.tasks import TASKS
from bsmeta.training.task import Task

Configuration = str | Path | RunConfig

METADATA = "metadata"

GivenDocument = str | Mapping[str, Any]
Found = TypeVar("Found")


def configuration(config: Configuration, overrides: Sequence[str] = ()) -> RunConfig:
    """A training configuration of any task.

    Args:
        config: The name of a configuration (`bsmeta configs` lists them), the path of a YAML file,
            or a configuration.
        overrides: `key=value` as on the command line; not with a configuration.

    Raises:
        UserError: If there is no such configuration, or a value is not possible.
    """
    found = config if isinstance(config, RunConfig) else _composed(config, overrides)
    if found is config and overrides:
        raise ConfigurationError(
            f"overrides={[*overrides]}: expected a configuration by name, or by the path of a file"
        )
    refuse([*bound_problems(found)])
    return found


def check(config: RunConfig) -> None:
    """Refuses what training refuses, except what depends on its launch."""
    entry, problems = entry_of(config, TASKS)
    refuse([*problems, *value_problems(config), *entry.value_problems(config, NOTHING)])


def _composed(config: str | Path, overrides: Sequence[str]) -> RunConfig:
    if not isinstance(config, (str, Path)):
        raise ConfigurationError(
            f"config={config!r}: expected the name of a configuration, the path of a YAML file, or "
            "a configuration, such as bsmeta.open_run(folder).config"
        )
    if isinstance(overrides, str):
        raise ConfigurationError(f'overrides="{overrides}": expected a list: ["{overrides}"]')
    path = Path(config).expanduser()
    arguments, own_folder = ["--config-name", path.stem], None
    if path.suffix == ".yaml" or len(path.parts) > 1:
        own_folder = path.parent.resolve()
        arguments += ["--config-dir", str(own_folder)]
        if path.is_dir():
            raise ConfigurationError(
                f"config={config}: a folder; bsmeta.open_run({str(path)!r}).config is the "
                "configuration of a run"
            )
        if not path.with_suffix(".yaml").is_file():
            raise ConfigurationError(f"config={config}: there is no such file (from {Path.cwd()})")
    elif path.stem not in (known := sorted(file.stem for file in CONFIG_FOLDER.glob("*.yaml"))):
        raise ConfigurationError(
            f"config={config}: expected the path of a YAML file, or one of {', '.join(known)}"
            f"{nearest(path.stem, known)}"
        )
    schemas = [entry.schema for entry in TASKS.values()]
    return compose(choose_schema(arguments, schemas, ""), path.stem, overrides, own_folder)


@dataclass(frozen=True)
class RenderedDocument:
    """A document as a model reads it.

    Attributes:
        text: All of it: the prefix, the text with local metadata inserted, appended metadata.
        prefix: Its prefix; empty if there is none.
        types: The types that were rendered, in the order of `metadata_list`.
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
    """Renders a document with its metadata, character for character as training does.

    Training draws which types it shows a document with; here it is all that the document has, or
    `types`.

    Args:
        document: A text, `{"text": …, "metadata": {…}}`, or a record of the training data.
        metadata: Values by type, beside or instead of those of the document: a string or number,
            a list of them, or for types with places in the text a list of records.
        types: Keys of `metadata_list` to render; None: all of them.
        config: The name of a configuration, the path of a YAML file, or a configuration, such as
            `bsmeta.open_run(folder).config`; None: that without any key set.
        overrides: `key=value` as on the command line, with a configuration by name or path.

    Raises:
        UserError: If the document or the configuration is invalid.
    """
    found = configuration(CausalLMConfig() if config is None else config, overrides)
    if not isinstance(found, CausalLMConfig):
        raise ConfigurationError(
            f"config: is for task={found.task}; expected task=causal_lm, which renders documents"
        )
    return DocumentReader(found.data_config).render(document, metadata, types)


class DocumentReader:
    """Reads documents that are given as Python values, and renders them.

    Args:
        config: The configuration of the training data.
    """

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._metadata = config.metadata_config
        self._types = list(self._metadata.metadata_list)
        self._decoder = make_decoder(self._metadata, config.columns, content=config.content)
        self._values = DocumentDecoder(MetadataConfig(metadata_list=[]))
        # A corpus may have an object `metadata` of its own.
        self._corpus_has_metadata = any(
            path.split(".")[0] == METADATA for path in config.columns.values()
        )
        self._renderer = Renderer(self._metadata)

    def read(self, document: GivenDocument, metadata: Mapping[str, Any] | None = None) -> Document:
        """The document, with its metadata as records.

        Args:
            metadata: Values by type, beside or instead of those of the document.

        Raises:
            DataError: If it is not a document, or has metadata that would not be read.
        """
        if isinstance(document, str):
            document = {TEXT: document}
        if not isinstance(document, Mapping):
            raise DataError(
                f'a {type(document).__name__}; expected a string, or {{"text": …, "metadata": …}}'
            )
        if not isinstance(metadata, Mapping | None):
            raise DataError(f"metadata={metadata!r}: expected values by type: {{type: value}}")
        values = document.get(METADATA)
        plain = {TEXT} if self._corpus_has_metadata else {TEXT, METADATA}
        has_values = document.keys() <= plain
        if has_values and isinstance(values, Mapping):
            document, metadata = {**document, METADATA: None}, {**values, **(metadata or {})}
        try:
            decoder = self._values if has_values else self._decoder
            found = decoder.decode(msgspec.json.encode(document))
            if not has_values:
                self._refuse_unread(document, found)
            return self._with_values(found, metadata) if metadata else found
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(f"{error}; expected strings, numbers and lists of them") from error
        except BadDocument as error:
            raise DataError(f"{error} (it has {', '.join(map(repr, document))})") from error

    def _with_values(self, document: Document, metadata: Mapping[str, Any]) -> Document:
        """The document with other metadata of some types."""
        given = itertools.chain.from_iterable(self._records_of(*item) for item in metadata.items())
        values = self._values.decode(msgspec.json.encode({TEXT: "", METADATA: list(given)}))
        records = {
            key: list((values if key in metadata else document).records(key)) for key in self._types
        }
        kept = {key: own for key, own in records.items() if own}
        return Document(document.text, document.url, kept)

    def _records_of(self, key: str, value: Any) -> list[dict[str, Any]]:
        """The records of a type."""
        if key not in self._types:
            raise DataError(
                f"metadata.{key}: not in metadata_list; expected some of "
                f"{', '.join(self._types) or '(it is empty)'}{nearest(key, self._types)}, or a "
                "configuration that has it there"
            )
        kind = type_of(key)
        if value is None or (kind.always_present and value is True):
            return []
        records = []
        for one in value if isinstance(value, list) else [value]:
            one = one.isoformat() if isinstance(one, date) else one
            if isinstance(one, Mapping):
                records.append({**one, "key": key})
            elif kind.is_local or isinstance(one, bool) or not isinstance(one, (str, int, float)):
                expected = "a string or a number, or a list of them"
                if kind.is_local:
                    expected = "a list of records with value, char_start_idx and char_end_idx"
                raise DataError(f"metadata.{key}={one!r}: expected {expected}")
            else:
                records.append({"key": key, "type": "global", "value": one})
        return records

    def _refuse_unread(self, document: Mapping[str, Any], found: Document) -> None:
        """Refuses a value under the name of a type that the training data has elsewhere."""
        for key in self._types:
            is_value = isinstance(document.get(key), (str, int, float))
            if is_value and f"metadata_{key}" not in document and not found.has(key):
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
        """Renders a document as `render` does."""
        unknown = [name for name in types or () if name not in self._types]
        if unknown:
            raise DataError(
                f"types: {', '.join(unknown)} not in metadata_list; expected some of "
                f"{', '.join(self._types)}"
            )
        own = self.read(document, metadata)
        for key in types or ():
            columns = [f"metadata_{column}" for column in (key, *type_of(key).columns)]
            given = isinstance(document, Mapping) and any(map(document.get, columns))
            if given and not own.has(key):
                raise DataError(
                    f"types: {key}: metadata_column_list of the configuration leaves its column out"
                )
        shown = self.rendered(own, self._types if types is None else types)
        if self._metadata.without_metadata_same_context:
            shown = shown.without_metadata()
        return RenderedDocument(shown.whole, shown.prefix, shown.types)

    def rendered(self, document: Document, types: Sequence[str]) -> Rendered:
        """A document with those of the types that it has.

        Raises:
            DataError: If a record is invalid, or the document too long to encode.
        """
        try:
            found = self._renderer.render(document, types)
            check_length(found, self._config)
        except BadDocument as error:
            raise DataError(str(error)) from error
        return found


def for_each(documents: Sequence[Any], read: Callable[[Any], Found], argument: str) -> list[Found]:
    """Reads each of the documents.

    Args:
        argument: The name of the argument, for messages.

    Raises:
        DataError: Lists all documents that cannot be read.
    """
    is_one = isinstance(documents, (str, bytes, Mapping))
    if is_one or not isinstance(documents, Sequence):
        raise DataError(
            f"{argument}: expected a list, found {type(documents).__name__}; write "
            f"{'[…]' if is_one else 'list(…)'} around it"
        )
    found, problems = [], []
    for number, document in enumerate(documents):
        try:
            found.append(read(document))
        except DataError as error:
            problems.append(f"{argument}[{number}]: {error}")
    if problems:
        raise DataError("\n".join(problems))
    return found


def stream(
    config: Configuration, overrides: Sequence[str] = (), *, rank: int = 0, world_size: int = 1
) -> BatchStream:
    """Opens the training data of a configuration, of any task: the batches that `train.py` gets.

    Args:
        config: The name of a configuration, the path of a YAML file, or a configuration, such as
            `bsmeta.open_run(folder).config`.
        overrides: `key=value` as on the command line.
        rank: The number of this process, from 0.
        world_size: Processes that share the batches of a step.

    Raises:
        UserError: If the configuration or the data is invalid.
    """
    if not 0 <= rank < world_size:
        raise ConfigurationError(f"rank={rank}, world_size={world_size}: expected 0 <= rank < size")
    found = configuration(config, overrides)
    check(found)
    with naming_extras():
        task = TASKS[found.task].make(found)
        return BatchStream(task, rank, world_size, found.gradient_accumulation_steps)


class BatchStream:
    """An endless iterator over the micro-batches of one process, in the order of training.

    Every `gradient_accumulation_steps` of them make a step. A `MicroBatch` has the inputs of the
    model in `tensors` (of a language model `input_ids`, `position_ids`, `loss_mask` and others,
    each [rows, length]), and the number of its targets in `weight`: the loss of a step is the sum
    of its losses, divided by the sum of the weights over all processes.

    Attributes:
        step: Complete steps that have been taken from it.
    """

    def __init__(self, task: Task, rank: int, world_size: int, accumulation: int) -> None:
        self._task = task
        self._rank = rank
        self._world_size = world_size
        self._accumulation = accumulation
        self.step = 0
        self._open(None)

    def _open(self, saved: dict[str, Any] | None) -> None:
        self._saved = saved
        self._stream = self._task.train_stream(self._rank, self._world_size, saved)
        self._steps = iter(self._stream)
        self._batches: Iterator[MicroBatch] = iter(())
        self._state = self._stream.state  # after the last complete step
        self._next_state = self._state
        self._taken = 0  # batches of the step that follows it

    def __iter__(self) -> BatchStream:
        return self

    def __next__(self) -> MicroBatch:
        if not self._taken:
            step = next(self._steps)
            self._batches, self._next_state = iter(step.micro_batches), step.state
        batch = next(self._batches)
        self._taken += 1
        if self._taken == self._accumulation:
            self._state, self._taken = self._next_state, 0
            self.step += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The place after the batches that were taken so far, as values for JSON.

        Several processes save one each, and load the list of all.
        """
        return {
            "rank": self._rank,
            "world_size": self._world_size,
            "step": self.step,
            "taken": self._taken,
            "opened_at": self._saved,
            "data": self._state,
            "fingerprint": self._stream.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues after a saved place: the next batches are those that came after it.

        At the end of a step, a stream of another number of processes may continue it.

        Args:
            state: What `state_dict` returned; of several processes the list of all of theirs.

        Raises:
            UserError: If the state is of other data, or that of a process is missing.
        """
        states = [state] if isinstance(state, Mapping) else [*state]
        first = self._checked(states)
        if first["opened_at"] != self._saved:
            self._open(first["opened_at"])  # which the states of the processes continue
        merged = self._stream.merge([one["data"] for one in states])
        self._open({"fingerprint": first["fingerprint"], **merged})
        self.step = first["step"]
        for _ in itertools.islice(self, first["taken"]):
            pass

    def _checked(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The first of the states of all processes, which are at the same place."""
        expected = self.state_dict().keys()
        if not all(isinstance(state, Mapping) and expected == state.keys() for state in states):
            raise ConfigurationError("state: expected what state_dict() returned, or a list of it")
        size = states[0]["world_size"] if states else 0
        ranks = sorted(state["rank"] for state in states)
        if not states or ranks != list(range(size)):
            raise ConfigurationError(
                f"state: found those of processes {ranks}; expected a list with the state of each "
                f"of the {size} processes that shared the batches"
            )
        places = {(state["step"], state["taken"]) for state in states}
        if len(places) > 1:
            raise ConfigurationError(f"state: the processes are at different places: {places}")
        if states[0]["taken"] and size != self._world_size:
            raise ConfigurationError(
                f"state: saved in the middle of a step by {size} processes, but there are now "
                f"{self._world_size}; expected the same number, or a state from the end of a step"
            )
        return states[0]
