"""The commands of the tutorial work as they stand, from download to prediction."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/disambiguation.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_is_followed_literally(tmp_path: Path) -> None:
    for name in ("bsmeta", "experiments", "examples", "hydra_configs", "deepspeed_configs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    tutorial = PAGE.partition("## From download")[2].partition("\n## ")[0]
    commands = re.findall(r"```bash\n(.*?)```", tutorial, re.DOTALL)
    assert len(commands) == 7
    for command in commands:
        done = subprocess.run(
            ["bash", "-euc", command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    def found(name: str) -> dict[str, str]:
        entities = json.loads((tmp_path / "data" / name).read_text())["entities"]
        return {entity["mention"]: entity["entity"] for entity in entities}

    assert "way" not in found("entities.jsonl")
    assert found("more_entities.jsonl")["way"] == "x1"
    assert (tmp_path / "runs/senses/evaluation/report.html").exists()
