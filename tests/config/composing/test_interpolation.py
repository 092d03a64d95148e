"""Values from the environment: typed by their field, and named where they are wrong or missing."""

from __future__ import annotations

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.composing.compose import compose_command_line
from bsmeta.core.errors import ConfigurationError

METADATA = "data_config.metadata_config"


def test_a_variable_gets_the_type_of_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"N": "8", "TYPES": "[url, title]", "W": "{url: 2}", "ON": "true"}.items():
        monkeypatch.setenv(name, text)
    config = compose_command_line(
        CausalLMConfig,
        "causal_lm_config",
        [
            "gradient_accumulation_steps=${oc.env:N}",
            "learning_rate=${oc.env:N}",
            "run_name=run-${oc.env:N}",
            "log_documents=${oc.env:ON}",
            "max_train_steps=${oc.env:UNSET_STEPS,4096}",
            "keep_best_by=${oc.env:UNSET_FIGURE,null}",
            "extra_steps_to_eval_save_at=[1,${oc.env:N}]",
            f"{METADATA}.metadata_list=${{oc.env:TYPES}}",
            f"{METADATA}.random_sample_metadata_weights=${{oc.env:W}}",
            "eval_steps=${max_train_steps}",
        ],
    )
    values = [config.gradient_accumulation_steps, config.learning_rate, config.run_name]
    values += [config.log_documents, config.max_train_steps, config.keep_best_by]
    assert values == [8, 8.0, "run-8", True, 4096, None]
    assert type(config.gradient_accumulation_steps) is int
    assert config.extra_steps_to_eval_save_at == [1, 8]
    metadata = config.data_config.metadata_config
    assert metadata.metadata_list == ["url", "title"]
    assert metadata.random_sample_metadata_weights == {"url": 2.0}
    assert config.eval_steps == 4096


def test_every_wrong_value_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EIGHT", "eight")
    with pytest.raises(ConfigurationError) as caught:
        compose_command_line(
            CausalLMConfig,
            "causal_lm_config",
            [
                "gradient_accumulation_steps=${oc.env:EIGHT}",
                "out_dir=${oc.env:UNSET_FOLDER}/x",
                f"{METADATA}.metadata_list=${{oc.env:EIGHT}}",
                "extra_steps_to_eval_save_at=[${oc.env:EIGHT},${oc.env:UNSET_STEP},3]",
                "model_name=${tokenizer_nam}",
            ],
        )
    assert str(caught.value).startswith("6 problems in the configuration\n")
    expected_parts = {
        "gradient_accumulation_steps": (
            "EIGHT=eight, expected a value of type int",
            "export EIGHT",
        ),
        "out_dir": (
            "the environment has no UNSET_FOLDER",
            "export UNSET_FOLDER=…, or pass out_dir",
        ),
        f"{METADATA}.metadata_list": ("expected a value of type list[str]", "export EIGHT"),
        "extra_steps_to_eval_save_at.0": ("EIGHT=eight", "export EIGHT"),
        "extra_steps_to_eval_save_at.1": ("no UNSET_STEP", "export UNSET_STEP"),
        "model_name": ("Interpolation key 'tokenizer_nam' not found", "pass model_name"),
    }
    blocks = {
        block.split(" ", 2)[1]: block
        for block in str(caught.value).replace("\n   Fix", " Fix").splitlines()[1:]
    }
    assert set(blocks) == set(expected_parts)
    for key, parts in expected_parts.items():
        assert all(part in blocks[key] for part in parts), blocks[key]
