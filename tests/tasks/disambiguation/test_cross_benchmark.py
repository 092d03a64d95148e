"""The benchmark of the cross-encoder, on the small world."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import AutoModel

from tests.conftest import REPOSITORY

BENCHMARK = REPOSITORY / "experiments/benchmarks/disambiguation_cross.py"
Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    return importlib.import_module(BENCHMARK.stem)


def make_example(
    benchmark: ModuleType, candidates: list[list[int]], scores: list[float], gold: int
) -> object:
    return benchmark.Example(
        window=[2, 20, 64, 21, 65, 22, 3],
        mention=(2, 5),
        candidates=candidates,
        scores=np.array(scores),
        prior=np.zeros(len(candidates)),
        is_gold=np.arange(len(candidates)) == gold,
        document=0,
    )


def test_the_score_of_a_candidate_does_not_depend_on_the_others(
    benchmark: ModuleType, encoder: Path
) -> None:
    model = benchmark.CrossEncoder(AutoModel.from_pretrained(encoder), 32).eval()
    first = [30, 31, 3]
    second = [32, 33, 34, 35, 3]
    both = make_example(benchmark, [first, second], [0.0, 0.0], gold=0)
    alone = [make_example(benchmark, [candidate], [0.0], gold=0) for candidate in (first, second)]
    with torch.no_grad():
        for layout in ("pairs", "shared"):
            (scores,) = model(**benchmark.build_inputs([both], layout))
            single_scores = model(**benchmark.build_inputs(alone, layout))[:, 0]
            torch.testing.assert_close(scores, single_scores)


def test_mentions_are_reranked_below_the_margin(benchmark: ModuleType) -> None:
    candidates = [[30, 3], [31, 3]]
    certain = make_example(benchmark, candidates, [3.0, 1.0], gold=0)
    uncertain = make_example(benchmark, candidates, [3.0, 2.5], gold=1)
    cross_scores = [np.array([0.0, 3.0])] * 2

    examples = [certain, uncertain]
    assert benchmark.rerank(examples, cross_scores, 1.0, 1.0).tolist() == [True, True]
    assert benchmark.rerank(examples, cross_scores, 1.0, 3.0).tolist() == [False, True]
    assert benchmark.rerank(examples, cross_scores, 0.1, 1.0).tolist() == [True, False]
    is_used = np.array([True, True])
    assert benchmark.choose_weight(examples, cross_scores, is_used) == (0.2, 1.0)


@pytest.mark.slow
def test_the_benchmark_trains_and_scores(
    launch: Launch, world: Path, encoder: Path, tmp_path: Path
) -> None:
    launch(
        REPOSITORY / "bsmeta/train.py",
        "--config-name=disambiguation",
        f"model_name={encoder}",
        f"data_config.train_file={world}/train.jsonl",
        f"data_config.entity_table={world}/entities",
        "data_config.max_entity_length=16",
        "data_config.window_length=16",
        "keep_best_by=null",
        "export_best=false",
        "evals_per_epoch=null",
        "num_train_epochs=1",
        f"out_dir={tmp_path}/run",
    )
    settings = ("--mentions=32", "--save-every=16", "--train-layers=1", "--batch-size=8")
    done = launch(BENCHMARK, "train", str(tmp_path / "run"), str(tmp_path / "cross"), *settings)
    trained = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["mentions"] for line in trained] == [16, 32]

    held_out = str(world / "dev.jsonl")
    done = launch(BENCHMARK, "score", str(tmp_path / "run"), str(tmp_path / "cross"), held_out)
    facts, *scored = [json.loads(line) for line in done.stdout.splitlines()]
    assert facts["mentions"] == facts["ambiguous"] == 42
    assert [line["trained"] for line in scored] == [0, 16, 32]
