"""The shell blocks of README.md, CONTRIBUTING.md and docs/."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.warm import REPOSITORY

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")),
)
NEEDS = {
    "GPU": "one or more GPUs",
    "cluster": "several machines, or SLURM",
    "network": "the Hub, a package registry, or files that lie elsewhere",
    "published data": "files of the published system; tests of its configuration make their own",
    "docker": "a container engine",
    "make": "the checkout, whose environment the target builds",
    "hours": "more time than a test has; the program is tested with small settings",
}
"""What a block may need, after `<!-- needs: … -->` in the line before it. Others are run."""

_BLOCK = re.compile(
    r"(?:^<!-- needs: (?P<needs>.*?) -->\n)?^```bash\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A shell block: its code, and its needs; empty if a test runs it."""

    code: str
    needs: tuple[str, ...]


def blocks(page: str) -> list[Block]:
    """Returns the shell blocks of a page, in order."""
    matches = _BLOCK.finditer((REPOSITORY / page).read_text())
    return [
        Block(match["code"], tuple(match["needs"].split(", ") if match["needs"] else ()))
        for match in matches
    ]


def runnable(page: str) -> list[str]:
    """Returns the code of the blocks that a test runs."""
    return [block.code for block in blocks(page) if not block.needs]
