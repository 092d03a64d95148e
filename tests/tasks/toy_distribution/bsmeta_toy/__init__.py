"""A task of another distribution: a line that is fitted to numbers.

Its entry is all that is imported here; torch is imported when the task is built.
"""

from __future__ import annotations

from bsmeta.config.task_entry import TaskEntry, defer_import

ENTRY = TaskEntry(
    schema="bsmeta_toy.config:ToyLineConfig", make=defer_import("bsmeta_toy.task:Line")
)
