"""Where the configurations, launch files, scripts and examples of the project are.

In a checkout (also one installed with `pip install -e`) they are the top-level folders. A wheel
holds the same folders under `bsmeta/resources/`, where `setup.py` puts them.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "resources"

ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent
"""The folder that contains `hydra_configs/`, `deepspeed_configs/`, `experiments/`, `examples/`."""

CONFIG_FOLDER = ROOT / "hydra_configs"
