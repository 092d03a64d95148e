"""References to files, local and remote."""

from __future__ import annotations

import pickle
from pathlib import Path

from tests.data.hub_fixtures import hub_file


def test_a_reference_round_trips_through_pickle(tmp_path: Path) -> None:
    path = hub_file(tmp_path)
    again = pickle.loads(pickle.dumps(path))
    assert again == path
    assert str(again) == f"hf://datasets/owner/name@c0ffee{'0' * 34}/data.bin"
    assert (again.path, again.size, again.settings) == ("data.bin", 7700, path.settings)
