"""The slices of the seed documents: what they contain, and what must hold among them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bsmeta.tasks.disambiguation.report import (
    BUILT_IN_SLICES,
    POPULAR,
    Scored,
    bin_by_count,
    compute_metrics,
    compute_results,
    find_built_in_slices,
    mark_bands,
    mark_line_slices,
    select_slices,
    summarize_results,
)


def scored(
    rows: list[tuple[int, int, int, int]], own: dict[str, list[bool]] | None = None
) -> Scored:
    """Mentions as (rank, place, candidates, training count), two in each document."""
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    none = np.zeros(len(rows), np.int64)
    return Scored(
        *columns,
        documents=np.arange(len(rows)) // 2,
        **dict.fromkeys(("sentences", "positions", "aliases", "answers"), none),
        gold=none[:, None],
        shares=none.astype(float),
        line_slices={name: np.array(members) for name, members in (own or {}).items()},
        loss=np.zeros(len(rows)),
    )  # fmt: skip


@st.composite
def mentions(draw: st.DrawFn) -> Scored:
    rows = []
    for _ in range(draw(st.integers(1, 30))):
        candidates = draw(st.integers(1, 30))
        place = draw(st.integers(-1, candidates - 1))
        rank = -1 if place < 0 else draw(st.integers(0, candidates - 1))
        count = draw(st.sampled_from([0, 1, 10, 11, 500, 1000, 1001, 9999]))
        rows.append((rank, place, candidates, count))
    return scored(rows)


def test_bands_begin_and_end_at_the_counts_of_the_documents() -> None:
    found = mark_bands(np.array([0, 1, 10, 11, 1000, 1001]))
    assert {name: members.tolist() for name, members in found.items()} == {
        "toes": [True, False, False, False, False, False],
        "tail": [True, True, True, False, False, False],
        "torso": [False, False, False, True, True, False],
        "head": [False, False, False, False, False, True],
    }


def test_the_names_of_built_in_slices_are_those_that_are_found() -> None:
    assert (*find_built_in_slices(scored([(0, 0, 1, 0)])),) == BUILT_IN_SLICES


@given(mentions())
def test_what_must_hold_among_slices(some: Scored) -> None:
    found = select_slices(some)
    assert not (found["toes"] & ~found["tail"]).any()
    assert not (found["unif_NS_TS"] & ~found["unif_NS_TL"]).any()
    parts = ("unif_NS_TL", "unif_NS_TO", "unif_NS_HD")
    assert (sum(found[name].astype(int) for name in parts) == found["unif_NS_all"]).all()
    assert (sum(found[name].astype(int) for name in ("tail", "torso", "head")) == 1).all()
    for band in ("toes", "tail", "torso"):
        members = found[f"not_most_popular_{band}"]
        assert compute_metrics(some, members)["popular_accuracy"] in (
            0.0,
            pytest.approx(np.nan, nan_ok=True),
        )
        assert not (members & ~found[band]).any()
    assert found["final_loss"].all()
    for members in found.values():
        values = compute_metrics(some, members)
        assert values["mentions_in_candidates"] <= values["mentions"]
        if values["mentions"]:
            assert values["accuracy"] <= values["top5"]


def test_metrics_of_a_slice() -> None:
    some = scored([(0, 0, 3, 5), (4, 1, 9, 0), (5, 0, 9, 2000), (-1, -1, 2, 0)])
    assert compute_metrics(some, np.array([True] * 4)) == {
        "mentions": 4.0, "accuracy": 0.25, "top5": 0.5, "popular_accuracy": 0.5,
        "mentions_in_candidates": 3.0, "accuracy_in_candidates": pytest.approx(1 / 3),
        "top5_in_candidates": pytest.approx(2 / 3),
        "popular_accuracy_in_candidates": pytest.approx(2 / 3),
    }  # fmt: skip


def test_slices_of_lines_stand_beside_the_others() -> None:
    own = mark_line_slices([("rare", "long"), (), ("long",)])
    assert {name: members.tolist() for name, members in own.items()} == {
        "long": [True, False, True], "rare": [True, False, False],
    }  # fmt: skip
    some = scored([(0, 0, 1, 0)] * 3, {name: members.tolist() for name, members in own.items()})
    assert select_slices(some, ["rare"])["rare"].tolist() == [True, False, False]
    assert [*select_slices(some, ["rare", "of another file"])] == ["final_loss", "rare"]


def test_a_slice_of_lines_does_not_replace_a_built_in_one() -> None:
    own = mark_line_slices([("unif_NS_TL", "rare"), ()])
    assert [*own] == ["rare", "unif_NS_TL_of_lines"]
    some = scored([(0, 0, 1, 0), (0, 0, 2, 0)], {name: own[name].tolist() for name in own})
    found = select_slices(some, ["unif_NS_TL"])
    assert [*found] == ["final_loss", "unif_NS_TL", "unif_NS_TL_of_lines"]
    assert found["unif_NS_TL"].tolist() == [False, True]
    assert found["unif_NS_TL_of_lines"].tolist() == [True, False]


def test_the_names_of_bootleg_are_reported_if_they_are_named() -> None:
    some = scored([(0, 0, 1, 0), (0, 0, 2, 50), (0, 0, 1, 2000)])
    assert not {"unif_all", "unif_HD"} & {*select_slices(some)}
    named = ["unif_all", "unif_HD", "unif_TO", "unif_TL", "unif_TS", "unif_NS_all"]
    found = {name: members.tolist() for name, members in select_slices(some, named).items()}
    assert found == {
        "final_loss": [True, True, True], "unif_all": [True, True, True],
        "unif_HD": [False, False, True], "unif_TO": [False, True, False],
        "unif_TL": [True, False, False], "unif_TS": [True, False, False],
        "unif_NS_all": [False, True, False],
    }  # fmt: skip


def test_gains_are_paired_over_documents() -> None:
    # In each of 10 documents, the model is right twice and the most popular candidate once.
    some = scored([(0, 0, 3, 1), (0, 1, 3, 2)] * 10)
    results = compute_results(
        some,
        {},
        source="dev",
        chosen=["tail"],
        notes=["2 of 9 sentences are in the training data, too"],
        resamples=200,
        seed=1,
    )
    assert (results.documents, results.systems) == (10, ["model", POPULAR])
    (everything, tail) = results.slices
    gain = tail.difference[POPULAR]
    assert (gain.value, gain.interval.low, gain.interval.high) == (0.5, 0.5, 0.5)
    assert everything.accuracy[POPULAR].value == 0.5
    assert [(one.name, one.metrics["mentions"]) for one in results.by_count] == [
        ("1", 10.0), ("2–3", 10.0),
    ]  # fmt: skip
    *_, note, warning = summarize_results(results)
    assert note == "2 of 9 sentences are in the training data, too."
    assert warning.startswith("10 documents are few to resample: 95% intervals over")


def test_bins_of_the_plot() -> None:
    bins = bin_by_count(np.array([0, 1, 3, 10, 11, 1000, 1001, 5000]))
    assert {name: int(members.sum()) for name, members in bins.items()} == {
        "0": 1, "1": 1, "2–3": 1, "4–10": 1, "11–30": 1, "301–1,000": 1, "1,000+": 2,
    }  # fmt: skip
