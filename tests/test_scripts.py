"""The launch scripts: what they start, from any folder, seen by programs that stand in for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(
    [
        *REPOSITORY.glob("experiments/**/*.sh"),
        *REPOSITORY.glob("experiments/**/*.sbatch"),
        *REPOSITORY.glob("tests/**/*.sh"),
        REPOSITORY / ".ci" / "run",
    ]
)


def run(
    script: str, folder: Path, arguments: list[str], gpus: int = 0, **environ: str
) -> list[str]:
    """Returns the commands that a script starts, one per line, with the repository's path as ROOT.

    Each is preceded by CUDA_VISIBLE_DEVICES if the script has chosen GPUs.

    The stand-in for Python also returns the number of GPUs, and the run folder of a configuration.
    """
    stand_ins = folder / "bin"
    stand_ins.mkdir()
    for name in ("accelerate", "python", "srun", "scontrol"):
        program = stand_ins / name
        program.write_text(
            "#!/usr/bin/env bash\n"
            f'[[ "$1" == -c ]] && echo {gpus} && exit\n'
            f'[[ "$1" == */launch_file.py ]] && exec {sys.executable} "$@"\n'
            '[[ "$1" == */meeting.py ]] && exit\n'
            '[[ "$1" == */gpus.py ]] && echo GPU-b,GPU-a,GPU-c | cut -d, -f-$2 && exit\n'
            f'[[ "$*" == *"--cfg job"* ]] && echo "{folder}/run" && exit\n'
            "[[ \"$1 $2\" == 'show hostnames' ]] && printf 'one\\ntwo\\n' && exit\n"
            f'echo "${{CUDA_VISIBLE_DEVICES:-}}$(basename "$0") $*" >>"{folder}/started"\n'
        )
        program.chmod(0o755)
    path = f"{stand_ins}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(REPOSITORY / script), *arguments]
    ours = ("BSMETA_", "CUDA_VISIBLE")
    kept = {name: os.environ[name] for name in os.environ if not name.startswith(ours)}
    subprocess.run(command, cwd=folder, check=True, env={**kept, **environ, "PATH": path})
    return (folder / "started").read_text().replace(str(REPOSITORY), "ROOT").splitlines()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_reports_nothing(script: Path) -> None:
    command = ["shellcheck", "--external-sources", "--source-path", str(REPOSITORY), str(script)]
    subprocess.run(command, check=True)


def test_the_main_job_starts_one_process_per_gpu(tmp_path: Path) -> None:
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
        " -m bsmeta.train --config-name v2 model_name=gpt2"
        " data_config.train_file=data/c4-en-html-with-metadata/*.jsonl.gz"
        " data_config.validation_file=data/c4-en-html-with-metadata/"
        "c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz"
        " extra_steps_to_eval_save_at=[100] seed=1 trackers=[]"
    ]


TRAIN = "-m bsmeta.train --config-name demo overwrite_out_dir=true"
EVALUATE = "-m bsmeta.evaluate checkpoint=runs/demo"


def test_the_demo_runs_on_a_cpu(tmp_path: Path) -> None:
    assert run("experiments/demo.sh", tmp_path, []) == [
        f"accelerate launch --config_file experiments/accelerate/cpu_zero2.yaml {TRAIN}",
        f"accelerate launch --config_file experiments/accelerate/cpu.yaml {EVALUATE}",
    ]


@pytest.mark.parametrize(("gpus", "processes"), [(1, 1), (2, 2), (3, 2), (8, 8), (16, 8)])
def test_the_demo_uses_the_chosen_gpus(gpus: int, processes: int, tmp_path: Path) -> None:
    assert run("experiments/demo.sh", tmp_path, [], gpus=gpus) == [
        "accelerate launch --config_file experiments/accelerate/zero2.yaml"
        f" --num_processes {processes} {TRAIN}",
        f"python {EVALUATE}",
    ]


def test_the_demo_of_the_classifier_starts_its_commands(tmp_path: Path) -> None:
    train = "-m bsmeta.train --config-name demo_classification overwrite_out_dir=true"
    launch = "accelerate launch --config_file experiments/accelerate/"
    for gpus, expected in ((0, "cpu.yaml"), (3, "ddp.yaml --num_processes 3")):
        folder = tmp_path / str(gpus)
        folder.mkdir()
        commands = run("experiments/demo_classification.sh", folder, ["seed=1"], gpus=gpus)
        assert commands == [f"{launch}{expected} {train} seed=1"]


def test_the_demo_of_spelling_starts_its_commands(tmp_path: Path) -> None:
    assert run("experiments/demo_spelling.sh", tmp_path, ["seed=1"], gpus=0) == [
        "python experiments/spelling_test_set.py"
        " examples/webdocs/c4-en-html_cc-main-2019-18_pq00-000.jsonl.gz"
        " --out runs/demo_spelling_tests --group webdocs --lines 500",
        "accelerate launch --config_file experiments/accelerate/cpu.yaml -m bsmeta.train"
        " --config-name demo_spelling_words overwrite_out_dir=true seed=1",
        "accelerate launch --config_file experiments/accelerate/cpu.yaml -m bsmeta.train"
        " --config-name demo_spelling overwrite_out_dir=true seed=1",
        "python -m bsmeta.predict checkpoint=runs/demo_spelling input=- show=color",
    ]


@pytest.mark.parametrize(("gpus", "processes"), [(1, 1), (2, 2), (3, 2), (8, 2)])
def test_the_demo_of_spelling_uses_a_number_of_gpus_that_divides_its_batches(
    gpus: int, processes: int, tmp_path: Path
) -> None:
    """Batches can be divided among two processes, but not among three."""
    _, *trained, _ = run("experiments/demo_spelling.sh", tmp_path, [], gpus=gpus)
    assert trained == [
        "accelerate launch --config_file experiments/accelerate/ddp.yaml"
        f" --num_processes {processes} -m bsmeta.train"
        f" --config-name {name} overwrite_out_dir=true"
        for name in ("demo_spelling_words", "demo_spelling")
    ]


LAUNCH = "accelerate launch --config_file ROOT/experiments/accelerate/"
SEVERAL = (
    "--same_network --main_process_ip one --main_process_port 29500 --rdzv_conf timeout=600"
    " --deepspeed_multinode_launcher standard"
)


@pytest.mark.parametrize(
    ("gpus", "environ", "started"),
    [
        (0, {}, f"{LAUNCH}cpu_zero2.yaml -m bsmeta.train --config-name demo seed=1"),
        (
            4,
            {},
            f"{LAUNCH}zero2.yaml --num_processes 4 -m bsmeta.train --config-name demo seed=1",
        ),
        (
            4,
            {"BSMETA_PROCESSES": "2", "BSMETA_LAUNCH_FILE": "ddp.yaml"},
            f"GPU-b,GPU-a{LAUNCH}ddp.yaml --num_processes 2 -m bsmeta.train"
            " --config-name demo seed=1",
        ),
        (
            0,
            {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "x", "BSMETA_FORCE_LOCAL": "true"},
            f"{LAUNCH}cpu_zero2.yaml -m bsmeta.train --config-name demo seed=1",
        ),
        (
            0,
            {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "x"},
            "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none"
            " ROOT/experiments/several_machines.sh resume_from_checkpoint_dir=latest seed=1",
        ),
    ],
)
def test_train_sh_starts_one_machine_or_a_slurm_job(
    gpus: int, environ: dict[str, str], started: str, tmp_path: Path
) -> None:
    commands = run(
        "experiments/train.sh", tmp_path, ["seed=1"], gpus, BSMETA_CONFIG="demo", **environ
    )
    assert commands == [started]


@pytest.mark.parametrize(
    "text",
    [
        "distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: '-1,-1'\n",  # as PyYAML writes it
        'distributed_type: "NO"\nuse_cpu: true\n',
    ],
)
def test_a_launch_file_of_the_user_for_cpus_hides_the_gpus(text: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(text)
    variables = {"BSMETA_CONFIG": "demo", "BSMETA_LAUNCH_FILE": "own.yaml"}
    assert run("experiments/train.sh", tmp_path, [], **variables) == [
        "accelerate launch --config_file own.yaml -m bsmeta.train --config-name demo"
    ]


def test_train_sh_accepts_a_configuration_file_and_a_run_to_resume(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed: 1\n")
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    named = run("experiments/train.sh", one, [], BSMETA_CONFIG="../run/config.yaml")
    assert named == [
        f"{LAUNCH}cpu_zero2.yaml -m bsmeta.train --config-dir {tmp_path}/run --config-name config"
    ]
    resumed = run("experiments/train.sh", two, [], BSMETA_RESUME="../run")
    assert resumed == [
        f"{LAUNCH}cpu_zero2.yaml -m bsmeta.train --config-dir {tmp_path}/run"
        f" --config-name config out_dir='{tmp_path}/run' overwrite_out_dir=false"
        " resume_from_checkpoint_dir=latest"
    ]


def test_several_machines_sh_starts_the_first_machine(tmp_path: Path) -> None:
    """accelerate divides the 6 by the machines; torchrun adds up the processes of each machine."""
    commands = run(
        "experiments/several_machines.sh",
        tmp_path,
        [],
        gpus=8,
        BSMETA_CONFIG="demo",
        BSMETA_NODES="2",
        BSMETA_NODE_RANK="0",
        BSMETA_MASTER_ADDR="one",
        BSMETA_PROCESSES="3",
    )
    assert commands == [
        f"GPU-b,GPU-a,GPU-c{LAUNCH}zero2.yaml --num_machines 2 --machine_rank 0 {SEVERAL}"
        " --num_processes 6 -m bsmeta.train --config-name demo"
    ]


def test_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="started"):
        run("experiments/train.sh", tmp_path, ["--dry-run"], BSMETA_CONFIG="demo")


@pytest.mark.parametrize("location", ["beside job.sh", "elsewhere"])
def test_a_batch_script_under_another_name_finds_the_job(location: str, tmp_path: Path) -> None:
    """SLURM runs a copy; scontrol reports the original's path and arguments."""
    slurm = tmp_path / "with space" / "experiments" / "slurm"
    slurm.mkdir(parents=True)
    (slurm / "job.sh").write_text('#!/usr/bin/env bash\necho "job $BSMETA_REQUEUE $*"\n')
    (slurm / "job.sh").chmod(0o755)
    original = (slurm if location == "beside job.sh" else tmp_path) / "my job.sh"
    shutil.copy(REPOSITORY / "experiments" / "slurm" / "train.sbatch", original)
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/usr/bin/env bash\necho "   Command={original} seed=1 out_dir=a"\n')
    scontrol.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{scontrol.parent}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(tmp_path / "with space"),
    }
    copy = shutil.copy(original, tmp_path / "slurm_script")
    command = ["bash", str(copy), "seed=1", "out_dir=a"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "job true seed=1 out_dir=a\n"), done.stderr
    (slurm / "job.sh").unlink()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, "no job.sh beside it" in done.stderr) == (2, True)


HELPED = [
    *sorted((REPOSITORY / "experiments" / "benchmarks").glob("*.py")),
    *sorted((REPOSITORY / "experiments" / "hpsearch").glob("*.py")),
    REPOSITORY / "experiments" / "soak.py",
]


@pytest.mark.slow
@pytest.mark.parametrize("script", HELPED, ids=lambda path: path.stem)
def test_every_program_answers_to_help(script: Path) -> None:
    command = [sys.executable, str(script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_the_soak_test_refuses_an_unknown_setting() -> None:
    command = [sys.executable, str(REPOSITORY / "experiments" / "soak.py"), "kills"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("unknown: kills; expected")) == (2, True)


def test_a_task_of_an_array_starts_one_run_of_a_study(tmp_path: Path) -> None:
    started = run(
        "experiments/slurm/study.sbatch", tmp_path, ["studies/mine.yaml"], SLURM_ARRAY_TASK_ID="3"
    )
    assert started == ["python experiments/study.py studies/mine.yaml --run 3"]


def test_a_task_of_an_array_starts_the_arms_of_a_seed(tmp_path: Path) -> None:
    started = run(
        "experiments/slurm/study.sbatch", tmp_path, ["studies/mine.yaml"], SLURM_ARRAY_TASK_ID="1",
        BSMETA_STUDY_UNIT="seed",
    )  # fmt: skip
    assert started == ["python experiments/study.py studies/mine.yaml --seed 1"]


def test_an_array_without_tasks_is_refused(tmp_path: Path) -> None:
    command = ["bash", str(REPOSITORY / "experiments/slurm/study.sbatch"), "studies/mine.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected sbatch --array=0-N" in done.stderr
