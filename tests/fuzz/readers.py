"""The readers of all that may come from strangers, each with an intact file.

A reader reads the file at a path as production does, to its end, and raises what that raises.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import pickle
import random
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bsmeta.core.errors import CheckpointError, UserError
from bsmeta.data.io.zstandard import zstd
from bsmeta.training.checkpoints.checkpoint import FORMAT
from tests.conftest import REPOSITORY
from tests.fuzz.changes import change_json, change_json_lines, change_yaml, put_words

Encode = Callable[[bytes], bytes]
Changing = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """A reader, and a file that it accepts.

    Attributes:
        file: Name of the file.
        intact: Its content before `encode`.
        read: Reads it.
        changes: What is done to the content, beside random changes of bytes before and after.
        encode: Makes the file of the content, such as `gzip.compress`.
        prepare: Writes other files of its folder.
    """

    file: str
    intact: bytes
    read: Callable[[Path], object]
    changes: tuple[Changing, ...] = (put_words,)
    encode: Encode = bytes
    prepare: Callable[[Path], object] = field(default=lambda _: None)


DOCUMENTS = [
    {
        "text": f"A set is é {number}. Another sentence, with a link.",
        "url": "https://www.example.org/a?b=c#d",
        "c4_timestamp": "2019-04-25T12:57:54Z",
        "metadata_title": [{"key": "title", "type": "global", "value": "Sets"}],
        "metadata_html": [
            {
                "key": "html",
                "type": "local",
                "value": "b",
                "char_start_idx": 2,
                "char_end_idx": 5,
                "html_attrs": {"attrs": ["class"], "values": ["x"]},
            },
        ],
    }
    for number in range(6)
]

PAGE = (
    "<!doctype html><html lang=en><head><title>Sets &amp; more</title><base href='/x/'>"
    '<meta name="description" content="About sets"><meta property="article:published_time" '
    'content="2019-04-05T06:07:08Z"><script type="application/ld+json">{"@type": "Article", '
    '"datePublished": "2019-04-05"}</script></head><body><h1 id=a>Sets</h1><p class="b">A <b>set'
    '</b> is <a href="../y?q=1">a thing</a> with a paragraph that is long enough to be kept, '
    "which needs more than sixty-four characters.<p>Another<table><tr><td>1</table></body></html>"
)


def as_lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(record)}\n" for record in records).encode()


def as_parquet(lines: bytes) -> bytes:
    table = pa.Table.from_pylist([json.loads(line) for line in lines.splitlines()])
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=3)
    return file.getvalue()


# The stream of training


def train_on(path: Path) -> None:
    """The first steps of a run, which fails on bad documents, and of one that skips them."""
    from bsmeta.data.stream.train_stream import TrainStream
    from tests.data.helpers import small_config

    refusals = 0
    for bad_documents in ("strict", "skip"):
        config = small_config(
            path.parent,
            train_file=str(path),
            num_streams=1,
            bad_documents=bad_documents,
            max_bad_documents=20,
            cache_dir=str(path.parent / "cache"),
        )
        try:
            stream = TrainStream(
                config, _tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
            )
            for _ in itertools.islice(stream, 2):
                pass
        except UserError:
            refusals += 1
    if refusals == 2:
        raise UserError("both refuse it")


@cache
def _tokenizer() -> Any:
    from tests.data.helpers import small_tokenizer

    return small_tokenizer()


def survey(path: Path) -> None:
    from bsmeta.data.stream.survey import survey_data
    from tests.data.helpers import small_config

    survey_data(small_config(path.parent, train_file=str(path), num_streams=1))


# Annotation


def annotate_file(path: Path) -> None:
    """All annotators, with the report; in this process, where a crash is seen."""
    from bsmeta.annotate.annotator import Annotation
    from bsmeta.annotate.inputs.sources import read_items
    from bsmeta.annotate.plan import list_all_columns
    from bsmeta.annotate.pool import Chunk

    config, annotators = _annotators()
    annotation = Annotation(config, annotators, list_all_columns(annotators))
    items = [item for item, _ in read_items(str(path), int(config.page_mb * 1e6))]
    names = frozenset(annotator.name for annotator in annotators)
    chunk = Chunk(0, items=items, rows=[None] * len(items), names=names)
    annotation(chunk, {}, _Silent())


@cache
def _annotators() -> tuple[Any, Any]:
    from bsmeta.annotate.config import AnnotateConfig
    from bsmeta.annotate.plan import make_annotators

    names = [
        "html",
        "content",
        "url",
        "title",
        "timestamp",
        "website_description",
        "datasource",
        "length",
        "paragraph",
        "language",
    ]
    config = AnnotateConfig(annotators=names, page_mb=1.0)
    return config, make_annotators(config)


class _Silent:
    """Where a worker is, which nobody looks at here."""

    def begin_page(self, number: int) -> None: ...
    def begin_step(self, step: int) -> None: ...
    def end_page(self) -> None: ...


def annotate_page(path: Path) -> None:
    """A raw page, decoded as that of a crawl."""
    line = json.dumps(
        {"url": "https://example.org/2019/04/05/x", "html": path.read_bytes().decode("latin-1")}
    )
    file = path.with_name("page.jsonl")
    file.write_text(f"{line}\n")
    annotate_file(file)


def read_addresses(path: Path) -> None:
    """Lines of URLs, and of times."""
    from bsmeta.annotate.links import normalize_address
    from bsmeta.api.documents import render
    from bsmeta.data.io.file_sets import Entry

    for line in path.read_bytes().decode("utf-8", "surrogateescape").splitlines():
        normalize_address(line)
        str(Entry("x", line, 0, ""))
        for name in ("url", "timestamp", "datasource", "website_description", "title"):
            with suppress(UserError):
                render({"text": "x", "metadata": {name: line}})


def warc(page: bytes) -> bytes:
    records = []
    for number in range(3):
        body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page
        head = (
            "WARC/1.0\r\nWARC-Type: response\r\n"
            "Content-Type: application/http; msgtype=response\r\n"
            f"WARC-Target-URI: https://example.org/{number}\r\n"
            "WARC-Date: 2019-04-05T06:07:08Z\r\n"
            f"WARC-Record-ID: <urn:uuid:0000000{number}-0000-4000-8000-000000000000>\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        records.append(head.encode() + body + b"\r\n\r\n")
    return b"".join(records)


def compress_records(content: bytes) -> bytes:
    """A WARC file as crawlers compress it: a gzip member for each record."""
    parts = content.split(b"WARC/1.0")
    return b"".join(gzip.compress(b"WARC/1.0" + part, mtime=0) for part in parts[1:]) or content


def read_journal(path: Path) -> None:
    from bsmeta.annotate.shard import read_journal

    journal = read_journal(path)
    if journal is not None:
        journal.sum_counts()


@cache
def journal() -> bytes:
    import tempfile

    from bsmeta.annotate.shard import (
        AnnotatedChunk,
        Counts,
        Header,
        PageSettings,
        ShardFiles,
        ShardWriter,
    )

    with tempfile.TemporaryDirectory() as folder:
        files = ShardFiles(Path(folder), "a")
        header = Header(3, "0" * 16, PageSettings(1, "all", 1.0), False, {"html": "x"}, ["html"])
        writer = ShardWriter(files, header)
        writer.add(AnnotatedChunk(b"x", [(0, "no_html", "https://example.org/")], Counts(pages=2)))
        writer.finish({})
        return files.journal.read_bytes()


# Archives and tables


def unpack(path: Path) -> None:
    from bsmeta.data.io.archives import unpack

    unpack(path, path.parent / "out/unpacked", 100_000)
    import shutil

    shutil.rmtree(path.parent / "out")


def tarred(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a/b.txt", "c.txt", "a/" + "d" * 120):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a/b.txt", "c.txt"):
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def read_table(path: Path) -> None:
    """The rows of a CSV file or JSON lines, strict and with bad rows skipped."""
    from bsmeta.data.table.csv_file import BadRows
    from bsmeta.data.table.records import read_records

    refusals = 0
    for on_bad_row in ("refuse", "skip"):
        bad = BadRows(path, on_bad_row)
        try:
            for _ in read_records(path, ["text"], bad):
                pass
            bad.close()
        except UserError:
            refusals += 1
    if refusals == 2:
        raise UserError("both refuse it")


# Entities


def read_mentions(path: Path) -> None:
    from bsmeta.tasks.disambiguation.lines import Problems, read_lines

    problems = Problems(path)
    for _ in read_lines(path, problems):
        pass
    problems.close()


def build_entities(path: Path) -> None:
    from bsmeta.core.files import delete_path
    from bsmeta.tasks.disambiguation.profiles import build_entities

    delete_path(path.parent / "table")
    table = build_entities(path, path.parent / "table")
    table.summary()


def read_entities(path: Path) -> None:
    """All values of a table of entities."""
    from bsmeta.tasks.disambiguation.entities import EntityTable

    table = EntityTable.open(path.parent)
    for entity in range(len(table)):
        table.list_types(entity), table.list_relations(entity), table.titles[entity]
    for alias in range(len(table.aliases)):
        table.candidates(alias)


PROFILES = [
    {
        "entity_id": "Q1",
        "mentions": [["set", 2.0], ["sets", 1]],
        "title": "Set",
        "description": "x",
        "types": {"kind": ["thing"]},
        "relations": [{"relation": "near", "object": "Q2"}],
    },
    {"entity_id": "Q2", "mentions": [["set", 1.0]], "title": "Menge"},
]

MENTIONS = [
    {
        "sent_idx_unq": number,
        "sentence": "A set is a set .",
        "aliases": ["set", "set"],
        "qids": ["Q1", "Q2"],
        "spans": [[1, 2], [4, 5]],
        "gold": [True, False],
    }
    for number in range(3)
]


def prepare_entities(folder: Path) -> None:
    from bsmeta.tasks.disambiguation.profiles import build_entities as build

    lines = folder / "profiles.jsonl"
    lines.write_bytes(as_lines(PROFILES))
    build(lines, folder / "made")
    for file in (folder / "made").iterdir():
        file.rename(folder / file.name)


@cache
def entity_file(name: str) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        prepare_entities(Path(folder))
        return (Path(folder) / name).read_bytes()


def read_mappings(path: Path) -> None:
    """The entity data of Bootleg, of which one file is changed."""
    from bsmeta.core.files import delete_path
    from bsmeta.tasks.disambiguation.entity_files import Sources, build_from_files

    delete_path(path.parent / "table")
    build_from_files(Sources(path.parent.parent), path.parent / "table").summary()


def prepare_mappings(folder: Path) -> None:
    (folder / "qid2title.json").write_text('{"Q1": "Set", "Q2": "Menge"}')
    (folder / "qid2eid.json").write_text('{"Q1": 1, "Q2": 2}')
    (folder / "config.json").write_text('{"max_candidates": 30}')


# Models and runs


def read_model_manifest(path: Path) -> None:
    from bsmeta.models.pretrained import list_model_damage

    list_model_damage(path.parent)


def read_checkpoint_manifest(path: Path) -> None:
    from bsmeta.training.checkpoints.checkpoint import Checkpoint, read_checked_manifest

    read_checked_manifest(Checkpoint(path.parent, 8))


def read_run(path: Path) -> None:
    """The files of a run, of which one is changed."""
    from bsmeta.api.runs import Run

    run = Run(path.parent)
    refusals = []
    for read in (run.status, run.metrics, run.evaluation, lambda: run.config):
        try:
            read()
        except UserError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


@cache
def demo() -> Any:
    from bsmeta.api.configuration import compose_configuration

    return compose_configuration("demo")


def saved_configuration() -> bytes:
    from bsmeta.config.saved_runs import format_yaml

    return format_yaml(demo()).encode()


def prepare_run(folder: Path) -> None:
    (folder / "config.yaml").write_bytes(saved_configuration())
    (folder / "status.json").write_text(STATUS)
    (folder / "metrics.jsonl").write_bytes(METRICS)
    (folder / "evaluation").mkdir()
    (folder / "evaluation/evaluation.json").write_text('{"results": []}')


STATUS = '{"state": "done", "step": 8, "exit_code": 0, "message": ""}'
METRICS = as_lines([{"event": "step", "step": 1, "loss": 2.5}, {"event": "save", "step": 1}])


def read_launch_file(path: Path) -> None:
    from bsmeta.config.launch import read_launch

    read_launch({}, str(path))


def read_deepspeed(path: Path) -> None:
    """A DeepSpeed JSON, read and compared with a run's configuration and launch."""
    from bsmeta.config.checks.deepspeed import DeepSpeedJson, read_json
    from bsmeta.config.launch import read_launch

    document, problems = read_json(path)
    if document is not None:
        launch = read_launch({}, str(REPOSITORY / "experiments/accelerate/cpu_zero2.yaml"))
        problems += DeepSpeedJson(document, demo(), launch).find_problems(set())
    for problem in problems:
        str(problem)


def read_sharded(path: Path) -> None:
    from bsmeta.training.checkpoints.shards import read_tensor_shapes

    read_tensor_shapes(path.parent)


def write_sharded_values(folder: Path) -> None:
    (folder / "__0_0.distcp").write_bytes(bytes(16))


@cache
def sharded_metadata() -> bytes:
    import torch
    from torch.distributed.checkpoint import metadata as dcp

    properties = dcp.TensorProperties(dtype=torch.float32)
    chunk = dcp.ChunkStorageMetadata(offsets=torch.Size([0]), sizes=torch.Size([4]))
    entry = dcp.TensorStorageMetadata(properties, torch.Size([4]), [chunk])
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    index = dcp.MetadataIndex("weight", torch.Size([0]))
    return pickle.dumps(
        dcp.Metadata({"weight": entry}, storage_data={index: _StorageInfo("__0_0.distcp", 0, 16)})
    )


def read_download_manifest(path: Path) -> None:
    from bsmeta.data.io.file_sets import read_manifest

    read_manifest(path)


def read_copies(path: Path) -> None:
    from bsmeta.data.stage import read_manifest

    read_manifest(path.parent)


def read_study(path: Path) -> None:
    from bsmeta.studies.config import load_study

    load_study(path)


def read_measurement(path: Path) -> None:
    from bsmeta.studies.runs import Measurement

    Measurement.load(path)


def read_task_scores(path: Path) -> None:
    """The scores of a run, and a claim about them."""
    from bsmeta.studies.config import ClaimConfig, StudyConfig
    from bsmeta.studies.task_scores import compute_task_effect, load_scores

    scores = load_scores(path)
    study = StudyConfig(baseline="none", seeds=[1, 2])
    runs = {(arm, seed): scores for arm in ("none", "url") for seed in study.seeds}
    for score in ("bits", "accuracy"):
        claim = ClaimConfig(arm="url", task="quiz", shots=5, score=score)
        compute_task_effect(study, claim, runs, "host")


TASK_SCORES = {
    "settings": "x",
    "facts": {"scored": {"lm_eval": "0.4"}},
    "scores": [
        {
            "task": "quiz",
            "shots": 5,
            "prompt": "",
            "correct": [1, 0, 1],
            "bits": [20.5, 31.25, 12.0],
            "sizes": [10, 12, 4],
            "hosts": ["a.org", "b.org", ""],
            "asked": "y",
        }
    ],
}


DOWNLOADS = {
    "files": [
        {
            "path": "a.tar",
            "address": "https://example.org/a.tar",
            "bytes": 3,
            "sha256": "0" * 64,
            "unpack": "a",
            "unpacked_bytes": 5,
        },
    ]
}
COPIES = [{"name": "train/a.jsonl", "bytes": 3, "content": "x", "xxh3": "0" * 16}]
TABLE = b'text,label\n"A set, is",yes\n"He said ""no""\nagain",no\nplain,yes\n'

TARGETS = {
    "training lines": Target(
        "a.jsonl", as_lines(DOCUMENTS), train_on, (put_words, change_json_lines)
    ),
    "training gzip": Target(
        "a.jsonl.gz",
        as_lines(DOCUMENTS),
        train_on,
        (put_words, change_json_lines),
        partial(gzip.compress, mtime=0),
    ),
    "training zstd": Target(
        "a.jsonl.zst", as_lines(DOCUMENTS), train_on, (put_words, change_json_lines), zstd.compress
    ),
    "training parquet": Target("a.parquet", as_parquet(as_lines(DOCUMENTS)), train_on),
    "survey": Target("a.jsonl", as_lines(DOCUMENTS), survey, (put_words, change_json_lines)),
    "annotation lines": Target(
        "a.jsonl",
        as_lines([{"url": "https://example.org/", "html": PAGE, "timestamp": "2019-04-05"}] * 2),
        annotate_file,
        (put_words, change_json_lines),
    ),
    "annotation parquet": Target(
        "a.parquet",
        as_parquet(as_lines([{"url": "https://example.org/", "html": PAGE, "n": 1}] * 4)),
        annotate_file,
    ),
    "annotation of shards": Target(
        "a.jsonl", as_lines(DOCUMENTS), annotate_file, (put_words, change_json_lines)
    ),
    "warc": Target("a.warc", warc(PAGE.encode()), annotate_file),
    "warc gzip": Target("a.warc.gz", warc(PAGE.encode()), annotate_file, encode=compress_records),
    "html": Target("a.html", PAGE.encode(), annotate_page),
    "addresses and times": Target(
        "a.txt",
        b"https://user@www.example.co.uk:443/a/../b?c=d#e\n2019-04-05T06:07:08+02:00\nx\n",
        read_addresses,
    ),
    "tar": Target("a.tar", b"content\n" * 9, unpack, (), tarred),
    "tar gzip": Target(
        "a.tar.gz",
        b"content\n" * 9,
        unpack,
        (),
        lambda content: gzip.compress(tarred(content), mtime=0),
    ),
    "zip": Target("a.zip", b"content\n" * 9, unpack, (), zipped),
    "csv": Target("a.csv", TABLE, read_table),
    "csv gzip": Target("a.csv.gz", TABLE, read_table, encode=partial(gzip.compress, mtime=0)),
    "records": Target(
        "a.jsonl", as_lines([{"text": "a", "n": 1}] * 3), read_table, (put_words, change_json_lines)
    ),
    "bootleg lines": Target(
        "a.jsonl", as_lines(MENTIONS), read_mentions, (put_words, change_json_lines)
    ),
    "profiles": Target(
        "a.jsonl", as_lines(PROFILES), build_entities, (put_words, change_json_lines)
    ),
    "bootleg mappings": Target(
        "entity_mappings/alias2qids.json",
        b'{"set": [["Q1", 2.0], ["Q2", 1.0]]}',
        read_mappings,
        (put_words, change_json),
        prepare=prepare_mappings,
    ),
    "entity manifest": Target(
        "manifest.json",
        entity_file("manifest.json"),
        read_entities,
        (put_words, change_json),
        prepare=prepare_entities,
    ),
    "entity array": Target(
        "ids.bin", entity_file("ids.bin"), read_entities, prepare=prepare_entities
    ),
    "model manifest": Target(
        "manifest.json",
        b'{"format": 1, "files": {"x": {"bytes": 1, "xxh3": "' + b"0" * 32 + b'"}}}',
        read_model_manifest,
        (put_words, change_json),
    ),
    "checkpoint manifest": Target(
        "manifest.json",
        json.dumps(
            {
                "format": FORMAT,
                "step": 8,
                "files": {
                    name: {"bytes": 1, "xxh3": "0" * 32}
                    for name in ("trainer_state.json", "data_state.json", "config.yaml")
                },
            }
        ).encode(),
        read_checkpoint_manifest,
        (put_words, change_json),
    ),
    "saved configuration": Target(
        "config.yaml",
        saved_configuration(),
        read_run,
        (put_words, change_yaml),
        prepare=prepare_run,
    ),
    "status": Target(
        "status.json", STATUS.encode(), read_run, (put_words, change_json), prepare=prepare_run
    ),
    "metrics": Target(
        "metrics.jsonl", METRICS, read_run, (put_words, change_json_lines), prepare=prepare_run
    ),
    "launch file": Target(
        "launch.yaml",
        (REPOSITORY / "experiments/accelerate/cpu_zero2.yaml").read_bytes(),
        read_launch_file,
        (put_words, change_yaml),
    ),
    "deepspeed": Target(
        "zero2.json",
        (REPOSITORY / "deepspeed_configs/zero2.json").read_bytes(),
        read_deepspeed,
        (put_words, change_json),
    ),
    "sharded metadata": Target(
        ".metadata", sharded_metadata(), read_sharded, prepare=write_sharded_values
    ),
    "download manifest": Target(
        "a.json", json.dumps(DOWNLOADS).encode(), read_download_manifest, (put_words, change_json)
    ),
    "download manifest in YAML": Target(
        "a.yaml", json.dumps(DOWNLOADS).encode(), read_download_manifest, (put_words, change_yaml)
    ),
    "manifest of copies": Target(
        "staged.jsonl", as_lines(COPIES), read_copies, (put_words, change_json_lines)
    ),
    "journal": Target("a.journal", journal(), read_journal),
    "study": Target(
        "a.yaml",
        (REPOSITORY / "experiments/studies/known_answers.yaml").read_bytes(),
        read_study,
        (put_words, change_yaml),
    ),
    "task scores": Target(
        "none-seed1.tasks.json",
        json.dumps(TASK_SCORES).encode(),
        read_task_scores,
        (put_words, change_json),
    ),
}

REFUSALS = (UserError, CheckpointError)
"""What a reader raises for a file that it does not accept."""
