"""The help page: which keys it lists, in which order, and their bounds."""

from __future__ import annotations

import re
from pathlib import Path

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.help_page import MAIN_KEYS, format_help, list_keys, list_sections
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.core.keys import get_declaration, iterate_leaves
from bsmeta.reference import format_reference
from tests.config.program import start


def test_help_and_documentation_show_the_bounds() -> None:
    page, text = format_reference(), format_help(CausalLMConfig, "train.py", "v2")
    assert "| `mixed_precision` | `str` | `no \\| bf16 \\| fp16` | `no` |" in page
    assert "| `adam_beta1` | `float` | `>= 0, < 1` | `0.9` |" in page
    assert "packing: str = best_fit  (best_fit | pad)" in text
    assert {key.name for key in list_keys(CausalLMConfig) if key.declaration.values} == {
        name for name, _, field in iterate_leaves(CausalLMConfig()) if get_declaration(field).values
    }


def test_help_all_names_every_key_and_its_deepspeed_twin(tmp_path: Path) -> None:
    text = start(tmp_path, "--help", "all").stdout
    assert "learning_rate: float = 5e-05" in text
    assert "[DeepSpeed: gradient_accumulation_steps]" in text
    assert "data_config.metadata_config.metadata_list: list[str] = ['html', " in text
    named = [key.name for key in list_keys(CausalLMConfig)]
    assert [name for name in named if f"\n{name}: " not in text] == []
    headings = [heading.replace("`", "") for heading, _ in list_sections(CausalLMConfig)]
    assert [heading for heading in headings if f"\n{heading}\n---" not in text] == []


def test_help_begins_with_the_main_keys(tmp_path: Path) -> None:
    lines = start(tmp_path, "--help").stdout.splitlines()
    named = [line.partition(":")[0] for line in lines if re.match(r"[\w.]+: ", line)]
    assert named[0] == "usage"
    assert tuple(named[1:]) == MAIN_KEYS
    assert len(MAIN_KEYS) == 20
    assert lines[-1].startswith("--help all shows all ")
    assert "data_config.metadata_config (" in lines[-1]


def test_help_of_other_programs_begins_with_their_own_keys() -> None:
    text = format_help(ExplainConfig, "explain.py", "v2", all_keys=False)
    explain_keys, _, rest = text.partition("The keys that most runs set")
    assert "Keys of explain.py\n------------------\ndocument: str | None = null" in explain_keys
    assert "learning_rate" not in explain_keys
    assert "learning_rate" in rest
