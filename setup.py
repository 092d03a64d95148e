"""Installs `bsmeta` with the exact versions of requirements.txt.

Entry points, configurations and launch scripts are run from the repository (`pip install -e .`).
"""

from __future__ import annotations

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def requirements() -> list[str]:
    """The lines of requirements.txt without comments."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


setup(
    name="bsmeta",
    version="0.1.0",
    description="Language models trained on text together with its metadata",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["bsmeta", "bsmeta.*"]),
    install_requires=requirements(),
    extras_require={
        "fast": ["gigatoken==0.10.0"],
        "cluster": ["datatrove==0.10.1"],  # annotation through Slurm or Ray
        "bootleg": ["marisa-trie==1.4.1"],  # entity folders of Bootleg from release 1.1 on
        "downstream": ["lm_eval==0.4.13"],  # benchmarks of exported models in studies
        "spelling": [
            "codespell==2.4.3",
            "symspellpy==6.10.1",
        ],  # misspellings, a baseline
        "trackers": ["wandb==0.31.0", "trackio==0.43.0"],  # tested; tensorboard is always there
    },
)
