"""Writes notes on declared claims: verdicts over hosts, and questions that are left out."""

from __future__ import annotations

from collections.abc import Sequence

from bsmeta.report.inference import warn_of_few_clusters
from bsmeta.studies.claims import Claim
from bsmeta.studies.config import HOST
from bsmeta.studies.statistics import StudyMeasurements


def list_host_notes(
    measured: StudyMeasurements, claims: Sequence[Claim], by_host: Sequence[Claim]
) -> list[str]:
    """Writes sentences about hosts as the sampling units of the held-out documents.

    Args:
        by_host: The claims decided with hosts as the units, or none (see `Results.by_host`).
    """
    if measured.cluster == HOST:
        return [*_list_clustered_notes(measured), *_list_question_notes(claims)]

    changed = [
        f"{claim.config.label} ({claim.verdict}; {host_claim.verdict} over hosts)"
        for claim, host_claim in zip(claims, by_host, strict=False)
        if claim.verdict != host_claim.verdict
    ]
    if not changed:
        return []

    subject = "this one" if len(changed) == 1 else "these"
    return [
        "The declared verdicts are about other documents of the same hosts. For other hosts "
        f"(cluster: host), {subject} would differ: {'; '.join(changed)}.",
        *warn_of_few_clusters(measured.hosts, "hosts"),
    ]


def _list_clustered_notes(measured: StudyMeasurements) -> list[str]:
    """Writes sentences about few and unknown hosts, with `cluster: host`."""
    if not measured.hosts:
        return []

    notes = warn_of_few_clusters(measured.hosts, "hosts")
    if measured.documents_without_host:
        notes.append(
            f"{measured.documents_without_host:,} of {len(measured.digests):,} documents have "
            "no host that is known: each of them counts as a host by itself."
        )
    return notes


def list_task_notes(claims: Sequence[Claim]) -> list[str]:
    """Writes a sentence for each claimed task that had questions left out."""
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
