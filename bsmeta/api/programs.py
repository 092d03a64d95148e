"""Runs the programs of the package from Python, each in new processes, as on a command line.

Training changes its process permanently (devices, threads, signals, process groups), and may use
several. The output is printed, so that it also appears in a notebook.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bsmeta.api.configuration import (
    Configuration,
    Overrides,
    check_overrides,
    compose_configuration,
    list_config_arguments,
    list_override_arguments,
)
from bsmeta.api.runs import Run, open_run
from bsmeta.config.saved_runs import format_yaml
from bsmeta.config.schema import RunConfig
from bsmeta.core.errors import ConfigurationError, UserError
from bsmeta.core.exit_codes import EXIT_PREEMPTED, EXIT_USER_ERROR

MAX_SHOWN_LINES = 30
"""Maximum number of output lines in the error message of a failed program."""


def train_model(
    config: Configuration,
    overrides: Overrides | None = None,
    *,
    launch_file: str | Path | None = None,
    show_output: bool = True,
) -> Run:
    """Trains a model of any task, as `bsmeta train` does; returns its run once it has ended.

    An interruption (Ctrl+C, or the button of a notebook) ends the run with a checkpoint. The same
    call resumes it.

    Args:
        config: The name of a configuration, the path of a YAML file, or a configuration, such as
            `bsmeta.open_run(folder).config`.
        overrides: Keys to change: `{"max_train_steps": 100, "out_dir": "runs/a"}`.
        launch_file: A file of `accelerate launch`, for several processes; None: one process.
        show_output: Whether to print the output while the program runs; the message of an error
            has the last lines in any case.

    Raises:
        UserError: If the configuration or the data is invalid, or a signal stopped the run.
        RuntimeError: If the run failed.
    """
    run_config = compose_configuration(config, overrides)
    for key in ("check_only", "estimate"):
        if getattr(run_config, key):
            raise ConfigurationError(
                f'{key}=True: makes no run; use bsmeta.run_program("train", …) for it'
            )

    module = ["-m", "bsmeta.train"]
    if launch_file is not None:
        launcher = ["-m", "accelerate.commands.launch", "--config_file", str(launch_file)]
        module = [*launcher, *module]
    with _write_configuration(config) as name_or_path:
        arguments = [*list_config_arguments(name_or_path), *list_override_arguments(overrides)]
        command = [sys.executable, "-P", *module, *arguments]
        _run_command(command, "train", show_output=show_output)
    return open_run(run_config.out_dir)


def run_program(
    program: str,
    overrides: Overrides | None = None,
    *,
    arguments: Sequence[str] = (),
    show_output: bool = True,
) -> None:
    """Runs a program that `bsmeta --help` lists: `annotate`, `predict`, `download`, `init`, …

    Args:
        program: The name of the program.
        overrides: Keys to set: `{"input": "raw", "output": "shards"}`.
        arguments: Other command-line arguments.
        show_output: Whether to print the output while the program runs; the message of an error
            has the last lines in any case.

    Raises:
        UserError: If the program refuses the arguments or the data, or a signal stopped it.
        RuntimeError: If the program failed.
    """
    check_overrides(overrides)
    if isinstance(arguments, str):
        raise ConfigurationError(f"arguments={arguments!r}: expected a list of texts")

    command = [sys.executable, "-P", "-m", "bsmeta", program, *arguments]
    command += list_override_arguments(overrides)
    _run_command(command, program, show_output=show_output)


@contextmanager
def _write_configuration(config: Configuration) -> Iterator[str | Path]:
    """Writes a configuration object to a temporary file; yields its path.

    A name or path is yielded unchanged.
    """
    if not isinstance(config, RunConfig):
        yield config
        return
    with tempfile.TemporaryDirectory(prefix="bsmeta-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(format_yaml(config), encoding="utf-8")
        yield file


def _run_command(command: Sequence[str], program: str, *, show_output: bool) -> None:
    """Runs a command.

    Args:
        program: The name of the program, for messages.
        show_output: Whether to print its output line by line.

    Raises:
        UserError: If the program ended because of a user's error or a signal, by its exit code.
        RuntimeError: If it failed with another exit code.
    """
    # In a new session, so that Ctrl+C in a terminal reaches the command once: through this process.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    last_lines: deque[str] = deque(maxlen=MAX_SHOWN_LINES)
    try:
        _read_output(process, last_lines, show_output=show_output)
    except KeyboardInterrupt:
        # SIGTERM, because a background job ignores SIGINT. Training saves a checkpoint and ends.
        process.send_signal(signal.SIGTERM)
        _read_output(process, last_lines, show_output=show_output)
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()

    output = "".join(last_lines).rstrip()
    if process.returncode == EXIT_USER_ERROR:
        raise UserError(f"bsmeta {program}: {output}")
    if process.returncode == EXIT_PREEMPTED:
        raise UserError(f"bsmeta {program} was stopped by a signal; the same call continues it")
    if process.returncode:
        raise RuntimeError(f"bsmeta {program} failed ({process.returncode}):\n{output}")


def _read_output(
    process: subprocess.Popen[str], last_lines: deque[str], *, show_output: bool
) -> None:
    """Appends the output of a process to `last_lines` until the process ends."""
    assert process.stdout is not None
    for line in process.stdout:
        if show_output:
            print(line, end="", flush=True)
        last_lines.append(line)
    process.wait()
