"""What is shown is what is trained on: compared with the stream itself."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bsmeta.config.data import SourceConfig
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.io.shards import list_shards
from bsmeta.data.stream.plan import deal_documents
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.tasks.causal_lm.explaining.selection import Selection
from bsmeta.tasks.causal_lm.explaining.windows import ExplainedWindow
from tests.data.helpers import page, pages, small_config, taken, write_shard, write_shards
from tests.tasks.causal_lm.explaining.helpers import (
    METADATA_LIST,
    SHARD,
    demo,
    demo_documents,
    demo_tokenizer,
    demo_windows,
    own_config,
    own_windows,
)

ONE_SHARD = "data_config.train_file=${repo:examples/webdocs}/" + SHARD.format(6)
ONE_STREAM = ["data_config.num_streams=1", "data_config.per_device_train_batch_size=1"]


def test_the_first_documents_of_the_demo_are_selected() -> None:
    one, two = demo_documents("limit=2")
    assert one.name == SHARD.format(1) + ":0"
    assert one.rendered.prefix == (
        "Datasource: postgresql.org > docs > sql alterlargeobject "
        "| Year: 2026 | Month: November |||"
    )
    assert one.rendered.body.startswith("ALTER LARGE OBJECT\nSynopsis\n\nALTER LARGE OBJECT large")
    assert one.rendered.types == ("datasource", "timestamp")
    assert one.present == ("title", "url", "datasource", "website_description", "timestamp")
    assert [(len(chunk), int(chunk.loss_mask.sum())) for chunk in one.chunks] == [(187, 151)]
    assert two.name == SHARD.format(1) + ":1"
    assert [len(chunk) for chunk in two.chunks] == [256, 40]


def trained_on(
    config: ExplainConfig, epoch: int
) -> Iterator[tuple[list[str], list[tuple[tuple[int, ...], tuple[bool, ...]]]]]:
    """Yields documents and chunks (ids, targets) of each sequence of an epoch of the stream."""
    stream = TrainStream(
        config.data_config,
        demo_tokenizer(),
        seed=config.seed,
        rank=0,
        world_size=1,
        global_batch_size=1,
    )
    for batch in itertools.dropwhile(lambda batch: batch.states[0]["epoch"] < epoch, taken(stream)):
        if batch.states[0]["epoch"] > epoch:
            return
        tensors = {name: tensor[0].numpy() for name, tensor in batch.tensors.items()}
        begins = np.flatnonzero(tensors["position_ids"] == 0)
        ids, targets = (np.split(tensors[name], begins[1:]) for name in ("input_ids", "loss_mask"))
        chunks = [
            (tuple(one.tolist()), tuple(mask.tolist()))
            for one, mask in zip(ids, targets, strict=True)
        ]
        yield batch.documents, chunks[: len(chunks) - (batch.tokens < len(tensors["input_ids"]))]


@pytest.mark.long
@pytest.mark.parametrize("epoch", [0, 1])
def test_documents_have_the_chunks_that_the_stream_trains_on(epoch: int) -> None:
    overrides = [ONE_SHARD, *ONE_STREAM, "limit=1000", f"epoch={epoch}"]
    sequences = list(trained_on(demo(*overrides), epoch))
    trained = Counter(chunk for _, chunks in sequences for chunk in chunks)
    windows = demo_windows(*overrides)
    shown = Counter(
        (tuple(chunk.ids.tolist()), tuple(chunk.loss_mask.tolist()))
        for window in windows
        for document in window.documents
        for chunk in document.chunks
    )
    assert trained == shown
    assert len([document for window in windows for document in window.documents]) == 161
    # The stream walks the windows of its only shard in order.
    packed = [
        list_packing(window, index) for window in windows for index in range(len(window.sequences))
    ]
    assert packed == [
        (sorted(names), [len(ids) for ids, _ in chunks]) for names, chunks in sequences
    ]


def list_packing(window: ExplainedWindow, index: int) -> tuple[list[str], list[int]]:
    """Returns the documents and the lengths of the chunks of a sequence."""
    sequence = window.sequences[index]
    names = {f"{window.shard}:{chunk.number}" for chunk in sequence}
    return sorted(names), [chunk.length for chunk in sequence]


def test_a_chunk_has_the_number_of_its_sequence() -> None:
    (window,) = demo_windows("limit=5")
    for document in window.documents:
        number = int(document.name.rpartition(":")[2])
        for chunk_index, (chunk, sequence) in enumerate(
            zip(document.chunks, document.sequences, strict=True)
        ):
            matching = [
                chunk_in_sequence
                for chunk_in_sequence in window.sequences[sequence]
                if (chunk_in_sequence.number, chunk_in_sequence.index) == (number, chunk_index)
            ]
            assert [chunk_in_sequence.length for chunk_in_sequence in matching] == [len(chunk)]


def test_each_epoch_draws_other_metadata() -> None:
    drawn = [
        [document.rendered.types for document in demo_documents("limit=20", f"epoch={epoch}")]
        for epoch in (0, 1)
    ]
    assert drawn[0] != drawn[1]


def test_a_document_is_selected_by_name_with_its_successors() -> None:
    last, first = demo_documents(f"document={SHARD.format(1)}:159", "limit=2")
    assert (last.name, first.name) == (SHARD.format(1) + ":159", SHARD.format(2) + ":0")
    (alone,) = demo_documents(f"document={SHARD.format(1)}:159")
    assert alone.chunks[0].ids.tolist() == last.chunks[0].ids.tolist()
    assert alone.sequences == last.sequences


def test_requested_types_replace_the_draw() -> None:
    name = f"document={SHARD.format(1)}:1"
    (forced,) = demo_documents(name, "types=[entity,url]")
    assert forced.rendered.prefix == (
        "url: https://www.boost.org/doc/libs/1_81_0/boost/xpressive/op/first.html | entity |||"
    )
    assert "regex_actions.hpp [[Reference]]>" in forced.rendered.body
    assert forced.lacking == ()
    (plain,) = demo_documents(name, "types=[]")
    assert (plain.rendered.prefix, plain.rendered.body) == ("", plain.rendered.text)
    (lacking,) = demo_documents(f"document={SHARD.format(6)}:0", "types=[entity,title]")
    assert (lacking.rendered.types, lacking.lacking) == (("title",), ("entity",))


def test_a_document_can_be_shown_without_metadata_in_the_same_context(tmp_path: Path) -> None:
    config = own_config(tmp_path, [page(0, 30)], without_metadata_same_context=True, limit=1)
    ((document,),) = [window.documents for window in own_windows(config)]
    assert (document.rendered.prefix, document.rendered.lead) == ("", " ")
    assert document.rendered.body == document.rendered.text
    assert not any(chunk.token_types.any() for chunk in document.chunks)


def test_a_bad_document_is_refused_or_skipped(tmp_path: Path) -> None:
    documents = [page(0, 3), {"text": 5}, page(2, 3)]
    with pytest.raises(DataError, match="a.jsonl.gz, line 2: text_not_string"):
        own_windows(own_config(tmp_path, documents, limit=2))
    config = own_config(tmp_path, documents, limit=2, bad_documents="skip")
    (window,) = own_windows(config)
    assert [document.name for document in window.documents] == ["a.jsonl.gz:0", "a.jsonl.gz:2"]
    config = own_config(tmp_path, documents, document="a.jsonl.gz:1", bad_documents="skip")
    with pytest.raises(ConfigurationError, match=r"it skips 1 for text_not_string\)"):
        own_windows(config)


def test_a_number_beyond_the_shard_is_refused(tmp_path: Path) -> None:
    for number in (20, 1000):  # just after the last one, and windows away
        config = own_config(tmp_path, pages(20), document=f"a.jsonl.gz:{number}")
        with pytest.raises(
            ConfigurationError, match="has 20 documents; expected a number from 0 to 19"
        ):
            own_windows(config)
    (window,) = own_windows(own_config(tmp_path, pages(20), document="a.jsonl.gz:19"))
    assert (window.first, window.last, len(window.documents)) == (16, 19, 1)


@pytest.mark.parametrize("number", [0, 17, 39])
def test_a_document_of_a_shared_shard_is_shown_in_the_window_of_its_stream(
    tmp_path: Path, number: int
) -> None:
    """The window is the one in which the stream trains on the document."""
    changes = {"num_streams": 3, "window_documents": 5, "metadata_probability": 0.0}
    name = f"a.jsonl.gz:{number}"
    config = own_config(tmp_path, pages(40), document=name, limit=1, **changes)
    (window,) = own_windows(config)
    assert [document.name for document in window.documents] == [name]
    assert window.count <= window.last - window.first
    shown = {chunk.number for sequence in window.sequences for chunk in sequence}
    shares = [
        share for own in deal_documents(list_shards(config.data_config), [1] * 3) for share in own
    ]
    windows = [share.list_documents(window, 5) for share in shares for window in range(8)]
    (trained,) = [window for window in windows if number in window]
    assert shown == {number for number in trained if number < 40}


def test_an_empty_shard_is_skipped_unless_requested(tmp_path: Path) -> None:
    write_shards(tmp_path, [2])
    write_shard(tmp_path / "empty.jsonl.gz", [])
    data = small_config(tmp_path, tokenizer_backend="hf", num_streams=1)
    (window,) = own_windows(ExplainConfig(data_config=data, limit=5))
    assert [document.name for document in window.documents] == [
        "part-00.jsonl.gz:0",
        "part-00.jsonl.gz:1",
    ]
    with pytest.raises(ConfigurationError, match="empty.jsonl.gz:0: the shard has no documents"):
        own_windows(ExplainConfig(data_config=data, document="empty.jsonl.gz:0"))


@pytest.mark.parametrize(("step", "prefix"), [(90, "URL: www.postgresql.org\n\n"), (91, "")])
def test_a_step_has_the_metadata_of_its_phase(step: int, prefix: str) -> None:
    (one,) = demo_documents(
        "+recipes=meco", f"{METADATA_LIST}=[url]", "max_train_steps=100", f"step={step}"
    )
    assert one.rendered.prefix == prefix


def test_a_document_of_a_mixture_is_selected_by_its_source(tmp_path: Path) -> None:
    """It is read with the columns of that source."""
    for name, address in (("web", "url"), ("books", "link")):
        (tmp_path / name).mkdir()
        rows = [{"text": f"{name} {n}", address: f"https://{name}.org/{n}"} for n in range(20)]
        write_shard(tmp_path / name / "part.jsonl.gz", rows)
    sources = [
        SourceConfig(name="web", train_file=str(tmp_path / "web"), columns={"url": "url"}),
        SourceConfig(name="books", train_file=str(tmp_path / "books"), columns={"url": "link"}),
    ]
    data = small_config(
        tmp_path, train_file=None, sources=sources, tokenizer_backend="hf", num_streams=2,
        metadata_list=["url", "source"], metadata_probability=1.0, random_sample_metadata=False,
    )  # fmt: skip
    config = ExplainConfig(data_config=data, document="books/part.jsonl.gz:3", limit=1)
    ((one,),) = [window.documents for window in own_windows(config)]
    assert one.name == "books/part.jsonl.gz:3"
    assert (one.rendered.prefix, one.rendered.body) == (
        "url: https://books.org/3 | source: books |||",
        "books 3",
    )
    config = ExplainConfig(data_config=data, document="part.jsonl.gz:3")
    with pytest.raises(ConfigurationError, match=r"web \(0.5\): .*; books \(0.5\): "):
        own_windows(config)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("document=7", f"document=7: expected <shard>:<number>, such as {SHARD.format(1)}:0"),
        (f"document={SHARD.format(1)}:-1", "expected <shard>:<number>"),
        (
            f"document={SHARD.format(7)}:0",
            f"training reads no shard of the name {SHARD.format(7)}; expected ",
        ),
        (
            f"document={SHARD.format(0)}:0",
            "it is the held-out file; data_config.validation_file=null would not leave it out",
        ),
        (
            "types=[url,author]",
            "types=['url', 'author']: author not in data_config.metadata_config.metadata_list; "
            "expected some of title, url, datasource, website_description, timestamp, entity, or "
            "add to that list",
        ),
        ("types=[website_desc]", "(website_desc is the column of website_description)"),
        ("data_config.packing=tight", 'found "tight", expected one of best_fit, pad'),
    ],
)
def test_a_document_or_type_that_training_lacks_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Selection(demo(override), demo_tokenizer())
    assert message in str(error.value)
