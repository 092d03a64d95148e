"""How often a study gives a false verdict, and how often it finds an effect that is there.

    python experiments/benchmarks/false_verdicts.py [--studies 2000] [--seed 0]

Simulates the measurements of studies and decides their declared claims with the functions that
decide those of a real study (`bsmeta.studies.claims.decide_claims`). Every arm is used without and
with metadata, and each use is claimed to need fewer bits than the baseline. The bits per byte of a
document vary with the document (in all arms alike), with arm and seed, with arm and document, and
by themselves. One page of results:

- false verdicts: the share of studies without any effect in which a claim is supported or refuted;
- power: the share of studies in which the only claim that holds is supported, next to the power
  that the claim's declaration predicts.

A second table has what a study cannot prevent by itself, each without and with what guards it:

- arms that change some hosts more than others: documents or hosts as the unit of the error;
- arms that machines change differently (of two, each with half of the seeds): all false verdicts,
  and those of which the report does not name the machine;
- machines that change all arms alike: the arms on different machines, or those of a seed on one;
- seeds dropped because of what they showed (up to a third, until the first claim is supported):
  without a declaration, with one from whose file they are removed, and with one whose measurements
  are deleted as well.

All rates are printed with their 95% intervals (Clopper and Pearson 1934). Exit code 1: a rate of
false verdicts has an interval that ends above 7.5%, or a power is more than three points away from
its prediction (plus the half-width of its interval; heavy-tailed noise is exempt, because the
prediction assumes a normal distribution). The rates of the second table count if they are guarded,
except those of arms that machines change differently: a study of two machines cannot know them.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest

from bsmeta.core.process import run_and_report
from bsmeta.report.inference import ALPHA
from bsmeta.studies.claims import REFUTED, SUPPORTED, Claim, decide_claims
from bsmeta.studies.conditions import MACHINE, test_associations
from bsmeta.studies.config import (
    CLUSTERS,
    DOCUMENT,
    HOST,
    ArmConfig,
    ClaimConfig,
    MeasureConfig,
    StudyConfig,
)
from bsmeta.studies.declaration import declare_study, restore_declared_study
from bsmeta.studies.power import compute_power
from bsmeta.studies.runs import Measurement
from bsmeta.studies.statistics import StudyMeasurements

SEEDS = (3, 5, 8, 12)
CLAIMS = (6, 14)
DOCUMENTS = 80
BYTES = 500
BITS = 2.5
OF_DOCUMENTS = 0.3
"""Standard deviation over documents of their bits per byte, in all arms alike."""

HOSTS = 20
"""Hosts of the documents; the number of documents of one falls as 1 / its rank."""

OF_CELLS = 0.05
"""Standard deviation of what is left: of a document under one arm and seed."""

WANTED_POWER = 0.8
MOST_FALSE, POWER_OFF = 0.075, 0.03


@dataclass(frozen=True)
class Noise:
    """What the difference of an arm to the baseline varies with.

    Attributes:
        name: In the table.
        seeds: Standard deviation of an arm's bits per byte over seeds.
        documents: Standard deviation of an arm's change of a document's bits per byte.
        heavy: Whether the deviations of seeds have heavy tails (Student's t, 3 degrees).
        hosts: Standard deviation of an arm's change of a host's bits per byte.
        machines: Standard deviation of an arm's change of a machine's bits per byte.
        levels: Standard deviation of what a machine changes in all arms alike.
        is_divided: Whether each arm has a machine of its own, in place of each seed.
    """

    name: str
    seeds: float
    documents: float
    heavy: bool = False
    hosts: float = 0.0
    machines: float = 0.0
    levels: float = 0.0
    is_divided: bool = False

    def over_seeds(self, generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Deviations of seeds, of any distribution with the standard deviation `seeds`."""
        if self.heavy:
            return generator.standard_t(3, shape) * self.seeds / math.sqrt(3)
        return generator.normal(0, self.seeds, shape)


NOISES = (
    Noise("seeds", 0.02, 0.0),
    Noise("seeds and documents", 0.02, 0.08),
    Noise("seeds, heavy tails", 0.02, 0.0, heavy=True),
)
OF_HOSTS = (
    Noise("arm × host, 0.01", 0.002, 0.05, hosts=0.01),
    Noise("arm × host, 0.03", 0.002, 0.05, hosts=0.03),
)
"""Arms that change some hosts more than others."""

OF_MACHINES = Noise("arm × machine, 0.02", 0.01, 0.0, machines=0.02)
DIVIDED = Noise("machine, 0.02", 0.01, 0.0, levels=0.02, is_divided=True)
TOGETHER = replace(DIVIDED, is_divided=False)
DROPPED = Noise("dropped seeds", 0.02, 0.0)
MACHINES = 2
GUARDED_SEEDS, GUARDED_CLAIMS = 12, 2
MOST_DROPPED = 1 / 3
"""Share of the seeds that are dropped at most."""


def hosts_of_documents() -> np.ndarray:
    """The number of each document's host, from 0: int64 [documents]."""
    shares = np.cumsum(1 / np.arange(1, HOSTS + 1))
    ends = np.ceil(DOCUMENTS * shares / shares[-1])
    return np.searchsorted(ends, np.arange(DOCUMENTS), side="right")


def make_study(
    seeds: int, claims: int, noise: Noise, difference: float = 0.01, cluster: str = DOCUMENT
) -> StudyConfig:
    """A study with two claims for each arm, and the predictions that hold for its noise."""
    names = [f"arm{number}" for number in range(claims // 2)]
    cells = OF_CELLS**2 / DOCUMENTS
    deviation = math.sqrt(2 * (noise.seeds**2 + cells))
    error = math.sqrt(2 * (noise.documents**2 / DOCUMENTS + cells / seeds))
    declared = {
        f"{name} {mode}": ClaimConfig(
            label=f"{name} {mode}", arm=name, metadata=mode, smallest_difference=difference,
            pilot_deviation=deviation, pilot_document_error=error,
        )
        for name in names
        for mode in ("without", "with")
    }  # fmt: skip
    return StudyConfig(
        title="simulated", out_dir="-", config="-", seeds=list(range(seeds)), baseline="none",
        arms={"none": ArmConfig(), **{name: ArmConfig() for name in names}}, claims=declared,
        measure=MeasureConfig(position_edges=[0]), cluster=cluster,
    )  # fmt: skip


def measured_of(
    study: StudyConfig, noise: Noise, effects: dict[str, float], generator: np.random.Generator
) -> StudyMeasurements:
    """A study's measurements: the effects (by claim, in bits per byte) and noise."""
    documents = generator.normal(0, OF_DOCUMENTS, DOCUMENTS)
    found = {}
    of_seeds = np.arange(len(study.seeds)) * MACHINES // len(study.seeds)
    levels = generator.normal(0, noise.levels, MACHINES) if noise.levels else np.zeros(MACHINES)
    for number, arm in enumerate(study.arms):
        machines = of_seeds
        if noise.is_divided:
            machines = np.full_like(of_seeds, number % MACHINES)
        modes = ("without", "with") if arm != study.baseline else ("without",)
        shape = (len(modes), len(study.seeds), 1)
        own = generator.normal(0, noise.documents, (len(modes), 1, DOCUMENTS))
        cells = generator.normal(0, OF_CELLS, (len(modes), len(study.seeds), DOCUMENTS))
        bits = BITS + documents + noise.over_seeds(generator, shape) + own + cells
        if noise.hosts:
            of_hosts = generator.normal(0, noise.hosts, (len(modes), 1, HOSTS))
            bits += of_hosts[:, :, hosts_of_documents()]
        bits += np.array([effects.get(f"{arm} {mode}", 0.0) for mode in modes])[:, None, None]
        if noise.machines:
            of_machines = generator.normal(0, noise.machines, (len(modes), MACHINES, 1))
            bits += of_machines[:, machines]
        bits += levels[machines][:, None]
        nats = bits * BYTES * math.log(2)
        for place, seed in enumerate(study.seeds):
            found[arm, seed] = _measurement(nats[:, place], int(machines[place]), place)
    return StudyMeasurements(study, found)


def _measurement(nats: np.ndarray, machine: int, place: int) -> Measurement:
    """A run of one checkpoint: nats float64 [1 or 2 ways of use, documents]."""
    one = np.ones(1, np.int64)
    start = {"machine": f"{machine}", "processor": "-", "started": f"{place:04}"}
    return Measurement(
        settings="", facts={"trained": [start]},
        steps=one, targets=one, tokens=one, flops=np.ones(1),
        digests=np.arange(DOCUMENTS, dtype=np.uint64), lengths=np.full(DOCUMENTS, BYTES),
        sites=np.char.add(hosts_of_documents().astype(str), ".org"),
        sizes=np.full((DOCUMENTS, 1), float(BYTES)),
        nats_without=nats[:1, :, None], nats_with=nats[1:, :, None],
        nats_by_types={}, nats_averaged=nats[:0, :, None],
        step_documents=np.zeros(0, np.uint16), logged_targets=np.zeros(0, np.int64),
    )  # fmt: skip


def simulate(
    study: StudyConfig, noise: Noise, effects: dict[str, float], studies: int, seed: int
) -> Iterator[list[Claim]]:
    """The claims of simulated studies with their verdicts."""
    for number in range(studies):
        generator = np.random.default_rng([seed, number])
        yield decide_claims(study, measured_of(study, noise, effects, generator))


@dataclass(frozen=True)
class Rate:
    """A rate among simulated studies, with its 95% interval."""

    count: int
    studies: int

    @property
    def value(self) -> float:
        """The rate."""
        return self.count / self.studies

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's interval."""
        ends = binomtest(self.count, self.studies).proportion_ci()
        return float(ends.low), float(ends.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} [{low:.1%} to {high:.1%}]"


def false_verdicts(
    seeds: int, claims: int, noise: Noise, studies: int, seed: int, cluster: str = DOCUMENT
) -> Rate:
    """The share of studies without any effect that give a verdict."""
    study = make_study(seeds, claims, noise, cluster=cluster)
    count = sum(
        any(claim.verdict in (SUPPORTED, REFUTED) for claim in found)
        for found in simulate(study, noise, {}, studies, seed)
    )
    return Rate(count, studies)


def unnamed_verdicts(noise: Noise, studies: int, seed: int) -> Rate:
    """The share of studies with a false verdict whose report does not name the machine."""
    study = make_study(GUARDED_SEEDS, GUARDED_CLAIMS, noise)
    count = 0
    for number in range(studies):
        generator = np.random.default_rng([seed, number])
        measured = measured_of(study, noise, {}, generator)
        false = {
            claim.name: claim.effect.seeds
            for claim in decide_claims(study, measured)
            if claim.verdict in (SUPPORTED, REFUTED) and claim.effect is not None
        }
        tests = [test for test in test_associations(measured, false) if test.factor == MACHINE]
        named = {test.name for test in tests if (test.p_value or 1.0) <= ALPHA}
        count += bool(false.keys() - named)
    return Rate(count, studies)


def verdicts_with_dropped_seeds(guard: str, studies: int, seed: int) -> Rate:
    """The share of studies without an effect whose first claim is supported by dropping seeds.

    Args:
        guard: `none`: the file of the study is all there is; `declared`: the seeds are removed from
            the file of a declared study; `deleted`: their measurements are deleted as well.
    """
    whole = make_study(GUARDED_SEEDS, GUARDED_CLAIMS, DROPPED)
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        whole = replace(whole, results_dir=folder)
        if guard != "none":
            declare_study(whole)
        for number in range(studies):
            measured = measured_of(whole, DROPPED, {}, np.random.default_rng([seed, number]))
            count += _is_supported_by_dropping(whole, measured, guard)
    return Rate(count, studies)


def _is_supported_by_dropping(whole: StudyConfig, measured: StudyMeasurements, guard: str) -> bool:
    """Whether the first claim is supported after some of the least favorable seeds are dropped."""
    (first, *_) = decide_claims(whole, measured)
    assert first.effect is not None
    favorable = [measured.seeds[place] for place in np.argsort(first.effect.seeds)]
    for dropped in range(int(MOST_DROPPED * len(favorable)) + 1):
        kept = sorted(favorable[: len(favorable) - dropped])
        study, _ = restore_declared_study(replace(whole, seeds=kept))
        seeds = measured.seeds if guard == "declared" else kept
        runs = {(arm, seed): measured.find_run(arm, seed) for arm in whole.arms for seed in seeds}
        if decide_claims(study, StudyMeasurements(study, runs))[0].verdict == SUPPORTED:
            return True
    return False


def guarded_rates(studies: int, seed: int) -> Iterator[tuple[str, str, Rate, bool]]:
    """Each threat, its guard, the rate of false verdicts, and whether it must be at most 5%."""
    settings = (GUARDED_SEEDS, GUARDED_CLAIMS)
    for noise in OF_HOSTS:
        for cluster in CLUSTERS:
            rate = false_verdicts(*settings, noise, studies, seed, cluster)
            yield noise.name, f"cluster: {cluster}", rate, cluster == HOST
    yield OF_MACHINES.name, "none", false_verdicts(*settings, OF_MACHINES, studies, seed), False
    yield OF_MACHINES.name, "not named", unnamed_verdicts(OF_MACHINES, studies, seed), False
    for noise, guard in ((DIVIDED, "arms on different machines"), (TOGETHER, "a seed on one")):
        rate = false_verdicts(*settings, noise, studies, seed)
        yield noise.name, guard, rate, not noise.is_divided
    for guard in ("none", "declared", "deleted"):
        rate = verdicts_with_dropped_seeds(guard, studies, seed)
        yield DROPPED.name, guard, rate, guard != "none"


def power_found(
    seeds: int, claims: int, noise: Noise, studies: int, seed: int
) -> tuple[Rate, float, float]:
    """The power for one effect; also the predicted power, and the effect in bits per byte.

    The effect is one for which about 80% is predicted.
    """
    (first, *_) = make_study(seeds, claims, noise).claims.values()
    assert first.pilot_deviation is not None
    spread = (first.pilot_deviation, first.pilot_document_error)
    difference = 0.001
    while compute_power(difference, *spread, seeds, claims) < WANTED_POWER:
        difference *= 1.02
    study = make_study(seeds, claims, noise, difference)
    name = next(iter(study.claims))
    count, predicted = 0, 0.0
    for found in simulate(study, noise, {name: -difference}, studies, seed):
        assert found[0].power is not None
        count += found[0].verdict == SUPPORTED
        predicted = found[0].power
    return Rate(count, studies), predicted, difference


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=2000, help="simulated for each rate")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    console = Console(markup=False, width=110)
    table = Table(title=f"of {given.studies:,} studies each", box=box.SIMPLE)
    for name in ("noise", "seeds", "claims", "false verdicts", "power", "predicted", "effect"):
        table.add_column(name, justify="left" if name == "noise" else "right")
    failed = False
    for noise in NOISES:
        for claims in CLAIMS:
            for seeds in SEEDS:
                settings = (seeds, claims, noise, given.studies, given.seed)
                false = false_verdicts(*settings)
                found, predicted, difference = power_found(*settings)
                table.add_row(
                    noise.name, str(seeds), str(claims), str(false), str(found),
                    f"{predicted:.1%}", f"{difference:.4f}",
                )  # fmt: skip
                slack = POWER_OFF + (found.interval[1] - found.interval[0]) / 2
                is_off = abs(found.value - predicted) > slack and not noise.heavy
                failed |= false.interval[1] > MOST_FALSE or is_off
    console.print(table)
    table = Table(title=f"of {given.studies:,} studies, {GUARDED_SEEDS} seeds", box=box.SIMPLE)
    for name in ("threat", "guard", "false verdicts"):
        table.add_column(name)
    for threat, guard, rate, is_guarded in guarded_rates(given.studies, given.seed):
        table.add_row(threat, guard, str(rate))
        failed |= is_guarded and rate.interval[1] > MOST_FALSE
    console.print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_and_report(main))
