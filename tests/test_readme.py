"""The commands of README and docs, as written, after `make demo`: in any order, and again."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
# What makes a training run small; the commands themselves stay as they are.
SMALL = (
    "max_train_steps=2 num_warmup_steps=0 eval_steps=0 save_steps=0 trackers=[]"
    " data_config.metadata_config.max_seq_len=64 data_config.window_documents=4"
)


PAGES = ("README.md", *(f"docs/{page}.md" for page in ("training", "metadata", "generation")))


def commands() -> list[str]:
    """The commands of the pages' shell blocks, each in one line, without comments."""
    text = "".join((REPOSITORY / page).read_text() for page in PAGES)
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    lines = re.sub(r" *\\\n *", " ", "".join(blocks)).splitlines()
    return [line for line in (re.sub(r" +# .*|^#.*", "", line) for line in lines) if line]


def on_the_sample() -> list[str]:
    """Those that need nothing but the sample and the demo's run."""
    mine = re.compile(
        r"--config-name demo|BSMETA_CONFIG=demo experiments|BSMETA_RESUME|requests"
        r"|examples/rawpages"
    )
    elsewhere = re.compile(r"zero2\.yaml .*v2|sweep|page\.html|\|")
    found = [line for line in commands() if mine.search(line) and not elsewhere.search(line)]
    return list(dict.fromkeys(line for line in found if "make " not in line))


def small(command: str) -> str:
    trains = "train.py" in command or "train.sh" in command
    return f"{command} {SMALL}" if trains and "BSMETA_RESUME" not in command else command


def run(command: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_the_commands_on_the_sample_work_again_and_in_another_order(tmp_path: Path) -> None:
    for name in ("bsmeta", "experiments", "examples", "hydra_configs", "deepspeed_configs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    launch = "accelerate launch --config_file experiments/accelerate/cpu_zero2.yaml"
    run(small(f"{launch} bsmeta/train.py --config-name demo"), tmp_path)  # as make demo does
    found = on_the_sample()
    assert len(found) >= 8
    for command in [*found, *reversed(found)]:
        run(small(command), tmp_path)


def test_a_training_run_of_the_readme_has_a_folder_that_may_be_replaced() -> None:
    """`make demo` leaves runs/demo, which later commands read."""
    for command in on_the_sample():
        if "train." in command and "esume" not in command.lower():
            assert re.search(r"out_dir=runs/(?!demo)\w+ overwrite_out_dir=true", command), command


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in DOCS.glob("*.md"))]
)
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)", (REPOSITORY / page).read_text())
    assert [link for link in links if not (REPOSITORY / page).parent.joinpath(link).exists()] == []


def test_the_readme_stays_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 150
