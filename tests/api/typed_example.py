"""What a type checker knows about the interface; `test_typing.py` checks it."""

from __future__ import annotations

from typing import Any, assert_type

import bsmeta


def use(folder: str) -> None:
    run = bsmeta.open_run(folder)
    assert_type(run, bsmeta.Run)
    assert_type(run.status().step, int)
    assert_type(run.metrics("step"), list[dict[str, Any]])
    assert_type(bsmeta.load(run), bsmeta.Model)
    assert_type(bsmeta.load(run, "sec"), bsmeta.Predictor)
    model = bsmeta.load(folder, task="causal_lm", device="cpu")
    assert_type(model, bsmeta.LanguageModel)
    (score,) = model.score(["a text", {"text": "a", "metadata": {"url": "https://a.org"}}])
    assert_type(score.bits_per_byte, float)
    (result,) = model.generate(["a"], max_new_tokens=3, temperature=0.5)
    assert_type(result.samples[0].text, str)
    assert_type(bsmeta.render("a", {"title": "b"}).text, str)
    stream = bsmeta.stream("demo", {"seed": 1})
    for batch in stream:
        assert_type(batch.weight, float)
        stream.load_state_dict(stream.state_dict())
