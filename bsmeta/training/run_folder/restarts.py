"""The record of a restart in the `resume` event: engine, processes and machines, before and now."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bsmeta.core.environment import hash_machine_name
from bsmeta.training.ranks.processes import Processes
from bsmeta.training.run_folder.events import read_environments
from bsmeta.training.run_folder.status import find_status


@dataclass(frozen=True)
class Restart:
    """A start of a run that has started before.

    Attributes:
        restarts: Number of earlier starts.
        previous_state: State in which the last start left the run: `failed` if it died.
        engines: Engine that saved the checkpoint, and of this start.
        processes: World size when the checkpoint was saved, and now.
        machines: Hashed names of the machines of the last start (None: unknown), and of this one.
    """

    restarts: int
    previous_state: str | None
    engines: tuple[str, str]
    processes: tuple[int, int]
    machines: tuple[list[str] | None, list[str]]

    @classmethod
    def read(
        cls, out_dir: Path, engines: tuple[str, str], saved_processes: int, processes: Processes
    ) -> Restart:
        """Reads the earlier starts of the run in a folder; all ranks call it together.

        Args:
            engines: Engine that saved the checkpoint, and of this start.
            saved_processes: World size when the checkpoint was saved.
        """
        machines = list_machines(processes)
        earlier_starts = read_environments(out_dir)
        previous_machines = earlier_starts[-1].get("machines") if earlier_starts else None
        return cls(
            restarts=len(earlier_starts),
            previous_state=_read_state(out_dir),
            engines=engines,
            processes=(saved_processes, processes.size),
            machines=(previous_machines, machines),
        )

    def to_event(self) -> dict[str, Any]:
        """Returns the fields of the `resume` event."""
        return asdict(self)


def _read_state(out_dir: Path) -> str | None:
    """Returns the state in `status.json`; None without one, or if it is damaged.

    This run holds the lock of the folder and has not written its own status yet, so `running` is
    from processes that were killed.
    """
    status = find_status(out_dir) or {}
    state: str | None = status.get("state")
    return "failed" if state == "running" else state


def list_machines(processes: Processes) -> list[str]:
    """Lists the hashed names of the machines of a launch, in the order of their first rank.

    All ranks call it together.
    """
    return list(dict.fromkeys(processes.gather(hash_machine_name())))
