"""From command lines to configurations and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.core.errors import ConfigurationError
from tests.config.program import TRAIN, start
from tests.conftest import REPOSITORY
from tests.waiting import STUCK_S

METADATA = "data_config.metadata_config"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning_rat=1", "did you mean learning_rate?"),
        (f"{METADATA}.metadata_lis=[url]", f"did you mean {METADATA}.metadata_list?"),
        ("+learning_rat=1", "did you mean learning_rate?"),
        ("learning_rate=fast", "Value 'fast' of type 'str' could not be converted to Float"),
        ("max_train_steps=1.5", "could not be converted to Integer"),
        (f"{METADATA}.metadata_list=url", "metadata_list"),
        (f"{METADATA}.schedule=[{{shar: 1}}]", f"did you mean {METADATA}.schedule.0.share?"),
        (f"{METADATA}={{prefix: 1, max_seq_len: x}}", f"1. {METADATA}.max_seq_len in the command"),
        (f"{METADATA}.value_bucket_scale={{length: x}}", f"{METADATA}.value_bucket_scale.length"),
    ],
)
def test_a_wrong_override_is_refused_with_its_key(override: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        compose_command_line(CausalLMConfig, "demo", [override])
    assert message in str(error.value)
    assert "+learning_rat" not in str(error.value).replace(override, "")


@pytest.mark.parametrize("plus", ["", "++"])
def test_entries_of_a_mapping_are_set_like_other_keys(plus: str) -> None:
    name = f"{METADATA}.random_sample_metadata_weights"
    start = f"{METADATA}.local_metadata_special_token_start"
    overrides = [f"{plus}{name}.url=2", f"{plus}{start}={{html: '<HTML>'}}"]
    metadata = compose_command_line(CausalLMConfig, "demo", overrides).data_config.metadata_config
    assert metadata.random_sample_metadata_weights == {"url": 2.0}
    assert metadata.local_metadata_special_token_start == {"html": "<HTML>"}


def start_cold(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `train.py` in a new interpreter, so that the output of imports is seen as well."""
    return subprocess.run(
        [sys.executable, str(TRAIN), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


def test_a_schema_can_be_composed_without_a_file(tmp_path: Path) -> None:
    done = start(tmp_path, "--config-name", "causal_lm_config", "check_only=true")
    assert "data_config.train_file in Hydra configuration: found null" in done.stderr


def test_exit_codes_are_right_and_no_files_appear_outside_the_run(tmp_path: Path) -> None:
    fine = start_cold(tmp_path, "check_only=true", "--config-name", "demo", "seed=1")
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "= 4 sequences = 1,024 tokens of 256 a sequence" in " ".join(fine.stdout.split())
    wrong = start(tmp_path, "--config-name", "demo", "check_only=true", "learning_rat=1")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("configuration error: ")
    missing = start(tmp_path, "--config-name", "nothing")
    assert missing.returncode == 2
    trained = (  # without those of other programs, such as annotate
        "build_classification, classification, demo, demo_classification, demo_disambiguation, "
        "demo_spelling, demo_spelling_words, disambiguation, quick_run, sec, sed_sequence, "
        "sed_words, v2"
    )
    assert f"expected a configuration: {trained} in" in missing.stderr
    unknown = start(tmp_path, "--config-name", "demo", "task=translation", "check_only=true")
    assert 'task in Hydra configuration: found "translation"' in unknown.stderr
    assert list(tmp_path.iterdir()) == []
    refused = start(tmp_path, "--config-name", "demo", "task=translation", "out_dir=run")
    assert refused.returncode == 2
    assert json.loads((tmp_path / "run" / "status.json").read_text())["exit_code"] == 2


def test_a_check_without_gpus_loads_no_torch(tmp_path: Path) -> None:
    """Loading torch takes longer than the rest of the check."""
    program = (
        "import atexit, runpy, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        f"sys.argv = [{str(TRAIN)!r}, '--config-name', 'demo', 'check_only=true']\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"


def run_with_closed_output(*arguments: str) -> tuple[int, str]:
    """Returns exit code and standard error of a Python process with a closed output pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, check=False
    )
    os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.long
def test_a_program_whose_output_is_closed_ends_quietly() -> None:
    """As `python experiments/study.py … --dry-run | head -1` does."""
    study = "experiments/studies/meco_small.yaml"
    assert run_with_closed_output("experiments/study.py", study, "--dry-run") == (141, "")
    # Tables are printed by rich, which has an exit code of its own.
    table = run_with_closed_output(
        str(TRAIN), "--config-name", "demo", "estimate=true", "estimate_steps=0"
    )
    assert table[0] == 141
    assert run_with_closed_output(str(TRAIN), "--help", "all") == (141, "")
    assert run_with_closed_output("-m", "bsmeta", "--help") == (141, "")
    assert run_with_closed_output("experiments/benchmarks/scaling.py") == (141, "")


def test_a_broken_pipe_that_is_not_the_output_is_an_error() -> None:
    code, errors = run_with_closed_output(
        "-c",
        "import os, sys\n"
        "from bsmeta.core.process import run_and_report\n"
        "sys.stdout = os.fdopen(os.dup(2), 'w')\n"
        "def write():\n"
        "    raise BrokenPipeError('a worker')\n"
        "sys.exit(run_and_report(write))",
    )
    assert code == 1
    assert "BrokenPipeError: a worker" in errors
