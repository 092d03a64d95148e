"""Training on metadata without content: as many tokens, the same text, other values."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.data.text.encoding import DocumentEncoder, EncodedDocument
from bsmeta.metadata.document import Document
from bsmeta.metadata.records import Record
from bsmeta.metadata.rendering import Renderer
from tests.data.helpers import Run, run, same, small_config, small_tokenizer, write_shards

TOKENIZER = small_tokenizer()
STEPS = 6


def encoded(values: str, text: str, url: str, **changes: object) -> EncodedDocument:
    config = MetadataConfig(metadata_list=["url"], metadata_values=values, **changes)
    document = Document(text, None, {"url": [Record(value=url, key="url", type="global")]})
    encoder = DocumentEncoder(TOKENIZER, DataConfig(metadata_config=config))
    (one,) = encoder.encode([Renderer(config).render(document, ("url",))])
    return one


def test_a_constant_prefix_has_the_length_of_the_true_prefix() -> None:
    own = encoded("own", "xyz", "abc.org/some/page")
    constant = encoded("constant", "xyz", "abc.org/some/page")
    other = encoded("constant", "another", "abc.org/SOME/PAGE")
    assert TOKENIZER.decode(constant.prefix_ids) == "about after all also and an |||"
    assert len(constant.prefix_ids) == len(own.prefix_ids)
    assert constant.prefix_ids.tolist() == other.prefix_ids.tolist()
    assert constant.ids.tolist() == own.ids.tolist()
    assert constant.prefix_token_types.tolist() == own.prefix_token_types.tolist()


def test_random_tokens_come_from_the_text_and_are_never_special() -> None:
    own = encoded("own", "xyz", "abc.org")
    first, again = encoded("random", "xyz", "abc.org"), encoded("random", "xyz", "abd.org")
    other = encoded("random", "xyzz", "abc.org")
    assert len(first.prefix_ids) == len(own.prefix_ids)
    assert first.prefix_ids.tolist() == again.prefix_ids.tolist() != other.prefix_ids.tolist()
    assert TOKENIZER.decode(first.prefix_ids).endswith(" |||")
    drawn = np.concatenate([encoded("random", str(n), "abc.org").prefix_ids for n in range(200)])
    assert TOKENIZER.eos_token_id not in drawn
    assert len(set(drawn.tolist())) > 250  # of some 300


@pytest.mark.parametrize("values", ["constant", "random"])
def test_a_prefix_that_is_too_long_is_cut_to_the_same_length(values: str) -> None:
    own = encoded("own", "xyz", "abc.org/" * 20, prefix_max_tokens=12)
    filled = encoded(values, "xyz", "abc.org/" * 20, prefix_max_tokens=12)
    assert len(filled.prefix_ids) == len(own.prefix_ids) == 12
    assert filled.prefix_is_cut
    assert TOKENIZER.decode(filled.prefix_ids).endswith(" |||")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), [30, 41, 17, 26])


def batches(folder: Path, values: str, **changes: object) -> Run:
    config = small_config(
        folder,
        metadata_list=["title", "url"],
        metadata_values=values,
        metadata_probability=1.0,
        random_sample_metadata=False,
        **changes,
    )
    return run(config, STEPS)


def decode_sequences(one: Run, *, trained: bool) -> list[str]:
    """Decodes the text (`trained`) or the metadata of each sequence."""
    rows = itertools.chain.from_iterable(
        zip(step["input_ids"], step["loss_mask"] == trained, strict=True) for step in one.steps
    )
    return [TOKENIZER.decode(ids[kept]) for ids, kept in rows]


@pytest.mark.parametrize("values", ["constant", "random"])
def test_every_step_trains_on_the_same_text_at_the_same_positions(
    folder: Path, values: str
) -> None:
    own, filled = batches(folder, "own"), batches(folder, values)
    assert own.documents == filled.documents
    for one, other in zip(own.steps, filled.steps, strict=True):
        assert one["loss_mask"].tolist() == other["loss_mask"].tolist()
    assert decode_sequences(own, trained=True) == decode_sequences(filled, trained=True)
    assert not any("Page" in text for text in decode_sequences(filled, trained=False))


def test_shuffled_values_permute_the_values_of_a_window(folder: Path) -> None:
    def titles(values: str) -> dict[str, str]:
        """Page number of the text -> number in its title, of a shard in windows of its length."""
        config = small_config(
            folder, metadata_list=["title"], metadata_values=values, metadata_probability=1.0,
            random_sample_metadata=False, max_seq_len=256, num_streams=1, window_documents=64,
            packing="pad", long_documents="truncate",
        )  # fmt: skip
        found = {}
        for step in run(config, 14).steps:
            for ids in step["input_ids"]:
                title, text = TOKENIZER.decode(ids).split(" ||| ", 1)
                found[text.split(" ")[0]] = title.removeprefix("Title: Page ")
        return found

    own, shuffled = titles("own"), titles("shuffled")
    assert all(text == title for text, title in own.items())
    assert own.keys() == shuffled.keys()
    moved = [text for text, title in shuffled.items() if text != title]
    assert len(moved) == len(own)  # the cycle of a window leaves nobody in their place
    for shard in "0123":
        here = [title for text, title in shuffled.items() if len(text) < 4 or text[0] == shard]
        assert max(Counter(here).values()) == 1


@pytest.mark.parametrize("values", ["shuffled", "constant", "random"])
def test_world_size_and_resume_do_not_change_the_values(folder: Path, values: str) -> None:
    config = small_config(
        folder, metadata_list=["title", "url"], metadata_values=values, metadata_probability=0.5
    )
    whole = run(config, STEPS)
    assert same(run(config, STEPS, world_size=2), whole)
    first = run(config, 2)
    rest = run(config, STEPS - 2, state=first.state)
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), whole)
