"""Generates text under given metadata, or predicts metadata from text.

python bsmeta/generate.py checkpoint=runs/demo 'metadata={title: Sets}' 'prompt="A set is"'
python bsmeta/generate.py 'compare=[{}, {title: Sets}, {title: Files}]' 'prompt="The"' guidance=1.5
python bsmeta/generate.py input=requests.jsonl output=texts.jsonl
python bsmeta/generate.py interactive=true
python bsmeta/generate.py mode=attribute type=url
"""

from __future__ import annotations

from bsmeta.config.compose import run_entry_point
from bsmeta.config.task_entry import check_program
from bsmeta.config.tools import GenerateConfig
from bsmeta.tasks import TASKS


def main(config: GenerateConfig) -> None:
    """Runs the configured `mode`."""
    # Imported here because transformers takes seconds, and the command line is checked first.
    from bsmeta.tasks.causal_lm.evaluation.checkpoints import OpenedModel
    from bsmeta.tasks.causal_lm.generation.attribute_mode import attribute
    from bsmeta.tasks.causal_lm.generation.text_mode import write
    from bsmeta.tasks.checkpoints import task_of
    from bsmeta.training.locations import locate

    modes = {"text": write, "attribute": attribute}
    location = locate(config.checkpoint)
    check_program("generate.py", task_of(location, config.training_config), TASKS)
    opened = OpenedModel(
        location, config.training_config, config.overrides, precision=config.precision
    )
    modes[config.mode](config, opened)


if __name__ == "__main__":
    run_entry_point(main, GenerateConfig, "generate")
