"""`mode=attribute`: infers metadata from text, and measures the accuracy.

The mode prints a table, with a row per candidate or the candidates of a single text, and writes
`attribution-{type}.json` beside the evaluation of the model on the same documents.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bsmeta.config.data import DataConfig, resolve_in_dataset
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.core.files import join_inside
from bsmeta.core.progress import Advance, show_progress_bar
from bsmeta.core.secrets import redact_values
from bsmeta.core.terminal import Console
from bsmeta.metadata.processors import find_type
from bsmeta.report.cells import Cell
from bsmeta.report.inference import Interval
from bsmeta.report.page import COUNT, Column, Table, create_report_console, print_table
from bsmeta.tasks.causal_lm.checkpoints import OpenedModel, has_other_data, read_run_config
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.training_overlap import find_training_overlap
from bsmeta.tasks.causal_lm.generation.attribution import (
    TOP_COUNTS,
    Attribution,
    compute_metrics,
    compute_posterior,
    list_candidates,
    list_documents,
)
from bsmeta.tasks.causal_lm.generation.candidates import Candidates, Labels, find_candidates
from bsmeta.tasks.causal_lm.generation.contexts import check_type
from bsmeta.tasks.causal_lm.generation.likelihoods import Likelihoods
from bsmeta.tasks.checkpoints import announce_data, choose_report_folder, refuse_unwritable_reports

MAX_ROWS = 20
"""Maximum number of candidates to print; the file has all of them."""

ACCURACY_TITLES = {
    "top_1": "first guess",
    "top_5": "first five",
    "majority_class": "always the majority",
}
"""Titles of the accuracies in the table."""


def infer_metadata(config: GenerateConfig, opened: OpenedModel) -> None:
    """Infers the metadata of the held-out documents, or of `prompt`, and reports it."""
    data = opened.run_config.data_config
    if config.validation_file is not None:
        data = replace(data, validation_file=config.validation_file)
    _check_attributable(config, data.metadata_config)

    if not config.prompt:
        refuse_unwritable_reports(config, opened.location)

    documents = _open_documents(config, data, opened)
    labels = Labels(config.type, data.metadata_config)
    candidates = find_candidates(labels, config.candidates, documents)
    likelihoods = Likelihoods(
        opened.model,
        opened.tokenizer,
        opened.run_config.data_config,
        [labels.make_record(label) for label in candidates.labels],
        all_pieces=config.windows == "all_pieces",
        rows=config.batch_size,
        device=opened.device,
    )

    console = create_report_console(highlight=False)
    if config.prompt:
        _attribute_prompt(config, candidates, likelihoods, console)
        return

    assert documents is not None
    other_data = has_other_data(config, opened.location)
    folder = choose_report_folder(config, opened.location, has_other_data=other_data)
    path = locate_report(folder, config.type)
    with show_progress_bar("scoring", 1) as progress:
        attribution = _attribute_documents(config, documents, candidates, likelihoods, progress)
    report = _make_report(config, opened.location.model, documents, likelihoods, attribution)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")

    show_attribution(report, console)
    if likelihoods.lost_bytes:
        console.print(f"left out: {likelihoods.describe_lost_text()}", soft_wrap=True)
    if documents.training_overlap is not None:
        console.print(documents.training_overlap.describe(), soft_wrap=True)
    console.print(f"written to {path}", soft_wrap=True)


def _open_documents(
    config: GenerateConfig, data: DataConfig, opened: OpenedModel
) -> HeldOutDocuments | None:
    """Opens the held-out documents; None if texts, candidates and prior come from elsewhere.

    They are compared with the training shards, unless only their labels are used.

    Raises:
        DataError: If the file is a training shard of the run; or if it has documents of one, and
            `on_training_overlap` is `error`.
    """
    if config.prompt and config.candidates and config.prior == "uniform":
        return None
    if data.validation_file is not None:
        held_out = resolve_in_dataset(data.validation_file, data)
        announce_data(config, opened.location, "data_config.validation_file", held_out)

    overlap = None
    if not config.prompt:
        run_config = read_run_config(opened.location, config.training_config, {})
        overlap = find_training_overlap(
            data, opened.location, run_config, limit_gb=config.overlap_check_gb
        )
    return HeldOutDocuments(
        data,
        max_documents=config.max_documents,
        deduplicate=True,
        training_overlap=overlap,
        on_training_overlap=config.on_training_overlap,
    )


def _check_attributable(config: GenerateConfig, metadata: MetadataConfig) -> None:
    """Refuses a type without a value before the text, or one that the model was not trained on."""
    metadata_type = find_type(config.type)
    if metadata_type.is_local or metadata_type.always_present:
        raise ConfigurationError(
            f"type={config.type}: expected a type with a value before the text; "
            f"{config.type} has none"
        )
    check_type(config.type, f"type={config.type}", metadata)


def _make_report(
    config: GenerateConfig,
    model: str,
    documents: HeldOutDocuments,
    likelihoods: Likelihoods,
    attribution: Attribution,
) -> dict[str, Any]:
    """Returns the content of `attribution-{type}.json`."""
    overlap = documents.training_overlap
    return {
        "settings": redact_values(asdict(config)),
        "model": model,
        "type": config.type,
        "prior": config.prior,
        "example_prefix": likelihoods.prefixes[0],
        "text_bytes": likelihoods.text_bytes,
        "lost_bytes": likelihoods.lost_bytes,
        "left_out": dict(documents.left_out),
        "training_overlap": None if overlap is None else overlap.as_dict(),
        "metrics": compute_metrics(
            attribution, resamples=config.bootstrap_resamples, seed=config.seed
        ),
        "candidates": list_candidates(attribution),
        "documents": list_documents(attribution),
    }


def locate_report(folder: Path, type_name: str) -> Path:
    """Returns the path of the report on a metadata type, whose name may come from someone else.

    Raises:
        UnsafeNameError: If it would not be in the folder.
    """
    return join_inside(folder, f"attribution-{type_name}.json", f"type={type_name}")


def _attribute_prompt(
    config: GenerateConfig, candidates: Candidates, likelihoods: Likelihoods, console: Console
) -> None:
    """Prints the candidates of one text, the most probable first."""
    scores, tokens = likelihoods.score([config.prompt])
    if not tokens[0]:
        lost = ""
        if likelihoods.lost_bytes:
            lost = f"; no bytes are left to score: {likelihoods.describe_lost_text()}"
        raise ConfigurationError(f"prompt={config.prompt!r}: expected at least two tokens{lost}")

    log_prior = candidates.compute_log_prior(config.prior, None)
    probabilities = np.exp(compute_posterior(scores, log_prior[None])[0])
    best = np.argsort(-probabilities, kind="stable")[:MAX_ROWS]

    columns = [
        Column(str(config.type)),
        Column("p(value | text)", "{:.4f}".format),
        Column("log p(text | value), nats", "{:.2f}".format),
    ]
    rows: list[list[Cell]] = [
        [candidates.labels[number], probabilities[number], scores[0, number]] for number in best
    ]
    print_table(console, Table("", "", columns, rows))
    if likelihoods.lost_bytes:
        console.print(f"left out: {likelihoods.describe_lost_text()}", soft_wrap=True)


def _attribute_documents(
    config: GenerateConfig,
    documents: HeldOutDocuments,
    candidates: Candidates,
    likelihoods: Likelihoods,
    progress: Advance,
) -> Attribution:
    """Scores every document whose label is a candidate, in batches."""
    labeled = np.flatnonzero(candidates.truths >= 0)
    scores = np.zeros((len(labeled), len(candidates.labels)))
    tokens = np.zeros(len(labeled), np.int64)
    for start in range(0, len(labeled), config.batch_size):
        progress(start / len(labeled))
        batch = slice(start, start + config.batch_size)
        texts = [documents[index].text for index in labeled[batch]]
        scores[batch], tokens[batch] = likelihoods.score(texts)
    progress(1.0)

    is_scored = tokens > 0
    if not is_scored.any():
        raise _make_nothing_scored_error(config, candidates, likelihoods)

    indices = labeled[is_scored].tolist()
    priors = np.stack([candidates.compute_log_prior(config.prior, index) for index in indices])
    return Attribution(
        candidates=candidates,
        posterior=compute_posterior(scores[is_scored], priors),
        tokens=tokens[is_scored],
        names=[documents.name(index) for index in indices],
        documents=indices,
    )


def _make_nothing_scored_error(
    config: GenerateConfig, candidates: Candidates, likelihoods: Likelihoods
) -> ConfigurationError:
    """Makes the error for held-out documents of which none can be scored."""
    names = ", ".join(candidates.labels[:5])
    if len(candidates.labels) > 5:
        names += ", …"
    message = (
        f"type={config.type}: no held-out document has one of the candidates {names} and a text of "
        "two tokens"
    )
    if likelihoods.lost_bytes:
        message += f"; left out: {likelihoods.describe_lost_text()}"
    return ConfigurationError(message)


def show_attribution(report: dict[str, Any], console: Console) -> None:
    """Prints the accuracies (of the guesses, and of the majority class) and the candidates."""
    metrics = report["metrics"]
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in report["left_out"].items())
    console.print(
        f"{report['type']} of {metrics['documents']:,} documents, inferred from their text "
        f"({metrics['candidates']:,} candidates, {report['prior']} prior)"
        + (f"; left out: {left_out}" if left_out else "")
    )

    shares = {title: metrics[name] for name, title in ACCURACY_TITLES.items()}
    if metrics["candidates"] <= max(TOP_COUNTS):
        del shares[ACCURACY_TITLES["top_5"]]  # always 100%
    rows: list[list[Cell]] = [
        [title, share["share"], Interval(share["low"], share["high"])]
        for title, share in shares.items()
    ]
    percent = "{:.1%}".format
    columns = [Column("right"), Column("share", percent), Column("95% interval", percent)]
    print_table(console, Table("", "", columns, rows))

    columns = [
        Column("candidate"),
        Column("documents", COUNT),
        Column("correct", COUNT),
        Column("guessed", COUNT),
        Column("most often taken for"),
    ]
    rows = [[*row.values()] for row in report["candidates"][:MAX_ROWS]]
    print_table(console, Table("", "", columns, rows))

    console.print(
        f"mean reciprocal rank {metrics['mean_reciprocal_rank']:.3f}; the right one costs "
        f"{metrics['mean_bits_of_the_truth']:.2f} bits; majority: {metrics['majority_label']}"
    )
