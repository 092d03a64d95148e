"""The configurations of the spelling tasks `sed_words`, `sed_sequence` and `sec`.

The module has the schemas, the checks of their values, and the rows of the start-up table. The
tasks share their data, noise and batches, and differ in the predictions of the model.
"""

from __future__ import annotations

import glob
import math
import os
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, cast

from bsmeta.config.checks.paths import describe_missing_file, find_model_problems
from bsmeta.config.composing.composition import EMPTY_COMPOSITION, Composition
from bsmeta.config.launch import Launch
from bsmeta.config.schema import RunConfig
from bsmeta.config.task_entry import Row
from bsmeta.core.errors import HYDRA, MISSING, Problem, format_value, look_up
from bsmeta.core.keys import find_bound_problems, inherit_key, key
from bsmeta.core.rounding import round_up_to_multiple

# Packages whose lists of misspellings, or of words with counts, can be named.
CODESPELL = "codespell"
SYMSPELLPY = "symspellpy"
WORDFREQ = "wordfreq"

MIN_PART_TOKENS = 512
"""Minimum of the tokens of a step for each process, as in the published system."""

MAX_SHARES = 64  # limit on the parts of a step, unless batch_shares is set

CORRECTION = "correction.json"
"""File in the folder of a model of `sec`: the probability thresholds of its corrections, by kind
of word (null: 0.5).
"""

VARIANTS = {
    "SED_WORDS": "sed_words",
    "SED_SEQUENCE": "sed_sequence",
    "SEC_NMT": "sec",
    "SEC_WORDS_NMT": "sec",
}
"""Published `variant.type` -> task."""

SCHEDULES = ("LINEAR_WITH_WARMUP", "CONSTANT_WITH_WARMUP", "COSINE_WITH_WARMUP")
"""Published `lr_scheduler.type`s that are schedules here, too."""

_VARIANT = "document.variant.type"
_PUBLISHED_NOISE = "document.variant.preprocessing"


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """The errors that clean text gets, drawn again for each sample and epoch."""

    method: str = key("mixed", choices=("artificial", "realistic", "mixed"))
    """artificial: letters inserted, deleted, swapped or replaced; realistic: known misspellings;
    mixed: either"""
    word_probability: float = key(0.2, at_least=0, at_most=1)
    """probability that a word is edited"""
    artificial_share: float = key(0.2, at_least=0, at_most=1)
    """mixed: share of the edited words with artificial errors"""
    edit_probability: float = key(0.8, above=0, at_most=1)
    """artificial: p of the geometric distribution of the edits of a word"""
    letters: str = key(string.ascii_letters)
    """artificial: the letters that are inserted, or replace others"""
    clean_share: float = key(0.0, at_least=0, below=1)
    """share of the samples without errors"""
    misspellings: str = key(CODESPELL, is_path=True)
    """misspellings of words: codespell (the dictionary of that package), or a JSON file
    {word: [misspelling, …]}"""
    lost_case: float = key(0.0, at_least=0, at_most=1)
    """realistic: probability that a misspelled word is in lower case, as lists of misspellings
    are"""
    accent_share: float = key(0.0, at_least=0, at_most=1)
    """realistic: share of the errors in which a letter gets an accent"""
    slip_share: float = key(0.0, at_least=0, at_most=1)
    """realistic: share of the errors that are slips: random edits with lower-case letters"""
    slip_probability: float = key(0.55, above=0, at_most=1)
    """slips: p of the geometric distribution of the edits of a word"""
    learned_characters: bool = key(True)
    """edit words without known misspellings like words with them, with edits counted by letter"""


@dataclass(frozen=True, kw_only=True)
class SmallModelConfig:
    """The small model, which scores the candidates of each word, where no model is named."""

    width: int = key(64, at_least=8)
    """width of every layer"""
    layers: int = key(1, at_least=0)
    """layers of the transformer over the words of a text"""
    heads: int = key(4, at_least=1)
    """attention heads; they must divide width"""
    dropout: float = key(0.1, at_least=0, below=1)
    """dropout"""
    context_width: int = key(96, at_least=0)
    """width of the language model that scores candidates between their neighbors, trained on the
    counted texts (0: none)"""


@dataclass(frozen=True, kw_only=True)
class SpellingConfig(RunConfig):
    """The configuration that all spelling tasks share."""

    training_data_key: ClassVar[str] = "datasets"

    document: dict[str, Any] = key({}, heading="Data")
    """a configuration file of the published system, for ${document.KEY} in the keys below"""
    datasets: list[str] = key([], is_path=True)
    """texts to train on: files, folders or globs of .txt (one text a line), .jsonl (also .gz)"""
    dataset_limits: list[int] = key([], at_least=1)
    """number of samples to use of each of the datasets; []: all"""
    val_splits: list[float] = key([0.05], at_least=0, finite=True)
    """samples of each data set to validate on: a number from 1, or a share below 1 (completed to
    whole texts); one value for all, or one for each"""
    text_column: str = key("auto")
    """key of the text in JSON lines; auto: the first of sequence, text and sentence (in predict.py,
    text; another: +overrides.text_column=NAME)"""
    target_column: str = key("target_sequence")
    """key of the correct text; where it is missing, the text gets noise"""
    max_characters: int = key(512, at_least=16)
    """longer texts are cut at sentences, and longer sentences between words"""
    min_prose_share: float = key(0.0, at_least=0, at_most=1)
    """leave out samples with a smaller share of words of letters only: code and tables"""
    store_dir: str = key("runs/spelling_store", is_path=True)
    """folder for the prepared samples of these settings, which later runs read"""
    noise: NoiseConfig = key(NoiseConfig)
    """the errors that clean text gets"""

    batch_max_length: int = key(
        4096,
        f"padded tokens of a step over all processes; at least {MIN_PART_TOKENS} a process",
        at_least=MIN_PART_TOKENS,
        heading="Batches",
    )
    bucket_span: int = key(4, at_least=1)
    """samples are ordered by length // bucket_span, and cut into steps"""
    batch_shares: int | None = key(
        None,
        "parts into which every step can be divided: processes x gradient_accumulation_steps must "
        "divide it; null: the largest power of 2 that leaves each of them "
        f"{MIN_PART_TOKENS} tokens, at most 64",
        at_least=1,
    )
    num_workers: int = key(0, at_least=0)
    """loader processes of each rank (0: in the training process)"""

    model_name: str | None = key(None, is_path=True, heading="Model")
    """a folder or Hub name to start from; null: the small model, unless model_config_file"""
    model_config_file: str | None = key(None, is_path=True)
    """JSON of a transformers config: random weights of this shape, with tokenizer_name"""
    tokenizer_name: str | None = key(None, is_path=True)
    """a folder or Hub name; null: model_name"""
    small_model: SmallModelConfig = key(SmallModelConfig)
    """the model without the keys above"""
    word_lists: list[str] = key([], is_path=True)
    """additional words with counts for the small model: symspellpy or wordfreq (wordfreq:LANGUAGE),
    the lists of those packages, or files of lines `word count`"""
    counted_share: float = key(0.5, at_least=0, below=1)
    """small model: share of the training texts whose words and sequences of words are counted; it
    is trained on the others, because in counted texts every correct word is known"""
    hidden_misspellings: float = key(0.8, at_least=0, at_most=1)
    """small model: share of the known misspellings (noise.misspellings) hidden from it in training,
    because other texts have errors that are in no list"""
    keep_words: list[str] = key([])
    """words that are never flagged or changed, or files of a word per line (names that end in
    .txt); a word in lower case also stands for its capitalized forms (predict.py:
    '+overrides.keep_words=[WORD, FILE.txt]')"""
    dictionary: str | None = key(None, is_path=True)
    """words of the dictionary baseline, a file of lines `word count`; null: symspellpy"""

    benchmarks: str | None = key(None, is_path=True, heading="Results")
    """folder of test sets TASK/GROUP/SPLIT/{corrupt,correct}.txt, scored after the last step"""
    benchmark_lines: int | None = key(None, at_least=1)
    """number of lines to score of each test set; null: all"""
    bootstrap_resamples: int = key(2000, at_least=1)
    """resamples of the lines of a test set for each interval"""


@dataclass(frozen=True, kw_only=True)
class DetectionConfig(SpellingConfig):
    """The configuration that the two tasks that detect errors share."""

    metrics: ClassVar[str | None] = "bsmeta.tasks.spelling.metrics:DETECTION_METRICS"

    wanted_precision: float = key(0.95, above=0, at_most=1, heading="Detection")
    """a second threshold is chosen on the validation samples for this precision, and saved"""
    abstains: bool = key(False)
    """flag only words (or texts) that reach the saved threshold for wanted_precision, not all that
    are more likely wrong than right (predict.py, evaluate.py: +overrides.abstains=true)"""


@dataclass(frozen=True, kw_only=True)
class SedWordsConfig(DetectionConfig):
    """A training run that detects the words with errors."""

    task: str = inherit_key(RunConfig, "task", "sed_words")


@dataclass(frozen=True, kw_only=True)
class SedSequenceConfig(DetectionConfig):
    """A training run that detects the sequences with errors."""

    task: str = inherit_key(RunConfig, "task", "sed_sequence")


@dataclass(frozen=True, kw_only=True)
class SecConfig(SpellingConfig):
    """A training run that corrects errors: by candidates, or with a seq2seq model."""

    metrics: ClassVar[str | None] = "bsmeta.tasks.spelling.metrics:CORRECTION_METRICS"

    task: str = inherit_key(RunConfig, "task", "sec")

    detector: str | None = key(None, is_path=True, heading="Correction")
    """model/ of a run of sed_words: only words that it flags are changed; null: all may be"""
    most_false_alarms: float = key(0.005, at_least=0, at_most=1)
    """candidates: largest share of the words of correct text that may be changed; the threshold of
    corrections has the best F1 within this limit, on the validation samples"""
    most_kind_false_alarms: float = key(0.02, at_least=0, at_most=1)
    """candidates: the same limit for each kind of word by its characters, such as capitalized words
    and acronyms; the thresholds of the kinds that exceed it are higher"""
    num_beams: int = key(1, at_least=1)
    """seq2seq: beams of the search in `generate`; 1: greedy"""
    val_corrections: int = key(100, at_least=1)
    """validation samples to correct at each evaluation (the loss is over all)"""


def find_value_problems(
    config: SpellingConfig, composition: Composition = EMPTY_COMPOSITION
) -> Iterator[Problem]:
    """Yields the problems with the values of keys, before the launch is known."""
    yield from _find_published_problems(config, composition)
    yield from _find_data_problems(config)
    yield from find_model_problems(cast(Any, config))  # which has the keys that it reads
    yield from _find_file_problems(config)
    yield from _find_shape_problems(config)
    yield from _find_noise_problems(config)


def _find_published_problems(config: SpellingConfig, composition: Composition) -> Iterator[Problem]:
    """Yields problems with the variant and the noise of a published configuration."""
    variant = look_up({"document": config.document}, _VARIANT)
    trainable = [name for name, task in VARIANTS.items() if task == config.task]
    if composition.is_read("document") and variant is not MISSING and variant not in trainable:
        expected = f"{' or '.join(trainable)}, because this configuration trains task={config.task}"
        fix = f"set NSC_CONFIG to a published configuration of {trainable[0]}"
        if variant in VARIANTS:
            fix = f"--config-name train_{VARIANTS[variant]}, or {fix}"
        yield Problem(_VARIANT, HYDRA, format_value(variant), expected, fix)

    noise = look_up({"document": config.document}, _PUBLISHED_NOISE)
    if not isinstance(noise, Mapping) or noise.get("type") != "SWITCH":
        return

    choices = noise.get("cfgs")
    types = [look_up(choice, "type") for choice in choices] if isinstance(choices, list) else []
    is_supported = types[1:] == ["NONE"] and types[0] not in (MISSING, "NONE")
    if composition.is_read(f"{_PUBLISHED_NOISE}.probabilities") and not is_supported:
        expected = "two: errors, and NONE as the second, whose probability is noise.clean_share"
        fix = "correct their order and number, or set noise.clean_share and noise.word_probability"
        names = ["no type" if name is MISSING else str(name) for name in types]
        yield Problem(f"{_PUBLISHED_NOISE}.cfgs", HYDRA, ", ".join(names) or "none", expected, fix)


def _find_data_problems(config: SpellingConfig) -> Iterator[Problem]:
    """Yields problems with the data sets, their limits and their validation splits."""
    if not config.datasets:
        expected = "at least one file, folder or glob of .txt or .jsonl"
        yield Problem("datasets", HYDRA, "[]", expected, "datasets=[FILE]")
    if config.accelerate_config_file is None:
        for name in config.datasets:
            if not os.path.exists(name) and not glob.glob(name, recursive=True):
                yield describe_missing_file(
                    "datasets", name, "a file, a folder or a glob", "correct datasets"
                )

    count = len(config.datasets)
    for field in ("dataset_limits", "val_splits"):
        values = getattr(config, field)
        if len(values) not in (0, 1, count):
            expected = f"one value for all {count} datasets, or one for each"
            yield Problem(field, HYDRA, format_value(list(values)), expected, f"correct {field}")

    for split in config.val_splits:
        if 1 <= split < math.inf and split != int(split):
            expected = "a number of samples from 1, or a share below 1"
            yield Problem("val_splits", HYDRA, format_value(split), expected, "val_splits=[0.05]")

    if not any(config.val_splits) and config.keep_best_by is not None:
        expected = "null, because val_splits leaves nothing to validate on"
        fix = "keep_best_by=null early_stopping_patience=null export_best=false, or val_splits"
        yield Problem("keep_best_by", HYDRA, format_value(config.keep_best_by), expected, fix)


def _find_file_problems(config: SpellingConfig) -> Iterator[Problem]:
    """Yields a problem for each missing file, folder or package.

    Test sets and the dictionary are needed only after the last step, but checked before the first.
    """
    noise = config.noise
    if noise.misspellings != CODESPELL and not os.path.isfile(noise.misspellings):
        fix = "noise.misspellings=codespell, or a JSON file {word: [misspelling, …]}"
        yield describe_missing_file(
            "noise.misspellings", noise.misspellings, "codespell, or a file", fix
        )
    elif noise.misspellings == CODESPELL and noise.method != "artificial":
        fix = "noise.misspellings=FILE.json"
        yield from _find_uninstalled("noise.misspellings", CODESPELL, "codespell_lib", fix)

    if config.benchmarks is not None:
        if not os.path.isdir(config.benchmarks):
            expected = "a folder of TASK/GROUP/SPLIT/{corrupt,correct}.txt"
            yield describe_missing_file(
                "benchmarks", config.benchmarks, expected, "correct benchmarks"
            )
        yield from _find_uninstalled(
            "benchmarks", config.benchmarks, "symspellpy", "benchmarks=null"
        )

    if isinstance(config, SecConfig):
        yield from _find_detector_problems(config)

    word_list = "a file of lines `word count`"
    for name in config.word_lists:
        package = name.partition(":")[0]
        if package in (SYMSPELLPY, WORDFREQ):
            yield from _find_uninstalled("word_lists", name, package, "word_lists=[]")
        elif not os.path.isfile(name):
            expected = f"symspellpy, wordfreq, or {word_list}"
            yield describe_missing_file("word_lists", name, expected, "correct word_lists")
    for name in filter(is_word_file, config.keep_words):
        if not os.path.isfile(os.path.expanduser(name)):
            expected = "a word, or a file of a word per line"
            yield describe_missing_file("keep_words", name, expected, "correct keep_words")
    if config.dictionary is not None and not os.path.isfile(config.dictionary):
        yield describe_missing_file("dictionary", config.dictionary, word_list, "dictionary=null")


def is_word_file(entry: str) -> bool:
    """Returns whether an entry of `keep_words` is the name of a file."""
    return entry.endswith(".txt")


def _find_detector_problems(config: SecConfig) -> Iterator[Problem]:
    """Yields a problem if the detector is missing, or is a model of another task."""
    folder = config.detector
    if folder is None:
        return

    expected = "model/ of a run of sed_words"
    if not os.path.isdir(folder):
        yield describe_missing_file("detector", folder, expected, "correct detector")
    elif os.path.isfile(os.path.join(folder, CORRECTION)):
        value = f"{format_value(folder)}, a model of task=sec, whose scores are about corrections"
        yield Problem("detector", HYDRA, value, expected, "correct detector, or detector=null")


def _find_uninstalled(key: str, value: str, module: str, instead: str) -> Iterator[Problem]:
    """Yields a problem if a package is not installed.

    Args:
        key: The key that needs the package.
        value: The value of the key.
        module: The name under which the package is imported.
        instead: A setting of the key that does not need the package.
    """
    if find_spec(module) is None:
        package = module.removesuffix("_lib")
        expected = f"the package {package}, which is not installed"
        yield Problem(
            key, HYDRA, format_value(value), expected, f"pip install {package}, or {instead}"
        )


def _find_shape_problems(config: SpellingConfig) -> Iterator[Problem]:
    """Yields problems with the sizes of the model and of a step."""
    if config.model_config_file and not (config.tokenizer_name or config.model_name):
        expected = "the tokenizer of the model of model_config_file"
        yield Problem("tokenizer_name", HYDRA, "null", expected, "tokenizer_name=FOLDER")

    small = config.small_model
    if small.heads >= 1 and small.width % small.heads:
        name = "small_model.heads"
        expected = f"a divisor of small_model.width={small.width}"
        yield Problem(name, HYDRA, format_value(small.heads), expected, f"{name}=4")

    shares = config.batch_shares
    if shares is not None and config.batch_max_length < MIN_PART_TOKENS * shares:
        expected = f"at least {MIN_PART_TOKENS} tokens for each of batch_shares={shares}"
        fix = f"batch_max_length={MIN_PART_TOKENS * shares}, or fewer batch_shares"
        yield Problem(
            "batch_max_length", HYDRA, format_value(config.batch_max_length), expected, fix
        )


def _find_noise_problems(config: SpellingConfig) -> Iterator[Problem]:
    """Yields problems with the letters and the shares of the noise."""
    noise = config.noise
    if not noise.letters.isalpha():
        fix = "noise.letters=abcdefghijklmnopqrstuvwxyz"
        yield Problem(
            "noise.letters", HYDRA, format_value(noise.letters), "letters, without spaces", fix
        )

    shares = noise.accent_share + noise.slip_share
    if shares > 1:
        expected = "at most 1, with noise.accent_share"
        yield Problem(
            "noise.slip_share", HYDRA, format_value(shares), expected, "noise.slip_share=0.5"
        )


def count_step_parts(config: SpellingConfig) -> int:
    """Returns the number of parts into which every step can be divided."""
    if config.batch_shares is not None:
        return config.batch_shares
    full_parts = max(config.batch_max_length // MIN_PART_TOKENS, 1)
    largest_power_of_2 = 1 << (full_parts.bit_length() - 1)
    return min(largest_power_of_2, MAX_SHARES)


def find_start_problems(
    config: SpellingConfig, launch: Launch, _: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """Yields a problem if the processes of the launch cannot divide a step equally."""
    invalid_keys = {problem.key for problem in find_bound_problems(config)}
    if invalid_keys & {"gradient_accumulation_steps", "batch_shares", "batch_max_length"}:
        return

    accumulation = config.gradient_accumulation_steps
    processes = launch.num_processes
    parts = accumulation * processes
    shares = count_step_parts(config)
    if shares % parts == 0:
        return

    product = f"{processes} (processes) x {accumulation} (gradient_accumulation_steps)"
    next_multiple = round_up_to_multiple(shares, parts)
    fix = f"batch_shares={next_multiple}"
    if MIN_PART_TOKENS * next_multiple > config.batch_max_length:
        fix += f" batch_max_length={MIN_PART_TOKENS * next_multiple}, or fewer parts"
    value = format_value(config.batch_shares)
    if config.batch_shares is None:
        value += f" ({shares})"
    yield Problem("batch_shares", HYDRA, value, f"a multiple of {product} = {parts}", fix)


def list_summary_rows(config: SpellingConfig, _: Launch) -> list[Row]:
    """Returns the rows of the start-up table: model, data sets, errors and batch size."""
    small = config.small_model
    model = f"candidates, ranked by {small.layers} layers of width {small.width}"
    if config.model_config_file is not None:
        model = f"{config.model_config_file} (random weights)"
    elif config.model_name is not None:
        model = config.model_name

    noise = config.noise
    if noise.method == "artificial":
        errors = "artificial"
    else:
        errors = f"misspellings of {noise.misspellings}"
        if noise.method == "mixed":
            errors += f", {noise.artificial_share:.0%} artificial"

    batch = f"{config.batch_max_length:,} padded tokens; buckets of {config.bucket_span}"
    return [
        ("model", model),
        ("data sets", ", ".join(config.datasets)),
        ("errors", f"{errors}; in {noise.word_probability:.0%} of the words"),
        ("global batch", batch),
    ]


def list_notes(
    config: SpellingConfig, composition: Composition = EMPTY_COMPOSITION
) -> Iterator[str]:
    """Yields a note for each setting of a published configuration that has no effect here."""
    unread = composition.list_unread_keys("document", checked=[_VARIANT])
    if unread:
        yield f"{', '.join(unread)}: without a counterpart here, so not used"

    schedule = look_up(config.document, "lr_scheduler.type")
    if composition.is_read("document.lr_scheduler.type") and schedule not in SCHEDULES:
        instead = "in steps" if str(schedule).startswith("STEP") else f"as {schedule}"
        falls = f"falls as lr_scheduler_type={config.lr_scheduler_type}, not {instead}"
        yield f"document.lr_scheduler.type: {schedule}: the learning rate {falls}"
