"""Lists the versions for a bug report, without importing the libraries."""

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


def format_versions() -> str:
    """Formats the versions of the package, libraries, Python and the system, one a line."""
    versions = read_versions()
    width = max(map(len, versions)) + 2
    versions["python"] = f"{platform.python_version()} ({platform.python_implementation()})"
    versions["system"] = platform.platform()
    return "\n".join(f"{name:<{width}}{version}" for name, version in versions.items())


def read_versions() -> dict[str, str]:
    """Returns the versions of the package and of `LIBRARIES`, by name."""
    return {name: _read_version(name) for name in ("bsmeta", *LIBRARIES)}


def _read_version(name: str) -> str:
    """Returns the version of a package; "not installed" if it is missing."""
    if name == "bsmeta":  # a clone need not be installed
        return __version__

    from importlib import metadata  # loads the modules of e-mail, which no run needs

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
