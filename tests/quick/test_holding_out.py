"""Which pages are held out: whole sites if there are enough, else documents."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.quick.config import QuickConfig
from bsmeta.quick.documents import Page
from bsmeta.quick.holding_out import hold_out

CONFIG = QuickConfig()


def make_pages(hosts: Sequence[str]) -> list[Page]:
    """Returns a page for each host; without a host, the page has no URL."""
    return [
        Page(f"text {number}", {}, f"{host}/{number}" if host else "", host)
        for number, host in enumerate(hosts)
    ]


def test_whole_sites_are_held_out() -> None:
    pages = make_pages([f"h{number % 40}" for number in range(400)])
    chosen = hold_out(pages, CONFIG)
    held_out = {pages[number].host for number in chosen.held_out}
    training = {pages[number].host for number in chosen.training}
    assert (chosen.unit, chosen.reason) == ("site", "40 sites")
    assert not held_out & training
    assert (len(held_out), len(chosen.held_out), len(chosen.training)) == (10, 100, 300)
    assert hold_out(pages, CONFIG) == chosen
    assert hold_out(pages, QuickConfig(seed=7)) != chosen


def test_a_large_site_is_trained_on() -> None:
    pages = make_pages(["big"] * 200 + [f"h{number % 30}" for number in range(100)])
    chosen = hold_out(pages, CONFIG)
    assert "big" not in {pages[number].host for number in chosen.held_out}


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        ([""] * 100, "no page has a URL"),
        (["a", ""] * 50, "only 50 of 100 pages have a URL"),
        (["a.org"] * 100, "all pages are of one site, a.org"),
        (["a", "b", "c", "d", "e"] * 20, "5 sites are too few (fewer than 20)"),
    ],
)
def test_documents_are_held_out_if_sites_cannot_be(hosts: list[str], reason: str) -> None:
    chosen = hold_out(make_pages(hosts), CONFIG)
    assert (chosen.unit, chosen.reason) == ("document", reason)
    assert (len(chosen.held_out), len(chosen.training)) == (20, 80)
    assert sorted([*chosen.held_out, *chosen.training]) == [*range(100)]


def test_the_unit_and_the_share_can_be_chosen() -> None:
    pages = make_pages([f"h{number % 40}" for number in range(400)])
    config = QuickConfig(split_by="document", held_out_share=0.5, max_held_out=30)
    chosen = hold_out(pages, config)
    assert (chosen.unit, chosen.reason, len(chosen.held_out)) == (
        "document", "split_by=document", 30
    )  # fmt: skip

    two = make_pages(["a"] * 10 + ["b"] * 10)
    assert hold_out(two, QuickConfig(split_by="site")).unit == "site"
    with pytest.raises(ConfigurationError, match="split_by=site: all pages are of one site, a;"):
        hold_out(make_pages(["a"] * 20), QuickConfig(split_by="site"))


def test_pages_of_one_address_stay_together() -> None:
    pages = [Page(f"text {number}", {}, f"a/{number // 2}", "a") for number in range(100)]
    chosen = hold_out(pages, CONFIG)
    held_out = {pages[number].address for number in chosen.held_out}
    assert not held_out & {pages[number].address for number in chosen.training}


def test_too_few_pages_are_refused() -> None:
    with pytest.raises(DataError, match="pages: 9 pages with different texts; expected at least"):
        hold_out(make_pages([""] * 9), CONFIG)
    same = [Page(f"text {number}", {}, "a/x", "a") for number in range(20)]
    with pytest.raises(DataError, match="holding out by document leaves 0 pages to train on"):
        hold_out(same, CONFIG)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["", *(f"h{number}" for number in range(60))]), min_size=12),
    st.integers(0, 5),
    st.sampled_from(["auto", "document"]),
)
def test_every_page_is_either_trained_on_or_held_out(
    hosts: list[str], seed: int, unit: str
) -> None:
    pages = make_pages(hosts)
    chosen = hold_out(pages, QuickConfig(seed=seed, split_by=unit))
    assert chosen.held_out
    assert chosen.training
    assert sorted([*chosen.held_out, *chosen.training]) == [*range(len(pages))]
    if chosen.unit == "site":
        held_out = {pages[number].host for number in chosen.held_out}
        assert not held_out & {pages[number].host for number in chosen.training}
