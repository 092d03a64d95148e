"""All output of a program is redacted, whichever code prints it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from bsmeta.core.redacted_streams import RedactedStream
from bsmeta.core.secrets import redact
from tests.conftest import run_warm

PRINTING = Path(__file__).with_name("printing.py")
SECRET = "correct-Horse9"


def run_printing(way: str) -> CompletedProcess[str]:
    return run_warm([sys.executable, str(PRINTING), way], DB_PASS=SECRET)


@pytest.mark.parametrize(
    "way", ["thread", "child", "deletion", "warning", "early log", "last log", "error"]
)
def test_output_of_the_interpreter_and_libraries_is_redacted(way: str) -> None:
    done = run_printing(way)
    assert SECRET not in done.stdout + done.stderr
    assert "for [redacted]" in done.stderr or "with [redacted]" in done.stderr
    assert done.returncode == (1 if way == "error" else 0)
    if way == "error":
        assert done.stderr.count("RuntimeError: 401 for [redacted]") == 2


def test_standard_output_hides_only_secrets_of_the_process() -> None:
    """Documents are shown there: a token in one is not a secret of the process."""
    token = "ghp_" + "a1" * 18
    assert run_printing("output").stdout == f"with [redacted], with {token}\n"
    assert run_printing("errors").stderr == "with [redacted], with [redacted]\n"


def test_bytes_are_written_unchanged() -> None:
    assert run_printing("bytes").stdout == f"with {SECRET}"


def test_a_console_recorder_receives_redacted_text() -> None:
    done = run_printing("recorder")
    assert done.stderr == "first [redacted]\nsecond [redacted]\n"
    assert done.stdout == r"kept: 'first [redacted]' '\n' 'second [redacted]\n'" + "\n"


def test_other_attributes_pass_through_to_the_stream() -> None:
    stream = io.StringIO()
    redacted = RedactedStream(stream, redact)
    assert redacted.write("password=Tr0ub4dor\n") == 19
    assert stream.getvalue() == "password=[redacted]\n"
    assert redacted.isatty() is False
    assert redacted.getvalue() == "password=[redacted]\n"
