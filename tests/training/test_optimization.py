"""The learning rate as a function of the step, and what every optimizer of the table must do."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.learning_rate import RatePlan
from bsmeta.config.schema import OPTIMIZERS
from bsmeta.core.errors import ConfigurationError
from bsmeta.training.engines.choice import make_engine
from bsmeta.training.engines.plain import PlainEngine
from bsmeta.training.optimization import build_optimizer, find_layer_matrices
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.8535533905932737, 0.5, 0.1464466094067262]),
    ],
)
def test_each_step_has_the_expected_learning_rate(kind: str, expected: list[float]) -> None:
    config = CausalLMConfig(
        learning_rate=1.0, lr_scheduler_type=kind, num_warmup_steps=2, max_train_steps=6
    )
    assert [RatePlan.of(config, 6).compute_rate(step) for step in range(1, 7)] == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("shape", "falling"),
    [
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        ("1-sqrt", [1.0, 0.5, 0.2928932188134524, 0.1339745962155614]),
        ("cosine", [1.0, 0.8535533905932737, 0.5, 0.1464466094067262]),
    ],
)
def test_the_rate_is_stable_until_the_decay(shape: str, falling: list[float]) -> None:
    """The decay is a number of steps or a share; it ends at a tenth of the peak if configured."""
    config = CausalLMConfig(
        learning_rate=1.0, lr_scheduler_type="wsd", num_warmup_steps=2, decay_shape=shape,
        num_decay_steps=4,
    )  # fmt: skip
    expected = [0.5, 1.0, 1.0, 1.0, *falling]
    assert [RatePlan.of(config, 8).compute_rate(step) for step in range(1, 9)] == pytest.approx(
        expected
    )
    config = replace(config, num_decay_steps=None, decay_share=0.5, min_learning_rate_ratio=0.1)
    lifted = [*expected[:4], *(0.1 + 0.9 * rate for rate in falling)]
    lifted[0] = 0.5
    assert [RatePlan.of(config, 8).compute_rate(step) for step in range(1, 9)] == pytest.approx(
        lifted
    )


def test_the_warm_up_may_be_a_share_of_the_run() -> None:
    config = CausalLMConfig(learning_rate=1.0, num_warmup_steps=1000, warmup_share=0.4)
    rates = [RatePlan.of(config, 5).compute_rate(step) for step in range(1, 6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 2 / 3, 1 / 3])


def test_without_warm_up_the_first_step_has_the_peak_rate() -> None:
    config = CausalLMConfig(learning_rate=0.1, num_warmup_steps=0, max_train_steps=10)
    assert RatePlan.of(config, 10).compute_rate(1) == 0.1


def test_only_matrices_are_decayed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = build_optimizer(model, CausalLMConfig(weight_decay=0.1))
    shapes = {
        group["weight_decay"]: [p.shape for p in group["params"]]
        for group in optimizer.param_groups
    }
    assert shapes == {0.1: [(4, 3)], 0.0: [(4,), (4,), (4,)]}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.775, 0.55, 0.325]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.8681980515339464, 0.55, 0.2318019484660536]),
    ],
)
def test_the_rate_falls_to_a_share_of_the_peak(kind: str, expected: list[float]) -> None:
    config = CausalLMConfig(
        learning_rate=2.0,
        lr_scheduler_type=kind,
        min_learning_rate_ratio=0.1,
        num_warmup_steps=2,
        max_train_steps=6,
    )
    rates = [RatePlan.of(config, 6).compute_rate(step) / 2 for step in range(1, 7)]
    assert rates == pytest.approx(expected)
    if kind != "constant":
        assert RatePlan.of(config, 6).compute_rate(7) == pytest.approx(0.2)


TEXT = torch.arange(12).reshape(2, 6)


class Trained:
    """A small model with the engine of a run."""

    def __init__(self, name: str, **changed: Any) -> None:
        config = CausalLMConfig(optimizer_type=name, **({"learning_rate": 0.01} | changed))
        torch.manual_seed(1)
        shape = GPT2Config(vocab_size=12, n_positions=8, n_embd=8, n_layer=2, n_head=2)
        accelerator = Accelerator(cpu=True)
        model = GPT2LMHeadModel(shape).eval()  # no dropout
        engine = make_engine(accelerator, model, build_optimizer(model, config))
        assert isinstance(engine, PlainEngine)
        self.engine = engine

    def step(self, factor: float = 1.0) -> float:
        """Makes a step like the trainer; the loss is multiplied by `factor`."""
        loss = self.engine.model(input_ids=TEXT, labels=TEXT).loss * factor
        loss.backward()
        norm = self.engine.clip(1.0)
        self.engine.step(loss.isfinite() & norm.isfinite())
        return loss.item()

    def state(self) -> dict[str, Any]:
        """Returns a copy of the weights and of all optimizer state."""
        state = copy.deepcopy(self.engine.collect_state())
        return {
            part: {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
            for part, prefix in (("weights", "model/"), ("optimizer", "optimizer/"))
        }

    def settings(self) -> list[dict[str, Any]]:
        """Returns the settings of the parameter groups."""
        groups = self.engine.optimizer.param_groups
        return [{k: value for k, value in group.items() if k != "params"} for group in groups]


def assert_equal(actual: Any, expected: Any) -> None:
    """Compares nested states bit by bit."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=False)


def test_a_save_does_not_unwrap_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first unwrapping imports DeepSpeed: seconds that a stopped run may not have."""
    trained = Trained("adamw")
    monkeypatch.setattr(trained.engine.accelerator, "unwrap_model", pytest.fail)
    assert trained.state()["weights"].keys() == {
        f"model/{name}"
        for name in trained.engine.unwrapped_model.state_dict()
        if name != "lm_head.weight"  # shared with the embeddings
    }


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_is_not_finite_changes_nothing(name: str, factor: float) -> None:
    """Neither the first step nor a later step; the next step is the same as without it."""
    trained, expected = Trained(name), Trained(name)
    for _ in range(3):
        weights = trained.state()["weights"]
        trained.step(factor)
        assert_equal(trained.state()["weights"], weights)
        trained.step()
        expected.step()
        assert_equal(trained.state(), expected.state())
        before = trained.state()
        trained.step(factor)
        assert_equal(trained.state(), before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_the_loss(name: str) -> None:
    trained = Trained(name)
    losses = [trained.step() for _ in range(20)]
    assert losses[-1] < 0.98 * losses[0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loaded_state_continues_with_the_settings_of_the_run(name: str, tmp_path: Path) -> None:
    saved, loaded = Trained(name), Trained(name, weight_decay=0.5, momentum=0.8, adam_beta1=0.8)
    saved.step()
    settings = loaded.settings()
    saved.engine.save(tmp_path / "state")
    loaded.engine.load(tmp_path / "state")
    assert_equal(loaded.state(), saved.state())
    assert loaded.settings() == settings
    same = Trained(name)
    same.engine.load(tmp_path / "state")
    assert same.step() == saved.step()
    assert_equal(same.state(), saved.state())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_listed_keys_of_an_optimizer_are_the_keys_it_reads(name: str) -> None:
    read = set()

    class Reading(CausalLMConfig):
        def __getattribute__(self, key: str) -> Any:
            read.add(key)
            return super().__getattribute__(key)

    config = Reading()
    read.clear()
    OPTIMIZERS[name].options(config)
    assert read == set(OPTIMIZERS[name].keys)


def test_the_page_on_training_has_a_row_for_each_optimizer() -> None:
    page = (REPOSITORY / "docs/training.md").read_text()
    assert [name for name in OPTIMIZERS if f"\n| `{name}` |" not in page] == []


def test_muon_updates_the_matrices_of_repeated_layers() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=12, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    names = {parameter: name for name, parameter in model.named_parameters()}
    inside = [
        "transformer.h.0.attn.c_attn.weight",
        "transformer.h.0.attn.c_proj.weight",
        "transformer.h.0.mlp.c_fc.weight",
        "transformer.h.0.mlp.c_proj.weight",
    ]
    assert sorted(names[parameter] for parameter in find_layer_matrices(model)) == inside
    optimizer = build_optimizer(model, CausalLMConfig(optimizer_type="muon", weight_decay=0.1))
    groups = [
        ([names[parameter] for parameter in group["params"]], group["weight_decay"])
        for group in optimizer.param_groups
    ]
    assert groups[0] == (inside, 0.1)
    assert groups[1] == (["transformer.wte.weight", "transformer.wpe.weight"], 0.1)
    assert groups[2][1] == 0.0


def test_muon_needs_repeated_layers() -> None:
    with pytest.raises(ConfigurationError, match="optimizer_type=muon: the model has no repeated"):
        build_optimizer(nn.Linear(3, 4), CausalLMConfig(optimizer_type="muon"))


def test_muon_trains_a_model_without_parameters_for_adamw() -> None:
    """As with adapters, where only matrices of layers are trained."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=12, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    inside = find_layer_matrices(model)
    for parameter in set(model.parameters()) - inside:
        parameter.requires_grad_(requires_grad=False)
    optimizer = build_optimizer(model, CausalLMConfig(optimizer_type="muon"))
    before = [parameter.clone() for parameter in inside]
    for _ in range(2):
        model(input_ids=TEXT, labels=TEXT).loss.backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert [len(group["params"]) for group in optimizer.param_groups] == [4]
    assert not any(torch.equal(*pair) for pair in zip(inside, before, strict=True))
