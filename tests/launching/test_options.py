"""Options of `accelerate launch` that it drops beside its files are refused, or noted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.launching.helpers import EXPERIMENTS, environment
from tests.waiting import STUCK_S


def launch(
    folder: Path, file: str, options: list[str], *overrides: str
) -> subprocess.CompletedProcess[str]:
    """Starts `accelerate launch` as a user would, to check the configuration only."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(EXPERIMENTS / "accelerate" / file), *options]
    command += [str(REPOSITORY / "bsmeta" / "train.py"), "--config-name", "demo"]
    return subprocess.run(
        [*command, "check_only=true", *overrides],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "options", "messages"),
    [
        (
            "cpu_zero2.yaml",
            ["--zero_stage", "3"],
            ['ACCELERATE_DEEPSPEED_ZERO_STAGE in the environment: found "3"'],
        ),
        (
            "cpu_zero2.yaml",
            ["--offload_optimizer_device", "cpu", "--offload_param_device", "nvme"],
            [
                "leave out --offload_optimizer_device of accelerate launch",
                "leave out --offload_param_device of accelerate launch",
            ],
        ),
        (
            "cpu_fsdp2.yaml",
            ["--fsdp_offload_params", "true", "--fsdp_version", "1"],
            [
                "fsdp_config.fsdp_version in the environment: found 1",
                "fsdp_config.fsdp_offload_params in the environment: found true",
            ],
        ),
        ("cpu_fsdp2.yaml", ["--cpu"], ["found one process of several", "leave out --cpu"]),
        ("cpu_zero2.yaml", ["--cpu"], ["found one process of several", "leave out --cpu"]),
        ("cpu.yaml", ["--cpu"], ["found one process of several"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_an_option_that_accelerate_drops_is_refused(
    file: str, options: list[str], messages: list[str], tmp_path: Path
) -> None:
    done = launch(tmp_path, file, options)
    assert done.returncode == 1  # the launcher's
    for message in messages:
        assert done.stderr.count(message) == 1, done.stderr


@pytest.mark.slow
def test_options_that_agree_with_the_json_are_accepted(tmp_path: Path) -> None:
    options = ["--zero_stage", "2", "--offload_param_device", "none"]
    done = launch(tmp_path, "cpu_zero2.yaml", [*options, "--zero3_save_16bit_model", "true"])
    assert (done.returncode, done.stdout.count("note: ")) == (0, 0), done.stderr


@pytest.mark.slow
def test_a_single_process_on_the_cpu_is_noted(tmp_path: Path) -> None:
    done = launch(tmp_path, "cpu_zero2.yaml", ["--cpu", "--num_processes", "1"])
    assert done.returncode == 0, done.stderr
    assert "note: accelerate launch --cpu (use_cpu: true) starts one process" in done.stdout
