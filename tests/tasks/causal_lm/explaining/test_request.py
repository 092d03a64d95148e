"""Each request that cannot be met says what is wrong and what would do."""

from __future__ import annotations

import pytest

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.compose import compose
from bsmeta.config.explaining import ExplainConfig
from bsmeta.core.errors import ConfigurationError
from bsmeta.tasks.causal_lm.explaining.selection import Selection
from tests.tasks.causal_lm.explaining.helpers import SHARD, demo, demo_tokenizer


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("document=7", f"document=7: expected <shard>:<number>, such as {SHARD.format(1)}:0"),
        (f"document={SHARD.format(1)}:-1", "expected <shard>:<number>"),
        (
            f"document={SHARD.format(7)}:0",
            f"training reads no shard of the name {SHARD.format(7)}; expected ",
        ),
        (
            f"document={SHARD.format(0)}:0",
            "it is the held-out file; data_config.validation_file=null would not leave it out",
        ),
        (
            "types=[url,author]",
            "types=['url', 'author']: author not in data_config.metadata_config.metadata_list; "
            "expected some of title, url, datasource, website_description, timestamp, entity, or "
            "add to that list",
        ),
        ("types=[website_desc]", "(website_desc is the column of website_description)"),
        ("data_config.packing=tight", 'found "tight", expected one of best_fit, pad'),
    ],
)
def test_what_cannot_be_shown_is_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Selection(demo(override), demo_tokenizer())
    assert told in str(error.value)


def test_the_files_of_training_fit_with_and_without_the_further_keys() -> None:
    assert compose(ExplainConfig, "demo", ["limit=2", "seed=7"]).limit == 2
    assert type(compose(CausalLMConfig, "demo", ["seed=7"])) is CausalLMConfig
    with pytest.raises(ConfigurationError, match="limit"):
        compose(CausalLMConfig, "demo", ["limit=2"])
