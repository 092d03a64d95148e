"""The column of a page that copies another one."""

from __future__ import annotations

from bsmeta.annotate.annotator import Row
from bsmeta.annotate.config import AnnotateConfig
from bsmeta.annotate.decisions import Duplicate
from bsmeta.annotate.inputs.sources import InputRecord
from bsmeta.annotate.marking import DuplicateMark


def test_the_record_names_the_kept_page() -> None:
    annotator = DuplicateMark(AnnotateConfig(duplicates="mark"))
    row = Row(InputRecord(text="text"), "published")
    assert annotator.annotate(row) == {}
    row.duplicate = Duplicate(5, "near_duplicate", "shard-000:12", 0.8906)
    assert annotator.annotate(row) == {
        "metadata_duplicate": [
            {
                "key": "duplicate",
                "type": "global",
                "value": "shard-000:12",
                "source": "near_duplicate",
                "similarity": 0.8906,
            }
        ]
    }
