"""The spelling quality of a text, as a trained detector sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bsmeta.annotate.registry import fingerprints, make_annotators
from bsmeta.annotate.row import InputRecord
from bsmeta.config.annotate import AnnotateConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.tasks.spelling.inputs import FormInputs
from bsmeta.tasks.spelling.word_model import WordDetector, WordDetectorConfig
from bsmeta.tasks.spelling.words import FEATURES, WordCounts
from tests.annotate.helpers import annotate, annotated, rows, some_pages, values, write_pages

KNOWN = "Page the words of a paragraph that is longer than sixty-four characters below which it"


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    """A run folder with a detector that flags the words that its training text lacks."""
    shape = WordDetectorConfig(width=8, layers=0, heads=1, dropout=0.0, character_width=4)
    model = WordDetector(shape)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.counts[0].weight[0] = torch.tensor([1.0, -1.0] * 4)  # not in the text
        model.counts[0].weight[1:] = torch.tensor([-1.0, 1.0] * 4)
        model.norm.weight.fill_(1.0)
        model.score.weight[0] = torch.tensor([1.0, 0.0] * 4)
    model.save_pretrained(tmp_path / "run" / "model")
    FormInputs(WordCounts.of([KNOWN], {}), shape.word_bytes).write(tmp_path / "run" / "model")
    (tmp_path / "run" / "config.yaml").write_text("task: sed_words\n")
    assert len(model.counts) == FEATURES
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("the words of a paragraph", "0.0000"),
        ("teh words off a paragraph", "0.4000"),
        ("teh " * 2499 + "the", "0.9996"),
        ("teh " * 2500 + "the", "1.0000"),  # the last word is beyond what is read
    ],
)
def test_the_share_of_flagged_words(detector: Path, text: str, share: str) -> None:
    record = InputRecord(text=text)
    assert values(annotated(record, "spelling", spelling_model=str(detector))) == [share]


def test_records_depend_on_the_model(detector: Path) -> None:
    config = AnnotateConfig(annotators=["spelling"], spelling_model=str(detector))
    before = fingerprints(make_annotators(config))
    assert fingerprints(make_annotators(config)) == before
    (detector / "model" / "words.json").write_text('{"text": {}, "listed": {}}')
    assert fingerprints(make_annotators(config)) != before


def test_workers_use_the_model(detector: Path, tmp_path: Path) -> None:
    pages = write_pages(tmp_path / "pages.jsonl.gz", some_pages(6))
    settings = {"annotators": ["html", "spelling"], "spelling_model": str(detector)}
    assert annotate(str(pages), tmp_path / "shards", workers=2, chunk_pages=2, **settings) == 0
    found = [values({"spelling": row["metadata_spelling"]}) for row in rows(*_shards(tmp_path))]
    assert len(found) == 6
    assert all(0 < float(share) < 1 for (share,) in found)


def _shards(folder: Path) -> list[Path]:
    return sorted((folder / "shards").glob("*.jsonl.gz"))


def test_a_run_without_a_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="spelling_model=runs/sed_words"):
        make_annotators(AnnotateConfig(annotators=["spelling"]))
