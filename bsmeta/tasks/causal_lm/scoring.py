"""Windows of a document, the log-probabilities of their tokens, and the sums of paired readings.

`first_piece` and `all_pieces` use the chunks of training. `sliding` gives every token at least half
a sequence of preceding text as context, if there is that much: each window repeats the last half of
the previous window and scores only the new tokens. A prefix takes up room in its window, so under
`all_pieces` metadata reduces the text context; under `sliding` it hardly does.

A text is tokenized differently with and without metadata (a tag splits a word, a space moves to
another token), and each reading leaves some tokens unscored (the first of a window, those that
share characters with metadata). The character positions at which *both* readings have a token
boundary split the text into segments; a segment counts if both readings score all of its tokens. So
both are summed over identical bytes.

Tokens that do not give their text back (unknown ones, those of text that was lower-cased) stand for
other texts, too: no window scores them, and a segment with lost characters is left out and counted.

Batches depend on lengths alone, never on the number of processes: a document is always scored in
the same batch, so the metrics do not change with the world size. A batch is padded on the right and
needs no attention mask: under causal attention a token never sees the padding after it. Vocabulary
logits are computed only where a token is scored (a hook on the output embedding selects those rows)
and, if the model permits it, a few rows at a time. On a GPU, rows and columns of padding limit the
number of distinct shapes, and attention uses no kernel that is planned for each of them.
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
the window (both count the same segments, so the bins of either add up to the total)."""


SIZE_DIGITS = {"cpu": 64, "cuda": 3}
"""Significant binary digits of the rows and the width of a batch, which are padded up to them: a
GPU plans and allocates again for each new shape (on a CPU, sizes are left as they are). With 3, 574
batches of 40 blocks of documents had 89 shapes instead of 484, and 5.5% more tokens."""

FORWARD_OVERHEAD = 96
"""Cost of one model call in tokens: less padding than this costs less than another call."""


@dataclass(slots=True)
class Window:
    """One input sequence of the model: text of one document, after an optional prefix and context.

    Attributes:
        ids: int32 [n], token ids.
        starts: int32 [n], first character of each token in the original text.
        ends: int32 [n], character after its last; equal to `starts` if a token contains no text.
        scored: bool [n], tokens whose probability counts (never the first of the window).
        own: Index of the first token that belongs to this window; the tokens before it (prefix,
            context) only provide context.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    scored: np.ndarray
    own: int

    @property
    def key(self) -> tuple[bytes, bytes]:
        """What its scores depend on: ids and targets."""
        return self.ids.tobytes(), self.scored.tobytes()


@dataclass(slots=True)
class Reading:
    """The tokens of one text in one arm, in any order; every character is in at most one.

    Attributes:
        starts: int32 [n], first character of each token in the original text.
        ends: int32 [n], character after its last (greater than `starts`).
        nats: float64 [n], -ln p of each token; NaN if it is not scored.
        shown_from: int32 [n], first character of the text in the token's window.
        lost: bool [characters], the text that its tokens do not give back; None: nothing.
    """

    starts: np.ndarray
    ends: np.ndarray
    nats: np.ndarray
    shown_from: np.ndarray
    lost: np.ndarray | None = None


def all_pieces(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """The whole document in chunks, as in training."""
    windows = []
    for chunk in cut(document, config):
        # Without metadata the first text token has no context, so no arm scores it, even if
        # training has a loss on it.
        chunk = replace(chunk, first_text_is_target=False)
        starts, ends = chunk.text_starts, chunk.text_ends
        scored = chunk.loss_mask & (chunk.token_types == 0) & (ends > starts)
        scored &= document.gives_back(starts, ends)
        windows.append(Window(chunk.ids, starts, ends, scored, chunk.prefix_length))
    return windows


def first_piece(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """The first chunk of the document, at most one sequence long."""
    return all_pieces(document, config)[:1]


def sliding(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """The whole document in overlapping windows, with the prefix in the same places as training."""
    metadata, size = config.metadata_config, len(document.ids)
    is_text = (document.token_types == 0) & (document.text_ends > document.text_starts)
    first_text = int(np.argmax(is_text)) if is_text.any() else 0
    windows: list[Window] = []
    stop = 0
    while stop < size:
        prefixed = not windows or metadata.prefix_on == "every_piece"
        prefix_ids = document.prefix_ids if prefixed else document.prefix_ids[:0]
        prefix, new = len(prefix_ids), stop
        room = metadata.max_seq_len - prefix
        start = max(new - room // 2, 0)
        stop = min(start + room, size)
        scored = is_text[start:stop].copy()
        scored[: new - start] = False
        if start == 0 and len(scored):  # without metadata, it has no context
            scored[first_text : first_text + 1] = False
        scored &= document.gives_back(
            document.text_starts[start:stop], document.text_ends[start:stop]
        )
        windows.append(
            Window(
                ids=np.concatenate((prefix_ids, document.ids[start:stop])),
                starts=np.pad(document.text_starts[start:stop], (prefix, 0)),
                ends=np.pad(document.text_ends[start:stop], (prefix, 0)),
                scored=np.pad(scored, (prefix, 0)),
                own=prefix + new - start,
            )
        )
    return windows


def continuation_windows(
    document: EncodedDocument, prefixes: Sequence[np.ndarray], room: int
) -> list[list[Window]]:
    """The whole text in chunks of up to `room` tokens, each after every one of some prefixes.

    Returns:
        For each chunk a window for each prefix; none for a chunk of a single token.
    """
    end = len(document.ids) - 1  # without EOS
    starts, ends = document.text_starts, document.text_ends
    chunks = []
    for start in range(0, end, room):
        part = slice(start, min(start + room, end))
        ids = document.ids[part]
        if len(ids) < 2:  # the first token of a chunk has no score
            continue
        scored = document.gives_back(starts[part], ends[part])
        scored[0] = False
        windows = []
        for prefix in prefixes:
            before = (len(prefix), 0)
            windows.append(
                Window(
                    ids=np.concatenate((prefix, ids)),
                    starts=np.pad(starts[part], before),
                    ends=np.pad(ends[part], before),
                    scored=np.pad(scored, before),
                    own=len(prefix),
                )
            )
        chunks.append(windows)
    return chunks


Windows = Callable[[EncodedDocument, DataConfig], list[Window]]
WINDOWS: dict[str, Windows] = {
    "first_piece": first_piece, "all_pieces": all_pieces, "sliding": sliding
}  # fmt: skip


def reading_of(windows: list[Window], scores: list[np.ndarray], lost: np.ndarray | None) -> Reading:
    """The text tokens of a document with their nats.

    Args:
        windows: All windows of the document in one arm.
        scores: For each window, the log-probabilities of its scored tokens, float64.
        lost: The lost characters of the document (`EncodedDocument.lost`).
    """
    nowhere = np.zeros(0, np.int32)
    parts: list[tuple[np.ndarray, ...]] = [(nowhere, nowhere, np.zeros(0), nowhere)]
    for window, log_probabilities in zip(windows, scores, strict=True):
        nats = np.full(len(window.ids), np.nan)
        nats[window.scored] = -log_probabilities
        holds_text = window.ends > window.starts
        first = int(window.starts[np.argmax(holds_text)]) if holds_text.any() else 0
        holds_text[: window.own] = False
        columns = (window.starts, window.ends, nats, np.full(len(nats), first, np.int32))
        parts.append(tuple(column[holds_text] for column in columns))
    starts, ends, nats, shown_from = map(np.concatenate, zip(*parts, strict=True))
    return Reading(starts, ends, nats, shown_from, lost)


def paired_sums(
    without: Reading, with_metadata: Reading, text: str, edges: np.ndarray
) -> np.ndarray:
    """Sum both readings over the segments that count, by position in the document and by context.

    Args:
        edges: int [bins], byte positions at which the position bins begin; the first is 0.

    Returns:
        float64 [2, bins, COLUMNS]: the columns of each bin, by DOCUMENT and by CONTEXT (in the
        reading without metadata); a segment belongs to the bin in which it begins.
    """
    sums = np.zeros((2, len(edges), COLUMNS))
    if not text:
        return sums
    readings, size, lengths = (without, with_metadata), len(text), utf8_lengths(text)
    segment = _segments(readings, size)
    first = np.flatnonzero(np.diff(segment, prepend=-1))  # first character of each segment

    def by_segment(places: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(places, values, minlength=len(first))

    good = sum(by_segment(segment, _unscored(reading, size)) for reading in readings) == 0
    for reading in readings:
        if reading.lost is not None:
            good &= by_segment(segment, reading.lost) == 0
    offsets = np.cumsum(lengths) - lengths
    shown_from = np.zeros(size, dtype=np.int64)
    shown_from[without.starts] = without.shown_from
    position = offsets[first]
    context = position - offsets[shown_from[first]]
    of_tokens, of_tokens_with = segment[without.starts], segment[with_metadata.starts]
    columns = {
        BYTES: by_segment(segment, lengths),
        TOKENS: by_segment(of_tokens),
        NATS_WITHOUT: by_segment(of_tokens, np.nan_to_num(without.nats)),
        NATS_WITH: by_segment(of_tokens_with, np.nan_to_num(with_metadata.nats)),
        TOKENS_WITH: by_segment(of_tokens_with),
    }
    for axis, place in ((DOCUMENT, position), (CONTEXT, context)):
        bins = np.searchsorted(edges, place[good], side="right") - 1
        for column, values in columns.items():
            sums[axis, :, column] = np.bincount(bins, values[good], minlength=len(edges))
    return sums


def lost_bytes(without: Reading, with_metadata: Reading, text: str) -> int:
    """Bytes of the segments that `paired_sums` leaves out because either reading loses text."""
    readings = (without, with_metadata)
    losses = [reading.lost for reading in readings if reading.lost is not None]
    if not losses:
        return 0
    segment = _segments(readings, len(text))
    is_left_out = np.bincount(segment, np.logical_or.reduce(losses)) > 0
    return int(utf8_lengths(text)[is_left_out[segment]].sum())


def _segments(readings: Sequence[Reading], size: int) -> np.ndarray:
    """The number of the segment of each character: int64 [size].

    A segment begins at each character that no token extends into.
    """
    inside = sum(coverage(reading.starts + 1, reading.ends, size) for reading in readings)
    return np.cumsum(inside == 0) - 1


def _unscored(reading: Reading, size: int) -> np.ndarray:
    """Whether each character is in no token or in an unscored token: bool [size]."""
    missing = np.isnan(reading.nats)
    unscored = coverage(reading.starts[missing], reading.ends[missing], size)
    return (coverage(reading.starts, reading.ends, size) == 0) | (unscored > 0)


def max_batch_tokens(vocabulary: int, rows: int, row_length: int) -> int:
    """Maximum tokens in a batch: `rows` full sequences, fewer if the vocabulary is large."""
    return max(min(rows * row_length, LOGITS_PER_BATCH // max(vocabulary, 1)), row_length)


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group windows into padded batches at minimum cost.

    Windows are sorted by length and split into consecutive groups by dynamic programming; the cost
    of a batch is its rows times its longest row (padding included), plus a constant per model call.

    Args:
        max_tokens: Maximum padded size of a batch (a longer window forms a batch of its own).

    Returns:
        Batches of window indices, the longest windows first.
    """
    order = np.argsort(np.asarray(lengths, dtype=np.int64), kind="stable")
    ordered = np.asarray(lengths, dtype=np.int64)[order]
    best = np.zeros(len(order) + 1)
    cut_at = np.zeros(len(order) + 1, dtype=np.int64)
    for end in range(1, len(order) + 1):
        longest = max(int(ordered[end - 1]), 1)
        first = end - max(min(end, max_tokens // longest), 1)
        starts = np.arange(first, end)
        costs = best[first:end] + (end - starts) * longest
        cheapest = int(np.argmin(costs))
        best[end] = costs[cheapest] + FORWARD_OVERHEAD
        cut_at[end] = first + cheapest
    batches = []
    end = len(order)
    while end > 0:
        batches.append([int(i) for i in order[cut_at[end] : end][::-1]])
        end = int(cut_at[end])
    return batches


def padded_size(size: int, digits: int) -> int:
    """The smallest number with this many significant binary digits that is not below `size`."""
    step = 1 << max(size.bit_length() - digits, 0)
    return -(-size // step) * step


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without any wrappers (DDP, DeepSpeed)."""
    while isinstance(module := getattr(model, "module", None), nn.Module):
        model = module  # DDP and the DeepSpeed engine keep the model there
    return model


def output_embedding_of(model: nn.Module) -> nn.Module:
    """The layer that computes logits.

    Raises:
        ConfigurationError: The model has none, so it is not a language model.
    """
    inner = unwrapped(model)
    find = getattr(inner, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if not isinstance(head, nn.Module):
        raise ConfigurationError(
            f"{type(inner).__name__} has no output embedding: only causal language models can be "
            "evaluated in bits per byte. Give a checkpoint of the causal_lm task."
        )
    return head


@contextmanager
def scoring(model: nn.Module, device: torch.device) -> Iterator[Scorer]:
    """Yield a scorer for a model (wrapped or not), which is in evaluation mode in the context."""
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
    """Scores batches of windows with a model that `scoring` has put into evaluation mode."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._head = output_embedding_of(model)
        digits = SIZE_DIGITS.get(device.type, SIZE_DIGITS["cuda"])
        self._pad_size = partial(padded_size, digits=digits)
        shape = getattr(unwrapped(model), "config", None)
        self._positions = None if shape is None else positions_of(shape)
        self._picked = threading.local()  # .rows: the hidden states to pass to the head
        # a wrapped model may be sharded over ranks: then all ranks must make the same calls
        self._is_bare = unwrapped(model) is model and not isinstance(model, FSDPModule)
        self.hook = self._head.register_forward_pre_hook(self._pick)
        self._by_rows = False
        if self._is_bare:  # if the logits are the head's unchanged output (some models scale them)
            with torch.no_grad():
                logits, hidden = self.dummy()
                own = self._head(hidden)
            self._by_rows = own.dtype == logits.dtype and torch.equal(own, logits)

    def score(self, batches: Sequence[Sequence[Window]]) -> list[list[np.ndarray]]:
        """Score batches of windows.

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

    def dummy(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Call the model on any two tokens, so that all ranks make the same number of calls.

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
        kept: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        for row, window in enumerate(windows):
            ids[row, : lengths[row]] = window.ids
            positions = np.flatnonzero(window.scored)
            kept.append(row * ids.shape[1] + positions - 1)  # position j - 1 predicts token j
            targets.append(window.ids[positions])
        rows, wanted = np.concatenate(kept), np.concatenate(targets).astype(np.int64)
        scores = self._score_rows(
            *(torch.from_numpy(part).to(self._device) for part in (ids, rows, wanted))
        )
        values = scores.cpu().numpy().astype(np.float64)
        report_progress()
        return np.split(values, np.cumsum([len(part) for part in kept])[:-1])

    def _score_rows(
        self, ids: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Log-probabilities float32 [n] of targets [n] at flat positions [n] in ids [b, l]."""
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
        """The model's logits, and the hidden states that the head gets, at flat positions of ids.

        If the head is applied by rows, the model call itself computes no logits.
        """
        self._picked.rows = rows
        try:
            logits = self._model(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._picked.rows = None
        return logits, self._picked.hidden

    def _pick(self, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Pre-forward hook of the head: pass only the selected hidden states."""
        rows = getattr(self._picked, "rows", None)
        if rows is None:  # a direct call of the head
            return inputs
        self._picked.hidden = inputs[0].flatten(0, -2)[rows]
        shown = self._picked.hidden[:0] if self._by_rows else self._picked.hidden
        return (shown.unsqueeze(0), *inputs[1:])
