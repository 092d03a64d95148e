"""The declaration of a study: its claims, seeds and arms before its first run.

`study.json` is written before the first run and lies beside the measurements. From then on it is
the only source of the seeds, arms and claims that a verdict needs: a seed that is removed from the
study's file afterward, because of its result, still counts, and as long as it is not measured,
every claim is open. Arms and seeds may be added, which the report says.
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

_VALUES_BEFORE_KEYS_EXISTED = {"cluster": DOCUMENT, "random_order": False, "downstream": None}
"""Values of the keys that an older declaration does not have: the behavior before they existed."""


def locate_declaration(study: StudyConfig) -> Path:
    """Returns the path of the declaration, which lies beside the measurements."""
    return Path(study.results_dir or study.out_dir) / DECLARATION


def declare_study(study: StudyConfig) -> None:
    """Writes the declaration, or compares the study with it if a run has been started.

    Raises:
        ConfigurationError: If the folder holds runs that were made with other settings, or if the
            claims have changed since the first run was started.
        DataError: If the file of the declaration is damaged.
    """
    file = locate_declaration(study)
    earlier = _read_declaration(study)
    declaration = _make_declaration(study)
    if earlier is not None:
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
    """Returns the study with the declared order of runs.

    If it was started without a declared order, it keeps the order of its file.

    Raises:
        DataError: If the file of the declaration is damaged.
    """
    declared = _read_declaration(study)
    if declared is not None:
        return replace(study, random_order=declared["random_order"])
    if any(read_progress(study, run).state != NOT_STARTED for run in list_runs(study)):
        return replace(study, random_order=False)
    return study


def restore_declared(study: StudyConfig) -> tuple[StudyConfig, list[str]]:
    """Returns the study as it was declared, and notes of the differences of its file.

    Seeds and arms of the file that were added after the first run stay in it; claims do not.
    """
    declared = _read_declaration(study)
    if declared is None:
        return study, []

    arms = dict(study.arms)
    for name, arm in declared["arms"].items():
        arms.setdefault(name, ArmConfig(**arm))
    claims = _restore_claims(declared["claims"], study.claims)
    seeds = list(dict.fromkeys([*declared["seeds"], *study.seeds]))

    notes = [
        *_note_removed("seed", declared["seeds"], study.seeds),
        *_note_removed("arm", declared["arms"], study.arms),
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
    """Returns the declared claims, with the labels of the study's file where they are the same."""
    claims = {}
    for name, declared_test in declared.items():
        claim = current.get(name)
        if claim is None or _select_test_keys(claim) != declared_test:
            claim = ClaimConfig(label=name, **declared_test)
        claims[name] = claim
    return claims


def _make_declaration(study: StudyConfig) -> dict[str, Any]:
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
        "claims": _describe_tests_of_claims(study),
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
            "because without it nothing says what was declared before the first run"
        ) from error
    return {**_VALUES_BEFORE_KEYS_EXISTED, **declared, "claims": claims}


def _is_started(study: StudyConfig, declared: Mapping[str, Any]) -> bool:
    """Whether there is a run of the study, of its file or of its declaration."""
    declared_arms = {name: ArmConfig(**arm) for name, arm in declared["arms"].items()}
    seeds = list(dict.fromkeys([*study.seeds, *declared["seeds"]]))
    joined = replace(study, arms={**declared_arms, **study.arms}, seeds=seeds)
    return any(read_progress(joined, run).state != NOT_STARTED for run in list_runs(joined))


def _refuse_other_settings(
    earlier: Mapping[str, Any], current: Mapping[str, Any], file: Path
) -> None:
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
    changed = _list_changed_names(declared, current)
    if changed:
        raise ConfigurationError(
            f"claims: {', '.join(changed)} added, removed or changed since the first run of the "
            f"study was started; expected those of {file}: claims are declared before there is "
            "anything to see. Tables of the report that test no claim are exploratory; a new claim "
            "needs a new study, with seeds of its own"
        )


def _list_changed_names(
    declared: Mapping[str, Mapping[str, Any]], current: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    names = sorted(declared.keys() | current.keys())
    return [name for name in names if declared.get(name) != current.get(name)]


def _refuse_other_cluster(declared: str, current: str, file: Path) -> None:
    if declared != current:
        raise ConfigurationError(
            f"cluster={current}: changed since the first run of the study was started; expected "
            f"cluster={declared}, as in {file}: the unit of the error belongs to the claims. "
            "The report has the intervals over hosts in any case, if hosts are known"
        )


def _list_declared_tasks(study: StudyConfig) -> dict[str, Any] | None:
    """Returns the settings of downstream tasks, which belong to the claims about them.

    None if no claim is about a task.
    """
    is_needed = any(claim.task for claim in study.claims.values())
    return select_task_settings(study) if is_needed else None


def _refuse_other_tasks(
    declared: Mapping[str, Any] | None, current: Mapping[str, Any] | None, file: Path
) -> None:
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
    """Returns the keys that decide a claim's verdict: all except its words and its prediction."""
    return {
        name: value for name, value in asdict(claim).items() if name not in _KEYS_WITHOUT_EFFECT
    }


def _describe_tests_of_claims(study: StudyConfig) -> dict[str, dict[str, Any]]:
    return {name: _select_test_keys(claim) for name, claim in study.claims.items()}


def _note_removed(noun: str, declared: Iterable[Any], current: Iterable[Any]) -> list[str]:
    names = [str(name) for name in declared if name not in set(current)]
    if not names:
        return []
    plural = "s" if len(names) > 1 else ""
    return [
        f"The {noun}{plural} {', '.join(names)} {'were' if plural else 'was'} declared before the "
        f"first run and {'are' if plural else 'is'} no longer in the study's file: the verdicts "
        "need what was declared, so the measurements count, and claims are open without them."
    ]


def _note_changed_claims(declared: Mapping[str, Any], study: StudyConfig) -> list[str]:
    changed = _list_changed_names(declared, _describe_tests_of_claims(study))
    if not changed:
        return []
    return [
        f"The claims of the study's file are not those that were declared ({', '.join(changed)}): "
        "what was declared is tested, and nothing else."
    ]


def _note_changed_cluster(declared: str, current: str) -> list[str]:
    if declared == current:
        return []
    return [
        f"The study's file has cluster: {current}, the declaration has {declared}, which the "
        "verdicts follow."
    ]


def _note_changed_tasks(declared: Mapping[str, Any] | None, study: StudyConfig) -> list[str]:
    if declared is None or declared == select_task_settings(study):
        return []
    return [
        "The tasks (downstream) of the study's file are not those that were declared with its "
        "claims: the declared ones are read, and nothing else."
    ]


def _note_added_seeds(declared: Iterable[int], current: Iterable[int]) -> list[str]:
    added = [str(seed) for seed in current if seed not in set(declared)]
    if not added:
        return []
    return [
        f"Seeds {', '.join(added)} were added after the first run had been started: "
        "if that was done because of what the first seeds showed, the verdicts do not hold."
    ]
