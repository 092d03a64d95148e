"""Ranks that have read different data do not train together."""

from __future__ import annotations

import pytest

from bsmeta.core.errors import ConfigurationError
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.ranks.same_data import check_same_data
from tests.training.ranks.rank_threads import run_ranks


def test_ranks_with_the_same_data_pass() -> None:
    run_ranks(2, lambda processes: check_same_data({"shards": {"a.jsonl": 1}}, processes))


def test_the_first_rank_with_other_data_and_the_differing_keys_are_named() -> None:
    fingerprints = [{"shards": {"a.jsonl": number}} for number in (1, 1, 2)]

    def check(processes: Processes) -> str:
        with pytest.raises(ConfigurationError) as refusal:
            check_same_data(fingerprints[processes.rank], processes)
        return str(refusal.value)

    messages = run_ranks(3, check)
    assert messages == [messages[0]] * 3
    assert messages[0].startswith("rank 0 and rank 2 do not have the same training data")
    assert messages[0].endswith("shards.a.jsonl: 1 on rank 0, 2 on rank 2")
