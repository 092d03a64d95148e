"""The training stream of one rank: its steps, from the start or from a saved state.

Last stage, and what the task passes to the trainer. The trainer merges the states of all ranks
after a step and saves the result with the fingerprint; passed back here, in a run of any world size
and number of loader processes, it continues exactly the same sequence of global batches.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig, check_data, row_length
from bsmeta.data.batch import SequenceBlocks, StepData, steps
from bsmeta.data.prepare import PreparedStreams
from bsmeta.data.stream.fingerprint import begun, check_fingerprint
from bsmeta.data.stream.live import LiveStreams, phases_of
from bsmeta.data.stream.packing import PackedSequence
from bsmeta.data.stream.plan import Position, division, sequence_order, sequences_done
from bsmeta.data.stream.sources import Survey, survey_data
from bsmeta.data.stream.windows import count_names, source_count_names, source_counts


class TrainStream:
    """This rank's steps in the order of the run; endless.

    Args:
        tokenizer: A fast tokenizer with an EOS token, special tokens of the metadata added.
        max_train_steps: Steps of the run, which the shares of the metadata schedule divide; only
            needed with a schedule.
        decay_start: Steps before the decay of the learning rate, at which a phase may begin.
        is_branch: Whether the state may be of a run whose schedule differs from here on.
        state: `{"fingerprint": ..., "streams": {number: position}}` as saved with a checkpoint;
            None starts from the beginning.
        survey: The data, as one process found it for all; None looks at it here.
        fixed_length: Whether all micro-batches must have the same shape; otherwise rows whose
            length varies (`row_budget=text`) are only padded to about the longest of theirs.

    Raises:
        ConfigurationError: If a divisibility constraint is violated, a key has an unknown value,
            or the state belongs to other data.
        DataError: If shards are missing, or a stream would have none.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        seed: int,
        rank: int,
        world_size: int,
        global_batch_size: int,
        max_train_steps: int | None = None,
        decay_start: int | None = None,
        is_branch: bool = False,
        state: dict[str, Any] | None = None,
        survey: Survey | None = None,
        fixed_length: bool = False,
    ) -> None:
        check_data(config)
        self._config = config
        self._narrow = config.row_budget == BY_TEXT and not fixed_length
        self._global_batch_size = global_batch_size
        self._accumulation = global_batch_size // world_size // config.per_device_train_batch_size
        self._division = division(
            config.num_streams,
            rank=rank,
            world_size=world_size,
            num_workers=config.num_workers,
            global_batch_size=global_batch_size,
            micro_batch_size=config.per_device_train_batch_size,
        )
        assert max_train_steps is not None or not config.metadata_config.schedule
        phases = phases_of(config, max_train_steps or 0, global_batch_size, decay_start)
        self._first_steps = [start // global_batch_size + 1 for start in phases.starts]
        survey = survey or survey_data(config)
        self._streams: LiveStreams | PreparedStreams
        if config.prepared is not None:
            self._streams = PreparedStreams(config, tokenizer, seed, phases, survey)
        else:
            self._streams = LiveStreams(config, tokenizer, seed, phases, survey)
            if rank == 0:
                self._streams.warn_of_slow_resumes()
        # Prepared sequences work with both kinds of attention; a run uses only one.
        self.fingerprint = {
            **self._streams.fingerprint,
            "cross_document_attention": config.cross_document_attention,
        }
        self._pad = tokenizer.pad_token_id
        if self._pad is None:
            self._pad = tokenizer.eos_token_id
        self._positions: dict[int, Position] = {}
        self._order = sequence_order(config)
        if state is not None:
            streams = state["streams"].items()
            saved, current = state["fingerprint"], self.fingerprint
            if is_branch:
                done = sum(Position.from_state(position).emitted for _, position in streams)
                saved, current = begun(saved, done), begun(current, done)
            check_fingerprint(saved, current, config.on_changed_data)
            self._positions = {
                int(stream): Position.from_state(position) for stream, position in streams
            }
        self._done = sequences_done(self._positions, self._order)

    @property
    def state(self) -> dict[str, Any]:
        """The state of this rank before its first step."""
        return {"streams": {}}

    def __iter__(self) -> Iterator[StepData]:
        """The steps from the state on."""
        config, metadata = self._config, self._config.metadata_config
        size = config.per_device_train_batch_size
        blocks = SequenceBlocks(
            self._sequences,
            size=size,
            length=row_length(config),
            pad=self._pad,
            joined=config.cross_document_attention,
            num_streams=config.num_streams if config.sources else None,
        )
        names = count_names(metadata.metadata_list)
        names += source_count_names([source.name for source in config.sources])
        own: dict[int, dict[str, int]] = {}
        first = self._done // self._global_batch_size + 1
        read = steps(
            blocks, size, self._accumulation, config.num_workers, names, narrow=self._narrow
        )
        for step, (batches, positions) in enumerate(read, first):
            own |= {stream: position.state() for stream, position in positions.items()}
            phase = bisect.bisect_right(self._first_steps, step) - 1
            yield StepData(batches, {"streams": dict(own)}, phase)

    def merge(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Merge the positions of the streams that each rank has read into those of all streams."""
        streams = {number: position.state() for number, position in self._positions.items()}
        for state in states:
            streams |= {int(number): position for number, position in state["streams"].items()}
        return {"streams": dict(sorted(streams.items()))}

    def _sequences(self, worker: int) -> Iterator[PackedSequence]:
        """The sequences of one loader process; a stream is opened on its first turn."""
        opened: dict[int, Iterator[PackedSequence]] = {}
        read = self._counted if self._config.sources else self.sequences
        for number in self._division.sequences(self._done, worker):
            stream = self._order.stream(number)
            if stream not in opened:
                opened[stream] = read(stream)
            yield next(opened[stream])

    def _counted(self, stream: int) -> Iterator[PackedSequence]:
        """The sequences of a stream of a mixture, with what they add to the counts of sources."""
        sources, num_streams = len(self._config.sources), self._config.num_streams
        source, place = divmod(stream, num_streams)
        portions = self._order.portions(source)
        share = portions[place] / sum(portions)
        epoch = self._positions.get(stream, Position()).epoch
        for sequence in self.sequences(stream):
            begun = sequence.position_after.epoch - epoch
            epoch = sequence.position_after.epoch
            own = source_counts(source, sources, len(sequence.ids), begun * share)
            sequence.counts = np.concatenate((sequence.counts, own))
            yield sequence

    def sequences(self, stream: int) -> Iterator[PackedSequence]:
        """The packed sequences of a stream, from where this run is in it."""
        return self._streams.sequences(stream, self._positions.get(stream, Position()))
