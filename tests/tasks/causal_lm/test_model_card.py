"""The model card: what a reader needs to use the model, from the configuration and the log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.schema import ModelCardConfig
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.tasks.causal_lm.metrics import METRICS
from bsmeta.tasks.causal_lm.model_card import render_example, render_model_card
from bsmeta.tasks.causal_lm.one_string import ChatTemplate, Comparison
from bsmeta.tasks.causal_lm.task import CausalLanguageModel

REPOSITORY = Path(__file__).resolve().parents[3]
TRAIN = REPOSITORY / "bsmeta" / "train.py"
EVALUATE = REPOSITORY / "bsmeta" / "evaluate.py"

EVENTS = [
    {"event": "step", "step": 4, "loss": 9.0, "tokens": 400},
    {"event": "eval", "step": 4, "documents": 1},
    {"event": "step", "step": 8, "loss": 4.25, "tokens": 12_345},
    {
        "event": "eval",
        "step": 8,
        "split": "validation",
        "bits_per_byte_without": 2.5,
        "bits_per_byte_with": 2.25,
        "difference": -0.25,
        "difference_low": -0.375,
        "difference_high": -0.125,
        "documents": 16,
    },
    {"event": "save", "step": 8},
]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in EVENTS) + '{"event": "eval", "st')
    return path


@pytest.fixture(scope="module")
def config() -> CausalLMConfig:
    return compose_command_line(CausalLMConfig, "demo")


def test_the_card_describes_metadata_training_and_results(
    config: CausalLMConfig, metrics: Path
) -> None:
    command = ["/x/bsmeta/train.py", "--config-name", "demo", "++data_config.a=1 2", "hydra.x=y"]
    card = render_model_card(config, metrics, command)
    front = yaml.safe_load(card.split("---\n")[1])
    assert front == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["bsmeta", "metadata"],
        "license": ["bsd-3-clause", "bsl-1.0", "postgresql", "other"],
        "language": ["en"],
        "model-index": front["model-index"],
    }
    (result,) = front["model-index"][0]["results"]
    assert result["dataset"]["name"] == "c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz"
    assert {metric["name"]: metric["value"] for metric in result["metrics"]} == {
        "bits_per_byte_without": 2.5,
        "bits_per_byte_with": 2.25,
        "difference": -0.25,
    }
    assert "from random weights, for 8 steps (12,345 tokens)" in card
    assert (
        "Title: The first program | url: https://en.example.org/history/first-program.html | "
        "Datasource: en.example.org > history > first program | "
        "Website Description: A site about the history of computing. | "
        "Year: 2018 | Month: December ||| Ada Lovelace wrote a program.\n```"
    ) in card
    assert (
        "| `title` | `Title: The first program \\|\\|\\| Ada Lovelace wrote a program.` |" in card
    )
    assert (
        "The evaluation during training, at step 8: on 16 documents with metadata among the first "
        "16 of the held-out shard (`eval_documents`), in the chunks used in training, most of "
        "which begin without context, over identical text bytes."
    ) in card
    assert "with `windows=all_pieces max_documents=16` it repeats the metrics here." in card
    assert (
        "-0.3750 to -0.1250 (95% bootstrap interval). 16 documents are few to resample: 95% "
        "intervals over them are rough, and usually too narrow."
    ) in card
    assert "| bits per byte with all metadata, same text | 2.2500 |" in card
    assert "accelerate launch bsmeta/train.py --config-name demo 'data_config.a=1 2'\n" in card
    assert "| held-out shard | c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz |" in card
    assert "| loss of the last step | 4.2500 nats per token |" in card
    assert (
        "With `bsmeta` installed, and this folder as `model`:\n\n```sh\n"
        "bsmeta generate checkpoint=model "
        """'metadata={title: "The first program"}' 'prompt="Ada Lovelace"'\n"""
    ) in card
    assert str(Path.cwd()) not in card  # nothing of this machine


def test_without_log_and_command_the_card_has_the_remaining_facts(
    config: CausalLMConfig, tmp_path: Path
) -> None:
    gpt2 = replace(config, model_config_file=None, model_name="gpt2")
    card = render_model_card(gpt2, tmp_path / "none.jsonl", ["pytest"])
    assert yaml.safe_load(card.split("---\n")[1])["base_model"] == "gpt2"
    assert "from the weights of gpt2 on documents" in card
    assert "Not evaluated." in card
    assert "accelerate launch" not in card


def write_card(*overrides: str) -> str:
    names = [f"data_config.metadata_config.{override}" for override in overrides]
    return render_model_card(
        compose_command_line(CausalLMConfig, "demo", names), Path("none.jsonl"), ["pytest"]
    )


def test_the_card_names_the_dtype_and_the_weights_that_were_measured(metrics: Path) -> None:
    config = compose_command_line(CausalLMConfig, "demo", ["export_dtype=bfloat16"])
    sentence = "The weights in this folder are in bfloat16 (`export_dtype`)."
    measured = "The metrics are those of the weights as trained."
    assert f"\n{sentence} {measured}\n\n## Training\n" in render_model_card(config, metrics, [])
    without_metrics = render_model_card(config, Path("none.jsonl"), [])
    assert f"\n\n{sentence}\n\n## Training\n" in without_metrics
    assert "export_dtype" not in write_card()


def test_the_card_names_the_tokens_without_loss() -> None:
    anywhere = "No loss was taken on the prefix, nor on a first token that nothing precedes."
    never = "No loss was taken on the prefix, nor on the first token of the text."
    assert anywhere in write_card()
    assert never in write_card("loss_on_first_text=false")
    config = compose_command_line(CausalLMConfig, "demo", ["data_config.row_budget=text"])
    assert never in render_model_card(config, Path("none.jsonl"), ["pytest"])


def test_the_card_of_a_model_of_text_alone_describes_no_metadata() -> None:
    card = write_card("metadata_list=[]")
    assert "from random weights on documents. It loads with" in card
    assert "As text alone. A sequence has at most 256 tokens" in card
    assert "had metadata" not in card
    assert "| type |" not in card


def test_the_card_has_the_share_of_documents_with_metadata() -> None:
    alone = "; all others are text alone, and so the model can be used without metadata, too. "
    assert f"In training 80% of the documents had metadata{alone}" in write_card()
    card = write_card("metadata_probability=1")
    assert "In training 100% of the documents had metadata. No loss" in card
    phases = "schedule=[{share: 0.9}, {share: 0.1, metadata_probability: 0}]"
    card = write_card("metadata_probability=1", phases)
    assert (
        f"In training 0% to 100% of the documents had metadata, in phases (see below){alone}"
        in card
    )


def test_the_card_describes_the_position_of_the_metadata() -> None:
    assert "Metadata comes before the text (global types) and in it" in write_card()
    card = write_card("metadata_position=append")
    assert "Metadata comes after the text (global types) and in it" in card
    assert "No loss was taken on the prefix and the suffix, nor on" in card


@pytest.mark.parametrize("program", ["/x/bsmeta/train.py", "bsmeta train"])
def test_the_card_has_the_command_of_the_training(program: str) -> None:
    card = render_model_card(
        compose_command_line(CausalLMConfig, "demo"), Path("none.jsonl"), [program, "seed=3"]
    )
    assert "accelerate launch bsmeta/train.py seed=3\n" in card


def front_matter(config: CausalLMConfig, folder: Path) -> dict[str, Any]:
    card = render_model_card(config, folder / "none.jsonl", ["pytest"])
    front: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return front


def test_the_front_matter_has_the_given_values_and_the_data_set(
    config: CausalLMConfig, tmp_path: Path
) -> None:
    files = ["hf://datasets/owner/pages@v1/a.jsonl.gz", "hf://datasets/owner/pages/b.jsonl.gz"]
    data = replace(config.data_config, train_file=files)
    given = ModelCardConfig(license=["apache-2.0"], datasets=["owner/more"], language=["en", "de"])
    front = front_matter(replace(config, data_config=data, model_card=given), tmp_path)
    assert front["license"] == ["apache-2.0"]
    assert front["datasets"] == ["owner/more", "owner/pages"]
    assert front["language"] == ["en", "de"]
    unnamed = front_matter(replace(config, model_card=ModelCardConfig()), tmp_path)
    assert {"license", "datasets", "language"}.isdisjoint(unnamed)


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (
            {"metadata_list": ["html", "entity", "url"], "url_granularity": "host"},
            "html | entity | url: en.example.org ||| "
            "Ada Lovelace [[Ada Lovelace]] wrote a <b>program</b>.",
        ),
        (
            {"metadata_list": ["quality"], "value_bucket_scale": {"quality": 10}},
            "quality: 10 ||| Ada Lovelace wrote a program.",
        ),
        (
            {
                "metadata_list": ["url"],
                "metadata_position": "append",
                "metadata_templates": {"url": "URL: {value}"},
            },
            "Ada Lovelace wrote a program. ||| "
            "URL: https://en.example.org/history/first-program.html",
        ),
        (
            {"metadata_list": ["title"], "value_bucket_scale": {"title": 10}},
            "Ada Lovelace wrote a program.",  # a title is not a number: no example is possible
        ),
        (
            {"metadata_list": ["length", "paragraph", "entity_paragraph", "basic_start_local"]},
            "Text Length: 29 | paragraph | entity_paragraph | basic_start_local ||| "
            "note:  |Ada Lovelace|[paragraph: 1]Ada Lovelace wrote a program.[/paragraph: 1]",
        ),
    ],
)
def test_the_example_renders_as_in_training(settings: dict[str, Any], shown: str) -> None:
    made = render_example(MetadataConfig(**settings))
    assert made.prefix + made.lead + made.body + made.suffix == shown


@pytest.mark.parametrize("settings", [[], ["bos_token=true"], ["metadata_list=[]"]])
def test_the_snippet_renders_a_document_as_in_training(
    settings: list[str],
    config: CausalLMConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [f"data_config.metadata_config.{setting}" for setting in settings]
    config = compose_command_line(CausalLMConfig, "demo", [*names, "push_to_hub=null"])
    tokenizer = AutoTokenizer.from_pretrained(config.tokenizer_name)
    shape = AutoConfig.from_pretrained(Path(config.model_config_file or "").parent)
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    card = render_model_card(config, tmp_path / "none.jsonl", ["pytest"])
    (snippet,) = re.findall("```python\n(.*?)```", card, flags=re.DOTALL)

    monkeypatch.chdir(tmp_path)
    names_after: dict[str, Any] = {}
    exec(snippet, names_after)

    data = config.data_config
    shown = render_example(data.metadata_config)
    text = replace(
        shown, text="Ada Lovelace", body="Ada Lovelace", spans=shown.spans[:0], suffix=""
    )
    (document,) = DocumentEncoder(tokenizer, data).encode([text])
    expected = [*document.prefix_ids.tolist(), *document.ids.tolist()[:-1]]  # without the end
    assert names_after["ids"] == expected
    assert "Ada Lovelace" in capsys.readouterr().out
    assert "bsmeta" not in snippet


@pytest.mark.parametrize(
    "overrides",
    [
        ["data_config.metadata_config.metadata_boundary_token='<|text|>'"],
        ["+recipes=urls_help"],
        ["+recipes=beyond_urls_meta_tokens"],
        ["+recipes=beyond_urls_append"],
        ["data_config.metadata_config.metadata_list=[html,title,url]", "+recipes=urls_help"],
    ],
)
def test_the_chat_template_snippet_renders_a_document_as_in_training(
    overrides: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = compose_command_line(CausalLMConfig, "demo", [*overrides, f"out_dir={tmp_path}"])
    task = CausalLanguageModel(config)
    model = task.build_model()
    task.export(model, model.state_dict(), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    (snippet,) = re.findall("```python\n(.*?)```", card, flags=re.DOTALL)
    assert "apply_chat_template" in snippet
    assert "bsmeta" not in snippet

    monkeypatch.chdir(tmp_path)
    names_after: dict[str, Any] = {}
    exec(snippet, names_after)

    metadata = config.data_config.metadata_config
    shown = render_example(replace(metadata, add_local_metadata_special_tokens_in_prefix=False))
    text = replace(
        shown, text="Ada Lovelace", body="Ada Lovelace", spans=shown.spans[:0], suffix=""
    )
    (document,) = DocumentEncoder(task.tokenizer, config.data_config).encode([text])
    expected = [*document.prefix_ids.tolist(), *document.ids.tolist()[:-1]]  # without the end
    assert names_after["ids"].tolist() == [expected]
    assert "Ada Lovelace" in capsys.readouterr().out


def test_the_card_reports_the_comparison_with_training(config: CausalLMConfig) -> None:
    comparison = Comparison(
        documents=20, num_cut=3, num_unlike_training=2, first_problem="url: no UTF-8"
    )
    card = render_model_card(config, Path("none.jsonl"), ["pytest"], ChatTemplate("…", comparison))
    assert (
        "so it was for all 20 of the first documents of the run and of the examples that could be "
        "compared. 3 more were not compared: in training, metadata of more than 128 tokens was "
        "cut, which the template does not do. The template cannot render 2 of them (url: no UTF-8)."
    ) in card
    different = Comparison(documents=20, num_other_ids=7)
    card = render_model_card(config, Path("none.jsonl"), ["pytest"], ChatTemplate("…", different))
    assert "so it was for 7 of 20 of the first documents of the run" in card
    cut = Comparison(num_cut=5)
    card = render_model_card(config, Path("none.jsonl"), ["pytest"], ChatTemplate("…", cut))
    assert "as one string has the token ids of training could not be tried on the first" in card
    assert "# tokenized separately, as in training" in card
    assert "As one string" not in render_model_card(config, Path("none.jsonl"), ["pytest"])


@pytest.mark.slow
def test_the_evaluation_command_of_the_card_reproduces_its_metrics(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = "max_train_steps=2 num_warmup_steps=0 eval_steps=2 eval_documents=3 trackers=[]"
    launch(TRAIN, "--config-name", "demo", *settings.split(), f"out_dir={run}")
    card = (run / "model" / "README.md").read_text()
    (named,) = re.findall(r"`(windows=all_pieces max_documents=3)`", card)
    launch(EVALUATE, f"checkpoint={run}", *named.split(), f"out_dir={tmp_path / 'report'}")
    (model,) = json.loads((tmp_path / "report" / "evaluation.json").read_text())["models"]
    whole = next(row for row in model["comparisons"] if row["name"] == "all")
    for name in ("bits_per_byte_without", "bits_per_byte_with", "difference"):
        assert f"| {METRICS[name].description} | {whole[name]:.4f} |" in card
