"""Measures the checkpoints of a study: nats of each held-out document, with and without metadata.

All arms are measured on the same bytes. A measurement is a file of its own, so that an interrupted
study continues with the next one; other settings (`measure`) make other files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import transformers

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.data import DataConfig
from bsmeta.config.evaluation import EvaluateConfig, SliceConfig
from bsmeta.config.study import MeasureConfig, StudyConfig
from bsmeta.evaluation.arms import TEXT, plan_comparisons, text_alone
from bsmeta.evaluation.checkpoints import (
    Location,
    check_not_trained_on,
    load_model,
    locate,
    resolve_config,
)
from bsmeta.evaluation.documents import HeldOutDocuments, Slice, make_slices
from bsmeta.evaluation.paired import ComparisonSums, PairedEvaluation
from bsmeta.evaluation.segments import BYTES, DOCUMENT, NATS_WITH, NATS_WITHOUT
from bsmeta.metadata.content import KeptText
from bsmeta.metadata.records import Document
from bsmeta.studies.runs import DONE, Run, curve_steps, progress_of
from bsmeta.training.metrics import flops_per_token

ALL = "all"


@dataclass(frozen=True)
class Measurement:
    """One checkpoint on the held-out documents.

    Attributes:
        step: Its step.
        targets: Tokens that the model had been trained on (text, unless metadata has a loss).
        tokens: Tokens that it had been given, without padding.
        flops: Forward and backward FLOPs of these tokens.
        digests: uint64 [documents], hash of each text.
        sizes: float64 [documents, bins], bytes scored, by position in the document.
        without: float64 [documents, bins], nats of these bytes without metadata.
        shown: float64 [documents, bins], nats with all metadata, as in training.
        types: By metadata type: float64 [documents], nats with this type alone; NaN for a document
            that has none of it. Empty but for the last checkpoint.
    """

    step: int
    targets: int
    tokens: int
    flops: float
    digests: np.ndarray
    sizes: np.ndarray
    without: np.ndarray
    shown: np.ndarray
    types: dict[str, np.ndarray]

    def save(self, path: Path) -> None:
        """Writes the file atomically."""
        values = asdict(self)
        values |= {f"types/{name}": found for name, found in values.pop("types").items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.npz")
        np.savez(temporary, **values)
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> Measurement:
        """Reads the file."""
        with np.load(path) as found:
            values = {name: found[name] for name in found.files}
        types = {
            name.removeprefix("types/"): values.pop(name)
            for name in list(values)
            if name.startswith("types/")
        }
        numbers = {name: values.pop(name).item() for name in ("step", "targets", "tokens", "flops")}
        return cls(**numbers, **values, types=types)


class Beginnings(HeldOutDocuments):
    """Held-out documents of which only the first characters are scored.

    Args:
        config: As for `HeldOutDocuments`.
        settings: How many documents, and how many characters of each.
    """

    def __init__(self, config: DataConfig, settings: MeasureConfig) -> None:
        super().__init__(config, max_documents=settings.max_documents, deduplicate=True)
        self._characters = settings.max_characters
        self._keys = config.metadata_config.metadata_list

    def __getitem__(self, index: int) -> Document:
        document = super().__getitem__(index)
        if self._characters is None or len(document.text) <= self._characters:
            return document
        kept = KeptText(document.text, [(0, self._characters)])
        records = {}
        for key in self._keys:
            own = document.records(key)  # what is about the whole document stays as it is
            found = [record for record in own if not record.is_local()]
            found += kept.clip(key, [record for record in own if record.is_local()])
            if found:
                records[key] = found
        return Document(kept.text, document.url, records)


def measure_path(study: StudyConfig, run: Run, step: int) -> Path:
    """The file of a measurement; its folder is named by the settings."""
    settings = {
        name: value
        for name, value in asdict(study.measure).items()
        if name not in ("resamples", "length_edges", "sites")
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return Path(study.out_dir) / f"measured-{digest}" / f"{run.folder.name}-step{step}.npz"


def measured_steps(study: StudyConfig, run: Run) -> list[int]:
    """The steps of a finished run that are measured; none of any other."""
    if progress_of(run).state != DONE:
        return []
    config = resolve_config(_evaluation(study, run.folder), locate(str(run.folder)))
    return curve_steps(study, config.max_train_steps)


def measure_all(study: StudyConfig, runs: Sequence[Run], device: torch.device) -> None:
    """Measures the checkpoints of the finished runs that have not been measured yet."""
    transformers.utils.logging.disable_progress_bar()
    for arm in study.arms:
        missing = [
            (run, step)
            for run in runs
            if run.arm == arm
            for step in measured_steps(study, run)
            if not measure_path(study, run, step).exists()
        ]
        if missing:
            _measure_arm(study, missing, device)


def _measure_arm(
    study: StudyConfig, missing: Sequence[tuple[Run, int]], device: torch.device
) -> None:
    """Measures checkpoints of an arm, whose held-out documents are read and encoded once."""
    curve: _Scorer | None = None
    last: _Scorer | None = None
    for number, (run, step) in enumerate(missing, start=1):
        location = locate(str(run.folder / f"checkpoint-{step}step"))
        config = resolve_config(_evaluation(study, run.folder), location)
        check_not_trained_on(config.data_config, location, config)
        is_last = step == config.max_train_steps
        if is_last and study.measure.each_type:
            scorer = last = last or _Scorer(study.measure, config, location, each_type=True)
        else:
            scorer = curve = curve or _Scorer(study.measure, config, location, each_type=False)
        measured = scorer.measure(config, location, device)
        measured.save(measure_path(study, run, step))
        print(f"measured {run.name}, step {step} ({number}/{len(missing)} of the arm)", flush=True)


def _evaluation(study: StudyConfig, folder: Path) -> EvaluateConfig:
    return EvaluateConfig(checkpoint=str(folder), validation_file=study.measure.validation_file)


class _Scorer:
    """Scores the held-out documents as an arm reads them.

    Args:
        settings: What is measured.
        config: The configuration of one of the arm's runs.
        location: One of its checkpoints, for the tokenizer.
        each_type: Whether to score each type of metadata by itself as well.
    """

    def __init__(
        self,
        settings: MeasureConfig,
        config: CausalLMConfig,
        location: Location,
        *,
        each_type: bool,
    ) -> None:
        data = config.data_config
        self._types = data.metadata_config.metadata_list
        groups = ([ALL] if self._types else []) + (["each"] if each_type else [])
        documents = Beginnings(data, settings)
        tokenizer = transformers.AutoTokenizer.from_pretrained(location.model)
        self._digests = np.array(documents.digests, np.uint64)
        self._evaluation = PairedEvaluation(
            data,
            tokenizer,
            documents,
            [text_alone(), *plan_comparisons(groups, self._types)],
            windows=settings.windows,
            position_edges=settings.position_edges,
            seed=settings.seed,
        )
        self._blocks = list(self._evaluation.blocks())

    def measure(
        self, config: CausalLMConfig, location: Location, device: torch.device
    ) -> Measurement:
        """Scores a checkpoint."""
        model, _ = load_model(location, config, "auto", device)
        sums = self._evaluation.run(model, device, blocks=self._blocks)
        text = sums[TEXT].values[:, DOCUMENT]
        progress = _progress(Path(location.name))
        return Measurement(
            step=progress["step"],
            targets=progress["targets"],
            tokens=progress["tokens"],
            flops=progress["tokens"] * flops_per_token(model),
            digests=self._digests,
            sizes=text[:, :, BYTES],
            without=text[:, :, NATS_WITHOUT],
            shown=self._shown(sums, text),
            types=dict(self._each(sums)),
        )

    def _shown(self, sums: dict[str, ComparisonSums], text: np.ndarray) -> np.ndarray:
        """Nats with metadata, over the bytes of the text alone.

        Where local metadata hides some bytes from one side, the difference over the others counts.
        """
        if ALL not in sums:
            return text[:, :, NATS_WITHOUT]
        both = sums[ALL].values[:, DOCUMENT]
        return text[:, :, NATS_WITHOUT] + both[:, :, NATS_WITH] - both[:, :, NATS_WITHOUT]

    def _each(self, sums: dict[str, ComparisonSums]) -> Iterator[tuple[str, np.ndarray]]:
        text = sums[TEXT].totals[:, NATS_WITHOUT]
        for name in self._types:
            found = sums.get(f"each/{name}")
            if found is not None:
                gain = found.totals[:, NATS_WITH] - found.totals[:, NATS_WITHOUT]
                yield name, np.where(found.takes_part, text + gain, np.nan)


def _progress(checkpoint: Path) -> dict[str, int]:
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    return {name: int(state["progress"][name]) for name in ("step", "tokens", "targets")}


def slices_of(study: StudyConfig, run: Run) -> tuple[np.ndarray, list[Slice]]:
    """The digest of each held-out document, and the groups by length and site."""
    config = resolve_config(_evaluation(study, run.folder), locate(str(run.folder)))
    documents = Beginnings(config.data_config, study.measure)
    wanted = []
    if study.measure.length_edges:
        wanted.append(SliceConfig(by="length", edges=study.measure.length_edges))
    if study.measure.sites:
        wanted.append(SliceConfig(by="site", top=study.measure.sites))
    found = make_slices(wanted, documents, config.data_config.metadata_config)
    return np.array(documents.digests, np.uint64), found
