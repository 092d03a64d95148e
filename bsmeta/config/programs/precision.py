"""The precisions in which trained models are loaded: `precision` of several programs."""

PRECISIONS = ("auto", "float32", "bfloat16")
