"""Evaluates language models for `evaluate.py`, from the configuration to the report."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import resolve_in_dataset
from bsmeta.config.metadata import MetadataConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.core.errors import ConfigurationError, suggest_nearest
from bsmeta.core.progress import Advance, show_progress_bar
from bsmeta.core.secrets import redact_values
from bsmeta.report.inference import (
    ErrorSource,
    Interval,
    assign_host_clusters,
    compute_central_interval,
    compute_cluster_degrees,
    compute_half_width,
    compute_jackknife_variance,
    correct_p_values,
    leave_one_out,
    resample_ratios,
    sum_by_cluster,
)
from bsmeta.tasks.causal_lm.checkpoints import (
    has_other_data,
    load_model,
    read_run_config,
    resolve_config,
)
from bsmeta.tasks.causal_lm.evaluation.arms import TEXT, Comparison, list_comparisons
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.evaluation.readings import BYTES, NATS_WITH, NATS_WITHOUT
from bsmeta.tasks.causal_lm.evaluation.report import print_report, write_report
from bsmeta.tasks.causal_lm.evaluation.results import (
    ComparisonSums,
    ModelReport,
    PairedMetrics,
    PairRow,
    Report,
    compute_paired_metrics,
    compute_sign_test,
    make_rows,
    make_slice_rows,
    refuse_empty_scores,
)
from bsmeta.tasks.causal_lm.evaluation.shown_documents import add_shown_documents
from bsmeta.tasks.causal_lm.evaluation.slices import list_document_facts, make_slices
from bsmeta.tasks.causal_lm.evaluation.training_overlap import (
    TrainingOverlap,
    find_training_overlap,
)
from bsmeta.tasks.checkpoints import (
    Location,
    announce_data,
    choose_report_folder,
)
from bsmeta.training.ranks.processes import Processes

HOST = "host"
"""Value of `cluster` for intervals over hosts."""

PAIR_ARMS = {"text alone": (TEXT, NATS_WITHOUT), "all metadata": ("all", NATS_WITH)}
"""The arms in which models are compared: the name of a comparison, and its column of the sums."""


def run_evaluation(
    config: EvaluateConfig, locations: Sequence[Location], context: Processes
) -> list[Path]:
    """Scores the held-out documents on all processes; rank 0 writes and prints the report.

    Returns:
        The folder of the report on rank 0; [] on other ranks.
    """
    with show_progress_bar("scoring", 1, shown=context.is_main) as progress:
        report = evaluate(config, locations, context, progress)
    if not context.is_main:
        return []

    first = locations[0]
    metrics = first.run_folder / "metrics.jsonl" if first.run_folder else None
    out_dir = choose_report_folder(config, first, has_other_data=has_other_data(config, first))
    print_report(report, write_report(report, out_dir, metrics))
    return [out_dir]


def evaluate(
    config: EvaluateConfig,
    locations: Sequence[Location],
    context: Processes,
    progress: Advance = lambda share: None,
) -> Report:
    """Scores the held-out documents with each model; every rank gets the same report."""
    edges = config.position_edges
    if edges[:1] != [0] or any(np.diff(edges) <= 0):
        raise ConfigurationError(f"position_edges={edges}: expected rising bytes that begin with 0")

    # Before any model is scored: training shards are read with a progress bar of their own.
    overlaps = [_find_training_overlap(config, location, context) for location in locations]
    models = []
    for number, (location, overlap) in enumerate(zip(locations, overlaps, strict=True)):
        advance = _scale_progress(progress, number, len(locations))
        models.append(_evaluate_model(config, location, overlap, context, advance))

    pairs = compare_models(
        models,
        resamples=config.bootstrap_resamples,
        seed=config.seed,
        by_host=config.cluster == HOST,
    )
    return Report(settings=redact_values(asdict(config)), models=models, pairs=pairs)


def _scale_progress(progress: Advance, num_done: int, num_parts: int) -> Advance:
    """Returns the progress of the part after `num_done` of `num_parts` equal parts of the work."""

    def advance(share: float) -> None:
        progress((num_done + share) / num_parts)

    return advance


def _find_training_overlap(
    config: EvaluateConfig, location: Location, context: Processes
) -> TrainingOverlap | None:
    """Finds the held-out documents in training shards; rank 0 reads the shards for all ranks.

    Returns:
        The overlap; None if the run kept the file out of training.

    Raises:
        DataError: On every rank, if the file is one of the run's training shards.
    """
    data = resolve_config(config, location).data_config
    if data.validation_file is not None and context.is_main:
        path = resolve_in_dataset(data.validation_file, data)
        announce_data(config, location, "data_config.validation_file", path)

    run_config = read_run_config(location, config.training_config, {})
    return context.on_main(
        lambda: find_training_overlap(data, location, run_config, limit_gb=config.overlap_check_gb)
    )


def _evaluate_model(
    config: EvaluateConfig,
    location: Location,
    overlap: TrainingOverlap | None,
    context: Processes,
    progress: Advance,
) -> ModelReport:
    """Scores the held-out documents with one model, and computes its results.

    Args:
        overlap: The documents in training shards; None if the run kept the file out of training.
    """
    run_config = resolve_config(config, location)
    data = run_config.data_config
    metadata = data.metadata_config

    # Errors in the configuration and the data are reported before a model is loaded.
    comparisons = list_comparisons(config, metadata.metadata_list)
    documents = HeldOutDocuments(
        data,
        max_documents=config.max_documents,
        deduplicate=config.deduplicate,
        training_overlap=overlap,
        on_training_overlap=config.on_training_overlap,
    )
    _check_types(config, documents, metadata)
    hosts = [host or "" for host in list_document_facts(documents, metadata)["site"]]
    _check_hosts(config, hosts, str(documents.path))
    slices = make_slices(config.slices, documents, metadata)

    evaluation, tokenizer, sums = _score_documents(
        config, location, run_config, documents, comparisons, context, progress
    )
    clusters = assign_host_clusters(hosts)
    compute_metrics = partial(
        compute_paired_metrics,
        resamples=config.bootstrap_resamples,
        seed=config.seed,
        clusters=clusters if config.cluster == HOST else None,
    )
    over_hosts = {}
    if config.cluster != HOST and len(set(hosts) - {""}) > 1:
        over_hosts = _compute_metrics_over_hosts(comparisons, sums, clusters)

    report = ModelReport(
        checkpoint=location.name,
        model=location.model,
        data=_describe_data(documents, metadata),
        rows=make_rows(
            comparisons, sums, np.array(documents.bytes), config.position_edges, compute_metrics
        ),
        names=[documents.name(index) for index in range(len(documents))],
        digests=list(documents.digests),
        totals={name: comparison_sums.totals for name, comparison_sums in sums.items()},
        slices=make_slice_rows(slices, comparisons, sums, compute_metrics),
        hosts=hosts,
        over_hosts=over_hosts,
        training_overlap=overlap,
    )
    return add_shown_documents(report, evaluation, tokenizer)


def _describe_data(documents: HeldOutDocuments, metadata: MetadataConfig) -> dict[str, Any]:
    """Returns the `data` of a `ModelReport`."""
    return {
        "file": os.path.basename(str(documents.path)),
        "documents": len(documents),
        "left_out": dict(documents.left_out),
        "metadata_list": list(metadata.metadata_list),
        "max_seq_len": metadata.max_seq_len,
    }


def _score_documents(
    config: EvaluateConfig,
    location: Location,
    run_config: CausalLMConfig,
    documents: HeldOutDocuments,
    comparisons: Sequence[Comparison],
    context: Processes,
    progress: Advance,
) -> tuple[PairedEvaluation, PreTrainedTokenizerBase, dict[str, ComparisonSums]]:
    """Loads a model and scores the documents with it.

    Args:
        run_config: The configuration of the model's run, with the changes of the evaluation.

    Returns:
        The evaluation, the tokenizer of the model, and the sums of each comparison.
    """
    model, tokenizer = load_model(location, run_config, config.precision, context.device)
    evaluation = PairedEvaluation(
        run_config.data_config,
        tokenizer,
        documents,
        comparisons,
        windows=config.windows,
        position_edges=config.position_edges,
        ranks=context,
        seed=config.seed,
    )
    sums = evaluation.run(model, context.device, progress=progress)
    refuse_empty_scores(sums, f"checkpoint={location.name}")
    return evaluation, tokenizer, sums


def _check_hosts(config: EvaluateConfig, hosts: Sequence[str], path: str) -> None:
    """Refuses `cluster=host` if fewer than two hosts are known, too few for an interval."""
    num_hosts = len(set(hosts) - {""})
    if config.cluster == HOST and num_hosts < 2:
        raise ConfigurationError(
            f"cluster=host: the documents of {path} have {num_hosts} hosts that are known; "
            "expected at least 2 (ten for intervals that are not wide); use cluster=document"
        )


def _compute_metrics_over_hosts(
    comparisons: Sequence[Comparison], sums: Mapping[str, ComparisonSums], clusters: np.ndarray
) -> dict[str, PairedMetrics]:
    """Computes the metrics of each comparison with hosts as the units."""
    names = [comparison.name for comparison in comparisons if comparison.group != TEXT]
    if not names:
        return {}
    stacked_sums = np.stack([sums[name].totals for name in names])
    results = compute_paired_metrics(
        stacked_sums, resamples=1, seed=0, family=range(len(names)), clusters=clusters
    )
    return {
        name: metrics for name, metrics in zip(names, results, strict=True) if metrics is not None
    }


def _check_types(
    config: EvaluateConfig, documents: HeldOutDocuments, metadata: MetadataConfig
) -> None:
    """Refuses types that no document has, and comparisons that are 0 for every model."""
    for name in config.metadata_list or ():
        if not documents.carried[name]:
            raise ConfigurationError(
                f"metadata_list={list(config.metadata_list or ())}: no document of "
                f"{documents.path} has {name}; expected some of its types"
                f"{suggest_nearest(name, documents.list_types())}"
            )

    is_appended = metadata.metadata_position == "append" and bool(metadata.metadata_list)
    if is_appended and (config.comparisons or config.chosen) and not documents.changed:
        raise ConfigurationError(
            "data_config.metadata_config.metadata_position=append: the model reads metadata only "
            "after the text, so no probability of the text can change and every comparison would "
            "be 0.0000 by construction; metadata_list=[] evaluates the text alone"
        )


def compare_models(
    models: Sequence[ModelReport], *, resamples: int, seed: int, by_host: bool = False
) -> list[PairRow]:
    """Compares every pair of models in each of the PAIR_ARMS in which both were scored.

    Two models may have different tokenizers and windows, so the bits of each are summed over the
    bytes that it scored, and the bits per byte are compared over the documents that both scored.
    """
    rows = []
    for first, second in itertools.combinations(models, 2):
        for arm in PAIR_ARMS:
            row = _compare_pair(first, second, arm, resamples=resamples, seed=seed, by_host=by_host)
            if row is not None:
                rows.append(row)

    p_values = correct_p_values([row.sign_test_p for row in rows])
    return [
        replace(row, sign_test_p_holm=p_value) for row, p_value in zip(rows, p_values, strict=True)
    ]


def _compare_pair(
    first: ModelReport,
    second: ModelReport,
    arm: str,
    *,
    resamples: int,
    seed: int,
    by_host: bool,
) -> PairRow | None:
    """Compares two models in one arm; None if no document was scored by both in it."""
    comparison, column = PAIR_ARMS[arm]
    if comparison not in first.totals or comparison not in second.totals:
        return None

    sums, first_indices = _align_documents(first, second, comparison)
    num_documents = sums.shape[1]
    if num_documents == 0:
        return None

    bits = sums[:, :, column] / math.log(2)
    sizes = sums[:, :, BYTES]
    bits_per_byte = bits.sum(axis=1) / sizes.sum(axis=1)
    differences = bits[1] / sizes[1] - bits[0] / sizes[0]
    num_better = int((differences < 0).sum())
    num_worse = int((differences > 0).sum())

    if by_host:
        hosts = [first.hosts[index] for index in first_indices]
        interval, p_value = _compare_over_hosts(bits, sizes, assign_host_clusters(hosts))
    else:
        interval = None
        if num_documents > 1:
            ratios = resample_ratios(bits, sizes, resamples=resamples, seed=seed)
            interval = compute_central_interval(ratios[:, 1] - ratios[:, 0])
        p_value = compute_sign_test(num_better, num_worse)

    return PairRow(
        first=first.checkpoint,
        second=second.checkpoint,
        shown=arm,
        documents=num_documents,
        bits_per_byte_first=float(bits_per_byte[0]),
        bits_per_byte_second=float(bits_per_byte[1]),
        difference=float(bits_per_byte[1] - bits_per_byte[0]),
        difference_low=interval.low if interval else None,
        difference_high=interval.high if interval else None,
        documents_better=num_better,
        documents_worse=num_worse,
        sign_test_p=p_value,
        sign_test_p_holm=1.0,
    )


def _align_documents(
    first: ModelReport, second: ModelReport, comparison: str
) -> tuple[np.ndarray, np.ndarray]:
    """Aligns the documents that both models scored, by their text.

    Returns:
        The sums of both models: float64 [2, documents, COLUMNS], and the indices of these documents
        in the first.
    """
    _, first_indices, second_indices = np.intersect1d(
        np.array(first.digests, np.uint64), np.array(second.digests, np.uint64), return_indices=True
    )
    sums = np.stack(
        [first.totals[comparison][first_indices], second.totals[comparison][second_indices]]
    )
    is_scored_by_both = (sums[:, :, BYTES] > 0).all(axis=0)
    return sums[:, is_scored_by_both], first_indices[is_scored_by_both]


def _compare_over_hosts(
    bits: np.ndarray, sizes: np.ndarray, clusters: np.ndarray
) -> tuple[Interval | None, float]:
    """Compares two models over hosts, second minus first.

    Args:
        bits, sizes: float64 [2, documents], the bits and bytes of both models.
        clusters: int64 [documents], the index of each document's host.

    Returns:
        The interval of the difference (None for a single host), and the p-value of the sign test.
    """
    host_bits = sum_by_cluster(bits, clusters)
    host_bytes = sum_by_cluster(sizes, clusters)
    differences = host_bits[1] / host_bytes[1] - host_bits[0] / host_bytes[0]
    p_value = compute_sign_test(int((differences < 0).sum()), int((differences > 0).sum()))
    num_hosts = len(differences)
    if num_hosts < 2:
        return None, p_value

    first_estimates = leave_one_out(host_bits[0], host_bytes[0])
    second_estimates = leave_one_out(host_bits[1], host_bytes[1])
    variance = compute_jackknife_variance(second_estimates - first_estimates, num_hosts)
    degrees = min(compute_cluster_degrees(bytes_of_model) for bytes_of_model in host_bytes)
    half_width = compute_half_width([ErrorSource(variance, degrees)])
    bits_per_byte = host_bits.sum(axis=1) / host_bytes.sum(axis=1)
    difference = float(bits_per_byte[1] - bits_per_byte[0])
    return Interval(difference - half_width, difference + half_width), p_value
