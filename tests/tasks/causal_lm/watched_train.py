"""`train.py`, but each rank writes what it does with the folder WATCHED to the folder SEEN.

`files-rank{r}.txt` names the files that were opened, and the folders that were listed;
`error-rank{r}.txt` holds the error that ended the rank.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

RANK = os.environ.get("RANK", "0")
SEEN, WATCHED = Path(os.environ["SEEN"]), os.environ["WATCHED"]


def watch() -> None:
    """Records all files that this process opens or lists from now on."""
    file = (SEEN / f"files-rank{RANK}.txt").open("a", buffering=1)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(WATCHED):
            file.write(f"{arguments[0]}\n")

    sys.addaudithook(note)


def main(*arguments: Any) -> int:
    """Trains, and records an error."""
    from bsmeta import train

    try:
        return train.main(*arguments)
    except Exception as error:
        (SEEN / f"error-rank{RANK}.txt").write_text(f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    sys.path.pop(0)
    from bsmeta.config.entry_point import run_entry_point
    from bsmeta.tasks import TASKS

    watch()
    schemas = [entry.schema for entry in TASKS.values()]
    run_entry_point(main, schemas, "demo", takes_composition=True)
