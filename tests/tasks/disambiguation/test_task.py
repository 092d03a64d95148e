"""What is wrong with the data of a run ends it before the first step, not at its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bsmeta.core.changed_values import replace_values
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.disambiguation.config import DisambiguationConfig, DisambiguationDataConfig
from bsmeta.tasks.disambiguation.model import BiEncoder, save_model
from bsmeta.tasks.disambiguation.task import EntityDisambiguator
from bsmeta.tasks.disambiguation.texts import Row
from bsmeta.training.task import Loss
from tests.tasks.disambiguation.helpers import full_names, lines, write_lines

Start = Callable[..., int]

Make = Callable[..., EntityDisambiguator]


@pytest.fixture
def start(world: Path, encoder: Path, tmp_path: Path) -> Start:
    """What the trainer asks a task for first, with other dev or test sentences."""

    def call(
        dev: list[Any] | None = None, test: list[Any] | None = None, prep: str = "", **keys: Any
    ) -> int:
        files = {"train_file": str(world / "train.jsonl"), "dev_file": str(world / "dev.jsonl")}
        for name, rows in (("dev", dev), ("test", test)):
            if rows is not None:
                files[f"{name}_file"] = str(write_lines(tmp_path / f"{name}.jsonl", rows))
        data = DisambiguationDataConfig(
            **files, entity_table=str(world / "entities"), prep_dir=str(tmp_path / "prep" / prep),
            max_entity_length=48, window_length=32,
        )  # fmt: skip
        config = DisambiguationConfig(model_name=str(encoder), data_config=data, **keys)
        return EntityDisambiguator(config).steps_per_epoch(1)

    return call


def test_a_malformed_line_of_the_test_file(start: Start, tmp_path: Path) -> None:
    wrong = [*lines(3, seed=4), {**lines(1, seed=5)[0], "char_spans": [[0, 999]]}]
    with pytest.raises(DataError, match=rf"{tmp_path}/test.jsonl: 1 problem.*\n  line 4: char_spa"):
        start(test=wrong)


def test_a_held_out_file_without_gold_mentions(start: Start) -> None:
    weak = [{**line, "gold": [False] * len(line["gold"])} for line in lines(3, seed=4)]
    for name in ("dev", "test"):
        with pytest.raises(DataError, match=f"{name}.jsonl has no gold mention to score"):
            start(**{name: weak}, prep=name)


def test_slices_are_those_of_the_code_and_of_the_lines(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    slices = {"rare": {"0": 0.0}, "unif_NS_TL": {"0": 1.0}}
    dev = [{**line, "slices": slices} for line in lines(4, seed=4)]
    chosen = ["unif_all", "unif_TS", "unif_NS_all", "rare"]
    assert start(dev, eval_slices=chosen, keep_best_by="rare_accuracy") == 2
    assert "the lines define the slice unif_NS_TL, too; theirs is unif_NS_TL_of_lines" in (
        caplog.text
    )
    with pytest.raises(ConfigurationError, match=r"no slice 'unif_NSTL' .did you mean unif_NS_TL"):
        start(dev, eval_slices=["unif_NSTL"])
    with pytest.raises(ConfigurationError, match="no slice 'rare'"):
        start(eval_slices=["rare"], prep="other")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"keep_best_by": "mention_f1"}, "mention_f1: evaluations have no such metric"),
        ({"keep_best_by": "acuracy"}, r"keep_best_by=acuracy: .* .did you mean accuracy\?"),
        ({"keep_best_by": "tail_accuracy", "eval_slices": ["toes"]},
         "expected one of loss, accuracy, .*toes_accuracy"),
    ],
)  # fmt: skip
def test_the_metric_of_the_best_checkpoint(
    start: Start, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        start(**keys)


def test_the_model_that_is_compared(start: Start, tmp_path: Path, encoder: Path) -> None:
    with pytest.raises(ConfigurationError, match="compare_with=.*no config.yaml beside the model"):
        start(compare_with=str(encoder))


@pytest.fixture
def make(world: Path, encoder: Path, tmp_path: Path) -> Make:
    def task(**more: Any) -> EntityDisambiguator:
        data = DisambiguationDataConfig(
            train_file=f"{world}/train.jsonl",
            dev_file=f"{world}/dev.jsonl",
            entity_table=f"{world}/entities",
            prep_dir=f"{tmp_path}/prep",
            max_entity_length=48,
            window_length=16,
            mask_rarest=0.0,
            mask_most_frequent=0.0,
        )
        config = DisambiguationConfig(model_name=str(encoder), log_prior="scores", data_config=data)
        return EntityDisambiguator(replace_values(config, full_names(more)))

    return task


def rows_of(task: EntityDisambiguator, count: int = 4) -> list[Row]:
    return task.data.train.read(range(count))


def test_an_entity_is_encoded_once_however_many_mentions_it_is_a_candidate_of(make: Make) -> None:
    task = make()
    batch = task._batches.build_micro_batch(rows_of(task, 30), 0)
    assert len(batch.tensors["targets"]) == 60 == batch.weight == batch.counts["mentions"]
    assert len(batch.tensors["entity_ids"]) == batch.counts["entities"] == 13  # all there are
    assert batch.counts["weak_labels"] == 12
    assert batch.tensors["allowed"].all()
    assert len({*batch.documents}) == 60
    assert batch.documents[:4] == ["100:0", "101:0", "101:1", "102:0"]


def test_a_mention_is_compared_with_its_own_candidates(make: Make) -> None:
    task = make(negatives="own")
    tensors = task._batches.build_micro_batch(rows_of(task, 30), 0).tensors
    counts = {2, 3}  # `bank` has three candidates
    assert {*tensors["allowed"].sum(1).tolist()} == counts
    assert tensors["targets"].sum(1).tolist() == [1] * 60
    assert (tensors["allowed"] | ~tensors["targets"]).all()


def test_a_mention_without_its_entity_among_the_candidates(make: Make) -> None:
    def target(train_in_candidates: bool) -> tuple[list[bool], float]:
        task = make(train_in_candidates=train_in_candidates, negatives="own")
        row = rows_of(task, 1)[0]
        wrong = {"bank": "seal-river"}.get(task.data.table.aliases[row.aliases[0]], "bank-river")
        row = replace(row, entities=np.array([[task.data.table.ids.find(wrong)]]))
        batch = task._batches.build_micro_batch([row], 0)
        return batch.tensors["targets"][0].tolist(), batch.weight

    alone, weight = target(train_in_candidates=True)
    assert (sum(alone), weight) == (0, 0.0)
    with_nil = [True, *alone]  # the column of NIL
    assert target(train_in_candidates=False) == (with_nil, 1.0)


def test_a_mention_may_have_several_entities(make: Make) -> None:
    task = make(negatives="batch", hard_negatives=2, mask_rarest=0.0, mask_most_frequent=0.0)
    data, row = task.data, rows_of(task, 1)[0]
    word = data.table.aliases[row.aliases[0]]
    both = np.array([[data.table.ids.find(f"{word}-river"), data.table.ids.find(f"{word}-money")]])
    row = replace(row, entities=both)
    batch = task._batches.build_micro_batch([row], 0).tensors
    assert batch["targets"].sum().item() == 2
    assert (batch["allowed"] | ~batch["targets"]).all()

    # The loss is minus the logarithm of the sum of both probabilities.
    model = task.build_model().eval()
    loss = task.loss(model, batch)
    inputs = {name: tensor for name, tensor in batch.items() if name != "targets"}
    shares = model(**inputs).scores[0].softmax(0)[batch["targets"][0]]
    assert loss.sum.item() == pytest.approx(-shares.sum().log().item(), abs=1e-5)
    right, count = loss.parts["accuracy"]
    assert (count.item(), right.item()) == (1.0, float(shares.max() >= 1 - shares.sum()))


def test_masks_follow_from_seed_epoch_and_row_only(make: Make) -> None:
    task = make(mask_rarest=0.5, mask_most_frequent=0.9, negatives="own")
    batches, rows = task._batches, rows_of(task, 6)
    mask = task.data.tokenizer.mask_token_id

    def masked(chosen: list[Row], epoch: int) -> list[list[int]]:
        tensors = batches.build_micro_batch(chosen, epoch).tensors
        places = tensors["mention_tokens"][:, 0]
        return (tensors["input_ids"].flatten()[places] == mask).tolist()

    together = masked(rows, 0)
    apart = [one for row in rows for one in masked([row], 0)]
    assert together == apart
    assert {*together} == {True, False}
    assert masked(rows, 1) != together
    assert masked(rows, 0) == together


def test_rows_that_the_mention_detector_learns_from_are_not_masked(make: Make) -> None:
    keys = {"mask_rarest": 0.9, "mask_most_frequent": 0.9, "negatives": "own"}
    task = make(mention_detection="detector", **keys)
    batches = task._batches
    batch = batches.build_micro_batch(rows_of(task, 60), 0).tensors
    is_tagged = batch["tag_weights"].any(1)
    has_mask = (batch["input_ids"] == task.data.tokenizer.mask_token_id).any(1)
    assert 20 <= is_tagged.sum() <= 40  # half of them
    assert not has_mask[is_tagged].any()
    assert has_mask[~is_tagged].float().mean() > 0.8

    # Which rows are tagged depends on seed, epoch and row, and changes no other mask.
    alone = batches.build_micro_batch(rows_of(task, 1), 0).tensors
    assert alone["tag_weights"].any() == is_tagged[0]
    other_epoch = batches.build_micro_batch(rows_of(task, 60), 1).tensors
    assert not torch.equal(other_epoch["tag_weights"].any(1), is_tagged)
    plain = make(**keys)
    masked = plain._batches.build_micro_batch(rows_of(plain, 60), 0).tensors["input_ids"]
    assert torch.equal(masked[~is_tagged], batch["input_ids"][~is_tagged])


def test_without_masks_all_rows_are_tagged_where_their_mentions_are(make: Make) -> None:
    task = make(mention_detection="both")
    rows = rows_of(task, 6)
    batch = task._batches.build_micro_batch(rows, 0).tensors
    assert torch.equal(
        batch["tag_weights"].sum(1), torch.tensor([float(len(row.tokens)) for row in rows])
    )
    starts = [row.starts.tolist() for row in rows]
    begins = [(tags == 1).nonzero().flatten() - 1 for tags in batch["tags"]]  # after [CLS]
    assert [found.tolist() for found in begins] == starts
    assert not (batch["tags"] == 2).any()  # all mentions are words of one token


def count_kept_bytes(task: EntityDisambiguator) -> tuple[int, int, Loss]:
    """Returns the bytes that are kept for the backward pass, the number of tokens, the loss."""
    torch.manual_seed(0)
    model = task.build_model().train()
    batch = task._batches.build_micro_batch(rows_of(task, 40), 0).tensors
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = task.loss(model, batch)
    loss.sum.backward()
    return sum(kept.values()), batch["input_ids"].numel(), loss


@pytest.mark.parametrize("max_kept_tokens", [0, None])
def test_the_detector_keeps_little_for_the_backward_pass(
    make: Make, max_kept_tokens: int | None
) -> None:
    keys = {"negatives": "own", "max_kept_tokens": max_kept_tokens}
    plain_bytes, tokens, plain = count_kept_bytes(make(**keys))
    tagged_bytes, _, tagged = count_kept_bytes(make(mention_detection="detector", **keys))
    # Of each token: its last state, of size 32, three scores, its tag and its weight.
    assert tagged_bytes - plain_bytes <= tokens * 4 * (32 + 3 + 2 + 1) + 1024
    assert [*plain.parts] == ["accuracy"]
    assert [*tagged.parts] == ["accuracy", "tag_loss"]


def test_the_loss_of_tags_is_added_with_its_weight(make: Make) -> None:
    light, heavy = (
        count_kept_bytes(make(mention_detection="detector", detection_loss_weight=weight))[2]
        for weight in (0.5, 1.5)
    )
    tag_loss, weight = light.parts["tag_loss"]
    assert 0.5 < tag_loss / weight < 2.5  # nats per token, of three tags before training
    assert (heavy.sum - light.sum).item() == pytest.approx(tag_loss.item(), rel=1e-4)


def test_a_model_from_before_there_was_a_detector_is_loaded(make: Make, tmp_path: Path) -> None:
    task = make()
    model = task.build_model()
    save_model(model, model.state_dict(), tmp_path / "model", task.data.table.fingerprint)
    path = tmp_path / "model" / "config.json"
    content = json.loads(path.read_text())
    assert content["settings"].pop("has_detector") is False
    path.write_text(json.dumps(content))
    assert isinstance(task.load(tmp_path / "model"), BiEncoder)
    with pytest.raises(ConfigurationError, match="mention_detection=both: .* no mention detector"):
        make(mention_detection="both").load(tmp_path / "model")


def test_an_exported_model_has_the_detector(make: Make, tmp_path: Path) -> None:
    task = make(mention_detection="detector")
    model = task.build_model()
    save_model(model, model.state_dict(), tmp_path / "model", task.data.table.fingerprint)
    loaded = task.load(tmp_path / "model")
    assert isinstance(loaded, BiEncoder)
    assert model.tag_layer is not None
    assert loaded.tag_layer is not None
    assert torch.equal(loaded.tag_layer.weight, model.tag_layer.weight)
    make(mention_detection="dictionary").load(tmp_path / "model")


def test_a_masked_title_is_another_text_of_the_same_entity(make: Make) -> None:
    task = make(mask_rarest=0.5, mask_most_frequent=0.5)
    batch = task._batches.build_micro_batch(rows_of(task, 60), 0).tensors
    assert len(batch["entity_ids"]) == 26  # each entity with and without its title
    assert batch["allowed"].sum(1).tolist() == [25] * 120  # not the other text of its own entity
    assert (batch["allowed"] | ~batch["targets"]).all()


def test_popular_entities_are_masked_more_often(make: Make) -> None:
    task = make(mask_rarest=0.5, mask_most_frequent=0.9)
    probability = task._batches._mask_probability
    counts = task.data.counts
    assert probability[counts == 0] == pytest.approx(0.5)
    assert probability[counts == counts.max()] == pytest.approx(0.9)
    order = np.argsort(counts, kind="stable")
    assert (np.diff(probability[order]) >= 0).all()


def test_sentences_and_windows_point_at_the_mention(make: Make) -> None:
    for encoding, texts in (("sentence", 3), ("window", 6)):
        task = make(mention_encoding=encoding, pooling="first")
        tensors = task._batches.build_micro_batch(rows_of(task, 3), 0).tensors
        assert len(tensors["input_ids"]) == texts
        first = tensors["input_ids"].flatten()[tensors["mention_tokens"][:, 0]]
        words = task.data.tokenizer.convert_ids_to_tokens(first.tolist())
        if encoding == "window":
            assert words == ["[CLS]"] * 6
        else:
            table, rows = task.data.table, rows_of(task, 3)
            assert words == [table.aliases[alias] for row in rows for alias in row.aliases]


def test_an_exported_model_is_in_its_dtype(make: Make, tmp_path: Path) -> None:
    task = make(export_dtype="float16")
    model = task.build_model()
    folder = tmp_path / "model"
    task.export(model, model.state_dict(), folder)
    dtypes = {weight.dtype for weight in load_file(folder / "model.safetensors").values()}
    assert dtypes == {torch.float16}
    content = json.loads((folder / "config.json").read_text())
    assert content["dtype"] == content["mention_encoder"]["dtype"] == "float16"
    loaded = task.load(folder).state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded[name], weight.half().float()), name
