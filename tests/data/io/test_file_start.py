"""Files without documents: named with what they are and how to repair them, by every program."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError, UserError
from bsmeta.data.io.file_start import explain_no_document
from bsmeta.data.io.zstandard import zstd
from bsmeta.data.stream.survey import survey_data
from bsmeta.data.table.csv_file import BadRows
from bsmeta.data.table.records import read_records
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from tests.conftest import run_warm
from tests.data.helpers import batches, pages, small_config, write_shard
from tests.warm import REPOSITORY

ROWS = [{"text": f"text {number}", "url": f"https://example.org/{number}"} for number in range(3)]
HTML = b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n"
ARRAY = json.dumps(ROWS).encode()
PRETTY = json.dumps(ROWS, indent=2).encode()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n"
BEGINS = 'it begins with "[{"text": "text 0", "url": "https://exam"'
BEGINS_PRETTY = 'it begins with "[ { "text": "text 0", "url": "https://ex"'
PAGE = (
    'is an HTML or XML page (it begins with "<!DOCTYPE html> <html><body>404 Not Foun"), '
    "as servers send instead of a file; download it again"
)

# Name of the file, its bytes, and the whole description.
FILES = {
    "empty": ("a.jsonl", b"", "is empty (0 bytes); write or download it again"),
    "blank": ("a.jsonl", b"\n \n", "has only blank lines; write or download it again"),
    "no content": ("a.jsonl.gz", gzip.compress(b""), "has no content; write or download it again"),
    "page": ("a.jsonl", HTML, PAGE),
    "page as gzip": ("a.jsonl.gz", HTML, PAGE),
    "page as Zstandard": ("a.jsonl.zst", HTML, PAGE),
    "page as Parquet": ("a.parquet", HTML, PAGE),
    "LFS": ("a.jsonl", LFS, "is a Git LFS pointer; fetch its content with git lfs pull"),
    "LFS as gzip": (
        "a.jsonl.gz", LFS, "is a Git LFS pointer; fetch its content with git lfs pull",
    ),
    "array": (
        "a.json", ARRAY,
        f"is a JSON array ({BEGINS}), not lines of one JSON object each; convert it: "
        "jq -c '.[]' a.json > a.lines.jsonl",
    ),
    "array over lines": (
        "a.json", PRETTY,
        f"is a JSON array ({BEGINS_PRETTY}), not lines of one JSON object each; convert it: "
        "jq -c '.[]' a.json > a.lines.jsonl",
    ),
    "array in gzip": (
        "a b.json.gz", gzip.compress(ARRAY),
        f"is a JSON array ({BEGINS}), not lines of one JSON object each; convert it: "
        "gzip -dc 'a b.json.gz' | jq -c '.[]' > 'a b.lines.jsonl'",
    ),
    "array in Zstandard": (
        "a.jsonl.zst", zstd.compress(ARRAY),
        f"is a JSON array ({BEGINS}), not lines of one JSON object each; convert it: "
        "zstd -dc a.jsonl.zst | jq -c '.[]' > a.lines.jsonl",
    ),
    "object over lines": (
        "a.json", json.dumps(ROWS[0], indent=2).encode(),
        'has JSON objects that extend over several lines (it begins with "{ "text": "text 0", '
        '"url": "https://exam"); write each on one line: jq -c . a.json > a.lines.jsonl',
    ),
    "gzip": (
        "a.jsonl", gzip.compress(b'{"text": "a"}\n'),
        "is compressed with gzip; rename it so that its name ends in .gz",
    ),
    "Zstandard": (
        "a.jsonl", zstd.compress(b'{"text": "a"}\n'),
        "is a Zstandard file; rename it so that its name ends in .zst",
    ),
    "plain as gzip": (
        "a.jsonl.gz", b'{"text": "a"}\n',
        'is not compressed with gzip, although its name ends in .gz (it begins with "{"text": '
        '"a"}"); rename or compress it',
    ),
    "ZIP": (
        "a.jsonl", b"PK\x03\x04rest",
        "is a ZIP archive or an Excel workbook; convert it to lines of JSON, one object each",
    ),
    "UTF-16": (
        "a.jsonl", '{"text": "a"}\n'.encode("utf-16"),
        "is encoded in UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
    ),
    "text": (
        "a.jsonl", b"\xef\xbb\xbfonce upon a time\n",
        'has no JSON object (it begins with "once upon a time"); expected lines of one JSON '
        "object each",
    ),
    "cut gzip": (
        "a.jsonl.gz", gzip.compress(b"")[:12],
        "cannot be read (the file ends in the middle of its data); replace it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_file_without_documents_is_described(case: str, tmp_path: Path) -> None:
    name, content, expected = FILES[case]
    (tmp_path / name).write_bytes(content)
    assert str(explain_no_document(str(tmp_path / name))) == expected


def test_a_table_without_rows_is_described(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    expected = "is a Parquet table without rows; write or download it again"
    assert str(explain_no_document(path)) == expected
    pq.write_table(pa.table({"text": ["a"]}), path)
    assert explain_no_document(path) is None


@pytest.mark.parametrize("before", [b"", b"\n" * 2000, b"\xef\xbb\xbf", b"no JSON\n"])
def test_a_file_with_a_document_needs_no_description(before: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(before + b'{"text": "a"}\n')
    assert explain_no_document(str(tmp_path / "a.jsonl")) is None


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_the_suggested_command_converts_the_file_to_lines(tmp_path: Path) -> None:
    (tmp_path / "a b.json.gz").write_bytes(gzip.compress(PRETTY))
    start = explain_no_document(str(tmp_path / "a b.json.gz"))
    assert start is not None
    subprocess.run(start.remedy.removeprefix("convert it: "), shell=True, cwd=tmp_path, check=True)
    lines = (tmp_path / "a b.lines.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def get_refusal(config: DataConfig) -> str:
    with pytest.raises(UserError) as error:
        survey_data(config)
    return str(error.value)


@pytest.mark.parametrize("case", FILES)
def test_a_run_refuses_data_without_documents(case: str, tmp_path: Path) -> None:
    name, content, expected = FILES[case]
    (tmp_path / name).write_bytes(content)
    found, remedy = expected.split("; ", 1)
    message = get_refusal(small_config(tmp_path / name))
    assert f"data_config.train_file in Hydra configuration: found {tmp_path / name}" in message
    assert f"{name}, which {found}, expected a file of documents.\n   Fix: {remedy}" in message


@pytest.mark.parametrize("case", FILES)
def test_a_run_refuses_a_held_out_file_without_documents(case: str, tmp_path: Path) -> None:
    write_shard(tmp_path / "train.jsonl.gz", pages(40))
    name, content, expected = FILES[case]
    (tmp_path / f"held-{name}").write_bytes(content)
    config = small_config(
        tmp_path / "train.jsonl.gz", validation_file=str(tmp_path / f"held-{name}")
    )
    expected = expected.replace("a.", "held-a.").replace("a b.", "held-a b.")
    for word in ("json", "lines", "jsonl"):
        expected = expected.replace(f"held-held-a.{word}", f"held-a.{word}")
    message = get_refusal(config)
    assert message.startswith(f"data_config.validation_file: {tmp_path / f'held-{name}'} ")
    assert expected in message


def test_an_empty_shard_among_others_is_skipped(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.jsonl.gz", [])
    write_shard(tmp_path / "b.jsonl.gz", pages(40))
    survey = survey_data(small_config(tmp_path))
    assert [shard.name for shard in survey.shards[""]] == ["a.jsonl.gz", "b.jsonl.gz"]


def test_a_page_among_the_shards_does_not_raise_an_error_about_streams(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.jsonl.gz", pages(40))
    (tmp_path / "b.jsonl").write_bytes(b"<html>" + b"x" * 60_000)
    message = get_refusal(small_config(tmp_path))
    assert message.startswith(f"data_config.train_file: {tmp_path}/b.jsonl is an HTML or XML page")
    assert "num_streams" not in message


def test_a_page_among_the_shards_is_named_when_it_is_reached(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.jsonl.gz", pages(40))
    (tmp_path / "b.jsonl").write_bytes(HTML * 500)
    with pytest.raises(DataError) as error:
        batches(small_config(tmp_path, num_streams=1), 100)
    assert str(error.value) == f"data_config.train_file: {tmp_path}/b.jsonl {PAGE}"


def test_fewer_documents_than_streams_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    message = get_refusal(small_config(tmp_path))
    assert message.startswith("data_config.num_streams=8 is too many: no document is left for ")
    assert message.endswith("lower num_streams, or add shards")


def run_program(name: str, *arguments: str) -> tuple[int, str]:
    done = run_warm([sys.executable, str(REPOSITORY / "bsmeta" / name), *arguments])
    return done.returncode, done.stderr + done.stdout


@pytest.mark.parametrize("check_only", ["true", "false"])
def test_train_and_check_only_name_the_empty_file(check_only: str, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    code, output = run_program(
        "train.py", "--config-name", "demo", f"data_config.train_file={tmp_path}/empty.jsonl",
        "data_config.validation_file=null", "metadata=url",
        "data_config.columns={text: text, url: url}", "eval_steps=0", "trackers=[]",
        f"check_only={check_only}", f"out_dir={tmp_path}/run",
    )  # fmt: skip
    assert code == 2
    assert f"found {tmp_path}/empty.jsonl, which is empty (0 bytes)" in output
    assert "first 0 documents" not in output
    assert "Traceback" not in output


def test_check_only_names_the_held_out_page(tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_bytes(HTML)
    code, output = run_program(
        "train.py", "--config-name", "demo", f"data_config.validation_file={tmp_path}/held.jsonl",
        "check_only=true", f"out_dir={tmp_path}/run",
    )  # fmt: skip
    assert code == 2
    assert f"data_config.validation_file in Hydra configuration: found {tmp_path}/held" in output
    assert "which is an HTML or XML page" in output


def open_held_out(path: Path) -> HeldOutDocuments:
    config = DataConfig(validation_file=str(path))
    return HeldOutDocuments(config, max_documents=None, deduplicate=False, training_overlap=None)


@pytest.mark.parametrize("case", ["empty", "page", "array", "page as gzip", "text"])
def test_an_evaluation_names_the_held_out_file(case: str, tmp_path: Path) -> None:
    name, content, expected = FILES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        open_held_out(tmp_path / name)
    if case == "text":  # a bad line, which is named as in any file
        assert f"{tmp_path / name}, line 1: not_json" in str(error.value)
    else:
        assert str(error.value) == f"data_config.validation_file: {tmp_path / name} {expected}"


def test_an_evaluation_names_a_later_bad_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\nno JSON\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: not_json"):
        open_held_out(tmp_path / "a.jsonl")


@pytest.mark.parametrize("case", ["page", "array"])
def test_a_prediction_names_the_input_file(case: str, tmp_path: Path) -> None:
    _, content, expected = FILES[case]
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError) as error:
        list(read_records(tmp_path / "a.jsonl", ["text"], BadRows(tmp_path / "a.jsonl", "skip")))
    expected = expected.replace("a.json >", "a.jsonl >")
    assert str(error.value) == f"input: {tmp_path / 'a.jsonl'} {expected}"


def test_annotate_refuses_an_array(tmp_path: Path) -> None:
    (tmp_path / "pages.jsonl").write_bytes(ARRAY)
    code, output = run_program(
        "annotate.py", f"input={tmp_path}/pages.jsonl", f"output={tmp_path}/out",
        "annotators=[language]", "workers=1",
    )  # fmt: skip
    assert code == 2
    assert f"input: {tmp_path}/pages.jsonl is a JSON array (" in output
    assert "jq -c '.[]' pages.jsonl > pages.lines.jsonl" in output
