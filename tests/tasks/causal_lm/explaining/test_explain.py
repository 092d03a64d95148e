"""The entry point as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.explain import main
from tests.conftest import run_warm
from tests.tasks.causal_lm.explaining.helpers import SHARD, demo
from tests.waiting import STUCK_S

EXPLAIN = Path(__file__).resolve().parents[4] / "bsmeta" / "explain.py"


def start(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_warm([sys.executable, str(EXPLAIN), "--config-name", "demo", *arguments], folder)


def test_standard_output_has_only_json_if_a_page_is_written(tmp_path: Path) -> None:
    done = start(tmp_path, "limit=2", "json=true", "html=page.html")
    assert done.returncode == 0, done.stderr
    names = [json.loads(line)["document"] for line in done.stdout.splitlines()]
    assert names == [f"{SHARD.format(1)}:0", f"{SHARD.format(1)}:1"]
    assert "written to page.html" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_document_is_printed_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    main(demo(f"document={SHARD.format(1)}:1", "types=[entity]"))
    assert "regex_actions.hpp [[Reference]]>" in capsys.readouterr().out


def test_an_impossible_request_is_a_configuration_error(tmp_path: Path) -> None:
    wrong = start(tmp_path, f"document={SHARD.format(1)}:160", "json=true")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines()[-1] == (
        f"configuration error: document={SHARD.format(1)}:160: the shard has 160 documents; "
        "expected a number from 0 to 159"
    )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match="page.html cannot be written"):
        main(demo(f"html={tmp_path}/missing/page.html"))
    with pytest.raises(ConfigurationError, match="explain.py works with task=causal_lm only"):
        main(demo("task=classification"))


@pytest.mark.slow
def test_a_reader_that_stops_early_causes_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} {EXPLAIN} --config-name demo limit=150 json=true | head -c 20"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (141, '{"document": "c4-en-')
    assert "Traceback" not in done.stderr


def test_help_lists_the_keys_of_training_and_of_the_program(tmp_path: Path) -> None:
    text = start(tmp_path, "--help").stdout
    assert "learning_rate: float = 5e-05" in text
    assert "types: list[str] | None = null" in text


def test_configurations_of_training_are_accepted_with_and_without_further_keys() -> None:
    assert compose_command_line(ExplainConfig, "demo", ["limit=2", "seed=7"]).limit == 2
    assert type(compose_command_line(CausalLMConfig, "demo", ["seed=7"])) is CausalLMConfig
    with pytest.raises(ConfigurationError, match="limit"):
        compose_command_line(CausalLMConfig, "demo", ["limit=2"])
