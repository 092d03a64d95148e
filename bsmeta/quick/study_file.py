"""Writes a study of more seeds of both models, because one seed shows no variation over seeds.

It has the pages, sizes and settings of the result, and one claim. The claim does not depend on the
difference that the result has shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bsmeta.api.configuration import list_override_arguments
from bsmeta.config.composing.command_line import format_pasteable_command
from bsmeta.core.files import write_text
from bsmeta.quick.config import QuickConfig
from bsmeta.quick.sizes import Device
from bsmeta.quick.training import WITH, WITHOUT, Data, Plan, list_overrides
from bsmeta.studies.config import OWN_KEYS

STUDY_FILE = "study.yaml"

NUM_SEEDS = 5
"""Number of seeds of the study: enough if the difference varies over seeds by half of its size."""

SMALLEST_SHARE = 0.005
"""Smallest difference of interest, as a share of the bits per byte without metadata."""

_TYPES_KEY = "data_config.metadata_config.metadata_list"


def write_study_file(
    config: QuickConfig, plan: Plan, data: Data, device: Device, folder: Path, bits_per_byte: float
) -> str:
    """Writes `STUDY_FILE`; returns the command that runs it.

    Args:
        bits_per_byte: Bits per byte of the model trained on text alone.
    """
    overrides = list_overrides(config, plan, data, folder, WITH, device.precision)
    shared_overrides = {
        name: value
        for name, value in overrides.items()
        if name not in (*OWN_KEYS, _TYPES_KEY) and value is not None
    }
    arms = {
        WITHOUT: {"label": "text alone", "overrides": list_override_arguments({_TYPES_KEY: []})},
        WITH: {
            "label": ", ".join(data.types),
            "overrides": list_override_arguments({_TYPES_KEY: data.types}),
        },
    }
    claim = {
        "label": "Trained and read with metadata, the model needs fewer bits than without",
        "arm": WITH,
        "metadata": "with",
        "smallest_difference": round(SMALLEST_SHARE * bits_per_byte, 4),
    }
    study: dict[str, Any] = {
        "title": "With and without metadata",
        "out_dir": str(folder / "study"),
        "config": "quick_run",
        "seeds": [config.seed + 1 + number for number in range(NUM_SEEDS)],
        "baseline": WITHOUT,
        "overrides": list_override_arguments(shared_overrides),
        "arms": arms,
        "curve": [1.0],
        "claims": {"metadata": claim},
    }

    file = folder / STUDY_FILE
    command = format_pasteable_command(
        ["bsmeta", "study", str(file)],
        BSMETA_LAUNCH_FILE=device.launch_file,
        BSMETA_PROCESSES="1",
    )
    header = f"# More seeds of the models of this folder; it takes {NUM_SEEDS} times as long:\n#   "
    write_text(file, f"{header}{command}\n{yaml.safe_dump(study, sort_keys=False)}")
    return command
