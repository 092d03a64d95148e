"""From the measurements of a study to its results: the declared claims, and what is exploratory.

An effect is a difference in bits per byte; below 0, the arm needs fewer bits than what it is
compared with. The baseline is text alone, read from its curve at the text tokens that the arm was
trained on (the same text), or at the arm's total tokens (the same compute). Claims may also be
about the scores of downstream tasks, whose differences have units of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from bsmeta.config.evaluating import SliceConfig
from bsmeta.core.errors import DataError
from bsmeta.report.byte_ranges import byte_ranges
from bsmeta.studies.claim_notes import host_notes, task_notes
from bsmeta.studies.claims import Claim, decide, error_ratio, is_over_hosts, shown_at_once
from bsmeta.studies.conditions import (
    Association,
    associations,
    condition_notes,
    differences_of_arms,
    missing_records,
)
from bsmeta.studies.config import AXES, DOCUMENT, HOST, TEXT, TOKENS, WITH, WITHOUT, StudyConfig
from bsmeta.studies.declaration import as_declared
from bsmeta.studies.runs import Measurement, find_measurement, results_folder, runs_of
from bsmeta.studies.statistics import Curve, Estimate, Measured, Saving, saving
from bsmeta.studies.task_scores import find_all_scores
from bsmeta.tasks.causal_lm.documents import slices_of


@dataclass(frozen=True)
class Gain:
    """The effect of an arm over a part of the documents, against the baseline's last checkpoint.

    Attributes:
        by: `length`, `site`, `position` or `type`.
        name: The part.
        documents: Documents in it.
        without, shown: The effect without and with metadata at inference; only without it for an
            arm without metadata; for a type, only with it (alone), against the same model without
            metadata.
    """

    by: str
    name: str
    documents: int
    without: Estimate | None
    shown: Estimate | None


@dataclass(frozen=True)
class ArmResult:
    """The results of an arm.

    Attributes:
        curves: By mode (`without`; `with`, if it has metadata) and axis.
        amounts: By axis: what the arm has used at its last checkpoint.
        savings: By mode and axis, against the baseline; none for the baseline.
        effects: By mode and axis: the difference to the baseline at as much of that; None where
            its curve does not reach the arm.
        controls: By control and mode: the difference to a control of the arm.
        inference: With minus without metadata at the last checkpoint; None if it has none.
        gains: The gain over parts of the documents.
    """

    name: str
    label: str
    curves: dict[str, dict[str, Curve]]
    amounts: dict[str, float]
    savings: dict[str, dict[str, Saving]] = field(default_factory=dict)
    effects: dict[str, dict[str, Estimate | None]] = field(default_factory=dict)
    controls: dict[tuple[str, str], Estimate] = field(default_factory=dict)
    inference: Estimate | None = None
    gains: list[Gain] = field(default_factory=list)

    def last(self, mode: str) -> Estimate:
        """Bits per byte at the last checkpoint."""
        return self.curves[mode][TEXT].points[-1]


@dataclass(frozen=True)
class Results:
    """The results of a study.

    Attributes:
        seeds: The seeds that all arms have been measured with.
        documents: Held-out documents that all runs were measured on.
        bytes: Their bytes.
        hosts: Hosts of these documents, as far as they are known.
        documents_without_host: Documents whose host is not known.
        arms: The arms that have been measured, in order.
        notes: What is missing, and what the settings of the runs mean for the comparison.
        shared: What each arm shares with the baseline of its seeds, as sentences.
        conditions: Tests of the differences against machine and order.
        by_host: The claims with hosts as the units of the error over documents, where the study
            declares documents and at least two hosts are known; else none.
    """

    study: StudyConfig
    seeds: list[int]
    documents: int
    bytes: int
    hosts: int
    documents_without_host: int
    arms: dict[str, ArmResult]
    claims: list[Claim]
    notes: list[str]
    shared: list[str]
    conditions: list[Association] = field(default_factory=list)
    by_host: list[Claim] = field(default_factory=list)


def results_of(study: StudyConfig) -> Results:
    """Everything that the report shows.

    Raises:
        DataError: If there is nothing to compare.
    """
    study, notes = as_declared(study)
    measured, missing = load(study)
    notes = [*missing, *notes]
    if len(measured.seeds) == 1:
        notes.append("One seed: the intervals say nothing about other seeds; nothing is decided.")
    alone = {
        arm: ArmResult(
            arm, study.arms[arm].label or arm,
            {mode: measured.curves(arm, mode) for mode in measured.modes(arm)},
            {axis: float(values[-1]) for axis, values in measured.amounts(arm).items()},
        )
        for arm in measured.arms
    }  # fmt: skip
    scored = find_all_scores(study)
    claims = decide(study, measured, scored)
    shows_hosts = study.cluster == DOCUMENT and measured.hosts > 1
    differences = dict(_differences_of(claims, measured.seeds))
    for arm, values in differences_of_arms(measured, study.baseline).items():
        if not any(np.allclose(values, claimed) for claimed in differences.values()):
            differences[f"{study.arms[arm].label or arm}, without metadata"] = values
    conditions = associations(measured, differences)
    by_host = decide(study, measured.clustered_by(HOST), scored) if shows_hosts else []
    notes += [
        *_notes(measured),
        *task_notes(claims),
        *condition_notes(measured, conditions),
        *host_notes(measured, claims, by_host),
    ]
    return Results(
        study,
        measured.seeds,
        len(measured.digests),
        measured.bytes,
        measured.hosts,
        measured.documents_without_host,
        {arm: _compared(study, measured, alone, arm) for arm in measured.arms},
        claims,
        notes,
        [*_shared_with_baseline(study, measured), *missing_records(measured)],
        conditions,
        by_host,
    )


def _differences_of(
    claims: Sequence[Claim], seeds: Sequence[int]
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and values, in their own unit and sign, of the claims that have exactly these seeds."""
    for claim in claims:
        if claim.effect is not None and claim.seeds == seeds:
            name, sign = claim.config.label, -1 if claim.unit.is_higher_better else 1
            if claim.config.task:
                name += f" ({claim.unit.name})"
            yield name, sign * claim.effect.seeds


def _notes(measured: Measured) -> list[str]:
    """What the settings of the runs mean for the comparison."""
    runs = {arm: measured.first(arm) for arm in measured.arms}
    notes = []
    falling = [arm for arm, run in runs.items() if run.facts["schedule"] != "constant"]
    if falling and max(len(run.steps) for run in runs.values()) > 1:
        notes.append(
            f"The learning rate of {', '.join(falling)} falls during the run: a checkpoint before "
            "the end is worse than the end of a shorter run, so the curve of the baseline is too "
            "high before its end, and the data that an arm saves is not to be trusted."
        )
    lossy = [arm for arm, run in runs.items() if run.facts["loss_on_metadata"]]
    if lossy:
        notes.append(f"The text tokens of {', '.join(lossy)} include metadata with a loss.")
    lost = max(int(run.facts.get("lost_bytes", 0)) for run in runs.values())
    if lost:
        notes.append(
            f"All bits per byte leave out {lost:,} bytes of the held-out text, which the tokenizer "
            "loses (unknown tokens, or characters that it changes or drops)."
        )
    return notes


def _shared_with_baseline(study: StudyConfig, measured: Measured) -> Iterator[str]:
    """A sentence for each arm: its weights, documents, tokens and steps beside the baseline's."""
    for arm in measured.arms:
        if arm == study.baseline:
            continue
        pairs = [
            (measured.run(study.baseline, seed), measured.run(arm, seed)) for seed in measured.seeds
        ]
        alike = steps = 0
        for base, own in pairs:
            count = min(len(base.step_documents), len(own.step_documents))
            alike += int((base.step_documents[:count] == own.step_documents[:count]).sum())
            steps += max(len(base.step_documents), len(own.step_documents))
        words = f"{_ratio(pairs, 'targets')} the text tokens"
        if all(np.array_equal(base.logged_targets, own.logged_targets) for base, own in pairs):
            words = "the same text tokens after every logged step"
        yield (
            f"{study.arms[arm].label or arm}: {_weights(*pairs[0])}; the same documents in "
            f"{alike / max(steps, 1):.0%} of the steps; {words}; {_ratio(pairs, 'tokens')} the "
            f"total tokens, {_ratio(pairs, 'flops')} the FLOPs, {_ratio(pairs, 'steps')} the steps."
        )


def _weights(base: Measurement, own: Measurement) -> str:
    if base.facts["model"] != own.facts["model"]:
        return "another model"
    added = own.facts["vocabulary"] - base.facts["vocabulary"]
    if added:
        return (
            f"the same initial weights but for the embeddings of {added:+,} tokens, which shift "
            "the random numbers of what is drawn after them"
        )
    return "the same initial weights"


def _ratio(pairs: Sequence[tuple[Measurement, Measurement]], name: str) -> str:
    ratios = [getattr(own, name)[-1] / getattr(base, name)[-1] for base, own in pairs]
    return f"{np.mean(ratios):.2f} times"


def _compared(
    study: StudyConfig, measured: Measured, arms: dict[str, ArmResult], arm: str
) -> ArmResult:
    """An arm with its differences to the baseline, if it is another, and to its controls."""
    own, base = arms[arm], arms[study.baseline].curves[WITHOUT]
    if arm == study.baseline:
        return own
    there = {axis: base[axis].at(own.amounts[axis]) for axis in (TEXT, TOKENS)}
    return replace(
        own,
        savings={
            mode: {axis: saving(base[axis], own.amounts[axis], own.last(mode)) for axis in AXES}
            for mode in own.curves
        },
        effects={
            mode: {
                axis: None if text is None else own.last(mode) - text
                for axis, text in there.items()
            }
            for mode in own.curves
        },
        controls={
            (control, mode): own.last(mode) - other.last(mode)
            for control, other in arms.items()
            if study.arms[control].control_of == arm
            for mode in own.curves
        },
        inference=own.last(WITH) - own.last(WITHOUT) if WITH in own.curves else None,
        gains=list(_gains(study, measured, arm)),
    )


def _gains(study: StudyConfig, measured: Measured, arm: str) -> Iterator[Gain]:
    """The gains of an arm over parts of the documents, at the last checkpoints."""
    everything = np.ones(len(measured.digests), bool)
    wanted = []
    if study.measure.length_edges:
        wanted.append(SliceConfig(by="length", edges=study.measure.length_edges))
    if study.measure.sites:
        wanted.append(SliceConfig(by="site", top=study.measure.sites))
    facts = {"length": measured.lengths.tolist(), "site": [site or None for site in measured.sites]}
    parts = [(own.by, own.name, own.members, slice(None)) for own in slices_of(wanted, facts)]
    parts += [
        ("position", f"bytes {part}", everything, slice(number, number + 1))
        for number, part in enumerate(byte_ranges(study.measure.position_edges))
    ]
    for by, name, documents, bins in parts:
        count = measured.count(bins, documents)
        if not count:
            continue
        # the gain on one host has no variation over hosts
        source = measured.clustered_by(DOCUMENT) if by == "site" else measured
        text = source.estimate(study.baseline, WITHOUT, bins=bins, documents=documents)
        found = [
            source.estimate(arm, mode, bins=bins, documents=documents) - text
            for mode in source.modes(arm)
        ]
        yield Gain(by, name, count, found[0], found[1] if len(found) > 1 else None)
    for name in measured.first(arm).types:
        documents = measured.having(arm, name)
        if documents.any():
            without = measured.estimate(arm, WITHOUT, documents=documents)
            shown = measured.estimate(arm, name, documents=documents)
            yield Gain("type", name, int(documents.sum()), None, shown - without)


def as_dict(results: Results) -> dict[str, Any]:
    """The results as JSON, but for NaN and infinite numbers."""
    by_host = {claim.name: claim for claim in results.by_host}
    return {
        "title": results.study.title,
        "seeds": results.seeds,
        "documents": results.documents,
        "bytes": results.bytes,
        "hosts": results.hosts,
        "cluster": results.study.cluster,
        "notes": results.notes,
        "shared": results.shared,
        "conditions": [asdict(association) for association in results.conditions],
        "arms": {name: _arm_dict(arm) for name, arm in results.arms.items()},
        "claims": [
            {
                "name": claim.name,
                **asdict(claim.config),
                "unit": claim.unit.name,
                "as_claimed": claim.unit.side,
                "difference": _shown(claim, claim.effect),
                "deviation": claim.effect.deviation if claim.effect else None,
                "document_error": claim.effect.document_error if claim.effect else None,
                "at_once": [shown_at_once(claim).low, shown_at_once(claim).high],
                "p": claim.p_value,
                "p_corrected": claim.corrected,
                "power": claim.power,
                "verdict": claim.verdict,
                "reason": claim.reason,
                "over_hosts": _over_hosts(claim, by_host.get(claim.name)),
            }
            for claim in results.claims
        ],
    }


def _shown(claim: Claim, effect: Estimate | None) -> dict[str, float] | None:
    """A claim's difference in its own unit and sign, as JSON."""
    if effect is None:
        return None
    shown = claim.unit.shown(effect)
    return {"value": shown.value, "low": shown.low, "high": shown.high}


def _over_hosts(claim: Claim, by_host: Claim | None) -> dict[str, Any] | None:
    """A claim with hosts as the units of the error over documents; None if it has no such form."""
    if by_host is None or by_host.effect is None or claim.effect is None:
        return None
    if not is_over_hosts(by_host):
        return None
    return {
        "difference": _shown(by_host, by_host.effect),
        "hosts": by_host.effect.units,
        "host_error": by_host.effect.document_error,
        "error_ratio": error_ratio(claim.effect, by_host.effect),
        "p_corrected": by_host.corrected,
        "verdict": by_host.verdict,
    }


def _arm_dict(arm: ArmResult) -> dict[str, Any]:
    return {
        "label": arm.label,
        "used": arm.amounts,
        "curves": _plain(arm.curves),
        "savings": _plain(arm.savings),
        "effects": _plain(arm.effects),
        "with_minus_without": _plain(arm.inference),
        "controls": [
            {"control": control, "mode": mode, "difference": _plain(effect)}
            for (control, mode), effect in arm.controls.items()
        ],
        "gains": [
            {
                "by": gain.by,
                "part": gain.name,
                "documents": gain.documents,
                "without": _plain(gain.without),
                "with": _plain(gain.shown),
            }
            for gain in arm.gains
        ],
    }


def _plain(value: Any) -> Any:
    """An estimate, a curve or a saving, or a mapping of them, as JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()}
    if isinstance(value, Estimate):
        return {"value": value.value, "low": value.low, "high": value.high}
    if isinstance(value, Curve):
        pairs = zip(value.amounts, value.points, strict=True)
        return [{"at": float(at), **_plain(point)} for at, point in pairs]
    return asdict(value) if isinstance(value, Saving) else value


def load(study: StudyConfig) -> tuple[Measured, list[str]]:
    """The measurements that can be compared, and what is missing.

    Raises:
        DataError: If the baseline, or everything else, has no seed that has been measured, or if
            runs were trained on different data.
    """
    runs = runs_of(study)
    found = {
        (run.arm, run.seed): measurement
        for run in runs
        if (measurement := find_measurement(study, run.arm, run.seed)) is not None
    }
    arms, seeds = largest_block(study, list(found))
    if not arms:
        listed = ", ".join(f"{arm} seed {seed}" for arm, seed in found) or "none"
        raise DataError(
            f"{results_folder(study)}: measured so far: {listed}; expected a seed that the "
            f"baseline ({study.baseline}) and another arm have been trained and measured with"
        )
    kept = {(arm, seed): found[arm, seed] for arm in arms for seed in seeds}
    shards = kept[arms[0], seeds[0]].facts["shards"]
    others = [
        f"{arm} seed {seed}" for (arm, seed), run in kept.items() if run.facts["shards"] != shards
    ]
    if others:
        raise DataError(
            f"{results_folder(study)}: {', '.join(others)} were trained on other shards than "
            f"{arms[0]} seed {seeds[0]}; expected the same data in all runs: delete the "
            "measurements that were made with the wrong files"
        )
    missing = [run for run in runs if (run.arm, run.seed) not in kept]
    notes = [
        f"{len(runs) - len(missing)} of {len(runs)} runs are compared, all arms with the same "
        f"seeds; not (yet): {', '.join(run.name for run in missing)}."
    ]
    return Measured(study, kept), notes if missing else []


def largest_block(
    study: StudyConfig, found: Sequence[tuple[str, int]]
) -> tuple[list[str], list[int]]:
    """The arms and seeds with most runs such that each of these arms has each of these seeds.

    Both are empty if the baseline shares no seed with another arm.
    """
    by_arm = {arm: {seed for name, seed in found if name == arm} for arm in study.arms}
    base = by_arm[study.baseline]
    blocks: list[tuple[list[str], list[int]]] = [([], [])]
    for own in by_arm.values():
        seeds = [seed for seed in study.seeds if seed in own & base]
        arms = [arm for arm in study.arms if by_arm[arm] >= set(seeds)]
        if seeds and len(arms) > 1:
            blocks.append((arms, seeds))
    return max(blocks, key=lambda block: (len(block[0]) * len(block[1]), len(block[1])))
