"""The tables of an evaluation."""

from __future__ import annotations

import json

from bsmeta.tasks.causal_lm.evaluation.headline import make_headline
from bsmeta.tasks.causal_lm.evaluation.tables import MAIN_COLUMNS, make_comparison_table
from tests.tasks.causal_lm.evaluation.helpers import make_evaluated


def test_the_table_shows_intervals_over_documents_and_hosts() -> None:
    report = make_evaluated(by_host=False)
    sentences = make_headline(report)
    assert "over 60 documents)" in sentences
    # the hosts differ by 0.4: an error of 0.2 with one degree of freedom, 12.706 of them
    assert (
        "Over the 2 hosts of these documents: -2.7412 to +2.3412, which includes no difference "
        "(cluster=host). 2 hosts are few: intervals over them are wide"
    ) in sentences
    assert json.loads(json.dumps(report.as_dict()))["over_hosts"]["all"]["hosts"] == 2
    assert "bootstraps over documents" in make_comparison_table(report, MAIN_COLUMNS).note
