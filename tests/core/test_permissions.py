"""Files of runs have the permissions that the umask leaves, whoever writes them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from safetensors.torch import save_file

from bsmeta.core.permissions import follow_umask
from tests.conftest import REPOSITORY
from tests.data.helpers import write_shards
from tests.tasks.classification.helpers import write_leanings
from tests.tasks.disambiguation import test_training as disambiguation
from tests.tasks.disambiguation.helpers import write_encoder, write_world
from tests.tasks.spelling import helpers as spelling

MASKED = REPOSITORY / "tests" / "masked.py"
BIN = REPOSITORY / "bsmeta"
MODES = {"022": ("644", "755"), "027": ("640", "750")}
"""Umask -> the modes of files and of folders."""
Launch = Callable[..., CompletedProcess[str]]


def list_unexpected_modes(folder: Path, mask: str) -> list[str]:
    """Returns paths whose mode differs from the mode that the umask gives, with their mode."""
    file_mode, folder_mode = MODES[mask]
    unexpected = []
    for path in folder.rglob("*"):
        mode = f"{stat.S_IMODE(path.lstat().st_mode):o}"
        if not path.is_symlink() and mode != (folder_mode if path.is_dir() else file_mode):
            unexpected.append(f"{path.relative_to(folder)}: {mode}")
    return sorted(unexpected)


@pytest.fixture(params=["027", pytest.param("022", marks=pytest.mark.slow)])
def mask(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def language_model(data: Path, folder: Path) -> list[list[str]]:
    """Returns commands of a run with exports, a LoRA run, evaluations and prepared data."""
    write_shards(data, [8, 8])
    keys = [
        "--config-name", "demo", f"data_config.train_file={data}", "num_warmup_steps=0",
        f"data_config.validation_file={data}/part-00.jsonl.gz", "max_train_steps=2",
        f"data_config.cache_dir={folder}/cache", "data_config.window_documents=4",
        "data_config.num_streams=1", "data_config.metadata_config.max_seq_len=64",
        "data_config.metadata_config.metadata_list=[title,url]", "trackers=[tensorboard]",
        "log_documents=true", "data_config.per_device_train_batch_size=1",
        "gradient_accumulation_steps=1", "save_steps=1", "export_steps=1", "eval_steps=1",
    ]  # fmt: skip
    run = f"{folder}/run"
    tuned = ["model_config_file=null", f"model_name={run}/model", f"tokenizer_name={run}/model"]
    return [
        ["train.py", *keys, "async_save=true", f"out_dir={run}"],
        ["evaluate.py", f"checkpoint={run}", "bootstrap_resamples=20"],
        ["generate.py", f"checkpoint={run}", "mode=attribute", "type=title"],
        ["data/prepare.py", *keys, f"out={folder}/prepared"],
        ["data/stage.py", *keys, f"out={folder}/staged"],
        ["train.py", *keys, *tuned, "lora.rank=2", f"out_dir={folder}/lora"],
    ]


def classifier(data: Path, folder: Path) -> list[list[str]]:
    """Returns commands that train all systems and the best of them, with a store, and predict."""
    table, encoder = write_leanings(data), write_encoder(data / "encoder")
    keys = [
        "--config-name", "classification", f"data_config.csv={table}", f"model_name={encoder}",
        f"data_config.database={folder}/leanings.sqlite", f"results_dir={folder}/results",
        "trackers=[]", "data_config.max_length=16", "num_train_epochs=1", "bootstrap_resamples=20",
    ]  # fmt: skip
    run = f"{folder}/auto"
    return [
        ["train.py", *keys, "method=auto", f"out_dir={run}"],
        ["train.py", *keys, "method=fine_tune", f"out_dir={folder}/fine_tuned"],
        ["evaluate.py", f"checkpoint={run}"],
        ["predict.py", f"checkpoint={run}", f"input={table}", f"output={folder}/predicted.csv"],
    ]


def disambiguator(data: Path, folder: Path) -> list[list[str]]:
    """Returns commands that make a table of entities, prepare sentences, and train."""
    write_world(data)
    run = disambiguation.arguments(
        data, write_encoder(data / "encoder"), folder / "run", "num_train_epochs=1",
        f"data_config.prep_dir={folder}/prepared", f"data_config.entity_table={folder}/entities",
    )  # fmt: skip
    return [
        ["entities.py", f"table={folder}/entities", f"profiles={data}/profiles.jsonl"],
        ["train.py", *run],
    ]


def speller(data: Path, folder: Path) -> list[list[str]]:
    """Returns commands that make samples and test sets and train on generated noise."""
    tests = spelling.write_test_set(data / "tests")
    keys = spelling.arguments(
        "sec", data, folder / "run", "num_train_epochs=1", f"benchmarks={tests}",
        f"store_dir={folder}/store", "bootstrap_resamples=20",
    )  # fmt: skip
    return [["train.py", *keys]]


@pytest.mark.long
@pytest.mark.parametrize("programs", [language_model, classifier, disambiguator, speller])
def test_all_files_of_runs_follow_the_umask(
    programs: Callable[[Path, Path], list[list[str]]], mask: str, launch: Launch, tmp_path: Path
) -> None:
    data, folder = tmp_path / "data", tmp_path / "made"
    data.mkdir()
    for program, *arguments in programs(data, folder):
        launch(MASKED, str(BIN / program), *arguments, UMASK=mask)
    weights = [*folder.rglob("*.safetensors")]
    assert weights
    assert len([*folder.rglob("*")]) > 10
    assert list_unexpected_modes(folder, mask) == []


def test_only_weights_inside_the_folder_follow_the_umask(tmp_path: Path, mask: str) -> None:
    (tmp_path / "inner").mkdir()
    save_file({"x": torch.zeros(2)}, tmp_path / "inner" / "x.safetensors")
    (tmp_path / "readable").write_text("x")
    (tmp_path / "elsewhere").symlink_to(tmp_path.parent)
    before = os.umask(int(mask, 8))
    try:
        follow_umask(tmp_path)
    finally:
        os.umask(before)
    file_mode, _ = MODES[mask]
    modes = {path.name: f"{stat.S_IMODE(path.stat().st_mode):o}" for path in tmp_path.rglob("*")}
    assert (modes["x.safetensors"], modes["readable"]) == (file_mode, file_mode)
    assert modes["inner"] == "755"
    assert {*modes} == {"x.safetensors", "readable", "inner", "elsewhere"}
