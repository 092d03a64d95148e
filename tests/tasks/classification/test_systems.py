"""The fitted systems, the choice among them, and what is exported: through real runs."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import bsmeta
from bsmeta.core.errors import DataError
from bsmeta.tasks.classification.classifier import (
    CONFIG_FILE,
    NGRAMS_FILE,
    WEIGHTS_FILE,
    Classifier,
)
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.classification.model import load_model, read_labels
from bsmeta.tasks.classification.report import describe_choice
from bsmeta.tasks.classification.results import Choice, estimate_standard_error
from bsmeta.tasks.classification.systems import (
    Fitting,
    Split,
    Standardization,
    choose_system,
    explain_skipped_encoder,
    find_best_scale,
)
from bsmeta.tasks.classification.task import TextClassifier
from bsmeta.training.optimization import build_optimizer, set_learning_rate
from tests.conftest import REPOSITORY
from tests.tasks.classification.helpers import data_config, write_csv, write_leanings
from tests.tasks.training import TRAIN, events, train_killed_and_resumed

Launch = Callable[..., CompletedProcess[str]]
WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in ("ako", "iru", "elo", "uma")]


def texts_with(marks: tuple[str, str], rows: int = 300) -> list[tuple[str, str]]:
    """Random words with one of two marks between them, each with its label."""
    draw = random.Random(7)
    return [
        (" ".join([*draw.sample(WORDS, 3), marks[row % 2], *draw.sample(WORDS, 3)]), "ab"[row % 2])
        for row in range(rows)
    ]


def table_of_words(folder: Path) -> Path:
    """The label follows from words of the same letters, which an untrained encoder mixes up."""
    draw = random.Random(3)
    anagrams = ["".join(draw.sample("bakoru", 6)) for _ in range(40)]
    halves = (anagrams[::2], anagrams[1::2])
    rows = []
    for row in range(300):
        own, other = halves[row % 2], halves[1 - row % 2]
        words = [*draw.sample(own, 5), *draw.sample(other, 3)]
        draw.shuffle(words)
        rows.append((" ".join(words), "ab"[row % 2]))
    return write_csv(folder / "table.csv", rows, ["text", "label"])


def table_of_marks(folder: Path) -> Path:
    """The label is in a punctuation mark, which is not a word."""
    return write_csv(folder / "table.csv", texts_with(("!", "?")), ["text", "label"])


def trained(
    launch: Launch, csv: Path, encoder: Path, *more: str, kill_at: int = 0
) -> tuple[Path, dict[str, Any]]:
    """The folder of a run, killed before a step and resumed, and its `evaluation.json`."""
    out_dir = csv.parent / "run"
    arguments = [
        "--config-name", "classification", f"data_config.csv={csv}",
        f"model_name={encoder}", f"out_dir={out_dir}", "trackers=[]", "data_config.max_length=64",
        f"results_dir={out_dir}/results", "num_train_epochs=2", "bootstrap_resamples=200",
        "data_config.split_fractions=[0.5,0.25,0.25]", *more,
    ]  # fmt: skip
    if kill_at:
        train_killed_and_resumed(launch, arguments, kill_at)
    else:
        launch(TRAIN, *arguments)
    return out_dir, json.loads((out_dir / "evaluation/evaluation.json").read_text())


def assert_predicts_what_was_reported(run: Path, csv_file: Path) -> None:
    """Compares the predictions of the exported folder with those that the run wrote."""
    with csv_file.open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    (results,) = (run / "results").glob("*_testset_predictions.csv")
    with results.open(newline="") as file:
        reported = [*csv.DictReader(file)]
    model = bsmeta.load(run)
    assert isinstance(model, bsmeta.Predictor)
    found = model.predict([texts[int(row["row"]) - 1] for row in reported])
    for ours, theirs in zip(found, reported, strict=True):
        assert ours["prediction"] == theirs["prediction"]
        assert ours["chunks"] == int(theirs["chunks"])
        for label, share in ours["probabilities"].items():
            assert share == pytest.approx(float(theirs[f"probabilities.{label}"]), abs=2e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("table", "chosen", "parts", "kill_at"),
    [
        (table_of_words, "linear", {NGRAMS_FILE}, 0),
        (table_of_marks, "frozen", {"model.safetensors"}, 15),  # in the second of two epochs
    ],
)
def test_auto_exports_the_system_that_the_table_needs(
    launch: Launch, tmp_path: Path, encoder: Path, table: Callable[[Path], Path], chosen: str,
    parts: set[str], kill_at: int,
) -> None:  # fmt: skip
    csv_file = table(tmp_path)
    run, found = trained(launch, csv_file, encoder, "learning_rate=1e-6", kill_at=kill_at)
    assert len(events(run, "resume")) == (kill_at > 0)
    assert found["choice"]["chosen"] == chosen
    assert found["systems"]["model"]["accuracy"]["value"] > 0.9
    assert set(found["choice"]["systems"]) == {"linear", "frozen", "combined", "fine_tune"}
    names = {file.name for file in (run / "model").iterdir()}
    assert {CONFIG_FILE, WEIGHTS_FILE, "manifest.json", "tokenizer.json"} | parts <= names
    assert not names & ({NGRAMS_FILE, "model.safetensors"} - parts)
    assert_predicts_what_was_reported(run, csv_file)
    # A checkpoint has the fine-tuned model, whatever is exported in the end.
    checkpoint, *_ = run.glob("checkpoint-*step")
    fine_tuned = load_model(checkpoint / "model")
    assert isinstance(fine_tuned, Classifier)
    assert fine_tuned.description.method == "fine_tune"


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="auto_cpu_chunks has no effect on a GPU")
def test_auto_tries_no_encoder_on_a_table_that_is_large_for_a_cpu(
    launch: Launch, tmp_path: Path, encoder: Path
) -> None:
    csv_file = table_of_marks(tmp_path)  # which needs the encoder
    run, found = trained(launch, csv_file, encoder, "auto_cpu_chunks=149")
    assert found["choice"]["chosen"] == "linear"
    assert set(found["choice"]["systems"]) == {"linear"}
    assert found["notes"][-1] == (
        "method=auto tried no encoder, which is slow on a CPU: there are 150 training chunks, more "
        "than auto_cpu_chunks=149; to compare all systems, train on a GPU, or set auto_cpu_chunks=0"
    )
    assert "the only system of this run" in (run / "evaluation/evaluation.md").read_text()
    assert events(run, "step") == []
    assert_predicts_what_was_reported(run, csv_file)


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto_cpu_chunks has no effect on a GPU")
@pytest.mark.parametrize(
    ("settings", "skips"),
    [
        ({"auto_cpu_chunks": 100}, False),
        ({"auto_cpu_chunks": 99}, True),
        ({"auto_cpu_chunks": 0}, False),
        ({"auto_cpu_chunks": 99, "estimate": True}, False),
    ],
)
def test_auto_skips_the_encoder_above_its_limit(settings: dict[str, Any], skips: bool) -> None:
    reason = explain_skipped_encoder(ClassificationConfig(**settings), chunks=100)
    assert (reason is not None) == skips


@pytest.mark.long
@pytest.mark.parametrize("method", ["linear", "frozen", "combined", "fine_tune"])
def test_each_method_predicts_from_its_folder_what_it_reported(
    launch: Launch, tmp_path: Path, encoder: Path, method: str
) -> None:
    """On a real table, the shipped paragraphs, some of which are folded."""
    lines = (REPOSITORY / "examples/leanings/leanings.csv").read_text().splitlines(keepends=True)
    csv_file = tmp_path / "leanings.csv"
    csv_file.write_text("".join(lines[:301]))
    run, found = trained(
        launch, csv_file, encoder, f"method={method}", "data_config.label_column=leaning"
    )
    assert "choice" not in found
    assert found["folded_texts"] > 0
    assert_predicts_what_was_reported(run, csv_file)
    steps = events(run, "step")
    assert (steps == []) == (method != "fine_tune")
    model = load_model(run / "model")
    assert isinstance(model, Classifier)
    assert model.description.method == method
    if method == "linear":
        same = found["systems"]["TF-IDF + linear SVM"]["accuracy"]
        assert same["minus_model"] == 0.0
    else:
        AutoModel.from_pretrained(run / "model")
    saved = torch.load(run / "results/leanings_trained_model.sav", weights_only=True)
    exported = model.state_dict()
    assert saved["state_dict"].keys() == exported.keys()
    assert all(torch.equal(saved["state_dict"][name], exported[name]) for name in exported)


def make_task(folder: Path, encoder: Path, **keys: Any) -> TextClassifier:
    config = ClassificationConfig(
        data_config=data_config(write_leanings(folder)), model_name=str(encoder),
        out_dir=str(folder / "run"), **keys,
    )  # fmt: skip
    return TextClassifier(config)


def test_the_head_starts_with_the_solution_on_frozen_vectors(tmp_path: Path, encoder: Path) -> None:
    fine_tuned = make_task(tmp_path, encoder, method="fine_tune").build_model().eval()
    fitted = make_task(tmp_path, encoder, method="fine_tune")
    frozen = fitted.fit_systems().load("frozen", fitted.build_untouched_encoder())
    ids = torch.tensor([[2, 60, 61, 3], [2, 62, 63, 3]])
    mask = torch.ones_like(ids)
    torch.testing.assert_close(fine_tuned(ids, mask).logits, frozen(ids, mask).logits)
    other = make_task(tmp_path, encoder, method="fine_tune", head_start="random").build_model()
    assert not torch.equal(other.head.weight, fine_tuned.head.weight)


def test_systems_are_fitted_once(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_task(tmp_path, encoder, method="combined")
    weights = first.build_model().state_dict()
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "run/systems").rglob("*")}
    again = make_task(tmp_path, encoder, method="combined")
    found = again.build_model().state_dict()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert {file: file.stat().st_mtime_ns for file in files} == files
    other = make_task(tmp_path, encoder, method="combined", pooling="max")
    other.build_model()
    assert (tmp_path / "run/systems/systems.json").stat().st_mtime_ns > max(files.values())


def test_each_layer_has_its_learning_rate(tmp_path: Path, encoder: Path) -> None:
    task = make_task(
        tmp_path, encoder, method="fine_tune", head_start="random", layer_decay=0.5,
        learning_rate=0.1,
    )  # fmt: skip
    model = task.build_model()
    optimizer = build_optimizer(model, task.config, task.rate_scale)
    set_learning_rate(optimizer.param_groups, 0.01)
    names = {id(value): name for name, value in model.named_parameters()}
    rates = {
        names[id(value)]: group["lr"]
        for group in optimizer.param_groups
        for value in group["params"]
    }
    assert rates["head.weight"] == rates["head.bias"] == 0.01
    assert rates["encoder.encoder.layer.0.output.dense.weight"] == 0.01
    assert rates["encoder.embeddings.word_embeddings.weight"] == 0.005
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.01}


def test_the_scale_of_logits_is_that_of_the_labels() -> None:
    # Three of four labels are right, so probabilities of 3/4 are the best: a difference of log 3.
    logits = np.array([[10.0, 0.0], [10.0, 0.0], [0.0, 10.0], [0.0, 10.0]])
    labels = np.array([0, 0, 1, 0])
    assert find_best_scale(logits, labels) * 10 == pytest.approx(np.log(3), rel=1e-3)


def test_a_small_lead_on_the_validation_split_is_no_reason_for_the_larger_system() -> None:
    truth = np.tile([0, 1], 50)
    guesses = {"linear": truth.copy(), "frozen": truth.copy(), "fine_tune": truth.copy()}
    for name, wrong in (("linear", 20), ("frozen", 40), ("fine_tune", 18)):
        guesses[name][:wrong] = 1 - truth[:wrong]
    guesses["linear"][:20], guesses["linear"][80:] = truth[:20], 1 - truth[80:]
    settings = {"metric": "accuracy", "resamples": 500, "seed": 1}
    chosen, compared = choose_system(truth, guesses, np.arange(100), 2, **settings)
    assert chosen == "linear"
    assert [system.name for system in compared] == ["fine_tune", "linear", "frozen"]
    assert describe_choice(Choice("accuracy", chosen, compared, {}, [])) == (
        "It is the TF-IDF + linear SVM (accuracy 0.800 on the validation split), which is simpler "
        "than the best of 3 systems, the fine-tuned encoder, and within one standard error of it: "
        "difference -0.020, standard error 0.064."
    )
    guesses["fine_tune"] = truth
    chosen, compared = choose_system(truth, guesses, np.arange(100), 2, **settings)
    assert describe_choice(Choice("accuracy", chosen, compared, {}, [])) == (
        "It is the fine-tuned encoder, the best of 3 systems on the validation split (accuracy "
        "1.000); the best simpler one, the TF-IDF + linear SVM, is more than a standard error "
        "below it: difference -0.200, standard error 0.041."
    )


def test_a_system_below_a_simpler_one_is_not_chosen() -> None:
    """Its mistakes differ from the best system's, which makes its standard error large."""
    truth = np.tile([0, 1], 50)
    wrong = {"linear": range(24), "frozen": range(60, 86), "combined": range(20)}
    guesses = {name: truth.copy() for name in wrong}
    for name, texts in wrong.items():
        guesses[name][texts] = 1 - truth[texts]
    chosen, compared = choose_system(
        truth, guesses, np.arange(100), 2, metric="accuracy", resamples=500, seed=1
    )
    scores = {system.name: system for system in compared}
    linear = scores["linear"].differences["accuracy"]
    frozen = scores["frozen"].differences["accuracy"]
    assert linear.value < -estimate_standard_error(linear)
    assert frozen.value < linear.value
    assert frozen.value > -estimate_standard_error(frozen)
    assert chosen == "combined"


def test_the_simplest_of_equal_systems_is_chosen() -> None:
    truth = np.tile([0, 1], 20)
    guesses = dict.fromkeys(("linear", "frozen", "fine_tune"), truth)
    chosen, compared = choose_system(
        truth, guesses, np.arange(40), 2, metric="macro_f1", resamples=50, seed=1
    )
    assert chosen == "linear"
    assert describe_choice(Choice("macro_f1", chosen, compared, {}, [])) == (
        "It is the TF-IDF + linear SVM, the best of 3 systems on the validation split (macro F1 "
        "1.000); there is no simpler one."
    )


@pytest.mark.filterwarnings("error")
def test_three_rows_a_label_are_fitted_without_a_warning() -> None:
    """Words decide; scikit-learn would take so many numbers of labels for a regression."""
    names = [f"label {number}" for number in range(40)]
    truth = np.repeat(np.arange(40), 3)
    texts = [f"word{label} row{row}" for row, label in enumerate(truth.tolist())]
    vectors = np.random.default_rng(1).normal(size=(120, 8)).astype(np.float32)
    train = Split(truth[0::3], texts[0::3], vectors[0::3])
    validation = Split(truth[1::3], texts[1::3], vectors[1::3])
    fitting = Fitting(names, [1.0] * 40, train, validation)
    fitting.fit(["linear", "frozen", "combined"])
    assert [*fitting.models] == ["linear", "combined", "frozen"]
    assert fitting.facts["linear"]["predicted"] == list(range(40))


def test_a_value_that_is_not_known_is_refused_with_its_key(
    launch: Launch, tmp_path: Path, encoder: Path
) -> None:
    done = launch(
        TRAIN, "--config-name", "classification", f"data_config.csv={write_leanings(tmp_path)}",
        f"model_name={encoder}", "method=best", "pooling=sum", "layer_decay=2", check=False,
    )  # fmt: skip
    assert done.returncode == 2
    for key in ("method", "pooling", "layer_decay"):
        assert key in done.stderr


def broken_weights(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS_FILE)
    save_file({**weights, "head.weight": weights["head.weight"] * torch.nan}, folder / WEIGHTS_FILE)


def repeated_ngram(folder: Path) -> None:
    ngrams = json.loads((folder / NGRAMS_FILE).read_text())
    (folder / NGRAMS_FILE).write_text(json.dumps([ngrams[1], *ngrams[1:]]))


def without_head(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS_FILE)
    save_file({name: w for name, w in weights.items() if "head" not in name}, folder / WEIGHTS_FILE)


def unknown_pooling(folder: Path) -> None:
    text = (folder / CONFIG_FILE).read_text()
    (folder / CONFIG_FILE).write_text(text.replace('"pooling": "mean"', '"pooling": "sum"'))


def change_labels(*labels: str) -> Callable[[Path], None]:
    """Returns a function that replaces the labels of an exported classifier."""

    def change(folder: Path) -> None:
        content = json.loads((folder / CONFIG_FILE).read_text())
        content["text_classifier"]["labels"] = labels
        (folder / CONFIG_FILE).write_text(json.dumps(content))

    return change


def one_row_of_words(folder: Path) -> None:
    """Keeps the word weights of the first label, which would be added to the logits of all."""
    weights = load_file(folder / WEIGHTS_FILE)
    words = weights["words.weight"][:1].clone()
    save_file({**weights, "words.weight": words}, folder / WEIGHTS_FILE)


def flat_words(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS_FILE)
    flat = weights["words.weight"].flatten()[:3].clone()
    save_file({**weights, "words.weight": flat}, folder / WEIGHTS_FILE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_labels("left", "left", "right"), "labels: 'left' occurs more than once"),
        (change_labels("left", " ", "right"), "labels: one of them is empty"),
        (change_labels("left", "right"), "labels: found 2, expected 3, one for each logit"),
        (change_labels("left"), "labels: found 1, expected two or more"),
        (one_row_of_words, "labels: found 3, expected 1, one for each logit"),
        (flat_words, "cannot be loaded: tuple index out of range"),
        (broken_weights, "has values that are not finite"),
        (repeated_ngram, "do not have the same features"),
        (without_head, "cannot be loaded: 'head.weight'"),
        (unknown_pooling, "pooling=sum: expected one of mean"),
        (lambda folder: (folder / NGRAMS_FILE).unlink(), "cannot be loaded"),
    ],
)
def test_a_damaged_folder_is_refused(
    tmp_path: Path, encoder: Path, change: Callable[[Path], None], message: str
) -> None:
    task = make_task(tmp_path, encoder, method="combined")
    model = task.build_model()
    task.export(model, model.state_dict(), tmp_path / "model")
    assert {file.suffix for file in (tmp_path / "model").iterdir()} == {
        ".json",
        ".md",
        ".safetensors",
    }
    assert read_labels(load_model(tmp_path / "model")) == ("left", "neutral", "right")
    change(tmp_path / "model")
    with pytest.raises(DataError, match=message):
        load_model(tmp_path / "model")


def test_a_dimension_of_rounding_errors_is_left_out() -> None:
    """As in all-MiniLM-L6-v2, whose vectors have dimensions of 1e-31 and 1e-8."""
    draw = np.random.default_rng(0)
    vectors = (draw.normal(size=(50, 4)) * [1.0, 0.1, 1e-31, 1e-8] + [0, 3, 0, 1]).astype("f4")
    standard = Standardization.of(vectors, 4.0)
    columns = standard.apply(vectors)
    assert (columns**2).mean(0) == pytest.approx([8, 8, 0, 0])  # 4² on the two that vary
    head, bias = standard.fold(np.ones((3, 4)), np.zeros(3))
    assert np.abs(head).max() < 100
    assert vectors @ head.T + bias == pytest.approx(columns @ np.ones((4, 3)), abs=1e-4)


@pytest.mark.parametrize("method", ["frozen", "combined", "fine_tune"])
def test_the_encoder_of_an_exported_classifier_is_in_its_dtype(
    tmp_path: Path, encoder: Path, method: str
) -> None:
    """The linear layers, which only this package reads, stay in float32."""
    task = make_task(tmp_path, encoder, method=method, export_dtype="bfloat16")
    model = task.build_model()
    folder = tmp_path / "model"
    task.export(model, model.state_dict(), folder)
    dtypes = {weight.dtype for weight in load_file(folder / "model.safetensors").values()}
    assert dtypes == {torch.bfloat16}
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModel.from_pretrained(folder).dtype == torch.bfloat16

    loaded = load_model(folder).state_dict()
    assert loaded["head.weight"].dtype == torch.float32
    for name, weight in model.state_dict().items():
        rounded = weight.bfloat16() if name.startswith("encoder.") else weight
        assert torch.equal(loaded[name], rounded.to(weight.dtype)), name
