"""Generates docs/configuration.md: every key of every entry point, from the schemas.

`python -m bsmeta.reference` (or `make docs`) writes it; a test checks that it is current.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bsmeta.annotate.config import AnnotateConfig, DescriptionsConfig
from bsmeta.config.analyzing import AnalyzeConfig
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.copying import PrepareConfig, StageConfig
from bsmeta.config.downloading import DownloadConfig
from bsmeta.config.entity_table import EntitiesConfig
from bsmeta.config.evaluating import EvaluateConfig
from bsmeta.config.explaining import ExplainConfig
from bsmeta.config.generating import GenerateConfig
from bsmeta.config.groups import list_group_options
from bsmeta.config.help_page import Key, list_sections
from bsmeta.config.predicting import PredictConfig
from bsmeta.config.schema import RunConfig
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.quick.config import QuickConfig
from bsmeta.tasks import BUILT_IN

FILE = CONFIG_FOLDER.parent / "docs" / "configuration.md"


def _list_task_schemas() -> Iterator[tuple[str, type[RunConfig], str]]:
    """Yields the schemas of the tasks, each after those that it shares with other tasks."""
    users: dict[type[RunConfig], list[str]] = {}
    for name, entry in BUILT_IN.items():
        for schema in reversed(entry.config.__mro__):
            is_shared = issubclass(schema, RunConfig) and schema.__module__.startswith(
                "bsmeta.tasks."
            )
            if schema is entry.config or is_shared:
                users.setdefault(schema, []).append(name)
    for schema, names in users.items():
        config_name = "v2" if schema is CausalLMConfig else names[0]
        yield f"bsmeta/train.py task={' | '.join(names)}", schema, config_name


# Program, its schema, and its configuration file.
PROGRAMS: tuple[tuple[str, type, str], ...] = (
    ("bsmeta/quick.py", QuickConfig, "quick"),
    ("bsmeta/train.py", RunConfig, "v2"),
    *_list_task_schemas(),
    ("bsmeta/evaluate.py", EvaluateConfig, "evaluate"),
    ("bsmeta/explain.py", ExplainConfig, "v2"),
    ("bsmeta/generate.py", GenerateConfig, "generate"),
    ("bsmeta/predict.py", PredictConfig, "predict"),
    ("bsmeta/analyze.py", AnalyzeConfig, "analyze"),
    ("bsmeta/download.py", DownloadConfig, "download"),
    ("bsmeta/entities.py", EntitiesConfig, "entities"),
    ("bsmeta/annotate.py", AnnotateConfig, "annotate"),
    ("python -m bsmeta.annotate.descriptions", DescriptionsConfig, "descriptions"),
    ("python -m bsmeta.data.prepare", PrepareConfig, "v2"),
    ("python -m bsmeta.data.stage", StageConfig, "v2"),
)

INTRODUCTION = """# Configuration

Written by `make docs` from the schemas; `--help all` prints the same.

Every key can stand in a YAML file of `hydra_configs/` (or of a folder of yours: `--config-dir \
FOLDER --config-name NAME`; its files win over the project's of the same name) and on the command \
line (`key=value`). A `~` at the beginning of a path is expanded. **Hydra owns every value.** \
Where the column *owner* names a key of the DeepSpeed JSON, that key says `"auto"` or the same \
value; anything else ends the run with exit code 2 before anything is loaded.

A value may hold

| form | gives |
|---|---|
| `${other.key}` | the value of another key |
| `${oc.env:NAME,default}` | an environment variable, in the type of the key (lists and mappings \
as YAML: `TYPES='[url, title]'`); without a default it must be set |
| `${from_file:PATH}` | the content of a YAML or JSON file, or the text of any other; PATH begins \
in the config folder and may hold `${oc.env:…}`; files may name files |
| `${repo:PATH}` | a path inside this repository |
| `${share:0.05,${max_train_steps}}` | a share of a number, rounded |
"""

OWNED_ELSEWHERE = """## What is not Hydra's

| value | owner | checked against Hydra |
|---|---|---|
| number of processes and machines | the launch: `accelerate launch --num_processes`, `torchrun` | \
batch arithmetic, streams, GPUs of the machine; `BSMETA_WORLD_SIZE`, where it is set |
| ZeRO stage, offload, bucket sizes | `zero_optimization` of the DeepSpeed JSON | stage and what \
is saved, ZeRO-3 initialization, offload and devices |
| whether FSDP2 frees the weights of a layer after its forward pass | `fsdp_reshard_after_forward` \
of the launch file | all other fields of `fsdp_config`: version 2, and nothing else about \
recomputation, loading or what is saved |
| which DeepSpeed JSON | the launch file (`deepspeed_config_file`) | that it is there, whole and \
known |
| precision, accumulation, clipping, compiler | Hydra; a launch file or the environment may repeat \
them | they must be equal |
"""


def format_reference() -> str:
    """Returns the Markdown of docs/configuration.md."""
    parts = [INTRODUCTION, _describe_groups(), OWNED_ELSEWHERE]
    programs = {schema: program for program, schema, _ in PROGRAMS}
    for program, schema, config_name in PROGRAMS:
        # The nearest base class that has a section of its own.
        parent = next((base for base in schema.__mro__[1:] if base in programs), None)
        inherited = f" Every key of `{programs[parent]}`, and:" if parent else ""
        summary = (schema.__doc__ or "").strip().splitlines()[0]
        parts.append(
            f"## {program}\n\n{summary} Without `--config-name`: `{config_name}`.{inherited}\n"
        )
        inherited_keys = dict(list_sections(parent)) if parent else {}
        for heading, keys in list_sections(schema):
            inherited_names = {key.name for key in inherited_keys.get(heading, ())}
            own_keys = [key for key in keys if key.name not in inherited_names]
            if own_keys:
                parts.append(f"### {heading}\n\n{_make_table(own_keys)}")
    return "\n".join(parts)


def _describe_groups() -> str:
    lines = ["## Groups", ""]
    lines += ["A choice sets several keys at once; a key on the command line wins over it.", ""]
    lines += ["| group | choices |", "|---|---|"]
    for name, options in list_group_options().items():
        plus = "+" if name == "recipes" else ""
        lines.append(f"| `{plus}{name}=` | {', '.join(f'`{option}`' for option in options)} |")
    return "\n".join([*lines, ""])


def _make_table(keys: list[Key]) -> str:
    lines = ["| key | type | values | default | meaning | owner |", "|---|---|---|---|---|---|"]
    for key in keys:
        twins = ", ".join(f"`{twin}`" for twin in (key.about.deepspeed or "").split(", ") if twin)
        owner = f"Hydra; {twins} in the JSON" if twins else "Hydra"
        name = key.name.rpartition(".")[2]
        values = f"`{key.about.values}`" if key.about.values else ""
        cells = [f"`{name}`", f"`{key.type}`", values, f"`{key.default}`", key.meaning, owner]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def main(file: Path = FILE) -> None:
    """Writes the page."""
    file.write_text(format_reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
