"""Columns of the data: mapped paths, and metadata types that no document has."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.data.stream.columns import describe_missing_types, find_type_problems
from tests.config.test_refusals import named, start

METADATA = "data_config.metadata_config"


def test_types_that_no_document_has_are_listed_with_the_existing_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [
        {"text": "a", "metadata_url": [{"key": "url", "type": "global", "value": "x"}]},
        {"text": "b", "metadata": [{"key": "author", "type": "global", "value": "y"}]},
    ]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in columns)
    (tmp_path / "broken.jsonl").write_text("[]\n")

    def describe_types(types: str, *overrides: str) -> list[str]:
        fixed = ["data_config.validation_file=null", f"data_config.train_file={tmp_path}/*.gz"]
        changed = [*fixed, f"{METADATA}.metadata_list={types}", *overrides]
        return describe_missing_types(
            compose_command_line(CausalLMConfig, "demo", changed).data_config
        )

    columns_there_are = "(metadata_list){}. Their columns: author, url"
    start_of = "none of the first 2 documents of a.jsonl.gz has "
    alone = "; it would train on text alone"
    assert describe_types("[html,title]") == [
        f"{start_of}html, title " + columns_there_are.format(alone)
    ]
    assert describe_types("[url,title]") == [f"{start_of}title " + columns_there_are.format("")]
    assert describe_types("[url,meta_tokens,author]") == []
    assert describe_types("[title]", f"{METADATA}.metadata_probability=0") == []
    assert describe_types("[url]", f"{METADATA}.metadata_column_list=[html]") == [
        f"{start_of}url " + columns_there_are.format(alone)
    ]
    assert describe_types("[title]", "data_config.train_file=nowhere/*.gz") == []
    listed = "data_config.train_file=hf://datasets/owner/name/*.jsonl.gz"
    monkeypatch.setattr(
        "bsmeta.data.stream.columns.list_shards", lambda _: pytest.fail("the Hub was asked")
    )
    assert describe_types("[title]", listed) == []
    monkeypatch.undo()
    assert describe_types("[title]", f"data_config.train_file={tmp_path}/broken.jsonl") != []


def test_unknown_types_that_no_document_has_are_refused(tmp_path: Path) -> None:
    """Otherwise a misspelled type would be ignored, and the run would train on text alone."""
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
        problems = find_type_problems(
            compose_command_line(CausalLMConfig, "demo", changed).data_config
        )
        assert {problem.key for problem in problems} <= {f"{METADATA}.metadata_list"}
        return [f"{problem.found}; {problem.expected}; {problem.fix}" for problem in problems]

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
