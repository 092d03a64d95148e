"""A small model of random weights with the sample's tokenizer, and a run folder that holds it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.generate import main
from tests.tasks.causal_lm.evaluation.conftest import document, documents, write_shard

TOKENIZER = Path(__file__).resolve().parents[4] / "examples" / "tokenizer"
MAX_SEQ_LEN = 64


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(TOKENIZER)


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 8,  # more embeddings than tokens, as some models have
        max_position_embeddings=MAX_SEQ_LEN,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,  # far from uniform, so that context matters
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def data_config(tmp_path: Path) -> DataConfig:
    return DataConfig(
        validation_file=str(write_shard(tmp_path / "held-out.jsonl.gz", documents())),
        metadata_config=MetadataConfig(
            metadata_list=["html", "title", "url", "timestamp"], max_seq_len=MAX_SEQ_LEN
        ),
    )


@pytest.fixture
def run_folder(
    tmp_path: Path,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    data_config: DataConfig,
) -> Path:
    """A finished run: model/, config.yaml and metrics.jsonl."""
    folder = tmp_path / "run"
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "config.yaml").write_text(format_yaml(CausalLMConfig(data_config=data_config)))
    (folder / "metrics.jsonl").write_text("")
    return folder


@pytest.fixture
def generate(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Calls the entry point on the run folder; returns its exit code."""

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["generate.py", f"checkpoint={run_folder}", *arguments])
        with pytest.raises(SystemExit) as exit_:
            run_entry_point(main, GenerateConfig, "generate")
        return int(exit_.value.code or 0)

    return call


@pytest.fixture
def sites(tmp_path: Path) -> DataConfig:
    """Twelve pages: six of one.org, four of two.org, two of three.org; each repeats its host."""
    hosts = ["one.org"] * 6 + ["two.org"] * 4 + ["three.org"] * 2
    lines = []
    for number, host in enumerate(hosts):
        line = document(number, 1, url=f"https://{host}/{number}")
        lines.append({**line, "text": f"{number} {host} {host} {host}"})
    lines.append({"text": "no metadata at all"})
    return DataConfig(
        validation_file=str(write_shard(tmp_path / "sites.jsonl.gz", lines)),
        metadata_config=MetadataConfig(metadata_list=["url"], max_seq_len=64),
    )
