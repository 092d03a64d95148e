"""Every reader reads or refuses whatever a stranger gives it.

`make test` tries some inputs, always the same; `make test-fuzz` tries new ones for ten minutes of
the processor (`BSMETA_FUZZ_CPU_S` sets another number of seconds). What it finds is printed as a
literal, to be put into a test of the reader.
"""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.readers import REFUSALS, TARGETS, Target
from tests.hostile import Ending, Limits, Outcome, random_changes, read_all

QUICK = 3  # inputs of each reader in `make test`
ROUND = 150  # inputs of each reader between looks at the time

LIMITS = Limits(memory_bytes=100 << 20, cpu_s=20, refusals=REFUSALS)

_ALL = b"\xff"  # begins the input that stands for all intact files
_NAMES = [*TARGETS]


def read_target(path: Path) -> None:
    """Reads an input: the number of a reader, and its file."""
    content = path.read_bytes()
    if content == _ALL:
        for number, target in enumerate(TARGETS.values()):
            _read(path.parent, number, target.encode(target.intact))
        return
    _read(path.parent, content[0], content[1:])


def _read(parent: Path, number: int, content: bytes) -> None:
    target = TARGETS[_NAMES[number]]
    folder = parent / f"target-{number}"
    file = folder / target.file
    if not folder.exists():
        file.parent.mkdir(parents=True)
        target.prepare(file.parent)
    file.write_bytes(content)
    target.read(file)


def changed_files(target: Target, count: int, seed: int) -> Iterator[bytes]:
    """Returns files with changed content or changed bytes."""
    source = random.Random(f"{target.file} {seed}")
    intact = target.encode(target.intact)
    yield from random_changes(intact, count - count // 3 * 2, seed)
    for _ in range(count // 3 * 2):
        change = source.choice(target.changes or (_change_bytes,))
        yield target.encode(change(target.intact, source))


def _change_bytes(content: bytes, source: random.Random) -> bytes:
    return next(random_changes(content, 1, source.randrange(1 << 32)))


def read_round(count: int, seed: int) -> Iterator[Outcome]:
    """Reads some new inputs of every reader."""
    inputs = (
        bytes([number]) + content
        for number, target in enumerate(TARGETS.values())
        for content in changed_files(target, count, seed)
    )
    return read_all(read_target, inputs, intact=_ALL, name="input", limits=LIMITS)


def findings(outcomes: Iterator[Outcome]) -> dict[str, str]:
    """Returns the findings, one for each reader and last line of its report."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.ending not in (Ending.OK, Ending.REFUSED):
            last = (outcome.detail.strip().splitlines() or [""])[-1]
            target = _NAMES[outcome.content[0]]
            found.setdefault(
                f"{target}: {outcome.ending}: {last[:100]}",
                f"{target}: {outcome.ending}, peak of {outcome.peak_bytes:,} bytes\n"
                f"{outcome.content[1:3000]!r}\n{outcome.detail}",
            )
    return found


def cpu_of_children() -> float:
    """Returns the processor seconds of all finished child processes and their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.long
def test_every_reader_reads_or_refuses_changed_files() -> None:
    assert "\n\n".join(findings(read_round(QUICK, seed=0)).values()) == ""


@pytest.mark.fuzz
def test_new_inputs_find_no_crash_until_the_time_is_over() -> None:
    limit = float(os.environ.get("BSMETA_FUZZ_CPU_S", "600"))
    seed = int(os.environ.get("BSMETA_FUZZ_SEED", random.SystemRandom().randrange(1 << 32)))
    begin, count = cpu_of_children(), 0
    found: dict[str, str] = {}

    while cpu_of_children() - begin < limit:
        for name, text in findings(read_round(ROUND, seed + count)).items():
            if name not in found:
                print(text, flush=True)
            found.setdefault(name, text)
        count += 1
        print(
            f"seed {seed}, round {count}: {count * ROUND * len(TARGETS):,} files, "
            f"{cpu_of_children() - begin:,.0f} CPU seconds, {len(found)} findings",
            flush=True,
        )

    assert "\n\n".join(found.values()) == ""
