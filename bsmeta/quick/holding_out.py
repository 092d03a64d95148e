"""Chooses the pages that are held out: whole sites if there are enough of them, else documents.

Pages of a site share their layout and their boilerplate, so held-out pages of a site that was
trained on say nothing about other sites. The choice follows from the seed and the pages alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.quick.config import AUTO, DOCUMENT, SITE, QuickConfig
from bsmeta.quick.documents import Page
from bsmeta.report.inference import FEW_CLUSTERS

MIN_SITES = 20
"""Number of sites from which sites are held out: enough for `FEW_CLUSTERS` on either side."""

MIN_KNOWN_SHARE = 0.9
"""Share of pages with a known host, below which documents are held out."""

MIN_PAGES = 10
"""Number of pages below which nothing is trained."""


@dataclass(frozen=True)
class HeldOut:
    """The division of the pages.

    Attributes:
        held_out: The indices of the held-out pages, ascending.
        training: The indices of the training pages, ascending.
        unit: The unit that was held out: `site` or `document`.
        reason: Why that unit was chosen.
    """

    held_out: list[int]
    training: list[int]
    unit: str
    reason: str


def hold_out(pages: Sequence[Page], config: QuickConfig) -> HeldOut:
    """Chooses the held-out pages.

    Raises:
        DataError: If there are too few pages to train and evaluate anything.
        ConfigurationError: If sites are requested, and there are too few of them.
    """
    if len(pages) < MIN_PAGES:
        raise DataError(
            f"pages: {len(pages)} pages with different texts; expected at least {MIN_PAGES}, to "
            "train a model on some and to evaluate it on others (and some hundred for a conclusion)"
        )

    hosts = Counter(page.host for page in pages if page.host)
    fault = _find_site_fault(pages, hosts)
    if config.split_by == SITE and len(hosts) < 2:
        raise ConfigurationError(
            f"split_by=site: {fault}; expected at least 2 sites; use split_by=document"
        )
    if config.split_by == DOCUMENT or (config.split_by == AUTO and fault):
        reason = fault if config.split_by == AUTO else "split_by=document"
        return _divide_pages(pages, _choose_documents(pages, config), DOCUMENT, reason)

    sites = _choose_sites(hosts, config, len(pages))
    held_out = {index for index, page in enumerate(pages) if page.host in sites}
    return _divide_pages(pages, held_out, SITE, f"{len(hosts):,} sites")


def _find_site_fault(pages: Sequence[Page], hosts: Mapping[str, int]) -> str:
    """Describes why sites cannot be held out; "" if they can.

    Args:
        hosts: Number of pages of each known host.
    """
    num_known = sum(hosts.values())
    if not hosts:
        return "no page has a URL"
    if num_known < MIN_KNOWN_SHARE * len(pages):
        return f"only {num_known:,} of {len(pages):,} pages have a URL"
    if len(hosts) == 1:
        return f"all pages are of one site, {next(iter(hosts))}"
    if len(hosts) < MIN_SITES:
        return f"{len(hosts)} sites are too few (fewer than {MIN_SITES})"
    return ""


def _choose_sites(hosts: Mapping[str, int], config: QuickConfig, count: int) -> set[str]:
    """Chooses random sites until they have enough pages, and are enough for an interval.

    A site with more than half of the pages to hold out is trained on, because the held-out pages
    must be of several sites.

    Args:
        hosts: Number of pages of each known host.
        count: Number of all pages.
    """
    target = min(config.held_out_share * count, config.max_held_out)
    min_sites = min(FEW_CLUSTERS, max(len(hosts) // 2, 1))
    small_sites = [host for host in sorted(hosts) if hosts[host] <= target / 2]
    candidates = small_sites
    if len(small_sites) < 2:
        candidates = sorted(hosts)[:-1]  # one is left to train on

    sites: set[str] = set()
    num_held_out = 0
    for index in np.random.default_rng(config.seed).permutation(len(candidates)):
        host = candidates[index]
        is_enough = num_held_out >= target and len(sites) >= min_sites
        if sites and (is_enough or num_held_out + hosts[host] > count / 2):
            break
        sites.add(host)
        num_held_out += hosts[host]
    return sites


def _choose_documents(pages: Sequence[Page], config: QuickConfig) -> set[int]:
    """Chooses random pages, and returns their indices; pages with the same URL stay together."""
    pages_by_address: dict[str, list[int]] = {}
    for index, page in enumerate(pages):
        address = page.address or f" {index}"  # a page without a URL is a group by itself
        pages_by_address.setdefault(address, []).append(index)
    groups = list(pages_by_address.values())

    requested = math.ceil(config.held_out_share * len(pages))
    target = max(min(requested, config.max_held_out, len(pages) - 2), 2)

    held_out: set[int] = set()
    for group_index in np.random.default_rng(config.seed).permutation(len(groups)):
        if len(held_out) >= target:
            break
        held_out.update(groups[group_index])
    return held_out


def _divide_pages(pages: Sequence[Page], held_out: set[int], unit: str, reason: str) -> HeldOut:
    """Divides the pages by the indices of the held-out ones.

    Raises:
        DataError: If no pages are held out, or none are left to train on.
    """
    training = [index for index in range(len(pages)) if index not in held_out]
    if not training or not held_out:
        raise DataError(
            f"pages: holding out by {unit} leaves {len(training)} pages to train on and "
            f"{len(held_out)} to evaluate; expected some of both; use split_by=document, or more "
            "pages of different URLs"
        )
    return HeldOut(sorted(held_out), training, unit, reason)
