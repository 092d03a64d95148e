"""Writes text under given metadata, or tells metadata from text.

python bsmeta/generate.py checkpoint=runs/demo 'metadata={title: Sets}' 'prompt="A set is"'
python bsmeta/generate.py 'compare=[{}, {title: Sets}, {title: Files}]' 'prompt="The"' guidance=1.5
python bsmeta/generate.py input=requests.jsonl output=texts.jsonl
python bsmeta/generate.py interactive=true
python bsmeta/generate.py mode=attribute type=url
"""

from __future__ import annotations

import os
import sys

from bsmeta.config.checks.bounds import refuse_out_of_bounds
from bsmeta.config.compose import run_entry_point
from bsmeta.config.generation import GenerateConfig


def main(config: GenerateConfig) -> None:
    """Does what `mode` says."""
    # Imported here: transformers takes seconds, and the command line is checked before.
    from bsmeta.generation.attributing import attribute
    from bsmeta.generation.writing import write

    modes = {"text": write, "attribute": attribute}
    refuse_out_of_bounds(config)
    try:
        modes[config.mode](config)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    run_entry_point(main, GenerateConfig, "generate")
