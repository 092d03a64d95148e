"""`mode=attribute`: infers metadata, prints a table and writes `attribution-{type}.json`.

The table has a row per candidate, or the candidates of a single text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.tools import GenerateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.progress import progress_bar
from bsmeta.metadata.processors import type_of
from bsmeta.report.inference import bootstrap
from bsmeta.report.table import report_console
from bsmeta.tasks.causal_lm.evaluation.checkpoints import OpenedModel
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.generation.attribution import (
    Attribution,
    Candidates,
    Labels,
    Likelihoods,
    find_candidates,
    posterior,
)
from bsmeta.tasks.causal_lm.generation.contexts import check_value
from bsmeta.training.locations import Location

ROWS = 20
"""Maximum number of candidates to print; the file has all of them."""

NAMES = {"top_1": "first guess", "top_5": "first five", "majority_class": "always the majority"}

TOP = (1, 5)


def attribute(config: GenerateConfig, opened: OpenedModel) -> None:
    """Infer the metadata of the held-out documents, or of `prompt`."""
    data = opened.train.data_config
    if config.validation_file is not None:
        data = replace(data, validation_file=config.validation_file)
    metadata = data.metadata_config
    _check(config, metadata)
    documents = None
    if not (config.prompt and config.candidates and config.prior == "uniform"):
        documents = HeldOutDocuments(data, max_documents=config.max_documents, deduplicate=True)
    labels = Labels(config.type, metadata)
    candidates = find_candidates(labels, config.candidates, documents)
    likelihoods = Likelihoods(
        opened.model,
        opened.tokenizer,
        opened.train.data_config,
        [labels.record(label) for label in candidates.labels],
        all_pieces=config.windows == "all_pieces",
        rows=config.batch_size,
        device=opened.device,
    )
    if config.prompt:
        _attribute_prompt(config, candidates, likelihoods)
        return
    assert documents is not None
    with progress_bar("scoring", 1) as progress:
        found = _attribute_documents(config, documents, candidates, likelihoods, progress)
    report = _report(config, opened.location, likelihoods, found)
    path = _write(report, config, opened.location)
    out = report_console(highlight=False)
    show_attribution(report, out)
    out.print(f"written to {path}", soft_wrap=True)


def _check(config: GenerateConfig, metadata: MetadataConfig) -> None:
    kind = type_of(config.type)
    if kind.is_local or kind.always_present:
        raise ConfigurationError(
            f"type={config.type}: expected a type with a value before the text; "
            f"{config.type} has none"
        )
    check_value(config.type, "", metadata)


def _attribute_prompt(
    config: GenerateConfig, candidates: Candidates, likelihoods: Likelihoods
) -> None:
    scores, tokens = likelihoods.of([config.prompt])
    if not tokens[0]:
        raise ConfigurationError(f"prompt={config.prompt!r}: expected at least two tokens")
    log_prior = candidates.log_prior(config.prior, None)
    probabilities = np.exp(posterior(scores, log_prior[None])[0])
    show_posterior(
        config.type, candidates.labels, probabilities, scores[0], report_console(highlight=False)
    )


def _attribute_documents(
    config: GenerateConfig,
    documents: HeldOutDocuments,
    candidates: Candidates,
    likelihoods: Likelihoods,
    progress: Callable[[float], None],
) -> Attribution:
    """Score every document whose label is a candidate, in batches."""
    own = [index for index in range(len(documents)) if candidates.truths[index] >= 0]
    rows: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    kept: list[int] = []
    for start in range(0, len(own), config.batch_size):
        progress(start / len(own))
        indices = own[start : start + config.batch_size]
        scores, tokens = likelihoods.of([documents[index].text for index in indices])
        priors = np.stack([candidates.log_prior(config.prior, index) for index in indices])
        scored = tokens > 0
        rows.append(posterior(scores, priors)[scored])
        counts.append(tokens[scored])
        kept += [index for index, is_scored in zip(indices, scored, strict=True) if is_scored]
    progress(1.0)
    if not kept:
        raise ConfigurationError(
            f"type={config.type}: no held-out document has one of the candidates "
            f"{_some(candidates.labels)} and a text of two tokens"
        )
    names = [documents.name(index) for index in kept]
    return Attribution(candidates, np.concatenate(rows), np.concatenate(counts), names, kept)


def _report(
    config: GenerateConfig, location: Location, likelihoods: Likelihoods, found: Attribution
) -> dict[str, Any]:
    return {
        "settings": asdict(config),
        "model": location.model,
        "type": config.type,
        "prior": config.prior,
        "example_prefix": likelihoods.prefixes[0],
        "metrics": summarize(found, resamples=config.bootstrap_resamples, seed=config.seed),
        "candidates": by_candidate(found),
        "documents": by_document(found),
    }


def _write(report: dict[str, Any], config: GenerateConfig, location: Location) -> Path:
    folder = Path(config.out_dir) if config.out_dir else location.run_folder
    path = (folder or Path()) / f"attribution-{config.type}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "")


def show_attribution(report: dict[str, Any], out: Console) -> None:
    """Print the accuracy, next to that of always guessing the most frequent candidate."""
    metrics = report["metrics"]
    out.print(
        f"{report['type']} of {metrics['documents']:,} documents, inferred from their text "
        f"({metrics['candidates']:,} candidates, {report['prior']} prior)"
    )
    table = _table(["right", "share", "95% interval"])
    for name, title in NAMES.items():
        share = metrics[name]
        if name == "top_5" and metrics["candidates"] <= 5:
            continue  # always 100%
        interval = f"{share['low']:.1%} to {share['high']:.1%}"
        table.add_row(title, f"{share['share']:.1%}", interval)
    out.print(table)
    heads = ["candidate", "documents", "correct", "guessed", "most often taken for"]
    table = _table(heads, left=(0, 4))
    for row in report["candidates"][:ROWS]:
        numbers = [f"{row[name]:,}" for name in ("documents", "correct", "guessed")]
        table.add_row(Text(row["label"]), *numbers, Text(row["most_often_taken_for"] or ""))
    out.print(table)
    out.print(
        f"mean reciprocal rank {metrics['mean_reciprocal_rank']:.3f}; the right one costs "
        f"{metrics['mean_bits_of_the_truth']:.2f} bits; majority: {metrics['majority_label']}",
        markup=False,
    )


def show_posterior(
    key: str,
    labels: Sequence[str],
    probabilities: np.ndarray,
    scores: np.ndarray,
    out: Console,
) -> None:
    """Print the candidates of one text, the most probable first."""
    table = _table([key, "p(value | text)", "log p(text | value), nats"])
    for number in np.argsort(-probabilities, kind="stable")[:ROWS]:
        table.add_row(Text(labels[number]), f"{probabilities[number]:.4f}", f"{scores[number]:.2f}")
    out.print(table)


def _table(heads: Sequence[str], left: Sequence[int] = (0,)) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number in left else "right", overflow="fold")
    return table


def summarize(found: Attribution, *, resamples: int, seed: int) -> dict[str, Any]:
    """The metrics: accuracy of the best guess, of the best five, and of the majority class."""
    ranks, truths = found.ranks, found.truths
    classes = np.bincount(truths, minlength=len(found.candidates.labels))
    most_frequent = int(classes.argmax())
    rows = {f"top_{most}": ranks <= most for most in TOP}
    rows["majority_class"] = truths == most_frequent
    shares = _shares(list(rows.values()), resamples, seed)
    right = found.posterior[np.arange(len(truths)), truths]
    return {
        "documents": len(truths),
        "candidates": len(found.candidates.labels),
        "tokens": int(found.tokens.sum()),
        **dict(zip(rows, shares, strict=True)),
        "majority_label": found.candidates.labels[most_frequent],
        "mean_reciprocal_rank": float((1 / ranks).mean()),
        "mean_bits_of_the_truth": float(-right.mean() / np.log(2)),
    }


def _shares(rows: Sequence[np.ndarray], resamples: int, seed: int) -> list[dict[str, float]]:
    """The shares of the documents, each with its 95% bootstrap interval over documents."""
    values = np.stack(rows).astype(np.float64)
    intervals = bootstrap(values, np.ones_like(values), resamples=resamples, seed=seed)
    return [
        {"share": float(row.mean()), **asdict(interval)}
        for row, interval in zip(values, intervals, strict=True)
    ]


def by_candidate(found: Attribution) -> list[dict[str, Any]]:
    """For each candidate: its documents, the number guessed right, and the main wrong guess."""
    guesses = found.posterior.argmax(axis=1)
    rows = []
    for number, label in enumerate(found.candidates.labels):
        own = found.truths == number
        taken_for = np.bincount(guesses[own], minlength=len(found.candidates.labels))
        taken_for[number] = 0
        other = found.candidates.labels[int(taken_for.argmax())] if taken_for.any() else None
        rows.append(
            {
                "label": label,
                "documents": int(own.sum()),
                "correct": int((guesses[own] == number).sum()),
                "guessed": int((guesses == number).sum()),
                "most_often_taken_for": other,
            }
        )
    return rows


def by_document(found: Attribution) -> list[dict[str, Any]]:
    """For each document: its label, the label's rank and log-probability, and the best guess."""
    labels = found.candidates.labels
    return [
        {
            "document": name,
            "label": labels[truth],
            "guess": labels[int(row.argmax())],
            "rank": int(rank),
            "log_probability": float(row[truth]),
            "tokens": int(tokens),
        }
        for name, truth, row, rank, tokens in zip(
            found.names, found.truths, found.posterior, found.ranks, found.tokens, strict=True
        )
    ]
