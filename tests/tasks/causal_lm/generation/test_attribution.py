"""Attribution: a model that knows the answer must tell it, and the metrics must say so."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import UnsafeNameError
from bsmeta.data.text.encoding import DocumentEncoder
from bsmeta.metadata.document import Document
from bsmeta.metadata.rendering import Rendered, Renderer
from bsmeta.tasks.causal_lm.attribute_mode import (
    Attribution,
    Candidates,
    Labels,
    Likelihoods,
    compute_metrics,
    compute_posterior,
    find_candidates,
    list_candidates,
    report_path,
)
from bsmeta.tasks.causal_lm.documents import HeldOutDocuments
from tests.core.hostile_names import HOSTILE_NAMES
from tests.tasks.causal_lm.evaluation.conftest import document, write_shard
from tests.tasks.causal_lm.generation.plain import next_scores

CPU = torch.device("cpu")
HOSTS = ("a.org", "a.much.longer.name.org", "b.org")


def likelihoods(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, config: DataConfig, **settings: Any
) -> Likelihoods:
    labels = Labels("url", config.metadata_config)
    records = [labels.record(host) for host in HOSTS]
    settings = {"all_pieces": True, "rows": 2, "device": CPU, **settings}
    return Likelihoods(model, tokenizer, config, records, **settings)


@pytest.mark.parametrize("all_pieces", [True, False])
def test_scores_are_those_of_the_plain_way_over_the_same_tokens(
    all_pieces: bool,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    data_config: DataConfig,
) -> None:
    made = likelihoods(model, tokenizer, data_config, all_pieces=all_pieces)
    assert made.prefixes[0] == "url: https://a.org/ |||"
    texts = ["A set is été. " * 12, "B", "Two tokens"]
    scores, tokens = made.score(texts)
    encoder = DocumentEncoder(tokenizer, data_config)
    renderer, labels = Renderer(data_config.metadata_config), Labels("url", MetadataConfig())
    heads = [
        renderer.render(Document("", None, {"url": [labels.record(host)]}), ("url",))
        for host in HOSTS
    ]
    prefixes = [one.prefix_ids for one in encoder.encode(heads)]
    room = 64 - max(map(len, prefixes))
    for row, text in enumerate(texts):
        (encoded,) = encoder.encode([Rendered(text, lead=" ", body=text)])
        ids = encoded.ids[:-1]
        chunks = [ids[start : start + room] for start in range(0, len(ids), room)]
        chunks = chunks if all_pieces else chunks[:1]
        assert tokens[row] == sum(len(chunk) - 1 for chunk in chunks)
        for column, prefix in enumerate(prefixes):
            expected = sum(
                float(next_scores(model, [*prefix, *chunk[:place]], 4104)[chunk[place]])
                for chunk in chunks
                for place in range(1, len(chunk))
            )
            assert scores[row, column] == pytest.approx(expected, abs=1e-3)


class Knower(nn.Module):
    """Writes the host of its prefix again and again, with some doubt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self.head = nn.Linear(len(tokenizer), len(tokenizer), bias=False)
        nn.init.eye_(self.head.weight)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        hidden = torch.zeros(*input_ids.shape, len(self._tokenizer))
        for row, ids in enumerate(input_ids.tolist()):
            prefix = self._tokenizer.decode(ids).partition(" |||")[0]
            host = prefix.rpartition("https://")[2].rstrip("/")
            liked = self._tokenizer(f" {host}").input_ids
            hidden[row, :, liked] = 3.0
        return SimpleNamespace(logits=self.head(hidden))


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


def test_a_model_that_knows_is_always_right(
    sites: DataConfig, tokenizer: PreTrainedTokenizerBase
) -> None:
    documents = HeldOutDocuments(sites, max_documents=None, deduplicate=True)
    labels = Labels("url", sites.metadata_config)
    candidates = find_candidates(labels, [], documents)
    assert candidates.labels == ["one.org", "two.org", "three.org"]
    assert candidates.counts.tolist() == [6, 4, 2]
    assert candidates.truths.tolist() == [0] * 6 + [1] * 4 + [2] * 2 + [-1]
    records = [labels.record(one) for one in candidates.labels]
    made = Likelihoods(
        Knower(tokenizer), tokenizer, sites, records, all_pieces=False, rows=4, device=CPU
    )
    own = list(range(12))
    scores, tokens = made.score([documents[index].text for index in own])
    priors = np.stack([candidates.log_prior("uniform", index) for index in own])
    names = [documents.name(index) for index in own]
    found = Attribution(candidates, compute_posterior(scores, priors), tokens, names, own)
    metrics = compute_metrics(found, resamples=200, seed=1)
    assert metrics["top_1"] == {"share": 1.0, "low": 1.0, "high": 1.0}
    assert metrics["majority_class"]["share"] == 0.5
    assert metrics["majority_label"] == "one.org"
    assert metrics["mean_bits_of_the_truth"] < 0.2
    assert [(row["correct"], row["guessed"]) for row in list_candidates(found)] == [
        (6, 6),
        (4, 4),
        (2, 2),
    ]


def test_bayes_by_hand() -> None:
    likelihood = np.log([[0.2, 0.1, 0.1]])
    uniform = np.log([[1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(np.exp(compute_posterior(likelihood, uniform)), [[0.5, 0.25, 0.25]])
    prior = np.log([[0.1, 0.1, 0.8]])
    np.testing.assert_allclose(
        np.exp(compute_posterior(likelihood, prior)), [[0.02 / 0.11, 0.01 / 0.11, 0.08 / 0.11]]
    )


def test_the_empirical_prior_leaves_the_document_out() -> None:
    candidates = Candidates(["a", "b"], np.array([3, 1]), np.array([0, 0, 0, 1, -1]))
    np.testing.assert_allclose(np.exp(candidates.log_prior("empirical", None)), [4 / 6, 2 / 6])
    np.testing.assert_allclose(np.exp(candidates.log_prior("empirical", 0)), [3 / 5, 2 / 5])
    np.testing.assert_allclose(np.exp(candidates.log_prior("empirical", 3)), [4 / 5, 1 / 5])
    np.testing.assert_allclose(np.exp(candidates.log_prior("empirical", 4)), [4 / 6, 2 / 6])
    np.testing.assert_allclose(np.exp(candidates.log_prior("uniform", 0)), [0.5, 0.5])


def test_figures_by_hand() -> None:
    candidates = Candidates(list("abcdefg"), np.array([2, 1, 0, 0, 0, 0, 0]), np.array([0, 0, 1]))
    rows = np.log(
        [
            [0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],  # first
            [0.2, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1],  # second
            [0.2, 0.05, 0.15, 0.15, 0.15, 0.15, 0.15],  # last
        ]
    )
    found = Attribution(candidates, rows, np.array([5, 6, 7]), ["x:0", "x:1", "x:2"], [0, 1, 2])
    assert found.ranks.tolist() == [1, 2, 7]
    metrics = compute_metrics(found, resamples=100, seed=0)
    assert metrics["top_1"]["share"] == pytest.approx(1 / 3)
    assert metrics["top_5"]["share"] == pytest.approx(2 / 3)
    assert metrics["majority_class"]["share"] == pytest.approx(2 / 3)
    assert metrics["mean_reciprocal_rank"] == pytest.approx((1 + 1 / 2 + 1 / 7) / 3)
    assert metrics["mean_bits_of_the_truth"] == pytest.approx(
        -(np.log2(0.4) + np.log2(0.2) + np.log2(0.05)) / 3
    )
    assert list_candidates(found)[1] == {
        "label": "b",
        "documents": 1,
        "correct": 0,
        "guessed": 1,
        "most_often_taken_for": "a",
    }


@pytest.mark.parametrize(
    ("key", "settings", "given", "label", "value"),
    [
        ("url", {}, "https://Docs.Python.org/3/", "docs.python.org", "https://docs.python.org/"),
        ("url", {}, "python.org", "python.org", "https://python.org/"),
        (
            "url",
            {"url_granularity": "registered_domain"},
            "https://docs.python.org/3/",
            "python.org",
            "https://python.org/",
        ),
        ("timestamp", {}, "2018-12-10", "2018", "2018"),
        ("title", {}, "Sets", "Sets", "Sets"),
    ],
)
def test_candidates_as_labels_and_as_records(
    key: str, settings: dict[str, str], given: str, label: str, value: str
) -> None:
    labels = Labels(key, MetadataConfig(metadata_list=[key], **settings))
    assert labels.of_candidate(given) == label
    assert labels.record(label).value == value


def test_candidates_that_are_none_are_named(sites: DataConfig) -> None:
    documents = HeldOutDocuments(sites, max_documents=1, deduplicate=True)
    with pytest.raises(ConfigurationError, match="expected at least two values of url"):
        find_candidates(Labels("url", sites.metadata_config), [], documents)
    with pytest.raises(ConfigurationError, match="soon is no timestamp"):
        Labels("timestamp", MetadataConfig(metadata_list=["timestamp"])).of_candidate("soon")


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_report_is_written_to_its_folder(tmp_path: Path, name: str) -> None:
    with contextlib.suppress(UnsafeNameError):
        path = report_path(tmp_path, name)
        assert path.name == f"attribution-{name}.json".rpartition("/")[2]
        assert path.resolve().is_relative_to(tmp_path)


@pytest.mark.parametrize("name", ["/../x", "../../x", "a\nb"])
def test_a_report_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafeNameError, match="^type="):
        report_path(tmp_path, name)


def test_the_entry_point_writes_and_prints(
    generate: Callable[..., int], run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate("mode=attribute", "bootstrap_resamples=50", "prior=empirical") == 0
    report = json.loads((run_folder / "attribution-url.json").read_text())
    assert [row["label"] for row in report["candidates"]] == ["site0.org", "site1.org", "site2.org"]
    assert report["metrics"]["documents"] == 9
    assert report["example_prefix"] == "url: https://site0.org/ |||"
    assert [row["document"] for row in report["documents"]][:2] == [
        "held-out.jsonl.gz:0",
        "held-out.jsonl.gz:1",
    ]
    printed = capsys.readouterr().out
    assert "url of 9 documents, inferred from their text (3 candidates, empirical prior)" in printed
    assert "always the majority" in printed
    out = run_folder / "of[url]"
    assert generate("mode=attribute", "bootstrap_resamples=50", f"out_dir='{out}'") == 0
    assert f"written to {out}/attribution-url.json\n" in capsys.readouterr().out
    code = generate("mode=attribute", "candidates=[a.org,b.org]", "prompt='Some text of b'")
    assert code == 0
    assert "p(value | text)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["type=html"], "type=html: expected a type with a value before the text"),
        (["type=site"], "type=site: the model was not trained with this type"),
        (["prior=flat"], 'found "flat", expected one of uniform, empirical'),
        (["windows=last"], 'found "last", expected one of first_piece, all_pieces'),
        (["candidates=[a.org]"], "expected at least two values of url"),
        (["candidates=[a.org,b.org]"], "no held-out document has one of the candidates"),
        (["candidates=[a.org,b.org]", "prompt=A"], "prompt='A': expected at least two tokens"),
        (["validation_file=none.gz"], "validation_file=none.gz does not exist"),
        (
            ["input=texts.jsonl", "compare=[{}]", "guidance=2"],
            "guidance, compare, input: no effect with mode=attribute; expected some of mode",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    arguments: list[str],
    message: str,
    generate: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert generate("mode=attribute", *arguments) == 2
    assert message in capsys.readouterr().err
