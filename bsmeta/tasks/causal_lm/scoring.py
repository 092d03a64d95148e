"""Windows of a document, the log-probabilities of their tokens, and the sums of paired readings.

`first_piece` and `all_pieces` use the chunks of training. `sliding` gives every token at least half
a sequence of preceding text as context, if the document has that much: each window repeats the last
half of the previous window and scores only the new tokens. A prefix takes up room in its window, so
metadata reduces the text context under `all_pieces`, and hardly does under `sliding`.

A text is tokenized differently with and without metadata (a tag splits a word, a space moves to
another token), and each reading leaves some tokens unscored (the first of a window, and tokens that
share characters with metadata). The character positions at which *both* readings have a token
boundary split the text into segments; a segment counts if both readings score all of its tokens.
Both readings are therefore summed over identical bytes.

Tokens that do not give their text back (unknown tokens, tokens of text that was lower-cased) stand
for other texts, too: no window scores them, and a segment with lost characters is left out and its
bytes are counted.

Batches depend on lengths alone, never on the number of processes: a document is always scored in
the same batch, so the metrics do not change with the world size. A batch is padded on the right and
needs no attention mask, because under causal attention a token never sees the padding after it.
Vocabulary logits are computed only where a token is scored (a hook on the output embedding selects
those rows) and, if the model permits it, a few rows at a time. On a GPU, rows and columns of
padding limit the number of distinct shapes, and attention uses no kernel that is planned separately
for each shape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import cross_entropy

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.progress import report_progress
from bsmeta.data.text.characters import coverage, utf8_lengths
from bsmeta.data.text.chunks import cut
from bsmeta.data.text.encoding import EncodedDocument
from bsmeta.models.kernel_plans import without_planned_attention
from bsmeta.models.shapes import positions_of

LOGITS_PER_CHUNK = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits that are computed, or held in float32, at one time (on a CPU few enough for its cache)."""

ROWS_PER_CHUNK = 64
"""Minimum rows per chunk: with fewer, the matrix product is inefficient."""

LOGITS_PER_BATCH = 1 << 29
"""Maximum number of logits (in the model's dtype) that one model call may return."""

BYTES, TOKENS, NATS_WITHOUT, NATS_WITH, TOKENS_WITH = range(5)
"""Columns of the sums: text bytes, tokens without, nats without and with metadata, tokens with."""

COLUMNS = 5

DOCUMENT, CONTEXT = range(2)
"""The two ways to bin segments: by byte offset in the document, or by bytes of preceding text in
the window. Both count the same segments, so the bins of either add up to the total."""

SIZE_DIGITS = {"cpu": 64, "cuda": 3}
"""Significant binary digits to which the rows and the width of a batch are rounded up, because a
GPU plans and allocates again for each new shape (64 digits leave the sizes on a CPU unchanged).
With 3 digits, 574 batches of 40 blocks of documents had 89 shapes instead of 484, and 5.5% more
tokens."""

FORWARD_OVERHEAD = 96
"""Cost of one model call, in tokens: padding below this is cheaper than another call."""


@dataclass(slots=True)
class Window:
    """One input sequence of the model: text of one document, after an optional prefix and context.

    Attributes:
        ids: int32 [n], token ids.
        starts: int32 [n], first character of each token in the original text.
        ends: int32 [n], character after its last; equal to `starts` if a token contains no text.
        scored: bool [n], tokens whose probability counts (never the first of the window).
        first_new: Index of the first token that belongs to this window; the tokens before it
            (prefix, context) only provide context.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    scored: np.ndarray
    first_new: int

    @property
    def key(self) -> tuple[bytes, bytes]:
        """The ids and the targets as bytes: windows with equal keys get equal scores."""
        return self.ids.tobytes(), self.scored.tobytes()


@dataclass(slots=True)
class Reading:
    """The tokens of one text in one arm, in any order; every character is in at most one token.

    Attributes:
        starts: int32 [n], first character of each token in the original text.
        ends: int32 [n], character after its last (greater than `starts`).
        nats: float64 [n], -ln p of each token; NaN if it is not scored.
        shown_from: int32 [n], first character of the text in the token's window.
        lost: bool [characters], characters that the tokens do not give back; None: none.
    """

    starts: np.ndarray
    ends: np.ndarray
    nats: np.ndarray
    shown_from: np.ndarray
    lost: np.ndarray | None = None


def cut_all_pieces(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """Cuts the whole document into chunks, as in training."""
    windows = []
    for chunk in cut(document, config):
        # Without metadata the first text token has no context, so no arm scores it, even if
        # training has a loss on it.
        chunk = replace(chunk, first_text_is_target=False)
        starts = chunk.text_starts
        ends = chunk.text_ends

        scored = chunk.loss_mask & (chunk.token_types == 0) & (ends > starts)
        scored &= document.gives_back(starts, ends)
        windows.append(Window(chunk.ids, starts, ends, scored, chunk.prefix_length))
    return windows


def cut_first_piece(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """Cuts off the first chunk of the document, at most one sequence long."""
    return cut_all_pieces(document, config)[:1]


def cut_sliding(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """Cuts the whole document into overlapping windows, with prefixes placed as in training."""
    metadata = config.metadata_config
    size = len(document.ids)
    is_text = (document.token_types == 0) & (document.text_ends > document.text_starts)
    first_text = int(np.argmax(is_text)) if is_text.any() else 0

    windows: list[Window] = []
    stop = 0
    while stop < size:
        has_prefix = not windows or metadata.prefix_on == "every_piece"
        prefix_ids = document.prefix_ids if has_prefix else document.prefix_ids[:0]
        prefix = len(prefix_ids)

        # The window has the tokens from `start` to `stop`; all from `first_new` on are new.
        first_new = stop
        room = metadata.max_seq_len - prefix
        start = max(first_new - room // 2, 0)
        stop = min(start + room, size)
        starts = document.text_starts[start:stop]
        ends = document.text_ends[start:stop]

        scored = is_text[start:stop].copy()
        scored[: first_new - start] = False
        if start == 0 and len(scored):  # without metadata, the first text token has no context
            scored[first_text : first_text + 1] = False
        scored &= document.gives_back(starts, ends)

        windows.append(
            Window(
                ids=np.concatenate((prefix_ids, document.ids[start:stop])),
                starts=np.pad(starts, (prefix, 0)),
                ends=np.pad(ends, (prefix, 0)),
                scored=np.pad(scored, (prefix, 0)),
                first_new=prefix + first_new - start,
            )
        )
    return windows


def cut_continuations(
    document: EncodedDocument, prefixes: Sequence[np.ndarray], room: int
) -> list[list[Window]]:
    """Cuts the whole text into chunks of up to `room` tokens, and puts each after every prefix.

    Returns:
        For each chunk a window for each prefix; nothing for a chunk of a single token.
    """
    end = len(document.ids) - 1  # without EOS
    chunks = []
    for start in range(0, end, room):
        part = slice(start, min(start + room, end))
        ids = document.ids[part]
        if len(ids) < 2:  # the first token of a chunk has no score
            continue

        starts = document.text_starts[part]
        ends = document.text_ends[part]
        scored = document.gives_back(starts, ends)
        scored[0] = False

        windows = []
        for prefix in prefixes:
            padding = (len(prefix), 0)
            windows.append(
                Window(
                    ids=np.concatenate((prefix, ids)),
                    starts=np.pad(starts, padding),
                    ends=np.pad(ends, padding),
                    scored=np.pad(scored, padding),
                    first_new=len(prefix),
                )
            )
        chunks.append(windows)
    return chunks


Windows = Callable[[EncodedDocument, DataConfig], list[Window]]
WINDOWS: dict[str, Windows] = {
    "first_piece": cut_first_piece,
    "all_pieces": cut_all_pieces,
    "sliding": cut_sliding,
}
"""How a document is cut into windows, by the name in the configuration."""


def make_reading(
    windows: list[Window], scores: list[np.ndarray], lost: np.ndarray | None
) -> Reading:
    """Collects the text tokens of a document with their nats.

    Args:
        windows: All windows of the document in one arm.
        scores: For each window, the log-probabilities of its scored tokens, float64.
        lost: The lost characters of the document (`EncodedDocument.lost`).
    """
    # Each list begins with an empty array, for documents without windows.
    starts = [np.zeros(0, np.int32)]
    ends = [np.zeros(0, np.int32)]
    nats = [np.zeros(0)]
    shown_from = [np.zeros(0, np.int32)]

    for window, log_probabilities in zip(windows, scores, strict=True):
        window_nats = np.full(len(window.ids), np.nan)
        window_nats[window.scored] = -log_probabilities

        holds_text = window.ends > window.starts
        first_character = int(window.starts[np.argmax(holds_text)]) if holds_text.any() else 0

        is_new_text = holds_text.copy()
        is_new_text[: window.first_new] = False
        starts.append(window.starts[is_new_text])
        ends.append(window.ends[is_new_text])
        nats.append(window_nats[is_new_text])
        shown_from.append(np.full(int(is_new_text.sum()), first_character, np.int32))

    return Reading(
        starts=np.concatenate(starts),
        ends=np.concatenate(ends),
        nats=np.concatenate(nats),
        shown_from=np.concatenate(shown_from),
        lost=lost,
    )


def sum_paired(
    without: Reading, with_metadata: Reading, text: str, edges: np.ndarray
) -> np.ndarray:
    """Sums both readings over the segments that count, by position in the document and by context.

    Args:
        edges: int [bins], byte positions at which the position bins begin; the first is 0.

    Returns:
        float64 [2, bins, COLUMNS]: the columns of each bin, by DOCUMENT and by CONTEXT (in the
        reading without metadata); a segment belongs to the bin in which it begins.
    """
    sums = np.zeros((2, len(edges), COLUMNS))
    if not text:
        return sums

    readings = (without, with_metadata)
    size = len(text)
    lengths = utf8_lengths(text)
    segment = _number_segments(readings, size)
    first_character = np.flatnonzero(np.diff(segment, prepend=-1))  # of each segment

    def by_segment(segments: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(segments, values, minlength=len(first_character))

    # A segment counts if neither reading leaves a character of it unscored or loses one.
    unscored = sum(by_segment(segment, _is_unscored(reading, size)) for reading in readings)
    is_counted = unscored == 0
    for reading in readings:
        if reading.lost is not None:
            is_counted &= by_segment(segment, reading.lost) == 0

    # Positions of the segments in bytes: in the document, and after the start of the window's text.
    offsets = np.cumsum(lengths) - lengths
    shown_from = np.zeros(size, dtype=np.int64)
    shown_from[without.starts] = without.shown_from
    position = offsets[first_character]
    context = position - offsets[shown_from[first_character]]

    token_segment = segment[without.starts]
    token_segment_with = segment[with_metadata.starts]
    columns = {
        BYTES: by_segment(segment, lengths),
        TOKENS: by_segment(token_segment),
        NATS_WITHOUT: by_segment(token_segment, np.nan_to_num(without.nats)),
        NATS_WITH: by_segment(token_segment_with, np.nan_to_num(with_metadata.nats)),
        TOKENS_WITH: by_segment(token_segment_with),
    }
    for axis, segment_position in ((DOCUMENT, position), (CONTEXT, context)):
        bins = np.searchsorted(edges, segment_position[is_counted], side="right") - 1
        for column, values in columns.items():
            sums[axis, :, column] = np.bincount(bins, values[is_counted], minlength=len(edges))
    return sums


def count_lost_bytes(without: Reading, with_metadata: Reading, text: str) -> int:
    """Counts the bytes that `sum_paired` leaves out because a reading loses text."""
    readings = (without, with_metadata)
    losses = [reading.lost for reading in readings if reading.lost is not None]
    if not losses:
        return 0

    segment = _number_segments(readings, len(text))
    is_left_out = np.bincount(segment, np.logical_or.reduce(losses)) > 0
    return int(utf8_lengths(text)[is_left_out[segment]].sum())


def _number_segments(readings: Sequence[Reading], size: int) -> np.ndarray:
    """Returns the number of each character's segment: int64 [size].

    A segment begins at each character that no token extends into.
    """
    inside = sum(coverage(reading.starts + 1, reading.ends, size) for reading in readings)
    return np.cumsum(inside == 0) - 1


def _is_unscored(reading: Reading, size: int) -> np.ndarray:
    """Whether each character is in no token or in an unscored token: bool [size]."""
    missing = np.isnan(reading.nats)
    unscored = coverage(reading.starts[missing], reading.ends[missing], size)
    return (coverage(reading.starts, reading.ends, size) == 0) | (unscored > 0)


def limit_batch_tokens(vocabulary: int, rows: int, row_length: int) -> int:
    """Returns the maximum number of tokens in a batch.

    It is `rows` full sequences, and fewer for a large vocabulary (LOGITS_PER_BATCH).
    """
    return max(min(rows * row_length, LOGITS_PER_BATCH // max(vocabulary, 1)), row_length)


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups windows into padded batches at minimum cost.

    Windows are sorted by length and split into consecutive groups by dynamic programming; the cost
    of a batch is its rows times its longest row (padding included), plus a constant per model call.

    Args:
        max_tokens: Maximum padded size of a batch (a longer window forms a batch of its own).

    Returns:
        Batches of window indices, the longest windows first.
    """
    order = np.argsort(np.asarray(lengths, dtype=np.int64), kind="stable")
    ordered = np.asarray(lengths, dtype=np.int64)[order]

    # best_cost[end] is the lowest cost of the first `end` windows; their last batch then begins
    # at batch_start[end].
    best_cost = np.zeros(len(order) + 1)
    batch_start = np.zeros(len(order) + 1, dtype=np.int64)
    for end in range(1, len(order) + 1):
        longest = max(int(ordered[end - 1]), 1)
        first = end - max(min(end, max_tokens // longest), 1)
        starts = np.arange(first, end)
        costs = best_cost[first:end] + (end - starts) * longest
        cheapest = int(np.argmin(costs))
        best_cost[end] = costs[cheapest] + FORWARD_OVERHEAD
        batch_start[end] = first + cheapest

    batches = []
    end = len(order)
    while end > 0:
        batches.append([int(i) for i in order[batch_start[end] : end][::-1]])
        end = int(batch_start[end])
    return batches


def round_up(size: int, digits: int) -> int:
    """Returns the smallest number >= `size` with at most `digits` significant binary digits."""
    step = 1 << max(size.bit_length() - digits, 0)
    return -(-size // step) * step


def unwrap(model: nn.Module) -> nn.Module:
    """Returns the model without any wrappers (DDP, DeepSpeed)."""
    while isinstance(module := getattr(model, "module", None), nn.Module):
        model = module  # DDP and the DeepSpeed engine keep the model there
    return model


def find_output_embedding(model: nn.Module) -> nn.Module:
    """Returns the layer that computes logits.

    Raises:
        ConfigurationError: The model has none, so it is not a language model.
    """
    inner = unwrap(model)
    get_head = getattr(inner, "get_output_embeddings", None)
    head = get_head() if callable(get_head) else None
    if not isinstance(head, nn.Module):
        raise ConfigurationError(
            f"{type(inner).__name__} has no output embedding: only causal language models can be "
            "evaluated in bits per byte. Give a checkpoint of the causal_lm task."
        )
    return head


@contextmanager
def open_scorer(model: nn.Module, device: torch.device) -> Iterator[Scorer]:
    """Yields a scorer for a model, wrapped or not, which is in evaluation mode in the context."""
    was_training = model.training
    model.eval()
    with without_planned_attention():
        scorer = Scorer(model, device)
        try:
            yield scorer
        finally:
            scorer.hook.remove()
            model.train(was_training)


class Scorer:
    """Scores batches of windows with a model that `open_scorer` has put into evaluation mode."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._head = find_output_embedding(model)
        digits = SIZE_DIGITS.get(device.type, SIZE_DIGITS["cuda"])
        self._pad_size = partial(round_up, digits=digits)
        shape = getattr(unwrap(model), "config", None)
        self._positions = None if shape is None else positions_of(shape)

        # .rows: positions of the hidden states to pass to the head; .hidden: these hidden states
        self._selection = threading.local()
        self.hook = self._head.register_forward_pre_hook(self._select_rows)

        # A wrapped model may be sharded over ranks: then all ranks must make the same calls.
        self._is_bare = unwrap(model) is model and not isinstance(model, FSDPModule)
        self._by_rows = False
        if self._is_bare:
            self._by_rows = self._returns_output_of_head()

    def _returns_output_of_head(self) -> bool:
        """Whether the logits are the head's unchanged output (some models scale them).

        If they are, the head can be applied to a few rows at a time.
        """
        with torch.no_grad():
            logits, hidden = self.call_dummy()
            output = self._head(hidden)
        return output.dtype == logits.dtype and torch.equal(output, logits)

    def score(self, batches: Sequence[Sequence[Window]]) -> list[list[np.ndarray]]:
        """Scores batches of windows.

        Returns:
            For each batch and window: float64 [number of its scored tokens], natural
            log-probabilities.
        """
        threads = torch.get_num_threads()
        if self._device.type != "cpu" or not self._is_bare or threads == 1 or len(batches) < 2:
            return [self._score_batch(batch) for batch in batches]

        # one thread per batch: sharing each small operation among threads is slower
        try:
            torch.set_num_threads(1)
            with ThreadPoolExecutor(
                threads, initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                return list(pool.map(self._score_batch, batches))
        finally:
            torch.set_num_threads(threads)

    def call_dummy(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Calls the model on any two tokens, so that all ranks make the same number of calls.

        Under ZeRO-3 (and under DDP if buffers are synchronized) a forward pass is collective.
        """
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self._device)
        return self._call(ids, ids[0, :1])

    @torch.no_grad()
    def _score_batch(self, windows: Sequence[Window]) -> list[np.ndarray]:
        lengths = [len(window.ids) for window in windows]
        longest = max(lengths)
        width = self._pad_size(longest)
        if self._positions is not None:
            width = max(min(width, self._positions), longest)

        ids = np.zeros((self._pad_size(len(windows)), width), dtype=np.int64)
        row_list: list[np.ndarray] = []
        target_list: list[np.ndarray] = []
        for number, window in enumerate(windows):
            ids[number, : lengths[number]] = window.ids
            positions = np.flatnonzero(window.scored)
            row_list.append(number * width + positions - 1)  # position j - 1 predicts token j
            target_list.append(window.ids[positions])

        rows = np.concatenate(row_list)
        targets = np.concatenate(target_list).astype(np.int64)
        scores = self._score_rows(
            torch.from_numpy(ids).to(self._device),
            torch.from_numpy(rows).to(self._device),
            torch.from_numpy(targets).to(self._device),
        )
        values = scores.cpu().numpy().astype(np.float64)
        report_progress()
        return np.split(values, np.cumsum([len(part) for part in row_list])[:-1])

    def _score_rows(
        self, ids: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Returns log-probabilities float32 [n] of targets [n] at flat positions [n] in ids [b, l].

        A chunk of rows at a time is converted to float32, to limit the memory (LOGITS_PER_CHUNK).
        """
        logits, hidden = self._call(ids, rows)
        source = hidden if self._by_rows else logits
        chunk_size = LOGITS_PER_CHUNK.get(self._device.type, LOGITS_PER_CHUNK["cuda"])
        step = max(chunk_size // max(logits.shape[-1], 1), ROWS_PER_CHUNK)

        parts = [logits.new_zeros(0, dtype=torch.float32)]
        for start in range(0, len(targets), step):
            chunk = source[start : start + step]
            if self._by_rows:
                chunk = self._head(chunk)
            gold = targets[start : start + step]
            parts.append(-cross_entropy(chunk.float(), gold, reduction="none"))
        return torch.cat(parts)

    @torch.no_grad()
    def _call(self, ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the model's logits, and the inputs of its head, at flat positions of `ids`.

        If the head is applied by rows, the model call itself computes no logits.
        """
        self._selection.rows = rows
        try:
            logits = self._model(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._selection.rows = None
        return logits, self._selection.hidden

    def _select_rows(
        self, _: nn.Module, inputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Pre-forward hook of the head: passes only the selected hidden states."""
        rows = getattr(self._selection, "rows", None)
        if rows is None:  # a direct call of the head
            return inputs

        hidden = inputs[0].flatten(0, -2)[rows]
        self._selection.hidden = hidden
        passed = hidden[:0] if self._by_rows else hidden
        return (passed.unsqueeze(0), *inputs[1:])
