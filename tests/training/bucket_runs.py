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
from bsmeta.training.buckets.choice import open_bucket
from bsmeta.training.run_folder.run_objects import join_logs, list_log_parts
from tests.data.bucket_server import RUN_PREFIX, BucketServer, Environ, Fault


def list_names(server: BucketServer) -> list[str]:
    """Lists the objects of the run."""
    prefix = f"{RUN_PREFIX}/"
    return [key.removeprefix(prefix) for key in server.list_keys() if key.startswith(prefix)]


def list_published(server: BucketServer, folder: Path) -> list[int]:
    """Lists the steps of the checkpoints in the bucket, of which every file must be intact."""
    bucket = open_bucket(server.run_url)
    steps = []
    for name in list_names(server):
        if name.endswith("step/manifest.json"):
            content = json.loads(bucket.read(name) or b"")
            steps.append(content["step"])
            for file, entry in content["files"].items():
                bucket.download(f"{name.split('/')[0]}/{file}", folder / "copy")
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


def copy_logs(server: BucketServer, folder: Path) -> None:
    """Copies the logs of the run in the bucket to a new folder."""
    folder.mkdir()
    for log, parts in list_log_parts(list_names(server)).items():
        (folder / log).write_bytes(join_logs(open_bucket(server.run_url), parts))
