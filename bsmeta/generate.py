"""Generates text under given metadata, or predicts metadata from text.

python bsmeta/generate.py checkpoint=runs/demo 'metadata={title: Sets}' 'prompt="A set is"'
python bsmeta/generate.py 'compare=[{}, {title: Sets}, {title: Files}]' 'prompt="The"' guidance=1.5
python bsmeta/generate.py input=requests.jsonl output=texts.jsonl
python bsmeta/generate.py interactive=true
python bsmeta/generate.py mode=attribute type=url
"""

from __future__ import annotations

from bsmeta.config.entry_point import run_entry_point
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.config.task_entry import check_program
from bsmeta.config.unused_keys import refuse_unused_keys
from bsmeta.tasks import TASKS

_SHARED_KEYS = (
    "mode", "checkpoint", "training_config", "overrides", "precision", "prompt", "seed",
    "batch_size",
)  # fmt: skip
KEYS = {
    "text": (
        *_SHARED_KEYS, "metadata", "null_metadata", "guidance", "max_new_tokens", "temperature",
        "top_p", "num_samples", "compare", "interactive", "input", "output",
    ),
    "attribute": (
        *_SHARED_KEYS, "type", "candidates", "prior", "windows", "validation_file",
        "on_training_overlap", "overlap_check_gb", "max_documents", "bootstrap_resamples",
        "out_dir",
    ),
}  # fmt: skip
"""The keys that have an effect in each mode."""


def main(config: GenerateConfig) -> None:
    """Runs the configured `mode`."""
    refuse_unused_keys(config, KEYS[config.mode], f"mode={config.mode}")

    # Imported here because transformers takes seconds, and the command line is checked first.
    from bsmeta.tasks.causal_lm.checkpoints import OpenedModel
    from bsmeta.tasks.causal_lm.generation.attribute_mode import infer_metadata
    from bsmeta.tasks.causal_lm.generation.text_mode import write_texts
    from bsmeta.tasks.checkpoints import locate_model, read_task

    location = locate_model(config.checkpoint)
    check_program("generate.py", read_task(location, config.training_config), TASKS)
    opened = OpenedModel(
        location, config.training_config, config.overrides, precision=config.precision
    )
    run_mode = {"text": write_texts, "attribute": infer_metadata}[config.mode]
    run_mode(config, opened)


if __name__ == "__main__":
    run_entry_point(main, GenerateConfig, "generate")
