"""Documents as Python values are rendered as training renders them, or refused with a reason."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import bsmeta
from bsmeta.api.documents import DocumentReader
from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.explain import main
from tests.conftest import REPOSITORY
from tests.tasks.causal_lm.explaining.helpers import SHARD, demo

TYPES = ["title", "url", "html", "reviewer"]
LINES = REPOSITORY / "examples" / "webdocs" / SHARD.format(1)


def reader(**changes: Any) -> DocumentReader:
    return DocumentReader(
        DataConfig(metadata_config=MetadataConfig(metadata_list=TYPES), **changes)
    )


def show(document: Any, metadata: Any = None, **changes: Any) -> str:
    return reader(**changes).render(document, metadata, None).text


def test_a_record_is_rendered_as_explain_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    types = ["title", "url", "timestamp"]
    main(
        demo(f"document={SHARD.format(1)}:0", "limit=3", f"types=[{','.join(types)}]", "json=true")
    )
    explained = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with gzip.open(LINES, "rt", encoding="utf-8") as file:
        records = [json.loads(next(file)) for _ in explained]
    assert len(records) == 3
    for record, line in zip(records, explained, strict=True):
        rendered_text = bsmeta.render(record, types=types, config=demo())
        assert (rendered_text.text, rendered_text.prefix) == (line["text"], line["prefix"])
        assert rendered_text.types == ("title", "url", "timestamp")


def test_values_are_rendered_by_type() -> None:
    assert show("A set is") == "A set is"
    assert show("A set is", {"title": "Sets"}) == "Title: Sets ||| A set is"
    own = {
        "text": "A set is",
        "metadata": {"url": "a.org", "reviewer": ["Ann", "Bo"], "title": None},
    }
    assert show(own) == "url: a.org | reviewer: Ann | reviewer: Bo ||| A set is"
    when = {"timestamp": datetime(2020, 3, 1)}
    assert bsmeta.render("A", when).text == "Year: 2020 | Month: March ||| A"
    assert show(own, {"reviewer": 7}) == "url: a.org | reviewer: 7 ||| A set is"
    bold = {"value": "b", "char_start_idx": 2, "char_end_idx": 5}
    assert show("A set is", {"html": [bold]}) == "html ||| A <b>set</b> is"


def test_a_record_of_a_corpus_is_read_by_its_columns() -> None:
    columns = {"text": "body", "url": "metadata.address"}
    record = {"body": "A set is", "metadata": {"address": "a.org", "length": 3}, "id": 5}
    assert show(record, columns=columns) == "url: a.org ||| A set is"
    assert show("A set is", {"title": "Sets"}, columns=columns) == "Title: Sets ||| A set is"
    assert show(record, {"title": "Sets"}, columns=columns) == (
        "Title: Sets | url: a.org ||| A set is"
    )
    list_form = {"text": "A set is", "metadata": [{"key": "title", "value": "Sets"}]}
    assert show(list_form) == "Title: Sets ||| A set is"


def test_the_configuration_decides_the_types_and_their_form() -> None:
    rendered_text = bsmeta.render("A set is", {"title": "Sets", "datasource": "a.org > b"})
    assert str(rendered_text) == "Title: Sets | Datasource: a.org > b ||| A set is"
    templates = {"data_config.metadata_config.metadata_templates": {"title": "«{value}»"}}
    rendered = bsmeta.render("A", {"title": "B"}, config="v2", overrides=templates)
    assert rendered.prefix == "«B» |||"
    record = {"text": "A", "metadata_url": [{"key": "url", "value": "a.org"}]}
    assert bsmeta.render(record).text == "url: a.org ||| A"
    assert bsmeta.render(record, config="v2").text == "A"  # it reads no column of this type
    with pytest.raises(bsmeta.UserError, match="types: url: metadata_column_list .* leaves its"):
        bsmeta.render(record, types=["url"], config="v2")


@pytest.mark.parametrize(
    ("document", "metadata", "message"),
    [
        (5, None, "a int; expected a string, or"),
        ({"txt": "A"}, None, r"the object has no `text` \(it has 'txt'\)"),
        ({"text": 5}, None, "text_not_string"),
        ("A", {"titel": "B"}, r"metadata.titel: not in .* reviewer \(did you mean title\?\), or a"),
        ("A", "B", "metadata='B': expected values by type"),
        ("A", {"title": True}, "metadata.title=True: "),
        ("A", {"html": "b"}, "metadata.html='b': expected a list of records with value, char_st"),
        ("A", {"html": [{"value": "b", "char_start_idx": 0, "char_end_idx": 9}]}, "beyond_text"),
        ({"text": "A", "url": "a.org", "id": 1}, None, r'url=\'a.org\' is not read .*\{"url": …\}'),
        ({"text": "A", "metdata": {"title": "B"}}, None, r"metdata: not a key .*did you mean meta"),
        ({"text": "A", "when": {1, 2}, "o": object()}, None, "expected strings, numbers and lists"),
        ({"text": "A\ud800"}, None, "expected strings"),
    ],
)
def test_documents_that_cannot_be_read_are_refused(
    document: Any, metadata: Any, message: str
) -> None:
    with pytest.raises(bsmeta.UserError, match=message):
        show(document, metadata)


def test_a_configuration_is_found_by_path_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "defaults: [causal_lm_config, _self_]\n"
        "data_config: {metadata_config: {metadata_key_value_sep: ' = ', metadata_list: [title]}}\n"
    )
    assert bsmeta.render("A", {"title": "B"}, config=file).text == "Title = B ||| A"
    for config, message in (
        ("dmo", r"config=dmo: expected .* \(did you mean demo\?\)"),
        (tmp_path / "other.yaml", "there is no such file"),
        (tmp_path, "a folder; bsmeta.open_run"),
        (7, "config=7: expected the name of a configuration"),
        ("classification", "task=classification; expected task=causal_lm"),
    ):
        with pytest.raises(bsmeta.UserError, match=message):
            bsmeta.render("A", config=config)  # type: ignore[arg-type]
    with pytest.raises(bsmeta.UserError, match=r"overrides='seed=1': expected keys with their"):
        bsmeta.render("A", config="v2", overrides="seed=1")  # type: ignore[arg-type]
    with pytest.raises(bsmeta.UserError, match="types: titel not in metadata_list"):
        bsmeta.render("A", types=["titel"])
