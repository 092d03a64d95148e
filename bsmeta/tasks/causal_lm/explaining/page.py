"""Documents as training sees them, as one self-contained HTML page.

The page needs no scripts, fonts or network access.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bsmeta.config.data import describe_train_files
from bsmeta.config.programs.explaining import ExplainConfig
from bsmeta.report.page import format_security_policy, load_template
from bsmeta.report.palette import DARK, LIGHT, list_type_colors
from bsmeta.tasks.causal_lm.explaining.descriptions import (
    describe_document,
    describe_packing,
    select_sequences,
)
from bsmeta.tasks.causal_lm.explaining.windows import ExplainedWindow
from bsmeta.tasks.causal_lm.shown_tokens import TokenTexts


def render_page(
    windows: Sequence[ExplainedWindow], config: ExplainConfig, texts: TokenTexts
) -> str:
    """Returns the page as HTML source."""
    keys = config.data_config.metadata_config.metadata_list
    return load_template("tasks/causal_lm/explaining/explained.html.j2").render(
        windows=windows,
        config=config,
        data=config.data_config,
        files=describe_train_files(config.data_config),
        keys=keys,
        light=LIGHT,
        dark=DARK,
        type_colors=list_type_colors(len(keys)),
        security_policy=format_security_policy(),
        describe_document=partial(describe_document, texts=texts),
        describe_packing=describe_packing,
        select_sequences=select_sequences,
    )
