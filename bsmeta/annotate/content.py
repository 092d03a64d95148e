"""The annotator of the main content: what extractors keep of a page, as spans of its text."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version

from resiliparse.extract.html2text import extract_plain_text

from bsmeta.annotate.alignment import Text
from bsmeta.annotate.annotator import Annotator
from bsmeta.annotate.charset import decode_html
from bsmeta.annotate.row import NO_HTML, AnnotationError, Columns, Row
from bsmeta.config.annotate import AnnotateConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.metadata.content import COLUMN


class Content(Annotator):
    """The spans of the text that each extractor takes for the page's content.

    An extractor's own text is only used to find these spans. If an extractor fails, the column has
    null for it.
    """

    name = "content"
    columns = (COLUMN,)
    settings = ("content_extractors", "profile")

    def __init__(self, config: AnnotateConfig) -> None:
        super().__init__(config)
        self._extract = {name: EXTRACTORS[name]() for name in config.content_extractors}

    def annotate(self, row: Row) -> Columns:
        if row.html is None:
            raise AnnotationError(NO_HTML)
        html = row.html if isinstance(row.html, str) else decode_html(row.html)
        text = Text(row.text)
        spans: dict[str, list[tuple[int, int]] | None] = {}
        errors = []
        for name, extract in self._extract.items():
            try:
                spans[name] = text.align(extract(html))
            except Exception as error:  # whatever an extractor does not foresee
                spans[name] = None
                errors.append(f"{name}_{type(error).__name__}")
        if errors:
            raise AnnotationError(",".join(errors), columns={COLUMN: spans})
        return {COLUMN: spans}

    def fingerprint(self) -> str:
        return self.digest({name: version(name) for name in self._extract})


Extract = Callable[[str], str]


def _resiliparse() -> Extract:
    return lambda html: extract_plain_text(html, main_content=True, alt_texts=False)


def _trafilatura() -> Extract:
    # Imported for the run, not with the module: it takes a second.
    try:
        trafilatura = importlib.import_module("trafilatura")
    except ImportError as error:
        raise ConfigurationError(
            f"content_extractors: trafilatura cannot be imported ({error}); install what "
            "requirements.txt names, or set content_extractors=[resiliparse]"
        ) from error
    return lambda html: trafilatura.extract(html, fast=True, include_comments=False) or ""


EXTRACTORS: dict[str, Callable[[], Extract]] = {
    "resiliparse": _resiliparse,
    "trafilatura": _trafilatura,
}
