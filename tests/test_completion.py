"""The completion of a shell, typed into a real one on a terminal."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import STUCK_S

PROMPT = "ready> "


class Shell:
    """An interactive shell on a separate terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._terminal, other_side = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=other_side, stdout=other_side, stderr=other_side, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(other_side)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read_until(self, end: str) -> str:
        """Reads what the terminal shows, until it shows a text."""
        shown = ""
        while end not in shown:
            ready, _, _ = select.select([self._terminal], [], [], STUCK_S)
            assert ready, f"the shell shows no {end!r}: {shown!r}"
            shown += os.read(self._terminal, 4096).decode(errors="replace")
        return shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "bsmeta.sh"
    command = [sys.executable, "-m", "bsmeta", "completion", "bash"]
    path.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    return path


@pytest.fixture
def shell(script: Path) -> Iterator[Shell]:
    bash = shutil.which("bash")
    assert bash is not None
    environment = {**os.environ, "TERM": "dumb", "PS1": PROMPT, "INPUTRC": os.devnull}
    shell = Shell([bash, "--norc", "--noprofile", "-i"], environment)
    shell.read_until(PROMPT)
    shell.type(f"source {script}; bsmeta() {{ printf '[%s]' \"$@\"; }}\n")
    shell.read_until(PROMPT)
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        ("bsmeta tra\t", "[train]"),
        ("bsmeta train learning_r\t0.1", "[train][learning_rate=0.1]"),
        ("bsmeta train --config-na\t demo_cl\t", "[train][--config-name][demo_classification]"),
        ("bsmeta train model=gpt2_x\t", "[train][model=gpt2_xl]"),
        ("bsmeta evaluate max_d\t5 comp\t", "[evaluate][max_documents=5][comparisons=]"),
        ("bsmeta evaluate learning_r\t", "[evaluate][learning_r]"),
    ],
)
def test_words_are_completed(shell: Shell, typed: str, arguments: str) -> None:
    shell.type(f"{typed}\n")
    shell.read_until(f"\n{arguments}")


def test_an_unknown_shell_is_refused() -> None:
    command = [sys.executable, "-m", "bsmeta", "completion", "fish"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "bsmeta completion fish: expected bash or zsh" in done.stderr
