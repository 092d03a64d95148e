"""The launch scripts: what they start, from any folder, seen by programs that stand in for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = sorted([*REPOSITORY.glob("experiments/**/*.sh"), REPOSITORY / ".ci" / "run"])


def run(
    script: str, folder: Path, arguments: list[str], gpus: int = 0, **environ: str
) -> list[str]:
    """The commands that a script starts, one a line, with the repository's path as ROOT."""
    stand_ins = folder / "bin"
    stand_ins.mkdir()
    for name in ("accelerate", "python"):
        program = stand_ins / name
        program.write_text(
            "#!/usr/bin/env bash\n"
            f'[[ "$1" == -c ]] && echo {gpus} && exit\n'
            f'echo "$(basename "$0") $*" >>"{folder}/started"\n'
        )
        program.chmod(0o755)
    path = f"{stand_ins}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(REPOSITORY / script), *arguments]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, **environ, "PATH": path})
    return (folder / "started").read_text().replace(str(REPOSITORY), "ROOT").splitlines()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    subprocess.run(["shellcheck", str(script)], check=True)


def test_main_job(tmp_path: Path) -> None:
    started = run(
        "experiments/hpsearch/test.sh",
        tmp_path,
        ["seed=1", "trackers=[]"],
        MODEL="gpt2",
        NUM_GPU="4",
    )
    assert started == [
        "accelerate launch --config_file ROOT/experiments/accelerate/zero2.yaml"
        " --deepspeed_config_file ROOT/deepspeed_configs/v2.json --num_processes 4"
        " ROOT/bsmeta/train.py --config-name v2 model_name=gpt2"
        " data_config.train_file=data/c4-en-html-with-metadata/*.jsonl.gz"
        " data_config.validation_file=data/c4-en-html-with-metadata/"
        "c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz"
        " extra_steps_to_eval_save_at=[100] seed=1 trackers=[]"
    ]


TRAIN = "bsmeta/train.py --config-name demo overwrite_out_dir=true"
EVALUATE = "bsmeta/evaluate.py checkpoint=runs/demo"


def test_demo_on_a_cpu(tmp_path: Path) -> None:
    assert run("experiments/demo.sh", tmp_path, []) == [
        f"accelerate launch --config_file experiments/accelerate/cpu_zero2.yaml {TRAIN}",
        f"accelerate launch --config_file experiments/accelerate/cpu.yaml {EVALUATE}",
    ]


@pytest.mark.parametrize(("gpus", "processes"), [(1, 1), (2, 2), (3, 2), (8, 8), (16, 8)])
def test_demo_on_gpus(gpus: int, processes: int, tmp_path: Path) -> None:
    assert run("experiments/demo.sh", tmp_path, [], gpus=gpus) == [
        "accelerate launch --config_file experiments/accelerate/zero2.yaml"
        f" --num_processes {processes} {TRAIN}",
        f"python {EVALUATE}",
    ]
