"""The base class of annotators: a subclass makes the columns of one metadata type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec
import xxhash

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.row import Columns, Row


class Annotator(ABC):
    """Makes columns of a row.

    A class of a user's own is named in `annotators` by its dotted path; the worker processes are
    forked, so whatever `__init__` loads is in memory once.

    Args:
        config: The configuration of the run.

    Attributes:
        name: How `annotators` calls it, and the key of its failures in `annotation_errors`.
        version: To be increased when the same page would give other records: shards of an older
            version are then updated.
        needs: The columns of other annotators that it reads; they run before it.
        columns: The columns that it makes.
        settings: The configuration keys on which its records depend.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ()
    columns: ClassVar[tuple[str, ...]]
    settings: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: AnnotateConfig) -> None:
        self.config = config

    @abstractmethod
    def annotate(self, row: Row) -> Columns:
        """The columns for a row; those left out become empty lists.

        Raises:
            AnnotationError: With the reason why there can be no records (a page without any is no
                error).
        """

    def fingerprint(self) -> str:
        """Identifies what its records depend on, besides the pages and the annotators it needs."""
        return self.digest({})

    def digest(self, more: dict[str, Any]) -> str:
        """The hash of its version and settings, and of `more` that its records depend on."""
        settings = {name: getattr(self.config, name) for name in self.settings}
        content = [type(self).__qualname__, self.version, settings, more]
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode(content, order="sorted"))
