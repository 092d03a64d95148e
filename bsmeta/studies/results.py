"""Computes the results of a study: the declared claims, and exploratory comparisons.

An effect is a difference in bits per byte; below 0, the arm needs fewer bits than the arm it is
compared with. The baseline is text alone, read from its curve at the text tokens that the arm was
trained on (the same text), or at the arm's total tokens (the same compute). Claims may also be
about the scores of downstream tasks, whose differences have units of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from bsmeta.config.programs.evaluating import SliceConfig
from bsmeta.core.errors import DataError
from bsmeta.report.byte_ranges import name_byte_ranges
from bsmeta.studies.claim_notes import list_host_notes, list_task_notes
from bsmeta.studies.claims import (
    Claim,
    compute_design_effect,
    compute_simultaneous_interval,
    decide_claims,
    is_over_hosts,
)
from bsmeta.studies.conditions import (
    Association,
    compute_arm_differences,
    describe_missing_records,
    list_condition_notes,
    test_associations,
)
from bsmeta.studies.config import AXES, DOCUMENT, HOST, TEXT, TOKENS, WITH, WITHOUT, StudyConfig
from bsmeta.studies.declaration import restore_declared_study
from bsmeta.studies.runs import Measurement, find_measurement, list_runs, locate_results
from bsmeta.studies.statistics import Curve, Estimate, Saving, StudyMeasurements, estimate_saving
from bsmeta.studies.task_scores import find_all_scores
from bsmeta.tasks.causal_lm.evaluation.slices import list_slices


@dataclass(frozen=True)
class Gain:
    """The effect of an arm over a part of the documents, against the baseline's last checkpoint.

    Attributes:
        by: `length`, `site`, `position` or `type`.
        name: The part.
        documents: Number of documents in it.
        effect_without: The effect without metadata at inference; None for a type.
        effect_with: The effect with metadata at inference, None for an arm without metadata; for a
            type, the effect of it alone, against the same model without metadata.
    """

    by: str
    name: str
    documents: int
    effect_without: Estimate | None
    effect_with: Estimate | None


@dataclass(frozen=True)
class ArmResult:
    """The results of an arm.

    Attributes:
        name: Its name in the file of the study.
        label: Its name in tables and figures.
        curves: Bits per byte, by mode (`without`; `with`, if it has metadata) and axis.
        amounts: The amount of training up to the last checkpoint, by axis.
        savings: The share of data saved against the baseline, by mode and axis; empty for the
            baseline.
        effects: The difference to the baseline at the same amount, by mode and axis; None if the
            baseline's curve does not reach that amount.
        controls: The difference to each control of the arm, by control and mode.
        with_minus_without: The difference between both modes at the last checkpoint; None without
            metadata.
        gains: The gain over parts of the documents.
    """

    name: str
    label: str
    curves: dict[str, dict[str, Curve]]
    amounts: dict[str, float]
    savings: dict[str, dict[str, Saving]] = field(default_factory=dict)
    effects: dict[str, dict[str, Estimate | None]] = field(default_factory=dict)
    controls: dict[tuple[str, str], Estimate] = field(default_factory=dict)
    with_minus_without: Estimate | None = None
    gains: list[Gain] = field(default_factory=list)

    def get_last_bits(self, mode: str) -> Estimate:
        """Returns the bits per byte at the last checkpoint."""
        return self.curves[mode][TEXT].points[-1]


@dataclass(frozen=True)
class Results:
    """The results of a study.

    Attributes:
        seeds: The seeds that all arms have been measured with.
        documents: Number of held-out documents that all runs were measured on.
        bytes: Size of these documents.
        hosts: Number of known hosts of these documents.
        documents_without_host: Number of documents whose host is unknown.
        arms: The arms that have been measured, in order.
        claims: The declared claims.
        notes: Missing runs, and consequences of the runs' settings for the comparison.
        shared: Sentences about the weights, documents and tokens that each arm shares with the
            baseline of the same seeds.
        conditions: Tests of the differences against machine and order.
        by_host: The claims decided with `cluster: host`, if the study declares `document` and at
            least two hosts are known; otherwise empty.
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


def compute_results(study: StudyConfig) -> Results:
    """Computes the results of a study from its declaration, measurements and scores.

    Raises:
        DataError: If there is nothing to compare, or a file of results cannot be used.
    """
    study, declaration_notes = restore_declared_study(study)
    measured, missing_notes = load_measurements(study)
    notes = [*missing_notes, *declaration_notes]
    if len(measured.seeds) == 1:
        notes.append("One seed: the intervals say nothing about other seeds; nothing is decided.")

    scores = find_all_scores(study)
    claims = decide_claims(study, measured, scores)
    shows_hosts = study.cluster == DOCUMENT and measured.hosts > 1
    by_host = decide_claims(study, measured.cluster_by(HOST), scores) if shows_hosts else []
    conditions = test_associations(measured, _collect_differences(study, measured, claims))
    notes += [
        *_list_setting_notes(measured),
        *list_task_notes(claims),
        *list_condition_notes(measured, conditions),
        *list_host_notes(measured, claims, by_host),
    ]

    arms = {arm: _compute_arm_result(study, measured, arm) for arm in measured.arms}
    return Results(
        study=study,
        seeds=measured.seeds,
        documents=len(measured.digests),
        bytes=measured.bytes,
        hosts=measured.hosts,
        documents_without_host=measured.documents_without_host,
        arms={arm: _compare_arm(study, measured, arms, arm) for arm in measured.arms},
        claims=claims,
        notes=notes,
        shared=[*_compare_with_baseline(study, measured), *describe_missing_records(measured)],
        conditions=conditions,
        by_host=by_host,
    )


def _compute_arm_result(study: StudyConfig, measured: StudyMeasurements, arm: str) -> ArmResult:
    """Computes the curves and amounts of an arm, without comparisons to other arms."""
    return ArmResult(
        name=arm,
        label=study.arms[arm].label or arm,
        curves={mode: measured.estimate_curves(arm, mode) for mode in measured.list_modes(arm)},
        amounts={axis: float(values[-1]) for axis, values in measured.compute_amounts(arm).items()},
    )


def _collect_differences(
    study: StudyConfig, measured: StudyMeasurements, claims: Sequence[Claim]
) -> dict[str, np.ndarray]:
    """Collects the differences of the claims, and of the arms that no claim is about.

    Returns:
        The values of each difference by its name, float64 [seeds].
    """
    differences = dict(_compute_claim_differences(claims, measured.seeds))
    for arm, values in compute_arm_differences(measured, study.baseline).items():
        if not any(np.allclose(values, claimed) for claimed in differences.values()):
            differences[f"{study.arms[arm].label or arm}, without metadata"] = values
    return differences


def _compute_claim_differences(
    claims: Sequence[Claim], seeds: Sequence[int]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the label and the values of each claim that has exactly these seeds.

    The values have the claim's unit and its sign (`Unit`).
    """
    for claim in claims:
        if claim.effect is not None and claim.seeds == seeds:
            name = claim.config.label
            if claim.config.task:
                name += f" ({claim.unit.name})"
            # An effect is below 0 if it is as claimed: in its own unit, higher may be better.
            sign = -1 if claim.unit.is_higher_better else 1
            yield name, sign * claim.effect.seeds


def _list_setting_notes(measured: StudyMeasurements) -> list[str]:
    """Writes notes on settings of the runs that affect the comparison."""
    runs = {arm: measured.find_first_run(arm) for arm in measured.arms}
    notes = []
    decaying_arms = [arm for arm, run in runs.items() if run.facts["schedule"] != "constant"]
    if decaying_arms and max(len(run.steps) for run in runs.values()) > 1:
        notes.append(
            f"The learning rate of {', '.join(decaying_arms)} falls during the run: a checkpoint "
            "before the end is worse than the end of a shorter run, so the curve of the baseline "
            "is too high before its end, and estimates of saved data are unreliable."
        )

    arms_with_metadata_loss = [arm for arm, run in runs.items() if run.facts["loss_on_metadata"]]
    if arms_with_metadata_loss:
        notes.append(
            f"The text tokens of {', '.join(arms_with_metadata_loss)} include metadata with a loss."
        )

    lost_bytes = max(int(run.facts.get("lost_bytes", 0)) for run in runs.values())
    if lost_bytes:
        notes.append(
            f"All bits per byte leave out {lost_bytes:,} bytes of the held-out text, which the "
            "tokenizer loses (unknown tokens, or characters that it changes or drops)."
        )
    return notes


def _compare_with_baseline(study: StudyConfig, measured: StudyMeasurements) -> Iterator[str]:
    """Yields a comparison of each arm with the baseline: weights, documents, tokens, steps."""
    for arm in measured.arms:
        if arm == study.baseline:
            continue

        pairs = [
            (measured.find_run(study.baseline, seed), measured.find_run(arm, seed))
            for seed in measured.seeds
        ]
        if all(np.array_equal(base.logged_targets, run.logged_targets) for base, run in pairs):
            text_tokens = "the same text tokens after every logged step"
        else:
            text_tokens = f"{_format_mean_ratio(pairs, 'targets')} the text tokens"
        tokens = _format_mean_ratio(pairs, "tokens")
        flops = _format_mean_ratio(pairs, "flops")
        steps = _format_mean_ratio(pairs, "steps")

        yield (
            f"{study.arms[arm].label or arm}: {_compare_weights(*pairs[0])}; the same documents in "
            f"{_compute_equal_share(pairs):.0%} of the steps; {text_tokens}; {tokens} the total "
            f"tokens, {flops} the FLOPs, {steps} the steps."
        )


def _compute_equal_share(pairs: Sequence[tuple[Measurement, Measurement]]) -> float:
    """Computes the share of the steps in which both runs of a pair read the same documents."""
    equal_steps = 0
    all_steps = 0
    for base, run in pairs:
        common_steps = min(len(base.step_documents), len(run.step_documents))
        is_equal = base.step_documents[:common_steps] == run.step_documents[:common_steps]
        equal_steps += int(is_equal.sum())
        all_steps += max(len(base.step_documents), len(run.step_documents))
    return equal_steps / max(all_steps, 1)


def _compare_weights(base: Measurement, run: Measurement) -> str:
    """Describes how the initial weights of a run differ from the baseline's."""
    if base.facts["model"] != run.facts["model"]:
        return "another model"

    added = run.facts["vocabulary"] - base.facts["vocabulary"]
    if added:
        return (
            f"the same initial weights except for the embeddings of {added:+,} tokens, which shift "
            "the random numbers drawn after them"
        )
    return "the same initial weights"


def _format_mean_ratio(pairs: Sequence[tuple[Measurement, Measurement]], name: str) -> str:
    """Formats the mean ratio of a count at the last checkpoints: `1.05 times`.

    Args:
        name: The array of the count in `Measurement`.
    """
    ratios = [getattr(run, name)[-1] / getattr(base, name)[-1] for base, run in pairs]
    return f"{np.mean(ratios):.2f} times"


def _compare_arm(
    study: StudyConfig, measured: StudyMeasurements, arms: dict[str, ArmResult], name: str
) -> ArmResult:
    """Adds differences to the baseline and to controls to the results of an arm.

    The baseline is returned unchanged.
    """
    arm = arms[name]
    if name == study.baseline:
        return arm

    base_curves = arms[study.baseline].curves[WITHOUT]
    savings: dict[str, dict[str, Saving]] = {}
    effects: dict[str, dict[str, Estimate | None]] = {}
    for mode in arm.curves:
        bits = arm.get_last_bits(mode)
        savings[mode] = {
            axis: estimate_saving(base_curves[axis], arm.amounts[axis], bits) for axis in AXES
        }
        effects[mode] = {}
        for axis in (TEXT, TOKENS):
            base_bits = base_curves[axis].interpolate_at(arm.amounts[axis])
            effects[mode][axis] = None if base_bits is None else bits - base_bits

    controls: dict[tuple[str, str], Estimate] = {}
    for control_name, control in arms.items():
        if study.arms[control_name].control_of == name:
            for mode in arm.curves:
                effect = arm.get_last_bits(mode) - control.get_last_bits(mode)
                controls[control_name, mode] = effect

    with_minus_without = None
    if WITH in arm.curves:
        with_minus_without = arm.get_last_bits(WITH) - arm.get_last_bits(WITHOUT)
    return replace(
        arm,
        savings=savings,
        effects=effects,
        controls=controls,
        with_minus_without=with_minus_without,
        gains=list(_compute_gains(study, measured, name)),
    )


def _compute_gains(study: StudyConfig, measured: StudyMeasurements, arm: str) -> Iterator[Gain]:
    """Yields the gains of an arm over parts of the documents, at the last checkpoints."""
    for part in _list_parts(study, measured):
        documents = measured.count_documents(part.bins, part.documents)
        if not documents:
            continue

        # The gain on one host has no variation over hosts.
        clustered = measured.cluster_by(DOCUMENT) if part.by == "site" else measured
        estimate = partial(clustered.estimate, bins=part.bins, documents=part.documents)
        base_bits = estimate(study.baseline, WITHOUT)
        effects = {mode: estimate(arm, mode) - base_bits for mode in clustered.list_modes(arm)}
        yield Gain(part.by, part.name, documents, effects[WITHOUT], effects.get(WITH))

    for name in measured.find_first_run(arm).nats_by_types:
        has_type = measured.select_documents(arm, name)
        if has_type.any():
            bits_without = measured.estimate(arm, WITHOUT, documents=has_type)
            bits_with = measured.estimate(arm, name, documents=has_type)
            yield Gain("type", name, int(has_type.sum()), None, bits_with - bits_without)


class _Part(NamedTuple):
    """A part of the held-out text: some documents, or some bins of positions in all of them."""

    by: str
    name: str
    documents: np.ndarray  # bool [documents]
    bins: slice


def _list_parts(study: StudyConfig, measured: StudyMeasurements) -> Iterator[_Part]:
    """Yields the parts by length, by the most frequent hosts, and by position."""
    slices = []
    if study.measure.length_edges:
        slices.append(SliceConfig(by="length", edges=study.measure.length_edges))
    if study.measure.sites:
        slices.append(SliceConfig(by="site", top=study.measure.sites))
    facts = {"length": measured.lengths.tolist(), "site": [site or None for site in measured.sites]}
    for part in list_slices(slices, facts):
        yield _Part(part.by, part.name, part.members, slice(None))

    all_documents = np.ones(len(measured.digests), bool)
    for number, byte_range in enumerate(name_byte_ranges(study.measure.position_edges)):
        yield _Part("position", f"bytes {byte_range}", all_documents, slice(number, number + 1))


def results_as_dict(results: Results) -> dict[str, Any]:
    """Converts the results to a dict of JSON types; NaN and infinities are kept."""
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
        "arms": {name: _arm_as_dict(arm) for name, arm in results.arms.items()},
        "claims": [_claim_as_dict(claim, by_host.get(claim.name)) for claim in results.claims],
    }


def _claim_as_dict(claim: Claim, by_host: Claim | None) -> dict[str, Any]:
    """Converts a claim, and the same claim decided with `cluster: host`, if any."""
    at_once = compute_simultaneous_interval(claim)
    return {
        "name": claim.name,
        **asdict(claim.config),
        "unit": claim.unit.name,
        "as_claimed": claim.unit.side,
        "difference": _difference_as_dict(claim),
        "deviation": claim.effect.deviation if claim.effect else None,
        "document_error": claim.effect.document_error if claim.effect else None,
        "at_once": [at_once.low, at_once.high],
        "p": claim.p_value,
        "p_corrected": claim.corrected_p_value,
        "power": claim.power,
        "verdict": claim.verdict,
        "reason": claim.reason,
        "over_hosts": _describe_over_hosts(claim, by_host),
    }


def _difference_as_dict(claim: Claim) -> dict[str, float] | None:
    """Converts a claim's difference, in its unit and with its sign; None if it has none."""
    if claim.effect is None:
        return None
    difference = claim.unit.convert_to_unit(claim.effect)
    return {"value": difference.value, "low": difference.low, "high": difference.high}


def _describe_over_hosts(claim: Claim, by_host: Claim | None) -> dict[str, Any] | None:
    """Describes a claim decided with `cluster: host`; None if its error is not over hosts."""
    if by_host is None or by_host.effect is None or claim.effect is None:
        return None
    if not is_over_hosts(by_host):
        return None
    return {
        "difference": _difference_as_dict(by_host),
        "hosts": by_host.effect.units,
        "host_error": by_host.effect.document_error,
        "error_ratio": compute_design_effect(claim.effect, by_host.effect),
        "p_corrected": by_host.corrected_p_value,
        "verdict": by_host.verdict,
    }


def _arm_as_dict(arm: ArmResult) -> dict[str, Any]:
    controls = [
        {"control": control, "mode": mode, "difference": _convert_to_json(effect)}
        for (control, mode), effect in arm.controls.items()
    ]
    gains = [
        {
            "by": gain.by,
            "part": gain.name,
            "documents": gain.documents,
            "without": _convert_to_json(gain.effect_without),
            "with": _convert_to_json(gain.effect_with),
        }
        for gain in arm.gains
    ]

    return {
        "label": arm.label,
        "used": arm.amounts,
        "curves": _convert_to_json(arm.curves),
        "savings": _convert_to_json(arm.savings),
        "effects": _convert_to_json(arm.effects),
        "with_minus_without": _convert_to_json(arm.with_minus_without),
        "controls": controls,
        "gains": gains,
    }


def _convert_to_json(value: Any) -> Any:
    """Converts an estimate, a curve or a saving, or a mapping of them; None stays None."""
    if isinstance(value, Mapping):
        return {key: _convert_to_json(entry) for key, entry in value.items()}
    if isinstance(value, Estimate):
        return {"value": value.value, "low": value.low, "high": value.high}
    if isinstance(value, Curve):
        pairs = zip(value.amounts, value.points, strict=True)
        return [{"at": float(amount), **_convert_to_json(point)} for amount, point in pairs]
    return asdict(value) if isinstance(value, Saving) else value


def load_measurements(study: StudyConfig) -> tuple[StudyMeasurements, list[str]]:
    """Loads the measurements that can be compared; also returns a note on missing ones.

    Raises:
        DataError: If the baseline and another arm have no measured seed in common, or if runs were
            trained on different data.
    """
    runs = list_runs(study)
    measurements: dict[tuple[str, int], Measurement] = {}
    for run in runs:
        measurement = find_measurement(study, run.arm, run.seed)
        if measurement is not None:
            measurements[run.arm, run.seed] = measurement

    arms, seeds = find_largest_block(study, list(measurements))
    if not arms:
        names = ", ".join(f"{arm} seed {seed}" for arm, seed in measurements) or "none"
        raise DataError(
            f"{locate_results(study)}: measured so far: {names}; expected a seed that the "
            f"baseline ({study.baseline}) and another arm have been trained and measured with"
        )
    compared = {(arm, seed): measurements[arm, seed] for arm, seed in product(arms, seeds)}
    _refuse_other_shards(study, compared)

    missing = [run.name for run in runs if (run.arm, run.seed) not in compared]
    notes = []
    if missing:
        notes.append(
            f"{len(runs) - len(missing)} of {len(runs)} runs are compared, all arms with the same "
            f"seeds; not (yet): {', '.join(missing)}."
        )
    return StudyMeasurements(study, compared), notes


def _refuse_other_shards(
    study: StudyConfig, measurements: Mapping[tuple[str, int], Measurement]
) -> None:
    """Refuses runs that were trained on different shards."""
    first_arm, first_seed = next(iter(measurements))
    shards = measurements[first_arm, first_seed].facts["shards"]
    others = [
        f"{arm} seed {seed}"
        for (arm, seed), measurement in measurements.items()
        if measurement.facts["shards"] != shards
    ]
    if others:
        raise DataError(
            f"{locate_results(study)}: {', '.join(others)} were trained on other shards than "
            f"{first_arm} seed {first_seed}; expected the same data in all runs: delete the "
            "measurements that were made with the wrong files"
        )


def find_largest_block(
    study: StudyConfig, measured_runs: Sequence[tuple[str, int]]
) -> tuple[list[str], list[int]]:
    """Finds the largest set of runs in which every arm has every seed.

    Args:
        measured_runs: The arm and seed of each measured run.

    Returns:
        The arms and the seeds, in the study's order; both empty if the baseline shares no seed with
        another arm.
    """
    seeds_by_arm: dict[str, set[int]] = {}
    for arm in study.arms:
        seeds_by_arm[arm] = {seed for run_arm, seed in measured_runs if run_arm == arm}

    base_seeds = seeds_by_arm[study.baseline]
    blocks: list[tuple[list[str], list[int]]] = [([], [])]
    for arm_seeds in seeds_by_arm.values():
        seeds = [seed for seed in study.seeds if seed in arm_seeds & base_seeds]
        arms = [arm for arm in study.arms if seeds_by_arm[arm] >= set(seeds)]
        if seeds and len(arms) > 1:
            blocks.append((arms, seeds))

    def rank_block(block: tuple[list[str], list[int]]) -> tuple[int, int]:
        arms, seeds = block
        return len(arms) * len(seeds), len(seeds)  # among equally many runs, more seeds win

    return max(blocks, key=rank_block)
