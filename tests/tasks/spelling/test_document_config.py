"""The published system's example configuration, unchanged, in a run of ours."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from bsmeta.config import interpolation
from bsmeta.config.compose import register, to_plain
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.spelling import SedWordsConfig
from tests.config.test_refusals import start
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "examples" / "spelling" / "configs"
VARIABLES = {"NSC_DATA_DIR": "texts", "NSC_DATA_LIMIT": "1000", "NSC_EXPERIMENT_DIR": "runs"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def compose(folder: Path = FOLDER, **overrides: Any) -> SedWordsConfig:
    """What `--config-dir FOLDER --config-name train_sed_words key=value …` composes."""
    register(SedWordsConfig)
    values = yaml.safe_load((folder / "train_sed_words.yaml").read_text())
    values.pop("defaults")
    expanded = interpolation.expand(values, folder, "train_sed_words.yaml")
    composed = OmegaConf.merge(OmegaConf.structured(SedWordsConfig), expanded, overrides)
    assert isinstance(composed, DictConfig)
    OmegaConf.set_struct(composed, True)
    return to_plain(composed, SedWordsConfig)


def test_every_key_of_the_example_has_its_value() -> None:
    config = compose()
    sets = ["wikidump_paragraphs_sed_words_and_sec", "bookcorpus_paragraphs_sed_words_and_sec"]
    assert config.datasets == [f"texts/processed/{name}" for name in sets]
    assert config.dataset_limits == [1000, 1000]
    assert config.val_splits == [2500, 2500]
    assert config.out_dir == "runs/sed_words/dummy"
    assert (config.num_train_epochs, config.seed) == (1.0, 22)
    assert (config.batch_max_length, config.bucket_span) == (4096, 4)
    assert (config.logs_per_epoch, config.evals_per_epoch) == (100, 4)
    assert (config.learning_rate, config.weight_decay) == (0.0001, 0.001)
    assert config.warmup_share == 0.05
    assert config.noise.word_probability == config.noise.artificial_share == 0.2
    assert (config.noise.edit_probability, config.noise.misspellings) == (0.8, "codespell")


def test_variables_have_the_type_of_their_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSC_BATCH_MAX_LENGTH", "8192")
    monkeypatch.setenv("NSC_HIDDEN_DIM", "64")  # in a file that the example names
    config = compose()
    assert type(config.batch_max_length) is int
    assert (config.batch_max_length, config.small_model.width) == (8192, 64)


@pytest.mark.parametrize(
    ("value", "precision"),
    [(None, "bf16"), ("true", "bf16"), ("false", "no"), ("fp16", "fp16")],
)
def test_mixed_precision_is_that_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: str | None, precision: str
) -> None:
    if value is not None:
        monkeypatch.setenv("NSC_MIXED_PRECISION", value)
    assert compose().mixed_precision == precision


def test_keys_can_be_overridden_also_in_the_files_that_it_names() -> None:
    changed = {"epochs": 3, "optimizer": {"lr": 0.5}}
    config = compose(seed=1, document=changed)
    assert (config.seed, config.num_train_epochs, config.learning_rate) == (1, 3.0, 0.5)
    assert config.weight_decay == 0.001


def test_an_unset_variable_without_a_default_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NSC_DATA_LIMIT")
    with pytest.raises(ConfigurationError, match="export NSC_DATA_LIMIT=…"):
        compose()


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER, tmp_path / "configs")
    (folder / "preprocessing" / "mixed_noise.yaml").unlink()
    with pytest.raises(ConfigurationError, match=r"preprocessing/mixed_noise.yaml.*no such file"):
        compose(folder)


def test_the_command_line_of_train_py(tmp_path: Path) -> None:
    for name in ("wikidump", "bookcorpus"):
        folder = tmp_path / "texts" / "processed" / f"{name}_paragraphs_sed_words_and_sec"
        folder.mkdir(parents=True)
        (folder / "texts.txt").write_text("One text.\n")
    arguments = ["--config-dir", str(FOLDER), "--config-name", "train_sed_words"]
    done = start(tmp_path, *arguments, "document.epochs=3", "seed=5", "check_only=true")
    assert (done.returncode, done.stderr) == (0, "")
    assert "those of 3 epochs" in done.stdout
    wrong = start(tmp_path, *arguments, "document.epochs=many", "check_only=true")
    assert wrong.returncode == 2
    assert "num_train_epochs in Hydra configuration" in wrong.stderr
