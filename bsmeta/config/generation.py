"""Schema of `generate.py`: which model, under which metadata, how to sample, what to attribute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.evaluation import PRECISIONS
from bsmeta.config.keys import key


@dataclass(kw_only=True)
class GenerateConfig:
    """Text under given metadata (mode=text), or metadata of given text (mode=attribute)."""

    mode: str = key(
        "text",
        "text: generate under metadata; attribute: infer metadata from text",
        choices=("text", "attribute"),
    )
    checkpoint: str = key(
        "runs/demo",
        "a run folder (its model/, else its newest checkpoint), a checkpoint folder, a folder that "
        "from_pretrained loads, or a Hub model as hf://owner/name",
        is_path=True,
    )
    training_config: str | None = key(
        None,
        "config.yaml of the run; null: found beside the model (defaults for a Hub model)",
        is_path=True,
    )
    overrides: dict[str, Any] = key({}, "keys of that configuration to change")
    precision: str = key(
        "auto", "auto: bfloat16 on a GPU if the run was trained in bf16", choices=PRECISIONS
    )

    metadata: dict[str, Any] = key(
        {},
        "values of global types, such as {url: 'https://docs.python.org/', title: Sets}; a local "
        "type can be announced: {html: true}",
    )
    prompt: str = key(
        "",
        "text to continue (training takes no loss on a first word: without a prompt it is a "
        "guess); in mode=attribute: the text, instead of a file's",
    )
    null_metadata: dict[str, Any] = key({}, "metadata of the context that guidance leads away from")
    guidance: float = key(
        1.0, "g in `null + g (metadata - null)` of log-probabilities: 1 plain, above 1 stronger"
    )
    max_new_tokens: int = key(100, "tokens to write at most; ends at the end-of-text token, too")
    temperature: float = key(0.8, "0: always the most likely token; 1: as the model says")
    top_p: float = key(0.95, "draw from the smallest set of tokens that has this probability")
    seed: int = key(42, "seed of the first sample; the next one has the next number")
    num_samples: int = key(1, "texts to write under the same metadata")
    batch_size: int = key(
        16, "texts written, or scored under all candidates, at one time", at_least=1
    )

    compare: list[dict[str, Any]] = key(
        [], "metadata to see side by side from the same seeds, such as [{}, {title: Sets}]"
    )
    interactive: bool = key(False, "read prompts and key=value lines from standard input")
    input: str | None = key(
        None,
        "JSON lines of requests: metadata, prompt, and any key that says how to draw",
        is_path=True,
    )
    output: str | None = key(
        None, "JSON lines to write: the requests with their samples", is_path=True
    )

    type: str = key("url", "attribute: the metadata type to infer")
    candidates: list[str] = key(
        [], "attribute: its values (url: hosts, timestamp: years); []: those of the held-out file"
    )
    prior: str = key(
        "uniform",
        "attribute: of the candidates; empirical: how often each is in the file",
        choices=("uniform", "empirical"),
    )
    windows: str = key(
        "first_piece",
        "attribute: how much of the text is read",
        choices=("first_piece", "all_pieces"),
    )
    validation_file: str | None = key(
        None, "attribute: held-out shard; null: that of the training run", is_path=True
    )
    max_documents: int | None = key(
        None, "attribute: use only the first so many documents", at_least=1
    )
    bootstrap_resamples: int = key(10_000, "attribute: resamples for each interval", at_least=1)
    out_dir: str | None = key(
        None, "attribute: where attribution-{type}.json goes; null: the run folder", is_path=True
    )
