"""`${from_file:…}`: content of other files, in files and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.config.composing.from_file import Expansion
from bsmeta.core.errors import ConfigurationError

METADATA = "data_config.metadata_config"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config folder whose files name each other."""
    files = {
        "metadata/site.yaml": "metadata_list: [url]\nmax_seq_len: ${oc.env:LENGTH,128}\n"
        "metadata_templates:\n  url: ${from_file:templates/url.txt}\n",
        "templates/url.txt": "At {value}: it's\n\n",
        "lists/steps.json": "[2, 4]",
        "name.txt": "first",
        "nested.yaml": "name: ${from_file:name.txt}-${oc.env:LENGTH,1}\n"
        "inner:\n  - ${from_file:lists/steps.json}\n",
        "round.yaml": "a: ${from_file:about.yaml}\n",
        "about.yaml": "b: ${from_file:round.yaml}\n",
        "number.yaml": "3\n",
        "tagged.yaml": "a: !!python/object/apply:os.system ['true']\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


NOTED: list[Path] = []


def expand(values: Any, folder: Path) -> Any:
    return Expansion(folder, NOTED.append).expand(values, "here")


def test_a_reference_is_replaced_by_the_content_of_its_file(folder: Path) -> None:
    values = {
        "whole": "${from_file:nested.yaml}",
        "text": "<${from_file:name.txt}|${from_file:name.txt}>",
        "plain": ["${oc.env:HOME}", 3, None],
    }
    assert expand(values, folder) == {
        "whole": {"name": "first-${oc.env:LENGTH,1}", "inner": [[2, 4]]},
        "text": "<first|first>",
        "plain": ["${oc.env:HOME}", 3, None],
    }


def test_a_path_may_name_variables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHICH", "steps")
    path = "${from_file:${oc.env:KIND,lists}/${oc.env:WHICH}.json}"
    assert expand(path, folder) == [2, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${from_file:names.txt}", "there is no such file (did you mean name.txt?); expected it"),
        ("${from_file:round.yaml}", "circular from_file reference"),
        ("${from_file:${oc.env:UNSET_NAME}.yaml}", "Environment variable 'UNSET_NAME' not found"),
        ("${from_file:${model_name}.yaml}", "may hold ${oc.env:NAME,default} only"),
        ("${from_file:name.txt", "is not closed"),
        ("a ${from_file:nested.yaml}", "is part of a longer text, but its file contains a dict"),
        ("${from_file:number.yaml}", "holds neither keys and values nor a list"),
    ],
)
def test_a_bad_reference_is_refused(text: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        expand({"key": text}, folder)
    assert message in str(caught.value)
    assert str(caught.value).startswith(("here: key: ", f"{folder}"))


def test_a_file_cannot_make_objects(folder: Path) -> None:
    import yaml

    with pytest.raises(yaml.YAMLError, match="could not determine a constructor"):
        expand("${from_file:tagged.yaml}", folder)


def test_a_reference_on_the_command_line_becomes_a_literal(folder: Path) -> None:
    texts = ["m=${from_file:metadata/site.yaml}", "seed=1"]
    expansion = Expansion(folder, NOTED.append)
    assert [expansion.expand_override(text) for text in texts] == [
        "m={metadata_list: ['url'],max_seq_len: '${oc.env:LENGTH,128}',"
        "metadata_templates: {url: 'At {value}: it\\'s\n'}}",
        "seed=1",
    ]


def test_content_is_typed_and_can_be_overridden(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTH", "64")
    path = folder / "metadata" / "site.yaml"
    text = path.read_text().replace("${from_file:templates", f"${{from_file:{folder}/templates")
    path.write_text(text)
    from_file = f"{METADATA}=${{from_file:{path}}}"
    config = compose_command_line(
        CausalLMConfig, "demo", [from_file, f"{METADATA}.metadata_list=[title]"]
    )
    metadata = config.data_config.metadata_config
    assert (metadata.max_seq_len, metadata.metadata_list) == (64, ["title"])
    assert metadata.metadata_templates == {"url": "At {value}: it's\n"}
    assert metadata.metadata_probability == 0.8  # the demo's, which the file leaves alone
