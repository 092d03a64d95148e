"""Fixtures of several tests of spelling."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.conftest import REPOSITORY, run_warm
from tests.tasks.spelling.helpers import arguments, write_test_set

TOKENIZER = Path(__file__).resolve().parents[3] / "examples" / "tokenizer"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    found = AutoTokenizer.from_pretrained(TOKENIZER, add_prefix_space=True)
    found.pad_token = found.eos_token
    return found


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `sed_words` that has learned the small texts."""
    pytest.importorskip("symspellpy")
    folder = tmp_path_factory.mktemp("trained")
    tests = write_test_set(folder / "tests")
    more = ("learning_rate=0.01", "num_train_epochs=10", f"benchmarks={tests}")
    script = str(REPOSITORY / "bsmeta" / "train.py")
    command = [sys.executable, script, *arguments("sed_words", folder, folder / "run", *more)]
    done = run_warm(command)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run"
