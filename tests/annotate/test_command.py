"""Wrong settings are refused before a page is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from tests.annotate.conftest import CUSTOM


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"annotators": ["titel"]}, r"there is no titel \(did you mean title\?\)"),
        ({"annotators": ["no.such.Class"]}, r"no\.such\.Class cannot be imported"),
        ({"annotators": ["json.JSONDecoder"]}, "is not a class derived from"),
        ({"annotators": [f"{CUSTOM}.WithoutColumns"]}, "is not a class .* with name, columns and"),
        (
            {"annotators": ["entity_paragraph"]},
            "needs metadata_entity: add entity",
        ),
        ({"annotators": [f"{CUSTOM}.ManyWords"]}, "needs metadata_words: add an annotator that"),
        ({"replace": ["entity"]}, r"replace: found entity .*expected some of `annotators`"),
        ({"descriptions": "/none.tsv"}, "descriptions=/none.tsv cannot be read"),
        ({"input": None}, "input is not set"),
        ({"input": "/none/*.warc.gz"}, r"input: /none/\*.warc.gz leads to no such file"),
        ({"output": None}, "output is not set"),
        ({"output": "/dev/null/x"}, "output: /dev/null/x is below /dev/null, which is a file"),
    ],
)
def test_wrong_settings_are_refused(
    settings: dict[str, Any], message: str, pages: Path, tmp_path: Path
) -> None:
    if "descriptions" in settings:
        settings = settings | {"annotators": ["website_description"]}
    given = {"input": str(pages), "output": str(tmp_path / "out")} | settings
    from bsmeta.annotate.command import main
    from bsmeta.annotate.config import AnnotateConfig

    with pytest.raises((ConfigurationError, DataError), match=message):
        main(AnnotateConfig(**given))
