"""Saved configurations are finished values, whoever wrote them: nothing is resolved, or grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import bsmeta
from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.programs.evaluating import EvaluateConfig
from bsmeta.config.saved import (
    MAX_FILE_BYTES,
    escape_interpolations,
    parse_saved,
    read_saved,
    shield_interpolations,
    unshield_interpolations,
)
from bsmeta.config.saved_runs import (
    convert_to_config,
    format_yaml,
    load_resolved,
    read_saved_config,
    read_saved_task,
)
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks import TASKS
from bsmeta.tasks.checkpoints import Location, open_task, read_task, read_training_config
from bsmeta.tasks.classification.config import ClassificationConfig, ClassificationDataConfig
from bsmeta.training.checkpoints.checkpoint import Checkpoint
from bsmeta.training.resuming import find_changed_settings

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLE"
STOLEN = "s3://bucket/${oc.env:AWS_SECRET_ACCESS_KEY}.jsonl.gz"

# Interpolations in OmegaConf's notation, and what surrounds them.
TEXTS = st.lists(
    st.sampled_from(["\\", "$", "{", "}", "${", "oc.env", ":", "HOME", "a", "\ue000", "'", ", "]),
    max_size=12,
).map("".join)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run whose configuration asks for a secret."""
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "config.yaml").write_text(
        f'task: causal_lm\ndata_config: {{validation_file: "{STOLEN}"}}\n'
    )
    return folder


READERS: dict[str, Callable[[Path], object]] = {
    "load_resolved": lambda run: load_resolved(run / "config.yaml", CausalLMConfig),
    "read_saved_config": lambda run: read_saved_config(run / "config.yaml", TASKS, {}),
    "read_saved_task": lambda run: read_saved_task(run / "config.yaml"),
    "open_run": lambda run: bsmeta.open_run(run).config,
    "load": bsmeta.load,
    "open_task": lambda run: open_task(str(run), {}),
    "task_of": lambda run: read_task(Location("", "", run / "config.yaml", run)),
    "training_config": lambda run: read_task(
        Location("", "", None, None), str(run / "config.yaml")
    ),
    "find_changed_settings": lambda run: find_changed_settings(
        Checkpoint(run, 2), CausalLMConfig()
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_an_interpolation_is_refused_by_every_reader(reader: str, run_folder: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        READERS[reader](run_folder)
    assert str(error.value) == (
        "1 problem in the configuration\n"
        f"1. data_config.validation_file in {run_folder / 'config.yaml'}: found "
        '"s3://bucket/${oc.env:AWS_SECRET_ACCESS_KEY}.jsonl.gz", expected a finished value, '
        "because a saved configuration is never resolved.\n"
        r"   Fix: write the value itself; if ${ is part of the text, write \${"
    )


@pytest.mark.parametrize(
    "value",
    [
        "${seed}", "a${oc.env:AWS_SECRET_ACCESS_KEY}", "${from_file:/etc/passwd}", "${x",
        r"\\${oc.env:AWS_SECRET_ACCESS_KEY}", r"\${a${oc.env:AWS_SECRET_ACCESS_KEY}}",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "wrap_value",
    [
        lambda value: {"run_name": value},
        lambda value: {"trackers": [value]},
        lambda value: {"data_config": {"columns": {"text": value}}},
        lambda value: {"data_config": {"sources": [{"name": value}]}},
        lambda value: {"data_config": value},
        lambda value: {"task": value},
    ],
)  # fmt: skip
def test_an_interpolation_is_refused_at_every_position(
    wrap_value: Callable[[str], Any], value: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(wrap_value(value)))
    with pytest.raises(ConfigurationError, match="expected a finished value") as error:
        read_saved_config(tmp_path / "config.yaml", TASKS, {})
    assert SECRET not in str(error.value)


@given(TEXTS)
def test_escaped_texts_round_trip_through_hydra_and_the_parser(text: str) -> None:
    assert OmegaConf.create({"a": escape_interpolations(text)}).a == text
    assert parse_saved(yaml.safe_dump({"a": escape_interpolations(text)}), "file") == {"a": text}
    assert "${" not in shield_interpolations(text)
    assert unshield_interpolations(shield_interpolations({"a": [text]})) == {"a": [text]}


@given(TEXTS)
def test_a_text_is_read_as_hydra_reads_it_or_refused(text: str) -> None:
    try:
        read = parse_saved(yaml.safe_dump({"a": text}), "file")
    except ConfigurationError:
        assert "${" in text
    else:
        assert read == {"a": OmegaConf.create({"a": text}).a}


NINES = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (f"a0: &a0 [x]\n{NINES}\n".encode(), "found an alias, expected the values that it stands"),
        (b"a: &a [*a]\n", "found an alias"),
        (b"a: " + b"[" * 60 + b"]" * 60, "found values that are nested too deeply, expected at mo"),
        (b"[" * 100_000, "found values that are nested too deeply"),
        (b"{a: " * 100_000, "found values that are nested too deeply"),
        (b"seed: " + b"9" * 5000, "found a number that is too long, expected 100 characters"),
        (b"seed: 1" + b":1" * 100_000, "found a number that is too long"),
        (b"seed: 1\nseed: 2\n", "found the key 'seed' a second time, expected each key once"),
        (b"? [a, b]\n: c\n", "found a key that is a list or a mapping, expected a name"),
        (b"? {a: b}\n: c\n", "found a key that is a list or a mapping"),
        (b"<<: {seed: 1}\n", "found a value of type tag:yaml.org,2002:merge"),
        (b"run_name: 2024-01-01\n", "found a value of type tag:yaml.org,2002:timestamp"),
        (b"run_name: !!binary aGk=\n", "found a value of type tag:yaml.org,2002:binary"),
        (b"a: !!python/object/apply:os.system [true]\n", "could not determine a constructor"),
        (b"seed: !!int x\n", "invalid literal for int()"),
        (b"seed: !!int\n", "string index out of range"),
        (b"seed: !!bool x\n", "cannot be read ("),
        (b"a: b: c\n", "mapping values are not allowed here"),
        (b"a: 1\n---\nb: 2\n", "expected a single document"),
        (b"run_name: \xff\n", "'utf-8' codec can't decode byte 0xff"),
        (b"run_name: \x00\n", "special characters are not allowed"),
        (b"- a\n", "found ['a'], expected keys and values"),
        (b"", "found null, expected keys and values"),
        (
            b"#" * (MAX_FILE_BYTES + 1),
            "has 4,194,305 bytes; expected the config of a run, at most 4,194",
        ),
    ],
)
def test_a_file_not_written_by_a_run_is_refused_by_name(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as error:
        read_saved(file)
    assert str(error.value).startswith(f"{file}: ")
    assert reason in str(error.value)


KEYS = st.sampled_from(
    ["seed", "task", "data_config", "trackers", "run_name", "lora", "x", 1, None]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | TEXTS,
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(KEYS, inside, max_size=2),
    max_leaves=6,
)


class Plain(yaml.SafeDumper):
    """Writes each value out, as a run does."""

    def ignore_aliases(self, data: object) -> bool:
        return True


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_values_give_a_configuration_or_a_configuration_error(values: dict[Any, Any]) -> None:
    """No other error is raised."""
    text = yaml.dump(values, Dumper=Plain)
    try:
        config = convert_to_config(parse_saved(text, "file"), CausalLMConfig, "file")
    except ConfigurationError:
        return
    values_again = parse_saved(format_yaml(config), "file")
    assert convert_to_config(values_again, CausalLMConfig, "file") == config


def test_a_run_may_not_write_where_its_configuration_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An evaluation would otherwise write a file of any name, with content of its author."""
    keys = tmp_path / "authorized_keys"
    data = ClassificationDataConfig(csv=str(tmp_path / "t.csv"), database=str(keys))
    config = ClassificationConfig(data_config=data)
    (tmp_path / "config.yaml").write_text(format_yaml(config))
    location = Location("run", "run", tmp_path / "config.yaml", tmp_path)
    evaluation = EvaluateConfig()
    assert (
        read_training_config(evaluation, location, ClassificationConfig).data_config.database
        is None
    )
    assert f"data_config.database={str(keys)!r} does not exist" in caplog.text

    evaluation = EvaluateConfig(overrides={"data_config": {"database": str(keys)}})
    train = read_training_config(evaluation, location, ClassificationConfig)
    assert train.data_config.database == str(keys)
    keys.touch()
    train = read_training_config(EvaluateConfig(), location, ClassificationConfig)
    assert train.data_config.database == str(keys)
