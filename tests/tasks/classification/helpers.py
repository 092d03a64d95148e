"""A small tokenizer with special tokens, and small tables."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import string
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bsmeta.tasks.classification.config import ClassificationDataConfig
from bsmeta.tasks.classification.evaluate import predict_baselines
from bsmeta.tasks.classification.examples import Chunk
from bsmeta.tasks.classification.model import Scored
from bsmeta.tasks.classification.results import Results, TestSet, compute_results, compute_scores
from bsmeta.tasks.classification.systems import Split
from tests.data.helpers import bpe_tokenizer

TEXT = "Beat my Republican opponent! She will remove stop signs from your neighborhood."
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]

LABELS = ("left", "neutral", "right")

# Three texts, the second folded into two chunks: by the first of them alone it would be "left".
CHUNKS = [Chunk([], 0, 3, 0, "fair wages"), Chunk([], 2, 7, 0, "lower "),
          Chunk([], 2, 7, 1, "taxes"), Chunk([], 1, 9, 0, "soap")]  # fmt: skip
LOGITS = np.log(np.array(
    [[0.8, 0.1, 0.1], [0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.5, 0.3, 0.2]]
))  # fmt: skip


def bert_tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer like that of BERT, with 512 positions."""
    letters = string.ascii_lowercase + string.digits + string.punctuation
    words = [*letters, *(f"##{letter}" for letter in letters), *re.findall(r"\w{2,}", TEXT.lower())]
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, pad_token="[PAD]", unk_token="[UNK]",
        cls_token="[CLS]", sep_token="[SEP]",
    )  # fmt: skip


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer like that of GPT-2: no special tokens, and no stated limit."""
    return bpe_tokenizer([TEXT] * 3)


def write_csv(path: Path, rows: Sequence[Sequence[object]], header: Sequence[str]) -> Path:
    """Writes a well-formed CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_leanings(folder: Path, rows: int = 60, length: int = 30) -> Path:
    """Texts of 1 to `length` words with three labels, and the speaker of each: six texts of one."""
    words = TEXT.split()
    table = [
        (
            " ".join(words[(row + n) % len(words)] for n in range(1 + row % length)),
            ("left", "right", "neutral")[row % 3],
            f"speaker {row // 6}",
        )
        for row in range(rows)
    ]
    return write_csv(folder / "leanings.csv", table, ["text", "label", "speaker"])


def data_config(csv: Path, **more: object) -> ClassificationDataConfig:
    """The configuration of a table with short sequences."""
    return ClassificationDataConfig(**{"csv": str(csv), "max_length": 16, **more})


def saved_results(database: Path) -> list[dict[str, Any]]:
    """The results that a database keeps of runs, the oldest first."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT run, results FROM results ORDER BY number").fetchall()
    return [{"run": run, **json.loads(found)} for run, found in rows]


def results() -> Results:
    test = TestSet(
        "ads.csv, test split", LABELS, CHUNKS, ["a", "a", "b"], "values of page",
        distribution={"train": {"left": 1, "neutral": 1, "right": 1}},
        notes=["1 of 4 rows repeats the text of an earlier row"],
    )  # fmt: skip
    scored, weights = Scored.of(CHUNKS, LOGITS), [1.0] * 3
    training = ["wages for all", "cut taxes", "buy soap"]
    others, notes = predict_baselines(test, Split(np.array([0, 2, 1]), training), weights)
    assert notes == []
    return compute_results(
        test, scored, compute_scores(scored, weights), others, resamples=100, seed=1
    )
