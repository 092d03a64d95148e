"""Every program that writes reports a full disk by name; none ends with a traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.conftest import REPOSITORY, run_warm
from tests.disks import small_disk

__all__ = ["small_disk"]

pytestmark = pytest.mark.faults

EXAMPLES = REPOSITORY / "examples"
PAGES = EXAMPLES / "rawpages/raw-000.jsonl.gz"

PROGRAMS = {
    "train": [
        "bsmeta/train.py", "--config-name", "demo", "max_train_steps=4", "num_warmup_steps=1",
        "out_dir={disk}/out",
    ],
    "annotate": [
        "bsmeta/annotate.py", f"input={PAGES}", "output={disk}/out", "workers=1",
        "check_disk=false",
    ],
    "stage": ["-m", "bsmeta.data.stage", "--config-name", "demo", "out={disk}/out"],
    "prepare": ["-m", "bsmeta.data.prepare", "--config-name", "demo", "epochs=1", "out={disk}/out"],
    "entities": [
        "bsmeta/entities.py", "table={disk}/out",
        f"profiles={EXAMPLES}/senses_sample/profiles.jsonl.gz",
    ],
    "init": ["-m", "bsmeta", "init", "{disk}/out"],
    "index": [
        "-m", "bsmeta.data.io.lines", f"{EXAMPLES}/webdocs/*.jsonl.gz", "--cache", "{disk}/out",
    ],
}  # fmt: skip


def run(disk: Path, *arguments: str) -> CompletedProcess[str]:
    command = [argument.format(disk=disk) for argument in arguments]
    return run_warm([sys.executable, *command], REPOSITORY)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_full_disk_is_named(small_disk: Path, name: str) -> None:
    (small_disk / "filler").write_bytes(bytes(400_000))
    done = run(small_disk, *PROGRAMS[name])
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert str(small_disk) in done.stderr
    assert "No space left on device" in done.stderr or "free" in done.stderr


def test_an_unexpected_write_error_names_the_disk(small_disk: Path, tmp_path: Path) -> None:
    """Write errors do not name their file."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from bsmeta.core.process import run_and_report\n"
        "def write(): Path(sys.argv[1]).write_bytes(bytes(1_000_000))\n"
        "sys.exit(run_and_report(write))\n"
    )
    done = run(small_disk, str(program), "{disk}/file")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no room is left on the disk (")
    assert str(small_disk) in done.stderr.partition(")")[0]
    assert "Traceback" not in done.stderr
