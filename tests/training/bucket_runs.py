"""A run in the bucket of the tests: its address, its objects, and kills at its requests."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from bsmeta.models.manifest import FileEntry, find_fault
from bsmeta.training.bucket import RunBucket
from bsmeta.training.run_store import join_logs, list_log_parts
from tests.data.s3_server import BUCKET, Environ, Fault, S3Server

PREFIX = "runs/first"
URL = f"s3://{BUCKET}/{PREFIX}"


def list_names(s3: S3Server) -> list[str]:
    listing = s3.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/").get("Contents", [])
    return [entry["Key"].removeprefix(f"{PREFIX}/") for entry in listing]


def list_published(s3: S3Server, folder: Path) -> list[int]:
    """Lists the steps of the checkpoints in the bucket, of which every file must be intact."""
    steps = []
    for name in list_names(s3):
        if name.endswith("step/manifest.json"):
            content = json.loads(RunBucket(URL).read(name) or b"")
            steps.append(content["step"])
            for file, entry in content["files"].items():
                RunBucket(URL).download(f"{name.split('/')[0]}/{file}", folder / "copy")
                assert find_fault(folder / "copy", FileEntry(**entry)) is None, file
    return sorted(steps)


def matches(method: str, path: str) -> Callable[[Environ], bool]:
    return lambda environ: environ["REQUEST_METHOD"] == method and path in environ["PATH_INFO"]


def kill_at(method: str, path: str, list_processes: Callable[[], Iterable[int]]) -> Fault:
    """Returns a fault that kills processes at their first request of a form.

    Args:
        path: Regular expression of a part of the path.
        list_processes: Returns the ids of the processes, in the order in which they are killed.
    """

    def kill(environ: Environ) -> tuple[int, dict[str, str], bytes] | None:
        if environ["REQUEST_METHOD"] != method or not re.search(path, environ["PATH_INFO"]):
            return None
        for process in list_processes():
            with suppress(ProcessLookupError):  # an earlier request of another thread
                os.kill(process, signal.SIGKILL)
        return 503, {}, b""

    return kill


def copy_logs(s3: S3Server, folder: Path) -> None:
    """Copies the logs of the run in the bucket to a new folder."""
    folder.mkdir()
    for log, parts in list_log_parts(list_names(s3)).items():
        (folder / log).write_bytes(join_logs(RunBucket(URL), parts))
