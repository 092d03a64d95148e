"""The gate for the columns that annotators write, and all who must pass it."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bsmeta.annotate.plan import ANNOTATORS
from bsmeta.metadata import annotated_columns
from bsmeta.metadata.annotated_columns import (
    decode_content_spans,
    decode_local_records,
    decode_records,
    decode_strings,
)
from bsmeta.metadata.records import BadDocument, Record
from tests.patterns import PACKAGE

GATE = ("decode_records", "decode_local_records", "decode_content_spans", "decode_strings")
THROUGH = ("read_spans", "read_strings")  # methods of a row, which call the gate
COLUMNS = {name for cls in ANNOTATORS.values() for name in cls.columns}

# Every function with the name of such a column, except where annotators declare or make it: those
# that read its content, and those that do not.
READERS = {
    "annotate/about_page.py:Title.annotate",
    "annotate/annotator.py:Row.tags",
    "annotate/links.py:_Row.read_entities",
    "annotate/report.py:divide_text",
    "annotate/report.py:find_foreign_columns",
    "annotate/spans.py:EntityParagraph.annotate",
    "metadata/content.py:read_content_spans",
}
OTHERS = {
    "annotate/links.py:_Row": "the field, which stays undecoded",
    "data/stream/same_document.py:_TextAndURL": "the field, which stays undecoded",
    "data/stream/same_document.py:_read_document": "yields it undecoded; bad addresses are ignored",
    "metadata/annotated_columns.py:decode_content_spans": "the gate",
    "metadata/content.py:_Line": "the field, which stays undecoded",
    "metadata/decoding.py:Decoder._set_columns": "the columns to read from a file",
}

# Files that decode JSON of a known writer with the strict decoder, although they read data.
STRICT = {
    "annotate/decisions.py": "its own decisions",
    "annotate/html/json_ld.py": "JSON-LD of a page, whose errors are ignored",
    "annotate/annotator.py": "rows of its own shards; a column for a custom annotator",
    "annotate/links.py": "its own index",
    "annotate/shard.py": "its own journals",
    "data/io/file_sets.py": "declarations of files",
    "data/io/remote/hub.py": "answers of the Hub",
    "data/io/remote/objects.py": "answers of object stores",
    "data/stage.py": "its own list of copies",
    "data/table/store.py": "its own state",
    "metadata/processors.py": "the attributes of a record that has passed the gate",
}


@pytest.mark.parametrize(
    ("value", "records"),
    [
        (msgspec.Raw(b"null"), []),
        (None, []),
        (b'[{"value": "a"}]', [Record("a")]),
        ([{"value": 1.5, "type": "global", "source": ["x"]}], [Record(1.5, type="global")]),
        (b'[{"value": "a", "more": NaN}]', [Record("a")]),
        (b'[{"value": "a"}], "x": "after the column"', [Record("a")]),
    ],
)
def test_records_are_read_from_json_and_from_values(value: Any, records: list[Record]) -> None:
    assert decode_records("metadata_x", value) == records


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'["a"]', "wrong_type"),
        ("<b>", "wrong_type"),
        ({"a": 1}, "wrong_type"),
        (1.5, "wrong_type"),
        (b"1e400", "wrong_type"),
        ([{"type": "global"}], "wrong_type"),
        (b'[{"value": "\\ud83d"}]', "not_json"),
        (b'[{"value": "a"', "not_json"),
        ([{"value": "a", "char_start_idx": 0}], "missing_position"),
        ([{"value": "a", "char_start_idx": 0, "char_end_idx": 6}], "position_beyond_text"),
        ([{"value": "a", "char_start_idx": -1, "char_end_idx": 1}], "negative_position"),
    ],
)
def test_values_of_another_form_raise_bad_document_with_the_column(value: Any, reason: str) -> None:
    with pytest.raises(BadDocument, match="metadata_x") as error:
        decode_local_records("metadata_x", value, 5)
    assert error.value.reason == reason


def test_content_spans_are_decoded_by_extractor() -> None:
    assert decode_content_spans(None) is None
    assert decode_content_spans({"trafilatura": [[0, 5]], "resiliparse": None}) == {
        "trafilatura": [(0, 5)],
        "resiliparse": None,
    }
    assert set((decode_content_spans([]) or {}).values()) == {None}  # the annotator failed
    for value in ([1], "a", {"trafilatura": 5}, {"trafilatura": [[1, 2, 3]]}, b"1e400"):
        with pytest.raises(BadDocument, match="wrong_type: content_spans"):
            decode_content_spans(value)


def test_lists_of_strings_are_decoded() -> None:
    assert decode_strings("html_title", None) == []
    assert decode_strings("html_title", b'["a"]') == ["a"]
    for value in ("a", [1], {}):
        with pytest.raises(BadDocument, match="wrong_type: html_title"):
            decode_strings("html_title", value)


def list_functions(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yields the name and body of each function, and of each class without its methods."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield f"{name}{node.name}", node
            yield from list_functions(node, f"{name}{node.name}.")


def walk_function(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a function or class, without those of inner ones."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield child
            yield from walk_function(child)


def find_names(node: ast.AST, module: Any) -> set[str]:
    """Returns the annotator columns that a function reads but does not make."""
    made: set[int] = set()
    names: set[str] = set()
    for part in walk_function(node):
        if isinstance(part, ast.Dict):
            made.update(map(id, filter(None, part.keys)))
        elif isinstance(part, ast.Assign):
            is_made = all(ast.unparse(target) in ("columns", "needs") for target in part.targets)
            stores = [target.slice for target in part.targets if isinstance(target, ast.Subscript)]
            made.update(map(id, stores))
            if is_made and isinstance(node, ast.ClassDef):
                made.update(map(id, ast.walk(part)))

    for part in walk_function(node):
        value = None
        if isinstance(part, ast.Constant):
            value = part.value
        elif isinstance(part, ast.Name | ast.Attribute):
            value = getattr(module, part.attr if isinstance(part, ast.Attribute) else part.id, None)
            value = part.attr if isinstance(part, ast.Attribute) and value is None else value
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            value = part.target.id
        if id(part) not in made and isinstance(value, str) and value in COLUMNS:
            names.add(value)
    return names


def list_readers() -> dict[str, set[str]]:
    """Returns the functions that name annotator columns, with the functions that each calls."""
    readers = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        file = path.relative_to(PACKAGE)
        module = importlib.import_module(".".join(("bsmeta", *file.with_suffix("").parts)))
        for name, node in list_functions(ast.parse(source)):
            if find_names(node, module):
                calls = (part.func for part in walk_function(node) if isinstance(part, ast.Call))
                readers[f"{file.as_posix()}:{name}"] = {
                    ast.unparse(call).rpartition(".")[2] for call in calls
                }
    return readers


def test_every_reader_of_annotated_columns_uses_the_shared_decoders() -> None:
    readers = list_readers()
    assert readers.keys() == READERS | OTHERS.keys()
    for name in READERS:
        assert readers[name] & {*GATE, *THROUGH}, name


def test_only_listed_files_decode_json_strictly() -> None:
    strict = {
        path.relative_to(PACKAGE).as_posix()
        for part in ("annotate", "data", "metadata", "tasks/causal_lm/evaluation")
        for path in (PACKAGE / part).rglob("*.py")
        if {"JSONDecoder", "decode_json"} & list_imports(path, "bsmeta.core.parsing")
    }
    assert strict == STRICT.keys()


def list_imports(path: Path, module: str) -> set[str]:
    """Returns the names that a file imports from a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            names.update(alias.name for alias in node.names)
    return names


@pytest.mark.parametrize(
    ("body", "is_noticed"),
    [
        ('return row["metadata_html"]', True),
        ("return row.get(CONTENT_SPANS)", True),
        ("return line.metadata_entity", True),
        ('return {"metadata_html": []}', False),
        ('row["metadata_html"] = []', False),
        ('return row["metadata_of_nobody"]', False),
    ],
)
def test_functions_that_read_columns_are_detected(body: str, is_noticed: bool) -> None:
    (function,) = ast.parse(f"def read(row, line):\n    {body}").body
    assert bool(find_names(function, annotated_columns)) == is_noticed
