"""Each statement is an error for a type checker; `test_typing.py` checks that."""

import bsmeta

bsmeta.open_run(5)
bsmeta.load("runs/demo", task="causal")
bsmeta.load("runs/demo", task="causal_lm").generate(["a"], max_tokens=3)
bsmeta.load("runs/demo", task="sec").predict([5])
bsmeta.stream("demo", rank="0")
bsmeta.laod("runs/demo")
