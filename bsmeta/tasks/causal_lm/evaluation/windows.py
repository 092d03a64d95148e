"""Cuts a document into windows, the input sequences in which its tokens are scored.

`first_piece` and `all_pieces` use the chunks of training. `sliding` gives every token at least half
a sequence of preceding text as context, if the document has that much: each window repeats the last
half of the previous window and scores only the new tokens. A prefix takes up room in its window, so
metadata reduces the text context under `all_pieces`, and hardly does under `sliding`.

Tokens that do not decode to their text (unknown tokens, tokens of lower-cased text) stand for other
texts as well, so no window scores them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bsmeta.config.data import DataConfig
from bsmeta.data.text.chunks import cut_document
from bsmeta.data.text.encoding import EncodedDocument


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


def cut_all_pieces(document: EncodedDocument, config: DataConfig) -> list[Window]:
    """Cuts the whole document into chunks, as in training."""
    windows = []
    for chunk in cut_document(document, config):
        # Without metadata the first text token has no context, so no arm scores it, even if
        # training has a loss on it.
        chunk = replace(chunk, first_text_is_target=False)
        starts = chunk.text_starts
        ends = chunk.text_ends

        scored = chunk.loss_mask & (chunk.token_types == 0) & (ends > starts)
        scored &= document.are_preserved(starts, ends)
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
        prefix_length = len(prefix_ids)

        # The window has the tokens from `start` to `stop`; all from `first_new` on are new. Half of
        # a window is context from the window before.
        first_new = stop
        room = metadata.max_seq_len - prefix_length
        start = max(first_new - room // 2, 0)
        stop = min(start + room, size)
        starts = document.text_starts[start:stop]
        ends = document.text_ends[start:stop]

        scored = is_text[start:stop].copy()
        scored[: first_new - start] = False
        if start == 0 and len(scored):  # without metadata, the first text token has no context
            scored[first_text : first_text + 1] = False
        scored &= document.are_preserved(starts, ends)

        windows.append(
            Window(
                ids=np.concatenate((prefix_ids, document.ids[start:stop])),
                starts=np.pad(starts, (prefix_length, 0)),
                ends=np.pad(ends, (prefix_length, 0)),
                scored=np.pad(scored, (prefix_length, 0)),
                first_new=prefix_length + first_new - start,
            )
        )
    return windows


def cut_continuations(
    document: EncodedDocument, prefixes: Sequence[np.ndarray], max_tokens: int
) -> list[list[Window]]:
    """Cuts the whole text into chunks of up to `max_tokens`, and puts each after every prefix.

    Returns:
        For each chunk of at least two tokens, a window for each prefix.
    """
    end = len(document.ids) - 1  # without EOS
    chunks = []
    for start in range(0, end, max_tokens):
        chunk = slice(start, min(start + max_tokens, end))
        ids = document.ids[chunk]
        if len(ids) < 2:  # the first token of a chunk has no score
            continue

        starts = document.text_starts[chunk]
        ends = document.text_ends[chunk]
        scored = document.are_preserved(starts, ends)
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


WindowCutter = Callable[[EncodedDocument, DataConfig], list[Window]]
WINDOW_CUTTERS: dict[str, WindowCutter] = {
    "first_piece": cut_first_piece,
    "all_pieces": cut_all_pieces,
    "sliding": cut_sliding,
}
"""Functions that cut a document into windows, by the name in the configuration."""
