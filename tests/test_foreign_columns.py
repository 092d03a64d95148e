"""Columns of other people cost no program a traceback, and no document that does not use them."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

from bsmeta import predict
from bsmeta.annotate.annotator import AnnotationError, Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.inputs.sources import decode_line
from bsmeta.annotate.spans import EntityParagraph
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.config.programs.predicting import PredictConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import DataError
from bsmeta.core.terminal import Console
from bsmeta.data.io.cache import Cache
from bsmeta.data.io.shard_lines import read_first_lines
from bsmeta.data.stream.columns import find_column_problems, find_type_problems
from bsmeta.data.stream.held_out import HeldOutFingerprints
from bsmeta.evaluate import main as evaluate
from bsmeta.metadata.decoding import make_decoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import BadDocument
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.explaining.json_lines import format_json_line
from bsmeta.tasks.causal_lm.explaining.page import render_page
from bsmeta.tasks.causal_lm.explaining.selection import Selection
from bsmeta.tasks.causal_lm.explaining.terminal import show_window
from bsmeta.tasks.causal_lm.shown_tokens import TokenTexts
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.task import TextClassifier
from tests.annotate.helpers import annotate
from tests.conftest import REPOSITORY
from tests.data.helpers import batches, small_config, small_tokenizer
from tests.foreign_columns import (
    JSON_COLUMNS,
    PARQUET_COLUMNS,
    SITE,
    write_json_lines,
    write_parquet,
)
from tests.tasks.causal_lm.evaluation.conftest import model, tokenizer
from tests.tasks.classification.conftest import encoder
from tests.tasks.classification.helpers import data_config, write_leanings

__all__ = ["encoder", "model", "tokenizer"]

FORMATS = ("json", "parquet")
TYPES = ["html", "entity", "tags"]

# Messages of training and evaluation about the rows whose columns they must read.
JSON_REASONS = {
    "tags-strings": "wrong_type",
    "tags-numbers": "wrong_type",
    "tags-text": "wrong_type",
    "tags-object": "wrong_type",
    "tags-no-value": "wrong_type",
    "tags-null-value": "wrong_type",
    "tags-other-type": "wrong_type",
    "tags-range": "wrong_type",
    "tags-nan": "not_json",
    "html-text": "wrong_type",
    "html-half-offsets": "missing_position",
    "html-null": "wrong_type",
    "html-negative": "negative_position",
    "html-beyond": "position_beyond_text",
    "html-huge": "position_beyond_text",
    "html-reversed": "end_before_start",
    "html-words": "wrong_type",
    "entity-strings": "wrong_type",
    "entity-no-offsets": "missing_position",
}
PARQUET_REASONS = {
    "tags-strings": "wrong_type",
    "tags-object": "wrong_type",
    "tags-no-value": "wrong_type",
    "html-text": "wrong_type",
    "html-bytes": "wrong_type",
}
REASONS = {"json": JSON_REASONS, "parquet": PARQUET_REASONS}
UNSHOWN = {
    "json": {
        "column content_spans": "5",
        "column metadata_entity": "2",
        "column metadata_html": "8",
        "column metadata_tags": "9",
    },
    "parquet": {
        "column content_spans": "1",
        "column metadata_html": "2",
        "column metadata_tags": "3",
    },
}
KEYS = {"json": [*JSON_COLUMNS], "parquet": [*PARQUET_COLUMNS]}


@pytest.fixture(scope="module", params=FORMATS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(form: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards, with a row for each column of the table."""
    path = tmp_path_factory.mktemp("rows") / "shards"
    if form == "parquet":
        return write_parquet(path)
    path.mkdir()
    write_json_lines(path / "rows.json.gz")
    return path


def find_keys(form: str, names: Iterable[str]) -> set[str]:
    """Returns the rows of documents, given as shard name and number."""
    if form == "parquet":
        return {name.partition(".parquet:")[0] for name in names}
    return {KEYS[form][int(name.rpartition(":")[2])] for name in names}


def configure(folder: Path, types: list[str], **changes: Any) -> DataConfig:
    settings = {"num_streams": 1, "tokenizer_backend": "hf", "packing": "pad"}
    settings |= {"bad_documents": "skip", "max_bad_documents": 100, "max_seq_len": 128}
    return small_config(folder, metadata_list=types, metadata_probability=1.0, **settings | changes)


def read_rows(shard: Path) -> list[dict[str, Any]]:
    """Returns the rows of a shard; Python does not read integers of more than 4300 digits."""
    lines = gzip.decompress(shard.read_bytes()).splitlines()
    return [json.loads(line, parse_int=float) for line in lines]


def read_table(page: str, title: str) -> dict[str, str]:
    """Returns the first two columns of a table of a report."""
    (table,) = re.findall(rf"<h2>{title}</h2>(.*?)</table>", page, re.DOTALL)
    cells = re.findall(r'<th scope="row">(.*?)</th>.*?<td[^>]*>(.*?)</td>', table, re.DOTALL)
    return dict(cells)


@pytest.mark.parametrize("annotators", [["language"], ["title", "paragraph", "language"]])
def test_annotate_keeps_foreign_columns_and_reports_the_pages(
    form: str, folder: Path, tmp_path: Path, annotators: list[str]
) -> None:
    out = tmp_path / "out"
    settings = {"report": True, "report_pages": 100}
    assert annotate(str(folder), out, annotators=annotators, **settings) == 0
    annotated_rows = {row["url"]: row for path in out.glob("*.jsonl.gz") for row in read_rows(path)}
    assert {url.removeprefix(SITE) for url in annotated_rows} == {*KEYS[form]}

    page = (out / "report.html").read_text()
    assert {*re.findall(rf"<h3>{SITE}([a-z0-9-]+)</h3>", page)} == {*KEYS[form]}
    assert "metadata_tags: not shown, because annotators write it in another form" in page
    assert read_table(page, "Not shown") == UNSHOWN[form]


def test_annotate_writes_foreign_values_in_standard_json(tmp_path: Path) -> None:
    shards = write_parquet(tmp_path / "tables")
    write_json_lines(shards / "rows.json.gz")
    assert annotate(str(shards), tmp_path / "out", annotators=["language"]) == 0
    annotated_rows = {
        row["url"].removeprefix(SITE): row for row in read_rows(tmp_path / "out/rows.jsonl.gz")
    }
    assert annotated_rows["nan"]["f"] == {"a": {"b": [None, None, None, "NaN"]}}
    assert annotated_rows["half"]["title"] == "cut \ufffd"
    assert annotated_rows["half-in-bytes"]["title"] == "cut \ufffd"
    assert annotated_rows["half-in-name"]["\ufffd"] == 1
    assert annotated_rows["tags-strings"]["metadata_tags"] == ["a", "b"]
    assert annotated_rows["html-text"]["metadata_html"] == "<b>"
    with_range = gzip.decompress((tmp_path / "out/rows.jsonl.gz").read_bytes())
    assert b'"f":1e400,' in with_range

    for name, value in {"half": "cut \ufffd", "half-in-list": ["cut \ufffd"]}.items():
        (row,) = read_rows(tmp_path / f"out/{name}.jsonl.gz")
        assert row["title"] == value
    (row,) = read_rows(tmp_path / "out/nan.jsonl.gz")
    assert row["f"] == {"a": [None, None]}


@pytest.mark.parametrize("name", ["url", "text", "html"])
def test_half_a_surrogate_pair_in_a_column_read_by_annotate_is_counted(
    tmp_path: Path, name: str
) -> None:
    line = {"text": "a", "url": "https://example.org/", name: "b\ud83d"}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(line) + "\n")
    annotate(str(path), tmp_path / "out", annotators=["language"], report=True)
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["total"]["dropped"] == {"not_json": 1}


def test_annotators_that_read_foreign_columns_fail_with_the_reason(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "a.jsonl.gz")
    annotate(str(path), tmp_path / "out", annotators=["title", "paragraph"], report=True)
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["total"]["errors"] == {
        "title": {"no_html": len(JSON_COLUMNS) - 2, "wrong_type": 2},
        "paragraph": {
            "wrong_type": 3,
            "missing_position": 1,
            "negative_position": 1,
            "position_beyond_text": 2,
            "end_before_start": 1,
        },
    }


@pytest.mark.parametrize(
    ("key", "reason"),
    [("entity-strings", "wrong_type"), ("entity-no-offsets", "missing_position"), ("range", None)],
)
def test_the_annotator_of_mentions_reads_or_refuses_foreign_columns(
    key: str, reason: str | None
) -> None:
    name, value = JSON_COLUMNS[key]
    record = decode_line(b'{"text": "Ada", "%b": %b}' % (name.encode(), value))
    row = Row(record, "visible")
    annotator = EntityParagraph(AnnotateConfig())
    if reason is None:
        assert annotator.annotate(row) == {"metadata_entity_paragraph": []}
        return
    with pytest.raises(AnnotationError) as error:
        annotator.annotate(row)
    assert error.value.reason == reason


@pytest.mark.parametrize("types", [[], TYPES])
def test_training_and_its_checks_use_foreign_columns_only_if_requested(
    form: str, folder: Path, types: list[str]
) -> None:
    config = configure(folder, types)
    assert [*find_column_problems(config)] == []
    assert find_type_problems(config) == []

    bad = REASONS[form] if types else {}
    steps = batches(config, len(KEYS[form]))  # of two documents: at least once through the data
    read = [name for step in steps for name in step.documents]
    assert find_keys(form, read) == {*KEYS[form]} - {*bad}
    counted = {
        name.removeprefix("bad_documents/")
        for step in steps
        for name, count in step.counts.items()
        if name.startswith("bad_documents/") and count
    }
    assert counted == {*bad.values()}


def test_training_on_content_names_the_rows_without_spans(tmp_path: Path) -> None:
    keys = [key for key, (name, _) in JSON_COLUMNS.items() if name == "content_spans"]
    path = write_json_lines(tmp_path / "a.jsonl.gz", keys)
    decoder = make_decoder(MetadataConfig(metadata_list=[]), {}, content="trafilatura")
    reasons = {}
    for key, line in zip(keys, read_first_lines(str(path), 100), strict=True):
        with pytest.raises(BadDocument) as error:
            decoder.decode(line)
        reasons[key] = error.value.reason
    assert reasons == {
        "spans-list": "wrong_type",
        "spans-text": "wrong_type",
        "spans-numbers": "wrong_type",
        "spans-beyond": "bad_content_spans",
        "spans-reversed": "bad_content_spans",
    }


def test_mapped_fields_beside_foreign_fields_are_read(tmp_path: Path) -> None:
    """The unmapped fields of an object are kept as well."""
    lines = [
        b'{"doc": {"body": "a", "url": "b", "score": NaN, "f": 1e400, "cut": "\\ud83d"}}',
        b'{"doc": {"body": "a\\ud83d", "url": "b", "score": 1}}',
    ]
    paths = {"text": "doc.body", "url": "doc.url", "quality": "doc.score"}
    decoder = make_decoder(MetadataConfig(metadata_list=["url", "quality"]), paths)
    document = decoder.decode(lines[0])
    assert document.text == "a"
    assert [record.value for record in document.records("url")] == ["b"]
    assert not document.has("quality")
    with pytest.raises(BadDocument, match="not_json: a text with half of a surrogate pair"):
        decoder.decode(lines[1])


@pytest.mark.parametrize("types", [[], TYPES])
def test_explain_shows_documents_with_foreign_columns(
    form: str, folder: Path, types: list[str]
) -> None:
    config = ExplainConfig(data_config=configure(folder, types), limit=100)
    windows = [*Selection(config, small_tokenizer())]
    names = [document.name for window in windows for document in window.documents]
    assert find_keys(form, names) == {*KEYS[form]} - {*(REASONS[form] if types else {})}

    texts = TokenTexts(small_tokenizer())
    page = render_page(windows, config, texts)
    assert all(name in page for name in names)
    for window in windows:
        show_window(window, Console(file=io.StringIO()), config, texts)
        for document in window.documents:
            written = format_json_line(document, config.data_config.metadata_config)
            assert json.loads(written)["document"] == document.name


@pytest.mark.parametrize("types", [[], TYPES])
def test_held_out_documents_are_read_as_in_training(
    form: str, folder: Path, types: list[str]
) -> None:
    names: list[str] = []
    left_out: Counter[str] = Counter()
    columns: set[str] = set()
    for path in sorted(folder.iterdir()):
        config = DataConfig(
            validation_file=str(path),
            bad_documents="skip",
            metadata_config=MetadataConfig(metadata_list=types),
        )
        try:
            documents = HeldOutDocuments(
                config, max_documents=None, deduplicate=True, training_overlap=None
            )
        except DataError as error:
            assert form == "parquet", "its only document is left out"
            left_out.update(re.findall(r"left out: \{'(\w+)'", str(error)))
            continue
        names += [documents.name(index) for index in range(len(documents))]
        left_out.update(documents.left_out)
        columns.update(documents.list_types())

    bad = REASONS[form] if types else {}
    assert find_keys(form, names) == {*KEYS[form]} - {*bad}
    assert left_out == Counter(bad.values())
    if not types:
        assert columns == ({"tags", "html", "entity"} if form == "json" else {"tags", "html"})


def test_held_out_documents_are_kept_out_of_training(form: str, folder: Path) -> None:
    for path in folder.iterdir():
        held_out = HeldOutFingerprints.load(str(path), Cache(str(folder.parent / "cache")))
        for key in KEYS[form]:
            if form == "json" or path.stem == key:
                document = Document("", f"{SITE}{key}", {})
                assert held_out.find_overlap(document) == "url"


def test_evaluate_reports_on_documents_with_foreign_columns(
    folder: Path,
    tmp_path: Path,
    model: GPT2LMHeadModel,
    tokenizer: PreTrainedTokenizerBase,
    form: str,
) -> None:
    name = "rows.json.gz" if form == "json" else "html-no-offsets.parquet"
    run_folder = tmp_path / "run"
    model.save_pretrained(run_folder / "model")
    tokenizer.save_pretrained(run_folder / "model")
    data = DataConfig(
        validation_file=str(folder / name),
        bad_documents="skip",
        metadata_config=MetadataConfig(metadata_list=[*TYPES, "url"], max_seq_len=64),
    )
    (run_folder / "config.yaml").write_text(format_yaml(CausalLMConfig(data_config=data)))
    evaluate(
        EvaluateConfig(checkpoint=[str(run_folder)], bootstrap_resamples=10, comparisons=["all"])
    )
    (report,) = json.loads((run_folder / "evaluation/evaluation.json").read_text())["models"]
    bad = JSON_REASONS if form == "json" else {}
    assert report["data"]["left_out"] == dict(Counter(bad.values()))
    documents = len(JSON_COLUMNS) - len(bad) if form == "json" else 1
    assert report["data"]["documents"] == documents


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_predict_keeps_foreign_columns(tmp_path: Path, encoder: Path, suffix: str) -> None:
    table = write_leanings(tmp_path)
    config = ClassificationConfig(
        data_config=data_config(table),
        model_name=str(encoder),
        method="fine_tune",
        head_start="random",
    )
    task = TextClassifier(config)
    torch.manual_seed(1)
    classifier = task.build_model()
    task.export(classifier, classifier.state_dict(), tmp_path / "run" / "model")
    (tmp_path / "run" / "config.yaml").write_text(format_yaml(config))

    # CSV has a column for each column of the first record.
    keys = [key for key in JSON_COLUMNS if key != "half-in-bytes"]  # the file is not UTF-8
    keys = keys if suffix == ".jsonl" else ["range"]
    output = tmp_path / f"out{suffix}"
    code = predict.main(
        PredictConfig(
            checkpoint=str(tmp_path / "run"),
            input=str(write_json_lines(tmp_path / "rows.jsonl.gz", keys)),
            output=str(output),
            on_bad_row="skip",
        )
    )
    assert code == 0
    written = output.read_text()
    if suffix == ".csv":
        assert ",1e400," in written
        return
    # Rows with these values are bad rows: they cannot be written as CSV, for example.
    refused = {"digits", "many-digits", "depth"}
    lines = written.splitlines()
    annotated_rows = {json.loads(line)["url"].removeprefix(SITE): line for line in lines}
    assert annotated_rows.keys() == {*keys} - refused
    assert '"f":1e400' in annotated_rows["range"]
    assert '"f":{"a":[1,-1e999]}' in annotated_rows["range-in-list"]
    assert json.loads(annotated_rows["half"])["title"] == "cut \ufffd"
    assert '"f":{"a":{"b":[null,null,null,"NaN"]}}' in annotated_rows["nan"]


def test_the_programs_accept_foreign_columns_from_the_command_line(
    launch: Callable[..., CompletedProcess[str]], form: str, folder: Path, tmp_path: Path
) -> None:
    programs = REPOSITORY / "bsmeta"
    out = tmp_path / "out"
    keys = (f"input={folder}", f"output={out}", "annotators=[language]", "workers=1")
    assert "written to" in launch(programs / "annotate.py", *keys).stdout
    assert "Traceback" not in launch(programs / "annotate.py", *keys).stderr  # again: only reports
    keys = (f"data_config.train_file={out}", "data_config.validation_file=null", "check_only=true")
    done = launch(programs / "train.py", "--config-name", "demo", *keys, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
