"""The commands of the pages about users' data, as written."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.composing.groups import list_group_options
from tests.conftest import run_warm
from tests.data.helpers import page
from tests.warm import REPOSITORY

SMALL = (
    "model=llama_tiny gradient_checkpointing=false mixed_precision=no max_train_steps=2"
    " num_warmup_steps=0 eval_steps=2 eval_documents=2 trackers=[] gradient_accumulation_steps=1"
    " data_config.metadata_config.max_seq_len=64 data_config.window_documents=8"
    " data_config.per_device_train_batch_size=2"
)


def read_commands(file: str, heading: str) -> list[list[str]]:
    """Returns the arguments of each `train.py` command in the shell blocks below a heading."""
    section = (REPOSITORY / file).read_text().split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```bash\n(.*?)^```", section, re.M | re.S)
    lines = re.sub(r" *\\\n *", " ", "".join(blocks)).splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("python bsmeta/train.py")]


@pytest.mark.parametrize(
    ("file", "heading"),
    [("README.md", "## Your own data"), ("docs/data.md", "# How do I train on my own files?")],
)
def test_the_documented_commands_train(file: str, heading: str, tmp_path: Path) -> None:
    for name, first in (("pages", 0), ("test", 1000)):
        rows = [page(first + number, 20) for number in range(60)]
        plain = [json.dumps({"text": row["text"], "url": row["url"]}) for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(plain))
    arguments = [
        argument.replace("/data/mine", str(tmp_path))
        for argument in read_commands(file, heading)[0]
    ]
    script = str(REPOSITORY / "bsmeta" / "train.py")
    out = f"out_dir={tmp_path / 'run'}"
    done = run_warm([sys.executable, script, *arguments, *SMALL.split(), out], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    exposure = [result for result in map(json.loads, lines) if result["event"] == "exposure"][-1]
    assert exposure["types"]["url"]["realized"] > 0
    assert "none of the first" not in done.stderr + done.stdout


def test_every_recipe_of_a_corpus_composes() -> None:
    named = {"c4", "c4_hub", "webdocs"}  # of records
    for arguments in read_commands("docs/data.md", "## Columns"):
        config = compose_command_line(CausalLMConfig, arguments[1], arguments[2:])
        types = config.data_config.metadata_config.metadata_list
        assert set(types) <= set(config.data_config.columns)
        named.update(
            argument.removeprefix("data=") for argument in arguments if argument.startswith("data=")
        )
    assert named == set(list_group_options()["data"])


def test_the_documented_mixture_composes(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "mixtures.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "mix.yaml").write_text(f"defaults:\n  - v2\n  - _self_\n{block}")
    script = str(REPOSITORY / "bsmeta" / "train.py")
    arguments = ["--config-dir", str(tmp_path), "--config-name", "mix", "check_only=true"]
    done = run_warm([sys.executable, script, *arguments, *SMALL.split()], tmp_path)
    problems = re.findall(r"^\d+\. (\S+) in", done.stderr, re.M)
    assert problems[:3] == [f"data_config.sources.{number}.train_file" for number in range(3)]
