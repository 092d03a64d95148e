"""Every shell block of README.md and docs/ is run, in the order of its page, or names its needs.

Each page has a folder of its own with the sample, the configurations and the run of `make demo`.
Training is made short by further overrides; the commands themselves stay as they are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import NEEDS, PAGES, blocks, runnable
from tests.docs.shortening import LM, UNCHANGED, shorten
from tests.warm import REPOSITORY

# Pages that use what the blocks of another one have made.
FIRST = {"docs/annotation.md": "docs/disambiguation.md"}
# A page that begins in an empty folder, with the installed package.
EMPTY = "docs/tutorial.md"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands need, and a short run of the demo."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("bsmeta", "experiments", "examples", "hydra_configs", "deepspeed_configs"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / ".venv").symlink_to(sys.prefix)
    launch = "accelerate launch --config_file experiments/accelerate/cpu_zero2.yaml"
    run(f"{launch} bsmeta/train.py --config-name demo {LM} save_steps=3", folder)
    return folder


@pytest.fixture
def folder(demo: Path, tmp_path: Path) -> Path:
    """A copy of that folder, with a user's files in data/."""
    copy = tmp_path / "page"
    shutil.copytree(demo, copy, symlinks=True)
    (copy / "data/mine").mkdir(parents=True)
    for name, words in (("pages", "a"), ("test", "b")):
        rows = [
            {"text": f"{words}{number} " * 20, "url": f"https://{words}.example.org/{number}"}
            for number in range(60)
        ]
        (copy / f"data/mine/{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return copy


def run(code: str, folder: Path) -> None:
    """Runs shell code in a folder, and fails with its output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    cache = str(folder / "cache")
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "BSMETA_CACHE": cache}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{code}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)])
def test_the_commands_of_a_page_run(page: str, folder: Path) -> None:
    if page == EMPTY:
        folder = folder.parent / "empty"
        folder.mkdir()
    for first in filter(None, (FIRST.get(page), page)):
        for code in runnable(first):
            run(shorten(code, first, folder), folder)
    if page == "docs/disambiguation.md":
        linked = {
            name: {
                entity["mention"]: entity["entity"]
                for entity in json.loads((folder / f"data/{name}.jsonl").read_text())["entities"]
            }
            for name in ("entities", "more_entities")
        }
        assert "way" not in linked["entities"]
        assert linked["more_entities"]["way"] == "x1"


@pytest.mark.parametrize("page", PAGES)
def test_a_block_is_run_or_names_its_needs(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    assert re.findall(r"^```(?:sh|shell|console)$", text, re.M) == [], "write ```bash"
    assert len(blocks(page)) == len(re.findall(r"^```bash$", text, re.M))
    marked = re.findall(r"^<!-- needs:", text, re.M)
    assert len(marked) == sum(bool(block.needs) for block in blocks(page))
    assert {need for block in blocks(page) for need in block.needs} <= set(NEEDS)


@pytest.mark.parametrize("page", PAGES)
def test_a_training_run_of_a_page_may_be_repeated(page: str) -> None:
    """`make demo` leaves runs/demo, which the commands read and must not replace."""
    for code in runnable(page):
        for line in re.sub(r" *\\\n *", " ", code).splitlines():
            trains = re.search(r"train(\.py|\.sh)? .*--config-name demo ", line)
            if trains and not re.search(rf"{UNCHANGED.pattern}|resume_from", line):
                assert re.search(r"out_dir=runs/(?!demo)\w+ .*overwrite_out_dir=true", line), line


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\((?!https:)([^)#]+)", (REPOSITORY / page).read_text())
    assert [link for link in links if not (REPOSITORY / page).parent.joinpath(link).exists()] == []


def test_the_readme_stays_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 120
