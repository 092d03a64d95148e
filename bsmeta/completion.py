"""Shell completion of programs, keys, choices of groups and names of configurations.

`bsmeta completion bash` prints a script with all completions, so that completing a word starts no
interpreter. The script must be regenerated after an update of this package.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from bsmeta.config.composing.groups import list_group_options
from bsmeta.core.files import CONFIG_FOLDER
from bsmeta.core.keys import list_key_names
from bsmeta.reference import PROGRAMS as DOCUMENTED

OPTIONS = ("--config-name", "--config-dir", "--help", "--version")

# Filled in with `str.format`, so braces of the shell are doubled.
_BASH_TEMPLATE = r"""# Completion of bsmeta, written by `bsmeta completion {shell}`.
{start}_bsmeta() {{
    local line=${{COMP_LINE:0:COMP_POINT}}
    local word=${{line##* }} program=${{COMP_WORDS[1]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local words
    if [[ $COMP_CWORD -le 1 ]]; then
        words={programs}
    elif [[ $previous == --config-name ]]; then
        words={configurations}
    elif [[ $word == *=* ]]; then
        case ${{word%%=*}} in
{groups}
        esac
    else
        case $program in
{keys}
        esac
    fi
    # bash takes a word apart at its equals sign: the part before it stays.
    compopt +o nospace 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "${{word#*=}}")
    if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
}}
complete -F _bsmeta bsmeta
"""

_SHELL_SETUP = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}
SHELLS = tuple(_SHELL_SETUP)


def format_completion(shell: str, modules: dict[str, str]) -> str:
    """Returns the script that completes the command line of a shell.

    Args:
        shell: One of `SHELLS`.
        modules: The module of each program, or the path of its script, by the program's name.
    """
    configurations = sorted(path.stem for path in CONFIG_FOLDER.glob("*.yaml"))
    group_cases = [
        _format_case(f"{name}|+{name}", options) for name, options in list_group_options().items()
    ]
    program_cases = [
        _format_case(name, _list_completions(module)) for name, module in modules.items()
    ]
    return _BASH_TEMPLATE.format(
        shell=shell,
        start=_SHELL_SETUP[shell],
        programs=_quote_words(modules),
        configurations=_quote_words(configurations),
        groups="\n".join(group_cases),
        keys="\n".join(program_cases),
    )


def _list_completions(module: str) -> list[str]:
    """Lists a program's completions: options, `key=` and `group=`; else only `--help`."""
    schemas = [schema for program, schema, _ in DOCUMENTED if _find_module(program) == module]
    if not schemas:
        return ["--help"]
    names = sorted({name for schema in schemas for name in list_key_names(schema)})
    return [*OPTIONS, *(f"{name}=" for name in [*names, *list_group_options()])]


def _find_module(program: str) -> str:
    """Returns the dotted module of a documented command.

    Args:
        program: `bsmeta/train.py task=…` or `python -m bsmeta.…`.
    """
    script = program.removeprefix("python -m ").partition(" ")[0]
    return script.removesuffix(".py").replace("/", ".")


def _format_case(pattern: str, words: Iterable[str]) -> str:
    """Returns a branch of the shell's `case` that sets the completions."""
    return f"            {pattern}) words={_quote_words(words)} ;;"


def _quote_words(words: Iterable[str]) -> str:
    """Joins words with blanks, and quotes the result as one word of the shell."""
    return shlex.quote(" ".join(words))
