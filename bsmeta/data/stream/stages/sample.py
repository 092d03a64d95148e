"""Third stage: the metadata types with which each document is rendered are sampled."""

from __future__ import annotations

from bsmeta.data import make_document_generator
from bsmeta.data.stream.stages.items import ReadDocument
from bsmeta.data.stream.window import Window
from bsmeta.metadata.sampling import TypeSampler


class WindowSampler:
    """Samples the metadata types of a window's documents, with a random generator for each.

    Args:
        sampler: Samples types for the current phase of the metadata schedule.
        seed: Seed of the run.
    """

    def __init__(self, sampler: TypeSampler, window: Window, seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self._epoch = window.epoch
        self._shard = window.shard.name

    def sample(self, document: ReadDocument) -> ReadDocument:
        """Sets the sampled types on a document, in place, and returns it."""
        number = document.source.number
        generator = make_document_generator(self._seed, self._epoch, self._shard, number)
        document.types = self._sampler.draw(document.document, generator)
        return document
