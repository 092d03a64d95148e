"""The bi-encoder: what it computes, what is trained, and what is saved."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
)

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.tasks.disambiguation import model as models
from bsmeta.tasks.disambiguation.config import DisambiguationConfig, DisambiguationDataConfig
from bsmeta.tasks.disambiguation.model import (
    CONFIG_FILE,
    BiEncoder,
    average_tokens,
    build_model,
    load_model,
    run_first_layers,
    run_last_layers,
    save_model,
)
from bsmeta.tasks.disambiguation.texts import SPECIAL_TOKENS, load_tokenizer
from tests.tasks.disambiguation.helpers import write_encoder


def built(encoder: Path, **more: Any) -> BiEncoder:
    data = DisambiguationDataConfig(max_entity_length=32, window_length=32)
    config = replace(DisambiguationConfig(model_name=str(encoder), data_config=data), **more)
    return build_model(config, load_tokenizer(str(encoder))).eval()


def inputs(mentions: int = 2, entities: int = 3) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "input_ids": torch.randint(5, 20, (1, 6)),
        "attention_mask": torch.ones(1, 6, dtype=torch.int64),
        "mention_tokens": torch.tensor([[1, 2], [4, -1]])[:mentions],
        "entity_ids": torch.randint(5, 20, (entities, 4)),
        "entity_mask": torch.ones(entities, 4, dtype=torch.int64),
        "allowed": torch.tensor([[True, True, False], [True, True, True]]),
        "prior": torch.tensor([[[-0.1, 0.0], [-3.0, -0.7], [-9.0, -1.1]], [[-1.0, -0.5]] * 3]),
    }


def test_the_vector_of_a_mention_is_the_mean_of_its_tokens() -> None:
    hidden = torch.arange(12.0).reshape(2, 3, 2)
    found = average_tokens(hidden, torch.tensor([[0, 2], [4, -1]]))
    assert found.tolist() == [[2.0, 3.0], [8.0, 9.0]]


def test_scores_are_cosines_over_the_temperature_plus_the_weighted_prior(encoder: Path) -> None:
    model = built(encoder, temperature=0.5, log_prior="scores")
    with torch.no_grad():
        model.prior_weights.copy_(torch.tensor([0.1, 0.3]))  # type: ignore[union-attr]
        found = model(**inputs())
    assert found.mentions.shape == (2, 200)
    assert found.entities.norm(dim=1) == pytest.approx([1.0] * 3, abs=1e-5)
    expected = found.mentions @ found.entities.T / 0.5 + inputs()["prior"] @ torch.tensor(
        [2.0, 3.0]
    )
    assert torch.allclose(found.scores[inputs()["allowed"]], expected[inputs()["allowed"]])
    assert found.scores[0, 2] == -torch.inf


def test_before_training_the_score_is_the_similarity_of_the_encoders_vectors(encoder: Path) -> None:
    model = built(encoder)
    mention, entity = 0.01 * torch.randn(2, 1, model.mention_layer.in_features)
    model.mention_layer.register_forward_pre_hook(lambda *_: (mention,))
    given = {name: value for name, value in inputs(mentions=1).items() if "entity" not in name}
    given |= {"prior": given["prior"][:1, :1], "allowed": torch.ones(1, 1, dtype=torch.bool)}
    with torch.no_grad():
        found = model(**given, entity_vectors=entity)
    similarity = torch.cosine_similarity(mention, entity).item()
    assert found.scores.item() * 0.01 == pytest.approx(similarity, abs=1e-3)


def test_only_the_layers_of_pretrained_encoders_start_alike(encoder: Path) -> None:
    for file, expected in ((None, True), (str(encoder / "config.json"), False)):
        model = built(encoder, model_config_file=file)
        assert torch.equal(model.mention_layer.weight, model.entity_layer.weight) == expected


def test_nil_is_a_first_column_that_is_always_allowed(encoder: Path) -> None:
    model = built(encoder, train_in_candidates=False)
    with torch.no_grad():
        found = model(**inputs())
    assert found.scores.shape == (2, 4)
    assert found.scores[:, 0].isfinite().all()


def test_what_was_computed_before_is_not_computed_again(encoder: Path) -> None:
    model = built(encoder)
    with torch.no_grad():
        whole = model(**inputs())
        texts = {name: inputs()[name] for name in ("entity_ids", "entity_mask")}
        vectors = model(**texts).entity_vectors
        rest = {name: value for name, value in inputs().items() if name not in texts}
        again = model(**rest, entity_vectors=vectors)
        embedded = model(**rest, entities=model(entity_vectors=vectors).entities)
    assert torch.allclose(whole.scores, again.scores, atol=1e-5)
    assert torch.allclose(whole.scores, embedded.scores, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "trained"),
    [
        ({}, {"mention_encoder", "entity_encoder", "mention_layer", "entity_layer"}),
        ({"share_encoders": True}, {"mention_encoder", "mention_layer", "entity_layer"}),
        (
            {"train_entity_layers": 0, "train_layers": 0, "log_prior": "scores"},
            {"mention_layer", "entity_layer", "prior_weights"},
        ),
    ],
)
def test_only_trained_parts_have_gradients(
    encoder: Path, more: dict[str, Any], trained: set[str]
) -> None:
    model = built(encoder, **more).train()
    found = model(**inputs()).scores
    found[found.isfinite()].sum().backward()
    with_gradient = {
        name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None
    }
    assert with_gradient == trained
    # DDP expects a gradient of every weight that is trained.
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_only_the_last_layers_are_trained(encoder: Path) -> None:
    model = built(encoder, train_layers=1)
    of_encoder = model.mention_encoder.named_parameters()
    assert {name.split(".")[0] for name, p in of_encoder if p.requires_grad} == {"encoder"}
    with pytest.raises(ConfigurationError, match="train_layers=2: expected at most 1, the layers"):
        built(encoder, train_layers=2)


def test_layers_that_share_their_weights_are_not_trained_apart(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    AlbertModel(AlbertConfig(
        vocab_size=100, embedding_size=8, hidden_size=8, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=8, max_position_embeddings=64,
    )).save_pretrained(tmp_path)  # fmt: skip
    with pytest.raises(ConfigurationError, match="train_layers=1: expected at most 0, the layers"):
        built(tmp_path, train_layers=1)


def test_a_frozen_encoder_has_no_dropout_in_training(encoder: Path) -> None:
    model = built(encoder, train_entity_layers=0).train()
    texts = {name: inputs()[name] for name in ("entity_ids", "entity_mask")}
    assert torch.equal(model(**texts).entity_vectors, model(**texts).entity_vectors)


def test_special_tokens_begin_as_the_separator(encoder: Path) -> None:
    tokenizer = load_tokenizer(str(encoder))
    weights = built(encoder).mention_encoder.get_input_embeddings().weight
    for token in SPECIAL_TOKENS:
        number = tokenizer.convert_tokens_to_ids(token)
        assert torch.equal(weights[number], weights[tokenizer.sep_token_id])


def test_a_tokenizer_with_other_ids_is_refused(encoder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(encoder, other)
    file = other / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(content))
    data = DisambiguationDataConfig(max_entity_length=32, window_length=32)
    config = DisambiguationConfig(
        model_name=str(encoder), tokenizer_name=str(other), data_config=data
    )
    with pytest.raises(ConfigurationError, match=r"other tokens .* at 2 of \d+ ids .*'b' instead"):
        build_model(config, load_tokenizer(str(other)))


@pytest.mark.parametrize("more", [{}, {"share_encoders": True, "train_in_candidates": False}])
def test_a_saved_model_gives_the_same_scores(
    encoder: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    model = built(encoder, **more)
    save_model(model, model.state_dict(), tmp_path / "model", "table")
    with torch.no_grad():
        found = load_model(tmp_path / "model")(**inputs()).scores
        assert torch.allclose(found, model(**inputs()).scores, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"temperature": -0.01}, r"Expected `float` > 0.0 - at `\$.temperature`"),
        ({"temperature": math.nan}, r"Expected `float` > 0.0 - at `\$.temperature`"),
        ({"temperature": math.inf}, r"Expected `float` <= 1.79\d+e\+308 - at `\$.temperature`"),
        ({"has_prior": "false"}, r"Expected `bool`, got `str` - at `\$.has_prior`"),
        ({"pooling": "max"}, r"Invalid enum value 'max' - at `\$.pooling`"),
        ({"entity_layers": -1}, r"Expected `int` >= 0 - at `\$.entity_layers`"),
        ({"has_priors": True}, "unknown field `has_priors`"),
    ],
)
def test_settings_that_no_model_has_are_refused(
    encoder: Path, tmp_path: Path, values: dict[str, Any], reason: str
) -> None:
    """With a temperature below 0, the worst candidate would be the first."""
    model = built(encoder)
    save_model(model, model.state_dict(), tmp_path, "table")
    file = tmp_path / CONFIG_FILE
    content = json.loads(file.read_text())
    content["settings"] |= values
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"the model cannot be loaded: .*{reason}"):
        load_model(tmp_path)


def test_another_model_is_refused(encoder: Path) -> None:
    with pytest.raises(DataError, match="expected the model/ of a run"):
        load_model(encoder)


def test_any_architecture_can_be_the_encoder(encoder: Path, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "gpt2")
    shape = GPT2Config(vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    GPT2Model(shape).save_pretrained(folder)
    model = built(folder, encoder_layers=1)
    assert model.mention_encoder.config.num_hidden_layers == 1
    assert model(**inputs()).scores.shape == (2, 3)


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "deep", dropout=0.0, layers=2)


def with_states(model: BiEncoder) -> dict[str, torch.Tensor]:
    given = inputs()
    with torch.no_grad():
        states = model.compute_entity_states(given.pop("entity_ids"), given["entity_mask"])
    return given | {"entity_states": states}


def gradients(model: BiEncoder, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    scores = model(**given).scores
    (-scores.log_softmax(1)[[0, 1], [0, 2]]).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_states_give_the_scores_and_gradients_of_the_texts(deep: Path) -> None:
    model = built(deep, train_entity_layers=1)
    of_texts, of_states = (
        gradients(model, {**with_states(model), **more})
        for more in ({"entity_states": None, "entity_ids": inputs()["entity_ids"]}, {})
    )
    assert of_texts.keys() == of_states.keys()
    assert {name.split(".")[3] for name in of_texts if "entity_encoder" in name} == {"1"}
    for name, gradient in of_texts.items():
        assert torch.allclose(of_states[name], gradient, atol=1e-6), name


@pytest.mark.parametrize("trained", [1, None])
def test_chunks_that_are_computed_again_have_the_same_gradients(
    deep: Path, monkeypatch: pytest.MonkeyPatch, trained: int | None
) -> None:
    # At the default temperature, rounding errors of the scores would be multiplied by 100.
    model = built(deep, train_entity_layers=trained, temperature=1.0)
    given = inputs() if trained is None else with_states(model)
    given["entity_mask"][1, 2:] = 0  # another length, so another chunk
    expected = gradients(model, given)
    monkeypatch.setattr(models, "MAX_BATCH_TOKENS", 4)
    monkeypatch.setattr(models, "MAX_KEPT_CHUNKS", 1)
    for name, gradient in gradients(model, given).items():
        assert torch.allclose(gradient, expected[name], atol=1e-6), name


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
SIZE = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


def encoders() -> list[PreTrainedModel]:
    torch.manual_seed(0)
    modern = {"num_hidden_layers": 4, "cls_token_id": 1, "sep_token_id": 1}
    return [
        BertModel(BertConfig(num_hidden_layers=3, **SIZE)),
        GPT2Model(GPT2Config(vocab_size=50, n_embd=32, n_head=2, n_layer=3, **TOKENS)),
        ModernBertModel(ModernBertConfig(**SIZE, **TOKENS, **modern)),
    ]


@pytest.mark.parametrize("encoder", encoders(), ids=lambda encoder: type(encoder).__name__)
@pytest.mark.parametrize("last", [1, 2, 3])
def test_both_parts_make_what_the_whole_encoder_makes(encoder: PreTrainedModel, last: int) -> None:
    encoder = encoder.eval()
    ids, mask = torch.randint(5, 50, (3, 7)), torch.ones(3, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    with torch.no_grad():
        expected = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        states = run_first_layers(encoder, last, ids, mask)
        found = run_last_layers(encoder, last, states, mask)
        again = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    assert torch.equal(found[mask > 0], expected[mask > 0])
    assert torch.equal(again, expected)


@pytest.mark.parametrize("encoder", encoders(), ids=lambda encoder: type(encoder).__name__)
def test_recomputed_layers_keep_fewer_activations_and_give_the_same_gradients(
    encoder: PreTrainedModel,
) -> None:
    encoder = encoder.train()
    encoder.config.use_cache = False
    ids, mask = torch.randint(5, 50, (3, 40)), torch.ones(3, 40, dtype=torch.int64)
    mask[1, 4:] = 0

    def run(recompute: bool) -> tuple[float, dict[str, torch.Tensor], int]:
        """The loss, the gradients, and the bytes that are kept for the backward pass."""
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        encoder.zero_grad()
        torch.manual_seed(0)  # the same dropout
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            with models.recompute_layers(encoder) if recompute else nullcontext():
                hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            loss = (hidden.float().sin() * mask.unsqueeze(2)).sum()
        loss.backward()
        slopes = {
            name: parameter.grad.clone()
            for name, parameter in encoder.named_parameters()
            if parameter.grad is not None
        }
        return loss.item(), slopes, sum(kept.values())

    loss, expected, kept = run(recompute=False)
    loss_again, slopes, kept_again = run(recompute=True)
    assert loss_again == loss
    assert slopes.keys() == expected.keys()
    assert all(torch.equal(slopes[name], expected[name]) for name in expected)
    assert kept_again < kept / 2


def test_only_large_micro_batches_are_recomputed(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(
        models, "recompute_layers", lambda encoder: nullcontext(calls.append(encoder))
    )
    built(encoder, max_kept_tokens=6)(**inputs())  # the texts have 6 tokens
    built(encoder, max_kept_tokens=None)(**inputs())
    model = built(encoder, max_kept_tokens=5)
    with torch.no_grad():
        model(**inputs())
    assert calls == []
    model(**inputs())
    assert calls == [model.mention_encoder]
