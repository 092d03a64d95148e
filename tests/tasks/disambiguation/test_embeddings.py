"""Vectors of entities on disk: each computed once, also after the table has grown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bsmeta.core.errors import DataError
from bsmeta.tasks.disambiguation import embeddings
from bsmeta.tasks.disambiguation.config import DisambiguationConfig, DisambiguationDataConfig
from bsmeta.tasks.disambiguation.data import RunData
from bsmeta.tasks.disambiguation.embeddings import EntityVectors


def opened(folder: Path, texts: list[str], computed: list[int]) -> EntityVectors:
    def encode(entities: np.ndarray) -> np.ndarray:
        computed.extend(entities.tolist())
        return np.array([[len(texts[entity]), entity] for entity in entities], np.float32)

    text: Callable[[int], str] = texts.__getitem__
    return EntityVectors(folder / "vectors", len(texts), 2, text, encode)


def test_a_vector_is_computed_when_it_is_first_asked_for(tmp_path: Path) -> None:
    texts, computed = ["", "a", "bb", "ccc"], []
    vectors = opened(tmp_path, texts, computed)
    assert vectors.get(np.array([2, 1, 2])).tolist() == [[2, 2], [1, 1], [2, 2]]
    assert computed == [1, 2]
    again = opened(tmp_path, texts, computed)
    assert again.get(np.array([3, 2])).tolist() == [[3, 3], [2, 2]]
    assert computed == [1, 2, 3]


def test_only_new_and_changed_entities_are_computed_again(tmp_path: Path) -> None:
    texts, computed = ["", "a", "bb"], []
    opened(tmp_path, texts, computed).get(np.array([0, 1, 2]))
    grown = ["", "changed", "bb", "new one"]
    found = opened(tmp_path, grown, computed).get(np.arange(4))
    assert found.tolist() == [[0, 0], [7, 1], [2, 2], [7, 3]]
    assert computed == [0, 1, 2, 1, 3]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_damaged_vectors_are_refused(tmp_path: Path, value: float) -> None:
    texts, computed = ["", "a", "bb"], []
    opened(tmp_path, texts, computed).get(np.arange(3))
    path = tmp_path / "vectors/vectors.f32"
    stored = np.memmap(path, "<f4", mode="r+", shape=(3, 2))
    stored[2, 1] = value
    stored.flush()

    damaged = opened(tmp_path, texts, computed)
    assert damaged.get(np.array([0, 1])).tolist() == [[0, 0], [1, 1]]
    with pytest.raises(DataError) as error:
        damaged.get(np.array([1, 2]))
    assert str(error.value) == (
        f"{path}: the vector of entity 2 has values that are not finite: the file is damaged, or "
        f"the model computes such values; delete the folder {path.parent}, and the vectors are "
        "computed again"
    )


def test_vectors_and_neighbors_report_their_progress(
    world: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: list[int]
) -> None:
    """The first epoch of a large table takes hours, in which no step ends."""
    monkeypatch.setattr(embeddings, "MAX_BATCH_TOKENS", 1)  # an entity is a batch
    monkeypatch.setattr(embeddings, "QUERY_BATCH_SIZE", 1)
    config = DisambiguationConfig(
        model_name=str(encoder),
        train_entity_layers=0,
        hard_negatives=2,
        data_config=DisambiguationDataConfig(
            train_file=str(world / "train.jsonl"),
            max_entity_length=48,
            entity_table=str(world / "entities"),
            prep_dir=str(tmp_path / "prep"),
            vectors_dir=str(tmp_path / "vectors"),
        ),
    )
    data = RunData(config)
    candidates = len(data.table.find_all_candidates(data.train.read_aliases()))
    reported.clear()
    data.compute_frozen_outputs()
    with_neighbors = np.count_nonzero(data.counts)
    assert (candidates, with_neighbors) == (13, 12)
    assert len(reported) >= candidates + with_neighbors
