"""Configurations of both generations, as their documents describe them, become ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bsmeta.config.composing.compose import compose_command_line
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.disambiguation.converter import convert_keys, format_yaml, main

FIRST_CONFIG: dict[str, Any] = {
    "run_config": {
        "distributed": True,
        "ngpus_per_node": 8,
        "eval_batch_size": 256,
        "eval_steps": 20000,
        "eval_slices": ["not_most_popular_toes", "not_most_popular_tail"],
        "save_dir": "runs/wiki",
        "max_epochs": 2,
    },
    "train_config": {"batch_size": 512, "lr": 1e-4},
    "model_config": {"base_model": "BootlegM2E", "hidden_size": 512},
    "data_config": {
        "data_dir": "data/wiki_0927",
        "entity_dir": "data/entity_db",
        "emb_dir": "data/emb_data",
        "max_aliases": 10,
        "max_word_token_len": 100,
        "train_dataset": {"file": "train_full.jsonl", "use_weak_label": True},
        "word_embedding": {"cache_dir": "pretrained_bert_models", "freeze": False},
    },
}
SECOND_CONFIG: dict[str, Any] = {
    "emmental": {
        "lr": 1e-5,
        "n_epochs": 4,
        "counter_unit": "epoch",
        "evaluation_freq": 0.1,
        "checkpoint_freq": 2,
        "checkpoint_metric": "NED/Bootleg/dev/unif_NS_TL/acc_notincand:max",
        "distributed_backend": "nccl",
        "fp16": True,
        "log_path": "logs/wiki",
    },
    "run_config": {"eval_batch_size": 32},
    "train_config": {"batch_size": 32},
    "model_config": {"hidden_size": 200, "temperature": 0.01, "normalize": True},
    "data_config": {
        "data_dir": "wiki_data",
        "entity_dir": "entity_db",
        "max_seq_window_len": 64,
        "max_ent_len": 128,
        "entity_type_data": {"use_entity_types": False, "type_labels": "qid2typeids.json"},
        "use_entity_desc": True,
        "eval_slices": ["unif_NS_TS", "unif_NS_all"],
        "train_in_candidates": True,
        "word_embedding": {"bert_model": "bert-base-uncased", "context_layers": 12},
    },
}


def body(config: dict[str, Any]) -> dict[str, Any]:
    found = yaml.safe_load(format_yaml(convert_keys(config), "wiki"))
    assert found.pop("defaults")[0] == "disambiguation_config"
    return found


def test_a_configuration_of_the_first_generation_is_converted() -> None:
    assert body(FIRST_CONFIG) == {
        "eval_slices": ["not_most_popular_toes", "not_most_popular_tail"],
        "eval_steps": 20000,
        "learning_rate": 1e-4,
        "model_name": "google-bert/bert-base-cased",
        "num_train_epochs": 2,
        "out_dir": "runs/wiki",
        "data_config": {
            "batch_scope": "total",
            "batch_size": 512,
            "dev_file": "data/wiki_0927/dev.jsonl",
            "entity_table": "data/entity_db/table",
            "max_mentions": 10,
            "max_words": 100,
            "per_device_eval_batch_size": 32,
            "test_file": "data/wiki_0927/test.jsonl",
            "train_file": "data/wiki_0927/train_full.jsonl",
            "use_weak_labels": True,
        },
    }
    notes = {row.key: row.note for row in convert_keys(FIRST_CONFIG)}
    assert notes["run_config.distributed"].startswith("of the launch: accelerate launch")
    assert notes["data_config.entity_dir"] == (
        "built by bsmeta/entities.py table=data/entity_db/table entity_dir=data/entity_db "
        "emb_dir=data/emb_data"
    )
    assert notes["model_config.base_model"].startswith("the model is the bi-encoder")


def test_a_configuration_of_the_second_generation_is_converted() -> None:
    assert body(SECOND_CONFIG) == {
        "embedding_size": 200,
        "encoder_layers": 12,
        "eval_slices": ["unif_NS_TS", "unif_NS_all"],
        "evals_per_epoch": 10,
        "export_best": True,
        "keep_best_by": "unif_NS_TL_accuracy",
        "learning_rate": 1e-5,
        "mixed_precision": "fp16",
        "model_name": "bert-base-uncased",
        "num_train_epochs": 4,
        "out_dir": "logs/wiki",
        "saves_per_epoch": 5,
        "temperature": 0.01,
        "train_in_candidates": True,
        "data_config": {
            "batch_scope": "per_device",
            "batch_size": 32,
            "dev_file": "wiki_data/dev.jsonl",
            "entity_table": "entity_db/table",
            "entity_text": ["title", "relations", "description"],
            "max_entity_length": 128,
            "mention_encoding": "window",
            "per_device_eval_batch_size": 32,
            "test_file": "wiki_data/test.jsonl",
            "train_file": "wiki_data/train.jsonl",
            "window_length": 64,
        },
    }


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"data_config.batch_scope": "per_device"}),
        ({"dataparallel": True}, {"data_config.batch_scope": "per_device"}),  # the default there
        ({"dataparallel": False}, {"data_config.batch_scope": "per_device"}),
        ({"counter_unit": "batch", "evaluation_freq": 50}, {"eval_steps": 50, "save_steps": 100}),
        ({"evaluation_freq": 0}, {"eval_steps": 0, "save_steps": 0}),
        ({"n_steps": 9}, {"max_train_steps": 9, "num_train_epochs": None}),
        ({"checkpoint_metric": {"NED/Bootleg/dev/final_loss/acc_notincand": "max"}},
         {"keep_best_by": "accuracy", "export_best": True}),
        ({"lr_scheduler": "cosine_annealing"}, {"lr_scheduler_type": "cosine"}),
    ],
)  # fmt: skip
def test_settings_of_emmental_become_keys_of_training(
    changed: dict[str, Any], expected: dict[str, Any]
) -> None:
    emmental = SECOND_CONFIG["emmental"] | changed
    if "n_steps" in changed:
        del emmental["n_epochs"]
    rows = convert_keys({**SECOND_CONFIG, "emmental": emmental})
    found = {name: value for row in rows for name, value in row.ours.items()}
    assert {name: found[name] for name in expected} == expected


def test_every_key_has_a_row_and_unknown_ones_are_named() -> None:
    config = {**SECOND_CONFIG, "other": {"key": 1}}
    rows = convert_keys(config)
    assert [row.note for row in rows if row.key == "other.key"] == [
        "unknown here; see whether you need it"
    ]
    assert all(row.ours or row.note for row in rows)


def test_another_unit_is_left_to_the_user() -> None:
    emmental = SECOND_CONFIG["emmental"] | {"counter_unit": "sample"}
    rows = {row.key: row for row in convert_keys({**SECOND_CONFIG, "emmental": emmental})}
    for key, names in (
        ("emmental.evaluation_freq", "eval_steps or evals_per_epoch"),
        ("emmental.checkpoint_freq", "save_steps or saves_per_epoch"),
    ):
        assert (rows[key].ours, rows[key].note) == ({}, f"counter_unit=sample: set {names}")


def test_what_has_no_equal_here_is_named() -> None:
    emmental = SECOND_CONFIG["emmental"] | {"evaluation_freq": 2, "writer": "csv"}
    rows = {row.key: row for row in convert_keys({**SECOND_CONFIG, "emmental": emmental})}
    evaluation = rows["emmental.evaluation_freq"]
    assert (evaluation.ours, evaluation.note) == ({"evals_per_epoch": 1}, "every 2 epochs there")
    writer = rows["emmental.writer"]
    assert writer.ours == {"trackers": []}
    assert writer.note == "csv is not offered; metrics.jsonl is always written"


def test_no_embeddings_name_no_files() -> None:
    data = {**FIRST_CONFIG["data_config"], "ent_embeddings": None}
    (row,) = [
        row
        for row in convert_keys({**FIRST_CONFIG, "data_config": data})
        if "entity_dir" in row.key
    ]
    assert row.note == "built by bsmeta/entities.py table=data/entity_db/table " + (
        "entity_dir=data/entity_db emb_dir=data/emb_data"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"run_config": {"ngpus_per_node": 0, "eval_batch_size": 8}},
            "run_config.eval_batch_size=8: cannot be converted (integer modulo by zero)",
        ),
        (
            {"run_config": {"eval_batch_size": "many"}},
            "run_config.eval_batch_size=many: cannot be converted (invalid literal for int()",
        ),
        (
            {"emmental": {"evaluation_freq": "often"}},
            "emmental.evaluation_freq=often: cannot be converted (unsupported operand type",
        ),
        (
            {"emmental": {"evaluation_freq": [1], "checkpoint_freq": 1}},
            "emmental.evaluation_freq=[1]: cannot be converted (unsupported operand type",
        ),
        (
            {"emmental": {"checkpoint_metric": {}}},
            "emmental.checkpoint_metric={}: cannot be converted (no entry)",
        ),
    ],
)
def test_values_of_other_types_are_refused_by_key(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        convert_keys(config)
    assert message in str(caught.value)


def test_commas_before_comments_and_brackets_are_no_error(tmp_path: Path) -> None:
    file = tmp_path / "first.json"
    file.write_text("""{
        "train_config": {"lr": 1e-4, // last }
            /* [} */
        },
        "run_config": {"seed": 1, /* a */ "max_epochs": 2 /* } */}, // {b}
        "data_config": {"max_aliases": 10, // {c}
            "data_dir": "a,}"},
    }""")
    assert main([str(file), "--out", str(tmp_path / "out.yaml")]) == 0
    found = yaml.safe_load((tmp_path / "out.yaml").read_text())
    assert (found["learning_rate"], found["seed"], found["num_train_epochs"]) == (1e-4, 1, 2)
    assert found["data_config"]["max_mentions"] == 10
    assert found["data_config"]["train_file"] == "a,}/train.jsonl"


def test_what_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    run_config = {**FIRST_CONFIG["run_config"], "eval_batch_size": 100}
    with pytest.raises(ConfigurationError, match="eval_batch_size=100 is the total of 8 GPUs"):
        convert_keys({**FIRST_CONFIG, "run_config": run_config})
    twice = {**FIRST_CONFIG, "run_config": {"seed": 1}, "train_config": {"seed": 2}}
    with pytest.raises(ConfigurationError, match="train_config.seed=2 becomes seed=2, but another"):
        format_yaml(convert_keys(twice), "wiki")
    (tmp_path / "list.yaml").write_text("- a")
    assert main([str(tmp_path / "list.yaml")]) == 2


@pytest.mark.parametrize("config", [FIRST_CONFIG, SECOND_CONFIG], ids=["first", "second"])
def test_the_result_is_a_configuration(
    tmp_path: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wiki.json").write_text(json.dumps(config))
    assert main([str(tmp_path / "wiki.json"), "--out", str(tmp_path / "own/wiki.yaml")]) == 0
    assert "data_config.entity_dir" in capsys.readouterr().out
    written = yaml.safe_load((tmp_path / "own/wiki.yaml").read_text())
    del written["defaults"]
    data = {f"data_config.{name}": value for name, value in written.pop("data_config").items()}
    overrides = [f"{name}={json.dumps(value)}" for name, value in (written | data).items()]
    composed = compose_command_line(DisambiguationConfig, "disambiguation", overrides)
    assert composed.data_config.batch_size == config["train_config"]["batch_size"]
