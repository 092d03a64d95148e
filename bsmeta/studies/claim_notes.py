"""Notes on declared claims: verdicts over hosts, and questions that are left out."""

from __future__ import annotations

from collections.abc import Sequence

from bsmeta.report.inference import warn_of_few_clusters
from bsmeta.studies.claims import Claim
from bsmeta.studies.config import HOST
from bsmeta.studies.statistics import Measured


def list_host_notes(
    measured: Measured, claims: Sequence[Claim], by_host: Sequence[Claim]
) -> list[str]:
    """Writes sentences about hosts as the units of the error over documents.

    Args:
        by_host: The claims with hosts as these units, or none (see `Results.by_host`).
    """
    hosts = measured.hosts
    if measured.cluster == HOST:
        notes = warn_of_few_clusters(hosts, "hosts") if hosts else []
        if hosts and measured.documents_without_host:
            notes.append(
                f"{measured.documents_without_host:,} of {len(measured.digests):,} documents have "
                "no host that is known: each of them counts as a host by itself."
            )
        return [*notes, *_list_question_notes(claims)]

    changed = [
        f"{claim.config.label} ({claim.verdict}; {other.verdict} over hosts)"
        for claim, other in zip(claims, by_host, strict=False)
        if claim.verdict != other.verdict
    ]
    if not changed:
        return []
    return [
        "The declared verdicts are about other documents of the same hosts. For other hosts "
        f"(cluster: host), {'this one would' if len(changed) == 1 else 'these would'} differ: "
        f"{'; '.join(changed)}.",
        *warn_of_few_clusters(hosts, "hosts"),
    ]


def list_task_notes(claims: Sequence[Claim]) -> list[str]:
    """Writes a sentence for each task of a claim some of whose questions are left out."""
    left_out = {
        claim.config.task: claim.task
        for claim in claims
        if claim.task is not None and claim.task.left_out
    }
    return [
        f"{name}: bits per byte leave out {task.left_out:,} of {task.questions:,} questions, some "
        "of whose right answer a tokenizer loses."
        for name, task in left_out.items()
    ]


def _list_question_notes(claims: Sequence[Claim]) -> list[str]:
    """Writes sentences about the hosts of the questions of each task, with `cluster: host`."""
    tasks = {
        claim.config.task: claim.task
        for claim in claims
        if claim.task is not None and claim.effect is not None
    }

    notes = []
    for name, task in tasks.items():
        if task.unit != HOST:
            notes.append(
                f"{name}: the hosts of its questions are not known, so the error of its claims is "
                "over questions, each by itself, in place of hosts."
            )
            continue
        notes += [f"{name}: {note}" for note in warn_of_few_clusters(task.hosts, "hosts")]
        if task.without_host:
            notes.append(
                f"{name}: {task.without_host:,} questions have no host that is known: each of them "
                "counts as a host by itself."
            )
    return notes
