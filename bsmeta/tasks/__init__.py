"""The tasks that can be trained: each is one module or package (`base.Task`) and one entry here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from bsmeta.config.causal_lm import CausalLMConfig
from bsmeta.config.checks import causal_lm as causal_lm_checks
from bsmeta.config.checks.causal_lm import data_problems
from bsmeta.config.checks.problems import Problem
from bsmeta.config.classification import ClassificationConfig
from bsmeta.config.disambiguation import DisambiguationConfig
from bsmeta.config.schema import RunConfig
from bsmeta.config.spelling import SecConfig, SedSequenceConfig, SedWordsConfig
from bsmeta.config.summary import notes
from bsmeta.config.task_entry import TaskEntry
from bsmeta.data.stream.preview import column_problems, missing_types, type_problems
from bsmeta.metadata.checks import metadata_notes, metadata_problems, row_budget_problems
from bsmeta.tasks.base import Task
from bsmeta.tasks.causal_lm import summary
from bsmeta.tasks.classification import checks as classification_checks
from bsmeta.tasks.disambiguation import checks as disambiguation_checks
from bsmeta.tasks.spelling import checks as spelling_checks


def _causal_lm(config: CausalLMConfig) -> Task:
    # Imported here because transformers takes seconds, and the configuration is checked first.
    from bsmeta.tasks.causal_lm.task import CausalLanguageModel

    return CausalLanguageModel(config)


def _causal_lm_values(config: CausalLMConfig, overridden: Collection[str]) -> Iterator[Problem]:
    yield from metadata_problems(config.data_config.metadata_config)
    yield from row_budget_problems(config.data_config)
    yield from causal_lm_checks.value_problems(config, overridden)
    if not [*data_problems(config.data_config)]:
        yield from column_problems(config.data_config)
        yield from type_problems(config.data_config)


def _causal_lm_notes(config: CausalLMConfig) -> list[str]:
    metadata = config.data_config.metadata_config
    return [*notes(config), *metadata_notes(metadata), *missing_types(config.data_config)]


def _evaluate_causal_lm(config: Any, locations: Sequence[Any], ranks: Any, device: Any) -> None:
    from bsmeta.tasks.causal_lm.evaluate import run

    run(config, locations, ranks, device)


def _classification(config: ClassificationConfig) -> Task:
    from bsmeta.tasks.classification.task import TextClassifier

    return TextClassifier(config)


def _prepare_classification(config: ClassificationConfig) -> bool:
    if config.prep_only:
        from bsmeta.tasks.classification.store import prepare

        prepare(config)
    return config.prep_only


def _evaluate_classifier(config: Any, locations: Sequence[Any], ranks: Any, device: Any) -> None:
    from bsmeta.tasks.classification.evaluate import run

    run(config, locations, ranks, device)


def _sed_words(config: SedWordsConfig) -> Task:
    from bsmeta.tasks.spelling.detection import WordDetection

    return WordDetection(config)


def _sed_sequence(config: SedSequenceConfig) -> Task:
    from bsmeta.tasks.spelling.detection import SequenceDetection

    return SequenceDetection(config)


def _sec(config: SecConfig) -> Task:
    from bsmeta.tasks.spelling.correction import CandidateCorrection
    from bsmeta.tasks.spelling.seq2seq_correction import Seq2SeqCorrection
    from bsmeta.tasks.spelling.table import is_small

    return CandidateCorrection(config) if is_small(config) else Seq2SeqCorrection(config)


def _evaluate_spelling(config: Any, locations: Sequence[Any], ranks: Any, device: Any) -> None:
    from bsmeta.tasks.spelling.evaluate import run

    run(config, locations, ranks, device)


def _spelling(
    config: type[RunConfig], make: Callable[[Any], Task], metrics: tuple[str, ...]
) -> TaskEntry:
    """The entry of a spelling task."""
    return TaskEntry(
        config=config,
        make=make,
        value_problems=spelling_checks.value_problems,
        start_problems=spelling_checks.start_problems,
        summary=spelling_checks.summary_rows,
        notes=spelling_checks.notes,
        evaluate=_evaluate_spelling,
        programs=("evaluate.py", "predict.py"),
        metrics=metrics,
        has_epochs=True,
    )


def _disambiguation(config: DisambiguationConfig) -> Task:
    from bsmeta.tasks.disambiguation.task import EntityDisambiguator

    return EntityDisambiguator(config)


def _evaluate_disambiguator(config: Any, locations: Sequence[Any], ranks: Any, device: Any) -> None:
    from bsmeta.tasks.disambiguation.evaluate import run

    run(config, locations, ranks, device)


def _prepare_disambiguation(config: DisambiguationConfig) -> bool:
    if config.prep_only:
        from bsmeta.tasks.disambiguation.start import prepare

        prepare(config)
    return config.prep_only


TASKS: dict[str, TaskEntry] = {
    "causal_lm": TaskEntry(
        config=CausalLMConfig,
        make=_causal_lm,
        value_problems=_causal_lm_values,
        start_problems=causal_lm_checks.start_problems,
        summary=summary.rows,
        notes=_causal_lm_notes,
        evaluate=_evaluate_causal_lm,
        programs=("evaluate.py", "explain.py", "generate.py"),
        metrics=causal_lm_checks.METRICS,
    ),
    "classification": TaskEntry(
        config=ClassificationConfig,
        make=_classification,
        value_problems=classification_checks.value_problems,
        summary=classification_checks.summary_rows,
        prepare=_prepare_classification,
        evaluate=_evaluate_classifier,
        programs=("evaluate.py", "predict.py"),
        metrics=classification_checks.METRICS,
        has_epochs=True,
    ),
    "sed_words": _spelling(SedWordsConfig, _sed_words, spelling_checks.DETECTION_METRICS),
    "sed_sequence": _spelling(SedSequenceConfig, _sed_sequence, spelling_checks.DETECTION_METRICS),
    "sec": _spelling(SecConfig, _sec, spelling_checks.CORRECTION_METRICS),
    "disambiguation": TaskEntry(
        config=DisambiguationConfig,
        make=_disambiguation,
        value_problems=disambiguation_checks.value_problems,
        summary=disambiguation_checks.summary_rows,
        prepare=_prepare_disambiguation,
        evaluate=_evaluate_disambiguator,
        programs=("evaluate.py", "predict.py"),
        has_epochs=True,
    ),
}
