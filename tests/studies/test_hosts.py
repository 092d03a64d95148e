"""Hosts as the units of the error over held-out text: verdicts, declaration and report."""

from __future__ import annotations

import json
import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from bsmeta.core.errors import ConfigurationError
from bsmeta.studies.claim_report import format_sentences, make_claim_tables
from bsmeta.studies.claims import Claim, decide_claims
from bsmeta.studies.config import ArmConfig, ClaimConfig, MeasureConfig, StudyConfig, load_study
from bsmeta.studies.declaration import declare_study, locate_declaration, restore_declared_study
from bsmeta.studies.report import write_report
from bsmeta.studies.results import Results, compute_results
from tests.conftest import REPOSITORY
from tests.studies.conftest import a_run, save
from tests.studies.simulated import flat, measured, measurement

SCRIPT = runpy.run_path(str(REPOSITORY / "experiments/benchmarks/false_verdicts.py"))
STUDIES = 200


def test_effects_that_vary_by_host_give_no_false_verdicts() -> None:
    """No arm has an effect on average, but each changes the bits of each host (deviation 0.03)."""
    (_, noise) = SCRIPT["OF_HOSTS"]
    by_document = SCRIPT["false_verdicts"](12, 2, noise, STUDIES, 1, "document")
    by_host = SCRIPT["false_verdicts"](12, 2, noise, STUDIES, 1, "host")
    assert by_document.value > 0.2
    assert by_host.count <= binom.ppf(0.9995, STUDIES, 0.05)


def decide(cluster: str, sites: list[str]) -> Claim:
    """Decides the claim of an arm that needs 0.1 bits less on a.org and b.org only."""
    claims = {"x": ClaimConfig(label="x", arm="arm", smallest_difference=0.01)}
    study = StudyConfig(
        seeds=[1, 2, 3], baseline="none", arms={"none": ArmConfig(), "arm": ArmConfig()},
        claims=claims, measure=MeasureConfig(position_edges=[0]), cluster=cluster,
    )  # fmt: skip
    names = np.array(sites)
    gain = np.isin(names, ["a.org", "b.org"])[None, :, None] * 0.1
    base = [
        measurement(flat(2 + 0.1 * seed, len(sites)), targets=[1000], sites=names)
        for seed in range(3)
    ]
    own = [
        measurement(flat(2 + 0.1001 * seed, len(sites)) - gain, targets=[1000], sites=names)
        for seed in range(3)
    ]
    (claim,) = decide_claims(study, measured(study, {"none": base, "arm": own}))
    return claim


def test_the_error_equals_that_of_a_mean_over_hosts() -> None:
    sites = ["a.org"] * 10 + ["b.org"] * 10 + ["c.org"] * 10
    by_document, by_host = decide("document", sites), decide("host", sites)
    assert by_document.verdict == "supported"
    assert by_host.verdict == "undecided"
    assert by_host.effect is not None
    assert by_document.effect is not None
    assert by_host.effect.value == pytest.approx(by_document.effect.value)
    # three hosts with -0.1, -0.1 and 0: their variance is 1/300
    assert by_host.effect.document_error == pytest.approx(math.sqrt(1 / 300 / 3))
    assert (by_host.effect.units, by_host.effect.degrees) == (3, pytest.approx(2.0))


def test_hosts_with_one_document_each_give_the_result_over_documents() -> None:
    sites = ["a.org", "b.org", *(f"{letter}.net" for letter in "cdefghij")]
    by_document, by_host = decide("document", sites), decide("host", sites)
    assert by_document.effect is not None
    assert by_host.effect is not None
    assert by_host.effect.document_error == pytest.approx(by_document.effect.document_error)
    assert by_host.p_value == pytest.approx(by_document.p_value)


@pytest.mark.parametrize(
    ("sites", "reason"),
    [
        (["a.org"] * 20, "documents of one host, which show no variation over hosts"),
        ([""] * 20, "the host of no held-out document is known (cluster: host)"),
    ],
)
def test_claims_about_hosts_are_open_without_hosts(sites: list[str], reason: str) -> None:
    claim = decide("host", sites)
    assert (claim.verdict, claim.reason) == ("open", reason)
    assert decide("document", sites).verdict != "open"


def keep(study: StudyConfig, sites: list[str]) -> StudyConfig:
    """Saves the measurements of all runs, over documents of the given hosts."""
    for seed in study.seeds:
        for arm, bits, shown in (
            ("none", [4.0, 3.0, 2.0], None),
            ("url", [3.5, 2.75, 1.5], -0.25),
            ("shuffled", [4.0, 3.0, 1.9], 0.0),
        ):
            save(study, arm, seed, replace(a_run(bits, shown, seed), sites=np.array(sites)))
    return study


def test_the_declared_unit_counts(study: StudyConfig) -> None:
    by_host = replace(study, cluster="host")
    declare_study(by_host)
    keep(study, ["a.org", "b.org"] * 10)
    assert json.loads(locate_declaration(study).read_text())["cluster"] == "host"
    with pytest.raises(
        ConfigurationError, match=r"cluster=document: changed since the first run.*cluster=host"
    ):
        declare_study(replace(by_host, cluster="document"))
    restored, notes = restore_declared_study(replace(by_host, cluster="document"))
    assert restored.cluster == "host"
    assert notes == [
        "The study's file has cluster: document, the declaration has host, which the verdicts "
        "follow."
    ]


def test_an_older_declaration_has_documents_as_units(study: StudyConfig) -> None:
    keep(study, ["a.org", "b.org"] * 10)
    declare_study(study)
    declared = json.loads(locate_declaration(study).read_text())
    del declared["cluster"]
    older = json.dumps(declared)
    locate_declaration(study).write_text(older)
    declare_study(study)
    assert locate_declaration(study).read_text() == older  # nothing is declared afterward
    with pytest.raises(ConfigurationError, match="cluster=host: changed since the first run"):
        declare_study(replace(study, cluster="host"))


@pytest.mark.long
def test_a_report_over_hosts_names_its_units(study: StudyConfig) -> None:
    sites = ["a.org"] * 8 + ["b.org"] * 8 + [""] * 4
    results = compute_results(replace(keep(study, sites), cluster="host"))
    assert "2 hosts are few: intervals over them are wide" in results.notes[-2]
    assert results.notes[-1] == (
        "4 of 20 documents have no host that is known: each of them counts as a host by itself."
    )
    assert results.by_host == []
    write_report(results, Path("study.yaml"), {}, [])
    text = (Path(study.out_dir) / "report.md").read_text()
    assert "over seeds (Student's t) and hosts (jackknife)" in text
    assert "error over hosts" in text
    assert "20 documents of 2 hosts" in text
    assert "Are the documents of a host independent?" not in text
    sites_of_url = {
        gain.name: gain.effect_without for gain in results.arms["url"].gains if gain.by == "site"
    }
    (a_org, b_org) = (sites_of_url[name] for name in ("a.org", "b.org"))
    assert a_org is not None
    assert b_org is not None
    assert a_org.units == b_org.units == 8  # documents: one host has no variation over hosts
    raw = json.loads((Path(study.out_dir) / "results.json").read_text())
    assert (raw["cluster"], raw["hosts"]) == ("host", 2)


def results_with_correlated_hosts(study: StudyConfig) -> Results:
    """Returns results where the URL saves 0.5 bits only on a.org, half of the documents."""
    sites = np.array(["a.org"] * 10 + ["b.org"] * 10)
    keep(study, sites.tolist())
    gain = (np.arange(20) < 10)[None, :, None] * 0.5
    for seed in study.seeds:
        nats = 100 * math.log(2) * (flat(2 + 0.05 * seed, bins=2) - gain)
        run = a_run([4.0, 3.0, 2.0], -0.25, seed)
        without = np.concatenate([run.nats_without[:2], nats])
        save(study, "url", seed, replace(run, sites=sites, nats_without=without))
    return compute_results(study)


@pytest.mark.long
def test_the_report_shows_the_effect_of_hosts_as_units(study: StudyConfig) -> None:
    results = results_with_correlated_hosts(study)
    assert (results.claims[0].verdict, results.by_host[0].verdict) == ("supported", "undecided")
    assert format_sentences(results)[0].startswith("**Supported**: URL beats text alone: -0.2491")
    note, few = results.notes[-2:]
    assert note.startswith("The declared verdicts are about other documents of the same hosts.")
    assert "URL beats text alone (supported; undecided over hosts)" in note
    assert few.startswith("2 hosts are few")
    table = make_claim_tables(results)[1]
    assert table.title == "Are the documents of a host independent?"
    row = table.format_cells()[0]
    # ten documents of one value and ten of another: 2 hosts have an error of 0.25, 20 documents one
    # of 0.5 / 2 / sqrt(19)
    assert row[3] == "19.0"
    assert row[5:] == ["supported", "undecided"]
    write_report(results, Path("study.yaml"), {}, [])
    raw = json.loads((Path(study.out_dir) / "results.json").read_text())
    over_hosts = raw["claims"][0]["over_hosts"]
    assert (over_hosts["hosts"], over_hosts["verdict"]) == (2, "undecided")
    assert over_hosts["host_error"] == pytest.approx(0.25, abs=1e-3)


def test_the_verdicts_of_a_published_study_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """meco_small declared no unit, so its verdicts are over documents; hosts are shown beside."""
    monkeypatch.chdir(REPOSITORY)
    results = compute_results(load_study(Path("experiments/studies/meco_small.yaml")))
    assert results.hosts == 5
    assert [claim.verdict for claim in results.claims] == [
        "refuted", "undecided", "supported", "supported",
    ]  # fmt: skip
    first = results.claims[0]
    assert first.effect is not None
    assert first.corrected_p_value == pytest.approx(0.0018, abs=5e-5)
    assert (first.effect.low, first.effect.high) == (
        pytest.approx(0.0055, abs=5e-5), pytest.approx(0.0162, abs=5e-5),
    )  # fmt: skip
    assert len(results.by_host) == 4
