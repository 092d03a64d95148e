"""The entry point with mode=text: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bsmeta.models.manifest import write_model_manifest
from bsmeta.tasks.causal_lm.generation.requests import Request
from bsmeta.tasks.causal_lm.generation.writer import Result, Writer

Generate = Callable[..., int]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_text_under_metadata_is_printed(
    generate: Generate, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["metadata={title: Sets}", 'prompt="A set"', "max_new_tokens=8"]
    assert generate(*arguments, "num_samples=2") == 0
    two = capsys.readouterr().out
    assert two.count("Title: Sets |||\nA set") == 2
    assert "1 of 2, seed 42" in two
    assert "2 of 2, seed 43" in two
    assert generate(*arguments, "seed=43") == 0
    assert capsys.readouterr().out.strip() in two  # a sample again by its seed
    assert generate("metadata.title=Sets", 'prompt="A set"', "max_new_tokens=8", "seed=43") == 0
    assert capsys.readouterr().out.strip() in two


def test_texts_under_several_metadata_are_printed_side_by_side(
    generate: Generate, capsys: pytest.CaptureFixture[str]
) -> None:
    code = generate(
        "compare=[{}, {title: Sets}, {title: Maps, url: 'https://a.org/'}]",
        "prompt=The",
        "max_new_tokens=5",
        "guidance=2",
    )
    assert code == 0
    printed = capsys.readouterr().out
    head = printed.splitlines()[1]
    assert head.split("  ")[0].strip() == "(no metadata)"
    assert "Title: Sets |||" in head
    assert "Title: Maps | url:" in head
    assert all(len(line) <= 130 for line in printed.splitlines())


def test_a_file_of_requests_becomes_a_file_of_results(
    generate: Generate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = [
        {"id": "a", "metadata": {"title": "Sets"}, "prompt": "A set", "num_samples": 2},
        {"prompt": "A much longer prompt than the first one", "guidance": 0, "temperature": 0},
        {"metadata": {"url": "https://a.org/"}, "null_metadata": {"title": "B"}, "guidance": 1.5},
    ]
    source, target = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    source.write_text("\n".join(map(json.dumps, requests)) + "\n\n")
    keys = (f"input={source}", f"output={target}", "max_new_tokens=6", "batch_size=3")
    assert generate(*keys) == 0
    assert "3 results written to" in capsys.readouterr().err
    results = read_lines(target)
    assert [result.get("id") for result in results] == ["a", None, None]
    assert [result["prefix"] for result in results] == [
        "Title: Sets |||",
        "",
        "url: https://a.org/ |||",
    ]
    assert [[s["seed"] for s in result["samples"]] for result in results] == [[42, 43], [42], [42]]
    assert results[1]["temperature"] == 0
    assert results[1]["max_new_tokens"] == 6
    for sample in (s for result in results for s in result["samples"]):
        assert sample["finished"] in ("eos", "max_new_tokens")
        assert sample["tokens"] <= 6
        assert isinstance(sample["text"], str)
    alone = tmp_path / "alone.jsonl"  # without the others, and from the command line
    assert generate("metadata={title: Sets}", "prompt='A set'", f"output={alone}", keys[2]) == 0
    assert read_lines(alone)[0]["samples"] == results[0]["samples"][:1]


def test_an_existing_file_is_not_replaced(
    generate: Generate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"prompt": "A set"}\n')
    assert generate(f"input={requests}", f"output={requests}") == 2
    message = f"output={requests} exists; delete it, or name another file"
    assert message in capsys.readouterr().err
    assert requests.read_text() == '{"prompt": "A set"}\n'


def test_results_appear_under_their_name_when_they_are_complete(
    generate: Generate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that reads a file of results can rely on having all of them."""
    write = Writer.write

    def write_one(writer: Writer, requests: Sequence[Request]) -> Iterator[Result]:
        yield next(write(writer, requests))
        raise KeyboardInterrupt

    source, target = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    source.write_text('{"prompt": "A set"}\n{"prompt": "A file"}\n')
    keys = (f"input={source}", f"output={target}", "max_new_tokens=2", "batch_size=1")
    with monkeypatch.context() as patches:
        patches.setattr(Writer, "write", write_one)
        assert generate(*keys) == 1
    assert not target.exists()
    part = tmp_path / "results.jsonl.part"
    assert [result["prompt"] for result in read_lines(part)] == ["A set"]

    assert generate(*keys) == 0
    assert [result["prompt"] for result in read_lines(target)] == ["A set", "A file"]
    assert not part.exists()


def test_a_refused_request_leaves_no_file(generate: Generate, tmp_path: Path) -> None:
    requests, target = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    requests.write_text(json.dumps({"prompt": "word " * 70}))
    assert generate(f"input={requests}", f"output={target}") == 2
    assert not target.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["checkpoint=nowhere"], "checkpoint=nowhere: there is no such folder"),
        (
            ["mode=talk"],
            'mode in Hydra configuration: found "talk", expected one of text',
        ),
        (["metadata={titel: A}"], "metadata.titel: the model was not trained with this type"),
        (["null_metadata={titel: A}"], "did you mean title?"),
        (["metadata={html: '<b>'}"], "html is a local type"),
        (["metadata={timestamp: soon}"], "not_a_timestamp"),
        (["temperature=-1"], "temperature in Hydra configuration: found -1.0, expected 0 or more"),
        (["top_p=0"], "top_p in Hydra configuration: found 0.0, expected a number above 0"),
        (["guidance=nan"], "guidance in Hydra configuration: found nan, expected a finite number"),
        (["compare=[{title: A}]", "interactive=true"], "compare and interactive: expected at most"),
        (["compare=[{title: A}]", "metadata={title: B}"], "metadata: compare has the metadata of"),
        (
            ["type=title", "out_dir=texts"],
            "type, out_dir: no effect with mode=text; expected some of mode, checkpoint",
        ),
        (["input=none.jsonl"], "input=none.jsonl cannot be read"),
        (["output=no/such/folder.jsonl", "max_new_tokens=1"], "cannot be written"),
        (["max_new_token=1"], "did you mean max_new_tokens?"),
        (["prompt=" + "'" + "word " * 70 + "'"], "prompt: with its metadata it has"),
    ],
)
def test_wrong_requests_are_refused(
    arguments: list[str], message: str, generate: Generate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(*arguments) == 2
    assert message in capsys.readouterr().err


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = folder / "model" / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("mode", ["text", "attribute"])
def test_a_model_whose_logits_are_not_finite_is_refused(
    mode: str, run_folder: Path, generate: Generate, capsys: pytest.CaptureFixture[str]
) -> None:
    change_weights(run_folder, lambda weights: weights["model.norm.weight"].fill_(3e38))
    assert generate(f"mode={mode}") == 2
    message = capsys.readouterr().err
    assert "checkpoint: the model's " in message
    assert "probabilities" in message
    assert "precision=float32" in message


def test_a_missing_weight_is_refused_by_name(
    run_folder: Path, generate: Generate, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    change_weights(run_folder, lambda weights: weights.pop(name))
    assert generate() == 2
    assert f"missing (they would be random): {name}" in capsys.readouterr().err


def test_a_truncated_or_changed_file_is_refused(
    run_folder: Path, generate: Generate, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_folder / "model" / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:1000])
    assert generate() == 2
    assert f"{run_folder / 'model'} cannot be loaded" in capsys.readouterr().err
    file.write_bytes(content)
    write_model_manifest(run_folder / "model")
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert generate() == 2
    assert f"{file}: {len(content)} bytes, xxh3" in capsys.readouterr().err


def test_a_folder_without_a_tokenizer_is_refused(
    run_folder: Path, generate: Generate, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (run_folder / "model").glob("tokenizer*"):
        file.unlink()
    assert generate("prompt=A") == 2
    assert f"the tokenizer of {run_folder / 'model'} cannot be loaded" in capsys.readouterr().err
