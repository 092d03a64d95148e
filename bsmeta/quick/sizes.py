"""Chooses the sizes of the models and the length of training, for the text and the device.

Both models together must train within `minutes`. A step costs 6 FLOPs per weight and token (Kaplan
et al. 2020, section 2.1), and text is repeated at most four times, up to which repetition is nearly
as good as new text (Muennighoff et al. 2023). The largest shape is chosen that sees enough tokens:
the text one and a half times, or `MIN_TOKENS_PER_WEIGHT` for each weight.

The rates of devices are low estimates for models this small; a slow machine takes longer, and no
result depends on the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bsmeta.core.environment import count_usable_cores
from bsmeta.core.errors import ConfigurationError
from bsmeta.quick.config import QuickConfig

CORE_FLOPS = 15e9
"""FLOPs per second of a CPU core in training, in float32."""

GPU_FLOPS = 10e12
"""FLOPs per second of a GPU in training models of some million weights."""

MAX_CORES = 16
"""Number of cores beyond which small models train no faster."""

MAX_EPOCHS = 4
"""Maximum number of passes over the text."""

MIN_EPOCHS = 1.5
"""Minimum number of passes over a short text for a larger shape to be chosen."""

MIN_TOKENS_PER_WEIGHT = 4
"""Minimum number of tokens per weight, if there is enough text, for a larger shape to be chosen."""

MIN_STEPS = 300
"""Minimum number of steps; the batch is reduced, down to one sequence, to reach it."""

LEARNING_RATE = 4e-3
"""Peak learning rate up to a width of 128; beyond it, the rate falls with the width."""

MIN_TOKENIZER_BYTES = 100_000
"""Bytes of training text below which the sample's tokenizer is used."""

BYTES_PER_ENTRY = 500
"""Bytes of training text needed for each token of a vocabulary."""

HEAD_SIZE = 32
"""Width of an attention head."""


class Shape(NamedTuple):
    """The shape of a model."""

    hidden_size: int
    num_layers: int


SHAPES = (
    Shape(64, 2),
    Shape(96, 3),
    Shape(128, 4),
    Shape(192, 5),
    Shape(256, 6),
    Shape(384, 8),
    Shape(512, 10),
    Shape(768, 12),
)
"""Shapes to choose from, by their number of weights."""


@dataclass(frozen=True)
class Device:
    """The device that trains.

    Attributes:
        name: Its name in tables.
        flops: Floating-point operations per second that it reaches in training.
        max_rows: Number of sequences per step beyond which it gains no efficiency.
        precision: The `mixed_precision` of runs on it.
        launch_file: The launch file for one process on it.
    """

    name: str
    flops: float
    max_rows: int
    precision: str = "no"
    launch_file: str = "cpu.yaml"


@dataclass(frozen=True)
class Sizes:
    """The sizes of both models and of their training.

    Attributes:
        rows: Number of sequences in a step.
        steps: Number of steps of each model.
        text_tokens: Number of tokens of the training text.
        seconds: Estimated time for training both models.
    """

    vocabulary_size: int
    hidden_size: int
    num_layers: int
    max_seq_len: int
    rows: int
    steps: int
    learning_rate: float
    text_tokens: int
    seconds: float

    @property
    def weights(self) -> int:
        """Number of weights; tied embeddings count once."""
        return count_weights(Shape(self.hidden_size, self.num_layers), self.vocabulary_size)

    @property
    def epochs(self) -> float:
        """Number of passes over the text."""
        return self.steps * self.rows * self.max_seq_len / max(self.text_tokens, 1)

    def make_model_config(self) -> dict[str, object]:
        """Returns the content of the `model_config_file`: a Llama of this shape."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": compute_inner_size(self.hidden_size),
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.hidden_size // HEAD_SIZE,
            "num_key_value_heads": self.hidden_size // HEAD_SIZE,
            "max_position_embeddings": 4 * self.max_seq_len,
            "rms_norm_eps": 1e-05,
            "tie_word_embeddings": True,
        }


def find_device() -> Device:
    """Returns the device that `bsmeta train` uses in one process."""
    import torch  # takes seconds

    if torch.cuda.is_available():
        precision = "bf16" if torch.cuda.is_bf16_supported() else "no"
        return Device(
            torch.cuda.get_device_name(),
            GPU_FLOPS,
            max_rows=64,
            precision=precision,
            launch_file="ddp.yaml",
        )

    cores = min(count_usable_cores() or 1, MAX_CORES)
    return Device(f"{cores} CPU cores", cores * CORE_FLOPS, max_rows=16)


def choose_vocabulary_size(text_bytes: int, device: Device) -> int | None:
    """Chooses the vocabulary size of a tokenizer trained on the text; None if it is too short.

    A token must occur about a hundred times to be learned. In models small enough for a CPU, a
    large vocabulary would dominate the compute.
    """
    if text_bytes < MIN_TOKENIZER_BYTES:
        return None

    max_size = 4096 if device.flops < 1e12 else 16_384
    size = 1024
    while size < max_size and text_bytes >= BYTES_PER_ENTRY * 2 * size:
        size *= 2
    return size


def choose_sizes(
    text_tokens: int, vocabulary_size: int, device: Device, config: QuickConfig
) -> Sizes:
    """Chooses the sizes that the configuration leaves open.

    Args:
        text_tokens: Number of tokens of the training text.

    Raises:
        ConfigurationError: If `hidden_size` is not a multiple of the width of an attention head.
    """
    if config.hidden_size is not None and config.hidden_size % HEAD_SIZE:
        raise ConfigurationError(
            f"hidden_size={config.hidden_size}: expected a multiple of {HEAD_SIZE}, such as "
            f"{max(config.hidden_size // HEAD_SIZE, 1) * HEAD_SIZE}"
        )

    flops = 60 * config.minutes / 2 * device.flops  # of each model
    shape = _choose_shape(text_tokens, vocabulary_size, flops)
    shape = Shape(config.hidden_size or shape.hidden_size, config.num_layers or shape.num_layers)
    weights = count_weights(shape, vocabulary_size)
    tokens = _compute_training_tokens(text_tokens, weights, flops)

    default_window = 256 if weights < 5_000_000 else 512
    window = config.max_seq_len or default_window
    rows = config.batch_size or _choose_rows(tokens, window, device)
    steps = config.max_train_steps or max(round(tokens / (rows * window)), 1)
    default_rate = round(min(LEARNING_RATE, LEARNING_RATE * 128 / shape.hidden_size), 6)
    return Sizes(
        vocabulary_size=vocabulary_size,
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        max_seq_len=window,
        rows=rows,
        steps=steps,
        learning_rate=config.learning_rate or default_rate,
        text_tokens=text_tokens,
        seconds=2 * 6 * weights * steps * rows * window / device.flops,
    )


def count_weights(shape: Shape, vocabulary_size: int) -> int:
    """Counts the weights of a Llama with tied embeddings, except its norms."""
    width = shape.hidden_size
    layer_weights = 4 * width**2 + 3 * width * compute_inner_size(width)
    return vocabulary_size * width + shape.num_layers * layer_weights


def compute_inner_size(hidden_size: int) -> int:
    """Computes the feed-forward width: 8/3 of the hidden size, as in Llama, in multiples of 16."""
    return round(8 * hidden_size / 3 / 16) * 16


def list_size_rows(sizes: Sizes, device: Device, minutes: float) -> list[tuple[str, str]]:
    """Makes the rows of a table of the sizes, each with the keys that change it."""
    tokens = sizes.rows * sizes.max_seq_len
    model = f"{sizes.num_layers} layers of width {sizes.hidden_size} (num_layers, hidden_size)"
    return [
        ("device", device.name),
        ("tokenizer", f"{sizes.vocabulary_size:,} tokens (tokenizer, vocabulary_size)"),
        ("model", f"{sizes.weights / 1e6:.2f} M weights: {model}"),
        ("window", f"{sizes.max_seq_len} tokens of text, and room for metadata (max_seq_len)"),
        ("step", f"{sizes.rows} sequences = {tokens:,} tokens (batch_size)"),
        (
            "steps",
            f"{sizes.steps:,} of each model = {sizes.epochs:.1f} epochs of "
            f"{sizes.text_tokens:,} tokens (max_train_steps)",
        ),
        ("learning rate", f"{sizes.learning_rate:g} (learning_rate)"),
        (
            "time",
            f"about {sizes.seconds / 60:.1f} minutes for training both models, of at most "
            f"{minutes:g} (minutes)",
        ),
    ]


def _choose_shape(text_tokens: int, vocabulary_size: int, flops: float) -> Shape:
    """Chooses the largest shape that sees enough tokens, or else the smallest.

    Args:
        flops: Floating-point operations for training the model.
    """
    chosen = SHAPES[0]
    for shape in SHAPES:
        weights = count_weights(shape, vocabulary_size)
        min_tokens = min(MIN_EPOCHS * text_tokens, MIN_TOKENS_PER_WEIGHT * weights)
        tokens = _compute_training_tokens(text_tokens, weights, flops)
        if tokens >= min_tokens and tokens >= weights / 2:
            chosen = shape
    return chosen


def _choose_rows(tokens: float, window: int, device: Device) -> int:
    """Chooses the number of sequences in a step: a power of two that leaves `MIN_STEPS` steps."""
    rows = 1
    while rows < device.max_rows and tokens >= 2 * rows * window * MIN_STEPS:
        rows *= 2
    return rows


def _compute_training_tokens(text_tokens: int, weights: int, flops: float) -> float:
    """Computes the number of tokens to train a model on, repetitions of the text included."""
    return min(flops / (6 * weights), MAX_EPOCHS * text_tokens)
