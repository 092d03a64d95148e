"""The entry point: its files, its output, and its messages when something is missing."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.saved_runs import format_yaml
from bsmeta.core.errors import ConfigurationError
from bsmeta.models.manifest import write_model_manifest
from bsmeta.tasks.causal_lm.evaluation.evaluate import compare_models, evaluate
from bsmeta.tasks.causal_lm.evaluation.results import ModelReport
from bsmeta.training.ranks.processes import ALONE
from tests.data.s3_server import S3Server
from tests.tasks.causal_lm.evaluation.conftest import call, documents, write_shard
from tests.tasks.causal_lm.evaluation.helpers import LN2, make_sums
from tests.training.hub_server import HubServer

REPOSITORY = Path(__file__).resolve().parents[4]


def read_report(folder: Path) -> dict[str, Any]:
    """Returns the only model of a report, and its settings."""
    report = json.loads((folder / "evaluation.json").read_text())
    (model,) = report["models"]
    return {**model, "settings": report["settings"]}


def test_a_run_folder_is_evaluated_and_reported(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = call(monkeypatch, f"checkpoint={run_folder}", "bootstrap_resamples=50")
    assert code == 0
    out = run_folder / "evaluation"
    report = read_report(out)
    assert report["data"]["file"] == "held-out.jsonl.gz"
    assert report["data"]["documents"] == 11
    assert report["settings"]["windows"] == "sliding"
    names = [comparison["name"] for comparison in report["comparisons"]]
    assert names[:5] == ["text", "all", "each/html", "each/title", "each/url"]
    assert [name for name in names[5:] if name.endswith("/all")] == [
        "matched/all",
        "form/all",
        "separator/all",
        "own_against_matched/all",
        "own_against_form/all",
        "own_against_separator/all",
    ]
    both = report["comparisons"][1]
    assert both["documents"] == 9
    assert both["difference_low"] <= both["difference"] <= both["difference_high"]
    for bins in ("by_position", "by_context"):
        assert sum(data_slice["bytes"] for data_slice in both[bins]) == both["bytes"]
    assert both["simultaneous_low"] < both["difference_low"]
    assert both["text_bytes"] > both["bytes"]
    lines = [json.loads(line) for line in (out / "documents.jsonl").read_text().splitlines()]
    own = [line for line in lines if line["comparison"] == "all"]
    assert sum(line["bytes"] for line in own) == both["bytes"]
    bits = sum(line["nats_with"] for line in own) / math.log(2)
    assert bits / both["bytes"] == pytest.approx(both["bits_per_byte_with"])
    assert {line["document"] for line in own} <= {f"held-out.jsonl.gz:{n}" for n in range(11)}
    for name in ("differences.png", "loss.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    page = (out / "evaluation.md").read_text()
    assert f"| all together | 9 | {both['bytes']:,} |" in page
    count = sum(comparison["documents"] > 0 for comparison in report["comparisons"]) - 1
    assert f"{count} comparisons were made, controls included" in page
    assert "| title | wrong, same length |" in page
    printed = capsys.readouterr().out
    assert "all together" in printed
    assert f"{both['difference']:+.4f}" in printed


@pytest.mark.long
def test_intervals_over_hosts_are_reported(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = (f"checkpoint={run_folder}", "comparisons=[all]", "controls=[]")
    assert call(monkeypatch, *short, "bootstrap_resamples=50") == 0
    by_document = read_report(run_folder / "evaluation")
    over_hosts = by_document["over_hosts"]["all"]
    assert "hosts of these documents" in capsys.readouterr().out
    assert call(monkeypatch, *short, "cluster=host") == 0
    by_host = read_report(run_folder / "evaluation")
    both = by_host["comparisons"][1]
    assert both["hosts"] == over_hosts["hosts"] > 1
    for end in ("difference_low", "difference_high", "sign_test_p"):
        assert both[end] == pytest.approx(over_hosts[end])
    assert both["difference"] == pytest.approx(by_document["comparisons"][1]["difference"])
    assert by_host["over_hosts"] == {}
    assert (
        "Student's, over hosts (jackknife)"
        in (run_folder / "evaluation" / "evaluation.md").read_text()
    )


def test_intervals_over_hosts_need_two_hosts(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = call(monkeypatch, f"checkpoint={run_folder}", "cluster=host", "max_documents=1")
    assert code == 2
    message = capsys.readouterr().err
    assert "cluster=host: the documents of" in message
    assert "use cluster=document" in message


def test_keys_change_the_evaluated_comparisons_and_documents(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = call(
        monkeypatch,
        f"checkpoint={run_folder / 'model'}",
        f"out_dir={tmp_path / 'out'}",
        "metadata_list=[url]",
        "comparisons=[each]",
        "controls=[]",
        "max_documents=3",
        "windows=sliding",
        "per_device_eval_batch_size=1",
        "bootstrap_resamples=50",
        "+overrides.data_config.metadata_config.max_seq_len=32",
    )
    assert code == 0
    report = read_report(tmp_path / "out")
    assert [comparison["name"] for comparison in report["comparisons"]] == ["text", "each/url"]
    assert report["data"]["documents"] == 3
    assert report["data"]["max_seq_len"] == 32


@pytest.mark.long
def test_the_newest_checkpoint_stands_in_for_a_final_model(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_folder / "checkpoint-20step").mkdir()
    (run_folder / "model").rename(run_folder / "checkpoint-20step" / "model")
    write_model_manifest(run_folder / "checkpoint-20step")
    (run_folder / "checkpoint-30step").mkdir()  # saved without model/
    (run_folder / "checkpoint-30step" / "manifest.json").touch()
    (run_folder / "checkpoint-100step").mkdir()  # not a whole checkpoint: no model in it
    arguments = ("comparisons=[all]", "max_documents=1", "bootstrap_resamples=50")
    assert call(monkeypatch, f"checkpoint={run_folder}", *arguments) == 0
    model = read_report(run_folder / "evaluation")["model"]
    assert model == str(run_folder / "checkpoint-20step" / "model")
    checkpoint = run_folder / "checkpoint-20step"
    assert call(monkeypatch, f"checkpoint={checkpoint}", *arguments) == 0
    assert read_report(run_folder / "evaluation-checkpoint-20step")["model"] == model


@pytest.mark.parametrize(
    "named", ["", "/checkpoint-30step", "/checkpoint-30step/model"], ids=["run", "one", "model"]
)
def test_a_checkpoint_without_a_model_is_refused(
    named: str,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.rmtree(run_folder / "model")
    for step in (4, 30):
        (run_folder / f"checkpoint-{step}step").mkdir()
        (run_folder / f"checkpoint-{step}step" / "manifest.json").touch()
    assert call(monkeypatch, f"checkpoint={run_folder}{named}") == 2
    saved = run_folder / "checkpoint-30step"
    message = capsys.readouterr().err
    assert f"checkpoint={run_folder}{named}: {saved} has no model/, which export_steps " in message
    assert f"resume_from_checkpoint_dir={saved} max_train_steps=30 out_dir=FOLDER" in message


def test_a_flipped_byte_in_a_checkpoint_is_refused(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = run_folder / "checkpoint-20step"
    checkpoint.mkdir()
    (run_folder / "model").rename(checkpoint / "model")
    write_model_manifest(checkpoint)
    weights = checkpoint / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-10] ^= 4
    weights.write_bytes(content)
    assert call(monkeypatch, f"checkpoint={run_folder}") == 2
    assert f"{weights}: {len(content)} bytes, xxh3" in capsys.readouterr().err


def test_a_folder_without_a_tokenizer_is_refused(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (run_folder / "model").glob("tokenizer*"):
        file.unlink()
    assert call(monkeypatch, f"checkpoint={run_folder}") == 2
    message = capsys.readouterr().err
    assert f"checkpoint={run_folder}: there is no tokenizer (it would have 1 tokens" in message


@pytest.mark.long
def test_all_options_together_make_one_page(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = run_folder / "metrics.jsonl"
    counts = {"documents": 4, "documents/url": 3, "documents/title": 1}
    line = json.dumps({"event": "step", "step": 9, "loss": 7.0, "counts": counts})
    metrics.write_text(metrics.read_text().rpartition("\n")[0] + "\n" + line + "\n")
    code = call(
        monkeypatch,
        f"checkpoint=[{run_folder},{run_folder / 'model'}]",
        f"out_dir={tmp_path / 'out'}",
        "metadata_list=[title,url]",
        "comparisons=[all,each,left_out,added]",
        "chosen=[title+url]",
        "controls=[shuffled,wrong]",
        "prompt=true",
        "untrained=true",
        "slices=[{by: site, top: 2},{by: length, edges: [200]}]",
        "windows=first_piece",
        "bootstrap_resamples=50",
    )
    assert code == 0
    report = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    names = [model["checkpoint"] for model in report["models"]]
    first, same, untrained = report["models"]
    assert names == [str(run_folder), str(run_folder / "model"), f"untrained ({run_folder})"]
    assert first["comparisons"] == same["comparisons"]
    assert first["comparisons"] != untrained["comparisons"]
    pairs = [(pair["first"], pair["second"], pair["shown"]) for pair in report["pairs"]]
    assert pairs[:2] == [(names[0], names[1], "text alone"), (names[0], names[1], "all metadata")]
    assert len(pairs) == 6
    for pair in report["pairs"][:2]:  # the same model twice
        assert (pair["difference"], pair["difference_low"], pair["difference_high"]) == (0, 0, 0)
        assert (pair["documents_better"], pair["documents_worse"]) == (0, 0)
    assert [data_slice["name"] for data_slice in first["slices"]] == [
        "site0.org",
        "site1.org",
        "below 200 bytes",
        "200 bytes and more",
    ]
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg ") == 8  # differences and positions of three models, two of the run
    assert "http://" not in page.replace("http://www.w3.org", "")  # nothing to fetch
    assert '<th scope="row">title + url (plain English)</th>' in page
    assert f"<h3>By kind of document: {run_folder}</h3>" in page
    assert (tmp_path / "out" / "exposure.png").is_file()


def test_a_single_document_has_no_interval(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, f"checkpoint={run_folder}", "max_documents=1", "controls=[]") == 0
    both = read_report(run_folder / "evaluation")["comparisons"][1]
    assert (both["documents"], both["difference_low"], both["difference_high"]) == (1, None, None)
    printed = " ".join(capsys.readouterr().out.split())
    assert "over one document, so there is no interval" in printed


@pytest.mark.long
def test_each_model_is_described_by_the_windows_it_was_scored_with(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(run_folder, other)
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("max_seq_len: 64", "max_seq_len: 32"))
    arguments = ("comparisons=[all]", "controls=[]", "bootstrap_resamples=50")
    assert call(monkeypatch, f"checkpoint=[{run_folder},{other}]", *arguments) == 0
    page = (run_folder / "evaluation" / "evaluation.md").read_text()
    assert f"{run_folder}: 11 documents of held-out.jsonl.gz; windows of 64 tokens" in page
    assert f"{other}: 11 documents of held-out.jsonl.gz; windows of 32 tokens" in page


def test_another_held_out_file_gets_a_separate_folder(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_shard(tmp_path / "unseen.jsonl.gz", documents()[:4])
    arguments = ("comparisons=[all]", "controls=[]", "bootstrap_resamples=50")
    assert (
        call(monkeypatch, f"checkpoint={run_folder}", f"validation_file={other}", *arguments) == 0
    )
    assert read_report(run_folder / "evaluation-unseen")["data"]["file"] == "unseen.jsonl.gz"
    assert not (run_folder / "evaluation").exists()


def test_names_are_printed_literally(
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = write_shard(tmp_path / "test[en].jsonl.gz", documents()[:4])
    arguments = ("comparisons=[all]", "controls=[]", "bootstrap_resamples=50")
    code = call(monkeypatch, f"checkpoint={run_folder}", f"validation_file='{other}'", *arguments)
    assert code == 0
    assert "4 documents of test[en].jsonl.gz" in capsys.readouterr().out


def test_the_path_of_the_configuration_may_begin_with_a_tilde(
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert call(monkeypatch, f"checkpoint={run_folder}", "training_config=~/none.yaml") == 2
    assert f"{tmp_path}/none.yaml: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["checkpoint=nowhere"], "checkpoint=nowhere: there is no such folder"),
        (["checkpoint=."], "checkpoint=.: no model in it"),
        (["validation_file=none.gz"], "validation_file=none.gz does not exist"),
        (["windows=last"], 'windows in Hydra configuration: found "last", expected one of sliding'),
        (["max_documents=0"], "max_documents in Hydra configuration: found 0, expected 1 or more"),
        (["metadata_list=[titel]"], "has titel; expected some of its types (did you mean title?)"),
        (
            [
                "metadata_list=[title]",
                "+overrides.data_config.metadata_config.metadata_position=append",
            ],
            "metadata only after the text",
        ),
        (["training_config=none.yaml"], "none.yaml: there is no such file"),
        (["+overrides.learning_rat=1"], "learning_rat"),
        (
            ["+overrides.data_config.metadata_config.max_seq_len=128"],
            "max_seq_len=128, but the model has only 64 positions",
        ),
    ],
)
def test_wrong_requests_are_refused(
    arguments: list[str],
    message: str,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, f"checkpoint={run_folder}", *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_give_the_metrics_of_one(
    run_folder: Path, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    reports = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        keys = (f"checkpoint={run_folder}", "bootstrap_resamples=50", f"out_dir={out}")
        launch(REPOSITORY / "bsmeta" / "evaluate.py", *keys, processes=processes)
        reports.append(read_report(out))
    assert reports[0]["comparisons"] == reports[1]["comparisons"]


@pytest.mark.slow
def test_a_sharded_model_gives_the_same_metrics(
    data_config: DataConfig, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    script = Path(__file__).with_name("sharded.py")
    launch(script, str(data_config.validation_file), str(tmp_path / "figures"), processes=2)
    for rank in (0, 1):
        whole, spread = json.loads((tmp_path / f"figures-{rank}").read_text())
        assert spread == pytest.approx(whole, abs=1e-9)


def test_the_data_of_a_foreign_run_is_announced_and_nothing_is_uploaded(
    run_folder: Path, data_config: DataConfig, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Its configuration names the data to read; its upload settings are ignored."""
    config = run_folder / "config.yaml"
    train = CausalLMConfig(data_config=data_config, push_to_hub="owner/name", trackers=["wandb"])
    config.write_text(format_yaml(train))
    short = ("max_documents=3", "comparisons=[]", "controls=[]", "bootstrap_resamples=10")
    held_out = data_config.validation_file
    with HubServer("good") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        assert call(monkeypatch, f"checkpoint={run_folder}", *short) == 0
        message = f"reading data_config.validation_file={held_out!r}, as {config} says"
        assert message in caplog.text
        caplog.clear()
        given = (f"checkpoint={run_folder}", f"validation_file={held_out}")
        assert call(monkeypatch, *given, *short) == 0
        assert f"reading validation_file={held_out!r}, as this call says" in caplog.text
    assert (hub.repositories, hub.files) == ([], {})


def test_a_variable_named_in_a_foreign_configuration_is_not_read(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the server named in the path would see its value."""
    secret = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLE"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    config = run_folder / "config.yaml"
    config.write_text(
        "data_config: {validation_file: 's3://corpus/${oc.env:AWS_SECRET_ACCESS_KEY}.jsonl.gz'}\n"
    )
    server = S3Server()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
        assert call(monkeypatch, f"checkpoint={run_folder}") == 2
    finally:
        server.close()
    assert server.requests == []
    message = capsys.readouterr().err
    assert f"data_config.validation_file in {config}: found" in message
    assert secret not in message


def model_over_hosts(name: str, bits: np.ndarray, hosts: list[str]) -> ModelReport:
    sums = make_sums(bits - 2)
    sums[:, 2] = sums[:, 3]
    return ModelReport(name, name, {}, [], [], list(range(len(bits))), {"text": sums}, hosts=hosts)


def test_two_models_are_compared_over_hosts() -> None:
    hosts = [name for name in "abcd" for _ in range(5)]
    of_hosts = np.array([-0.3, -0.1, -0.2, -0.4])
    first = model_over_hosts("a", np.full(20, 2.0), hosts)
    second = model_over_hosts("b", 2 + np.repeat(of_hosts, 5), hosts)
    (row,) = compare_models([first, second], resamples=10, seed=0, by_host=True)
    half = t.ppf(0.975, 3) * of_hosts.std(ddof=1) / 2
    assert row.difference == pytest.approx(-0.25)
    assert row.difference_low == pytest.approx(-0.25 - half)
    assert row.difference_high == pytest.approx(-0.25 + half)
    assert row.sign_test_p == pytest.approx(2 / 2**4)
    assert (row.documents_better, row.documents_worse) == (20, 0)


def make_model(name: str, bits: list[float], digests: list[int]) -> ModelReport:
    """Returns a model with the given bits per byte for documents of ten bytes (0: not scored)."""
    sums = [[10.0 * (b > 0), 5.0, 10 * b * LN2, 10 * b * LN2, 5.0] for b in bits]
    names = [str(digest) for digest in digests]
    return ModelReport(name, name, {}, [], names, digests, {"text": np.array(sums)})


def test_models_are_paired_by_the_texts_scored_by_both() -> None:
    first = make_model("a", [2.0, 3.0, 4.0, 9.0], [11, 22, 33, 44])
    second = make_model(
        "b", [4.0, 2.5, 0.0, 1.0], [33, 22, 44, 55]
    )  # another order, other documents
    (row,) = compare_models([first, second], resamples=500, seed=0)
    assert (row.first, row.second, row.shown, row.documents) == ("a", "b", "text alone", 2)
    assert row.bits_per_byte_first == pytest.approx(3.5)
    assert row.bits_per_byte_second == pytest.approx(3.25)
    assert row.difference == pytest.approx(-0.25)
    assert row.difference_low == pytest.approx(-0.5)
    assert row.difference_high == pytest.approx(0.0)
    assert (row.documents_better, row.documents_worse) == (1, 0)
    assert row.sign_test_p_holm == 1.0


def test_variation_shared_by_both_models_does_not_widen_the_interval() -> None:
    generator = np.random.default_rng(0)
    easy_or_hard = generator.uniform(1, 5, size=100)
    bits = [easy_or_hard, easy_or_hard - 0.01, easy_or_hard + 0.02]
    models = [make_model(str(n), one.tolist(), list(range(100))) for n, one in enumerate(bits)]
    rows = compare_models(models, resamples=500, seed=0)
    assert [(row.first, row.second) for row in rows] == [("0", "1"), ("0", "2"), ("1", "2")]
    assert [row.difference for row in rows] == pytest.approx([-0.01, 0.02, 0.03])
    assert rows[0].difference_low == pytest.approx(-0.01)
    assert rows[0].difference_high == pytest.approx(-0.01)
    assert (rows[0].documents_better, rows[1].documents_worse) == (100, 100)
    assert rows[0].sign_test_p_holm == pytest.approx(3 * 2 / 2**100)


def test_models_with_at_most_one_common_document_have_no_interval() -> None:
    first = make_model("a", [2.0], [1])
    assert compare_models([first, make_model("b", [2.0], [2])], resamples=10, seed=0) == []
    (row,) = compare_models([first, make_model("b", [1.0], [1])], resamples=10, seed=0)
    assert (row.difference, row.difference_low) == (-1.0, None)


@pytest.mark.parametrize("edges", [[10], [0, 5, 5], []])
def test_position_edges_must_rise_from_0(edges: list[int]) -> None:
    with pytest.raises(ConfigurationError, match="expected rising bytes that begin with 0"):
        evaluate(EvaluateConfig(position_edges=edges), [], ALONE)
