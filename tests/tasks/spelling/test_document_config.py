"""The published system's example configuration, unchanged, in a run of ours."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from bsmeta.config.composing.compose import compose_with_sources, register_schema
from bsmeta.config.composing.from_file import Expansion
from bsmeta.config.composing.hydra_files import ConfigReader
from bsmeta.config.composing.interpolation import finish_configuration
from bsmeta.config.composing.structures import open_structure
from bsmeta.core.errors import ConfigurationError, raise_problems
from bsmeta.tasks.spelling.config import (
    SecConfig,
    SedSequenceConfig,
    SedWordsConfig,
    SpellingConfig,
    find_value_problems,
)
from tests.config.test_refusals import start
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "examples" / "spelling" / "configs"
VARIABLES = {"NSC_DATA_DIR": "texts", "NSC_DATA_LIMIT": "1000", "NSC_EXPERIMENT_DIR": "runs"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def compose(
    folder: Path = FOLDER, schema: type[SpellingConfig] = SedWordsConfig, **overrides: Any
) -> SpellingConfig:
    """What `--config-dir FOLDER --config-name train_TASK key=value …` composes."""
    register_schema(schema, ConfigReader())
    name = f"train_{schema().task}.yaml"
    values = yaml.safe_load((folder / name).read_text())
    assert values.pop("defaults")[1:3] == ["published", "_self_"]
    shared = yaml.safe_load((folder / "published.yaml").read_text())
    expanded = Expansion(folder, lambda _: None).expand(values, name)
    composed = OmegaConf.merge(open_structure(schema), shared, expanded, overrides)
    assert isinstance(composed, DictConfig)
    OmegaConf.set_struct(composed, True)
    config, problems = finish_configuration(composed, schema)
    raise_problems(problems)
    return config


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


def test_a_variable_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSC_DATA_LIMIT", "abc")  # within a list that a key refers to
    monkeypatch.setenv("NSC_HIDDEN_DIM", "wide")  # in a file that the example names
    with pytest.raises(ConfigurationError) as caught:
        compose()
    limits, width = str(caught.value).split("\n2. ")
    assert "1. dataset_limits in" in limits
    assert "; NSC_DATA_LIMIT=abc, expected" in limits
    assert "Fix: export NSC_DATA_LIMIT with another value, or pass dataset_limits=…" in limits
    assert width.startswith("small_model.width in")
    assert "; NSC_HIDDEN_DIM=wide, expected" in width


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


# Written for this test, with the keys that the published files have, not with their content.
TRAINING = """
experiment_dir: runs
data_dir: texts
datasets: ['${oc.env:NSC_DATA_DIR}/one${oc.env:NSC_DATA_DIR_POSTFIX,""}']
dataset_limits: [7]
val_splits: [3]
experiment_name: mini
epochs: 2
batch_max_length: 1024
bucket_span: 8
log_per_epoch: 5
eval_per_epoch: 2
seed: 1
mixed_precision: false
optimizer: {type: ADAMW, lr: 0.01, weight_decay: 0.02, zero_redundancy: false}
"""
STEPS = "lr_scheduler: {type: STEP_WITH_WARMUP, warmup_steps: 0.1, reduce_factor: 0.5, "
STEPS += "reduce_at: [0.6]}\n"
NOISE = "edit_token_p: 0.3, artificial_num_edits_p: 0.7, word_misspellings_file: m.json, "
NOISE += "artificial_p: 0.4, re_weight_edit_token_p: true"
GRAPH = f"""
variant:
  type: SED_WORDS
  preprocessing: {{type: MIXED_NOISE, {NOISE}}}
  tokenizer: {{type: BPE, file_path: t.pkl}}
  data_scheme: word_graph
  add_word_features: true
  dictionary_file: ${{oc.env:NSC_DICTIONARY,${{oc.env:NSC_DATA_DIR}}/words.txt}}
  index: ${{oc.env:NSC_SPELL_CHECK_INDEX,null}}
model:
  type: MODEL_FOR_MULTI_NODE_CLASSIFICATION
  embedding: {{embed_positions: true}}
  gnn: {{type: GENERAL_GNN, num_layers: 2, dropout: 0.3, norm: layer}}
  node_hidden_dim: ${{oc.env:NSC_HIDDEN_DIM,64}}
  edge_hidden_dim: 32
  num_classes: {{word: 2}}
"""
CORRECTION = """
variant: {type: SEC_NMT, input_tokenizer: {type: BPE}, data_scheme: tensor}
model:
  type: MODEL_FOR_SEQ2SEQ
  max_length: 512
  hidden_dim: 32
  dropout: 0.2
  num_encoder_layers: 2
  num_decoder_layers: 1
pin_memory: true
"""
FINE_TUNING = f"""
variant:
  type: SED_SEQUENCE
  preprocessing:
    type: SWITCH
    cfgs: [{{type: MIXED_NOISE, min_edit_tokens: 1, {NOISE}}}, {{type: NONE}}]
    probabilities: [0.75, 0.25]
model: {{type: MODEL_FOR_SEQUENCE_CLASSIFICATION, hidden_dim: 32, dropout: 0.2, num_layers: 2}}
lr_scheduler: {{type: LINEAR_WITH_WARMUP, warmup_steps: 0.1, max_reduce_factor: 0.01}}
start_from_checkpoint: runs/sed_words/model
"""


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the layout of the published one, with our files beside it."""
    folder = tmp_path / "configs"
    (folder / "train").mkdir(parents=True)
    for file in (FOLDER / "published.yaml", *FOLDER.glob("train_*.yaml")):
        shutil.copy(file, folder)
    own = {"graph": GRAPH + STEPS, "correction": CORRECTION + STEPS, "tuning": FINE_TUNING}
    for name, text in own.items():
        (folder / "train" / f"{name}.yaml").write_text(TRAINING + text)
    return folder


def test_a_published_model_of_graphs(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSC_CONFIG", "train/graph.yaml")
    config = compose(published)
    model, noise = config.small_model, config.noise
    assert (model.width, model.layers, model.dropout) == (64, 2, 0.3)
    assert (noise.word_probability, noise.edit_probability) == (0.3, 0.7)
    assert (noise.artificial_share, noise.misspellings, noise.clean_share) == (0.4, "m.json", 0.0)
    assert (config.lr_scheduler_type, config.warmup_share) == ("cosine", 0.1)
    assert (config.datasets, config.model_name) == (["texts/one"], None)


def test_a_published_model_that_corrects(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSC_CONFIG", "train/correction.yaml")
    config = compose(published, SecConfig)
    model, noise = config.small_model, config.noise
    assert (model.width, model.layers, model.dropout) == (32, 2, 0.2)
    assert (noise.word_probability, noise.misspellings) == (0.2, "codespell")  # it names none
    assert config.out_dir == "runs/sec/mini"


def test_a_published_fine_tuning(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSC_CONFIG", "train/tuning.yaml")
    config = compose(published, SedSequenceConfig)
    assert config.model_name == "runs/sed_words/model"
    assert (config.lr_scheduler_type, config.min_learning_rate_ratio) == ("linear", 0.01)
    assert (config.noise.word_probability, config.noise.clean_share) == (0.3, 0.25)


def test_published_keys_without_a_counterpart_are_named(published: Path, tmp_path: Path) -> None:
    (tmp_path / "texts" / "one").mkdir(parents=True)
    (tmp_path / "texts" / "one" / "texts.txt").write_text("One text.\n")
    (tmp_path / "m.json").write_text('{"text": ["txet"]}')
    done = start(
        tmp_path,
        *("--config-dir", str(published), "--config-name", "train_sed_words"),
        "check_only=true",
        NSC_CONFIG="train/graph.yaml",
    )
    assert (done.returncode, done.stderr) == (0, "")
    branches = {
        "": "data_dir",
        "variant.": "tokenizer data_scheme add_word_features dictionary_file index",
        "variant.preprocessing.": "type re_weight_edit_token_p",
        "model.": "type embedding edge_hidden_dim num_classes",
        "model.gnn.": "type norm",
        "optimizer.": "type zero_redundancy",
        "lr_scheduler.": "reduce_factor reduce_at",
    }
    expected = {f"document.{at}{name}" for at, names in branches.items() for name in names.split()}
    note = next(line for line in done.stdout.splitlines() if line.startswith("note: document.data"))
    names, _, rest = note.removeprefix("note: ").partition(": ")
    assert (set(names.split(", ")), rest) == (expected, "without a counterpart here, so not used")
    assert "STEP_WITH_WARMUP: the learning rate falls as lr_scheduler_type=cosine" in done.stdout


@pytest.fixture
def texts(tmp_path: Path) -> None:
    """The data set and the misspellings that the configurations above name."""
    (tmp_path / "texts" / "one").mkdir(parents=True)
    (tmp_path / "texts" / "one" / "texts.txt").write_text("One text.\n")
    (tmp_path / "m.json").write_text('{"text": ["txet"]}')
    (tmp_path / "runs" / "sed_words" / "model").mkdir(parents=True)


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(
    ("trained", "published_file", "variant"),
    [
        ("sed_words", "correction", "SEC_NMT"),
        ("sed_words", "tuning", "SED_SEQUENCE"),
        ("sec", "graph", "SED_WORDS"),
        ("sed_sequence", "graph", "SED_WORDS"),
    ],
)
def test_a_published_configuration_of_another_task_is_refused(
    published: Path, tmp_path: Path, trained: str, published_file: str, variant: str
) -> None:
    arguments = ("--config-dir", str(published), "--config-name", f"train_{trained}")
    done = start(tmp_path, *arguments, "check_only=true", NSC_CONFIG=f"train/{published_file}.yaml")
    assert done.returncode == 2
    assert f'1. document.variant.type in Hydra configuration: found "{variant}"' in done.stderr
    assert f"because this configuration trains task={trained}." in done.stderr
    own = {"SEC_NMT": "sec", "SED_SEQUENCE": "sed_sequence", "SED_WORDS": "sed_words"}[variant]
    assert f"Fix: --config-name train_{own}, or set NSC_CONFIG to" in done.stderr
    done = start(
        tmp_path, *arguments[:-1], f"train_{own}", "check_only=true",
        NSC_CONFIG=f"train/{published_file}.yaml",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("texts")
def test_a_published_variant_without_a_counterpart_is_refused(
    published: Path, tmp_path: Path
) -> None:
    done = start(
        tmp_path,
        *("--config-dir", str(published), "--config-name", "train_sec"),
        *("check_only=true", "document.variant.type=TOKENIZATION_REPAIR"),
        NSC_CONFIG="train/correction.yaml",
    )
    assert done.returncode == 2
    assert "expected SEC_NMT or SEC_WORDS_NMT, because this configuration trains" in done.stderr
    assert "Fix: set NSC_CONFIG to a published configuration of SEC_NMT" in done.stderr


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(
    ("choices", "found"),
    [
        ("[{type: NONE}, {type: MIXED_NOISE}]", "found NONE, MIXED_NOISE, expected two"),
        (
            "[{type: MIXED_NOISE}, {type: MIXED_NOISE}]",
            "found MIXED_NOISE, MIXED_NOISE, expected two",
        ),
        ("[{type: MIXED_NOISE}]", "found MIXED_NOISE, expected two"),
        ("[MIXED_NOISE, {type: NONE}]", "found no type, NONE, expected two"),
        ("null", "found none, expected two"),
    ],
)
def test_a_switch_that_would_be_misread_is_refused(
    published: Path, tmp_path: Path, choices: str, found: str
) -> None:
    arguments = (
        *("--config-dir", str(published), "--config-name", "train_sed_sequence"),
        *("check_only=true", f"document.variant.preprocessing.cfgs={choices}"),
    )
    tuning = {"NSC_CONFIG": "train/tuning.yaml"}
    done = start(tmp_path, *arguments, **tuning)
    assert done.returncode == 2
    assert "document.variant.preprocessing.cfgs in Hydra configuration" in done.stderr
    assert found in done.stderr
    done = start(tmp_path, *arguments, "noise.clean_share=0.1", **tuning)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(
    ("schedule", "note"),
    [
        ("STEP_WITH_WARMUP", "as lr_scheduler_type=cosine, not in steps"),
        ("POLYNOMIAL", "as lr_scheduler_type=cosine, not as POLYNOMIAL"),
        ("LINEAR_WITH_WARMUP", None),
    ],
)
def test_a_schedule_that_becomes_another_is_named(
    published: Path, tmp_path: Path, schedule: str, note: str | None
) -> None:
    done = start(
        tmp_path,
        *("--config-dir", str(published), "--config-name", "train_sed_words"),
        *("check_only=true", f"document.lr_scheduler.type={schedule}"),
        NSC_CONFIG="train/graph.yaml",
    )
    assert done.returncode == 0, done.stderr
    if note is None:
        assert "the learning rate falls" not in done.stdout
    else:
        assert f"{schedule}: the learning rate falls {note}" in done.stdout


def leaves(section: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The paths of all values of nested mappings and lists; a list of plain values is one."""
    entries = section
    if isinstance(section, list) and any(isinstance(entry, dict) for entry in section):
        entries = {str(number): entry for number, entry in enumerate(section)}
    if isinstance(entries, dict):
        for name, entry in entries.items():
            yield from leaves(entry, (*path, name))
    else:
        yield path, section


def with_value(document: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of a document in which one value is another."""
    changed = OmegaConf.create(document)
    OmegaConf.update(changed, ".".join(path), value)
    copy = OmegaConf.to_container(changed)
    assert isinstance(copy, dict)
    return {str(name): entry for name, entry in copy.items()}


def another(value: Any) -> Any:
    """Another value of the same type; variables are texts of numbers."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 2 + 1
    if isinstance(value, list):
        return [*map(another, value)]
    if str(value).isdecimal():
        return str(int(value) * 2 + 1)
    return "CONSTANT_WITH_WARMUP" if "_WITH_" in str(value) else "other"


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "schema"),
    [("graph", SedWordsConfig), ("correction", SecConfig), ("tuning", SedSequenceConfig)],
)
def test_every_published_key_is_used_or_named(
    published: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    schema: type[SpellingConfig],
) -> None:
    monkeypatch.setenv("NSC_CONFIG", f"train/{file}.yaml")

    config, composition = compose_with_sources(schema, f"train_{schema().task}", (), published)
    document = config.document
    named = composition.list_unread_keys("document", checked=["document.variant.type"])

    def values_of(document: dict[str, Any]) -> dict[str, Any]:
        values = dataclasses.asdict(compose(published, schema, document=document))
        return {key: value for key, value in values.items() if key != "document"}

    values = values_of(document)
    count = 0
    for path, value in leaves(document):
        if path == ("variant", "type"):  # refused above
            continue
        key = ".".join(["document", *path])
        is_named = any(f"{key}.".startswith(f"{branch}.") for branch in named)
        has_effect = values_of(with_value(document, path, another(value))) != values
        assert has_effect is not is_named, key
        count += 1
    assert count > 20


def test_a_fallback_that_is_not_used_is_named(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSC_CONFIG", "train/graph.yaml")
    more = ("document.model.hidden_dim=32",)  # takes the place of node_hidden_dim
    config, composition = compose_with_sources(SedWordsConfig, "train_sed_words", more, published)
    assert config.small_model.width == 32
    assert "document.model.node_hidden_dim" in composition.list_unread_keys("document")
    assert "document.model.hidden_dim" not in composition.list_unread_keys("document")


def test_a_published_key_on_the_command_line_of_a_saved_configuration_is_named(
    tmp_path: Path,
) -> None:
    saved = "defaults: [sed_words_config, _self_]\ndocument: {epochs: 2}\ndatasets: [one]\n"
    (tmp_path / "config.yaml").write_text(saved)
    composition = compose_with_sources(SedWordsConfig, "config", (), tmp_path)[1]
    assert composition.list_unread_keys("document") == []
    done = start(
        tmp_path, "--config-dir", ".", "--config-name", "config", "document.epochs=3",
        "check_only=true", f"datasets=[{__file__}]", "noise.method=artificial",
    )  # fmt: skip
    assert "note: document.epochs: without a counterpart here, so not used" in done.stdout


def test_a_corrector_is_no_detector(tmp_path: Path) -> None:
    (tmp_path / "correction.json").write_text('{"threshold": 0.5}')
    config = SecConfig(datasets=[__file__], detector=str(tmp_path))
    (problem,) = find_value_problems(config)
    assert problem.key == "detector"
    assert "a model of task=sec, whose scores are about corrections" in problem.found
