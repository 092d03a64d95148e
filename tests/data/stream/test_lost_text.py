"""The lost text of the first documents: shown in the start-up table, refused above a limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig, SourceConfig
from bsmeta.config.programs.copying import PrepareConfig
from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.prepare import prepare_streams
from bsmeta.data.stream.lost_text import list_lost_text_rows, read_local_lines, sample_texts
from bsmeta.data.text.tokenizer import load_tokenizer
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from tests.data.lossy_tokenizers import byte_level, word_piece

# 42 bytes, of which 4 capitals and an accented letter (2 bytes) are lost
TEXTS = ["The Fox, the lazy dog", "The Dog jumps over é"]
LIMIT = "data_config.max_lost_text"


def write_lines(path: Path, texts: Sequence[str]) -> Path:
    lines = (
        json.dumps({"text": text, "url": f"https://x.org/{i}"}) for i, text in enumerate(texts)
    )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def make_config(
    folder: Path, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], **data: object
) -> CausalLMConfig:
    tokenizer.save_pretrained(folder / "tokenizer")
    shard = write_lines(folder / "train.jsonl", texts)
    return CausalLMConfig(
        tokenizer_name=str(folder / "tokenizer"),
        model_config_file="unused",
        data_config=DataConfig(
            train_file=str(shard), columns={"text": "text", "url": "url"}, num_streams=1, **data
        ),
    )


def test_the_start_up_table_shows_the_lost_text(tmp_path: Path) -> None:
    config = make_config(tmp_path, word_piece(), TEXTS, max_lost_text=0.15)
    assert list_lost_text_rows(config) == [
        (
            "lost text",
            f"14.29% of 42 bytes of 2 documents, such as 'T' (the); at most 15% ({LIMIT})",
        )
    ]
    lossless = make_config(tmp_path, byte_level(), TEXTS)
    assert list_lost_text_rows(lossless) == [
        ("lost text", f"none of 42 bytes of 2 documents; at most 5% ({LIMIT})")
    ]


def test_lost_text_beyond_the_limit_is_refused_with_a_fix(tmp_path: Path) -> None:
    config = make_config(tmp_path, word_piece(), TEXTS)
    with pytest.raises(ConfigurationError) as refused:
        list_lost_text_rows(config)
    assert str(refused.value) == (
        "1 problem in the configuration\n"
        f"1. {LIMIT} in Hydra configuration: found 0.05, but the tokenizer "
        f"{tmp_path / 'tokenizer'} loses 14.29% of 42 bytes of 2 documents, such as 'T' (the), "
        "expected a tokenizer that preserves at least 95% of the bytes: the model cannot learn "
        "lost text, and evaluations leave it out.\n"
        "   Fix: tokenizer_name of a byte-level tokenizer, such as gpt2, which loses nothing; or "
        f"{LIMIT}=0.15 to train nevertheless"
    )


def test_training_and_preparing_refuse_too_much_lost_text(tmp_path: Path) -> None:
    config = make_config(tmp_path, word_piece(), TEXTS)
    with pytest.raises(ConfigurationError, match=r"loses 14.29% of 42 bytes"):
        CausalLanguageModel(config).survey()
    data = PrepareConfig(
        tokenizer_name=config.tokenizer_name,
        data_config=config.data_config,
        out=str(tmp_path / "prepared"),
    )
    with pytest.raises(ConfigurationError, match=r"loses 14.29% of 42 bytes"):
        prepare_streams(data, load_tokenizer(data), tmp_path / "prepared")
    assert not (tmp_path / "prepared").exists()


def test_the_run_logs_the_lost_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(tmp_path, word_piece(), TEXTS, max_lost_text=1.0)
    assert len(CausalLanguageModel(config).survey().lines[""]) == 2
    assert "the tokenizer loses 14.29% of 42 bytes of 2 documents" in caplog.text


def test_data_and_tokenizers_elsewhere_are_not_measured_by_the_checks(tmp_path: Path) -> None:
    config = make_config(tmp_path, word_piece(), TEXTS)
    config = replace(config, tokenizer_name="no-owner/no-tokenizer-of-this-name")
    rows = [("lost text", "not measured before the run reads its data")]
    assert list_lost_text_rows(config) == rows
    remote_files = {"data_config.train_file": "hf://datasets/owner/name/*.jsonl.gz"}
    remote = replace_values(make_config(tmp_path, word_piece(), TEXTS), remote_files)
    assert list_lost_text_rows(remote) == rows


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    config = make_config(tmp_path, word_piece(), TEXTS)
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"^tokenizer_name: .* cannot be loaded"):
        list_lost_text_rows(config)


def test_each_source_of_a_mixture_is_sampled_and_bad_documents_are_skipped(tmp_path: Path) -> None:
    first, second = (write_lines(tmp_path / f"{name}.jsonl", [name]) for name in ("one", "two"))
    with second.open("a", encoding="utf-8") as file:
        file.write("no JSON\n")
    sources = [
        SourceConfig(name="a", train_file=str(first)),
        SourceConfig(name="b", train_file=str(second)),
    ]
    data = DataConfig(sources=sources, columns={"text": "text"})
    assert sample_texts(data, read_local_lines(data)) == ["one", "two"]
