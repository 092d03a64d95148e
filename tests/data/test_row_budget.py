"""`row_budget=text`: the same text in every step, cut at the same places, whatever the metadata."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bsmeta.config.data import DataConfig, compute_row_length
from bsmeta.config.metadata import Phase
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.prepare import PrepareConfig, prepare_streams
from bsmeta.data.stream.train_stream import TrainStream
from tests.data.helpers import (
    METADATA_KEYS,
    Run,
    page,
    pages,
    run,
    small_config,
    small_tokenizer,
    write_shard,
    write_shards,
)

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
STEPS = 10
ALWAYS = {"metadata_probability": 1.0, "random_sample_metadata": False}
GLOBAL = {"metadata_list": ["title", "url"], **ALWAYS}
TAGS = {"treat_local_metadata_as_regular_text": False}
WRAPPED = {
    "local_metadata_special_token_start": {"html": "<HTML>"},
    "local_metadata_special_token_end": {"html": "</HTML>"},
    "local_metadata_special_token_state": True,
}
SCHEDULE = [
    Phase(share=0.3, types=["html"]),
    Phase(share=0.3, metadata_probability=0.0),
    Phase(share=0.4, random_sample_metadata=True),
]
ARMS: dict[str, dict[str, Any]] = {
    "global": GLOBAL,
    "drawn": {**TAGS, "metadata_probability": 0.5},
    "html": {"metadata_list": ["html"], **TAGS, **ALWAYS, **WRAPPED},
    "all": {"metadata_list": ["html", "title", "url"], **TAGS, **ALWAYS},
    "shuffled": {"metadata_values": "shuffled", **TAGS, **ALWAYS},
    "constant": {"metadata_values": "constant", **GLOBAL},
    "random": {"metadata_values": "random", **GLOBAL},
    "append": {"metadata_position": "append", **GLOBAL},
    "both": {"metadata_position": "both", **GLOBAL},
    "first chunk": {"prefix_on": "first_piece", **GLOBAL},
    "meta tokens": {"metadata_list": ["meta_tokens", "url"], **ALWAYS},
    "separators": {"metadata_text_sep": "\n\n", "metadata_prefix_sep": "", **GLOBAL},
    "schedule": {**TAGS, **ALWAYS, "schedule": SCHEDULE},
    "cooldown": {**GLOBAL, "schedule": [Phase(share=0.55), Phase(share=0.45, types=[])]},
    "little room": {**TAGS, **ALWAYS, "row_metadata_budget": 12},
    "columns": {**GLOBAL, "metadata_column_list": ["html", "url", "title"]},
    "loss on first text": {**GLOBAL, "loss_on_first_text": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents shorter and longer than a row of 48 tokens."""
    folder = tmp_path_factory.mktemp("shards")
    return write_shards(folder, [30, 41, 17, 26, 33, 9])


def config(folder: Path, **changes: Any) -> DataConfig:
    return small_config(folder, row_budget="text", **{"max_seq_len": 48} | changes)


def list_chunks(row: dict[str, torch.Tensor]) -> list[list[int]]:
    """Returns, for each chunk of a row, the text tokens with a loss."""
    starts = torch.nonzero(row["position_ids"] == 0).flatten().tolist()
    ends = [*starts[1:], len(row["input_ids"])]
    is_target = row["loss_mask"] & (row["token_types"] == 0)
    chunks = [
        row["input_ids"][start:end][is_target[start:end]].tolist()
        for start, end in zip(starts, ends, strict=True)
    ]
    return [chunk for chunk in chunks if chunk]


def list_texts(result: Run) -> list[list[list[list[int]]]]:
    """Returns, for each step, row and chunk, the text tokens with a loss."""
    return [
        [
            list_chunks({name: tensor[row] for name, tensor in step.items()})
            for row in range(len(step["input_ids"]))
        ]
        for step in result.steps
    ]


def list_contents(result: Run) -> list[list[list[list[int]]]]:
    """Returns, for each step and row, everything up to its last target, without padding."""
    names = ("input_ids", "position_ids", "loss_mask", "token_types", "document_types")
    return [
        [
            [step[name][row][: int(torch.nonzero(mask)[-1]) + 1].tolist() for name in names]
            for row, mask in enumerate(step["loss_mask"])
        ]
        for step in result.steps
    ]


@pytest.fixture(scope="module", params=["best_fit", "pad"])
def packing(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def text_alone(folder: Path, packing: str) -> Run:
    return run(config(folder, metadata_list=[], packing=packing), STEPS, total=STEPS)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_trains_on_the_same_text(
    folder: Path, packing: str, text_alone: Run, arm: str
) -> None:
    own = config(folder, packing=packing, **ARMS[arm])
    found = run(own, STEPS, total=STEPS)
    assert any(step["token_types"].any() for step in found.steps)
    assert list_texts(found) == list_texts(text_alone)
    assert found.documents == text_alone.documents
    for step in found.steps:
        assert not (step["loss_mask"] & (step["token_types"] > 0)).any()
        assert step["input_ids"].shape[1] <= compute_row_length(own)


def test_text_alone_equals_the_run_without_a_row_budget(folder: Path, text_alone: Run) -> None:
    plain = run(small_config(folder, metadata_list=[], max_seq_len=48), STEPS)
    budget = run(config(folder, metadata_list=[]), STEPS)
    assert list_contents(plain) == list_contents(budget)
    assert plain.documents == budget.documents


@pytest.mark.parametrize("changes", [{}, {"prefix_on": "first_piece"}, {"metadata_list": []}])
def test_bos_comes_before_each_chunk_and_predicts_its_first_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    def with_bos() -> Any:
        tokenizer = small_tokenizer()
        tokenizer.add_special_tokens({"bos_token": "<bos>"})
        return tokenizer

    monkeypatch.setattr("tests.data.helpers.small_tokenizer", with_bos)
    bos = with_bos().bos_token_id
    text = run(config(folder, metadata_list=[], bos_token=True), STEPS)
    found = run(config(folder, bos_token=True, **{**GLOBAL, **changes}), STEPS)
    assert list_texts(found) == list_texts(text)
    for step in found.steps:
        starts = (step["position_ids"] == 0) & (step["input_ids"] == bos)
        assert starts.sum() == (step["input_ids"] == bos).sum() > 0
    (first, *_) = text.steps
    assert (first["loss_mask"][:, 1:] & (first["input_ids"][:, :-1] == bos)).any()


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("arm", ["all", "schedule", "little room"])
def test_world_size_workers_and_resumes_do_not_change_the_rows(
    folder: Path, world_size: int, arm: str
) -> None:
    whole = run(config(folder, **ARMS[arm]), STEPS, total=STEPS)
    settings = {**ARMS[arm], "num_workers": 8 // world_size // 2}
    split = config(folder, per_device_train_batch_size=1, **settings)
    first = run(split, 4, world_size=world_size, total=STEPS)
    rest = run(config(folder, **ARMS[arm]), STEPS - 4, total=STEPS, state=first.state)
    assert list_contents(first) + list_contents(rest) == list_contents(whole)
    assert first.documents + rest.documents == whole.documents
    assert rest.state == whole.state


@pytest.mark.parametrize("stop", [3, 6, 9])
def test_a_resumed_run_has_the_same_tensors(folder: Path, stop: int) -> None:
    """Also the same width, so that a resumed run computes the same bits."""
    own = config(folder, **ARMS["schedule"])

    def batches(state: dict[str, Any] | None, count: int) -> tuple[list[Any], dict[str, Any]]:
        stream = TrainStream(
            own, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=4,
            max_train_steps=STEPS, state=state,
        )  # fmt: skip
        steps = list(itertools.islice(stream, count))
        saved = {"fingerprint": stream.fingerprint, **stream.merge([steps[-1].state])}
        return [batch for step in steps for batch in step.micro_batches], json.loads(
            json.dumps(saved)
        )

    through, _ = batches(None, STEPS)
    first, state = batches(None, stop)
    rest, _ = batches(state, STEPS - stop)
    for one, other in zip(first + rest, through, strict=True):
        assert one.targets == other.targets
        assert one.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert len({batch.tensors["input_ids"].shape[1] for batch in through}) > 1


def test_arms_have_the_same_digests_of_their_targets(folder: Path) -> None:
    def digests(**changes: Any) -> list[str]:
        stream = TrainStream(
            config(folder, **changes), small_tokenizer(), seed=1, rank=0, world_size=1,
            global_batch_size=4, max_train_steps=STEPS,
        )  # fmt: skip
        steps = itertools.islice(stream, STEPS)
        return [batch.targets for step in steps for batch in step.micro_batches]

    plain = digests(metadata_list=[])
    assert len(set(plain)) == len(plain) == 2 * STEPS
    assert digests(**ARMS["schedule"]) == digests(**ARMS["shuffled"]) == plain


def test_documents_with_bad_metadata_keep_their_text(tmp_path: Path) -> None:
    """Unusable metadata is dropped from its document; only documents with bad text are skipped."""
    documents = pages(40)
    documents[3]["metadata_url"] = [{"key": "url", "value": {"not": "a value"}}]
    documents[7]["metadata_html"][0]["char_end_idx"] = 10_000
    documents[11]["metadata_title"] = "no list"
    del documents[15]["text"]
    documents[19]["text"] = 5
    documents[23]["text"] = ""
    write_shard(tmp_path / "part.jsonl.gz", documents)
    settings = {"num_streams": 1, "bad_documents": "skip"}
    text = run(config(tmp_path, metadata_list=[], **settings), STEPS)
    found = run(config(tmp_path, **settings, **ARMS["all"]), STEPS)
    assert list_texts(found) == list_texts(text)
    assert found.documents == text.documents
    names = {name for step in found.documents for name in step}
    assert {f"part.jsonl.gz:{number}" for number in (3, 7, 11)} <= names
    assert not {f"part.jsonl.gz:{number}" for number in (15, 19, 23)} & names

    def counted(own: DataConfig) -> dict[str, float]:
        stream = TrainStream(
            own, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=4
        )
        sums: dict[str, float] = {}
        for step in itertools.islice(stream, 5):
            for batch in step.micro_batches:
                sums = {name: sums.get(name, 0) + n for name, n in batch.counts.items()}
        return {name: n for name, n in sums.items() if name.startswith("bad_") and n}

    assert counted(config(tmp_path, **settings | {"window_documents": 64}, **ARMS["all"])) == {
        "bad_documents/missing_text": 1,
        "bad_documents/position_beyond_text": 1,
        "bad_documents/text_not_string": 1,
        "bad_documents/wrong_type": 2,
    }
    with pytest.raises(DataError, match=r"line 4: wrong_type"):
        run(config(tmp_path, num_streams=1, **ARMS["all"]), STEPS)


def test_metadata_without_room_in_a_row_is_counted(folder: Path) -> None:
    def left_out(**changes: Any) -> float:
        stream = TrainStream(
            config(folder, **ARMS["all"], **changes), small_tokenizer(), seed=1, rank=0,
            world_size=1, global_batch_size=4,
        )  # fmt: skip
        steps = itertools.islice(stream, 3)
        return sum(
            batch.counts["metadata_tokens_left_out"]
            for step in steps
            for batch in step.micro_batches
        )

    assert left_out(row_metadata_budget=5000) == 0
    assert left_out(row_metadata_budget=20) > left_out(row_metadata_budget=60) > 0


def test_prepared_sequences_equal_live_sequences(folder: Path, tmp_path: Path) -> None:
    own = config(folder, **ARMS["schedule"])
    command = PrepareConfig(
        data_config=own, out=str(tmp_path / "out"), max_train_steps=STEPS, seed=1,
        gradient_accumulation_steps=4,
    )  # fmt: skip
    prepare_streams(command, small_tokenizer(), tmp_path / "out")
    ready = config(folder, **ARMS["schedule"], prepared=str(tmp_path / "out"))
    live = run(own, STEPS, total=STEPS)
    assert list_contents(run(ready, STEPS, total=STEPS)) == list_contents(live)


def test_another_row_budget_is_refused_on_resume(folder: Path) -> None:
    state = run(config(folder, **GLOBAL), 1).state
    with pytest.raises(ConfigurationError, match=r"row_budget\.metadata: None in the .* 20 now"):
        run(config(folder, **GLOBAL, row_metadata_budget=20), 1, state=state)
    with pytest.raises(ConfigurationError, match="row_budget"):
        run(small_config(folder, **GLOBAL, max_seq_len=48), 1, state=state)


def test_settings_that_change_the_text_or_its_loss_are_refused(folder: Path) -> None:
    wrong = {
        "loss_on_metadata": True,
        "without_metadata_same_context": True,
        "special_tokens_in_text": True,
    }
    with pytest.raises(ConfigurationError) as error:
        run(config(folder, **wrong), 1)
    where = "in Hydra configuration: found true, expected false under data_config.row_budget=text:"
    assert [line for line in str(error.value).splitlines() if "found" in line] == [
        f"1. data_config.metadata_config.loss_on_metadata {where} the loss is over text only.",
        f"2. data_config.metadata_config.without_metadata_same_context {where} the text is the "
        "same in any case (metadata_list=[]).",
        f"3. data_config.metadata_config.special_tokens_in_text {where} runs with other special "
        "tokens would have other text tokens.",
        f"4. data_config.metadata_config.treat_local_metadata_as_regular_text {where} the loss is "
        "over text only, and html would be in the text.",
    ]
    with pytest.raises(ConfigurationError, match="row_metadata_budget=1: no prefix would fit"):
        run(config(folder, **GLOBAL, row_metadata_budget=1), 1)
    assert {"loss_on_metadata", "special_tokens_in_text"} <= METADATA_KEYS


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real pages are not there")
@pytest.mark.parametrize("packing", ["best_fit", pytest.param("pad", marks=pytest.mark.slow)])
def test_every_arm_trains_on_the_same_text_of_real_pages(
    packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all types of real pages, including nested and crossing tags and entities."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHARED / "gpt2-tokenizer")
    monkeypatch.setattr("tests.data.helpers.small_tokenizer", lambda: tokenizer)
    types = [
        "html", "timestamp", "website_description", "title", "url", "datasource", "length",
        "entity", "entity_paragraph", "paragraph",
    ]  # fmt: skip
    settings = {
        "train_file": str(SHARED / "webdocs" / "*pq00-00[1-4].jsonl.gz"),
        "row_budget": "text",
        "packing": packing,
        "max_seq_len": 256,
        "window_documents": 12,
    }

    def of(**changes: Any) -> Run:
        values = {**settings, **TAGS, "metadata_list": types, **changes}
        return run(small_config(Path(), **values), 4, total=4)

    text = of(metadata_list=[])
    phases = [Phase(share=0.5), Phase(share=0.5, types=["url", "title"])]
    for arm in (
        {**ALWAYS},
        {"schedule": phases},
        {**ALWAYS, "metadata_values": "shuffled"},
        {**ALWAYS, "metadata_list": types[1:7], "metadata_values": "random"},
    ):
        found = of(**arm)
        assert any(step["token_types"].any() for step in found.steps)
        assert list_texts(found) == list_texts(text)
        assert found.documents == text.documents


def test_pages_of_one_word_and_long_pages_keep_their_text(tmp_path: Path) -> None:
    """Rows with many prefixes have room for all metadata."""
    write_shard(tmp_path / "part.jsonl.gz", [page(n, 1 if n % 4 else 200) for n in range(60)])
    settings = {"num_streams": 1, "window_documents": 60}
    text = run(config(tmp_path, metadata_list=[], **settings), 4)
    found = run(config(tmp_path, **settings, **ARMS["all"]), 4)
    assert list_texts(found) == list_texts(text)
    full = run(config(tmp_path, **settings, **ARMS["all"], row_metadata_budget=4000), 4)
    assert list_texts(full) == list_texts(text)
    wide = [max(step["input_ids"].shape[1] for step in result.steps) for result in (found, full)]
    assert wide[0] == 96 < wide[1]
