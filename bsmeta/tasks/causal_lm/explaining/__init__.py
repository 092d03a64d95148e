"""Documents as a model sees them: the output of `explain.py` for a training configuration.

The flow is `selection` (the documents, built by the same code as the training data) -> `tokens`
(text and properties of each token) -> `lines` (JSON), `terminal` or `page` (HTML).
"""
