"""The tasks that can be trained: packages in this folder with an entry here, or installed ones.

Entries import their functions on first use, so that only the task that runs is imported, and
`train.py --help` only imports its schema.
"""

from __future__ import annotations

from functools import partial

from bsmeta.config.task_entry import TaskEntry, defer_import
from bsmeta.tasks.registry import TaskRegistry

_CAUSAL_LM = "bsmeta.tasks.causal_lm"
_CLASSIFICATION = "bsmeta.tasks.classification"
_DISAMBIGUATION = "bsmeta.tasks.disambiguation"
_SPELLING = "bsmeta.tasks.spelling"

_make_spelling_entry = partial(
    TaskEntry,
    value_problems=defer_import(f"{_SPELLING}.config:find_value_problems"),
    start_problems=defer_import(f"{_SPELLING}.config:find_start_problems"),
    summary=defer_import(f"{_SPELLING}.config:list_summary_rows"),
    notes=defer_import(f"{_SPELLING}.config:list_notes"),
    evaluate=defer_import(f"{_SPELLING}.evaluate:run_evaluation"),
    programs=("evaluate.py", "predict.py"),
    uses=("flag_words",),
    has_epochs=True,
    finishes=True,
)

BUILT_IN: dict[str, TaskEntry] = {
    "causal_lm": TaskEntry(
        schema="bsmeta.config.causal_lm:CausalLMConfig",
        make=defer_import(f"{_CAUSAL_LM}.task:CausalLanguageModel"),
        value_problems=defer_import(f"{_CAUSAL_LM}.checks:find_value_problems"),
        start_problems=defer_import(f"{_CAUSAL_LM}.checks:find_start_problems"),
        summary=defer_import(f"{_CAUSAL_LM}.checks:list_summary_rows"),
        sample_rows=defer_import("bsmeta.data.stream.lost_text:list_lost_text_rows"),
        notes=defer_import(f"{_CAUSAL_LM}.checks:list_notes"),
        start_notes=defer_import(f"{_CAUSAL_LM}.data_rows:list_size_notes"),
        evaluate=defer_import(f"{_CAUSAL_LM}.evaluation.evaluate:run_evaluation"),
        programs=("evaluate.py", "explain.py", "generate.py"),
        is_language_model=True,
        fully_shards=True,
    ),
    "classification": TaskEntry(
        schema=f"{_CLASSIFICATION}.config:ClassificationConfig",
        make=defer_import(f"{_CLASSIFICATION}.task:TextClassifier"),
        value_problems=defer_import(f"{_CLASSIFICATION}.config:find_value_problems"),
        summary=defer_import(f"{_CLASSIFICATION}.config:list_summary_rows"),
        prepare=defer_import(f"{_CLASSIFICATION}.examples:prepare_examples"),
        evaluate=defer_import(f"{_CLASSIFICATION}.evaluate:run_evaluation"),
        programs=("evaluate.py", "predict.py"),
        uses=("predict_label",),
        has_epochs=True,
        finishes=True,
    ),
    "sed_words": _make_spelling_entry(
        schema=f"{_SPELLING}.config:SedWordsConfig",
        make=defer_import(f"{_SPELLING}.task:WordDetection"),
    ),
    "sed_sequence": _make_spelling_entry(
        schema=f"{_SPELLING}.config:SedSequenceConfig",
        make=defer_import(f"{_SPELLING}.task:SequenceDetection"),
    ),
    "sec": _make_spelling_entry(
        schema=f"{_SPELLING}.config:SecConfig",
        make=defer_import(f"{_SPELLING}.correction:make_correction"),
    ),
    "disambiguation": TaskEntry(
        schema=f"{_DISAMBIGUATION}.config:DisambiguationConfig",
        make=defer_import(f"{_DISAMBIGUATION}.task:EntityDisambiguator"),
        value_problems=defer_import(f"{_DISAMBIGUATION}.config:find_value_problems"),
        start_problems=defer_import(f"{_DISAMBIGUATION}.config:find_start_problems"),
        summary=defer_import(f"{_DISAMBIGUATION}.config:list_summary_rows"),
        prepare=defer_import(f"{_DISAMBIGUATION}.task:prepare_data"),
        evaluate=defer_import(f"{_DISAMBIGUATION}.evaluate:run_evaluation"),
        programs=("evaluate.py", "predict.py"),
        uses=("detect_entities", "encode_entities"),
        has_epochs=True,
        finishes=True,
    ),
}
"""The tasks of this package."""

TASKS = TaskRegistry(BUILT_IN)
"""All tasks, with those that other distributions add (`bsmeta.tasks.registry`)."""
