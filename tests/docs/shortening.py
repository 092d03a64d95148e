"""Overrides that make the training in a shell block short; the commands stay as they are."""

from __future__ import annotations

import re
from pathlib import Path

LM = (
    "max_train_steps=6 num_warmup_steps=0 eval_steps=0 save_steps=0 trackers=[]"
    " data_config.metadata_config.max_seq_len=64 data_config.window_documents=4"
)
# A configuration, and what makes its training short. The tutorial of disambiguation is as it is.
SHORT = {
    "demo": LM,
    "mine": LM,  # of the tutorial
    "v2": f"{LM} model=llama_tiny gradient_checkpointing=false mixed_precision=no"
    " gradient_accumulation_steps=1 data_config.per_device_train_batch_size=2 eval_documents=2",
    "demo_classification": "num_train_epochs=1 bootstrap_resamples=100",
    "sed_words": "dataset_limits=[200] num_train_epochs=1 bootstrap_resamples=100",
    "sed_sequence": "dataset_limits=[200] num_train_epochs=1 bootstrap_resamples=100",
    "sec": "dataset_limits=[200] num_train_epochs=1 bootstrap_resamples=100",
}
QUICK = "max_train_steps=6 batch_size=2 hidden_size=32 num_layers=1 max_held_out=20"
# The steps of a page whose own numbers of steps make sense only together.
STEPS = {"200": "2", "400": "4", "=40": "=2", "=80": "=2", "save_steps=0": "save_steps=2"}
SHORTER = {"docs/schedules.md": STEPS}
TRAINS = re.compile(r"train\.py|train\.sh|several_machines\.sh|bsmeta train|bsmeta\.train|prepare ")
BUILDS = re.compile(r"bsmeta/build\.py|bsmeta build")
ANSWERS = re.compile(r"bsmeta/quick\.py|bsmeta quick")
NAMED = re.compile(r"(?:--config-name |BSMETA_CONFIG=)(\w+)")
UNCHANGED = re.compile(r"BSMETA_RESUME|check_only|prep_only|--dry-run")


def shorten(code: str, page: str, folder: Path) -> str:
    """Returns the code of a block with paths in `folder` and overrides that shorten training."""
    lines = []
    exported = re.search(r"^export .*BSMETA_CONFIG=(\w+)", code, re.M)
    for line in re.sub(r" *\\\n *", " ", code.replace("/data/", f"{folder}/data/")).splitlines():
        command = re.sub(r" +# .*", "", line)
        named = NAMED.search(command) or (exported if "experiments/" in command else None)
        overrides = SHORT.get(named[1], "") if named else ""
        if TRAINS.search(command) and not UNCHANGED.search(command) and overrides:
            ending = " &" if command.endswith(" &") else ""
            command = f"{command.removesuffix(' &')} {overrides}{ending}"
            for old, new in SHORTER.get(page, {}).items():
                command = command.replace(old, new)
        if ANSWERS.search(command):
            command = f"{command} {QUICK}"
        if BUILDS.search(command):
            command = f"{command} max_texts=600"
        lines.append(command)
    return "\n".join(lines)
