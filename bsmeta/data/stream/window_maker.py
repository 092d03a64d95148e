"""Connects the stages of a window, from its lines to packed sequences.

`corpora` reads the window; the `stages` decode its lines, sample and render metadata, encode, cut
and pack, which takes most of the stream's time. The state of a stage is either fixed for the run
(the decoder, the tokenizer) or created for each window (the donors, the counts): no state is
carried from one window to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import BY_TEXT, DataConfig
from bsmeta.config.metadata import configure_phases
from bsmeta.core.errors import raise_problems
from bsmeta.data.stream.held_out import HeldOutFingerprints
from bsmeta.data.stream.stages.cut import cut_documents
from bsmeta.data.stream.stages.decode import decode_lines
from bsmeta.data.stream.stages.encode import encode_documents
from bsmeta.data.stream.stages.guard import Guard
from bsmeta.data.stream.stages.items import (
    BadLine,
    NumberedLine,
    ReadDocument,
    WindowDocument,
    apply_stage,
    number_lines,
)
from bsmeta.data.stream.stages.keep_text import keep_text
from bsmeta.data.stream.stages.lend import Lender
from bsmeta.data.stream.stages.pack import pack_documents
from bsmeta.data.stream.stages.reject import Rejecter
from bsmeta.data.stream.stages.render import DocumentRenderer
from bsmeta.data.stream.stages.sample import WindowSampler
from bsmeta.data.stream.window import Window
from bsmeta.data.text.chunks import PackedWindow
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.checks import find_row_budget_problems
from bsmeta.metadata.decoding import Decoder, make_decoder
from bsmeta.metadata.metadata_type import SHUFFLED
from bsmeta.metadata.rendering import Rendered
from bsmeta.metadata.sampling import TypeSampler


class WindowMaker:
    """Turns windows into sequences.

    Args:
        tokenizer: A fast tokenizer with an EOS token.
        seed: Seed of the run.
        source: Name of the source in a mixture; "" without a mixture.
        held_out: Documents that must not be trained on; None if there are none.
        sample: Lines on which `tokenizer_backend` must agree with the tokenizer.

    Attributes:
        decoder: Decodes the lines of the source.

    Raises:
        ConfigurationError: If the metadata cannot be used with `row_budget`, or the tokenizer
            cannot be used.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
        *,
        source: str = "",
        held_out: HeldOutFingerprints | None = None,
        sample: Sequence[bytes] = (),
    ) -> None:
        raise_problems(find_row_budget_problems(config))
        self._config = config
        self._seed = seed
        self._held_out = held_out
        self._metadata = config.metadata_config

        self.decoder = make_decoder(self._metadata, config.columns, source, config.content)
        self._text_decoder: Decoder | None = None
        if config.row_budget == BY_TEXT:
            text_only = replace(self._metadata, metadata_list=[], metadata_column_list=None)
            self._text_decoder = make_decoder(text_only, config.columns, content=config.content)

        self._samplers = [TypeSampler(phase) for phase in configure_phases(self._metadata)]
        self._renderer = DocumentRenderer(config)
        self._encoder = DocumentEncoder(
            tokenizer,
            config,
            backend=config.tokenizer_backend,
            sample=self._render_all_types(sample),
        )

    def prepare_documents(
        self, window: Window, phase: int = 0, leave_out: Collection[int] = ()
    ) -> tuple[list[WindowDocument], Counter[str]]:
        """Prepares the good documents of a window for packing.

        Args:
            phase: Index of the phase of the metadata schedule, for the sampling of metadata types.
            leave_out: Documents that are not prepared, by their numbers in the shard.

        Returns:
            The documents, encoded and cut into chunks, and the number of skipped documents by
            reason.

        Raises:
            DataError: If a document is bad or the shard is damaged, and `bad_documents` is strict;
                or if a document is held out, and `on_test_overlap` is error.
        """
        skipped: Counter[str] = Counter()
        guard = Guard(self._config, window.shard, self._held_out, skipped)
        sampler = WindowSampler(self._samplers[phase], window, self._seed)
        rejecter = Rejecter(self._config, window.shard, skipped)

        # The stages are lazy: each pulls one document at a time from the stage before it.
        lines = number_lines(window)
        decoded = decode_lines(lines, self.decoder)
        admitted = apply_stage(guard.admit, decoded)
        sampled = apply_stage(sampler.sample, admitted)
        if self._metadata.metadata_values == SHUFFLED:
            lender = Lender(window, self.decoder, self._metadata.metadata_list, self._seed)
            sampled = apply_stage(lender.lend, sampled)
        rendered = apply_stage(self._renderer.render, sampled)

        rejected = rejecter.reject_bad_lines(rendered)
        kept = keep_text(rejected, self._text_decoder, guard, self._renderer)
        remaining = (document for document in kept if document.number not in leave_out)

        encoded = encode_documents(
            remaining, self._encoder, also_plain=self._metadata.without_metadata_same_context
        )
        documents = list(cut_documents(encoded, self._config))
        return documents, skipped

    def pack(self, window: Window, documents: Sequence[WindowDocument]) -> PackedWindow:
        """Packs the chunks of a window's documents into sequences."""
        return pack_documents(documents, window, self._config, self._seed)

    def _render_all_types(self, lines: Sequence[bytes]) -> list[Rendered]:
        """Renders the documents in lines with all metadata types; skips bad lines."""
        types = tuple(self._metadata.metadata_list)

        def set_all_types(document: ReadDocument) -> ReadDocument:
            document.types = types
            return document

        numbered = (NumberedLine(number, number, line) for number, line in enumerate(lines))
        decoded = decode_lines(numbered, self.decoder)
        typed = apply_stage(set_all_types, decoded)
        documents = apply_stage(self._renderer.render, typed)
        return [document.rendered for document in documents if not isinstance(document, BadLine)]
