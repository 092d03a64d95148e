"""The estimate: printed with a probe, for the card of another machine, or refused."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.launch import Launch
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.batch import StepData
from bsmeta.tasks import TASKS
from bsmeta.training.estimate import estimate_run, format_duration, probe_run
from bsmeta.training.memory.states import Stage
from tests.conftest import REPOSITORY, run_warm
from tests.training.toy_task import ToyStream, ToyTask


def test_durations_are_formatted_for_people() -> None:
    assert [format_duration(seconds) for seconds in (59.6, 3599, 7260, 200_000)] == [
        "1 min 0 s",
        "59 min 59 s",
        "2 h 1 min",
        "2 d 7 h",
    ]


# What is printed of this launch (weights, gradients, optimizer) by engine, with two processes.
PRINTED = {
    None: "* data parallel 5.1 MiB 5.1 MiB 10.1 MiB",
    2: "* ZeRO-2 5.1 MiB 2.5 MiB 7.6 MiB",
    3: "* ZeRO-3 2.5 MiB 2.5 MiB 7.6 MiB",
    "FSDP2": "* FSDP2 2.5 MiB 2.5 MiB 5.1 MiB",
}


@pytest.mark.parametrize(
    "stage",
    [2, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (None, 3, "FSDP2"))],
)
def test_a_probe_measures_and_leaves_no_files(
    stage: Stage, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = [sys.executable]
    if stage is not None:
        name = "cpu_fsdp2.yaml" if stage == "FSDP2" else "cpu_zero2.yaml"
        file = REPOSITORY / "experiments" / "accelerate" / name
        command += ["-m", "accelerate.commands.launch", "--config_file", str(file)]
    if isinstance(stage, int):
        document = json.loads((REPOSITORY / "deepspeed_configs" / "cpu.json").read_text())
        document["zero_optimization"] = {
            "stage": stage,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
        json_file = tmp_path_factory.mktemp("deepspeed") / "ds.json"
        json_file.write_text(json.dumps(document))
        command += ["--deepspeed_config_file", str(json_file)]
    command += [str(REPOSITORY / "bsmeta" / "train.py"), "--config-name", "demo", "estimate=true"]
    command += ["estimate_steps=2", "data_config.per_device_train_batch_size=1", "out_dir=run"]
    ended = run_warm(command, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []
    summary = " ".join(ended.stdout.split())
    assert "parameters 1,328,256, of which trainable 1,328,256, in embeddings 524,288" in summary
    assert PRINTED[stage] in summary
    assert "probe 1 steps, after 1 to warm up" in summary
    # What this rank holds beside what was counted: ZeRO-2 keeps float32 weights and moments of half
    # of the parameters, ZeRO-3 half of the weights, too.
    *_, weights, _, optimizer = re.findall(r"[\d.]+ MiB", PRINTED[stage])
    counted = f"weights {weights} (counted {weights}), optimizer {optimizer} (counted {optimizer})"
    assert counted in summary
    assert re.search(r"time to finish 600 steps x [\d.]+ s = ", summary)
    assert re.search(r"tokens/s [\d,]+ on all devices", summary)


XL = {
    "model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip


def estimate_xl(folder: Path, *keys: str) -> str:
    """Estimates GPT-2 XL on another machine; returns the output in one line."""
    file = folder / "xl.json"
    file.write_text(json.dumps(XL))
    command = [sys.executable, str(REPOSITORY / "bsmeta" / "train.py"), "--config-name", "demo"]
    command += [f"model_config_file={file}", "mixed_precision=bf16", "out_dir=run", "trackers=[]"]
    command += ["gradient_accumulation_steps=1", "data_config.metadata_config.max_seq_len=1024"]
    ended = run_warm([*command, "estimate=true", *keys], folder)
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in folder.iterdir()] == ["xl.json"]
    return " ".join(ended.stdout.split())


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="the card may be here")
def test_an_estimate_can_be_made_for_a_missing_card(tmp_path: Path) -> None:
    keys = ("estimate_card=A100-40GB", "async_save=true")
    printed = estimate_xl(tmp_path, "data_config.per_device_train_batch_size=8", *keys)
    assert "A100-40GB: 39.4 GiB, of which 2.0 GiB are left to CUDA" in printed
    assert "with 8 rows: it DOES NOT FIT" in printed
    assert re.search(r"batch_size that fit: up to [12345]; with gradient_checkp", printed)
    assert "other engines that fit with 8 rows, on the same number of devices: none from" in printed
    assert "weights and optimizer in main memory: 17.41 GiB on rank 0" in printed
    # 6 x 1.556e9 parameters (without positions) x 8,192 tokens / (312e12 x MFU)
    assert "(nothing was measured): 1.226 s at 0.2, 0.613 s at 0.4, 0.490 s at 0.5" in printed
    assert "with the kernels of CUDA" in printed
    assert "tokens/s" not in printed  # a CPU measures nothing for a GPU


class BreakingTask(ToyTask):
    """Its data cannot be read from the third step on."""

    def train_stream(self, *arguments: Any) -> ToyStream:
        return BreakingStream(self.config, 0, 1, 0)


class BreakingStream(ToyStream):
    def __iter__(self) -> Iterator[StepData]:
        yield from itertools.islice(super().__iter__(), 2)
        raise DataError("shard 7 cannot be read")


def check_nothing(config: CausalLMConfig) -> CheckedRun:
    """Returns a run of one process that has not been checked."""
    launch = Launch(source="the environment", num_processes=1)
    return CheckedRun(config=config, entry=TASKS["causal_lm"], launch=launch, deepspeed_config=None)


def test_a_probe_reports_data_that_cannot_be_read() -> None:
    config = CausalLMConfig(max_train_steps=8, num_warmup_steps=1, estimate_steps=4)
    with pytest.raises(DataError, match="shard 7 cannot be read"):
        probe_run(check_nothing(config), BreakingTask(config))
    AcceleratorState._reset_state(reset_partial_state=True)  # other tests begin with their own


def test_a_task_that_does_not_describe_its_model_is_refused_with_the_reason() -> None:
    config = CausalLMConfig(task="spelling")
    with pytest.raises(ConfigurationError, match="task=spelling does not describe its model"):
        estimate_run(check_nothing(config), ToyTask(config), is_main=True)
