"""The estimate: what is counted, against what a model and its optimizer really take."""

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
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.activations import NewGELUActivation

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checked_run import CheckedRun
from bsmeta.config.compose import compose_command_line
from bsmeta.config.launch import Launch
from bsmeta.config.schema import OPTIMIZERS
from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.data.batch import StepData
from bsmeta.models.layers import list_layers, recompute_activations
from bsmeta.tasks import TASKS
from bsmeta.tasks.causal_lm.task import CausalLanguageModel
from bsmeta.training.cuda_rules import follow_cuda_rules
from bsmeta.training.estimate import (
    Forecast,
    ParameterCounts,
    Stage,
    count_optimizer_bytes,
    count_parameters,
    count_state,
    estimate_activations,
    estimate_run,
    format_duration,
    format_size,
    measure_state,
    probe_run,
)
from bsmeta.training.optimization import build_optimizer
from bsmeta.training.task import Shape
from tests.conftest import REPOSITORY, run_warm
from tests.training.toy_task import ToyStream, ToyTask

SIZES = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}


def gpt2() -> torch.nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            **SIZES, n_embd=64, n_layer=4, n_head=4, n_positions=256, attn_implementation="eager"
        )
    )


def llama() -> torch.nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            **SIZES,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def test_parameters_are_counted_without_weights() -> None:
    task = CausalLanguageModel(compose_command_line(CausalLMConfig, "demo"))
    shape = task.shape().model
    assert {parameter.device.type for parameter in shape.parameters()} == {"meta"}
    counted = count_parameters(shape)
    assert (counted.total, counted.trainable, counted.embeddings) == (1_328_256, 1_328_256, 524_288)
    assert count_parameters(task.build_model()) == counted


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", [gpt2, llama])
def test_weights_gradients_and_optimizer_equal_a_real_step(make: Any, name: str) -> None:
    model = make()
    optimizer = build_optimizer(model, CausalLMConfig(optimizer_type=name))
    model(input_ids=torch.zeros(1, 8, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    size = count_optimizer_bytes(model, OPTIMIZERS[name])
    assert measure_state(model, optimizer) == count_state(
        count_parameters(model), size, None, 1, half=False
    )


def test_each_stage_divides_one_more_part_of_the_state() -> None:
    counts = ParameterCounts(total=1000, trainable=1000, embeddings=0)
    half = [count_state(counts, 8000, stage, 4, half=True) for stage in (0, 1, 2, 3)]
    assert [(memory.weights, memory.gradients, memory.optimizer) for memory in half] == [
        (2000, 2000, 12_000),
        (2000, 2000, 3000),
        (2000, 500, 3000),
        (500, 500, 3000),
    ]
    single = [count_state(counts, 8000, stage, 4, half=False) for stage in (0, 1)]
    assert [memory.optimizer for memory in single] == [
        8000,
        3000,
    ]  # ZeRO adds its own float32 weights
    sharded = count_state(counts, 8000, "FSDP2", 4, half=True)
    assert (sharded.weights, sharded.gradients, sharded.optimizer) == (1000, 1000, 2000)
    plain = count_state(
        counts, 8028, None, 4, half=True
    )  # bf16 without DeepSpeed: weights stay float32
    assert (plain.weights, plain.gradients, plain.optimizer) == (4000, 4000, 8028)


def measure_saved_bytes(model: torch.nn.Module, half: bool) -> int:
    """Returns the bytes that a forward pass saves for the backward pass, except weights."""
    weight_storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weight_storages:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    ids = torch.ones(4, 128, dtype=torch.long)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=half):
        output = model(input_ids=ids, use_cache=False)  # alive, as what it keeps is
    assert output is not None
    return sum(kept.values())


def make_shape(model: Any, **values: Any) -> Shape:
    return Shape(
        model, model.base_model, list_layers(model), rows=4, length=128, outputs=512, **values
    )


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize(("half", "copies"), [(False, False), (True, False), (True, True)])
def test_activations_equal_a_real_forward_pass(make: Any, half: bool, copies: bool) -> None:
    with torch.device("meta"):
        counted = estimate_activations(make_shape(make()), half=half, copies=copies)
    model = make().base_model
    model = model if copies or not half else model.bfloat16()
    output = 4 * 128 * 64 * (2 if half else 4)
    assert counted.layers == measure_saved_bytes(model, half) + output


def gpt2_xl(fused: bool) -> GPT2LMHeadModel:
    """GPT-2 XL without weights; `fused` computes the same activation by one kernel."""
    shape = GPT2Config(n_embd=1600, n_layer=48, n_head=25)
    shape.attn_pdrop = shape.embd_pdrop = shape.resid_pdrop = 0.0
    with torch.device("meta"):
        model = GPT2LMHeadModel(shape)
    for layer in list_layers(model):
        layer.mlp.act = torch.nn.GELU(approximate="tanh") if fused else NewGELUActivation()
    return model


def estimate_xl_gib(model: GPT2LMHeadModel) -> float:
    """Returns the GiB of activations of 8 x 1,024 tokens in bf16, without the loss."""
    shape = Shape(model, model.base_model, list_layers(model), rows=8, length=1024, outputs=50257)
    return round(estimate_activations(shape, half=True, copies=True).layers / 2**30, 1)


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="counts by the rules of CUDA in any case")
def test_autocast_on_cuda_keeps_more_than_on_a_cpu() -> None:
    assert estimate_xl_gib(gpt2_xl(fused=False)) == 40.4
    with follow_cuda_rules():
        assert estimate_xl_gib(gpt2_xl(fused=False)) == 54.4
        assert estimate_xl_gib(gpt2_xl(fused=True)) == 26.3
    assert estimate_xl_gib(gpt2_xl(fused=False)) == 40.4


def test_deepspeed_computes_all_operations_in_half_precision() -> None:
    counted = estimate_activations(make_shape(gpt2()), half=True, copies=False, casts=False)
    output = 4 * 128 * 64 * 2
    model = gpt2().base_model.bfloat16()
    ids = torch.ones(4, 128, dtype=torch.long)
    weight_storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weight_storages:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(input_ids=ids, use_cache=False)
    assert result is not None
    assert counted.layers == sum(kept.values()) + output


@pytest.mark.parametrize("every", [1, 2])
def test_activations_with_recomputation_equal_a_real_forward_pass(every: int) -> None:
    model = llama().train()
    counted = estimate_activations(
        make_shape(model, recompute_every=every), half=False, copies=False
    )
    plain = measure_saved_bytes(model.base_model, half=False)
    recompute_activations(model, every)
    left = measure_saved_bytes(model.base_model, half=False)
    hidden = 4 * 128 * 64 * 4
    layer = (plain - left) / (4 // every) + hidden
    assert counted.layers_recomputed == pytest.approx(left + hidden + layer, rel=0.02)


@pytest.fixture
def eight_devices() -> Iterator[DeviceMesh]:
    """A mesh of eight fake processes, whose collectives do nothing."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield init_device_mesh("cpu", (8,))
    torch.distributed.destroy_process_group()


def make_llama(layers: int) -> LlamaForCausalLM:
    shape = LlamaConfig.from_json_file(REPOSITORY / "hydra_configs/model/llama_0.6b.json")
    shape.num_hidden_layers = layers
    return LlamaForCausalLM(shape)


def test_the_memory_tracker_of_torch_agrees(eight_devices: DeviceMesh) -> None:
    with torch.device("meta"):
        model = make_llama(2)
    wide = {"rows": 2, "length": 512, "outputs": model.config.vocab_size}
    counted = estimate_activations(
        Shape(model, model.base_model, list_layers(model), **wide), half=True, copies=False
    )
    size = count_optimizer_bytes(model, OPTIMIZERS["adamw"])
    parts = count_state(count_parameters(model), size, "FSDP2", 8, half=True)
    with FakeTensorMode():
        model = make_llama(2)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in (*model.model.layers, model):
            fully_shard(layer, mesh=eight_devices, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        tracker = FSDPMemTracker(model, optimizer)
        ids = torch.zeros(2, 512, dtype=torch.long)
        with tracker:
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
            forward = tracker.get_tracker_snapshot()[torch.device("cpu")]
            logits.sum().backward()
            optimizer.step()
            after = tracker.get_tracker_snapshot()[torch.device("cpu")]
    tracked = {kind.value: size for kind, size in after.items() if kind != "Total"}
    assert (parts.weights, parts.gradients) == (tracked["Sharded Param"], tracked["Sharded Grad"])
    assert parts.optimizer == pytest.approx(tracked["OptState"], rel=1e-6)
    live = {str(kind): size for kind, size in forward.items()}["_FSDPRefType.ACT"]
    assert counted.layers == pytest.approx(live, rel=0.05)


@pytest.mark.parametrize("processes", [1, 8, 64])
def test_the_estimators_of_deepspeed_add_what_exists_only_during_a_step(processes: int) -> None:
    size, largest = 1_600_000_000, 200_000_000
    counts = ParameterCounts(total=size, trainable=size, embeddings=0)
    second, third = (count_state(counts, 8 * size, n, processes, half=True).total for n in (2, 3))
    _, theirs = estimate_zero2_model_states_mem_needs(size, processes, cpu_offload=False)
    assert theirs == second + 4 * size / processes  # float32 gradients
    _, theirs, gathered = estimate_zero3_model_states_mem_needs(
        size, largest, processes, cpu_offload=False, cpu_offload_params=False
    )
    assert theirs == third + 2 * size / processes + gathered
    assert gathered == 4 * largest


def test_a_model_that_needs_more_than_ids_has_no_activations() -> None:
    model = torch.nn.Linear(2, 2)
    needs = Shape(model, model, [], rows=1, length=1, outputs=2)
    with pytest.raises(TypeError, match="input_ids"):
        estimate_activations(needs, half=False, copies=False)


def test_sizes_and_durations_are_formatted_for_people() -> None:
    assert [format_size(size) for size in (5, 2048, 3 * 2**20, 5 * 2**30)] == [
        "5 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.00 GiB",
    ]
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


@pytest.mark.parametrize(("shard_processes", "shards"), [(None, 8), (2, 2)])
def test_each_copy_of_a_sharded_model_is_divided_among_its_processes(
    shard_processes: int | None, shards: int
) -> None:
    model = nn.Linear(10, 100, bias=False)
    shape = Shape(model, model, [], rows=1, length=1, outputs=2)
    config = CausalLMConfig(fsdp_shard_processes=shard_processes)
    launch = Launch(source="fsdp2.yaml", num_processes=8, distributed_type="FSDP", fsdp={})
    run = CheckedRun(config=config, entry=TASKS["causal_lm"], launch=launch, deepspeed_config=None)
    states = Forecast(run, shape, None, saves_frozen=True).states
    assert states["FSDP2"].weights == 4000 / shards
    assert states[3].weights == 4000 / 8


@pytest.mark.parametrize(
    ("engine", "saves_frozen", "export_steps", "expected"),
    [
        # 8 MiB of weights, 2 MiB of them trained, with two moments of AdamW.
        (None, True, None, ["weights and optimizer in main memory: 12.0 MiB on rank 0"]),
        (None, False, None, ["trained weights and optimizer in main memory: 6.0 MiB on rank 0"]),
        (
            "FSDP2",
            False,
            None,
            [
                "trained weights and optimizer in main memory: 3.0 MiB on each rank",
                "rank 0 also keeps the frozen weights there, for model/ in checkpoints: 6.0 MiB "
                "(export_steps=0 does without)",
            ],
        ),
        (
            "FSDP2",
            False,
            0,
            ["trained weights and optimizer in main memory: 3.0 MiB on each rank"],
        ),
        (0, True, None, ["weights and optimizer in main memory: 12.0 MiB on rank 0"]),
        # Every rank copies all frozen weights, and half of the others with their moments.
        (2, True, None, ["weights and optimizer in main memory: 9.0 MiB on each rank"]),
        (2, False, None, ["trained weights and optimizer in main memory: 3.0 MiB on each rank"]),
        (3, True, None, ["weights and optimizer in main memory: 6.0 MiB on each rank"]),
        (
            3,
            False,
            None,
            [
                "trained weights and optimizer in main memory: 3.0 MiB on each rank",
                "rank 0 also keeps the frozen weights there, for model/ in checkpoints: 6.0 MiB "
                "(export_steps=0 does without)",
            ],
        ),
    ],
)
def test_copies_of_checkpoints_are_counted_without_the_weights_that_they_lack(
    engine: str | int | None, saves_frozen: bool, export_steps: int | None, expected: list[str]
) -> None:
    frozen = nn.Linear(1024, 1536, bias=False, device="meta").requires_grad_(False)
    trained = nn.Linear(1024, 512, bias=False, device="meta")
    model = nn.Sequential(frozen, trained)
    shape = Shape(model, model, [], rows=1, length=1, outputs=2)
    config = CausalLMConfig(async_save=True, export_steps=export_steps)
    launch = Launch(source="a file", num_processes=2, fsdp={} if engine == "FSDP2" else None)
    deepspeed = {"zero_optimization": {"stage": engine}} if isinstance(engine, int) else None
    run = CheckedRun(
        config=config, entry=TASKS["causal_lm"], launch=launch, deepspeed_config=deepspeed
    )
    lines = Forecast(run, shape, None, saves_frozen=saves_frozen).describe_staging()
    assert [line.removeprefix("async_save keeps a copy of ") for line in lines] == expected


@pytest.mark.parametrize(
    ("export_dtype", "stage", "expected"),
    [
        (None, None, "model/ takes 8.0 MiB on the disk, as trained (export_dtype)"),
        (None, 2, "model/ takes 4.0 MiB on the disk, as trained (export_dtype)"),
        (
            "float16",
            None,
            "model/ takes 4.0 MiB on the disk, in float16 (export_dtype); while it is written, "
            "rank 0 also keeps 4.0 MiB in main memory",
        ),
        ("bfloat16", 2, "model/ takes 4.0 MiB on the disk, in bfloat16 (export_dtype)"),
    ],
)
def test_the_size_of_the_exported_model_follows_from_its_dtype(
    export_dtype: str | None, stage: int | None, expected: str
) -> None:
    model = nn.Linear(1024, 2048, bias=False, device="meta")
    shape = Shape(model, model, [], rows=1, length=1, outputs=2)
    config = CausalLMConfig(export_dtype=export_dtype, mixed_precision="bf16")
    launch = Launch(source="a file", num_processes=1)
    deepspeed = None if stage is None else {"zero_optimization": {"stage": stage}}
    run = CheckedRun(
        config=config, entry=TASKS["causal_lm"], launch=launch, deepspeed_config=deepspeed
    )
    assert Forecast(run, shape, None, saves_frozen=True).describe_export() == [expected]


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
