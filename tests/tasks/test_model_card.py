"""Model cards: facts of the training data and of no other, results, and the cards of all tasks."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.schema import RunConfig
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.model_card import describes_training_data, make_front_matter, write_task_card
from bsmeta.tasks.spelling.config import SecConfig, SedWordsConfig

TASK_FILES = sorted((Path(__file__).resolve().parents[2] / "bsmeta" / "tasks").rglob("*.py"))


def read_front_matter(config: RunConfig, **given: Any) -> dict[str, Any]:
    text = make_front_matter(config, "text-generation", **given)
    values: dict[str, Any] = yaml.safe_load(text)
    return values


@pytest.mark.parametrize(
    ("overrides", "license_"),
    [
        ([], ["bsd-3-clause", "bsl-1.0", "postgresql", "other"]),
        (["data=webdocs"], ["bsd-3-clause", "bsl-1.0", "postgresql", "other"]),
        (["data_config.train_file=mine.jsonl"], None),
        (["data=c4_en"], None),
        (["data_config.train_file=null", "data_config.dataset_name=mine"], None),
        (["data_config.train_file=mine.jsonl", "model_card.describes=null"],
         ["bsd-3-clause", "bsl-1.0", "postgresql", "other"]),
        (["data_config.train_file=mine.jsonl", "model_card.describes=mine.jsonl",
          "model_card.license=[mit]"], ["mit"]),
    ],
)  # fmt: skip
def test_the_license_of_the_sample_is_not_used_for_other_data(
    overrides: list[str], license_: list[str] | None
) -> None:
    config = compose_command_line(CausalLMConfig, "demo", overrides)
    assert read_front_matter(config).get("license") == license_
    assert describes_training_data(config) == (license_ is not None or "data=c4_en" in overrides)


@pytest.mark.parametrize(
    ("schema", "name"), [(SecConfig, "demo_spelling"), (SedWordsConfig, "demo_spelling_words")]
)
def test_the_cards_of_the_spelling_demo_name_its_sources(
    schema: type[RunConfig], name: str, tmp_path: Path
) -> None:
    usage = {"pipeline_tag": "token-classification", "about": "Corrects.", "prediction": "text=a"}
    write_task_card(compose_command_line(schema, name), tmp_path, **usage)
    _, _, sources = (tmp_path / "README.md").read_text().partition("## Sources\n")
    assert sources.splitlines()[3:] == [
        "- the shipped pages: documentation of Python (PSF-2.0), PostgreSQL (PostgreSQL License), "
        "Boost (BSL-1.0), pandas and SciPy (BSD-3-Clause)",
        "- misspellings of codespell (dictionary.txt: CC BY-SA 3.0)",
        "- words and word pairs of symspellpy (MIT)",
        "- word frequencies of wordfreq (data: CC BY-SA 4.0)",
    ]
    other = compose_command_line(schema, name, ["datasets=[mine.txt]"])
    write_task_card(other, tmp_path, **usage)
    assert "Sources" not in (tmp_path / "README.md").read_text()


def test_results_are_in_the_model_index() -> None:
    config = compose_command_line(CausalLMConfig, "demo", ["push_to_hub=me/small"])
    front = read_front_matter(
        config, results={"bits_per_byte_with": 2.25}, held_out="pages 1.jsonl.gz"
    )
    assert front["model-index"] == [
        {
            "name": "me/small",
            "results": [
                {
                    "task": {"type": "text-generation"},
                    "dataset": {
                        "name": "pages 1.jsonl.gz",
                        "type": "pages-1.jsonl.gz",
                        "split": "validation",
                    },
                    "metrics": [
                        {
                            "name": "bits_per_byte_with",
                            "type": "bits_per_byte_with",
                            "value": 2.25,
                        }
                    ],
                }
            ],
        }
    ]


def test_the_card_of_a_classifier_has_its_results_and_usage(tmp_path: Path) -> None:
    config = compose_command_line(
        ClassificationConfig,
        "demo_classification",
        [f"out_dir={tmp_path}", "push_to_hub=me/leanings", "model_card.license=[mit]"],
    )
    event = {"event": "eval", "step": 8, "split": "validation", "accuracy": 0.5, "loss": None}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    write_task_card(
        config,
        tmp_path,
        pipeline_tag="text-classification",
        about="A classifier of texts by leaning: left, <b>right</b>.",
        prediction="input=texts.csv output=predicted.csv",
    )

    card = (tmp_path / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["library_name"], front["license"]) == ("bsmeta", ["mit"])
    assert front["model-index"][0]["results"][0]["metrics"] == [
        {"type": "accuracy", "name": "accuracy", "value": 0.5}
    ]
    assert "# me/leanings" in card
    assert "A classifier of texts by leaning: left, &lt;b&gt;right" in card
    assert "(`hf download me/leanings --local-dir model`)" in card
    assert "\nbsmeta predict checkpoint=model input=texts.csv output=predicted.csv\n" in card
    assert "at step 8, on the validation data" in card
    assert "| accuracy | 0.5000 |" in card
    assert "| training data | leanings.csv |" in card
    assert "<b>" not in card


@pytest.mark.parametrize("is_pretrained", [False, True])
def test_the_card_names_the_split_of_its_results_and_only_a_model_that_was_used(
    tmp_path: Path, is_pretrained: bool
) -> None:
    config = compose_command_line(
        ClassificationConfig,
        "demo_classification",
        [f"out_dir={tmp_path}", "model_name=me/base", "model_config_file=null"],
    )
    event = {"event": "eval", "step": 0, "split": "test", "accuracy": 0.75}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    write_task_card(
        config,
        tmp_path,
        pipeline_tag="text-classification",
        about="A classifier.",
        prediction="text=a",
        is_pretrained=is_pretrained,
    )

    card = (tmp_path / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front.get("base_model") == ("me/base" if is_pretrained else None)
    assert front["model-index"][0]["results"][0]["dataset"]["split"] == "test"
    assert "The last evaluation of the run, at step 0, on the test data:" in card


def test_the_card_of_a_run_without_evaluation_has_no_results(tmp_path: Path) -> None:
    config = compose_command_line(
        SecConfig, "sec", [f"out_dir={tmp_path}", "datasets=[/data/a.txt,b.txt]"]
    )
    write_task_card(
        config,
        tmp_path,
        pipeline_tag="text2text-generation",
        about="Corrects the spelling errors of a text.",
        prediction="input=letter.txt output=corrected.txt",
    )

    card = (tmp_path / "README.md").read_text()
    assert "Not evaluated." in card
    assert "model-index" not in card
    assert "| training data | a.txt, b.txt |" in card


def read_export_code(task: ast.ClassDef) -> str:
    """Joins the code of `export` and of the methods of its class that it calls."""
    methods = {node.name: node for node in task.body if isinstance(node, ast.FunctionDef)}
    reached, waiting = set[str](), ["export"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        named = {n.attr for n in ast.walk(methods[name]) if isinstance(n, ast.Attribute)}
        waiting += (named & set(methods)) - reached
    return "\n".join(ast.unparse(methods[name]) for name in sorted(reached))


def test_every_export_writes_a_card() -> None:
    exports = {
        f"{file.parent.name}/{file.name}": read_export_code(node)
        for file in TASK_FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.FunctionDef) and part.name == "export" for part in node.body)
    }
    assert {"causal_lm/task.py", "classification/task.py"} <= set(exports)
    assert [name for name, code in exports.items() if "card(" not in code] == []


@pytest.mark.parametrize(
    ("split", "is_export_tested", "measured"),
    [
        ("validation", True, "The metrics are those of the weights as trained."),
        ("test", True, "The metrics are those of these weights, computed in float32."),
        ("test", False, "The metrics are those of the weights as trained."),
    ],
)
def test_the_card_names_the_dtype_and_the_weights_that_were_measured(
    tmp_path: Path, split: str, is_export_tested: bool, measured: str
) -> None:
    config = compose_command_line(
        ClassificationConfig,
        "demo_classification",
        [f"out_dir={tmp_path}", "export_dtype=float16"],
    )
    event = {"event": "eval", "step": 8, "split": split, "accuracy": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    usage = {"pipeline_tag": "text-classification", "about": "Labels.", "prediction": "text=a"}
    write_task_card(config, tmp_path, **usage, is_export_tested=is_export_tested)
    sentence = f"The weights in this folder are in float16 (`export_dtype`). {measured}"
    assert f"\n\n{sentence}\n\n## Training\n" in (tmp_path / "README.md").read_text()
    write_task_card(config, tmp_path, **usage, is_pretrained=False)
    assert "export_dtype" not in (tmp_path / "README.md").read_text()
