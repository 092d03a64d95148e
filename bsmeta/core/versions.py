"""The versions that a bug report needs, from the packages' metadata: none is imported."""

from __future__ import annotations

import platform
from importlib import metadata

from bsmeta.core.version import __version__

LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "deepspeed",
    "hydra-core",
    "datasets",
    "pyarrow",
    "numpy",
)
"""The libraries on whose versions a run depends most."""


def version_lines() -> str:
    """The versions of the package, of Python, of the system, and of libraries, a line each."""
    rows = versions()
    width = max(map(len, rows)) + 2
    rows["python"] = f"{platform.python_version()} ({platform.python_implementation()})"
    rows["system"] = platform.platform()
    return "\n".join(f"{name:<{width}}{version}" for name, version in rows.items())


def versions() -> dict[str, str]:
    """The versions of the package and of libraries, by name."""
    return {name: _version(name) for name in ("bsmeta", *LIBRARIES)}


def _version(name: str) -> str:
    if name == "bsmeta":  # a clone need not be installed
        return __version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
