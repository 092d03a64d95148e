"""The logical streams, produced from the shards during training, and their fingerprint.

Sits between `stream`, which divides sequences among ranks, and `streams`, which produces those of
one logical stream. `prepared` has the same role for sequences prepared in advance.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError, DataError
from bsmeta.config.metadata import phase_starts
from bsmeta.data.cache import Cache
from bsmeta.data.dealing import Share, deal
from bsmeta.data.fingerprint import fingerprint
from bsmeta.data.held_out import HeldOutDocuments
from bsmeta.data.hub import FileRef
from bsmeta.data.lines import first_lines
from bsmeta.data.packed import PackedSequence
from bsmeta.data.plan import Phases, Position
from bsmeta.data.shards import Shard, validation_path, what_it_is
from bsmeta.data.sources import Source, source_of
from bsmeta.data.streams import LogicalStream
from bsmeta.data.windows import WindowMaker

log = logging.getLogger(__name__)

SAMPLE_LINES = 8


class LiveStreams:
    """All logical streams of a run, read from the shards.

    Args:
        config: The sources of documents, and how they are turned into sequences.
        tokenizer: A fast tokenizer with an EOS token, special tokens of the metadata added.
        seed: Seed of the run.
        phases: When the metadata schedule switches phases.

    Attributes:
        shards: The shards.
        fingerprint: Everything that determines the sequences.

    Raises:
        ConfigurationError: If a key has an invalid value, or there are too many streams.
        DataError: If shards are missing.
    """

    def __init__(
        self, config: DataConfig, tokenizer: PreTrainedTokenizerBase, seed: int, phases: Phases
    ) -> None:
        self._config = config
        self._seed = seed
        self._phases = phases
        self._source = source_of(config)
        self.shards = self._source.shards()
        self._dealt = deal(self.shards, config.num_streams)
        check_streams_have_documents(self._source, self._dealt, config)
        self._maker = WindowMaker(
            config,
            tokenizer,
            seed,
            held_out=held_out(config, Cache(config.cache_dir)),
            sample=[
                line
                for shard in some_of(self.shards)
                for line in self._source.first_lines(shard, SAMPLE_LINES)
            ],
        )
        self.fingerprint = fingerprint(
            config, tokenizer, seed, phases, self._source.fingerprint(self.shards)
        )

    def sequences(
        self, stream: int, position: Position, epochs: int | None = None
    ) -> Iterator[PackedSequence]:
        """The sequences of a stream; see `LogicalStream.sequences`."""
        shares = self._dealt[stream]
        logical = LogicalStream(
            stream, shares, self._maker, self._config, self._seed, self._source, self._phases
        )
        return logical.sequences(position, epochs)

    def warn_of_slow_resumes(self) -> None:
        """Logs a warning if shards can only be read from their beginning."""
        slow = [shard for shard in self.shards if str(shard.path).endswith(".zst")]
        if slow:
            log.warning(
                "%d of the %d shards are .zst, which has no access points: a resumed run reads "
                "such a shard again up to its place (.gz and plain .jsonl are entered anywhere)",
                len(slow),
                len(self.shards),
            )


def check_streams_have_documents(
    source: Source, dealt: Sequence[Sequence[Share]], config: DataConfig
) -> None:
    """Checks that streams that do not own the beginning of a shard have at least one document.

    Raises:
        ConfigurationError: If a stream has none.
    """
    for stream, shares in enumerate(dealt):
        firsts = [(share, share.documents(0, 1)[0]) for share in shares]
        if any(first == 0 for _, first in firsts):
            continue
        if not any(source.has_line(share.shard, first) for share, first in firsts):
            where = ", ".join(f"{share.shard.name} from document {n} on" for share, n in firsts)
            raise ConfigurationError(
                f"data_config.num_streams={config.num_streams} is too many: no document is left "
                f"for stream {stream}, which would own some of {where}; lower num_streams, or add "
                "shards"
            )


def held_out(config: DataConfig, cache: Cache) -> HeldOutDocuments | None:
    """The documents that must not be trained on; None without a validation file.

    Raises:
        DataError: If the validation file cannot be read.
    """
    path = validation_path(config)
    if path is None:
        return None
    if not isinstance(path, FileRef) and not os.path.exists(path):
        log.warning(
            "data_config.validation_file: %s is not there: it is left out by name only", path
        )
        return None
    if not isinstance(path, FileRef) and not os.path.isfile(path):  # a pipe would block the run
        raise DataError(
            f"data_config.validation_file: {path} is {what_it_is(path)}; expected a file of "
            "documents"
        )
    try:
        return HeldOutDocuments.of(path, cache)
    except OSError as error:
        raise DataError(f"data_config.validation_file: {path} cannot be read: {error}") from error


def some_of(shards: Sequence[Shard]) -> list[Shard]:
    """A few shards, the same on every rank."""
    return [shards[index] for index in sorted({0, len(shards) // 2, len(shards) - 1})]


def sample_lines(shards: Sequence[Shard]) -> list[bytes]:
    """The first lines of a few shards."""
    return [line for shard in some_of(shards) for line in first_lines(shard.path, SAMPLE_LINES)]


def phases_of(config: DataConfig, max_train_steps: int, global_batch_size: int) -> Phases:
    """When the metadata schedule switches phases.

    Args:
        config: The data.
        max_train_steps: Steps of the run, which the schedule's shares divide.
        global_batch_size: Sequences per step over all processes.
    """
    starts = phase_starts(config.metadata_config, max_train_steps)
    return Phases(tuple(start * global_batch_size for start in starts), config.num_streams)
