"""The measurement of a run: one small file, which is all that a report needs of it.

The files can be kept with the file of the study (`results_dir`): then a run that was measured on
any machine is not made again, and the report can be recomputed from the files alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bsmeta.core.errors import DataError
from bsmeta.core.files import replacing
from bsmeta.studies.config import StudyConfig

_ARRAYS = (
    "steps", "targets", "tokens", "flops", "digests", "lengths", "sites", "sizes", "without",
    "shown", "step_documents", "logged_targets",
)  # fmt: skip
_TYPES = "types/"


@dataclass(frozen=True)
class Measurement:
    """The checkpoints of a run on the held-out documents.

    Attributes:
        settings: Hash of what the run and its measurement depend on.
        facts: What the report says about the run: its learning rate schedule, last loss, initial
            weights, and the hash of its training shards.
        steps: int64 [checkpoints].
        targets: int64 [checkpoints], tokens trained on (text, unless metadata has a loss).
        tokens: int64 [checkpoints], tokens that the model was given, without padding.
        flops: float64 [checkpoints], forward and backward FLOPs of these tokens.
        digests: uint64 [documents], hash of each text.
        lengths: int64 [documents], bytes of the whole text.
        sites: str [documents], host; empty if unknown.
        sizes: float64 [documents, bins], bytes scored, by position in the document.
        without: float64 [checkpoints, documents, bins], nats of these bytes without metadata.
        shown: float64 [checkpoints, documents, bins], nats with all metadata, as in training; no
            checkpoints if the arm has no metadata.
        types: By metadata type (or types joined by +), at the last checkpoint: float64 [documents,
            bins], nats with these types alone; NaN for a document that lacks one of them.
        step_documents: uint16 [steps], a hash of the documents of each step.
        logged_targets: int64 [logged steps], `targets` at each step that was logged.
    """

    settings: str
    facts: dict[str, Any]
    steps: np.ndarray
    targets: np.ndarray
    tokens: np.ndarray
    flops: np.ndarray
    digests: np.ndarray
    lengths: np.ndarray
    sites: np.ndarray
    sizes: np.ndarray
    without: np.ndarray
    shown: np.ndarray
    types: dict[str, np.ndarray]
    step_documents: np.ndarray
    logged_targets: np.ndarray

    def save(self, path: Path) -> None:
        """Writes the file atomically; nats are kept in single precision."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        values |= {_TYPES + name: nats for name, nats in self.types.items()}
        for name in ("without", "shown", *(_TYPES + name for name in self.types)):
            values[name] = values[name].astype(np.float32)
        for name in ("lengths", "sizes"):
            values[name] = values[name].astype(np.uint32)
        header = json.dumps({"settings": self.settings, "facts": self.facts}, sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            np.savez_compressed(part, header=np.array(header), **values)

    @classmethod
    def load(cls, path: Path) -> Measurement:
        """Reads the file.

        Raises:
            DataError: If it is damaged.
        """
        try:
            with np.load(path) as found:
                values = {name: found[name] for name in found.files}
            header = json.loads(str(values.pop("header")))
            types = {
                name.removeprefix(_TYPES): nats.astype(np.float64)
                for name, nats in values.items()
                if name.startswith(_TYPES)
            }
            arrays = {name: values[name] for name in _ARRAYS}
        except Exception as error:  # numpy raises many kinds for a damaged archive
            raise DataError(
                f"{path}: not a measurement that can be read ({error}); delete it, and the run is "
                "measured again"
            ) from error
        for name in ("sizes", "without", "shown"):
            arrays[name] = arrays[name].astype(np.float64)
        return cls(**header, **arrays, types=types)


def settings_of(study: StudyConfig, arm: str, seed: int) -> str:
    """Hash of what a run and its measurement depend on, the same on every machine."""
    own = study.arms[arm]
    values = {
        "config": study.config,
        "overrides": [*study.overrides, *own.overrides],
        "text_tokens_of": own.text_tokens_of,
        "seed": seed,
        "curve": study.curve,
        "measure": _measure_settings(study),
    }
    return digest_of(values)


def _measure_settings(study: StudyConfig) -> dict[str, Any]:
    left_out = ("length_edges", "sites")  # they group what is measured, and change nothing of it
    return {name: value for name, value in asdict(study.measure).items() if name not in left_out}


def digest_of(values: Any) -> str:
    """A short hash of JSON-serializable values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def results_folder(study: StudyConfig) -> Path:
    """The folder of the measurements: `results_dir`, or one in `out_dir` named by the settings."""
    if study.results_dir is not None:
        return Path(study.results_dir)
    return Path(study.out_dir) / f"measured-{digest_of(_measure_settings(study))[:8]}"


def measurement_path(study: StudyConfig, arm: str, seed: int) -> Path:
    """The file of a run's measurement."""
    return results_folder(study) / f"{arm}-seed{seed}.npz"


def find_measurement(study: StudyConfig, arm: str, seed: int) -> Measurement | None:
    """The measurement of a run; None if it has not been measured.

    Raises:
        DataError: If the file is damaged, or was made with other settings.
    """
    path = measurement_path(study, arm, seed)
    if not path.exists():
        return None
    found = Measurement.load(path)
    expected = settings_of(study, arm, seed)
    if found.settings != expected:
        raise DataError(
            f"{path}: measured with other settings (hash {found.settings}, expected {expected}): "
            "config, overrides, curve or measure of the study have changed; restore them, or give "
            "the study another results_dir"
        )
    return found
