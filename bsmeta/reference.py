"""Generates docs/configuration.md: every key of every entry point, from the schemas.

`python -m bsmeta.reference` (or `make docs`) writes it; a test checks that it is current.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bsmeta.annotate.config import AnnotateConfig, DescriptionsConfig
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.groups import list_group_options
from bsmeta.config.composing.help_page import Key, list_sections
from bsmeta.config.programs.analyzing import AnalyzeConfig
from bsmeta.config.programs.building import BuildConfig
from bsmeta.config.programs.copying import PrepareConfig, StageConfig
from bsmeta.config.programs.downloading import DownloadConfig
from bsmeta.config.programs.entity_table import EntitiesConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.config.programs.generating import GenerateConfig
from bsmeta.config.programs.predicting import PredictConfig
from bsmeta.config.schema import RunConfig
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.quick.config import QuickConfig
from bsmeta.tasks import BUILT_IN

FILE = CONFIG_FOLDER.parent / "docs" / "configuration.md"


def _list_task_schemas() -> Iterator[tuple[str, type[RunConfig], str]]:
    """Yields program, schema and configuration file of each task; shared base classes first."""
    tasks_by_schema: dict[type[RunConfig], list[str]] = {}
    for name, entry in BUILT_IN.items():
        for schema in reversed(entry.config.__mro__):
            is_in_tasks = schema.__module__.startswith("bsmeta.tasks.")
            is_shared = is_in_tasks and issubclass(schema, RunConfig)
            if schema is entry.config or is_shared:
                tasks_by_schema.setdefault(schema, []).append(name)

    for schema, names in tasks_by_schema.items():
        config_name = "v2" if schema is CausalLMConfig else names[0]
        yield f"bsmeta/train.py task={' | '.join(names)}", schema, config_name


PROGRAMS: tuple[tuple[str, type, str], ...] = (
    ("bsmeta/quick.py", QuickConfig, "quick"),
    ("bsmeta/build.py", BuildConfig, "build"),
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
"""Each documented program, its schema, and its configuration file."""

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
| how many processes share a copy of the model under FSDP2 | Hydra (`fsdp_shard_processes`) | \
divides the processes; `parallelism_config` of a launch file is refused |
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
    sections = [INTRODUCTION, _describe_groups(), OWNED_ELSEWHERE]
    for program, schema, config_name in PROGRAMS:
        sections += _describe_program(program, schema, config_name)
    return "\n".join(sections)


def _describe_program(program: str, schema: type, config_name: str) -> Iterator[str]:
    """Yields the heading of a program, then a table for each section with keys of its own."""
    programs = {documented: name for name, documented, _ in PROGRAMS}
    # The nearest base class that is documented itself; its keys are not repeated.
    parent = next((base for base in schema.__mro__[1:] if base in programs), None)
    inherited = f" Every key of `{programs[parent]}`, and:" if parent else ""
    summary = (schema.__doc__ or "").strip().splitlines()[0]
    yield f"## {program}\n\n{summary} Without `--config-name`: `{config_name}`.{inherited}\n"

    inherited_keys = dict(list_sections(parent)) if parent else {}
    for heading, keys in list_sections(schema):
        inherited_names = {key.name for key in inherited_keys.get(heading, ())}
        new_keys = [key for key in keys if key.name not in inherited_names]
        if new_keys:
            yield f"### {heading}\n\n{_make_table(new_keys)}"


def _describe_groups() -> str:
    """Returns the section that lists each configuration group with its choices."""
    lines = ["## Groups", ""]
    lines += ["A choice sets several keys at once; a key on the command line wins over it.", ""]
    lines += ["| group | choices |", "|---|---|"]
    for name, options in list_group_options().items():
        plus = "+" if name == "recipes" else ""
        lines.append(f"| `{plus}{name}=` | {', '.join(f'`{option}`' for option in options)} |")
    return "\n".join([*lines, ""])


def _make_table(keys: list[Key]) -> str:
    """Returns the Markdown table of some keys."""
    lines = ["| key | type | values | default | meaning | owner |", "|---|---|---|---|---|---|"]
    for key in keys:
        owner = "Hydra"
        if key.declaration.deepspeed:
            names = key.declaration.deepspeed.split(", ")
            owner = f"Hydra; {', '.join(f'`{name}`' for name in names)} in the JSON"
        name = key.name.rpartition(".")[2]
        values = f"`{key.declaration.values}`" if key.declaration.values else ""
        cells = [f"`{name}`", f"`{key.type}`", values, f"`{key.default}`", key.meaning, owner]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def main(file: Path = FILE) -> None:
    """Writes docs/configuration.md."""
    file.write_text(format_reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
