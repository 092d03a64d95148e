"""Keys that a program does not use in one of its modes are refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bsmeta.config.unused_keys import refuse_unused_keys
from bsmeta.core.errors import ConfigurationError


@dataclass
class ModeConfig:
    mode: str = "text"
    limit: int = 0
    top_k: int = 5


def test_changed_keys_that_the_mode_does_not_use_are_named() -> None:
    with pytest.raises(ConfigurationError) as error:
        refuse_unused_keys(ModeConfig(limit=3, top_k=4), ["mode"], "mode=text")
    assert str(error.value) == "limit, top_k: no effect with mode=text; expected some of mode"


def test_used_keys_and_defaults_are_accepted() -> None:
    refuse_unused_keys(ModeConfig(limit=3), ["mode", "limit"], "mode=text")
