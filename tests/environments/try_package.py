"""Tries the installed package in the environment of this Python, which needs only the base install.

    python -m tests.environments.try_package      (in a checkout, whose own package is not used)

A configuration is checked, four steps are trained under DeepSpeed, the tutorial is followed to its
first table, and the functions of the Python interface are called. The first failure ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tests.docs.pages import runnable
from tests.docs.shortening import shorten

TUTORIAL = "docs/tutorial.md"
LAST_OF_TUTORIAL = "bsmeta evaluate checkpoint=runs/url\n"
STEPS = "max_train_steps=4 eval_steps=0 save_steps=2 logging_steps=1 data_config.num_workers=1"
SHOWN_VERSIONS = ("torch", "transformers", "accelerate", "deepspeed", "numpy", "huggingface_hub")

# A function, because the processes of the loader may import this file.
INTERFACE = """
import bsmeta
from torch.utils.data import DataLoader

def main():
    steps = {"max_train_steps": 4, "eval_steps": 0, "save_steps": 0, "out_dir": "runs/api"}
    run = bsmeta.train_model("demo", steps)
    report = bsmeta.evaluate_model(run, {"comparisons": ["all"], "max_documents": 2})
    assert report.answers

    model = bsmeta.load(run, task="causal_lm")
    page = {"text": "A set is a collection.", "metadata": {"title": "Set types"}}
    (score,) = model.score([page])
    assert score.bits_per_byte > 0 and score.bits_per_byte_without > 0
    assert bsmeta.render("A set is", {"title": "Set types"}).text == "Title: Set types ||| A set is"

    expected = next(bsmeta.stream("demo")).tensors["input_ids"]
    loader = DataLoader(bsmeta.stream("demo"), batch_size=None, num_workers=1)
    assert next(iter(loader)).tensors["input_ids"].equal(expected)

if __name__ == "__main__":
    main()
"""


def list_checks(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields each check with its shell code, in the order in which they must run."""
    launch = "accelerate launch --config_file experiments/accelerate/cpu_zero2.yaml"
    blocks = runnable(TUTORIAL)
    blocks = blocks[: blocks.index(LAST_OF_TUTORIAL) + 1]
    yield blocks[0].splitlines()[0], shorten(blocks[0], TUTORIAL, folder)
    yield "check_only", "bsmeta train --config-name demo check_only=true"
    yield "four steps", f"{launch} -m bsmeta.train --config-name demo {STEPS}"
    for block in blocks[1:]:
        yield f"tutorial: {block.splitlines()[0]}", shorten(block, TUTORIAL, folder)
    yield "Python interface", "python interface.py"


def run(code: str, folder: Path) -> None:
    """Runs shell code in a folder, with the programs of this environment.

    Raises:
        SystemExit: With its output, if it fails.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-8000:]}\nfailed with code {done.returncode}:\n{code}")


def main() -> None:
    versions = " ".join(f"{name}=={version(name)}" for name in SHOWN_VERSIONS)
    print(f"Python {sys.version.split(' ')[0]}, {versions}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "interface.py").write_text(INTERFACE)
        for title, code in list_checks(folder):
            start = time.monotonic()
            run(code, folder)
            print(f"{time.monotonic() - start:6.1f} s  {title}", flush=True)


if __name__ == "__main__":
    main()
