"""The paired evaluation against the obvious one, on one rank and on several."""

from __future__ import annotations

import copy
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

from bsmeta.config.data import DataConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.errors import DataError
from bsmeta.tasks.causal_lm.evaluation.arms import (
    TEXT_ALONE,
    list_comparisons,
    plan_comparisons,
)
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.evaluation.readings import BYTES, NATS_WITH, NATS_WITHOUT
from bsmeta.tasks.causal_lm.evaluation.results import ComparisonSums, compute_paired_metrics
from bsmeta.tasks.causal_lm.evaluation.subset import SubsetEvaluation
from bsmeta.training.ranks.processes import ALONE, Processes
from tests.tasks.causal_lm.evaluation.plain import bits_of_document
from tests.waiting import STUCK_S

CPU = torch.device("cpu")
TYPES = ("html", "title", "url")


def held_out(config: DataConfig) -> HeldOutDocuments:
    return HeldOutDocuments(config, max_documents=None, deduplicate=True, training_overlap=None)


def all_and_each(
    config: DataConfig, tokenizer: PreTrainedTokenizerBase, **settings: Any
) -> PairedEvaluation:
    comparisons = [TEXT_ALONE, *plan_comparisons(["all", "each"], TYPES)]
    return PairedEvaluation(config, tokenizer, held_out(config), comparisons, **settings)


def test_sums_equal_a_computation_document_by_document(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    sums = all_and_each(data_config, tokenizer).run(model, CPU)
    documents = held_out(data_config)
    for name, types in {"all": TYPES, "each/url": ("url",), "each/html": ("html",)}.items():
        compared = 0
        for index in range(len(documents)):
            document = documents[index]
            got = sums[name].values[index, 0, 0]
            if not any(document.has(key) for key in types):
                assert got.tolist() == [0, 0, 0, 0, 0]
                continue
            size, without, with_metadata = bits_of_document(
                model, tokenizer, data_config, document, types
            )
            assert got[BYTES] == size
            assert got[NATS_WITHOUT] / math.log(2) == pytest.approx(without, abs=1e-5 * size)
            assert got[NATS_WITH] / math.log(2) == pytest.approx(with_metadata, abs=1e-5 * size)
            compared += size > 0
        assert compared >= 4


def test_nearly_all_bytes_of_a_text_count_without_local_tags(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    sums = all_and_each(data_config, tokenizer, windows="sliding").run(model, CPU)
    documents = held_out(data_config)
    for index in range(len(documents)):
        size = len(documents[index].text.encode())
        first_token = 8  # at most: one token, the first, is never scored
        assert size - first_token <= sums["text"].totals[index, BYTES] < size
        if documents[index].has("url"):
            assert sums["each/url"].totals[index, BYTES] == sums["text"].totals[index, BYTES]


def test_the_text_arm_is_compared_with_itself(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    text = all_and_each(data_config, tokenizer).run(model, CPU)["text"].totals
    assert (text[:, BYTES] > 0).all()
    np.testing.assert_array_equal(text[:, NATS_WITHOUT], text[:, NATS_WITH])


def test_first_piece_scores_only_the_beginning(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    edges = (0, 400)
    runs = {
        name: all_and_each(data_config, tokenizer, windows=name, position_edges=edges)
        for name in ("first_piece", "all_pieces")
    }
    first, whole = (run.run(model, CPU)["text"].values[:, 0] for run in runs.values())
    assert whole[:, 1, BYTES].sum() > 0
    assert first[:, 1, BYTES].sum() == 0
    assert 0 < first[:, 0, BYTES].sum() <= whole[:, 0, BYTES].sum()


class SharedGather:
    """Gathers between threads, each acting as a rank."""

    def __init__(self, world_size: int) -> None:
        self.values: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=STUCK_S)

    def of(self, rank: int) -> Processes:
        shared = self

        class Thread(Processes):
            def gather(self, value: Any) -> list[Any]:
                shared.values[rank] = value
                shared.barrier.wait()
                values = list(shared.values)
                shared.barrier.wait()
                return values

        return Thread(rank, len(self.values))


class CollectiveModel(GPT2LMHeadModel):
    """A model sharded over ranks: all must call it together."""

    ranks = ALONE

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        calls = self.ranks.gather("forward")
        assert calls == ["forward"] * self.ranks.size
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("world_size", [2, 5])
def test_any_number_of_ranks_gives_the_same_sums_in_lockstep(
    world_size: int,
    model: GPT2LMHeadModel,
    tokenizer: PreTrainedTokenizerBase,
    data_config: DataConfig,
) -> None:
    expected = all_and_each(data_config, tokenizer).run(model, CPU)
    shared = SharedGather(world_size)
    copies = [CollectiveModel(model.config) for _ in range(world_size)]
    for number, one in enumerate(copies):
        one.load_state_dict(copy.deepcopy(model.state_dict()))
        one.ranks = shared.of(number)

    def rank(number: int) -> dict[str, ComparisonSums]:
        evaluation = all_and_each(data_config, tokenizer, ranks=shared.of(number))
        # wrapped, as whatever is spread over ranks: else batches would be scored by several threads
        return evaluation.run(nn.DataParallel(copies[number]), CPU)

    with ThreadPoolExecutor(world_size) as pool:
        results = list(pool.map(rank, range(world_size)))
    for result in results:
        for name, sums in expected.items():
            np.testing.assert_array_equal(result[name].values, sums.values)


def changed(config: DataConfig, **values: Any) -> DataConfig:
    return replace(config, metadata_config=replace(config.metadata_config, **values))


@pytest.mark.parametrize("rows", ["one", "all"])
def test_a_nan_score_is_refused_with_its_document_and_arm(
    rows: str, model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    """A NaN row of the embedding must not silently exclude the documents with its token."""
    broken = copy.deepcopy(model)
    token = tokenizer("word42").input_ids[-1]
    with torch.no_grad():
        broken.transformer.wte.weight[token if rows == "one" else slice(None)] = math.nan
    shared = SharedGather(2)

    def rank(number: int) -> str:
        evaluation = all_and_each(data_config, tokenizer, ranks=shared.of(number))
        with pytest.raises(DataError, match="are not finite") as caught:
            evaluation.run(copy.deepcopy(broken), CPU)
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, range(2))
    assert first == second  # both ranks stop, with the same message
    assert re.search(r"\n  held-out.jsonl.gz:\d+, (without metadata|[a-z, ]+)\n", first)


def test_identical_tokens_are_a_tie_in_any_batch(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    """The prefix is truncated within the title, so that the url after it changes no token."""
    cut = changed(data_config, prefix_max_tokens=8, metadata_list=["title", "url"])
    comparisons = plan_comparisons(["added", "each"], ("title", "url"))
    for batch_size in (1, 4):
        config = replace(cut, per_device_eval_batch_size=batch_size)
        evaluation = PairedEvaluation(
            config, tokenizer, held_out(config), comparisons, windows="sliding"
        )
        sums = evaluation.run(model, CPU)
        same = sums["added/url"]
        assert same.takes_part.sum() == 9
        np.testing.assert_array_equal(same.totals[:, NATS_WITH], same.totals[:, NATS_WITHOUT])
        assert same.prefix_cut.sum() == 9
        assert sums["each/title"].totals[:, NATS_WITH].sum() > 0
        (metrics,) = compute_paired_metrics(same.totals[None], resamples=10, seed=0)
        assert metrics is not None
        assert (metrics.documents_better, metrics.documents_worse) == (0, 0)


def test_appended_metadata_is_not_compared(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    """It follows the text, so the difference would be 0 by construction."""
    config = changed(data_config, metadata_position="append", metadata_list=["title", "url"])
    sums = PairedEvaluation(
        config, tokenizer, held_out(config), plan_comparisons(["all"], ("title", "url"))
    ).run(model, CPU)
    assert not sums["all"].takes_part.any()
    subset = SubsetEvaluation(config, tokenizer, max_documents=4, seed=1, ranks=ALONE)
    assert sorted(subset.run(model, CPU)) == ["bytes", "documents", "text_bits_per_byte"]


def test_true_values_and_their_control_are_compared_over_the_same_bytes(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase, data_config: DataConfig
) -> None:
    config = changed(data_config, metadata_list=["url"])
    made = list_comparisons(
        EvaluateConfig(comparisons=["all"], controls=["matched", "form", "separator"]), ["url"]
    )
    evaluation = PairedEvaluation(config, tokenizer, held_out(config), made, windows="sliding")
    sums = evaluation.run(model, CPU)
    own = sums["all"].totals
    for control in ("matched", "form", "separator"):
        alone, against = sums[f"{control}/all"].totals, sums[f"own_against_{control}/all"].totals
        np.testing.assert_allclose(against[:, NATS_WITHOUT], alone[:, NATS_WITH])
        np.testing.assert_allclose(against[:, NATS_WITH], own[:, NATS_WITH])
        assert sums[f"own_against_{control}/all"].takes_part.sum() == 9
