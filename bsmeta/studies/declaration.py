"""Declares a study: its claims, seeds and arms before its first run.

`study.json` is written before the first run and lies beside the measurements. From then on,
verdicts read seeds, arms and claims only from it. A seed that is later removed from the study's
file, perhaps because of its result, still counts: until it is measured, every claim is open. Arms
and seeds may be added; the report names added seeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bsmeta.core.errors import ConfigurationError, DataError
from bsmeta.core.files import write_text
from bsmeta.core.parsing import parse_json
from bsmeta.core.secrets import redact_values
from bsmeta.studies.config import (
    DOCUMENT,
    ArmConfig,
    ClaimConfig,
    DownstreamConfig,
    StudyConfig,
)
from bsmeta.studies.runs import NOT_STARTED, list_runs, read_progress, select_measure_settings
from bsmeta.studies.task_scores import select_task_settings

DECLARATION = "study.json"

_KEYS_WITHOUT_EFFECT = ("label", "pilot_deviation", "pilot_document_error")
"""Keys of a claim that do not affect its verdict."""

_VALUES_BEFORE_KEYS_EXISTED = {
    "cluster": DOCUMENT,
    "random_order": False,
    "downstream": None,
    "is_late": False,
}
"""Values of keys that an older declaration lacks; they keep the behavior of its time."""


def locate_declaration(study: StudyConfig) -> Path:
    """Returns the path of the declaration, which lies beside the measurements."""
    return Path(study.results_dir or study.out_dir) / DECLARATION


def declare_study(study: StudyConfig) -> None:
    """Writes the declaration of a study, unless it conflicts with an earlier one.

    Raises:
        ConfigurationError: If the earlier declaration has other settings of the runs, or if claims,
            their unit or their tasks have changed since the first run was started.
        DataError: If the file of the declaration is damaged.
    """
    file = locate_declaration(study)
    earlier = _read_declaration(study)
    declaration = _make_declaration(study)
    if earlier is None:
        declaration["is_late"] = _is_started(study, declaration)
    else:
        declaration["is_late"] = earlier["is_late"]
        _refuse_other_settings(earlier, declaration, file)
        declaration["arms"] = {**earlier["arms"], **declaration["arms"]}
        if _is_started(study, earlier):
            _refuse_other_claims(earlier["claims"], declaration["claims"], file)
            _refuse_other_cluster(earlier["cluster"], declaration["cluster"], file)
            _refuse_other_tasks(earlier["downstream"], declaration["downstream"], file)
            declaration["seeds"] = earlier["seeds"]

    if declaration != earlier:  # many processes may start at once
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(declaration, indent=1) + "\n")


def restore_declared_order(study: StudyConfig) -> StudyConfig:
    """Returns the study with the declared order of its runs.

    If runs were started without a declaration, they keep the order of the study's file.

    Raises:
        DataError: If the file of the declaration is damaged.
    """
    declared = _read_declaration(study)
    if declared is not None:
        return replace(study, random_order=declared["random_order"])
    if any(read_progress(study, run).state != NOT_STARTED for run in list_runs(study)):
        return replace(study, random_order=False)
    return study


def restore_declared_study(study: StudyConfig) -> tuple[StudyConfig, list[str]]:
    """Returns the study as it was declared, and notes on how its file differs from that.

    The study includes seeds and arms added to the file after the first run, but no added claims.
    Without a declaration, it is returned as it is, with a note.

    Raises:
        DataError: If the file of the declaration is damaged.
    """
    declared = _read_declaration(study)
    if declared is None:
        return study, _note_late_declaration(study)

    arms = dict(study.arms)
    for name, arm in declared["arms"].items():
        arms.setdefault(name, ArmConfig(**arm))
    claims = _restore_claims(declared["claims"], study.claims)
    seeds = list(dict.fromkeys([*declared["seeds"], *study.seeds]))

    notes = [
        *(_note_late_declaration(study) if declared["is_late"] else []),
        *_note_removed("seeds", declared["seeds"], study.seeds),
        *_note_removed("arms", declared["arms"], study.arms),
        *_note_changed_claims(declared["claims"], study),
        *_note_changed_cluster(declared["cluster"], study.cluster),
        *_note_changed_tasks(declared["downstream"], study),
        *_note_added_seeds(declared["seeds"], study.seeds),
    ]
    if declared["downstream"] is not None:
        downstream = DownstreamConfig(**declared["downstream"], arms=study.downstream.arms)
        study = replace(study, downstream=downstream)
    study = replace(study, seeds=seeds, arms=arms, claims=claims, cluster=declared["cluster"])
    return study, notes


def _restore_claims(
    declared: Mapping[str, Mapping[str, Any]], current: Mapping[str, ClaimConfig]
) -> dict[str, ClaimConfig]:
    """Returns the declared claims, with the label of the study's file for each unchanged claim."""
    claims = {}
    for name, declared_keys in declared.items():
        claim = current.get(name)
        if claim is None or _select_test_keys(claim) != declared_keys:
            claim = ClaimConfig(label=name, **declared_keys)
        claims[name] = claim
    return claims


def _make_declaration(study: StudyConfig) -> dict[str, Any]:
    """Returns the content of `study.json`, with credentials in settings redacted."""
    declaration: dict[str, Any] = redact_values(
        {
            "config": study.config,
            "overrides": study.overrides,
            "curve": study.curve,
            "measure": select_measure_settings(study),
            "baseline": study.baseline,
            "arms": {name: asdict(arm) for name, arm in study.arms.items()},
        }
    )
    return {
        **declaration,
        "seeds": study.seeds,
        "claims": _select_test_keys_of_claims(study),
        "downstream": _list_declared_tasks(study),
        "cluster": study.cluster,
        "random_order": study.random_order,
    }


def _read_declaration(study: StudyConfig) -> dict[str, Any] | None:
    """Reads the declaration, with defaults for keys that it predates; None if there is no file."""
    file = locate_declaration(study)
    if not file.exists():
        return None

    try:
        declared = parse_json(file.read_text(encoding="utf-8"))
        for name in ("arms", "seeds"):
            if name not in declared:
                raise KeyError(name)
        claims = {
            name: _select_test_keys(ClaimConfig(**claim))
            for name, claim in declared["claims"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: cannot be read as the declaration of a study ({error}); restore it, "
            "because nothing else records what was declared before the first run"
        ) from error
    return {**_VALUES_BEFORE_KEYS_EXISTED, **declared, "claims": claims}


def _is_started(study: StudyConfig, declared: Mapping[str, Any]) -> bool:
    """Whether a run of the study's file or of its declaration has been started."""
    declared_arms = {name: ArmConfig(**arm) for name, arm in declared["arms"].items()}
    seeds = list(dict.fromkeys([*study.seeds, *declared["seeds"]]))
    merged = replace(study, arms={**declared_arms, **study.arms}, seeds=seeds)
    return any(read_progress(merged, run).state != NOT_STARTED for run in list_runs(merged))


def _refuse_other_settings(
    earlier: Mapping[str, Any], current: Mapping[str, Any], file: Path
) -> None:
    """Refuses a study whose runs have other settings than the earlier declaration in its folder."""
    settings = [
        (name, earlier[name], current[name])
        for name in ("config", "overrides", "curve", "measure", "baseline")
        if name in earlier
    ]
    for name in current["arms"].keys() & earlier["arms"].keys():
        before = earlier["arms"][name]
        after = current["arms"][name]
        for key in ("overrides", "text_tokens_of", "branch_of", "branch_at", "decay_steps"):
            settings.append((f"arms.{name}.{key}", before.get(key), after[key]))

    differing = [
        f"{name} {before}, found {after}" for name, before, after in settings if before != after
    ]
    if differing:
        raise ConfigurationError(
            f"{file.parent} holds a study with {'; '.join(differing)}; expected the same, or "
            "another out_dir (arms and seeds may be added)"
        )


def _refuse_other_claims(
    declared: Mapping[str, Mapping[str, Any]],
    current: Mapping[str, Mapping[str, Any]],
    file: Path,
) -> None:
    """Refuses claims that differ from the declared ones."""
    changed = _list_changed_names(declared, current)
    if changed:
        raise ConfigurationError(
            f"claims: {', '.join(changed)} added, removed or changed since the first run of the "
            f"study was started; expected those of {file}: claims must be declared before there "
            "are results. Tables of the report that test no claim are exploratory; a new claim "
            "needs a new study, with seeds of its own"
        )


def _list_changed_names(
    declared: Mapping[str, Mapping[str, Any]], current: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Lists the names of added, removed and changed claims, sorted."""
    names = sorted(declared.keys() | current.keys())
    return [name for name in names if declared.get(name) != current.get(name)]


def _refuse_other_cluster(declared: str, current: str, file: Path) -> None:
    """Refuses another sampling unit than the declared one."""
    if declared != current:
        raise ConfigurationError(
            f"cluster={current}: changed since the first run of the study was started; expected "
            f"cluster={declared}, as in {file}: the unit of the error belongs to the claims. "
            "The report has the intervals over hosts in any case, if hosts are known"
        )


def _list_declared_tasks(study: StudyConfig) -> dict[str, Any] | None:
    """Returns the settings of downstream tasks; None if no claim is about a task."""
    has_task_claims = any(claim.task for claim in study.claims.values())
    return select_task_settings(study) if has_task_claims else None


def _refuse_other_tasks(
    declared: Mapping[str, Any] | None, current: Mapping[str, Any] | None, file: Path
) -> None:
    """Refuses settings of downstream tasks that differ from the declared ones."""
    if declared is None or current is None:  # the claims, which are the same, need none
        return

    differing = [
        f"downstream.{name}={current.get(name)}, expected {value}"
        for name, value in declared.items()
        if current.get(name) != value
    ]
    if differing:
        raise ConfigurationError(
            f"{'; '.join(differing)}: changed since the first run of the study was started; "
            f"expected what {file} declares, because claims are about these tasks "
            "(downstream.arms may change)"
        )


def _select_test_keys(claim: ClaimConfig) -> dict[str, Any]:
    """Returns the keys that affect a claim's verdict: all except its label and its pilot."""
    return {
        name: value for name, value in asdict(claim).items() if name not in _KEYS_WITHOUT_EFFECT
    }


def _select_test_keys_of_claims(study: StudyConfig) -> dict[str, dict[str, Any]]:
    return {name: _select_test_keys(claim) for name, claim in study.claims.items()}


def _note_late_declaration(study: StudyConfig) -> list[str]:
    """Returns a note on claims that no declaration precedes; [] if the study has no claims."""
    if not study.claims:
        return []
    return [
        f"No {DECLARATION} from before the first run declares the claims: if they, or the seeds, "
        "were chosen by their results, the verdicts do not hold."
    ]


def _note_removed(plural_noun: str, declared: Iterable[Any], current: Iterable[Any]) -> list[str]:
    """Returns a note on declared arms or seeds that the study's file lacks; [] if it has all.

    Args:
        plural_noun: `arms` or `seeds`.
    """
    remaining = set(current)
    removed_names = [str(name) for name in declared if name not in remaining]
    if not removed_names:
        return []

    return [
        f"Declared before the first run, but no longer among the {plural_noun} of the study's "
        f"file: {', '.join(removed_names)}. The verdicts need everything that was declared, so "
        "these measurements count, and claims are open without them."
    ]


def _note_changed_claims(declared: Mapping[str, Any], study: StudyConfig) -> list[str]:
    """Returns a note on claims that differ from the declared ones; [] if none does."""
    changed_names = _list_changed_names(declared, _select_test_keys_of_claims(study))
    if not changed_names:
        return []

    return [
        "The claims in the study's file differ from the declared claims "
        f"({', '.join(changed_names)}): "
        "only the declared claims are tested."
    ]


def _note_changed_cluster(declared: str, current: str) -> list[str]:
    """Returns a note on another sampling unit than the declared one; [] if they are equal."""
    if declared == current:
        return []

    return [
        f"The study's file has cluster: {current}, the declaration has {declared}, which the "
        "verdicts follow."
    ]


def _note_changed_tasks(declared: Mapping[str, Any] | None, study: StudyConfig) -> list[str]:
    """Returns a note on tasks that differ from the declared ones; [] if none does."""
    if declared is None or declared == select_task_settings(study):
        return []

    return [
        "The tasks (downstream) in the study's file differ from the tasks declared with its "
        "claims: only scores of the declared tasks are read."
    ]


def _note_added_seeds(declared: Iterable[int], current: Iterable[int]) -> list[str]:
    """Returns a note on seeds added after the declaration; [] if there are none."""
    added = [str(seed) for seed in current if seed not in set(declared)]
    if not added:
        return []

    return [
        f"Seeds {', '.join(added)} were added after the first run had been started: "
        "if that was done because of what the first seeds showed, the verdicts do not hold."
    ]
