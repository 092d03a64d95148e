"""The words that are never flagged or changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.spelling.config import SedWordsConfig
from bsmeta.tasks.spelling.detector import Ranker, RankerConfig
from bsmeta.tasks.spelling.inputs import CandidateInputs
from bsmeta.tasks.spelling.kept_words import KeptWords
from bsmeta.tasks.spelling.task import WordDetection
from bsmeta.training.ranks.processes import ALONE
from tests.tasks.spelling.helpers import lexicon


def test_words_are_kept_with_punctuation_and_in_compounds(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("Tskhinvali\nC++\n", encoding="utf-8")
    kept = KeptWords(["kubectl", str(file)])
    for word in ("kubectl", "(Kubectl),", "KUBECTL's", "kubectl-based", "Tskhinvali.", "C++"):
        assert word in kept
    for word in ("kubectls", "tskhinvali", "C", "12", ""):
        assert word not in kept
    assert kept
    assert not KeptWords([])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"keep_words: .*none.txt cannot be read"):
        KeptWords([str(tmp_path / "none.txt")])


def test_a_detector_flags_no_kept_word() -> None:
    inputs = CandidateInputs(lexicon())
    model = Ranker(RankerConfig(features=inputs.features, width=8, layers=0)).eval()
    flags: list[list[str]] = []
    for kept in ([], ["villiage"]):
        task = WordDetection(SedWordsConfig(keep_words=kept))
        task._inputs = inputs
        task._threshold = -12.0
        flags.append([flag.text for flag in task.changes(model, ["teh Villiage, cat"])[0]])
        assert task.judge(model, ["teh Villiage"], ALONE) == [[1, int(not kept)]]
    assert flags == [["teh", "Villiage,", "cat"], ["teh", "cat"]]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "names.txt")
    with pytest.raises(DataError, match=r"names.txt is a pipe, a socket or a device"):
        KeptWords([str(tmp_path / "names.txt")])
