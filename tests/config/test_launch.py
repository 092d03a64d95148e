"""What is read off the environment that `accelerate launch` makes, and off its files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.deepspeed import read_json
from bsmeta.config.checks.run import check_launch
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.launch import Launch, read_launch
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks import TASKS
from tests.conftest import REPOSITORY, run_warm
from tests.waiting import STUCK_S


def test_plain_python_is_one_process_without_deepspeed() -> None:
    launch = read_launch({})
    assert (launch.num_processes, launch.distributed_type, launch.deepspeed) == (1, "NO", False)
    assert launch.source == "the environment"


def test_torchrun_is_plain_data_parallel() -> None:
    launch = read_launch({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "1"})
    assert (launch.num_processes, launch.local_processes) == (4, 2)
    assert launch.distributed_type == "MULTI_GPU"


def test_the_environment_of_accelerate_with_deepspeed_is_read() -> None:
    launch = read_launch(
        {
            "WORLD_SIZE": "2",
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DEEPSPEED_CONFIG_FILE": "deepspeed_configs/zero3.json",
            "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
            "ACCELERATE_MIXED_PRECISION": "no",
            "ACCELERATE_CONFIG_DS_FIELDS": "deepspeed_config_file,zero3_init_flag",
        }
    )
    assert launch.deepspeed
    assert launch.zero3_init is True
    assert launch.mixed_precision is None  # accelerate exports "no" where nothing is stated
    assert launch.misplaced == ()


def test_only_fields_listed_by_accelerate_count_as_stated() -> None:
    launch = read_launch(
        {
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_MIXED_PRECISION": "no",
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
            "ACCELERATE_CONFIG_DS_FIELDS": "gradient_accumulation_steps,zero_stage,mixed_precision",
        }
    )
    assert launch.mixed_precision == "no"
    assert launch.gradient_accumulation_steps == 4
    assert launch.deepspeed_config_file is None
    assert launch.misplaced == ("gradient_accumulation_steps", "zero_stage", "mixed_precision")


@pytest.mark.parametrize("text", ["two", "0", "-1", "2.0"])
def test_a_world_size_that_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"WORLD_SIZE in the environment: found '.*'"):
        read_launch({"WORLD_SIZE": text})


@pytest.mark.parametrize(
    ("environ", "wants_gpus"),
    [
        ({"WORLD_SIZE": "2", "ACCELERATE_MIXED_PRECISION": "no"}, True),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_MIXED_PRECISION": "no"}, True),
        (
            {
                "WORLD_SIZE": "2",
                "ACCELERATE_MIXED_PRECISION": "no",
                "CUDA_VISIBLE_DEVICES": "-1,-1",
            },
            False,  # what gpu_ids of cpu.yaml becomes
        ),
        ({"WORLD_SIZE": "2"}, False),  # torchrun, which does not set devices
        ({"ACCELERATE_MIXED_PRECISION": "no"}, False),
    ],
)
def test_launch_files_that_do_not_hide_gpus_require_them(
    environ: dict[str, str], wants_gpus: bool
) -> None:
    assert read_launch(environ).wants_gpus is wants_gpus


def test_the_launch_scripts_override_the_expected_number_of_processes() -> None:
    assert read_launch({"WORLD_SIZE": "2", "BSMETA_WORLD_SIZE": "3"}).expected_processes == 3
    assert read_launch({"WORLD_SIZE": "2"}).expected_processes == 2


def test_a_relative_json_path_is_resolved_here_and_then_in_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def json_file() -> Path | None:
        name = "deepspeed_configs/zero2.json"
        return read_launch(
            {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": name}
        ).deepspeed_config_file

    monkeypatch.chdir(tmp_path)
    assert json_file() == REPOSITORY / "deepspeed_configs" / "zero2.json"
    (tmp_path / "deepspeed_configs").mkdir()
    (tmp_path / "deepspeed_configs" / "zero2.json").write_text("{}")
    assert json_file() == Path("deepspeed_configs/zero2.json")


def test_a_launch_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "launch.yaml"
    file.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 3\nmixed_precision: bf16\n"
        "deepspeed_config:\n  deepspeed_config_file: /a/ds.json\n  zero3_init_flag: false\n"
        "  gradient_accumulation_steps: 4\n"
    )
    assert read_launch({}, str(file)) == Launch(
        source=str(file),
        num_processes=3,
        distributed_type="DEEPSPEED",
        deepspeed_config_file=Path("/a/ds.json"),
        zero3_init=False,
        mixed_precision="bf16",
        gradient_accumulation_steps=4,
        misplaced=("gradient_accumulation_steps", "mixed_precision"),
    )


def test_machines_compiler_and_unknown_keys_of_a_launch_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "launch.yaml"
    file.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\nnum_machines: 2\nmachine_rank: 1\n"
        "main_process_ip: 10.0.0.1\nmain_process_port: 29500\nnum_proceses: 4\n"
        "dynamo_config:\n  dynamo_backend: INDUCTOR\n"
        "deepspeed_config:\n  zero3_init_flag: 'false'\n  gradient_clipping: '1.0'\n"
    )
    launch = read_launch({}, str(file))
    meeting = (launch.machine_rank, launch.main_process_ip, launch.main_process_port)
    assert (launch.machines, *meeting) == (2, 1, "10.0.0.1", 29500)
    assert (launch.unknown, launch.compiler) == (("num_proceses",), "INDUCTOR")
    assert (launch.zero3_init, launch.gradient_clipping) == (False, "1.0")
    file.write_text("num_machines: two\n")
    with pytest.raises(ConfigurationError, match="num_machines in .*: found 'two'"):
        read_launch({}, str(file))


def test_rank_compiler_and_step_tasks_of_the_environment_are_read() -> None:
    launch = read_launch(
        {
            "WORLD_SIZE": "2",
            "RANK": "1",
            "MASTER_PORT": "29500",
            "ACCELERATE_GRADIENT_CLIPPING": "0.5",
            "ACCELERATE_DYNAMO_BACKEND": "NO",
        }
    )
    assert (launch.rank, launch.unset) == (1, ("MASTER_ADDR",))
    assert (launch.gradient_clipping, launch.compiler) == (0.5, None)
    assert launch.tasks_in_step is None  # a launcher is there
    assert read_launch({"SLURM_STEP_NUM_TASKS": "4"}).tasks_in_step == 4
    with pytest.raises(ConfigurationError, match="RANK in the environment: found 'first'"):
        read_launch({"RANK": "first"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_processes: two\n", "num_processes in .*: found 'two'"),
        ("[1, 2]\n", "found list, expected keys and values"),
        ("a: [\n", "not a YAML file"),
        ("gpu_ids: 0\n", 'gpu_ids in .*: found 0, expected text: "0", in quotes, or all'),
        ("main_process_port: abc\n", "main_process_port in .*: found 'abc', expected 0 to 65535"),
        ("compute_environment: AWS\n", "compute_environment in .*: found 'AWS', expected LOCAL_"),
        ("deepspeed_config: zero2\n", "deepspeed_config in .*: found 'zero2', expected keys"),
        ("dynamo_config: 'no'\n", "dynamo_config in .*: found 'no', expected keys and values"),
    ],
)
def test_a_malformed_launch_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "launch.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_launch({}, str(file))


def test_a_missing_launch_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="nowhere[.]yaml: there is no such file"):
        read_launch({}, "nowhere.yaml")


@pytest.mark.parametrize(
    ("name", "deepspeed"), [("cpu", None), ("cpu_zero2", "deepspeed_configs/cpu.json")]
)
def test_the_cpu_launch_files_start_two_processes_from_another_folder(
    name: str, deepspeed: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os\n"
        "from bsmeta.config.launch import read_launch\n"
        "launch = read_launch(os.environ)\n"
        "values = [launch.num_processes, launch.gpus, str(launch.deepspeed_config_file)]\n"
        "open('rank' + os.environ['RANK'], 'w').write(json.dumps(values))\n"
    )
    file = REPOSITORY / "experiments" / "accelerate" / f"{name}.yaml"
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
    done = run_warm([*command, str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    values = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1)]
    assert values == [[2, 0, str(REPOSITORY / deepspeed) if deepspeed else "None"]] * 2


@pytest.mark.parametrize(
    "fields",
    [
        "  fsdp_version: 2",
        "  reshard_after_forward: false\n  fsdp_offload_params: true\n"
        "  fsdp_transformer_layer_cls_to_wrap: [GPT2Block, GPT2MLP]\n"
        "  fsdp_cpu_ram_efficient_loading: false\n  fsdp_activation_checkpointing: true",
    ],
    ids=["defaults", "set"],
)
def test_accelerate_exports_the_fsdp_config_that_is_read_from_a_file(
    fields: str, tmp_path: Path
) -> None:
    file, script = tmp_path / "fsdp.yaml", tmp_path / "script.py"
    file.write_text(
        "distributed_type: FSDP\nnum_processes: 1\nnum_machines: 1\nmachine_rank: 0\n"
        f'gpu_ids: "-1"\nmain_process_port: 0\nfsdp_config:\n{fields}\n'
    )
    script.write_text(
        "import json, os\n"
        "from bsmeta.config.launch import read_launch\n"
        "open('found', 'w').write(json.dumps(read_launch(os.environ).fsdp))\n"
    )
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
    done = run_warm([*command, str(script)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "found").read_text()) == read_launch({}, str(file)).fsdp


def test_an_unreadable_launch_file_is_refused() -> None:
    """Reading the first bytes of this file fails for every user."""
    with pytest.raises(ConfigurationError, match="/proc/self/mem: cannot be read: Input/output"):
        read_launch({}, "/proc/self/mem")
    document, problems = read_json(Path("/proc/self/mem"))
    assert document is None
    assert [problem.found for problem in problems] == ["Input/output error"]


@pytest.mark.long
def test_the_file_that_accelerate_config_writes_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "default.yaml"
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "config", "default"]
    subprocess.run([*command, "--config_file", str(file)], check=True, timeout=STUCK_S)
    assert "tpu_use_sudo" in file.read_text()
    config = compose_command_line(
        CausalLMConfig, "demo", ["check_only=true", "mixed_precision=bf16"]
    )
    check_launch(config, read_launch({}, str(file)), TASKS["causal_lm"])


def test_settings_of_other_trainers_in_a_launch_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "launch.yaml"
    file.write_text(
        "distributed_type: deepspeed\ntpu_use_cluster: true\nfsdp_config: {}\ndynamo_config: no\n"
    )
    config = compose_command_line(CausalLMConfig, "demo", ["check_only=true"])
    with pytest.raises(ConfigurationError) as refusal:
        check_launch(config, read_launch({}, str(file)), TASKS["causal_lm"])
    assert refusal.value.keys == {"distributed_type", "tpu_use_cluster"}
    assert "in capitals (did you mean DEEPSPEED?)" in str(refusal.value)


@pytest.mark.parametrize("port", ["abc", "0", "65536"])
def test_an_invalid_port_is_refused(port: str) -> None:
    environ = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    with pytest.raises(ConfigurationError, match=f"MASTER_PORT .* found '{port}', expected 1 to"):
        read_launch(environ)
