"""Facts about runs beside their scores: above all, what each shares with its seed's baseline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.studies.config import StudyConfig
from bsmeta.studies.measured import Measured
from bsmeta.studies.measurement import Measurement

_CHANGING = ("_name_or_path", "transformers_version")
"""Keys of a model's configuration that change nothing of its initial weights."""


def facts_of(folder: Path, config: CausalLMConfig, checkpoint: Path) -> dict[str, Any]:
    """What the report needs to know about a finished run.

    Args:
        folder: The run folder.
        config: Its configuration.
        checkpoint: Its last checkpoint.
    """
    shape = json.loads((checkpoint / "model" / "config.json").read_text(encoding="utf-8"))
    vocabulary = shape.pop("vocab_size")
    shape = {name: value for name, value in shape.items() if name not in _CHANGING}
    data = json.loads((checkpoint / "data_state.json").read_text(encoding="utf-8"))
    return {
        "schedule": config.lr_scheduler_type,
        "loss_on_metadata": bool(config.data_config.metadata_config.loss_on_metadata),
        "model": [config.model_name, _digest(shape)],
        "vocabulary": vocabulary,
        "shards": _digest(data["fingerprint"]["shards"]),
        "loss": [event["loss"] for event in _logged(folder)][-1],
    }


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def logged_targets(folder: Path) -> np.ndarray:
    """Text tokens up to each logged step: int64 [logged steps]."""
    return np.array([event["targets"] for event in _logged(folder)], np.int64)


def _logged(folder: Path) -> list[dict[str, Any]]:
    """The logged steps of a run; of a step that a resume has repeated, the last."""
    found = {}
    for event in _lines(folder / "metrics.jsonl"):
        if event["event"] == "step":
            found[event["step"]] = event
    return [found[step] for step in sorted(found)]


def step_documents(folder: Path) -> np.ndarray:
    """A hash of the documents of each step, of all ranks: uint16 [steps]."""
    found: dict[int, dict[str, list[str]]] = {}
    for path in sorted(folder.glob("documents-rank*.jsonl")):
        for entry in _lines(path):
            found.setdefault(entry["step"], {})[path.name] = entry["documents"]
    steps = [sorted(chain.from_iterable(found[step].values())) for step in sorted(found)]
    return np.array([int(_digest(documents)[:4], 16) for documents in steps], np.uint16)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a log; a killed process may have left part of one."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("}\n"):
                yield json.loads(line)


def notes_of(measured: Measured) -> list[str]:
    """What the settings of the runs mean for the comparison."""
    facts = {arm: measured.run(arm, measured.seeds[0]).facts for arm in measured.arms}
    notes = []
    falling = [arm for arm, own in facts.items() if own["schedule"] != "constant"]
    if falling and max(map(measured.points, measured.arms)) > 1:
        notes.append(
            f"The learning rate of {', '.join(falling)} falls during the run: a checkpoint before "
            "the end is worse than the end of a shorter run, so the curve of the baseline is too "
            "high before its end, and the data that an arm saves is not to be trusted."
        )
    lossy = [arm for arm, own in facts.items() if own["loss_on_metadata"]]
    if lossy:
        notes.append(f"The text tokens of {', '.join(lossy)} include metadata with a loss.")
    return notes


def shared_with_baseline(study: StudyConfig, measured: Measured) -> Iterator[str]:
    """A sentence for each arm: its weights, documents, tokens and steps beside the baseline's."""
    for arm in measured.arms:
        if arm != study.baseline:
            pairs = [
                (measured.run(study.baseline, seed), measured.run(arm, seed))
                for seed in measured.seeds
            ]
            label = study.arms[arm].label or arm
            yield f"{label}: {_weights(*pairs[0])}; {_steps(pairs)}; {_amounts(pairs)}."


def _weights(base: Measurement, own: Measurement) -> str:
    if base.facts["model"] != own.facts["model"]:
        return "another model"
    added = own.facts["vocabulary"] - base.facts["vocabulary"]
    if added:
        return (
            f"the same initial weights but for the embeddings of {added:+,} tokens, which shift "
            "the random numbers of what is drawn after them"
        )
    return "the same initial weights"


def _steps(pairs: Sequence[tuple[Measurement, Measurement]]) -> str:
    alike = steps = 0
    for base, own in pairs:
        count = min(len(base.step_documents), len(own.step_documents))
        alike += int((base.step_documents[:count] == own.step_documents[:count]).sum())
        steps += max(len(base.step_documents), len(own.step_documents))
    return f"the same documents in {alike / max(steps, 1):.0%} of the steps"


def _amounts(pairs: Sequence[tuple[Measurement, Measurement]]) -> str:
    if all(np.array_equal(base.logged_targets, own.logged_targets) for base, own in pairs):
        words = "the same text tokens after every logged step"
    else:
        words = f"{_ratio(pairs, 'targets')} the text tokens"
    others = {"total tokens": "tokens", "FLOPs": "flops", "steps": "steps"}
    ratios = [f"{_ratio(pairs, name)} the {what}" for what, name in others.items()]
    return f"{words}; {', '.join(ratios)}"


def _ratio(pairs: Sequence[tuple[Measurement, Measurement]], name: str) -> str:
    ratios = [getattr(own, name)[-1] / getattr(base, name)[-1] for base, own in pairs]
    return f"{np.mean(ratios):.2f} times"
