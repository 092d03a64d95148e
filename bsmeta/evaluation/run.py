"""From an evaluation's configuration to its report: the steps in their order."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from bsmeta.config.data import DataConfig
from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.evaluation.arms import plan_comparisons, text_alone
from bsmeta.evaluation.checkpoints import Location, load_model, resolve_config
from bsmeta.evaluation.documents import HeldOutDocuments
from bsmeta.evaluation.paired import PairedEvaluation, Progress
from bsmeta.evaluation.ranks import Ranks
from bsmeta.evaluation.results import Report, rows_of


def evaluate(
    config: EvaluateConfig,
    location: Location,
    ranks: Ranks,
    device: torch.device,
    progress: Progress = lambda share: None,
) -> Report:
    """Score the held-out documents; every rank calls it and gets the same report.

    Raises:
        UserError: The configuration, the model or the data is not what it should be.
    """
    train = resolve_config(config, location)
    data = train.data_config
    # what is wrong with the data is said before a model is loaded
    documents = HeldOutDocuments(
        data, max_documents=config.max_documents, deduplicate=config.deduplicate
    )
    types = data.metadata_config.metadata_list
    comparisons = [text_alone(), *plan_comparisons(config.comparisons, types)]
    transformers.utils.logging.disable_progress_bar()
    model, tokenizer = load_model(location, train, config.precision, device)
    evaluation = PairedEvaluation(
        data,
        tokenizer,
        documents,
        comparisons,
        windows=config.windows,
        position_edges=config.position_edges,
        ranks=ranks,
    )
    rows = rows_of(
        comparisons,
        evaluation.run(model, device, progress=progress),
        config.position_edges,
        resamples=config.bootstrap_resamples,
        seed=config.seed,
    )
    return Report(
        checkpoint=location.name,
        model=location.model,
        settings=asdict(config),
        data=_described(documents, data),
        rows=rows,
    )


def report_folder(config: EvaluateConfig, location: Location) -> Path:
    """Where the report goes: `out_dir`, or `evaluation/` in the run folder or beside the model."""
    if config.out_dir is not None:
        return Path(config.out_dir)
    if location.run_folder is not None:
        return location.run_folder / "evaluation"
    return Path("evaluation" if location.is_on_hub else f"{location.name}/evaluation")


def _described(documents: HeldOutDocuments, data: DataConfig) -> dict[str, object]:
    return {
        "file": os.path.basename(documents.path),
        "documents": len(documents),
        "left_out": dict(documents.left_out),
        "metadata_list": list(data.metadata_config.metadata_list),
        "max_seq_len": data.metadata_config.max_seq_len,
    }
