"""C4, FineWeb, Dolma and DCLM as they are published: same guarantees as shards of records.

The files are written in the published form (`corpora`) and read through the shipped groups.
"""

from __future__ import annotations

import itertools
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from _pytest.mark import ParameterSet

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.data import DataConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.data.stream.columns import describe_missing_types, find_column_problems
from bsmeta.data.stream.train_stream import TrainStream
from tests.conftest import REPOSITORY
from tests.data.corpora import CORPORA, SIZES, TEXT_OF, URL_OF, overrides, write_corpus
from tests.data.helpers import Run, run, same, small_tokenizer
from tests.data.hub_server import Hub

STEPS, BATCH = 10, 8
TYPES = "[url,timestamp,source,dump,language,language_score,token_count,quality]"
PREFIXES = {
    "c4_en": "url: https://site0.org/0 | Year: 2019 | Month: April ||| 0 the quick",
    "fineweb": "url: https://site0.org/0 | Year: 2013 | Month: May | dump: CC-MAIN-2013-20 | "
    "language: en | language_score: 0.9185 | token_count: 3 ||| 0 the quick",
    "fineweb_edu": "url: https://site0.org/0 | dump: CC-MAIN-2013-20 | language: en | "
    "language_score: 0.9185 | token_count: 3 | quality: 3 ||| 0 the quick",
    "dolma": "url: https://site0.org/0 | Year: 2019 | Month: April | source: c4 ||| 0 the quick",
    "dclm": "url: https://site0.org/0 | Year: 2013 | Month: May | quality: 0 ||| 0 the quick",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    for name in CORPORA:
        write_corpus(name, folder / name)
    return folder


def config(name: str, folder: Path, *more: str) -> DataConfig:
    return deepcopy(compose_config(name, folder, *more))


@cache
def compose_config(name: str, folder: Path, *more: str) -> DataConfig:
    """Composes a configuration; cached, since that takes longer than the steps of most tests."""
    small = (
        "data_config.window_documents=8",
        "data_config.per_device_train_batch_size=2",
        f"data_config.cache_dir={folder / 'cache'}",
        "data_config.metadata_config.max_seq_len=256",
        f"data_config.metadata_config.metadata_list={TYPES}",
    )
    return compose_command_line(
        CausalLMConfig, "demo", [*overrides(name, folder / name), *small, *more]
    ).data_config


def test_every_group_that_maps_columns_is_tested_and_documented() -> None:
    files = (REPOSITORY / "hydra_configs/data").glob("*.yaml")
    sections = {file.stem: yaml.safe_load(file.read_text())["data_config"] for file in files}
    groups = {name for name, section in sections.items() if "columns" in section}
    assert groups == set(CORPORA) == set(PREFIXES)
    types = {name for group in groups for name in sections[group]["columns"]}
    assert types == {"text", *TYPES[1:-1].split(",")}
    page = (REPOSITORY / "docs/data.md").read_text()
    assert [name for name in sorted(groups) if f"\n| `data={name}` |" not in page] == []


@pytest.mark.parametrize("name", CORPORA)
def test_the_columns_of_a_group_match_the_corpus(folder: Path, name: str) -> None:
    found = config(name, folder)
    assert [*find_column_problems(found)] == []
    unmapped = [name for name in TYPES[1:-1].split(",") if name not in found.columns]
    (note,) = describe_missing_types(found)
    assert f"has {', '.join(unmapped)} (metadata_list)" in note


@pytest.mark.parametrize("name", CORPORA)
def test_the_first_document_has_the_expected_prefix(folder: Path, name: str) -> None:
    metadata = "data_config.metadata_config"
    found = config(
        name, folder, f"{metadata}.metadata_probability=1", f"{metadata}.max_seq_len=1024",
        f"{metadata}.random_sample_metadata=false", f"{metadata}.value_bucket_scale={{quality: 1}}",
        "data_config.packing=pad", "data_config.num_streams=1", "data_config.window_documents=100",
    )  # fmt: skip
    stream = TrainStream(
        found, small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
    )
    first = f"{stream._streams.shards[1 if name == 'dolma' else 0].name}:0"
    texts = {
        sequence.documents[0]: small_tokenizer().decode(sequence.ids)
        for sequence in itertools.takewhile(
            lambda sequence: not sequence.position_after.epoch, stream.iterate_sequences(0)
        )
    }
    expected = PREFIXES[name]
    if name == "dolma":  # its first shard by name is another one
        expected = expected.replace("/0 ", "/3000 ").replace("0 the", "3000 the")
    assert texts[first].startswith(expected)


@pytest.mark.parametrize("name", CORPORA)
def test_each_epoch_has_every_document_once_and_no_held_out_document(
    folder: Path, name: str
) -> None:
    stream = TrainStream(
        config(name, folder), small_tokenizer(), seed=1, rank=0, world_size=1, global_batch_size=2
    )
    seen: Counter[str] = Counter()
    for number in range(8):
        epoch = itertools.takewhile(
            lambda sequence: sequence.position_after.epoch == 0, stream.iterate_sequences(number)
        )
        seen.update(name for sequence in epoch for name in sequence.documents)
    assert set(seen.values()) == {1}
    names = dict(zip(sorted(CORPORA[name].shards), SIZES, strict=True))
    every = {
        f"{Path(shard).name}:{number}" for shard, size in names.items() for number in range(size)
    }
    first = Path(CORPORA[name].shards[0]).name
    held_out = {TEXT_OF, URL_OF} if "url" in config(name, folder).columns else {TEXT_OF}
    expected = every - {f"{first}:{number}" for number in held_out}
    assert {Path(name).name for name in seen} == expected


def list_combinations() -> list[ParameterSet]:
    combinations = []
    for name, world_size, workers in itertools.product(CORPORA, (1, 2, 4), (0, 2)):
        quick = (name, world_size) == ("c4_en", 2) or (world_size, workers) == (4, 0)
        marks = [] if quick else [pytest.mark.slow]
        combinations.append(pytest.param(name, world_size, workers, marks=marks))
    return combinations


@pytest.mark.parametrize(("name", "world_size", "workers"), list_combinations())
def test_batches_are_the_same_over_a_resume_for_any_number_of_processes(
    folder: Path, name: str, world_size: int, workers: int
) -> None:
    whole = run(config(name, folder), STEPS, batch=BATCH)
    changed = config(name, folder, f"data_config.num_workers={workers}")
    first = run(changed, 4, batch=BATCH, world_size=world_size)
    rest = run(config(name, folder), STEPS - 4, batch=BATCH, state=first.state)
    assert same(Run(first.steps + rest.steps, first.documents + rest.documents, {}), whole)
    assert rest.state == whole.state


def test_other_columns_are_refused_on_resume(folder: Path) -> None:
    state = run(config("c4_en", folder), 1).state
    with pytest.raises(ConfigurationError, match=r"columns.timestamp: timestamp in the checkpoint"):
        run(config("c4_en", folder, "data_config.columns.timestamp=url"), 1, state=state)


def test_column_paths_that_no_document_has_are_refused(folder: Path) -> None:
    """At the check of a configuration, and when the run opens its data."""
    wrong = ["data_config.columns.timestamp=date", "data_config.columns.quality=metadata"]
    found = config("dclm", folder, *wrong)
    problems = [*find_column_problems(found)]
    assert [problem.key for problem in problems] == [
        "data_config.columns.timestamp",
        "data_config.columns.quality",
    ]
    date, quality = problems
    assert date.found == '"date", which none of the first 100 documents has'
    assert "one of their columns: bff_contained_ngram_count_before_dedupe, " in date.expected
    assert "(did you mean metadata.WARC-Date?)" in date.expected
    assert quality.found == '"metadata", which is an object'
    assert "; in it: metadata.Content-Length, metadata.Content-Type, " in quality.expected
    with pytest.raises(ConfigurationError, match='found "date", which none of the first 100'):
        run(found, 1)


def test_a_text_column_of_another_name_must_be_mapped(folder: Path) -> None:
    found = config("c4_en", folder, "data_config.columns.text=content")
    (problem,) = find_column_problems(found)
    assert problem.fix == "data_config.columns.text=text"


def test_types_of_plain_columns_are_suggested(folder: Path) -> None:
    found = replace(config("c4_en", folder), columns={})
    (note,) = describe_missing_types(found)
    assert "it would train on text alone" in note
    assert note.endswith("(data_config.columns={url: url} uses a plain column)")


def test_batches_from_the_hub_equal_batches_of_local_files(hub: Hub, folder: Path) -> None:
    """A wrong path is reported when the run opens its data."""
    local, repository = folder / "c4_en", "hf://datasets/owner/name"
    hub.files = hub.listed = {path.name: path.read_bytes() for path in local.iterdir()}
    remote = [
        f"data_config.train_file={repository}/{CORPORA['c4_en'].pattern}",
        f"data_config.validation_file={repository}/{CORPORA['c4_en'].held_out}",
    ]
    streamed = run(config("c4_en", folder, *remote), 4)
    assert same(streamed, run(config("c4_en", folder), 4))
    wrong = config("c4_en", folder, *remote, "data_config.columns.url=link")
    assert [*find_column_problems(wrong)] == []  # the check of a configuration reads no remote file
    with pytest.raises(ConfigurationError, match=r'columns.url in .* found "link", which none of'):
        run(wrong, 1)
