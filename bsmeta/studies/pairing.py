"""What the arms of a study share with the baseline of the same seed: weights, documents, order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import load_resolved
from bsmeta.config.study import StudyConfig
from bsmeta.data.text.tokenizer import load_tokenizer
from bsmeta.studies.runs import DONE, Run, progress_of

INITIAL = ("seed", "model_name", "model_config_file", "attn_implementation")
"""Keys that decide the initial weights, beside the number of tokens."""


def pairing(study: StudyConfig, runs: Sequence[Run]) -> Iterator[str]:
    """A sentence about each arm, from the configurations and logs of its finished runs."""
    finished = {(run.arm, run.seed): run for run in runs if progress_of(run).state == DONE}
    for arm in study.arms:
        pairs = [
            (finished[study.baseline, seed], finished[arm, seed])
            for seed in study.seeds
            if (study.baseline, seed) in finished and (arm, seed) in finished
        ]
        if arm != study.baseline and pairs:
            label = study.arms[arm].label or arm
            weights = _weights(*pairs[0])
            yield f"{label}: {weights}; {_documents(pairs)}."


def _weights(base: Run, own: Run) -> str:
    first, second = (_config(run.folder) for run in (base, own))
    differing = [key for key in INITIAL if getattr(first, key) != getattr(second, key)]
    if differing:
        return f"other initial weights ({', '.join(differing)} differ)"
    sizes = [len(load_tokenizer(one)) for one in (first, second)]
    if sizes[0] != sizes[1]:
        return (
            f"the same initial weights but for the embeddings of {sizes[1] - sizes[0]:+,} special "
            "tokens, which shift the random numbers of what is drawn after them"
        )
    return "the same initial weights as the baseline of its seed"


def _documents(pairs: Sequence[tuple[Run, Run]]) -> str:
    shared = own_count = alike = steps = 0
    for base, own in pairs:
        first, second = _steps(base.folder), _steps(own.folder)
        alike += sum(a == b for a, b in zip(first, second, strict=False))
        steps += min(len(first), len(second))
        seen, seen_too = (set().union(*one) if one else set() for one in (first, second))
        shared += len(seen & seen_too)
        own_count += len(seen_too)
    if not steps:
        return "its documents are not logged"
    words = f"{shared / max(own_count, 1):.0%} of its documents are also the baseline's"
    if alike == steps:
        return f"{words}, and every step has the same ones"
    return f"{words}; {alike / steps:.0%} of the steps have the same ones"


def _steps(folder: Path) -> list[set[str]]:
    """The documents of each step, of all ranks."""
    found: dict[int, set[str]] = {}
    for path in sorted(folder.glob("documents-rank*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("}\n"):
                    entry = json.loads(line)
                    found.setdefault(entry["step"], set()).update(entry["documents"])
    return [found[step] for step in sorted(found)]


def _config(folder: Path) -> CausalLMConfig:
    return load_resolved(folder / "config.yaml", CausalLMConfig)
