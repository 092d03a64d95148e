"""Signatures of pages, their files, and runs that continue them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasketch import MinHash

from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.duplicates.shingles import hash_shingles
from bsmeta.annotate.duplicates.signatures import (
    NO_TEXT,
    ONLY_EXACT,
    SIGNED,
    SignatureFile,
    SignedFile,
    Signer,
    make_signatures,
)
from bsmeta.annotate.inputs.sources import identify_files
from bsmeta.core.files import hash_file
from tests.annotate.copies import make_corpus, make_text, write_texts
from tests.annotate.helpers import write_pages


def sign_file(path: Path, output: Path, **settings: Any) -> SignatureFile:
    """Makes the signatures of a file in `output`."""
    config = AnnotateConfig(input=str(path), **{"workers": 1, "chunk_pages": 4} | settings)
    (file,) = identify_files([(str(path), "a")])
    signatures = SignatureFile(config, file, output / "a.signatures")
    assert make_signatures(config, [SignedFile(file, signatures)], lambda *_: None) == {}
    return signatures


def test_signatures_never_change() -> None:
    """Signatures of another version would have to be rebuilt, which takes long."""
    signature = Signer(4).sign(hash_shingles(["one", "two", "three"], 1))
    assert signature.tolist() == [1106543487, 295072331, 176363817, 1640528243]


@pytest.mark.parametrize(("common", "jaccard"), [(0, 0.0), (100, 1 / 3), (160, 2 / 3), (200, 1.0)])
def test_signatures_estimate_the_similarity(common: int, jaccard: float) -> None:
    """Sets of 200 words each; the standard error is at most 0.016."""
    signer = Signer(1024)
    first = signer.sign(hash_shingles([f"{k}" for k in range(200)], 1))
    second = signer.sign(hash_shingles([f"{k + 200 - common}" for k in range(200)], 1))
    assert float(np.mean(first == second)) == pytest.approx(jaccard, abs=0.05)


def test_a_large_set_has_the_same_signature_as_by_the_library() -> None:
    hashes = hash_shingles([f"{k}" for k in range(40_000)], 1)
    minhash = MinHash(32, seed=1, scheme="affine32", hashfunc=int)
    minhash.update_batch((hashes >> np.uint64(32)).tolist())
    assert Signer(32).sign(hashes).tolist() == minhash.hashvalues.tolist()


def test_the_record_of_a_page_has_its_method_of_comparison(tmp_path: Path) -> None:
    pages = [
        {"text": make_text(range(20))},
        {"text": make_text(range(19))},
        {"text": "我们在" * 7},
        {"text": ""},
        {"html": f"<p>{make_text(range(30))}</p>"},
        {"url": "https://a.org"},
        {"html": f"<p>{make_text(range(30))}</p>", "text": make_text(range(20))},
    ]
    path = write_pages(tmp_path / "a.jsonl.gz", pages)
    records = sign_file(path, tmp_path).open_records()
    assert records["state"].tolist() == [
        SIGNED, ONLY_EXACT, SIGNED, NO_TEXT, SIGNED, NO_TEXT, SIGNED,
    ]  # fmt: skip
    assert records["text"][0].tolist() == records["text"][6].tolist()


def test_the_number_of_processes_does_not_change_the_file(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.jsonl.gz", make_corpus(60, 0))
    files = [sign_file(path, tmp_path / f"{n}", workers=n, chunk_pages=n + 2) for n in (1, 3)]
    assert hash_file(files[0].path) == hash_file(files[1].path)


@pytest.mark.parametrize("damage", ["none", "torn record", "zeros", "other settings", "all torn"])
def test_a_truncated_file_is_continued(damage: str, tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.jsonl.gz", make_corpus(30, 0))
    signatures = sign_file(path, tmp_path)
    whole = signatures.path.read_bytes()
    size = signatures.open_records().itemsize
    header = len(whole) - 30 * size
    cut = whole[: header + 10 * size]

    part = signatures.path.with_name("a.signatures.part")
    content, kept = {
        "none": (cut, 10),
        "torn record": (cut + whole[len(cut) : len(cut) + size // 2], 10),
        "zeros": (cut + bytes(3 * size), 10),
        "other settings": (cut.replace(b"signatures ", b"signatures 0"), 0),
        "all torn": (whole[: header // 2], 0),
    }[damage]
    signatures.path.unlink()
    part.write_bytes(content)
    assert signatures.recover() == kept
    assert sign_file(path, tmp_path).path.read_bytes() == whole
    assert not part.exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"duplicate_permutations": 64},
        {"duplicate_shingle": 4},
        {"duplicate_min_words": 30},
        {"profile": "all"},
    ],
)
def test_other_settings_need_other_signatures(settings: dict[str, Any], tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.jsonl.gz", make_corpus(6, 0))
    (file,) = identify_files([(str(path), "a")])
    signatures = sign_file(path, tmp_path)
    assert signatures.is_complete()
    config = AnnotateConfig(input=str(path), **settings)
    assert not SignatureFile(config, file, signatures.path).is_complete()


def test_other_content_needs_other_signatures(tmp_path: Path) -> None:
    signatures = sign_file(write_texts(tmp_path / "a.jsonl.gz", make_corpus(6, 0)), tmp_path)
    path = write_texts(tmp_path / "a.jsonl.gz", make_corpus(7, 0))
    (file,) = identify_files([(str(path), "a")])
    assert not SignatureFile(AnnotateConfig(), file, signatures.path).is_complete()


def test_a_damaged_file_has_a_message_and_no_signatures(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.jsonl.gz", make_corpus(30, 0))
    path.write_bytes(path.read_bytes()[:-100])
    config = AnnotateConfig(workers=1)
    (file,) = identify_files([(str(path), "a")])
    signatures = SignatureFile(config, file, tmp_path / "a.signatures")
    problems = make_signatures(config, [SignedFile(file, signatures)], lambda *_: None)
    assert [*problems] == [signatures.path]
    assert "damaged" in problems[signatures.path]
    assert not signatures.is_complete()
