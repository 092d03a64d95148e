"""The tasks that can be trained: each is one package and one entry here.

Only the schemas are imported, so that `train.py --help` answers at once; the rest of a task is
imported when it is first called.
"""

from __future__ import annotations

from functools import partial

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.task_entry import TaskEntry, imported
from bsmeta.tasks.classification.config import ClassificationConfig
from bsmeta.tasks.disambiguation.config import DisambiguationConfig
from bsmeta.tasks.spelling.config import SecConfig, SedSequenceConfig, SedWordsConfig

_CAUSAL_LM = "bsmeta.tasks.causal_lm"
_CLASSIFICATION = "bsmeta.tasks.classification"
_DISAMBIGUATION = "bsmeta.tasks.disambiguation"
_SPELLING = "bsmeta.tasks.spelling"

_spelling = partial(
    TaskEntry,
    value_problems=imported(f"{_SPELLING}.checks:value_problems"),
    start_problems=imported(f"{_SPELLING}.checks:start_problems"),
    summary=imported(f"{_SPELLING}.checks:summary_rows"),
    notes=imported(f"{_SPELLING}.checks:notes"),
    evaluate=imported(f"{_SPELLING}.evaluate:run"),
    programs=("evaluate.py", "predict.py"),
    has_epochs=True,
    finishes=True,
)

TASKS: dict[str, TaskEntry] = {
    "causal_lm": TaskEntry(
        config=CausalLMConfig,
        make=imported(f"{_CAUSAL_LM}.task:CausalLanguageModel"),
        value_problems=imported(f"{_CAUSAL_LM}.checks:value_problems"),
        start_problems=imported(f"{_CAUSAL_LM}.checks:start_problems"),
        summary=imported(f"{_CAUSAL_LM}.checks:summary_rows"),
        notes=imported(f"{_CAUSAL_LM}.checks:notes"),
        evaluate=imported(f"{_CAUSAL_LM}.evaluation.run:run"),
        programs=("evaluate.py", "explain.py", "generate.py"),
        fully_shards=True,
    ),
    "classification": TaskEntry(
        config=ClassificationConfig,
        make=imported(f"{_CLASSIFICATION}.task:TextClassifier"),
        value_problems=imported(f"{_CLASSIFICATION}.checks:value_problems"),
        summary=imported(f"{_CLASSIFICATION}.checks:summary_rows"),
        prepare=imported(f"{_CLASSIFICATION}.store:prepare"),
        evaluate=imported(f"{_CLASSIFICATION}.evaluate:run"),
        programs=("evaluate.py", "predict.py"),
        has_epochs=True,
        finishes=True,
    ),
    "sed_words": _spelling(
        config=SedWordsConfig,
        make=imported(f"{_SPELLING}.detection:WordDetection"),
    ),
    "sed_sequence": _spelling(
        config=SedSequenceConfig,
        make=imported(f"{_SPELLING}.detection:SequenceDetection"),
    ),
    "sec": _spelling(
        config=SecConfig,
        make=imported(f"{_SPELLING}.correction:make_correction"),
    ),
    "disambiguation": TaskEntry(
        config=DisambiguationConfig,
        make=imported(f"{_DISAMBIGUATION}.task:EntityDisambiguator"),
        value_problems=imported(f"{_DISAMBIGUATION}.checks:value_problems"),
        start_problems=imported(f"{_DISAMBIGUATION}.checks:start_problems"),
        summary=imported(f"{_DISAMBIGUATION}.checks:summary_rows"),
        prepare=imported(f"{_DISAMBIGUATION}.task:prepare"),
        evaluate=imported(f"{_DISAMBIGUATION}.evaluate:run"),
        programs=("evaluate.py", "predict.py"),
        has_epochs=True,
        finishes=True,
    ),
}
