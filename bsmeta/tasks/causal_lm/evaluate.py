"""The work of `evaluate.py` for `task=causal_lm`, from the configuration to the report."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from bsmeta.config.data import REMOTE, in_dataset
from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.config.metadata import MetadataConfig
from bsmeta.core.errors import ConfigurationError, nearest
from bsmeta.core.progress import Advance, progress_bar
from bsmeta.core.secrets import redact_values
from bsmeta.report.inference import (
    Interval,
    Source,
    central,
    cluster_degrees,
    clusters_of_hosts,
    half_width,
    holm,
    jackknife_variance,
    leave_one_out,
    resampled,
    sum_by_cluster,
)
from bsmeta.tasks.causal_lm.arms import TEXT, Comparison, configured_comparisons
from bsmeta.tasks.causal_lm.checkpoints import (
    check_not_trained_on,
    load_model,
    resolve_config,
    run_config,
)
from bsmeta.tasks.causal_lm.documents import HeldOutDocuments, document_facts, make_slices
from bsmeta.tasks.causal_lm.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.report import print_report, write_report
from bsmeta.tasks.causal_lm.results import (
    ComparisonSums,
    ModelReport,
    PairedMetrics,
    PairRow,
    Report,
    paired_metrics,
    refuse_nothing_scored,
    rows_of,
    sign_test,
    slice_rows_of,
)
from bsmeta.tasks.causal_lm.scoring import BYTES, NATS_WITH, NATS_WITHOUT
from bsmeta.tasks.checkpoints import Location, announce_data, locate, report_folder, untrained
from bsmeta.training.processes import Processes

HOST = "host"
ARMS = {"text alone": (TEXT, NATS_WITHOUT), "all metadata": ("all", NATS_WITH)}
"""The arms in which models are compared: for each, its comparison and its column of the sums."""


def locations_of(config: EvaluateConfig) -> list[Location]:
    """Locate the models that the configuration names.

    Raises:
        UserError: A model does not exist, or the value is not a name or a list of names.
    """
    names = config.checkpoint if isinstance(config.checkpoint, list) else [config.checkpoint]
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"checkpoint={config.checkpoint}: expected a name or a list of them"
        )
    found = [locate(name) for name in names]
    return [*found, untrained(found[0])] if config.untrained else found


def run(config: EvaluateConfig, locations: Sequence[Location], context: Processes) -> None:
    """Scores the held-out documents on all processes; rank 0 writes and prints the report."""
    with progress_bar("scoring", 1, shown=context.is_main) as progress:
        report = evaluate(config, locations, context, progress)
    if context.is_main:
        first = locations[0]
        metrics = first.run_folder / "metrics.jsonl" if first.run_folder else None
        out_dir = report_folder(config, first, has_other_data=has_other_data(config, first))
        print_report(report, write_report(report, out_dir, metrics))


def has_other_data(config: EvaluateConfig, location: Location) -> bool:
    """Whether the held-out file is not that of the run, which may have been moved since."""
    if config.validation_file is None:
        return False
    data = run_config(location, config.training_config, config.overrides).data_config
    if data.validation_file is None:
        return True
    own, asked = (in_dataset(name, data) for name in (data.validation_file, config.validation_file))
    if os.path.basename(own) != os.path.basename(asked):
        return True
    if own.startswith(REMOTE) or asked.startswith(REMOTE):
        return own != asked
    return os.path.exists(own) and os.path.realpath(own) != os.path.realpath(asked)


def evaluate(
    config: EvaluateConfig,
    locations: Sequence[Location],
    context: Processes,
    progress: Advance = lambda share: None,
) -> Report:
    """Score the held-out documents with each model; every rank gets the same report."""
    edges = config.position_edges
    if edges[:1] != [0] or any(np.diff(edges) <= 0):
        raise ConfigurationError(f"position_edges={edges}: expected rising bytes that begin with 0")
    models = []
    for number, location in enumerate(locations):

        def advance(share: float, done: int = number) -> None:
            progress((done + share) / len(locations))

        models.append(_evaluate_one(config, location, context, advance))
    pairs = compare_models(
        models,
        resamples=config.bootstrap_resamples,
        seed=config.seed,
        by_host=config.cluster == HOST,
    )
    return Report(settings=redact_values(asdict(config)), models=models, pairs=pairs)


def _evaluate_one(
    config: EvaluateConfig, location: Location, context: Processes, progress: Advance
) -> ModelReport:
    train = resolve_config(config, location)
    data = train.data_config
    if data.validation_file is not None and context.is_main:
        path = in_dataset(data.validation_file, data)
        announce_data(config, location, "data_config.validation_file", path)
    # errors in the configuration and the data are reported before a model is loaded
    comparisons = configured_comparisons(config, data.metadata_config.metadata_list)
    check_not_trained_on(data, location, run_config(location, config.training_config, {}))
    documents = HeldOutDocuments(
        data, max_documents=config.max_documents, deduplicate=config.deduplicate
    )
    _check_types(config, documents, data.metadata_config)
    hosts = [host or "" for host in document_facts(documents, data.metadata_config)["site"]]
    _check_hosts(config, hosts, str(documents.path))
    slices = make_slices(config.slices, documents, data.metadata_config)
    model, tokenizer = load_model(location, train, config.precision, context.device)
    evaluation = PairedEvaluation(
        data,
        tokenizer,
        documents,
        comparisons,
        windows=config.windows,
        position_edges=config.position_edges,
        ranks=context,
        seed=config.seed,
    )
    sums = evaluation.run(model, context.device, progress=progress)
    refuse_nothing_scored(sums, f"checkpoint={location.name}")
    clusters = clusters_of_hosts(hosts)
    metrics_of = partial(
        paired_metrics,
        resamples=config.bootstrap_resamples,
        seed=config.seed,
        clusters=clusters if config.cluster == HOST else None,
    )
    over_hosts = {}
    if config.cluster != HOST and len(set(hosts) - {""}) > 1:
        over_hosts = _metrics_over_hosts(comparisons, sums, clusters)
    return ModelReport(
        checkpoint=location.name,
        model=location.model,
        data={
            "file": os.path.basename(str(documents.path)),
            "documents": len(documents),
            "left_out": dict(documents.left_out),
            "metadata_list": list(data.metadata_config.metadata_list),
            "max_seq_len": data.metadata_config.max_seq_len,
        },
        rows=rows_of(
            comparisons, sums, np.array(documents.bytes), config.position_edges, metrics_of
        ),
        names=[documents.name(index) for index in range(len(documents))],
        digests=list(documents.digests),
        totals={name: found.totals for name, found in sums.items()},
        slices=slice_rows_of(slices, comparisons, sums, metrics_of),
        hosts=hosts,
        over_hosts=over_hosts,
    )


def _check_hosts(config: EvaluateConfig, hosts: Sequence[str], path: str) -> None:
    """Refuse hosts as the units where no interval over them exists."""
    count = len(set(hosts) - {""})
    if config.cluster == HOST and count < 2:
        raise ConfigurationError(
            f"cluster=host: the documents of {path} have {count} hosts that are known; expected "
            "at least 2 (ten for intervals that are not wide); use cluster=document"
        )


def _metrics_over_hosts(
    comparisons: Sequence[Comparison], sums: Mapping[str, ComparisonSums], clusters: np.ndarray
) -> dict[str, PairedMetrics]:
    """The metrics of each comparison with hosts as the units."""
    names = [comparison.name for comparison in comparisons if comparison.group != TEXT]
    if not names:
        return {}
    stacked = np.stack([sums[name].totals for name in names])
    metrics = paired_metrics(
        stacked, resamples=1, seed=0, family=range(len(names)), clusters=clusters
    )
    return {name: own for name, own in zip(names, metrics, strict=True) if own is not None}


def _check_types(
    config: EvaluateConfig, documents: HeldOutDocuments, metadata: MetadataConfig
) -> None:
    """Reject types that no document has, and comparisons that are 0 for every model."""
    for name in config.metadata_list or ():
        if not documents.carried[name]:
            raise ConfigurationError(
                f"metadata_list={list(config.metadata_list or ())}: no document of "
                f"{documents.path} has {name}; expected some of its types"
                f"{nearest(name, documents.columns())}"
            )
    appends = metadata.metadata_position == "append" and bool(metadata.metadata_list)
    if appends and (config.comparisons or config.chosen) and not documents.changed:
        raise ConfigurationError(
            "data_config.metadata_config.metadata_position=append: the model reads metadata only "
            "after the text, so no probability of the text can change and every comparison would "
            "be 0.0000 by construction; metadata_list=[] evaluates the text alone"
        )


def compare_models(
    models: Sequence[ModelReport], *, resamples: int, seed: int, by_host: bool = False
) -> list[PairRow]:
    """Compare every pair of models in each of the ARMS that both were scored in.

    Two models may have different tokenizers and windows, so the bits of each are summed over the
    bytes that it scored, and the bits per byte are compared over the documents that both scored.
    """
    rows = [
        row
        for first, second in itertools.combinations(models, 2)
        for shown in ARMS
        if (row := _compare(first, second, shown, resamples, seed, by_host)) is not None
    ]
    corrected = holm([row.sign_test_p for row in rows])
    return [replace(row, sign_test_p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def _compare(
    first: ModelReport,
    second: ModelReport,
    shown: str,
    resamples: int,
    seed: int,
    by_host: bool,
) -> PairRow | None:
    """Compare two models in one arm; None if no document was scored by both in it."""
    comparison, column = ARMS[shown]
    if not all(comparison in model.totals for model in (first, second)):
        return None
    _, own, other = np.intersect1d(
        np.array(first.digests, np.uint64), np.array(second.digests, np.uint64), return_indices=True
    )
    sums = np.stack([first.totals[comparison][own], second.totals[comparison][other]])
    by_both = (sums[:, :, BYTES] > 0).all(axis=0)
    sums = sums[:, by_both]
    count = sums.shape[1]
    if not count:
        return None
    bits, sizes = sums[:, :, column] / math.log(2), sums[:, :, BYTES]
    totals = bits.sum(axis=1) / sizes.sum(axis=1)
    each = bits[1] / sizes[1] - bits[0] / sizes[0]
    better, worse = int((each < 0).sum()), int((each > 0).sum())
    if by_host:
        hosts = [first.hosts[number] for number in own[by_both]]
        interval, p_value = _compare_over_hosts(bits, sizes, clusters_of_hosts(hosts))
    else:
        ratios = resampled(bits, sizes, resamples=resamples, seed=seed)
        interval = central(ratios[:, 1] - ratios[:, 0]) if count > 1 else None
        p_value = sign_test(better, worse)
    return PairRow(
        first=first.checkpoint,
        second=second.checkpoint,
        shown=shown,
        documents=count,
        bits_per_byte_first=float(totals[0]),
        bits_per_byte_second=float(totals[1]),
        difference=float(totals[1] - totals[0]),
        difference_low=interval.low if interval else None,
        difference_high=interval.high if interval else None,
        documents_better=better,
        documents_worse=worse,
        sign_test_p=p_value,
        sign_test_p_holm=1.0,
    )


def _compare_over_hosts(
    bits: np.ndarray, sizes: np.ndarray, clusters: np.ndarray
) -> tuple[Interval | None, float]:
    """The interval of the second model minus the first over hosts, and the p-value of their signs.

    Args:
        bits, sizes: float64 [2, documents].
        clusters: int64 [documents], the number of each document's host.
    """
    values, weights = sum_by_cluster(bits, clusters), sum_by_cluster(sizes, clusters)
    each = values[1] / weights[1] - values[0] / weights[0]
    p_value = sign_test(int((each < 0).sum()), int((each > 0).sum()))
    count = len(each)
    if count < 2:
        return None, p_value
    changes = leave_one_out(values[1], weights[1]) - leave_one_out(values[0], weights[0])
    degrees = min(cluster_degrees(own) for own in weights)
    half = half_width([Source(jackknife_variance(changes, count), degrees)])
    totals = values.sum(axis=1) / weights.sum(axis=1)
    difference = float(totals[1] - totals[0])
    return Interval(difference - half, difference + half), p_value
