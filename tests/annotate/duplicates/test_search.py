"""Duplicates among pages: which page is kept, whatever the processes and interruptions."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from datasketch import MinHash, MinHashLSH

from bsmeta.annotate.command import run_task
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.duplicates.bands import choose_bands
from bsmeta.annotate.duplicates.search import MAX_COMPARED_PAGES
from bsmeta.annotate.duplicates.shingles import hash_shingles
from bsmeta.annotate.duplicates.signatures import Signer
from bsmeta.annotate.inputs.sources import list_inputs
from bsmeta.core.errors import ConfigurationError, DataError
from tests.annotate.conftest import read_shards
from tests.annotate.copies import (
    make_corpus,
    make_text,
    measure_all,
    measure_jaccard,
    read_lines,
    write_texts,
)
from tests.annotate.helpers import annotate, rows, write_pages
from tests.conftest import REPOSITORY
from tests.waiting import STUCK_S, wait_until

PAGES = {"a": 150, "b": 40, "c": 110}
CHUNK = 8


def list_copies(folder: Path, **settings: Any) -> dict[str, dict[str, Any]]:
    """Finds duplicates in the files of a folder; returns each copy with its line."""
    output = folder.with_name(f"{folder.name}.copies")
    settings = {"duplicates": "mark", "duplicates_only": True} | settings
    annotate(str(folder), output, **settings)
    return {line.pop("page"): line for line in read_lines(output / "duplicates.jsonl")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder of pages."""
    (tmp_path / "pages").mkdir()
    return tmp_path / "pages"


def write_corpus(folder: Path) -> None:
    """Writes files of texts, with copies in the same file and in others."""
    texts = iter(make_corpus(sum(PAGES.values()), 1))
    for name, count in PAGES.items():
        write_texts(folder / f"{name}.jsonl.gz", [next(texts) for _ in range(count)])


def read_texts(folder: Path) -> list[str]:
    return [row["text"] for path in sorted(folder.glob("*.gz")) for row in rows(path)]


def test_the_first_page_in_the_order_of_files_and_records_is_kept(folder: Path) -> None:
    text = make_text(range(100))
    write_texts(folder / "a.jsonl.gz", [make_text(range(200, 300)), text])
    write_texts(folder / "b.jsonl.gz", [text.upper(), text, make_text(range(400, 500))])
    assert list_copies(folder) == {
        "b:0": {"kind": "near_duplicate", "kept": "a:1", "similarity": 1.0},
        "b:1": {"kind": "exact_duplicate", "kept": "a:1", "similarity": 1.0},
    }


@pytest.mark.parametrize(
    ("common", "is_copy"), [(100, True), (94, True), (92, True), (84, False), (70, False)]
)
def test_pages_from_the_threshold_on_are_copies(common: int, is_copy: bool, folder: Path) -> None:
    """Two sets of 100 words; with 89 in common, the similarity would be 0.802."""
    texts = [make_text(range(100)), make_text(range(100 - common, 200 - common))]
    jaccard = common / (200 - common)
    assert measure_jaccard(texts[0], texts[1], length=1) == pytest.approx(jaccard)
    write_texts(folder / "a.jsonl.gz", texts)
    copies = list_copies(folder, duplicate_shingle=1, duplicate_permutations=1024)
    assert [*copies] == ["a:1"] * is_copy
    for copy in copies.values():
        assert copy["similarity"] == pytest.approx(jaccard, abs=0.05)


def test_a_chain_of_small_changes_drops_no_page_that_differs_from_the_kept_one(
    folder: Path,
) -> None:
    """Each text has 95 words in common with the next, and 90 with the next but one."""
    write_texts(folder / "a.jsonl.gz", [make_text(range(5 * k, 100 + 5 * k)) for k in range(5)])
    copies = list_copies(folder, duplicate_shingle=1, duplicate_threshold=0.87)
    assert {page: copy["kept"] for page, copy in copies.items()} == {"a:1": "a:0", "a:3": "a:2"}


def test_the_most_similar_kept_page_is_named(folder: Path) -> None:
    write_texts(
        folder / "a.jsonl.gz",
        [make_text(range(first, first + 100)) for first in (0, 50, 32)],
    )
    copies = list_copies(folder, duplicate_shingle=1, duplicate_threshold=0.5)
    assert {page: copy["kept"] for page, copy in copies.items()} == {"a:2": "a:1"}


def test_short_texts_are_copies_only_of_the_same_text(folder: Path) -> None:
    text = make_text(range(19))
    write_texts(folder / "a.jsonl.gz", [text, text.upper(), text, f"{text} w19", f"{text}  W19"])
    assert list_copies(folder) == {
        "a:2": {"kind": "exact_duplicate", "kept": "a:0", "similarity": 1.0},
        "a:4": {"kind": "near_duplicate", "kept": "a:3", "similarity": 1.0},
    }


def test_texts_without_spaces_are_compared_by_their_characters(folder: Path) -> None:
    text = "".join(chr(0x4E00 + 7 * number) for number in range(300))
    other = text[:150] + "一二三" + text[150:]
    write_texts(folder / "a.jsonl.gz", [text, other, text[::-1]])
    assert [*list_copies(folder)] == ["a:1"]


@pytest.mark.parametrize("seed", [0, 1])
def test_duplicates_of_a_corpus_equal_those_of_brute_force(seed: int, folder: Path) -> None:
    texts = make_corpus(300, seed)
    write_texts(folder / "a.jsonl.gz", texts)
    copies = {int(page[2:]): int(copy["kept"][2:]) for page, copy in list_copies(folder).items()}
    similarities = measure_all(texts)

    # Estimates have a standard error of 0.035 at the threshold of 0.8.
    assert not copies.keys() & copies.values()  # kept pages are not copies
    assert min(similarities[kept, page] for page, kept in copies.items()) > 0.68
    missed = [
        similarity
        for (first, second), similarity in similarities.items()
        if similarity >= 0.8 and not {first, second} & copies.keys()
    ]
    assert max(missed, default=0.0) < 0.92
    assert len(missed) <= 2
    assert len(copies) > 60


def test_duplicates_equal_those_of_the_index_of_the_library(folder: Path) -> None:
    texts = make_corpus(300, 2)
    write_texts(folder / "a.jsonl.gz", texts)
    index = MinHashLSH(num_perm=128, params=tuple(choose_bands(0.8, 128)))
    copies = []
    for number, text in enumerate(texts):
        values = Signer(128).sign(hash_shingles(text.split(), 5))
        minhash = MinHash(128, hashvalues=values, scheme="affine32")
        candidates = index.query(minhash)
        if any(_read_signature(index, texts, k).jaccard(minhash) >= 0.8 for k in candidates):
            copies.append(f"a:{number}")
        else:
            index.insert(number, minhash)
    assert [*list_copies(folder)] == copies
    assert len(copies) > 30


def _read_signature(index: MinHashLSH, texts: Sequence[str], number: int) -> MinHash:
    values = Signer(128).sign(hash_shingles(texts[number].split(), 5))
    return MinHash(128, hashvalues=values, scheme="affine32")


def test_a_copy_is_found_though_more_pages_share_a_band_than_are_compared(folder: Path) -> None:
    """Pages with 60 of 100 words in common share bands without being copies."""
    sets = [
        [*range(60), *range(1000 * k, 1000 * k + 40)] for k in range(1, MAX_COMPARED_PAGES + 50)
    ]
    copy = [*sets[-1][:-2], 1, 2]
    write_texts(folder / "a.jsonl.gz", map(make_text, [*sets, copy]))
    settings = {"duplicate_shingle": 1, "duplicate_permutations": 16, "duplicate_threshold": 0.75}
    copies = list_copies(folder, **settings)
    assert copies[f"a:{len(sets)}"]["kept"] == f"a:{len(sets) - 1}"
    assert len(copies) < 10


@pytest.mark.parametrize("mode", ["drop", "mark"])
def test_the_number_of_processes_does_not_change_the_shards(
    mode: str, folder: Path, tmp_path: Path
) -> None:
    write_corpus(folder)
    shards = []
    for workers in (1, 3):
        output = tmp_path / f"out{workers}"
        annotate(
            str(folder), output, duplicates=mode, workers=workers, chunk_pages=CHUNK,
            annotators=["url"],
        )  # fmt: skip
        shards.append(read_shards(output))
    assert shards[0] == shards[1]
    assert len(shards[0]) == 3


def test_dropped_pages_have_no_row_and_marked_ones_name_the_kept_page(
    folder: Path, tmp_path: Path
) -> None:
    text = make_text(range(100))
    write_texts(folder / "a.jsonl.gz", [text, f"{text} more", make_text(range(200, 300))])
    write_texts(folder / "b.jsonl.gz", ["", text])
    annotate(str(folder), tmp_path / "drop", duplicates="drop")
    annotate(str(folder), tmp_path / "mark", duplicates="mark")

    assert read_texts(tmp_path / "drop") == [text, make_text(range(200, 300))]
    (kept,) = {len(rows(tmp_path / "drop" / "b.jsonl.gz"))}
    assert kept == 0
    marks = [row["metadata_duplicate"] for row in rows(tmp_path / "mark" / "a.jsonl.gz")]
    assert [len(records) for records in marks] == [0, 1, 0]
    (record,) = marks[1]
    similarity = record.pop("similarity")
    assert similarity == pytest.approx(96 / 97, abs=0.05)
    assert record == {
        "key": "duplicate",
        "type": "global",
        "value": "a:0",
        "source": "near_duplicate",
    }
    (row,) = rows(tmp_path / "mark" / "b.jsonl.gz")
    assert row["metadata_duplicate"][0]["value"] == "a:0"
    assert row["metadata_duplicate"][0]["source"] == "exact_duplicate"


def test_raw_pages_are_compared_by_their_text(folder: Path, tmp_path: Path) -> None:
    text = make_text(range(100))
    pages = [f"<title>{title}</title><p>{text}" for title in ("One", "Two")]
    write_pages(folder / "a.jsonl.gz", [{"url": "https://a.org", "html": page} for page in pages])
    annotate(str(folder), tmp_path / "out", duplicates="drop")
    assert read_texts(tmp_path / "out") == [text]


def test_duplicates_are_counted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = make_text(range(100))
    write_texts(folder / "a.jsonl.gz", [text, text, f"{text} more", "short"])
    for mode, without_row in (("drop", 3), ("mark", 0)):
        output = tmp_path / mode
        annotate(str(folder), output, duplicates=mode, report=True, annotators=["url"])
        total = json.loads((output / "report.json").read_text())["total"]
        assert total["duplicates"] == {"exact_duplicate": 1, "near_duplicate": 1}
        assert sum(total["dropped"].values()) == (2 if without_row else 0)
        printed = capsys.readouterr().out
        assert "4 pages, 2 duplicates, " in printed
        assert "near_duplicate" in printed
        assert "near_duplicate" in (output / "report.html").read_text()


def test_a_changed_setting_changes_only_the_shards_with_duplicates(
    folder: Path, tmp_path: Path
) -> None:
    text = make_text(range(100))
    write_texts(folder / "a.jsonl.gz", [text, make_text(range(200, 300))])
    write_texts(folder / "b.jsonl.gz", [text, make_text(range(300, 400))])
    output = tmp_path / "out"
    numbers = []
    for mode in ("off", "drop", "mark", "drop", "off"):
        before = {path.name: path.stat().st_mtime_ns for path in output.glob("*.gz")}
        assert annotate(str(folder), output, duplicates=mode) == 0
        after = {path.name: path.stat().st_mtime_ns for path in output.glob("*.gz")}
        numbers.append((len(read_texts(output)), before.get("a.jsonl.gz") == after["a.jsonl.gz"]))
    assert numbers == [(4, False), (3, True), (4, False), (3, True), (4, True)]


def test_a_new_file_changes_only_later_shards_with_new_copies(folder: Path, tmp_path: Path) -> None:
    text = make_text(range(100))
    output = tmp_path / "out"
    write_texts(folder / "b.jsonl.gz", [text])
    write_texts(folder / "c.jsonl.gz", [make_text(range(200, 300))])

    def list_times() -> dict[str, int]:
        annotate(str(folder), output, duplicates="drop")
        return {path.name: path.stat().st_mtime_ns for path in output.glob("*.gz")}

    first = list_times()
    write_texts(folder / "d.jsonl.gz", [text])
    second = list_times()
    assert first.items() <= second.items()
    write_texts(folder / "a.jsonl.gz", [text])
    third = list_times()
    assert third["b.jsonl.gz"] != second["b.jsonl.gz"]
    assert third["c.jsonl.gz"] == second["c.jsonl.gz"]
    assert [len(rows(path)) for path in sorted(output.glob("*.gz"))] == [1, 0, 1, 0]


def test_marks_are_updated_when_an_earlier_file_arrives(folder: Path, tmp_path: Path) -> None:
    text = make_text(range(100))
    output = tmp_path / "out"
    write_texts(folder / "b.jsonl.gz", [text, text])
    annotate(str(folder), output, duplicates="mark")
    write_texts(folder / "a.jsonl.gz", [f"{text} more"])
    annotate(str(folder), output, duplicates="mark", annotators=[])
    marked = rows(output / "b.jsonl.gz")
    assert [row["metadata_duplicate"][0]["value"] for row in marked] == ["a:0", "a:0"]
    assert [row["metadata_url"][0]["value"] for row in marked] == [
        "https://www.example.org/b/0",
        "https://www.example.org/b/1",
    ]


def test_a_damaged_file_is_excluded(folder: Path, tmp_path: Path) -> None:
    text = make_text(range(100))
    write_texts(folder / "a.jsonl.gz", [text, *make_corpus(30, 0)])
    write_texts(folder / "b.jsonl.gz", [text])
    whole = (folder / "a.jsonl.gz").read_bytes()
    (folder / "a.jsonl.gz").write_bytes(whole[:-200])
    with pytest.raises(DataError, match="a.jsonl.gz: damaged"):
        annotate(str(folder), tmp_path / "out", duplicates="drop")
    assert read_texts(tmp_path / "out") == [text]

    (folder / "a.jsonl.gz").write_bytes(whole)
    annotate(str(folder), tmp_path / "out", duplicates="drop")
    assert rows(tmp_path / "out" / "b.jsonl.gz") == []


def test_tasks_of_many_machines_make_the_same_shards(folder: Path, tmp_path: Path) -> None:
    write_corpus(folder)
    annotate(str(folder), tmp_path / "one", duplicates="drop", annotators=["url"])
    output = tmp_path / "many"
    only_decisions = {"duplicates": "drop", "annotators": ["url"], "duplicates_only": True}
    annotate(str(folder), output, **only_decisions)
    config = AnnotateConfig(
        input=str(folder), output=str(output), duplicates="drop", annotators=["url"], workers=1
    )
    for rank in range(2):
        run_task(config, list_inputs(str(folder)), rank=rank, world_size=2)
    assert read_shards(output) == read_shards(tmp_path / "one")


def test_a_custom_annotator_named_duplicate_needs_marks(folder: Path, tmp_path: Path) -> None:
    write_texts(folder / "a.jsonl.gz", ["text"])
    with pytest.raises(ConfigurationError, match="annotators: duplicate needs duplicates=mark"):
        annotate(str(folder), tmp_path / "out", annotators=["duplicate"], duplicates="drop")


def test_a_full_disk_is_reported_and_the_run_continues_later(folder: Path, tmp_path: Path) -> None:
    write_corpus(folder)
    output = tmp_path / "out"
    settings = {"duplicates": "drop", "annotators": ["url"], "duplicate_threshold": 0.5}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (10_000, 60_000, 90_000):  # of any file: less than signatures, then than bands
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(
                DataError, match=r"_annotation/duplicates cannot be written: .*free"
            ):
                annotate(str(folder), output, **settings)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert annotate(str(folder), output, **settings) == 0
    annotate(str(folder), tmp_path / "once", **settings)
    assert read_shards(output) == read_shards(tmp_path / "once")


def start(folder: Path, output: Path, mode: str) -> subprocess.Popen[str]:
    """Starts the command."""
    return subprocess.Popen(
        [
            sys.executable, "-m", "bsmeta", "annotate", f"input={folder}", f"output={output}",
            f"duplicates={mode}", "annotators=[url,tests.annotate.custom.Slow]", "workers=2",
            f"chunk_pages={CHUNK}", "report=false",
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PAGE_S": "0.01"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def measure_progress(output: Path) -> int:
    """Returns the bytes that a run has written so far."""
    paths = [path for path in output.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in paths if path.exists())


def has_written_or_ended(output: Path, size: float, process: subprocess.Popen[str]) -> bool:
    try:
        return process.poll() is not None or measure_progress(output) >= size
    except FileNotFoundError:  # renamed meanwhile
        return False


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("mode", ["drop", "mark"])
def test_a_run_killed_in_any_pass_equals_an_undisturbed_one(
    mode: str, folder: Path, tmp_path: Path
) -> None:
    write_corpus(folder)
    undisturbed = tmp_path / "undisturbed"
    annotators = ["url", "tests.annotate.custom.Slow"]
    annotate(str(folder), undisturbed, duplicates=mode, annotators=annotators, chunk_pages=CHUNK)
    total = measure_progress(undisturbed)

    output = tmp_path / "out"
    moments = random.Random(mode)
    shares = [0.1, 0.5, 0.9]  # of the bytes: signatures come first
    for share in shares:
        process = start(folder, output, mode)
        wait_until(partial(has_written_or_ended, output, share * total, process))
        time.sleep(moments.random() * 0.02)
        process.kill()
        process.communicate()
    process = start(folder, output, mode)
    _, errors = process.communicate(timeout=STUCK_S)
    assert process.returncode == 0, errors
    assert read_shards(output) == read_shards(undisturbed)
    for name in PAGES:
        for suffix in ("signatures", "duplicates"):
            path = Path("_annotation", f"{name}.{suffix}")
            assert (output / path).read_bytes() == (undisturbed / path).read_bytes()
    assert not list(output.rglob("*.part"))
