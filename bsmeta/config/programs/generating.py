"""Schema of `generate.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bsmeta.config.programs.precision import PRECISIONS
from bsmeta.config.schema import MAX_SEED
from bsmeta.core.keys import key


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """Settings to generate text under given metadata, or to infer the metadata of given text."""

    mode: str = key("text", choices=("text", "attribute"))
    """text: generate under metadata; attribute: infer metadata from text"""
    checkpoint: str = key("runs/demo", is_path=True, takes_addresses=True)
    """a run folder (its model/, else the newest model/ of its checkpoints), a checkpoint folder, a
    folder that from_pretrained loads, the address of a run in a bucket (s3:// or gs://BUCKET/PREFIX)
    or of its checkpoint, or a Hub model as hf://owner/name"""
    training_config: str | None = key(None, is_path=True)
    """config.yaml of the run; null: found beside the model (defaults for a Hub model)"""
    overrides: dict[str, Any] = key({})
    """keys of that configuration to change"""
    precision: str = key("auto", choices=PRECISIONS)
    """auto: bfloat16 on a GPU if the run was trained in bf16"""

    metadata: dict[str, Any] = key({})
    """values of global types, such as {url: 'https://docs.python.org/', title: Sets}; a local type
    can be announced: {html: true}"""
    prompt: str = key("")
    """text to continue (without metadata and prompt, the first word is a guess: training takes no
    loss on it); mode=attribute: the text, instead of a file's"""
    null_metadata: dict[str, Any] = key({})
    """metadata of the context to guide away from"""
    guidance: float = key(1.0, finite=True)
    """scale g in `null + g (metadata - null)` of log-probabilities: 1 plain, above 1 stronger"""
    max_new_tokens: int = key(100, at_least=1)
    """largest number of tokens to generate; the end-of-text token ends a text earlier"""
    temperature: float = key(0.8, at_least=0, finite=True)
    """temperature of sampling (0: always the most likely token)"""
    top_p: float = key(0.95, above=0, at_most=1)
    """probability of the smallest set of tokens to draw from"""
    seed: int = key(42, at_least=0, at_most=MAX_SEED)
    """seed of the first sample; each further sample uses the next number"""
    num_samples: int = key(1, at_least=1)
    """number of texts to generate under the same metadata"""
    batch_size: int = key(16, at_least=1)
    """number of texts to generate, or to score under all candidates, at one time"""

    compare: list[dict[str, Any]] = key([])
    """metadata to compare side by side from the same seeds, such as [{}, {title: Sets}]"""
    interactive: bool = key(False)
    """read prompts and key=value lines from standard input"""
    input: str | None = key(None, is_path=True)
    """file of requests in JSON lines: metadata, prompt, and any key of sampling"""
    output: str | None = key(None, is_path=True, takes_pipes=True)
    """file to write in JSON lines: the requests with their samples"""

    type: str = key("url")
    """attribute: the metadata type to infer"""
    candidates: list[str] = key([])
    """attribute: candidate values (url: hosts, timestamp: years); []: all in the held-out file"""
    prior: str = key("uniform", choices=("uniform", "empirical"))
    """attribute: prior of the candidates; empirical: their frequency in the file"""
    windows: str = key("first_piece", choices=("first_piece", "all_pieces"))
    """attribute: chunks of the text to read"""
    validation_file: str | None = key(None, is_path=True, takes_addresses=True)
    """attribute: held-out shard; null: the training run's"""
    on_training_overlap: str = key("error", choices=("error", "drop"))
    """attribute: reaction to a document of another validation_file than the run's whose text or URL
    is in a training shard of the run; drop: leave it out and count it"""
    overlap_check_gb: float = key(10.0, at_least=0)
    """attribute: size limit in GB of the local training shards to compare with such a file (0: none
    is)"""
    max_documents: int | None = key(None, at_least=1)
    """attribute: number of documents to use, from the first"""
    bootstrap_resamples: int = key(10_000, at_least=1)
    """attribute: resamples for each interval"""
    out_dir: str | None = key(None, is_path=True)
    """attribute: folder of attribution-{type}.json; null: evaluation/ in the run folder (for
    another validation_file than the run's: evaluation-NAME/; evaluation-NAME-FOLDER/ for a second
    file of that name)"""
