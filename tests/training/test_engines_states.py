"""DeepSpeed's states hold values; whatever else a pickle names is refused and not called."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from bsmeta.core.errors import CheckpointError
from bsmeta.models.manifest import Manifest, describe_file, read_manifest, write_manifest
from bsmeta.training.checkpoint import Checkpoint
from bsmeta.training.engines_states import check_states, restrict_to_values
from bsmeta.training.resuming import convert_to_universal

SCRIPT = Path(__file__).with_name("toy_task.py")
RUN = ("trackers=[]", "max_train_steps=2", "num_warmup_steps=1", "save_steps=2")

STATE: dict[str, Any] = {
    "module": {"0.weight": torch.ones(2, 2)},
    "optimizer_state_dict": {
        "loss_scaler": LossScaler(scale=1.0),
        "zero_stage": ZeroStageEnum.gradients,
        "param_slice_mappings": [{"0.weight": fragment_address(numel=4, start=0)}],
        "dynamic": DynamicLossScaler(1.0, 2.0, 1000, 1.0, 2, False),
    },
}


class Call:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_states_saved_by_deepspeed_are_read(tmp_path: Path) -> None:
    for zipped in (True, False):
        torch.save(STATE, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
        check_states(tmp_path)
        with restrict_to_values():
            read = torch.load(tmp_path / "a.pt", weights_only=False)
        assert read["optimizer_state_dict"]["zero_stage"] is ZeroStageEnum.gradients
        assert read["optimizer_state_dict"]["loss_scaler"].cur_scale == 1.0


def test_loading_a_state_calls_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the caller or the environment asks for it, as DeepSpeed does."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"module": Call(tmp_path / "was_run")}, tmp_path / "a.pt")
    reason = "Trying to load unsupported GLOBAL posix.system whose module posix is blocked."
    with pytest.raises(pickle.UnpicklingError) as refused, restrict_to_values():
        torch.load(tmp_path / "a.pt", weights_only=False)
    assert str(refused.value) == reason
    with pytest.raises(CheckpointError) as error:
        check_states(tmp_path)
    assert str(error.value) == f"{tmp_path / 'a.pt'}: holds more than values ({reason})"
    assert not (tmp_path / "was_run").exists()
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../../other", "..", "", "a/b"])
def test_a_parameter_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    """The converter makes a folder for each parameter, with files in it."""
    torch.save({"module": {"param": [{name: torch.ones(1)}]}}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError) as error:
        check_states(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'a.pt'}: names {name!r}, expected names of parameters"
    )


def test_a_state_that_contains_itself_is_read(tmp_path: Path) -> None:
    state: dict[str, Any] = {"module": {}}
    state["module"]["again"] = [state]
    torch.save(state, tmp_path / "a.pt")
    check_states(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", b"x" * 99])
def test_a_damaged_state_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.pt: holds more than values"):
        check_states(tmp_path)


@pytest.mark.long
def test_the_converter_imports_nothing_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch", "deepspeed", "tqdm", "bsmeta"):
        (tmp_path / f"{module}.py").write_text("open('was_run', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    saved = Checkpoint(tmp_path / "checkpoint-2step", 2)
    (saved.folder / "state" / "pytorch_model").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="DeepSpeed could not convert it"):
        convert_to_universal(saved, tmp_path / "converted")
    assert not (tmp_path / "was_run").exists()


def replace_state(checkpoint: Path, marker: Path) -> None:
    """Adds a call to every state of DeepSpeed, and seals the checkpoint again."""
    for file in (checkpoint / "state" / "pytorch_model").glob("*.pt"):
        state = torch.load(file, weights_only=False)
        torch.save({**state, "client": Call(marker)}, file)
    seal(checkpoint)


def seal(checkpoint: Path) -> None:
    """Writes the manifest of the files as they are."""
    manifest = read_manifest(checkpoint)
    entries = {name: describe_file(checkpoint / name) for name in manifest.files}
    write_manifest(checkpoint, Manifest(manifest.format, entries, manifest.step))


@pytest.mark.parametrize(
    ("stage", "processes"),
    [
        ("2", 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in
          [("0", 2), ("1", 2), ("3", 2), ("1", 1), ("2", 1), ("3", 1)]),
    ],
)  # fmt: skip
def test_resuming_calls_no_function_named_in_a_checkpoint(
    stage: str,
    processes: int,
    launch: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    """With the number of processes that saved it, and with another, which needs a conversion."""
    out_dir, marker = tmp_path / "run", tmp_path / "was_run"
    launch(SCRIPT, *RUN, f"out_dir={out_dir}", processes=2, TOY_ZERO_STAGE=stage)
    replace_state(out_dir / "checkpoint-2step", marker)
    resumed = launch(
        SCRIPT, *RUN, f"out_dir={out_dir}", "resume_from_checkpoint_dir=latest",
        "max_train_steps=4", f"gradient_accumulation_steps={2 // processes}",
        processes=processes, check=False, TOY_ZERO_STAGE=stage,
    )  # fmt: skip
    assert resumed.returncode != 0
    status = json.loads((out_dir / "status.json").read_text())
    assert status["state"] == "failed"
    assert "unsupported GLOBAL posix.system" in status["message"]
    assert str(out_dir / "checkpoint-2step" / "state") in status["message"]
    assert not marker.exists()


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("state/torch.pt", b"\x80\x04K\x01.", "RuntimeError"),
        ("trainer_state.json", b"{", "JSONDecodeError"),
        ("data_state.json", b'"\xff"', "UnicodeDecodeError"),
    ],
)
def test_a_forged_state_ends_the_run_with_its_name(
    file: str, content: bytes, reason: str,
    launch: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path,
) -> None:  # fmt: skip
    """Although the manifest matches the content; without a traceback."""
    launch(SCRIPT, *RUN, f"out_dir={tmp_path}/run")
    checkpoint = tmp_path / "run" / "checkpoint-2step"
    (checkpoint / file).write_bytes(content)
    seal(checkpoint)
    resumed = launch(
        SCRIPT, *RUN, f"out_dir={tmp_path}/run", "resume_from_checkpoint_dir=latest",
        "max_train_steps=4", check=False,
    )  # fmt: skip
    assert resumed.returncode == 1
    assert f"error: {checkpoint / file}: cannot be read ({reason}: " in resumed.stderr
    assert "Traceback" not in resumed.stderr
