"""The held-out shard: the documents to score, each decoded on access.

One pass over the file selects documents (it drops bad lines, empty texts and duplicates, and stops
at the maximum) and keeps a few numbers per document. The lines are kept in a temporary file, so
memory grows only by these numbers. Each document is rendered once before it is selected, so all
ranks agree on the documents and none fails later.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import xxhash

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.foreign_json import split_columns
from bsmeta.data.io.file_ref import FileRef
from bsmeta.data.io.file_start import explain_no_document, refuse_other_format
from bsmeta.data.io.files import refuse_bad_copy
from bsmeta.data.io.shard_lines import open_shard
from bsmeta.data.io.shards import (
    describe_non_file,
    describe_position,
    find_validation_path,
    read_remote_settings,
)
from bsmeta.data.stream.reasons import refine_error
from bsmeta.data.stream.stages.render import check_length
from bsmeta.metadata.decoding import TEXT_KEY, Decoder, make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.donors import Documents
from bsmeta.metadata.processors import map_columns
from bsmeta.metadata.records import BadDocument
from bsmeta.metadata.rendering import Renderer
from bsmeta.tasks.causal_lm.evaluation.training_overlap import TrainingOverlap

LINE_BATCH_SIZE = 256

IN_TRAINING_SHARDS = "in_training_shards"
"""Reason of documents that are left out because training shards of the run contain them."""


class NamedDocuments(Documents, Protocol):
    """Documents that can be scored, by index."""

    @property
    def sizes(self) -> Sequence[int]:
        """Length of each text in characters."""

    def name(self, index: int) -> str:
        """Returns the name of a document, for messages."""


class GivenDocuments:
    """Documents in memory, each with text and a name."""

    def __init__(self, documents: Sequence[Document], names: Sequence[str]) -> None:
        self._documents = documents
        self._names = names
        self.sizes = [len(document.text) for document in documents]

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> Document:
        return self._documents[index]

    def name(self, index: int) -> str:
        return self._names[index]


class HeldOutDocuments:
    """The documents of one shard, by index.

    Args:
        config: The file, the metadata to decode, and the handling of bad documents.
        max_documents: Maximum number of documents; None: all.
        deduplicate: Keep only the first of several documents with the same text.
        training_overlap: The documents in training shards of the run, from
            `find_training_overlap`; None if the run kept the file out of training, or if the
            documents are not scored.
        on_training_overlap: `error` refuses such documents, `drop` leaves them out.
        remote_file: The file, if it is remote and was already located.

    Attributes:
        training_overlap: As given.
        numbers: Number of each document's line in the file, from 0.
        sizes: Length of each text in characters.
        bytes: Length of each text in UTF-8 bytes.
        digests: xxh3 hash of each text.
        carried: Number of documents that carry each type when they are rendered with all types.
        changed: Number of documents to which rendering adds a prefix or local metadata.
        left_out: Number of documents left out, by reason.

    Raises:
        ConfigurationError: If no validation file is set.
        DataError: If the file does not exist, cannot be read, or contains no document to score; or
            if a document is in a training shard, and `on_training_overlap` is `error`.
    """

    def __init__(
        self,
        config: DataConfig,
        *,
        max_documents: int | None,
        deduplicate: bool,
        training_overlap: TrainingOverlap | None,
        on_training_overlap: str = "error",
        remote_file: FileRef | None = None,
    ) -> None:
        self.path = _locate_file(config, remote_file)
        self.training_overlap = training_overlap
        self.numbers = array("q")
        self.sizes = array("q")
        self.bytes = array("q")
        self.digests = array("Q")
        self.carried: Counter[str] = Counter()
        self.changed = 0
        self.left_out: Counter[str] = Counter()

        self._config = config
        self._decoder = self.open_decoder(config.metadata_config)
        self._renderer = Renderer(config.metadata_config)
        self._types = tuple(config.metadata_config.metadata_list)
        self._lines = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object)
        self._offsets = array("q", [0])
        self._seen: set[int] | None = set() if deduplicate else None
        self._first_overlap = ""  # description of the first document in a training shard

        self._select_documents(max_documents)
        if self._first_overlap and on_training_overlap == "error":
            self._refuse_training_documents()
        if not len(self):
            self._refuse_empty()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Document:
        return self._decoder.decode(self.read_line(index))

    def open_decoder(self, metadata: MetadataConfig) -> Decoder:
        """Makes a decoder of the documents' lines, for the types of `metadata`."""
        return make_decoder(metadata, self._config.columns, content=self._config.content)

    def read_line(self, index: int) -> bytes:
        """Returns the line that a document was read from."""
        start = self._offsets[index]
        stop = self._offsets[index + 1]
        self._lines.seek(start)
        return self._lines.read(stop - start)

    def name(self, index: int) -> str:
        """Returns `<shard file name>:<document number>`, the name that training uses as well."""
        return f"{os.path.basename(str(self.path))}:{self.numbers[index]}"

    def list_types(self) -> list[str]:
        """Lists the metadata types for which the documents have columns, sorted.

        The configuration maps the columns, or else they are named `metadata_…`.
        """
        if self._config.columns:
            return sorted(key for key in self._config.columns if key != TEXT_KEY)

        names: set[str] = set()
        for index in range(len(self)):
            for name in split_columns(self.read_line(index)):
                if name.startswith("metadata_"):
                    names.add(name.removeprefix("metadata_"))
        keys = map_columns()
        return sorted(keys.get(name, name) for name in names)

    def _select_documents(self, max_documents: int | None) -> None:
        """Reads the file, and selects documents until there are `max_documents`."""
        reader = open_shard(self.path)
        number = 0
        while lines := reader.read(reader.line, LINE_BATCH_SIZE):
            for line in lines:
                if max_documents is not None and len(self) >= max_documents:
                    return
                self._select_if_usable(number, bytes(line))
                number += 1

        if reader.damage:
            self._refuse_or_count(reader.line, BadDocument("damaged_file", reader.damage))
        reader.close()

    def _select_if_usable(self, number: int, line: bytes) -> None:
        """Selects the document of a line, unless it is bad, empty or a duplicate."""
        try:
            document = self._decoder.decode(line)
            rendered = self._renderer.render(document, self._types)
            check_length(rendered, self._config)
        except BadDocument as error:
            self._refuse_or_count(number, refine_error(line, error))
            return

        if not document.text:
            self.left_out["empty_text"] += 1
            return

        overlap = None
        if self.training_overlap is not None:
            overlap = self.training_overlap.find(document)
        if overlap is not None:
            self.left_out[IN_TRAINING_SHARDS] += 1
            position = describe_position(self.path, number)
            self._first_overlap = self._first_overlap or (
                f"{position} has the {overlap.part} of {overlap.position}"
            )
            return

        text = document.text.encode("utf-8", "surrogatepass")
        digest = xxhash.xxh3_64_intdigest(text)
        if self._seen is not None:
            if digest in self._seen:
                self.left_out["duplicate_text"] += 1
                return
            self._seen.add(digest)

        self.numbers.append(number)
        self.sizes.append(len(document.text))
        self.bytes.append(len(text))
        self.digests.append(digest)
        self.carried.update(rendered.types)
        self.changed += bool(rendered.prefix) or rendered.body != document.text

        self._lines.write(line)
        self._offsets.append(self._offsets[-1] + len(line))

    def _refuse_or_count(self, number: int, error: BadDocument) -> None:
        """Counts a bad document, or raises an error if `bad_documents` is `strict`."""
        if self._config.bad_documents == "strict":
            refuse_bad_copy(self.path)
            if number == 0:
                refuse_other_format(self.path, "data_config.validation_file")
            raise DataError(
                f"{self.path}, {describe_position(self.path, number)}: {error}; "
                "fix it, or set data_config.bad_documents=skip"
            ) from error
        self.left_out[error.reason] += 1

    def _refuse_training_documents(self) -> None:
        """Raises an error for documents in training shards."""
        assert self.training_overlap is not None
        num_refused = self.left_out[IN_TRAINING_SHARDS]
        raise DataError(
            f"validation_file={self.path}: {num_refused:,} of {num_refused + len(self):,} "
            "documents are in training shards of the run of checkpoint="
            f"{self.training_overlap.checkpoint}; the first: {self._first_overlap}; expected "
            "documents that the run was not trained on (evaluate.py and generate.py leave these "
            "out with on_training_overlap=drop; for a study, leave them out of "
            "measure.validation_file)"
        )

    def _refuse_empty(self) -> None:
        """Raises an error that says why no document was selected."""
        reason = explain_no_document(self.path)
        if reason is not None:
            raise DataError(f"data_config.validation_file: {self.path} {reason}")
        expected = "at least one JSON object a line with a non-empty `text`"
        if self.left_out[IN_TRAINING_SHARDS]:
            expected += " that is in no training shard of the run"
        raise DataError(
            f"{self.path}: no document to evaluate (left out: {dict(self.left_out)}); "
            f"expected {expected}"
        )


def _locate_file(config: DataConfig, remote_file: FileRef | None) -> str | FileRef:
    """Returns the held-out file; a remote file gets the cache settings of this configuration."""
    path = find_validation_path(config) if remote_file is None else remote_file
    if not path:
        raise ConfigurationError(
            "data_config.validation_file is not set; expected the path of a held-out "
            ".jsonl.gz shard (evaluate.py and generate.py: validation_file=PATH; "
            "experiments/downstream.py: --validation-file PATH)"
        )
    if not isinstance(path, FileRef) and not os.path.isfile(path):
        problem = f"does not exist (from {os.getcwd()})"
        if os.path.lexists(path):
            problem = f"is {describe_non_file(path)}"
        raise DataError(
            f"validation_file={path} {problem}; expected the path of a held-out .jsonl.gz shard"
        )
    if remote_file is not None:  # located by another process, which has a cache of its own
        return replace(remote_file, settings=read_remote_settings(config))
    return path
