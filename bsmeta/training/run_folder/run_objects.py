"""The objects of a run in a bucket: their names, and the logs that they hold in parts.

.bsmeta-run/run.txt                 marks the prefix as a run's
.bsmeta-run/claim-000002            names the process that may write
checkpoint-8step/…, manifest.json   the manifest last, by a conditional upload
metrics.jsonl/000002-000001         lines of a log: start of the run, number of the part
status.json, config.yaml, model/…   other files, as they are
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bsmeta.config.steps import CHECKPOINT_NAME
from bsmeta.training.buckets.bucket import RunBucket

RUN_OBJECTS = ".bsmeta-run"
MARK_OBJECT = f"{RUN_OBJECTS}/run.txt"
REHEARSAL_OBJECTS = f"{RUN_OBJECTS}/rehearsal"
CLAIM = re.compile(rf"{re.escape(RUN_OBJECTS)}/claim-([0-9]{{6}})")
"""Name of a claim, with its number."""
LOG = re.compile(r"[^/]+\.jsonl|log-rank\d+\.txt")
"""Name of a log, whose lines are uploaded in parts."""
LOG_PART = re.compile(rf"({LOG.pattern})/(\d{{6}})-(\d{{6}})")
"""Name of a part, with the log, the start of the run, and the number of the part."""


def is_internal(name: str) -> bool:
    """Whether a file is not published by itself: it belongs to a checkpoint, or is unfinished."""
    parts = name.split("/")
    is_unfinished = any(part.startswith(".") or part.endswith(".part") for part in parts)
    is_saved = CHECKPOINT_NAME.fullmatch(parts[0]) is not None
    return is_unfinished or is_saved or parts[0].startswith("tmp-")


def is_claim(name: str) -> bool:
    """Whether an object is the claim of a process."""
    return CLAIM.fullmatch(name) is not None


def list_log_parts(names: Iterable[str]) -> dict[str, list[str]]:
    """Lists the parts of each log among objects, in order.

    Each start of a run uploads the earlier lines again, so only the parts of the last one count.
    """
    starts: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names):
        match = LOG_PART.fullmatch(name)
        if match is not None:
            starts.setdefault(match[1], {}).setdefault(match[2], []).append(name)
    return {log: parts[max(parts)] for log, parts in starts.items()}


def join_logs(bucket: RunBucket, parts: list[str]) -> bytes:
    """Reads the parts of a log as one text.

    A part has complete lines. If it was cut, only its last line is lost, not the next part's first.
    """
    contents = (bucket.read(part) or b"" for part in parts)
    return b"".join(
        content if content.endswith(b"\n") else content + b"\n" for content in contents if content
    )
