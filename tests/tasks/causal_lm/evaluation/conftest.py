"""A tiny model, the sample's tokenizer, and a few held-out documents with metadata."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.data.io.shards import Shard, add_sample_hashes, fingerprint_shards
from bsmeta.data.stream.held_out import identify_held_out
from bsmeta.evaluate import main

TOKENIZER = Path(__file__).resolve().parents[4] / "examples" / "tokenizer"
MAX_SEQ_LEN = 64


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(TOKENIZER)


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerBase) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=MAX_SEQ_LEN,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.3,  # far from uniform, so that context matters
    )
    return GPT2LMHeadModel(config).eval()


def document(number: int, words: int, **values: str) -> dict[str, Any]:
    """Returns a line of a shard: a unique text and global records; html around the third word."""
    parts = [f"word{number * 7 + i} été" if i % 5 == 0 else f"plain text {i}" for i in range(words)]
    text = ". ".join(parts)
    line: dict[str, Any] = {"text": text, "url": values.get("url")}
    for key, value in values.items():
        line[f"metadata_{key}"] = [{"key": key, "type": "global", "value": value}]
    if number % 2 == 0 and words > 3:
        start = text.index("text 2")
        line["metadata_html"] = [
            {
                "key": "html",
                "type": "local",
                "value": "b",
                "char_start_idx": start + 2,
                "char_end_idx": start + 6,
                "relative_start_pos": 0,
                "relative_end_pos": 0,
                "html_attrs": {"attrs": ["class"], "values": ["x"]},
            }
        ]
    return line


def documents() -> list[dict[str, Any]]:
    """Eleven documents from one sentence to several sequences; two of them have no metadata."""
    documents_made = []
    for number, words in enumerate([1, 3, 4, 8, 8, 12, 20, 33, 40, 60, 2]):
        values = {"url": f"https://site{number % 3}.org/page/{number}", "title": f"Page {number}"}
        documents_made.append(document(number, words, **(values if number not in (3, 10) else {})))
    return documents_made


def write_shard(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


@pytest.fixture
def data_config(tmp_path: Path) -> DataConfig:
    """Chunks of 64 tokens of the documents above, with html, title and url."""
    return DataConfig(
        validation_file=str(write_shard(tmp_path / "held-out.jsonl.gz", documents())),
        per_device_eval_batch_size=4,
        metadata_config=MetadataConfig(
            metadata_list=["html", "title", "url"], max_seq_len=MAX_SEQ_LEN
        ),
    )


@pytest.fixture
def run_folder(
    tmp_path: Path,
    model: GPT2LMHeadModel,
    tokenizer: PreTrainedTokenizerBase,
    data_config: DataConfig,
) -> Path:
    """A finished run: model/, config.yaml and metrics.jsonl."""
    folder = tmp_path / "run"
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    train = CausalLMConfig(data_config=data_config, model_config_file="tiny.json")
    (folder / "config.yaml").write_text(format_yaml(train))
    lines = [{"event": "step", "step": n, "loss": 8 - n / 10} for n in range(1, 9)]
    lines.append(
        {"event": "eval", "step": 8, "bits_per_byte_without": 2.0, "bits_per_byte_with": 1.9}
    )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"event": "st')
    return folder


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *arguments])
    with pytest.raises(SystemExit) as exit_:
        run_entry_point(main, EvaluateConfig, "evaluate")
    return int(exit_.value.code or 0)


def train_on(
    run_folder: Path,
    data: DataConfig,
    *shards: Path,
    kept_out: Sequence[dict[str, Any]] = (),
) -> CausalLMConfig:
    """Makes shards the training data of a run, in its configuration and a checkpoint.

    Args:
        kept_out: The documents of the run's own held-out file.
    """
    write_shard(Path(str(data.validation_file)), kept_out or [document(90, 5)])
    data = replace(
        data, train_file=[str(shard) for shard in shards], cache_dir=str(run_folder / "cache")
    )
    config = CausalLMConfig(data_config=data, model_config_file="tiny.json")
    (run_folder / "config.yaml").write_text(format_yaml(config))

    listed = [Shard(shard.name, str(shard), shard.stat().st_size) for shard in shards]
    fingerprint = {
        "shards": fingerprint_shards(add_sample_hashes(listed)),
        "held_out": identify_held_out(data),
    }
    (run_folder / "checkpoint-8step").mkdir()
    state = json.dumps({"fingerprint": fingerprint, "streams": {}})
    (run_folder / "checkpoint-8step" / "data_state.json").write_text(state)
    return config
