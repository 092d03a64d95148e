"""A whole study of tiny runs: metadata without content gains nothing, and the report is whole.

A document is `=`, one of four letters and another character, at random; its metadata is the letter.
Nothing else predicts it, so a model that reads other letters, or none, gains nothing.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bsmeta.config.study import ArmConfig, MeasureConfig, StudyConfig
from bsmeta.studies.measured import WITH, WITHOUT
from bsmeta.studies.measuring import measure_all
from bsmeta.studies.pairing import pairing
from bsmeta.studies.report import write_report
from bsmeta.studies.results import Results, results_of
from bsmeta.studies.runs import overrides_of, runs_of
from bsmeta.studies.statistics import Estimate
from tests.conftest import REPOSITORY, command, run_warm

LETTERS = "abcd"  # two bits a letter
OTHERS = [chr(code) for code in range(33, 127) if chr(code) not in LETTERS + "=|"]
STEPS = 100


def write_corpus(folder: Path) -> None:
    draw = random.Random(4)
    for number, count in enumerate((4000, 4000, 40)):
        lines = []
        for _ in range(count):
            letter, other = draw.choice(LETTERS), draw.choice(OTHERS)
            record = {"key": "secret", "type": "global", "value": letter}
            lines.append(json.dumps({"text": f"={letter}{other}", "metadata_secret": [record]}))
        path = folder / f"part-{number}.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(lines).encode()))


def write_model(folder: Path) -> None:
    characters = ["<eos>", "=", "|", *LETTERS, *OTHERS, " "]
    vocabulary = {character: number for number, character in enumerate(characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.save_pretrained(str(folder))
    shape = json.loads((REPOSITORY / "examples/model/config.json").read_text())
    shape |= {"vocab_size": len(characters), "hidden_size": 64, "intermediate_size": 128}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    (folder / "model.json").write_text(json.dumps(shape))


def make_study(folder: Path) -> StudyConfig:
    metadata = "data_config.metadata_config"
    secret = [f"{metadata}.metadata_list=[secret]"]
    secret.append(f"{metadata}.metadata_templates={{secret: '{{value}}'}}")
    shared = [
        f"data_config.train_file={folder}/*.jsonl.gz",
        f"data_config.validation_file={folder}/part-2.jsonl.gz",
        "data_config.num_streams=4", "data_config.window_documents=64",
        "data_config.per_device_train_batch_size=32", "data_config.on_test_overlap=drop",
        f"{metadata}.metadata_prefix_sep='|'", f"{metadata}.metadata_text_sep=''",
        f"{metadata}.metadata_probability=0.8", f"{metadata}.max_seq_len=32",
        f"{metadata}.random_sample_metadata=false",
        f"model_config_file={folder}/model.json", f"tokenizer_name={folder}",
        "learning_rate=1e-2", "lr_scheduler_type=constant", "num_warmup_steps=10",
        "gradient_accumulation_steps=1", f"max_train_steps={STEPS}", "eval_steps=0",
        "save_steps=0", "eval_documents=1", "trackers=[]", "logging_steps=20",
    ]  # fmt: skip
    arms = {
        "none": ArmConfig(overrides=[f"{metadata}.metadata_list=[]"]),
        "own": ArmConfig(overrides=secret),
    }
    for values in ("shuffled", "constant"):
        overrides = [*secret, f"{metadata}.metadata_values={values}"]
        arms[values] = ArmConfig(overrides=overrides, control_of="own")
    return StudyConfig(
        title="two bits", out_dir=str(folder / "study"), config="demo", overrides=shared,
        seeds=[1, 2, 3], baseline="none", arms=arms, curve=[0.25, 0.5, 1.0],
        measure=MeasureConfig(position_edges=[0, 2], length_edges=[100], resamples=4000),
    )  # fmt: skip


@pytest.fixture(scope="module")
def study(
    tmp_path_factory: pytest.TempPathFactory,
) -> StudyConfig:
    folder = tmp_path_factory.mktemp("two-bits")
    write_corpus(folder)
    write_model(folder)
    study = make_study(folder)
    for run in runs_of(study):
        overrides = overrides_of(study, run)
        assert overrides is not None
        train = [*command(REPOSITORY / "bsmeta/train.py", processes=1), "--config-name", "demo"]
        done = run_warm([*train, *overrides, f"out_dir={run.folder}"], OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr[-4000:]
    measure_all(study, runs_of(study), torch.device("cpu"))
    return study


@pytest.fixture(scope="module")
def results(study: StudyConfig) -> Results:
    return results_of(study)


def to_base(results: Results, arm: str, mode: str) -> Estimate:
    return results.arms[arm].last(mode) - results.arms["none"].last(WITHOUT)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["shuffled", "constant"])
@pytest.mark.parametrize("mode", [WITHOUT, WITH])
def test_metadata_without_content_gains_nothing(results: Results, arm: str, mode: str) -> None:
    effect = to_base(results, arm, mode)
    assert effect.low <= 0 <= effect.high
    assert abs(effect.value) < 0.1


@pytest.mark.slow
def test_what_the_arms_share_is_measured(study: StudyConfig) -> None:
    said = {line.split(":")[0]: line for line in pairing(study, runs_of(study))}
    assert set(said) == {"own", "shuffled", "constant"}
    assert all("the same initial weights as the baseline" in line for line in said.values())


@pytest.mark.slow
def test_the_report_has_every_number_and_its_command(study: StudyConfig, results: Results) -> None:
    commands = {run.name: ["train.sh", f"seed={run.seed}"] for run in runs_of(study)}
    files = write_report(results, Path("study.yaml"), commands, [])
    names = {file.name for file in files}
    assert {"report.md", "report.html", "effects.tex", "results.json", "claims.pdf"} <= names
    assert all(file.stat().st_size > 500 for file in files)
    raw = json.loads((Path(study.out_dir) / "results.json").read_text())
    own = raw["arms"]["own"]["curves"]["with"]["text tokens"]
    assert len(own) == 3
    assert own[-1]["low"] < own[-1]["value"] < own[-1]["high"]
    text = (Path(study.out_dir) / "report.md").read_text()
    assert "python experiments/study.py study.yaml --report" in text
    assert "own seed 3: train.sh seed=3" in text
    assert f"{results.arms['own'].last(WITH).value:.4f}" in text
