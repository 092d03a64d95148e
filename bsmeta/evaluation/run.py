"""From an evaluation's configuration to its report: the steps in their order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from bsmeta.config.data import DataConfig
from bsmeta.config.errors import ConfigurationError
from bsmeta.config.evaluation import EvaluateConfig
from bsmeta.evaluation.arms import configured_comparisons
from bsmeta.evaluation.checkpoints import Location, load_model, locate, resolve_config, untrained
from bsmeta.evaluation.documents import HeldOutDocuments
from bsmeta.evaluation.paired import PairedEvaluation, Progress, check_choices
from bsmeta.evaluation.ranks import Ranks
from bsmeta.evaluation.results import ModelReport, Report, Resampling, rows_of, slice_rows_of
from bsmeta.evaluation.slices import make_slices


def locations_of(config: EvaluateConfig) -> list[Location]:
    """Where the models are that the configuration names.

    Raises:
        UserError: One of them is not there, or the value is not a name or a list of names.
    """
    names = config.checkpoint if isinstance(config.checkpoint, list) else [config.checkpoint]
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"checkpoint={config.checkpoint}: expected a name or a list of them"
        )
    found = [locate(name) for name in names]
    return [*found, untrained(found[0])] if config.untrained else found


def evaluate(
    config: EvaluateConfig,
    locations: Sequence[Location],
    ranks: Ranks,
    device: torch.device,
    progress: Progress = lambda share: None,
) -> Report:
    """Score the held-out documents with each model; every rank gets the same report.

    Raises:
        UserError: The configuration, a model or the data is not what it should be.
    """
    check_choices(config.windows, config.position_edges)
    transformers.utils.logging.disable_progress_bar()
    models = []
    for number, location in enumerate(locations):
        done = number / len(locations)

        def advance(share: float, done: float = done) -> None:
            progress(done + share / len(locations))

        models.append(_evaluate_one(config, location, ranks, device, advance))
    return Report(settings=asdict(config), models=models)


def _evaluate_one(
    config: EvaluateConfig,
    location: Location,
    ranks: Ranks,
    device: torch.device,
    progress: Progress,
) -> ModelReport:
    train = resolve_config(config, location)
    data = train.data_config
    # what is wrong with the configuration and the data is said before a model is loaded
    comparisons = configured_comparisons(config, data.metadata_config.metadata_list)
    documents = HeldOutDocuments(
        data, max_documents=config.max_documents, deduplicate=config.deduplicate
    )
    slices = make_slices(config.slices, documents, data.metadata_config)
    model, tokenizer = load_model(location, train, config.precision, device)
    evaluation = PairedEvaluation(
        data,
        tokenizer,
        documents,
        comparisons,
        windows=config.windows,
        position_edges=config.position_edges,
        ranks=ranks,
        seed=config.seed,
    )
    sums = evaluation.run(model, device, progress=progress)
    resampling = Resampling(config.bootstrap_resamples, config.seed)
    return ModelReport(
        checkpoint=location.name,
        model=location.model,
        data=_described(documents, data),
        rows=rows_of(comparisons, sums, config.position_edges, resampling),
        slices=slice_rows_of(slices, comparisons, sums, resampling),
    )


def report_folder(config: EvaluateConfig, location: Location) -> Path:
    """Where the report goes: `out_dir`; else into the run folder, or beside the model.

    A checkpoint within a run has a folder of its own there, `evaluation-checkpoint-{step}step`.
    """
    if config.out_dir is not None:
        return Path(config.out_dir)
    if location.is_on_hub:
        return Path("evaluation")
    folder = Path(location.name)
    if location.run_folder is None or folder.resolve() == location.run_folder:
        return folder / "evaluation"
    return location.run_folder / f"evaluation-{folder.resolve().name}"


def _described(documents: HeldOutDocuments, data: DataConfig) -> dict[str, object]:
    return {
        "file": os.path.basename(str(documents.path)),
        "documents": len(documents),
        "left_out": dict(documents.left_out),
        "metadata_list": list(data.metadata_config.metadata_list),
        "max_seq_len": data.metadata_config.max_seq_len,
    }
