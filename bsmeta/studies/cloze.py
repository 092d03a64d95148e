"""A task for lm-evaluation-harness from held-out pages: which continuation belongs to this page?

Each question shows the beginning of a page; the choices are what follows there, and what follows at
the same place of three other pages. It needs no network.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bsmeta.config.data import DataConfig
from bsmeta.core.errors import DataError
from bsmeta.data.seeds import derive
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments

NAME = "bsmeta_cloze"
CHOICES = 4
SHOWN, FOLLOWING = 300, 120
"""Characters of a page that a question shows, and of each choice (up to the next blank)."""

_QUESTIONS = "questions.jsonl"


def write_cloze(config: DataConfig, folder: Path) -> Path:
    """Writes the task and its questions.

    Args:
        config: `validation_file` is what the questions are made from.
        folder: Where the task goes; created if it does not exist.

    Returns:
        The task's file.

    Raises:
        DataError: If too few pages are long enough.
    """
    documents = HeldOutDocuments(config, max_documents=None, deduplicate=True)
    pages = []
    for index in range(len(documents)):
        document = documents[index]
        halves = _halves(document.text)
        if halves is not None:
            pages.append((document.url or "", *halves))
    if len({following for *_, following in pages}) < CHOICES:
        raise DataError(
            f"{documents.path}: {len(pages)} pages of at least {SHOWN + FOLLOWING} characters; "
            f"expected {CHOICES} or more for a cloze task"
        )
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(question, ensure_ascii=False) + "\n" for question in _questions(pages))
    (folder / _QUESTIONS).write_text("".join(lines), encoding="utf-8")
    settings: dict[str, Any] = {
        "task": NAME,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str((folder / _QUESTIONS).resolve())}},
        "test_split": "test",
        "fewshot_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{beginning}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    path = folder / f"{NAME}.yaml"
    path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")  # JSON is YAML
    return path


def _halves(text: str) -> tuple[str, str] | None:
    """The beginning of a text and what follows, cut before blanks; None if it is too short."""
    first = text.find(" ", SHOWN)
    second = text.find(" ", first + FOLLOWING)
    if first < 0 or second < 0 or second > SHOWN + 3 * FOLLOWING:
        return None
    return text[:first], text[first:second]


def _questions(pages: Sequence[tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
    following = sorted({page[2] for page in pages})
    for url, beginning, right in pages:
        draw = random.Random(derive("cloze", url, beginning))
        choices = draw.sample([one for one in following if one != right], CHOICES - 1)
        answer = draw.randrange(CHOICES)
        choices.insert(answer, right)
        yield {"url": url, "beginning": beginning, "choices": choices, "answer": answer}
