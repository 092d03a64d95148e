"""What a run would do without effect: refused where it cannot be, else shown below the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks.loop import find_loop_problems
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.launch import Launch
from bsmeta.config.metric_table import load_metric_table
from bsmeta.config.startup_table import list_launch_notes
from bsmeta.core.changed_values import replace_values
from bsmeta.tasks import TASKS
from bsmeta.tasks.causal_lm.checks import find_file_problems, list_notes
from bsmeta.tasks.causal_lm.evaluation.results import PairedMetrics
from tests.config.test_refusals import named, start

METADATA = "data_config.metadata_config"
ALONE = Launch(source="test", num_processes=1)


def test_separators_that_a_boundary_token_replaces_are_noted() -> None:
    boundary = f"{METADATA}.metadata_boundary_token='<|text|>'"
    config = compose_command_line(CausalLMConfig, "demo", ["+recipes=meco", boundary])
    assert list_notes(config) == [
        f"{METADATA}: metadata_prefix_sep, metadata_text_sep not used: "
        'metadata_boundary_token="<|text|>" takes their place'
    ]
    assert list_notes(compose_command_line(CausalLMConfig, "demo", [boundary])) == []


def test_settings_without_effect_are_noted(tmp_path: Path) -> None:
    changed = [
        f"{METADATA}.random_sample_metadata_weights={{urls: 2, generation_datasource: 3}}",
        f"{METADATA}.local_metadata_special_tokens={{htlm: page}}",
        f"{METADATA}.local_metadata_special_token_end={{entity_paragraph: end, htlm: end}}",
        f"{METADATA}.value_bucket_bounds={{timestamp: [2010, 2020]}}",
        f"{METADATA}.schedule=[{{share: 0.9}}, {{share: 0.1}}]",
        "max_train_steps=3",
        "data_config.exclude=['*001*', nothing.gz]",
    ]
    config = compose_command_line(CausalLMConfig, "demo", changed)
    assert list_notes(config) == [
        f"{METADATA}.schedule.1 never takes place: its share of 0.1 is less than one of 3 steps",
        "data_config.exclude: nothing.gz matches none of 7 training shards",
        f"{METADATA}.random_sample_metadata_weights names urls, which metadata_list does not have",
        f"{METADATA}.local_metadata_special_tokens names htlm, which metadata_list does not have",
        f"{METADATA}.local_metadata_special_token_end names htlm, which metadata_list does not "
        "have",
        f"{METADATA}.value_bucket_bounds has no effect on timestamp",
    ]
    for name in ("demo", "v2"):
        shipped = compose_command_line(CausalLMConfig, name)
        assert list_notes(shipped) == []
    done = start(tmp_path, "--config-name", "demo", "check_only=true", *changed)
    assert (done.returncode, done.stdout.count("note: ")) == (0, 6)


def test_an_unused_model_name_is_noted_or_refused(tmp_path: Path) -> None:
    """Refused where the command line asks for it; else noted."""
    config = compose_command_line(CausalLMConfig, "demo", ["model_name=gpt2-xl"])
    note = "model_name: gpt2-xl is not used: model_config_file and tokenizer_name are set"
    assert list_notes(config) == [note]
    with_its_tokenizer = replace(config, tokenizer_name=None)  # then it is model_name's
    assert list_notes(with_its_tokenizer) == []
    for name in ("gpt2", "gpt2-xl"):
        command = ["--config-name", "demo", "check_only=true", f"model_name={name}"]
        refused = start(tmp_path, *command)
        assert refused.returncode == 2
        assert f'1. model_name in Hydra configuration: found "{name}", expected' in refused.stderr
        fix = f"model_config_file=null tokenizer_name=null model_name={name}"
        assert fix in refused.stderr
    accepted = start(tmp_path, *command, "tokenizer_name=null")
    assert accepted.returncode == 0, accepted.stderr
    assert "gpt2-xl (that of model_name)" in accepted.stdout


def test_options_of_accelerate_without_effect_are_noted() -> None:
    cpu = replace(ALONE, use_cpu=True)
    (note,) = list_launch_notes(cpu)
    assert note.startswith("accelerate launch --cpu (use_cpu: true) starts one process on the CPU")
    exported = replace(ALONE, zero_options={"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"})
    assert [*list_launch_notes(exported)] == [
        "ACCELERATE_DEEPSPEED_ZERO_STAGE in the environment: this is not a DeepSpeed launch"
    ]


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({"keep_best_by": "bits"}, ["keep_best_by"]),
        ({"keep_best_by": "bits_per_byte_with"}, []),
        ({"profile": True, "max_train_steps": 11}, ["profile_steps"]),
        ({"profile": True, "max_train_steps": 12}, []),
        ({"max_train_steps": 11}, []),
    ],
)
def test_settings_that_the_run_cannot_fulfill_are_refused(
    values: dict[str, Any], keys: list[str]
) -> None:
    config = replace(compose_command_line(CausalLMConfig, "demo"), **values)
    launch = Launch(source="test", num_processes=1)
    entry = TASKS["causal_lm"]

    def list_problem_keys(config: CausalLMConfig) -> list[str]:
        loop = find_loop_problems(config, launch, None, entry)
        return [problem.key for problem in [*loop, *entry.start_problems(config, launch, None)]]

    assert list_problem_keys(config) == keys
    asked = ["keep_best_by"] if config.keep_best_by else []
    changes = {"data_config.validation_file": None, "start_with_eval": True}
    without_held_out_data = replace_values(config, changes)
    assert sorted(list_problem_keys(without_held_out_data)) == sorted(
        [*keys, *asked, "start_with_eval"]
    )


def test_the_metric_table_lists_only_metrics_of_the_evaluation() -> None:
    evaluated = {*PairedMetrics.__dataclass_fields__, "text_bits_per_byte"}
    assert evaluated.issuperset(load_metric_table(CausalLMConfig) or ())


@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions"])
def test_a_sequence_longer_than_the_positions_of_the_model_is_refused(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({name: 200}))
    for key, source in (("model_config_file", tmp_path / "config.json"), ("model_name", tmp_path)):
        fixed = ["model_config_file=null", f"{key}={source}", f"{METADATA}.max_seq_len="]
        (problem,) = find_file_problems(
            compose_command_line(CausalLMConfig, "demo", [*fixed[:2], f"{fixed[2]}201"])
        )
        assert (problem.key, problem.fix) == (
            f"{METADATA}.max_seq_len",
            f"{METADATA}.max_seq_len=200",
        )
        assert [
            *find_file_problems(
                compose_command_line(CausalLMConfig, "demo", [*fixed[:2], f"{fixed[2]}200"])
            )
        ] == []


def test_text_and_metadata_of_a_row_need_positions(tmp_path: Path) -> None:
    """Under row_budget=text, metadata comes besides the text; text alone needs none for it."""
    (tmp_path / "config.json").write_text(json.dumps({"n_positions": 200}))
    model = f"model_config_file={tmp_path / 'config.json'}"
    arm = [model, "data_config.row_budget=text", f"{METADATA}.max_seq_len=120"]
    (problem,) = find_file_problems(compose_command_line(CausalLMConfig, "demo", arm))
    assert problem.found == "120 and 120 of metadata"
    fixed = [*arm, *problem.fix.split()]
    assert problem.fix == f"{METADATA}.max_seq_len=100 data_config.row_metadata_budget=100"
    for enough in (fixed, [*arm, "data_config.row_metadata_budget=80"]):
        assert [*find_file_problems(compose_command_line(CausalLMConfig, "demo", enough))] == []
    alone = [*arm, f"{METADATA}.metadata_list=[]"]
    assert [*find_file_problems(compose_command_line(CausalLMConfig, "demo", alone))] == []


def test_room_for_metadata_without_any_metadata_is_noted() -> None:
    config = compose_command_line(CausalLMConfig, "demo", ["data_config.row_metadata_budget=80"])
    (note,) = list_notes(config)
    assert note.startswith("data_config.row_metadata_budget is not used: under row_budget=sequence")
    assert list_notes(replace_values(config, {"data_config.row_budget": "text"})) == []


def test_data_in_an_unsupported_format_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "held_out").mkdir()
    (tmp_path / "held_out" / "b.jsonl").touch()
    (tmp_path / "a.arrow").touch()
    arguments = ["data_config.train_file=a.arrow", "data_config.validation_file=held_out"]
    done = start(tmp_path, "--config-name", "demo", "check_only=true", *arguments)
    assert named(done.stderr) == ["data_config.train_file", "data_config.validation_file"]
    assert (
        'found "a.arrow", expected lines of JSON (.jsonl.gz, .jsonl.zst or .jsonl) or Parquet'
        in done.stderr
    )
    assert 'found "held_out", which is a folder, expected one file' in done.stderr
    assert "Fix: data_config.validation_file=held_out/b.jsonl" in done.stderr
