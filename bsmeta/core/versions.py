"""The versions that a bug report needs, read from package metadata without importing anything."""

from __future__ import annotations

import platform

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
"""The libraries whose versions affect a run most."""


def list_version_lines() -> str:
    """Returns the versions of the package, libraries, Python and the system, one on each line."""
    versions = read_versions()
    width = max(map(len, versions)) + 2
    versions["python"] = f"{platform.python_version()} ({platform.python_implementation()})"
    versions["system"] = platform.platform()
    return "\n".join(f"{name:<{width}}{version}" for name, version in versions.items())


def read_versions() -> dict[str, str]:
    """Returns the versions of the package and of `LIBRARIES`, by name."""
    return {name: _read_version(name) for name in ("bsmeta", *LIBRARIES)}


def _read_version(name: str) -> str:
    if name == "bsmeta":  # a clone need not be installed
        return __version__

    from importlib import metadata  # loads the modules of e-mail, which no run needs

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
