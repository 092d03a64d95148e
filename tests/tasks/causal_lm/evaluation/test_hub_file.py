"""The held-out file may lie on the Hub."""

from __future__ import annotations

import json
from pathlib import Path

from bsmeta.config.data import DataConfig
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from tests.data.hub_fixtures import hub
from tests.data.hub_server import COMMIT, TOKEN, Hub, failing

__all__ = ["hub"]


def test_its_documents_are_read_and_named_as_those_of_a_local_file(
    hub: Hub, tmp_path: Path
) -> None:
    lines = [json.dumps({"text": f"text {number}"}) for number in range(300)]
    hub.files = hub.listed = {"test.jsonl": "\n".join(lines).encode()}
    hub.token = TOKEN
    hub.faults = [failing(500, 2)]
    config = DataConfig(
        dataset_name="owner/name", validation_file="test.jsonl", cache_dir=str(tmp_path)
    )
    documents = HeldOutDocuments(config, max_documents=None, deduplicate=False)
    assert str(documents.path) == f"hf://datasets/owner/name@{COMMIT}/test.jsonl"
    assert len(documents) == 300
    assert documents[299].text == "text 299"
    assert documents.name(299) == "test.jsonl:299"
