"""The console command: `bsmeta train --config-name demo`, `bsmeta evaluate checkpoint=runs/demo`, …

`python -m bsmeta` is the same. Each program is also a script of the repository
(`python bsmeta/train.py`) or a module, of which a launcher starts several processes:
`accelerate launch … -m bsmeta.train`.
"""

from __future__ import annotations

import runpy
import shlex
import shutil
import sys
from pathlib import Path

from bsmeta.core.errors import ConfigurationError, find_similar
from bsmeta.core.files import ROOT
from bsmeta.core.process import run_and_report
from bsmeta.core.versions import format_versions

PROGRAMS = {
    "quick": ("bsmeta.quick", "answer for a file of pages: does their metadata help a model?"),
    "build": (
        "bsmeta.build",
        "train ready-made models on the shipped texts: bsmeta build spelling",
    ),
    "train": ("bsmeta.train", "train a language model with metadata, or the model of another task"),
    "evaluate": ("bsmeta.evaluate", "evaluate trained models on held-out data"),
    "explain": ("bsmeta.explain", "show documents as the model sees them: tokens, masks, loss"),
    "generate": (
        "bsmeta.generate",
        "generate text under given metadata, or predict metadata from text",
    ),
    "predict": (
        "bsmeta.predict",
        "apply a classifier, disambiguator, detector or corrector to new texts",
    ),
    "analyze": (
        "bsmeta.analyze",
        "analyze and compare the predictions of classifiers from their result files",
    ),
    "annotate": ("bsmeta.annotate", "turn raw pages into shards of text with metadata"),
    "descriptions": (
        "bsmeta.annotate.descriptions",
        "make the table of website descriptions from a dump of Wikipedia",
    ),
    "prepare": ("bsmeta.data.prepare", "make the training sequences of a run ahead"),
    "stage": ("bsmeta.data.stage", "copy the data of a run to a disk, resumable and verified"),
    "index": ("bsmeta.data.io.lines", "make the access points of compressed shards ahead"),
    "entities": ("bsmeta.entities", "build the table of entities of a disambiguator"),
    "convert": (
        "bsmeta.tasks.disambiguation.converter",
        "turn a configuration of Bootleg into one for train",
    ),
    "download": ("bsmeta.download", "download, verify and unpack the files of a manifest"),
    "study": ("experiments/study.py", "train arms x seeds, compare them, and write the report"),
    "sweep": ("experiments/hpsearch/sweep.py", "train with each combination of some values"),
    "downstream": ("experiments/downstream.py", "run tasks of lm-evaluation-harness on a model"),
    "spelling-tests": (
        "experiments/spelling_test_set.py",
        "make test sets of the spelling tasks from correct texts",
    ),
}
"""Module (or script below ROOT) and description of each program, by its name."""

FILE_COMMANDS = {
    "configs": "list the configurations, groups, launch files and studies that are installed",
    "init": "copy them, and the examples, into a folder (default: this one)",
    "completion": "print the script that completes words in a shell: completion bash | zsh",
}
"""Description of each command on the installed files, by its name."""

# What `configs` lists and `init` copies, below ROOT.
FOLDERS = ("hydra_configs", "deepspeed_configs", "experiments", "examples")

_USAGE_FOOTER = """\
bsmeta PROGRAM --help lists the keys of a program; bsmeta --version prints the versions that a bug
report needs. Several processes:
  accelerate launch --config_file FILE -m bsmeta.train --config-name NAME key=value ..."""


def main() -> None:
    """Runs the program named by the first command-line argument, with the other arguments."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    arguments = sys.argv[2:]
    if name in PROGRAMS:
        sys.argv = [f"bsmeta {name}", *arguments]
        target, _ = PROGRAMS[name]
        if target.endswith(".py"):
            sys.path.insert(0, str((ROOT / target).parent))  # as for a script
            runpy.run_path(str(ROOT / target), run_name="__main__")
        else:
            runpy.run_module(target, run_name="__main__")
    else:
        sys.exit(run_and_report(lambda: _run_command(name, arguments)))


def describe_usage() -> str:
    """Returns the usage message, with one line for each program and file command."""
    descriptions = {name: description for name, (_, description) in PROGRAMS.items()}
    descriptions |= FILE_COMMANDS
    width = max(len(name) for name in descriptions) + 2
    lines = [f"  bsmeta {name:<{width}}{text}" for name, text in descriptions.items()]
    return "\n".join(["usage: bsmeta PROGRAM key=value ...", "", *lines, "", _USAGE_FOOTER])


def _run_command(name: str, arguments: list[str]) -> None:
    """Runs a command that is not a program, such as `bsmeta configs`; refuses unknown ones."""
    names_one_folder = len(arguments) == 1 and not arguments[0].startswith("-")
    if name == "--version":
        print(format_versions())
    elif not {name, *arguments}.isdisjoint({"-h", "--help"}):
        print(describe_usage())
    elif name == "configs" and not arguments:
        print(list_files())
    elif name == "completion" and len(arguments) == 1:
        print(make_shell_completion(arguments[0]), end="")
    elif name == "init" and (not arguments or names_one_folder):
        print(copy_files(Path(arguments[0] if arguments else ".")))
    else:
        command = " ".join(["bsmeta", name, *arguments])
        similar_name = find_similar(name, [*PROGRAMS, *FILE_COMMANDS])
        if similar_name is not None and similar_name != name:
            fix = shlex.join(["bsmeta", similar_name, *arguments])
            raise ConfigurationError(f"{command}: there is no program {name}; meant: {fix}")
        raise ConfigurationError(f"{command}: expected\n{describe_usage()}")


def make_shell_completion(shell: str) -> str:
    """Returns the script that completes the words of a command line.

    Raises:
        ConfigurationError: If the shell is not supported.
    """
    from bsmeta.completion import SHELLS, format_completion  # imports the schemas of all programs

    if shell not in SHELLS:
        raise ConfigurationError(f"bsmeta completion {shell}: expected {' or '.join(SHELLS)}")
    modules = {name: module for name, (module, _) in PROGRAMS.items()}
    return format_completion(shell, {**modules, **dict.fromkeys(FILE_COMMANDS, "")})


def list_files() -> str:
    """Returns a listing of the installed files: their root, then a line for each folder."""
    patterns = (
        "hydra_configs/*.yaml",
        "hydra_configs/*/*.yaml",
        "deepspeed_configs/*.json",
        "experiments/accelerate/*.yaml",
        "experiments/studies/*.yaml",
    )
    lines = [f"{ROOT}:"]
    for pattern in patterns:
        names_by_folder: dict[str, list[str]] = {}
        for path in sorted(ROOT.glob(pattern)):
            folder = str(path.parent.relative_to(ROOT))
            names_by_folder.setdefault(folder, []).append(path.name)
        lines += [f"  {folder}/  {' '.join(names)}" for folder, names in names_by_folder.items()]
    return "\n".join(lines)


def copy_files(folder: Path) -> str:
    """Copies `FOLDERS` into `folder`, without overwriting any; returns a message.

    Raises:
        ConfigurationError: If one of the folders exists, or cannot be written.
    """
    existing = [name for name in FOLDERS if (folder / name).exists()]
    if existing:
        raise ConfigurationError(
            f"bsmeta init {folder}: {', '.join(existing)} exist already; name another folder, or "
            "delete them"
        )
    if any(folder.resolve().is_relative_to(ROOT / name) for name in FOLDERS):
        raise ConfigurationError(
            f"bsmeta init {folder}: is in the folder that it would copy; name another folder"
        )

    try:
        for name in FOLDERS:
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
    except shutil.Error as error:  # one entry for each file; the first suffices
        (_, target, reason), *_ = error.args[0]
        raise ConfigurationError(f"bsmeta init {folder}: {target}: {reason}") from error
    except OSError as error:
        raise ConfigurationError(f"bsmeta init {folder}: {error}") from error

    return f"copied {', '.join(FOLDERS)} to {folder.resolve()}"


if __name__ == "__main__":
    main()
