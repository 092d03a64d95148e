"""A new metadata type is one class and one line, whatever it is used for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.data import DataConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.stream.train_stream import TrainStream
from bsmeta.metadata.metadata_type import MetadataType
from bsmeta.metadata.processors import PROCESSORS
from bsmeta.metadata.records import BadDocument, Record
from bsmeta.tasks.causal_lm.evaluation.arms import StyledRenderer
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.generation.contexts import Contexts
from bsmeta.tasks.causal_lm.model_card import render_example
from tests.data.helpers import batches, small_config, small_tokenizer, write_shard
from tests.metadata.helpers import chunks, config, global_record, local, render
from tests.tasks.causal_lm.explaining.helpers import own_config, own_windows


class Language(MetadataType):
    """`Language: en` for the text."""

    columns = ("lang_id",)
    label = "Language"
    prompt_label = "Written in"
    example = "en"


class Passage(MetadataType):
    """`<fr>…</fr>` for a passage in another language."""

    is_local = True
    is_lazy = True
    prompt_label = "Further languages"
    is_listed = True
    example = "fr"
    example_span = (21, 28)

    def render_local(self, record: Record, length: int) -> tuple[str, str] | None:
        return (f"<{record.value}>", f"</{record.value}>") if length else None


class Author(MetadataType):
    """`by NAME`."""

    template = "by {value}"
    example = "Ada Lovelace"


class Quality(MetadataType):
    """A score, which refuses documents for a custom reason."""

    reasons = ("quality_unknown",)

    def _render_value(self, record: Record) -> str | int | float | None:
        if record.value == "?":
            raise BadDocument("quality_unknown", "it is a question mark")
        return record.value


class Careless(Quality):
    """The same type, but without declaring its reason."""

    reasons = ()


TYPES = ["passage", "language"]
DOCUMENT = {
    "text": "To say merci.",
    "metadata_lang_id": [{"type": "global", "value": "en"}],
    "metadata_passage": [local("passage", "fr", 7, 12), local("passage", "de", 13, 13)],
}
READS = "passage | Language: en ||| To say <fr>merci</fr>.<eos>"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROCESSORS, "language", Language)
    monkeypatch.setitem(PROCESSORS, "passage", Passage)
    monkeypatch.setitem(PROCESSORS, "author", Author)
    monkeypatch.setitem(PROCESSORS, "quality", Quality)
    monkeypatch.setitem(PROCESSORS, "careless", Careless)


def data_config(tmp_path: Path, **changes: Any) -> DataConfig:
    write_shard(tmp_path / "a.jsonl.gz", [DOCUMENT])
    always = {"metadata_probability": 1.0, "random_sample_metadata": False, "num_streams": 1}
    return small_config(tmp_path, **{"metadata_list": TYPES, **always, **changes})


def test_each_type_renders_as_its_class_defines() -> None:
    rendered = render(
        config(TYPES, local_metadata_special_tokens={"passage": "mixed"}),
        "To say merci.",
        global_record("language", "en"),
        local("passage", "fr", 7, 12),
        local("passage", "de", 13, 13),
    )
    assert rendered.prefix == "mixed | Language: en |||"
    assert rendered.body == "To say <fr>merci</fr>."
    assert chunks(rendered) == ["<fr>", "</fr>"]


def test_a_type_without_a_class_renders_in_the_default_form() -> None:
    records = (global_record("mood", "calm"), local("mood", "glad", 7, 12))
    rendered = render(config(["mood"]), "To say merci.", *records)
    assert rendered.prefix == "mood: calm | mood |||"
    assert rendered.body == "To say [mood: glad]merci[/mood: glad]."


def test_a_configured_template_overrides_the_template_of_a_class() -> None:
    record = global_record("author", "Ada")
    assert render(config(["author"]), "Text.", record).prefix == "by Ada |||"
    own = config(["author"], metadata_templates={"author": "Author={value}"})
    assert render(own, "Text.", record).prefix == "Author=Ada |||"


def test_training_reads_both_types(tmp_path: Path) -> None:
    tokenizer = small_tokenizer()
    stream = TrainStream(
        data_config(tmp_path, packing="pad"),
        tokenizer,
        seed=1,
        rank=0,
        world_size=1,
        global_batch_size=2,
    )
    (step,) = itertools.islice(stream, 1)
    tensors = step.micro_batches[0].tensors
    text = tokenizer.decode(tensors["input_ids"][0])
    assert text[: len(READS)] == READS
    assert set(tensors["token_types"][0].tolist()) == {0, 1, 2}
    assert tensors["document_types"][0, 0] == 0b11


def test_explain_shows_both_types(tmp_path: Path) -> None:
    wanted = {"metadata_list": TYPES, "random_sample_metadata": False}
    (window,) = own_windows(own_config(tmp_path, [DOCUMENT], **wanted))
    (shown,) = window.documents
    assert shown.present == ("passage", "language")
    assert shown.rendered.prefix + " " + shown.rendered.body + "<eos>" == READS


def test_generation_takes_a_global_value_and_announces_the_local_type() -> None:
    written = DataConfig(metadata_config=MetadataConfig(metadata_list=TYPES))
    contexts = Contexts(written, small_tokenizer())
    given = contexts.make_context({"language": "fr", "passage": True}, "Il")
    assert given.prefix == "passage | Language: fr |||"
    with pytest.raises(ConfigurationError, match="passage is a local type; it stands at places"):
        contexts.make_context({"passage": "fr"}, "Il")


def test_evaluation_compares_both_types(tmp_path: Path) -> None:
    held_out = data_config(tmp_path, validation_file=str(tmp_path / "a.jsonl.gz"))
    documents = HeldOutDocuments(
        held_out, max_documents=None, deduplicate=False, training_overlap=None
    )
    assert documents.list_types() == ["language", "passage"]
    assert documents.carried == {"language": 1, "passage": 1}
    prompts = StyledRenderer("prompt", held_out.metadata_config)
    assert prompts.render(documents[0], TYPES).prefix == (
        "Further languages: fr, de; Written in: en."
    )


def test_the_model_card_has_both_types() -> None:
    shown = render_example(config(TYPES))
    assert shown.prefix + shown.lead + shown.body == (
        "passage | Language: en ||| Ada Lovelace wrote a <fr>program</fr>."
    )


def refusing(tmp_path: Path, key: str, **changes: Any) -> DataConfig:
    """Returns a configuration of 64 documents; the type of `key` refuses 48 of them."""
    rows = [
        {
            "text": f"Text {number}.",
            f"metadata_{key}": [{"type": "global", "value": "?" if number % 4 else "9"}],
        }
        for number in range(64)
    ]
    write_shard(tmp_path / "a.jsonl.gz", rows)
    always = {"metadata_probability": 1.0, "random_sample_metadata": False, "num_streams": 1}
    return small_config(
        tmp_path, metadata_list=[key], window_documents=64, bad_documents="skip",
        **{**always, **changes},
    )  # fmt: skip


def test_documents_refused_for_a_reason_of_the_type_are_counted(tmp_path: Path) -> None:
    (first, *_) = batches(refusing(tmp_path, "quality"), 1)
    assert first.counts["bad_documents/quality_unknown"] == 48


def test_documents_refused_for_a_reason_of_the_type_are_limited(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        batches(refusing(tmp_path, "quality", max_bad_documents=47), 1)
    assert "skipped 48 bad documents in this epoch: more than" in str(error.value)


def test_an_undeclared_reason_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        batches(refusing(tmp_path, "careless"), 1)
    assert str(error.value) == (
        f"{tmp_path}/a.jsonl.gz, line 2: a metadata type refuses the document with the reason "
        '"quality_unknown" (it is a question mark), for which there is no count; add reasons = '
        '("quality_unknown",) to the class of the type'
    )
