"""Models that are loaded give what the commands give on the same inputs."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

import bsmeta
from bsmeta import generate
from bsmeta.api.models import SCORE_BATCH_SIZE
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.programs.generating import GenerateConfig
from tests.api.conftest import read_lines, run
from tests.tasks.classification.conftest import encoder  # noqa: F401 (a fixture)
from tests.tasks.classification.helpers import write_leanings
from tests.tasks.spelling.helpers import arguments

DOCUMENTS = 3
TITLED = {"text": "A set is a collection.", "metadata": {"title": "Sets", "url": "https://a.org/b"}}


@pytest.fixture(scope="module")
def model(demo_run: Path) -> bsmeta.LanguageModel:
    return bsmeta.load(demo_run, "causal_lm")


@pytest.mark.long
def test_scores_equal_those_of_evaluate(
    demo_run: Path, model: bsmeta.LanguageModel, tmp_path: Path
) -> None:
    only = ("comparisons=[all]", "controls=[]", f"max_documents={DOCUMENTS}")
    run("evaluate", f"checkpoint={demo_run}", f"out_dir={tmp_path}", *only)
    lines = read_lines(tmp_path / "documents.jsonl")
    config = bsmeta.open_run(demo_run).config
    assert isinstance(config, CausalLMConfig)
    with gzip.open(str(config.data_config.validation_file), "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in itertools.islice(file, DOCUMENTS)]
    expected = [line for line in lines if line["comparison"] == "all"]
    scores = model.score(records)
    assert [score.nats for score in scores] == [line["nats_with"] for line in expected]
    assert [score.nats_without for score in scores] == [line["nats_without"] for line in expected]
    assert [score.bytes for score in scores] == [line["bytes"] for line in expected]
    assert scores[0].types == ("title", "url", "datasource", "website_description", "timestamp")


def test_a_score_adds_up_over_the_text(model: bsmeta.LanguageModel) -> None:
    with_metadata, alone, single = model.score([TITLED, TITLED["text"], "x"])
    assert with_metadata.prefix == "Title: Sets | url: https://a.org/b |||"
    assert with_metadata.nats != with_metadata.nats_without
    assert (alone.prefix, alone.types, alone.nats) == ("", (), alone.nats_without)
    assert alone.bits_per_byte == alone.nats / math.log(2) / alone.bytes
    assert (single.bytes, single.nats) == (0, 0)
    assert math.isnan(single.bits_per_byte)
    assert model.score([]) == []

    # the same by hand, from the logits of the text alone
    tokenizer = model.tokenizer
    ids = tokenizer(TITLED["text"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logs = model.module(input_ids=ids).logits[0, :-1].log_softmax(1)
    nats = -logs.gather(1, ids[0, 1:, None]).sum().item()
    assert alone.nats == pytest.approx(nats, rel=1e-5)
    assert alone.bytes == len(TITLED["text"]) - len(tokenizer.decode(ids[0, :1]))


def test_texts_equal_those_of_generate(
    demo_run: Path, model: bsmeta.LanguageModel, tmp_path: Path
) -> None:
    requests = [
        {"prompt": "A set is", "metadata": {"title": "Sets"}},
        {"prompt": "", "metadata": {"url": "https://a.org/b"}},
        {"prompt": "The"},
    ]
    (tmp_path / "requests.jsonl").write_text(
        "".join(json.dumps(request) + "\n" for request in requests)
    )
    generate.main(
        GenerateConfig(
            checkpoint=str(demo_run), input=str(tmp_path / "requests.jsonl"),
            output=str(tmp_path / "texts.jsonl"), max_new_tokens=6, guidance=1.5, num_samples=2,
        )
    )  # fmt: skip
    documents = [
        {"text": "A set is", "metadata": {"title": "Sets"}},
        {"metadata": {"url": "https://a.org/b"}},
        "The",
    ]
    results = model.generate(documents, max_new_tokens=6, guidance=1.5, num_samples=2)
    written = read_lines(tmp_path / "texts.jsonl")
    assert [result.prefix for result in results] == [line["prefix"] for line in written]
    assert [[sample.text for sample in result.samples] for result in results] == [
        [sample["text"] for sample in line["samples"]] for line in written
    ]
    record = {"text": "A set is", "metadata_title": [{"key": "title", "value": "Sets"}]}
    (again,) = model.generate([record], max_new_tokens=6, guidance=1.5, num_samples=2)
    assert again.samples == results[0].samples


def test_any_iterable_is_processed_lazily(model: bsmeta.LanguageModel) -> None:
    documents = [{"text": f"A set of {number}", "metadata": {"title": "B"}} for number in range(70)]
    table = Dataset.from_list([{"text": document["text"]} for document in documents])
    texts = [document["text"] for document in documents]
    assert model.score(table) == model.score(texts) == list(model.score_each(iter(texts)))

    taken = []

    def yield_documents() -> Iterator[Any]:
        for document in [*documents, 5]:
            taken.append(document)
            yield document

    scores = model.score_each(yield_documents())
    assert taken == []
    first = next(scores)
    assert len(taken) == SCORE_BATCH_SIZE
    assert first.prefix == "Title: B |||"
    with pytest.raises(bsmeta.UserError, match=r"documents\[70\]: a int; expected a string"):
        list(scores)

    taken.clear()
    results = model.generate_each(yield_documents(), max_new_tokens=2, batch_size=3)
    assert next(results) == model.generate(documents[:1], max_new_tokens=2, batch_size=3)[0]
    assert len(taken) == 3


def test_the_chunks_of_a_streamed_text_join_to_the_generated_text(
    model: bsmeta.LanguageModel,
) -> None:
    """Also with characters of several tokens, which this model often leaves incomplete."""
    for seed in range(5):
        settings: dict[str, Any] = {"max_new_tokens": 30, "seed": seed, "temperature": 3.0}
        (result,) = model.generate([TITLED], **settings)
        pieces = list(model.generate_pieces(TITLED, **settings))
        assert "".join(pieces) == result.samples[0].text
        assert len(pieces) > 10
        assert all(pieces)


def test_the_tokenizer_encodes_as_in_training(model: bsmeta.LanguageModel) -> None:
    ids = model.tokenizer("A set is")["input_ids"]
    assert model.tokenizer.decode(ids) == "A set is"
    assert max(ids) < model.module.get_input_embeddings().num_embeddings


def test_a_checkpoint_and_a_model_folder_are_loaded(
    demo_run: Path, model: bsmeta.LanguageModel
) -> None:
    expected = model.score([TITLED])
    checkpoint = bsmeta.open_run(demo_run).checkpoints()[-1].folder
    for source in (checkpoint, demo_run / "model", bsmeta.open_run(demo_run)):
        assert bsmeta.load(source, "causal_lm").score([TITLED]) == expected
    assert model.render(TITLED).text == (
        "Title: Sets | url: https://a.org/b ||| A set is a collection."
    )


def test_a_model_below_a_tilde_is_loaded(demo_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(demo_run.parent))
    assert isinstance(bsmeta.load(f"~/{demo_run.name}"), bsmeta.LanguageModel)


def test_a_classifier_gives_the_predictions_of_predict(
    encoder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    run(
        "train", "--config-name", "classification", f"model_name={encoder}",
        f"data_config.csv={write_leanings(tmp_path)}", f"out_dir={tmp_path}/run",
        f"results_dir={tmp_path}/results", "data_config.max_length=16", "data_config.num_workers=0",
        "num_train_epochs=1", "trackers=[]",
    )  # fmt: skip
    texts = ["stop signs " * 20, "my opponent", ""]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts[:2]))
    out = tmp_path / "out.jsonl"
    run("predict", f"checkpoint={tmp_path}/run", f"input={tmp_path}/new.jsonl", f"output={out}")
    model = bsmeta.load(tmp_path / "run")
    assert isinstance(model, bsmeta.Predictor)
    predictions = model.predict(texts)
    assert [{"text": t, **line} for t, line in zip(texts[:2], predictions[:2], strict=True)] == (
        read_lines(out)
    )
    assert (predictions[0]["chunks"], predictions[2]["prediction"]) == (3, None)
    assert model.predict([{"text": texts[0], "id": 7}]) == [predictions[0]]
    with pytest.raises(
        bsmeta.UserError, match=r"texts\[1\]: 'text' is not a text \(it has 'txt'\)"
    ):
        model.predict(["a", {"txt": "b"}])
    with pytest.raises(bsmeta.UserError, match="score: .* of task=classification, which has predi"):
        model.score(["a"])
    with pytest.raises(bsmeta.UserError, match=r"trained with task=classification; .* task=sec"):
        bsmeta.load(tmp_path / "run", "sec")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sed_words", "sec"])
def test_a_spelling_model_gives_the_changes_of_predict(tmp_path: Path, task: str) -> None:
    run("train", *arguments(task, tmp_path, tmp_path / "run", "num_train_epochs=1"))
    texts = ["the villiage letters", "becuase every careful neighbour believes"]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    out = tmp_path / "out.jsonl"
    run("predict", f"checkpoint={tmp_path}/run", f"input={tmp_path}/new.jsonl", f"output={out}")
    model = bsmeta.load(tmp_path / "run")
    expected = [{key: value for key, value in line.items() if key != "text"}
                for line in read_lines(out)]  # fmt: skip
    assert model.predict(texts) == expected
    assert ("corrected" in expected[0]) == (task == "sec")


def test_wrong_calls_are_refused_with_a_fix(
    demo_run: Path, model: bsmeta.LanguageModel, tmp_path: Path
) -> None:
    def refused(message: str) -> object:
        return pytest.raises(bsmeta.UserError, match=message)

    with refused("there is no such folder"):
        bsmeta.load(tmp_path / "missing")
    with refused("no model in it"):
        bsmeta.load(tmp_path)
    with refused("checkpoint=None: expected the path"):
        bsmeta.load(None)  # type: ignore[call-overload]
    with refused("trained with task=causal_lm; expected task=sec"):
        bsmeta.load(demo_run, "sec")
    with refused("task=causal: expected one of causal_lm, classification, "):
        bsmeta.load(demo_run, "causal")  # type: ignore[call-overload]
    with refused(r"overrides=\['seed=1'\]: expected keys with their values"):
        bsmeta.load(demo_run, overrides=["seed=1"])  # type: ignore[call-overload]
    with refused("device='gpu': expected cpu, cuda or"):
        bsmeta.load(demo_run, device="gpu")
    with refused(r"predict: .* is a model of task=causal_lm, which has score, generate and ren"):
        model.predict(["a"])
    with refused(r"documents: expected a list or .*, found str; write \[…\] around it"):
        model.score("a text")
    with refused(r"documents\[1\]: its text is empty(.|\n)*documents\[2\]: missing_text"):
        model.score(["a text", "", {"title": "b"}])
    with refused("documents: expected a list or another iterable, found int"):
        model.score_each(5)  # type: ignore[arg-type]
    with refused("num_samples=2: expected 1"):
        model.generate_pieces("a", num_samples=2)
    with refused(r"overrides: data_config.num_workers is set twice"):
        keys = {"data_config": {"num_workers": 0}, "data_config.num_workers": 1}
        bsmeta.load(demo_run, overrides=keys)
    with refused("windows=all: expected one of first_piece, all_pieces, sliding"):
        model.score(["a text"], windows="all")
    with refused("temperature"):
        model.generate(["a"], temperature=-1)
    with refused("batch_size=0: expected 1 or more"):
        model.generate(["a"], batch_size=0)
    with refused("batch_size='a': expected a whole number"):
        model.generate(["a"], batch_size="a")  # type: ignore[typeddict-item]
    with refused("unknown field `tokens`"):
        model.generate(["a"], tokens=3)  # type: ignore[call-arg]
    with refused("metadata.titel: .* did you mean title"):
        model.generate([{"text": "a", "metadata": {"titel": "b"}}])
