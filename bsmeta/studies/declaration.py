"""The declaration of a study: what it was before its first run, and what its verdicts hold for.

`study.json` is written before the first run and lies beside the measurements. From then on it is
the only source of the seeds, arms and claims that a verdict needs: a seed that is removed from the
study's file afterward, because of what it showed, still counts, and as long as it is not measured,
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
from bsmeta.studies.runs import NOT_STARTED, measure_settings, progress_of, runs_of
from bsmeta.studies.task_scores import task_settings

DECLARATION = "study.json"

_WORDS = ("label", "pilot_deviation", "pilot_document_error")
"""Keys of a claim that change nothing of its verdict."""


_BEFORE = {"cluster": DOCUMENT, "random_order": False, "downstream": None}
"""Keys of a declaration that is older than them, with what was done before."""


def declaration_file(study: StudyConfig) -> Path:
    """The file of the declaration: beside the measurements, if they have their own folder."""
    return Path(study.results_dir or study.out_dir) / DECLARATION


def declare(study: StudyConfig) -> None:
    """Write the declaration, or compare the study with it if a run has been started.

    Raises:
        ConfigurationError: If the folder holds runs that were made with other settings, or if the
            claims have changed since the first run was started.
        DataError: If the file of the declaration is damaged.
    """
    earlier = _read(study)
    now = _declaration_of(study)
    if earlier is not None:
        _refuse_other_settings(earlier, now, declaration_file(study))
        now["arms"] = {**earlier["arms"], **now["arms"]}
        if _is_started(study, earlier):
            _refuse_other_claims(earlier["claims"], now["claims"], declaration_file(study))
            _refuse_other_cluster(earlier["cluster"], now["cluster"], declaration_file(study))
            _refuse_other_tasks(earlier["downstream"], now["downstream"], declaration_file(study))
            now["seeds"] = earlier["seeds"]
    if now != earlier:  # many processes may start at once
        declaration_file(study).parent.mkdir(parents=True, exist_ok=True)
        write_text(declaration_file(study), json.dumps(now, indent=1) + "\n")


def in_declared_order(study: StudyConfig) -> StudyConfig:
    """The study with the declared order of runs, or that of its file if it was started without one.

    Raises:
        DataError: If the file of the declaration is damaged.
    """
    declared = _read(study)
    if declared is not None:
        return replace(study, random_order=declared["random_order"])
    if any(progress_of(study, run).state != NOT_STARTED for run in runs_of(study)):
        return replace(study, random_order=False)
    return study


def as_declared(study: StudyConfig) -> tuple[StudyConfig, list[str]]:
    """Return the study with all that was declared, and notes of what its file says otherwise.

    Seeds and arms of the file that were added after the first run stay in it; claims do not.
    """
    declared = _read(study)
    if declared is None:
        return study, []

    arms = dict(study.arms)
    for name, arm in declared["arms"].items():
        arms.setdefault(name, ArmConfig(**arm))
    claims = {
        name: study.claims[name]
        if name in study.claims and _test_of(study.claims[name]) == claim
        else ClaimConfig(label=name, **claim)
        for name, claim in declared["claims"].items()
    }
    seeds = list(dict.fromkeys([*declared["seeds"], *study.seeds]))
    notes = [
        *_removed("seed", declared["seeds"], study.seeds),
        *_removed("arm", declared["arms"], study.arms),
        *_changed_claims(declared["claims"], study),
        *_changed_cluster(declared["cluster"], study.cluster),
        *_changed_tasks(declared["downstream"], study),
        *_added_seeds(declared["seeds"], study.seeds),
    ]
    if declared["downstream"] is not None:
        downstream = DownstreamConfig(**declared["downstream"], arms=study.downstream.arms)
        study = replace(study, downstream=downstream)
    study = replace(study, seeds=seeds, arms=arms, claims=claims, cluster=declared["cluster"])
    return study, notes


def _declaration_of(study: StudyConfig) -> dict[str, Any]:
    declaration: dict[str, Any] = redact_values(
        {
            "config": study.config,
            "overrides": study.overrides,
            "curve": study.curve,
            "measure": measure_settings(study),
            "baseline": study.baseline,
            "arms": {name: asdict(arm) for name, arm in study.arms.items()},
        }
    )
    claims = {name: _test_of(claim) for name, claim in study.claims.items()}
    return {
        **declaration,
        "seeds": study.seeds,
        "claims": claims,
        "downstream": _declared_tasks(study),
        "cluster": study.cluster,
        "random_order": study.random_order,
    }


def _read(study: StudyConfig) -> dict[str, Any] | None:
    """The declaration, in which keys that are newer than it have their defaults; None if none."""
    file = declaration_file(study)
    if not file.exists():
        return None
    try:
        declared = parse_json(file.read_text(encoding="utf-8"))
        _ = [declared[name] for name in ("arms", "seeds")]
        claims = {name: _test_of(ClaimConfig(**own)) for name, own in declared["claims"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: not the declaration of a study that can be read ({error}); restore it, "
            "because without it nothing says what was declared before the first run"
        ) from error
    return {**_BEFORE, **declared, "claims": claims}


def _is_started(study: StudyConfig, declared: Mapping[str, Any]) -> bool:
    """Whether there is a run of the study: one of its file now, or one that was declared."""
    arms = {name: ArmConfig(**arm) for name, arm in declared["arms"].items()}
    seeds = list(dict.fromkeys([*study.seeds, *declared["seeds"]]))
    whole = replace(study, arms={**arms, **study.arms}, seeds=seeds)
    return any(progress_of(whole, run).state != NOT_STARTED for run in runs_of(whole))


def _refuse_other_settings(earlier: Mapping[str, Any], now: Mapping[str, Any], file: Path) -> None:
    shared = ("config", "overrides", "curve", "measure", "baseline")
    pairs = [(name, earlier[name], now[name]) for name in shared if name in earlier]
    for name in now["arms"].keys() & earlier["arms"].keys():
        before, after = earlier["arms"][name], now["arms"][name]
        for key in ("overrides", "text_tokens_of", "branch_of", "branch_at", "decay_steps"):
            pairs.append((f"arms.{name}.{key}", before.get(key), after[key]))
    differing = [
        f"{name} {before}, found {after}" for name, before, after in pairs if before != after
    ]
    if differing:
        raise ConfigurationError(
            f"{file.parent} holds a study with {'; '.join(differing)}; expected the same, or "
            "another out_dir (arms and seeds may be added)"
        )


def _refuse_other_claims(
    declared: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]], file: Path
) -> None:
    names = sorted(declared.keys() | now.keys())
    if changed := [name for name in names if declared.get(name) != now.get(name)]:
        raise ConfigurationError(
            f"claims: {', '.join(changed)} added, removed or changed since the first run of the "
            f"study was started; expected those of {file}: claims are declared before there is "
            "anything to see. Tables of the report that test no claim are exploratory; a new claim "
            "needs a new study, with seeds of its own"
        )


def _refuse_other_cluster(declared: str, now: str, file: Path) -> None:
    if declared != now:
        raise ConfigurationError(
            f"cluster={now}: changed since the first run of the study was started; expected "
            f"cluster={declared}, as in {file}: the unit of the error belongs to the claims. "
            "The report has the intervals over hosts in any case, if hosts are known"
        )


def _declared_tasks(study: StudyConfig) -> dict[str, Any] | None:
    """The settings of downstream tasks, which belong to the claims about them; None without any."""
    is_needed = any(claim.task for claim in study.claims.values())
    return task_settings(study) if is_needed else None


def _refuse_other_tasks(
    declared: Mapping[str, Any] | None, now: Mapping[str, Any] | None, file: Path
) -> None:
    if declared is None or now is None:  # the claims, which are the same, need none
        return
    differing = [
        f"downstream.{name}={now.get(name)}, expected {before}"
        for name, before in declared.items()
        if now.get(name) != before
    ]
    if differing:
        raise ConfigurationError(
            f"{'; '.join(differing)}: changed since the first run of the study was started; "
            f"expected what {file} declares, because claims are about these tasks "
            "(downstream.arms may change)"
        )


def _test_of(claim: ClaimConfig) -> dict[str, Any]:
    """What decides a claim's verdict: all but its words and its prediction."""
    return {name: value for name, value in asdict(claim).items() if name not in _WORDS}


def _removed(kind: str, declared: Iterable[Any], present: Iterable[Any]) -> list[str]:
    names = [str(name) for name in declared if name not in set(present)]
    if not names:
        return []
    plural = "s" if len(names) > 1 else ""
    return [
        f"The {kind}{plural} {', '.join(names)} {'were' if plural else 'was'} declared before the "
        f"first run and {'are' if plural else 'is'} no longer in the study's file: the verdicts "
        "need what was declared, so the measurements count, and claims are open without them."
    ]


def _changed_claims(declared: Mapping[str, Any], study: StudyConfig) -> list[str]:
    now = {name: _test_of(claim) for name, claim in study.claims.items()}
    names = sorted(declared.keys() | now.keys())
    changed = [name for name in names if declared.get(name) != now.get(name)]
    if not changed:
        return []
    return [
        f"The claims of the study's file are not those that were declared ({', '.join(changed)}): "
        "what was declared is tested, and nothing else."
    ]


def _changed_cluster(declared: str, present: str) -> list[str]:
    if declared == present:
        return []
    return [
        f"The study's file has cluster: {present}, the declaration has {declared}, which the "
        "verdicts follow."
    ]


def _changed_tasks(declared: Mapping[str, Any] | None, study: StudyConfig) -> list[str]:
    if declared is None or declared == task_settings(study):
        return []
    return [
        "The tasks (downstream) of the study's file are not those that were declared with its "
        "claims: the declared ones are read, and nothing else."
    ]


def _added_seeds(declared: Iterable[int], present: Iterable[int]) -> list[str]:
    added = [str(seed) for seed in present if seed not in set(declared)]
    if not added:
        return []
    return [
        f"Seeds {', '.join(added)} were added after the first run had been started: "
        "if that was done because of what the first seeds showed, the verdicts do not hold."
    ]
