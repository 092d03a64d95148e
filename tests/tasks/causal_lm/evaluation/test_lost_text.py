"""Text that a tokenizer loses is left out of every sum, counted, and shown."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

import bsmeta
from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import DataError
from bsmeta.metadata.records import Record
from bsmeta.tasks.causal_lm.evaluation.arms import TEXT_ALONE, plan_comparisons
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.evaluation.readings import BYTES, NATS_WITHOUT, TOKENS
from bsmeta.tasks.causal_lm.evaluation.results import ComparisonSums, refuse_empty_scores
from bsmeta.tasks.causal_lm.evaluation.subset import SubsetEvaluation
from bsmeta.tasks.causal_lm.evaluation.windows import WINDOW_CUTTERS
from bsmeta.tasks.causal_lm.generation.likelihoods import Likelihoods
from bsmeta.training.ranks.processes import ALONE
from tests.conftest import REPOSITORY
from tests.data.lossy_tokenizers import byte_level, word_piece

CPU = torch.device("cpu")
PACKAGE = REPOSITORY / "bsmeta"
Launch = Callable[..., CompletedProcess[str]]

# "the" has no context; "Fox" loses a capital and 俋啾 is unknown: only "jumps" and "over" count
TEXT = "the Fox 俋啾 jumps over"
LOST = len("Fox") + len("俋啾".encode())


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return word_piece()


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerBase) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=2,
        initializer_range=0.3,
    )  # fmt: skip
    return GPT2LMHeadModel(shape).eval()


def write_documents(path: Path, texts: Sequence[str]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            url = f"https://{path.name}.org/{number}"
            file.write(json.dumps({"text": text, "url": url}) + "\n")
    return path


def data_of(folder: Path, texts: Sequence[str]) -> DataConfig:
    return DataConfig(
        validation_file=str(write_documents(folder / "held-out.jsonl.gz", texts)),
        columns={"text": "text", "url": "url"},
        metadata_config=MetadataConfig(metadata_list=["url"], max_seq_len=64),
    )


def sums_of(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase, model: GPT2LMHeadModel, windows: str
) -> dict[str, ComparisonSums]:
    documents = HeldOutDocuments(
        config, max_documents=None, deduplicate=True, training_overlap=None
    )
    comparisons = [TEXT_ALONE, *plan_comparisons(["all"], ["url"])]
    evaluation = PairedEvaluation(config, tokenizer, documents, comparisons, windows=windows)
    return evaluation.run(model, CPU)


@pytest.mark.parametrize("windows", [*WINDOW_CUTTERS])
def test_only_tokens_with_lossless_text_are_summed(
    windows: str, tokenizer: PreTrainedTokenizerBase, model: GPT2LMHeadModel, tmp_path: Path
) -> None:
    sums = sums_of(data_of(tmp_path, [TEXT, "俋啾 É"]), tokenizer, model, windows)
    ids = tokenizer(TEXT, return_tensors="pt", add_special_tokens=False).input_ids
    entries = tokenizer.convert_ids_to_tokens(ids[0].tolist())
    assert entries == ["the", "fox", "[UNK]", "[UNK]", "jumps", "over"]
    with torch.no_grad():
        log_probabilities = model(ids).logits[0].log_softmax(-1)
    nats = -sum(float(log_probabilities[i - 1, ids[0, i]]) for i in (4, 5))

    text, everything = sums["text"], sums["all"]
    totals = text.totals
    assert totals[:, BYTES].tolist() == [len("jumps") + len("over"), 0]
    assert totals[:, TOKENS].tolist() == [2, 0]
    assert totals[0, NATS_WITHOUT] == pytest.approx(nats, rel=1e-4)
    assert text.lost_bytes.tolist() == [LOST, len("俋啾É".encode())]
    assert everything.totals[:, BYTES].tolist() == [9, 0]
    assert everything.lost_bytes.tolist() == text.lost_bytes.tolist()


def test_without_text_to_score_there_are_no_bits_per_byte(
    tokenizer: PreTrainedTokenizerBase,
    model: GPT2LMHeadModel,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = data_of(tmp_path, ["俋啾 É", "啾"])
    with pytest.raises(
        DataError, match=r"^checkpoint=x: no bytes are left to score: .* loses 11 bytes"
    ):
        refuse_empty_scores(sums_of(config, tokenizer, model, "sliding"), "checkpoint=x")
    subset = SubsetEvaluation(config, tokenizer, max_documents=2, seed=0, ranks=ALONE)
    assert subset.run(model, CPU) == {"documents": 0, "bytes": 0}
    assert "evaluations leave out 11 of 12 bytes (91.67%)" in caplog.text
    assert "no bytes are left to score" in caplog.text


def test_a_lossless_tokenizer_excludes_nothing(tmp_path: Path) -> None:
    tokenizer = byte_level()
    shape = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=8, n_layer=1, n_head=1)
    config = data_of(tmp_path, [TEXT])
    sums = sums_of(config, tokenizer, GPT2LMHeadModel(shape).eval(), "all_pieces")
    assert sums["text"].lost_bytes.tolist() == [0]
    first = len("the")  # one token, without context
    assert sums["text"].totals[0, BYTES] == len(TEXT.encode()) - first
    refuse_empty_scores(sums, "checkpoint=x")


def test_attribution_compares_candidates_over_lossless_text(
    tokenizer: PreTrainedTokenizerBase, model: GPT2LMHeadModel
) -> None:
    config = DataConfig(metadata_config=MetadataConfig(metadata_list=["url"], max_seq_len=64))
    records = [Record(value=f"{site}.org", key="url", type="global") for site in "ab"]
    likelihoods = Likelihoods(
        model, tokenizer, config, records, all_pieces=True, rows=2, device=CPU
    )
    scores, tokens = likelihoods.score([TEXT, "俋啾 É"])
    assert tokens.tolist() == [2, 0]
    assert (scores[0] < 0).all()
    assert scores[1].tolist() == [0.0, 0.0]
    assert likelihoods.text_bytes == len(TEXT.encode()) + 9
    assert likelihoods.lost_bytes == len("F") + 6 + 8
    assert likelihoods.describe_lost_text().startswith(
        "15 of 34 bytes (44.12%), which the tokenizer loses"
    )


def write_run(folder: Path) -> list[str]:
    """Writes training text and a lossy tokenizer; returns the keys of a run of two steps."""
    word_piece().save_pretrained(folder / "tokenizer")
    words = ["quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
    texts = [
        " ".join(words[(number + i) % 8] for i in range(30)) + f" {letter} Fox 俋啾"
        for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")
    ]
    write_documents(folder / "train.jsonl.gz", texts[:16])
    write_documents(folder / "held-out.jsonl.gz", texts[16:])
    write_documents(folder / "lost.jsonl.gz", ["俋啾俋啾 É", "啾 俋"])
    return [
        "--config-name", "demo", "metadata=url", "data_config.columns={text: text, url: url}",
        f"tokenizer_name={folder / 'tokenizer'}", f"data_config.train_file={folder}/train.jsonl.gz",
        f"data_config.validation_file={folder}/held-out.jsonl.gz", "data_config.num_streams=2",
        "data_config.window_documents=8", "data_config.metadata_config.max_seq_len=64",
        "max_train_steps=2", "num_warmup_steps=0", "gradient_accumulation_steps=1", "eval_steps=2",
        "eval_documents=4", "save_steps=0", "trackers=[]", f"out_dir={folder / 'run'}",
    ]  # fmt: skip


@pytest.mark.long
def test_a_run_and_its_evaluation_report_the_lost_text(launch: Launch, tmp_path: Path) -> None:
    train, evaluate = (PACKAGE / f"{name}.py" for name in ("train", "evaluate"))
    keys = write_run(tmp_path)
    for mode in (["check_only=true"], ["estimate=true", "estimate_steps=0"], []):
        refused = launch(train, *keys, "data_config.max_lost_text=0.01", *mode, check=False)
        assert refused.returncode == 2, refused.stderr
        assert "data_config.max_lost_text in Hydra configuration: found 0.01" in refused.stderr
        assert "under unknown tokens), such as 'F' (fox)" in refused.stderr
    shown = launch(train, *keys, "check_only=true")
    assert "lost text" in shown.stdout
    assert "(data_config.max_lost_text)" in shown.stdout

    done = launch(train, *keys)
    assert "the tokenizer loses " in done.stderr
    assert "evaluations leave out " in done.stderr
    run = tmp_path / "run"
    shown = launch(evaluate, f"checkpoint={run}", "bootstrap_resamples=50")
    report = json.loads((run / "evaluation" / "evaluation.json").read_text())
    (text, *_) = report["models"][0]["comparisons"]
    assert text["name"] == "text"
    assert text["lost_bytes"] == 10 * LOST
    assert 2 < text["bits_per_byte_without"] < 8
    assert text["bytes"] + text["lost_bytes"] < text["text_bytes"]
    sentence = f"left out: {10 * LOST} of {text['text_bytes']:,} bytes"
    assert sentence in shown.stdout.replace("\n", " ")
    for name in ("evaluation.md", "report.html"):
        content = (run / "evaluation" / name).read_text()
        assert sentence in content
        assert "lost by tokenizer" in content

    nothing = launch(
        evaluate, f"checkpoint={run}", f"validation_file={tmp_path}/lost.jsonl.gz", check=False
    )
    assert nothing.returncode == 2
    assert f"checkpoint={run}: no bytes are left to score" in nothing.stderr
    assert "0.0000" not in nothing.stdout

    (some, none) = bsmeta.load(str(run)).score(["the Fox 俋啾 jumps over", "俋啾 É"])
    assert (some.bytes, some.lost_bytes, none.bytes, none.lost_bytes) == (9, LOST, 0, 8)
    assert some.bits_per_byte > 0
    assert math.isnan(none.bits_per_byte)
