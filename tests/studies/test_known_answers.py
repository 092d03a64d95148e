"""Studies of real runs whose answers are known: experiments/known_answers.py, and repeats of it."""

from __future__ import annotations

import gzip
import json
import math
import os
import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom

from bsmeta.core.environment import hash_machine_name
from bsmeta.core.errors import DataError
from bsmeta.studies.claims import SUPPORTED
from bsmeta.studies.config import TEXT, WITH, WITHOUT, ArmConfig, StudyConfig, load_study
from bsmeta.studies.measuring import measure_all, measure_run
from bsmeta.studies.report import write_report
from bsmeta.studies.results import Results, compute_results, results_as_dict
from bsmeta.studies.runs import find_measurement, list_overrides, list_runs
from tests.conftest import REPOSITORY, command, run_warm

SCRIPT = runpy.run_path(str(REPOSITORY / "experiments/known_answers.py"))
BITS: dict[str, int] = SCRIPT["BITS"]
REPEATS = int(os.environ.get("KNOWN_ANSWERS_REPEATS", "2"))


def make_study(folder: Path, monkeypatch: pytest.MonkeyPatch, corpus_seed: int = 0) -> StudyConfig:
    SCRIPT["write_corpus"](folder / "corpus", seed=corpus_seed)
    monkeypatch.setenv("KNOWN_ANSWERS", str(folder))
    return load_study(SCRIPT["STUDY_OF"]["topics"])


def train(study: StudyConfig) -> None:
    for run in list_runs(study):
        overrides = list_overrides(study, run)
        assert overrides is not None
        start = [*command(REPOSITORY / "bsmeta/train.py", processes=1), "--config-name", "demo"]
        done = run_warm([*start, *overrides, f"out_dir={run.folder}"], OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stderr[-4000:]
    measure_all(study, list_runs(study), torch.device("cpu"))


@pytest.mark.slow
def test_a_measurement_contains_the_records_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(tmp_path, monkeypatch)
    study = replace(
        study,
        arms={study.baseline: study.arms[study.baseline]},
        seeds=[2, 1],
        curve=[1.0],
        out_dir=str(tmp_path / "study"),
        results_dir=None,
        overrides=[*study.overrides, "max_train_steps=2"],
    )
    train(study)
    orders = []
    for run in list_runs(study):
        measurement = find_measurement(study, run.arm, run.seed)
        assert measurement is not None
        (start,) = measurement.facts["trained"]
        measured = measurement.facts["measured"]
        assert start["machine"] == measured["machine"] == hash_machine_name()
        assert start["started"] < start["ended"] <= measured["started"] < measured["ended"]
        assert start["versions"] == measured["versions"]
        assert start["threads"] == 1
        orders.append(measurement.facts["order"])
    assert orders == [0, 1]

    lines = gzip.decompress((tmp_path / "corpus" / "train-1.jsonl.gz").read_bytes()).splitlines()
    other = tmp_path / "other.jsonl"
    other.write_bytes(lines[7] + b"\n")
    other_study = replace(study, measure=replace(study.measure, validation_file=str(other)))
    with pytest.raises(DataError) as error:
        measure_run(other_study, list_runs(study)[0], torch.device("cpu"))
    assert "1 of 1 documents are in training shards of the run" in str(error.value)
    assert "line 1 has the text of" in str(error.value)


def test_the_metadata_reveals_exactly_its_bits_of_the_topic(tmp_path: Path) -> None:
    SCRIPT["write_corpus"](tmp_path, documents=2000, held_out=50)
    lines = gzip.decompress((tmp_path / "train-0.jsonl.gz").read_bytes()).splitlines()
    documents = [json.loads(line) for line in lines]
    assert len(documents) == 1000
    assert {len(document["text"]) for document in documents} == {8}
    for name, bits in BITS.items():
        topics: dict[str, set[str]] = {}
        for one in documents:
            (record,) = one[f"metadata_{name}"]
            topics.setdefault(record["value"], set()).add(one["text"][1])
        assert len(topics) == 2**bits
        assert all(len(own) == 8 / 2**bits for own in topics.values())
    following: dict[str, set[str]] = {}
    for one in documents:
        for first, second in zip(one["text"][2:], one["text"][3:], strict=False):
            following.setdefault(first, set()).add(second)
    assert Counter(map(len, following.values())) == {2: 16}
    assert SCRIPT["TEXT_BITS"] == 3 + 4 + 5


def test_a_leaf_reveals_its_position_and_the_productions_above(tmp_path: Path) -> None:
    SCRIPT["write_corpus"](tmp_path, "hierarchy", documents=2000, held_out=50)
    lines = gzip.decompress((tmp_path / "train-0.jsonl.gz").read_bytes()).splitlines()
    documents = [json.loads(line) for line in lines]
    assert {len(document["text"]) for document in documents} == {12}
    values: dict[int, dict[str, set[str]]] = {level: {} for level in range(3)}
    for document in documents:
        leaves = document["text"][1:9]
        for level in range(3):
            (record,) = document[f"metadata_level_{level}"]
            assert len(record["value"]) == 2**level
            for position, leaf in enumerate(leaves):
                node = record["value"][position >> (3 - level)]
                values[level].setdefault(leaf, set()).add(node)
    # a leaf has one production above it at each level, and each names half of the leaves below it
    assert all(len(names) == 1 for level in values for names in values[level].values())
    assert all(len(values[level]) == 64 for level in range(3))
    # after the leaf before it: three bits are new at the first, two at the fifth
    following = Counter(
        len({document["text"][position : position + 2] for document in documents})
        // len({document["text"][position] for document in documents})
        for position in range(8)
    )
    assert following == {8: 1, 4: 1, 2: 2, 1: 4}
    assert [SCRIPT["revealed"](position) for position in range(9)] == [
        [0, 1, 2], [], [2], [], [1, 2], [], [2], [], [],
    ]  # fmt: skip


def test_an_answer_is_compared_with_the_interval_and_its_tolerance() -> None:
    answer = SCRIPT["Answer"]
    assert answer("gain", -1.0, -0.9, -0.99, -0.8, tolerance=0.02).holds
    assert not answer("gain", -1.0, -0.9, -0.97, -0.8, tolerance=0.02).holds
    assert not answer("nothing", 0.0, 0.1, 0.05, 0.2).holds
    assert not answer("a wide interval", -1.0, -0.9, -2.0, 0.2).holds


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyConfig:
    with pytest.MonkeyPatch.context() as patch:
        found = make_study(tmp_path_factory.mktemp("known"), patch)
        arms = {name: arm for name, arm in found.arms.items() if name != "two_bits"}
        claims = {name: claim for name, claim in found.claims.items() if name != "two_bits"}
        found = replace(found, arms=arms, claims=claims)
        train(found)
        return found


@pytest.fixture(scope="module")
def results(study: StudyConfig) -> Results:
    return compute_results(study)


@pytest.mark.slow
def test_the_study_finds_exactly_the_known_effects(results: Results) -> None:
    answers = list(SCRIPT["answers"](results_as_dict(results)))
    assert [answer.name for answer in answers if not answer.holds] == []
    assert len(answers) == 15
    for one in answers:
        if one.expected < 0:
            assert one.found == pytest.approx(one.expected, abs=0.1)
            assert one.high - one.low < 0.6  # a wide interval would cover anything


@pytest.mark.slow
def test_only_true_claims_are_supported(results: Results) -> None:
    found = results_as_dict(results)
    assert list(SCRIPT["verdicts"](found)) == []
    assert {claim["name"] for claim in found["claims"] if claim["verdict"] == SUPPORTED} == {
        "one_bit", "three_bits", "not_shuffled", "in_the_topic", "half_the_data",
    }  # fmt: skip


@pytest.mark.slow
def test_the_whole_gain_is_in_the_byte_revealed_by_the_metadata(results: Results) -> None:
    parts = {gain.name: gain.effect_with for gain in results.arms["three_bits"].gains}
    topic, others = parts["bytes 0–1"], parts["bytes 2 and on"]
    assert topic is not None
    assert others is not None
    assert topic.value == pytest.approx(-3, abs=0.1)
    assert others.value == pytest.approx(0, abs=0.03)


@pytest.mark.slow
def test_the_saved_data_follow_from_the_raw_measurements(
    study: StudyConfig, results: Results
) -> None:
    """Recomputed from the files, by linear interpolation of the baseline."""

    def curve(arm: str) -> tuple[np.ndarray, np.ndarray]:
        bits, tokens = [], []
        for run in list_runs(study):
            if run.arm == arm:
                found = find_measurement(study, run.arm, run.seed)
                assert found is not None
                bits.append(found.nats_without.sum((1, 2)) / found.sizes.sum() / math.log(2))
                tokens.append(found.targets)
        return np.mean(tokens, axis=0), np.mean(bits, axis=0)

    tokens, bits = curve("none")
    used, reached = (values[-1] for values in curve("half"))
    needed = np.exp(np.interp(-reached, -bits, np.log(tokens)))
    saved = results.arms["half"].savings[WITHOUT][TEXT]
    assert saved.share.value == pytest.approx(1 - used / needed, abs=0.01)
    assert needed / used == pytest.approx(2, rel=0.05)
    # What text alone never reaches is a bound.
    assert results.arms["three_bits"].savings[WITH][TEXT].share.bound == "above"


@pytest.mark.slow
def test_an_arm_without_metadata_is_not_used_with_it(results: Results) -> None:
    assert set(results.arms["half"].curves) == {WITHOUT}
    assert results.arms["half"].with_minus_without is None
    assert set(results.arms["half"].effects) == {WITHOUT}


@pytest.mark.slow
def test_the_report_lists_what_the_arms_share(study: StudyConfig, results: Results) -> None:
    found = {line.split(":")[0]: line for line in results.shared}
    assert set(found) == {arm.label for name, arm in study.arms.items() if name != "none"}
    assert all("the same initial weights; " in line for line in found.values())
    assert (
        "constant prefix: the same initial weights; the same documents in"
        in found["constant prefix"]
    )


@pytest.mark.slow
def test_the_report_has_every_number_and_its_command(study: StudyConfig, results: Results) -> None:
    commands = {run.name: f"train.sh seed={run.seed}" for run in list_runs(study)}
    files = write_report(results, Path("study.yaml"), commands, [])
    names = {file.name for file in files}
    assert {"report.md", "report.html", "results.json", "claims.pdf"} <= names
    assert all(file.stat().st_size > 500 for file in files)
    raw = json.loads((Path(study.out_dir) / "results.json").read_text())
    own = raw["arms"]["three_bits"]["curves"]["with"]["text tokens"]
    assert len(own) == 7
    assert own[-1]["low"] < own[-1]["value"] < own[-1]["high"]
    text = (Path(study.out_dir) / "report.md").read_text()
    assert "python experiments/study.py study.yaml --report" in text
    assert "train.sh seed=3  # three_bits seed 3\n" in text
    assert f"{results.arms['three_bits'].get_last_bits(WITH).value:.4f}" in text


@pytest.mark.slow
def test_metadata_without_content_gains_nothing_in_repeated_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each repeat has a new corpus, held-out documents and seeds (KNOWN_ANSWERS_REPEATS)."""
    covered: Counter[str] = Counter()
    for repeat in range(REPEATS):
        study = make_study(tmp_path / str(repeat), monkeypatch, corpus_seed=repeat + 1)
        batches = {"none": 10, "shuffled": 11, "constant": 11}
        arms = {
            name: ArmConfig(
                overrides=[
                    *study.arms[name].overrides,
                    f"data_config.per_device_train_batch_size={batch}",
                ]
            )
            for name, batch in batches.items()
        }
        study = replace(
            study,
            arms=arms,
            seeds=[3 * repeat + number for number in (11, 12, 13)],
            overrides=[*study.overrides, "learning_rate=1e-2", "max_train_steps=60"],
            curve=[0.75, 1.0],
            claims={},
        )
        train(study)
        for arm in compute_results(study).arms.values():
            for mode, by_axis in arm.effects.items():
                effect = by_axis[TEXT]
                assert effect is not None
                covered[f"{arm.name} {mode}"] += effect.low <= 0 <= effect.high
                ends = (effect.value, effect.low, effect.high)
                print(repeat + 1, arm.name, mode, [round(end, 4) for end in ends], flush=True)
    assert set(covered) == {
        "shuffled without", "shuffled with", "constant without", "constant with",
    }  # fmt: skip
    # Of this many 95% intervals, fewer cover 0 in one of 200 tests.
    assert min(covered.values()) >= binom.ppf(0.005, REPEATS, 0.95), covered
