"""Measures the checkpoints of a run: nats of each held-out document, with and without metadata.

All arms are measured on the same bytes. The measurement of a run is one file, so an interrupted
study continues with the first run that has not been measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import PreTrainedTokenizerBase

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.model_file import find_language_part
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.steps import set_branch_length
from bsmeta.core.environment import describe_environment, format_utc_now
from bsmeta.core.errors import DataError
from bsmeta.core.model_files import read_tokenizer
from bsmeta.core.parsing import parse_json
from bsmeta.metadata.content import KeptText
from bsmeta.metadata.document import Document
from bsmeta.studies.config import MeasureConfig, StudyConfig
from bsmeta.studies.runs import (
    DONE,
    Measurement,
    Run,
    find_measurement,
    find_stable_run,
    hash_settings,
    hash_values,
    list_curve_steps,
    list_runs,
    locate_measurement,
    read_progress,
)
from bsmeta.tasks.causal_lm.checkpoints import load_model, read_run_config, resolve_config
from bsmeta.tasks.causal_lm.evaluation.arms import TEXT, list_comparisons
from bsmeta.tasks.causal_lm.evaluation.documents import HeldOutDocuments
from bsmeta.tasks.causal_lm.evaluation.paired import PairedEvaluation
from bsmeta.tasks.causal_lm.evaluation.readings import BYTES, DOCUMENT, NATS_WITH, NATS_WITHOUT
from bsmeta.tasks.causal_lm.evaluation.results import ComparisonSums, refuse_empty_scores
from bsmeta.tasks.causal_lm.evaluation.slices import list_document_facts
from bsmeta.tasks.causal_lm.evaluation.training_overlap import (
    TrainingOverlap,
    find_training_overlap,
)
from bsmeta.tasks.checkpoints import Location, locate_model
from bsmeta.training.checkpoints.checkpoint import list_checkpoints
from bsmeta.training.run_folder.events import read_environments
from bsmeta.training.task import compute_flops_per_token

ALL = "all"
EACH = "each"
CHOSEN = "chosen"
_KEYS_WITHOUT_EFFECT = ("_name_or_path", "transformers_version")
"""Keys of a model's configuration that do not affect its initial weights."""


class DocumentBeginnings(HeldOutDocuments):
    """Held-out documents of which only the first characters are scored."""

    def __init__(
        self,
        config: DataConfig,
        settings: MeasureConfig,
        training_overlap: TrainingOverlap | None,
    ) -> None:
        super().__init__(
            config,
            max_documents=settings.max_documents,
            deduplicate=True,
            training_overlap=training_overlap,
        )
        self._max_characters = settings.max_characters
        self._type_names = config.metadata_config.metadata_list

    def __getitem__(self, index: int) -> Document:
        document = super().__getitem__(index)
        if self._max_characters is None or len(document.text) <= self._max_characters:
            return document

        beginning = KeptText(document.text, [(0, self._max_characters)])
        records_by_type = {}
        for type_name in self._type_names:
            records = document.records(type_name)
            # Records about the whole document stay as they are.
            clipped = [record for record in records if not record.is_local()]
            local_records = [record for record in records if record.is_local()]
            clipped += beginning.clip(type_name, local_records)
            if clipped:
                records_by_type[type_name] = clipped
        return Document(beginning.text, document.url, records_by_type)


def measure_all(study: StudyConfig, runs: Sequence[Run], device: torch.device) -> None:
    """Measures the finished runs that have not been measured yet, and writes the measurements."""
    transformers.utils.logging.disable_progress_bar()
    for run in runs:
        is_measured = find_measurement(study, run.arm, run.seed) is not None
        if is_measured or read_progress(study, run).state != DONE:
            continue

        started = time.monotonic()
        measure_run(study, run, device).save(locate_measurement(study, run.arm, run.seed))
        print(f"measured {run.name} ({time.monotonic() - started:,.0f} s)", flush=True)


def measure_run(study: StudyConfig, run: Run, device: torch.device) -> Measurement:
    """Measures the checkpoints of a finished run.

    Raises:
        DataError: If the run was trained on the held-out documents, or no bytes are left to score.
    """
    started = format_utc_now()
    evaluation = EvaluateConfig(
        checkpoint=str(run.folder), validation_file=study.measure.validation_file
    )
    config = set_branch_length(resolve_config(evaluation, locate_model(str(run.folder))))
    steps = list_curve_steps(study, run.arm, config.max_train_steps)
    locations = [locate_model(str(run.folder / f"checkpoint-{step}step")) for step in steps]
    overlap = compare_with_training(run.name, evaluation, config.data_config, locations[-1])
    documents = DocumentBeginnings(config.data_config, study.measure, overlap)
    scores = _score_checkpoints(study.measure, config, documents, locations, device)
    facts = list_document_facts(documents, config.data_config.metadata_config)

    tokens = _read_counts(locations, "tokens")
    segments = _list_segments(study, run)
    logged_steps = _read_logged_steps(segments)
    return Measurement(
        settings=hash_settings(study, run.arm, run.seed),
        facts={
            **_describe_run(config, Path(locations[-1].name)),
            "loss": logged_steps[-1]["loss"],
            "losses": [round(event["loss"], 6) for event in logged_steps],
            "lost_bytes": scores.lost_bytes,
            "order": [other.name for other in list_runs(study)].index(run.name),
            "trained": read_environments(run.folder),
            "measured": {
                **describe_environment(device),
                "started": started,
                "ended": format_utc_now(),
            },
        },
        steps=_read_counts(locations, "step"),
        targets=_read_counts(locations, "targets"),
        tokens=tokens,
        flops=tokens * scores.flops_per_token,
        digests=np.array(documents.digests, np.uint64),
        lengths=np.array(facts["length"], np.int64),
        sites=np.array([host or "" for host in facts["site"]]),
        sizes=scores.sizes,
        nats_without=scores.nats_without,
        nats_with=scores.nats_with,
        nats_by_types=scores.nats_by_types,
        nats_averaged=_score_averaged_checkpoint(
            study.measure, config, documents, run.folder, device
        ),
        step_documents=_hash_step_documents(segments),
        logged_targets=np.array([event["targets"] for event in logged_steps], np.int64),
    )


def compare_with_training(
    name: str, evaluation: EvaluateConfig, data: DataConfig, location: Location
) -> TrainingOverlap | None:
    """Compares the held-out documents of `data` with a run's training shards; prints the result.

    Args:
        name: The name of the run, or of the tasks, in the output.
        location: A checkpoint of the run.

    Returns:
        See `find_training_overlap`.
    """
    overlap = find_training_overlap(
        data,
        location,
        read_run_config(location, evaluation.training_config, {}),
        limit_gb=evaluation.overlap_check_gb,
    )
    if overlap is not None:
        print(f"{name}: {overlap.describe()}", flush=True)
    return overlap


@dataclass(frozen=True)
class _CheckpointScores:
    """The scores of a run's checkpoints.

    Attributes:
        sizes, nats_without, nats_with, nats_by_types: As in `Measurement`.
        flops_per_token: FLOPs of the model, forward and backward.
        lost_bytes: Bytes that are left out because the tokenizer loses them.
    """

    sizes: np.ndarray
    nats_without: np.ndarray
    nats_with: np.ndarray
    nats_by_types: dict[str, np.ndarray]
    flops_per_token: float
    lost_bytes: int


def _score_checkpoints(
    settings: MeasureConfig,
    config: CausalLMConfig,
    documents: DocumentBeginnings,
    locations: Sequence[Location],
    device: torch.device,
) -> _CheckpointScores:
    """Scores the documents with each checkpoint of an arm, with the arm's tokenizer and metadata.

    Raises:
        DataError: If no bytes are left to score.
    """
    types = config.data_config.metadata_config.metadata_list
    tokenizer = read_tokenizer(locations[-1].model)

    def make_evaluation(groups: list[str], chosen: Sequence[str] = ()) -> PairedEvaluation:
        evaluation_config = EvaluateConfig(
            comparisons=groups, chosen=list(chosen), controls=[], prompt=False
        )
        return PairedEvaluation(
            config.data_config,
            tokenizer,
            documents,
            list_comparisons(evaluation_config, types),
            windows=settings.windows,
            position_edges=settings.position_edges,
            seed=settings.seed,
        )

    curve_evaluation = make_evaluation([ALL] if types else [])
    blocks = list(curve_evaluation.build_blocks())  # encoded once for all checkpoints
    nats_without = []
    nats_with = []
    for location in locations:
        model, _ = load_model(location, config, "auto", device)
        sums = curve_evaluation.run(model, device, blocks=blocks)
        refuse_empty_scores(sums, f"checkpoint={location.name}")
        text_values = sums[TEXT].values[:, DOCUMENT]
        nats_without.append(text_values[:, :, NATS_WITHOUT])
        if types:
            nats_with.append(nats_without[-1] + _compute_change(sums[ALL]))

    changes = {}
    if types and settings.each_type:  # of the last checkpoint
        combinations = _select_combinations(settings.combinations, types)
        type_sums = make_evaluation([EACH], combinations).run(model, device)
        changes = _compute_changes_by_types(type_sums)
    return _CheckpointScores(
        sizes=text_values[:, :, BYTES],
        nats_without=np.stack(nats_without),
        nats_with=np.array(nats_with).reshape(-1, *text_values.shape[:2]),
        nats_by_types={name: nats_without[-1] + change for name, change in changes.items()},
        flops_per_token=compute_flops_per_token(model),
        lost_bytes=int(sums[TEXT].lost_bytes.sum()),
    )


def _select_combinations(combinations: Sequence[str], types: Sequence[str]) -> list[str]:
    """Selects the combinations (such as `url+title`) whose types an arm has."""
    return [
        combination for combination in combinations if set(combination.split("+")) <= set(types)
    ]


def _score_averaged_checkpoint(
    settings: MeasureConfig,
    config: CausalLMConfig,
    documents: DocumentBeginnings,
    folder: Path,
    device: torch.device,
) -> np.ndarray:
    """Scores the mean of the weights of a run's last checkpoints, without metadata.

    Returns:
        float64 [1, documents, bins], nats; [0, documents, bins] if `average_last` is 1.

    Raises:
        DataError: If the run has fewer than `average_last` checkpoints.
    """
    bins = len(settings.position_edges)
    if settings.average_last == 1:
        return np.zeros((0, len(documents), bins))

    checkpoints = list_checkpoints(folder)[-settings.average_last :]
    if len(checkpoints) < settings.average_last:
        raise DataError(
            f"{folder}: {len(checkpoints)} checkpoints; expected {settings.average_last} "
            "(measure.average_last); lower save_steps, or average_last"
        )

    locations = [locate_model(str(checkpoint.folder)) for checkpoint in checkpoints]
    model, tokenizer = _load_averaged_model(locations, config, device)
    text_evaluation = PairedEvaluation(
        config.data_config,
        tokenizer,
        documents,
        list_comparisons(EvaluateConfig(comparisons=[], controls=[], prompt=False), []),
        windows=settings.windows,
        position_edges=settings.position_edges,
        seed=settings.seed,
    )
    sums = text_evaluation.run(model, device)
    return sums[TEXT].values[None, :, DOCUMENT, :, NATS_WITHOUT]


def _load_averaged_model(
    locations: Sequence[Location], config: CausalLMConfig, device: torch.device
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """Loads a model whose weights are the mean over checkpoints, computed in float64."""
    model, tokenizer = load_model(locations[-1], config, "auto", device)
    sums = {name: weight.double() for name, weight in model.state_dict().items()}
    for location in locations[:-1]:
        other_model, _ = load_model(location, config, "auto", device)
        for name, weight in other_model.state_dict().items():
            sums[name] += weight.double()

    means = {name: weight_sum / len(locations) for name, weight_sum in sums.items()}
    model.load_state_dict(means)
    return model, tokenizer


def _read_counts(locations: Sequence[Location], name: str) -> np.ndarray:
    """Reads a count of the training progress at each checkpoint: int64 [checkpoints].

    Args:
        name: Its name in `progress` of `trainer_state.json`.
    """
    counts = []
    for location in locations:
        state_file = Path(location.name) / "trainer_state.json"
        state = parse_json(state_file.read_text(encoding="utf-8"))
        counts.append(state["progress"][name])
    return np.array(counts, np.int64)


def _describe_run(config: CausalLMConfig, checkpoint: Path) -> dict[str, Any]:
    """Reads facts about a run, for its measurement, from its configuration and last checkpoint."""
    model_config = parse_json((checkpoint / "model" / "config.json").read_text(encoding="utf-8"))
    vocabulary = find_language_part(model_config).pop("vocab_size")
    model_config = {
        name: value for name, value in model_config.items() if name not in _KEYS_WITHOUT_EFFECT
    }
    data = parse_json((checkpoint / "data_state.json").read_text(encoding="utf-8"))
    return {
        "schedule": config.lr_scheduler_type,
        "loss_on_metadata": bool(config.data_config.metadata_config.loss_on_metadata),
        "model": [config.model_name, hash_values(model_config)],
        "vocabulary": vocabulary,
        "shards": hash_values(data["fingerprint"]["shards"]),
    }


@dataclass(frozen=True)
class _Segment:
    """Consecutive steps of a run that were trained in one folder, up to `last_step`."""

    folder: Path
    last_step: float


def _list_segments(study: StudyConfig, run: Run) -> list[_Segment]:
    """Lists the segments of a run; a branch begins in the folder of its stable run."""
    branch_at = study.arms[run.arm].branch_at
    last_segment = _Segment(run.folder, math.inf)
    if branch_at is None:
        return [last_segment]
    return [_Segment(find_stable_run(study, run).folder, branch_at), last_segment]


def _read_logged_steps(segments: Sequence[_Segment]) -> list[dict[str, Any]]:
    """Reads the logged steps of a run, in order; of a step that a resume repeated, the last log."""
    events_by_step = {}
    for segment in segments:
        for event in _read_lines(segment.folder / "metrics.jsonl"):
            if event["event"] == "step" and event["step"] <= segment.last_step:
                events_by_step[event["step"]] = event
    return [events_by_step[step] for step in sorted(events_by_step)]


def _hash_step_documents(segments: Sequence[_Segment]) -> np.ndarray:
    """Hashes the documents that all ranks read in each step: uint16 [steps]."""
    documents_by_step: dict[int, dict[str, list[str]]] = {}
    for segment in segments:
        for path in sorted(segment.folder.glob("documents-rank*.jsonl")):
            for entry in _read_lines(path):
                if entry["step"] <= segment.last_step:
                    documents_by_rank = documents_by_step.setdefault(entry["step"], {})
                    documents_by_rank[path.name] = entry["documents"]

    hashes = []
    for step in sorted(documents_by_step):
        documents = sorted(chain.from_iterable(documents_by_step[step].values()))
        hashes.append(int(hash_values(documents)[:4], 16))
    return np.array(hashes, np.uint16)


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the complete lines of a log; a killed process may have left an incomplete one."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("}\n"):
                yield parse_json(line)


def _compute_changes_by_types(sums: dict[str, ComparisonSums]) -> dict[str, np.ndarray]:
    """Computes the change in nats from each type or combination: float64 [documents, bins].

    It is NaN for documents that lack one of the types.
    """
    changes = {}
    for name, comparison in sums.items():
        group, _, types = name.partition("/")
        if group in (EACH, CHOSEN):
            has_each_type = [sums[f"{EACH}/{type_}"].takes_part for type_ in types.split("+")]
            has_types = np.all(has_each_type, axis=0)
            changes[types] = np.where(has_types[:, None], _compute_change(comparison), np.nan)
    return changes


def _compute_change(sums: ComparisonSums) -> np.ndarray:
    """Computes nats with metadata minus nats without: float64 [documents, bins].

    Bytes that local metadata hides from one side are not counted.
    """
    values = sums.values[:, DOCUMENT]
    change: np.ndarray = values[:, :, NATS_WITH] - values[:, :, NATS_WITHOUT]
    return change
