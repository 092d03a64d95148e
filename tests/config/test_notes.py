"""What a run would do without effect: refused where it cannot be, else shown below the table."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks import loop_problems
from bsmeta.config.compose import compose
from bsmeta.config.launch import Launch
from bsmeta.config.metadata import MetadataConfig, Phase
from bsmeta.config.startup_table import launch_notes
from bsmeta.core.changed_values import replace_values
from bsmeta.data.stream.columns import missing_types, type_problems
from bsmeta.metadata.checks import metadata_problems
from bsmeta.tasks import TASKS
from bsmeta.tasks.causal_lm.checks import file_problems, notes
from bsmeta.tasks.causal_lm.results import PairedMetrics
from tests.config.test_refusals import named, start

METADATA = "data_config.metadata_config"
ALONE = Launch(source="test", num_processes=1)


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({"metadata_column_list": []}, ["metadata_column_list"]),
        ({"metadata_column_list": [], "metadata_list": ["meta_tokens"]}, []),
        ({"metadata_column_list": [], "metadata_list": []}, []),
        (
            {"random_sample_metadata_weights": {"url": 0, "website_desc": 0}},
            ["random_sample_metadata_weights"],
        ),
        ({"random_sample_metadata_weights": {"url": 0}}, []),
        (
            {
                "random_sample_metadata_weights": {"url": 0, "website_desc": 0},
                "random_sample_metadata": False,
            },
            [],
        ),
        ({"metadata_dropout": {"url": 1.0, "website_description": 1.0}}, ["metadata_dropout"]),
        ({"metadata_list": ["html"], "html_overall_sample_rate": 0.0}, ["metadata_dropout"]),
        (
            {"schedule": [Phase(share=0.5), Phase(share=0.5, metadata_dropout={"url": 1.0})]},
            [],
        ),
        (
            {
                "schedule": [
                    Phase(share=0.5, types=["url"], metadata_dropout={"url": 1.0}),
                    Phase(share=0.5, types=[]),
                ]
            },
            ["schedule.0.metadata_dropout"],
        ),
    ],
)
def test_metadata_that_can_never_be_drawn_is_refused(
    values: dict[str, Any], keys: list[str]
) -> None:
    config = MetadataConfig(**{"metadata_list": ["url", "website_description"], **values})
    found = [problem.key for problem in metadata_problems(config)]
    assert found == [f"{METADATA}.{key}" for key in keys]
    never_drawn = replace(config, metadata_probability=0.0)
    assert keys == ["metadata_column_list"] or metadata_problems(never_drawn) == []


def test_types_that_no_document_has_are_named_with_the_columns_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [
        {"text": "a", "metadata_url": [{"key": "url", "type": "global", "value": "x"}]},
        {"text": "b", "metadata": [{"key": "author", "type": "global", "value": "y"}]},
    ]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in columns)
    (tmp_path / "broken.jsonl").write_text("[]\n")

    def told(types: str, *overrides: str) -> list[str]:
        fixed = ["data_config.validation_file=null", f"data_config.train_file={tmp_path}/*.gz"]
        changed = [*fixed, f"{METADATA}.metadata_list={types}", *overrides]
        return missing_types(compose(CausalLMConfig, "demo", changed).data_config)

    columns_there_are = "(metadata_list){}. Their columns: author, url"
    start_of = "none of the first 2 documents of a.jsonl.gz has "
    alone = "; it would train on text alone"
    assert told("[html,title]") == [f"{start_of}html, title " + columns_there_are.format(alone)]
    assert told("[url,title]") == [f"{start_of}title " + columns_there_are.format("")]
    assert told("[url,meta_tokens,author]") == []
    assert told("[title]", f"{METADATA}.metadata_probability=0") == []
    assert told("[url]", f"{METADATA}.metadata_column_list=[html]") == [
        f"{start_of}url " + columns_there_are.format(alone)
    ]
    assert told("[title]", "data_config.train_file=nowhere/*.gz") == []
    listed = "data_config.train_file=hf://datasets/owner/name/*.jsonl.gz"
    monkeypatch.setattr(
        "bsmeta.data.stream.columns.list_shards", lambda _: pytest.fail("the Hub was asked")
    )
    assert told("[title]", listed) == []
    monkeypatch.undo()
    assert told("[title]", f"data_config.train_file={tmp_path}/broken.jsonl") != []


def test_unknown_types_that_no_document_has_are_refused(tmp_path: Path) -> None:
    """A misspelled type would be left out, and the run train on text alone."""
    rows = [
        {
            "text": "a",
            "metadata_url": [{"key": "url", "value": "x"}],
            "metadata_award": [],
            "metadata_website_desc": [{"key": "website_description", "value": "About."}],
        },
        {"text": "b", "metadata": [{"key": "author", "value": "y"}], "score": 0.5},
    ]
    for name in "ab":
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows * 400)
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(rows[0]) + "\n" for _ in range(600))
        rare = {"text": "c", "metadata_rare": [{"key": "rare", "value": 1}]}
        file.write(json.dumps(rare) + "\n")

    def refused(types: str, *overrides: str) -> list[str]:
        fixed = ["data_config.validation_file=null", f"data_config.train_file={tmp_path}/*.gz"]
        changed = [*fixed, f"{METADATA}.metadata_list={types}", *overrides]
        problems = type_problems(compose(CausalLMConfig, "demo", changed).data_config)
        assert {problem.key for problem in problems} <= {f"{METADATA}.metadata_list"}
        return [f"{one.found}; {one.expected}; {one.fix}" for one in problems]

    where = "which none of the first 1,967 documents has"
    there = "types that there are: author, award, rare, url, website_description"
    assert refused("[url,titel]") == [
        f"titel, {where}; {there} (did you mean title?); "
        f"{METADATA}.metadata_list=[url,title], or leave titel out"
    ]
    assert refused("[score]") == [
        f"score, {where}; {there} (did you mean datasource?); "
        "data_config.columns={score: score} uses a plain column"
    ]
    assert refused("[url,title,author,award,rare,source,meta_tokens]") == []
    assert refused("[titel]", f"{METADATA}.metadata_probability=0") == []
    assert refused("[titel]", "data_config.train_file=nowhere/*.gz") == []
    assert refused("[titel]", "data_config.train_file=hf://datasets/owner/name/*.gz") == []
    mapped = ["data_config.columns={quality: score}", f"{METADATA}.metadata_probability=1"]
    assert refused("[quality,title,dump]", *mapped) == []
    assert len(refused("[dump]", *mapped)) == 1  # it would train on text alone
    assert refused("[qualty]", *mapped) == [
        "qualty, which data_config.columns does not have; types that there are: quality "
        f"(did you mean quality?); {METADATA}.metadata_list=[quality], or leave qualty out"
    ]
    arguments = [f"data_config.train_file={tmp_path}/*.gz", f"{METADATA}.metadata_list=[titel]"]
    done = start(tmp_path, "--config-name", "demo", "check_only=true", *arguments)
    assert named(done.stderr) == [f"{METADATA}.metadata_list"]


def test_what_has_no_effect_is_noted(tmp_path: Path) -> None:
    changed = [
        f"{METADATA}.random_sample_metadata_weights={{urls: 2, generation_datasource: 3}}",
        f"{METADATA}.local_metadata_special_tokens={{htlm: page}}",
        f"{METADATA}.local_metadata_special_token_end={{entity_paragraph: end, htlm: end}}",
        f"{METADATA}.value_bucket_bounds={{timestamp: [2010, 2020]}}",
        f"{METADATA}.schedule=[{{share: 0.9}}, {{share: 0.1}}]",
        "max_train_steps=3",
        "data_config.exclude=['*001*', nothing.gz]",
    ]
    config = compose(CausalLMConfig, "demo", changed)
    assert notes(config) == [
        f"{METADATA}.schedule.1 never takes place: its share of 0.1 is less than one of 3 steps",
        "data_config.exclude: nothing.gz matches none of 7 training shards",
        f"{METADATA}.random_sample_metadata_weights names urls, which metadata_list does not have",
        f"{METADATA}.local_metadata_special_tokens names htlm, which metadata_list does not have",
        f"{METADATA}.local_metadata_special_token_end names htlm, which metadata_list does not "
        "have",
        f"{METADATA}.value_bucket_bounds has no effect on timestamp",
    ]
    for name in ("demo", "v2"):
        shipped = compose(CausalLMConfig, name)
        assert notes(shipped) == []
    done = start(tmp_path, "--config-name", "demo", "check_only=true", *changed)
    assert (done.returncode, done.stdout.count("note: ")) == (0, 6)


def test_a_model_that_is_not_used(tmp_path: Path) -> None:
    """Refused where the command line asks for it; else noted."""
    config = compose(CausalLMConfig, "demo", ["model_name=gpt2-xl"])
    note = "model_name: gpt2-xl is not used: model_config_file and tokenizer_name are set"
    assert notes(config) == [note]
    with_its_tokenizer = replace(config, tokenizer_name=None)  # then it is model_name's
    assert notes(with_its_tokenizer) == []
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
    (note,) = launch_notes(cpu)
    assert note.startswith("accelerate launch --cpu (use_cpu: true) starts one process on the CPU")
    exported = replace(ALONE, zero_options={"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"})
    assert [*launch_notes(exported)] == [
        "ACCELERATE_DEEPSPEED_ZERO_STAGE in the environment: this is no DeepSpeed launch"
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
def test_what_the_run_cannot_do_is_refused(values: dict[str, Any], keys: list[str]) -> None:
    config = replace(compose(CausalLMConfig, "demo"), **values)
    launch = Launch(source="test", num_processes=1)
    entry = TASKS["causal_lm"]

    def found(config: CausalLMConfig) -> list[str]:
        loop = loop_problems(config, launch, None, entry)
        return [problem.key for problem in [*loop, *entry.start_problems(config, launch, None)]]

    assert found(config) == keys
    asked = ["keep_best_by"] if config.keep_best_by else []
    changes = {"data_config.validation_file": None, "start_with_eval": True}
    without_held_out_data = replace_values(config, changes)
    assert sorted(found(without_held_out_data)) == sorted([*keys, *asked, "start_with_eval"])


def test_the_figures_are_those_of_the_evaluation() -> None:
    known = {*PairedMetrics.__dataclass_fields__, "text_bits_per_byte"}
    assert known.issuperset(CausalLMConfig.metrics or ())


@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions"])
def test_a_sequence_longer_than_the_positions_of_the_model(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({name: 200}))
    for key, source in (("model_config_file", tmp_path / "config.json"), ("model_name", tmp_path)):
        fixed = ["model_config_file=null", f"{key}={source}", f"{METADATA}.max_seq_len="]
        (problem,) = file_problems(compose(CausalLMConfig, "demo", [*fixed[:2], f"{fixed[2]}201"]))
        assert (problem.key, problem.fix) == (
            f"{METADATA}.max_seq_len",
            f"{METADATA}.max_seq_len=200",
        )
        assert [
            *file_problems(compose(CausalLMConfig, "demo", [*fixed[:2], f"{fixed[2]}200"]))
        ] == []


def test_text_and_metadata_of_a_row_need_positions(tmp_path: Path) -> None:
    """Under row_budget=text, metadata comes besides the text; text alone needs none for it."""
    (tmp_path / "config.json").write_text(json.dumps({"n_positions": 200}))
    model = f"model_config_file={tmp_path / 'config.json'}"
    arm = [model, "data_config.row_budget=text", f"{METADATA}.max_seq_len=120"]
    (problem,) = file_problems(compose(CausalLMConfig, "demo", arm))
    assert problem.found == "120 and 120 of metadata"
    fixed = [*arm, *problem.fix.split()]
    assert problem.fix == f"{METADATA}.max_seq_len=100 data_config.row_metadata_budget=100"
    for enough in (fixed, [*arm, "data_config.row_metadata_budget=80"]):
        assert [*file_problems(compose(CausalLMConfig, "demo", enough))] == []
    alone = [*arm, f"{METADATA}.metadata_list=[]"]
    assert [*file_problems(compose(CausalLMConfig, "demo", alone))] == []


def test_room_for_metadata_that_no_row_has_is_noted() -> None:
    config = compose(CausalLMConfig, "demo", ["data_config.row_metadata_budget=80"])
    (note,) = notes(config)
    assert note.startswith("data_config.row_metadata_budget is not used: under row_budget=sequence")
    assert notes(replace_values(config, {"data_config.row_budget": "text"})) == []


def test_data_of_another_kind_is_called_by_its_name(tmp_path: Path) -> None:
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
