"""The data, the tokenizer and the keys of both runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bsmeta.api.configuration import check_configuration, compose_configuration
from bsmeta.core.errors import DataError
from bsmeta.quick.config import QuickConfig
from bsmeta.quick.documents import Page
from bsmeta.quick.sizes import Device
from bsmeta.quick.training import (
    SAMPLE_TOKENIZER,
    Data,
    choose_tokenizer,
    list_overrides,
    prepare_training,
    write_data,
)
from tests.quick.pages import make_row

CPU = Device("2 CPU cores", 30e9, 16)
PAGES = [
    Page(row["text"], {"title": row["title"], "url": row["url"]})
    for row in map(make_row, range(30))
]
DATA = Data(["title"], PAGES[:24], PAGES[24:])


def read_texts(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


def test_training_pages_are_shuffled_and_held_out_pages_are_in_order(tmp_path: Path) -> None:
    write_data(DATA, tmp_path, 1)
    training = read_texts(tmp_path / "train.jsonl")
    texts = [page.text for page in DATA.training]
    assert training != texts
    assert sorted(training) == sorted(texts)
    assert read_texts(tmp_path / "held_out.jsonl") == [page.text for page in DATA.held_out]

    time = (tmp_path / "train.jsonl").stat().st_mtime_ns
    write_data(DATA, tmp_path, 1)
    assert (tmp_path / "train.jsonl").stat().st_mtime_ns == time
    write_data(DATA, tmp_path, 2)
    assert read_texts(tmp_path / "train.jsonl") != training


def test_a_small_file_uses_the_tokenizer_of_the_sample(tmp_path: Path) -> None:
    assert choose_tokenizer(QuickConfig(), PAGES, CPU, tmp_path) == str(SAMPLE_TOKENIZER)
    config = QuickConfig(tokenizer="elsewhere")
    assert choose_tokenizer(config, PAGES, CPU, tmp_path) == "elsewhere"


def test_a_tokenizer_is_trained_on_training_pages_only(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = choose_tokenizer(QuickConfig(vocabulary_size=350), DATA.training, CPU, tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    assert len(tokenizer) == 350
    text = "river0 \u00e9\n\x00 <|endoftext|>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("river0")["input_ids"]) < len("river0")


def test_a_saved_plan_is_reused(tmp_path: Path) -> None:
    plan = prepare_training(QuickConfig(), DATA, CPU, tmp_path)
    assert plan.sizes.vocabulary_size == 4096
    assert json.loads((tmp_path / "model_config.json").read_text())["vocab_size"] == 4096
    faster = Device("another device", 1e15, 64)
    assert prepare_training(QuickConfig(), DATA, faster, tmp_path) == plan

    (tmp_path / "plan.json").write_text('{"steps": "many"}')
    with pytest.raises(DataError, match=r"plan.json: .*; set overwrite_out_dir=true to start over"):
        prepare_training(QuickConfig(), DATA, CPU, tmp_path)


def test_the_runs_differ_only_in_their_metadata(tmp_path: Path) -> None:
    config = QuickConfig(overrides={"weight_decay": 0.5})
    plan = prepare_training(config, DATA, CPU, tmp_path)
    runs = {
        name: compose_configuration(
            "quick_run", list_overrides(config, plan, DATA, tmp_path, name, "no")
        )
        for name in ("without", "with")
    }
    for run in runs.values():
        check_configuration(run)
        assert run.weight_decay == 0.5
        assert run.data_config.row_budget == "text"
        assert run.data_config.on_test_overlap == "error"
        assert run.data_config.columns == {"title": "title", "url": "url"}
    metadata = {name: run.data_config.metadata_config.metadata_list for name, run in runs.items()}
    assert metadata == {"without": [], "with": ["title"]}

    overrides = [
        list_overrides(config, plan, DATA, tmp_path, name, "no") for name in ("without", "with")
    ]
    changed = {key for key in overrides[0] if overrides[0][key] != overrides[1][key]}
    assert changed == {"out_dir", "data_config.metadata_config.metadata_list"}
